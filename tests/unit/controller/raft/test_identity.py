"""A controller that forgot its promises does not vote (R18)."""

import pytest

from paceline.errors import CorruptLogError, PeerError, StorageError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom
from paceline.types import ControllerId
from paceline_controller.raft.identity import Identity

C1, C2, C3 = (ControllerId(f"c{number}") for number in (1, 2, 3))
PATH = "/raft/identity"


def a_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_folder("/raft")
    return disk


def opened(disk: MemoryDisk, *, me: ControllerId = C1, seed: str = "1") -> Identity:
    peers = [peer for peer in (C1, C2, C3) if peer != me]
    return Identity.open(
        disk, PATH, controller_id=me, cluster="test", peers=peers, random=SeededRandom(seed)
    )


def meet(
    identity: Identity,
    peer: ControllerId,
    *,
    store: str | None = None,
    is_founded: bool = False,
    remembers: str = "",
) -> None:
    identity.meet(
        peer, store=store or f"store-{peer}", is_founded=is_founded, remembered_store=remembers
    )


def test_a_new_store_votes_once_it_has_met_every_new_peer() -> None:
    disk = a_disk()
    identity = opened(disk)

    meet(identity, C2)
    assert not identity.may_vote
    meet(identity, C3)

    assert identity.may_vote
    assert opened(disk).may_vote  # durable


def test_a_controller_alone_may_vote() -> None:
    identity = Identity.open(
        a_disk(), PATH, controller_id=C1, cluster="test", peers=[], random=SeededRandom("1")
    )

    assert identity.may_vote


def test_a_store_that_a_founded_peer_does_not_know_must_catch_up_first() -> None:
    identity = opened(a_disk())

    meet(identity, C2, is_founded=True)
    meet(identity, C3, is_founded=True)
    assert not identity.may_vote
    identity.caught_up()

    assert identity.may_vote


def test_a_store_killed_while_founding_goes_on_if_the_peers_remember_it() -> None:
    identity = opened(a_disk())

    meet(identity, C2, is_founded=True, remembers=identity.store)
    meet(identity, C3)

    assert identity.may_vote


def test_a_peer_that_lost_its_disk_is_refused() -> None:
    disk = a_disk()
    meet(opened(disk), C2, store="first")

    with pytest.raises(PeerError, match="must be replaced under a new id"):
        meet(opened(disk), C2, store="second")


def test_the_folder_of_another_controller_or_cluster_is_refused() -> None:
    disk = a_disk()
    opened(disk)

    with pytest.raises(StorageError, match="belongs to controller 'c1' of cluster 'test'"):
        opened(disk, me=C2)


def test_a_damaged_identity_is_refused() -> None:
    disk = a_disk()
    opened(disk)
    disk.flip_bit(PATH, 30)

    with pytest.raises(CorruptLogError, match="checksum"):
        opened(disk)
