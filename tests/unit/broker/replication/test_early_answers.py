"""R37: with `all_ack_in_sync_state_set = false` answers may leave before confirm."""

import pytest
from tests.support.replication.builders import (
    START_END,
    a_master,
    a_view,
    acked,
    an_open_master,
    join,
    write,
)

from paceline.types import Incarnation, PhysicalOffset, ReplicaId
from paceline.wire.cluster import GroupSettings
from paceline_broker.replication.handshake import ConnectionId
from paceline_broker.replication.master.events import (
    Appended,
    Failed,
    Flushed,
    GroupCommitted,
    MemberRefused,
    Ran,
    ReplicaLeft,
)
from paceline_broker.replication.master.master import MasterReplication
from paceline_broker.replication.master.relaxed_acks import needed


def weak(
    count: int,
    *,
    is_auto: bool = False,
    durability: str = "fsync",
    minimum: int = 2,
    is_all: bool = False,
) -> GroupSettings:
    return GroupSettings(
        total_replicas=3,
        min_in_sync_replicas=minimum,
        durability=durability,
        all_ack_in_sync_state_set=is_all,
        in_sync_replicas=count,
        enable_auto_in_sync_replicas=is_auto,
    )


def a_weak_master(settings: GroupSettings) -> MasterReplication:
    """Open, with replicas 2 and 3 over connections 2 and 3; all have the epoch start."""
    master = an_open_master(a_view(settings=settings))
    assert master.confirm == START_END
    return master


def test_by_default_nothing_but_confirm_releases_answers() -> None:
    master = an_open_master()

    readies = [write(master, 200), master.step(acked(2, 200)), master.step(acked(3, 200))]

    assert [ready.held for ready in readies] == [None, None, None]
    assert readies[-1].confirm == 200


def test_one_of_three_is_the_master_alone_as_soon_as_it_has_flushed() -> None:
    master = a_weak_master(weak(1))

    assert master.step(Appended(PhysicalOffset(200))).held is None
    ready = master.step(Flushed(PhysicalOffset(200)))

    assert (ready.held, ready.confirm) == (200, None)


def test_two_of_three_wait_for_the_faster_replica_on_its_disk() -> None:
    master = a_weak_master(weak(2))
    assert write(master, 200).held is None

    assert master.step(acked(2, START_END, appended=200)).held is None
    ready = master.step(acked(2, 200))

    assert (ready.held, ready.confirm) == (200, None)
    assert master.step(acked(3, 200)).confirm == 200


def test_what_the_master_has_not_flushed_is_not_held_however_many_replicas_have_it() -> None:
    master = a_weak_master(weak(2))
    master.step(Appended(PhysicalOffset(200)))
    assert master.step(acked(2, 200)).held is None
    assert master.step(acked(3, 200)).held is None

    assert master.step(Flushed(PhysicalOffset(200))).held == 200


def test_memory_durability_counts_what_is_appended() -> None:
    master = a_weak_master(weak(2, durability="memory"))
    master.step(Appended(PhysicalOffset(200)))

    assert master.step(acked(2, START_END, appended=200)).held == 200


def test_more_than_the_set_has_waits_for_confirm() -> None:
    master = a_weak_master(weak(3))
    write(master, 200)
    master.step(acked(2, 200))
    ready = master.step(ReplicaLeft(ConnectionId(3)))

    assert ready.held is None
    join(master, 3, connection=4)
    ready = master.step(acked(4, 200))
    assert (ready.held, ready.confirm) == (200, 200)


def test_fewer_members_than_in_sync_replicas_confirm_nothing_and_take_nothing() -> None:
    """R8: the set may have got so small before the setting came, or by a removal (R9)."""
    settings = weak(2, minimum=1)
    master = a_weak_master(settings)
    write(master, 200)
    view = a_view(settings=settings, sync_state_set=frozenset({1}), set_epoch=6)
    ready = master.step(GroupCommitted(view))

    assert (ready.held, ready.confirm) == (None, None)
    assert not master.can_accept()


def test_set_does_not_shrink_below_in_sync_replicas() -> None:
    master = a_weak_master(weak(2, minimum=1))
    for replica in (2, 3):
        master.step(ReplicaLeft(ConnectionId(replica)))
    first = master.step(MemberRefused(ReplicaId(2), Incarnation(1)))
    view = a_view(settings=weak(2, minimum=1), sync_state_set=frozenset({1, 3}), set_epoch=6)
    master.step(GroupCommitted(view))

    second = master.step(MemberRefused(ReplicaId(3), Incarnation(1)))

    assert first.propose is not None
    assert first.propose.sync_state_set == {1, 3}
    assert second.propose is None
    assert not master.can_accept()


@pytest.mark.parametrize(
    ("count", "minimum", "is_all", "is_auto", "expected"),
    [
        (2, 1, False, False, 2),
        (1, 2, False, False, 2),
        (3, 2, False, False, 3),
        (3, 1, False, True, 1),
        (3, 1, True, False, 1),
    ],
)
def test_how_many_members_a_group_requires(
    count: int, minimum: int, is_all: bool, is_auto: bool, expected: int
) -> None:
    settings = weak(count, is_auto=is_auto, minimum=minimum, is_all=is_all)

    assert settings.required_in_sync_replicas == expected


def test_replica_outside_the_set_does_not_count() -> None:
    view = a_view(settings=weak(2), sync_state_set=frozenset({1, 2}))
    master = a_master(view)
    join(master, 2, connection=2)
    master.step(Flushed(START_END))
    master.step(acked(2, START_END))
    assert master.is_open
    join(master, 3, connection=3)
    write(master, 200)

    assert master.step(acked(3, 200)).held is None  # it is on its way into the set, not in it


def test_epoch_that_is_not_open_answers_nothing_early() -> None:
    master = a_master(a_view(settings=weak(1)))
    join(master, 2, connection=2)
    join(master, 3, connection=3)

    assert write(master, 200).held is None
    master.step(acked(2, 200))
    ready = master.step(acked(3, START_END))

    assert ready.opened
    assert (ready.confirm, ready.held) == (START_END, 200)


def test_fenced_master_answers_nothing_early() -> None:
    master = a_weak_master(weak(1))
    master.step(Failed("the disk"))

    assert write(master, 200).held is None


def test_held_never_falls_when_a_fast_replica_leaves() -> None:
    master = a_weak_master(weak(2))
    write(master, 200)
    assert master.step(acked(2, 200)).held == 200

    master.step(ReplicaLeft(ConnectionId(2)))
    write(master, 300)

    assert master.step(acked(3, 150)).held is None
    assert master.step(acked(3, 300)).held == 300


def test_with_auto_a_member_that_lags_holds_no_answer_up() -> None:
    master = a_weak_master(weak(3, is_auto=True))
    write(master, 200)
    assert master.step(acked(2, 200)).held is None

    for _ in range(30):
        master.step(acked(2, 200))
        ready = master.step(Ran(100))
        if ready.held is not None:
            break

    assert ready.held == 200
    assert ready.confirm is None


@pytest.mark.parametrize(
    ("count", "is_auto", "acknowledging", "expected"),
    [
        (1, False, 3, 1),
        (3, False, 1, 3),
        (3, True, 3, 3),
        (3, True, 2, 2),
        (3, True, 1, 2),  # never fewer than min_in_sync_replicas
        (1, True, 3, 2),
    ],
)
def test_how_many_members_must_hold_a_record(
    count: int, is_auto: bool, acknowledging: int, expected: int
) -> None:
    assert needed(weak(count, is_auto=is_auto), acknowledging=acknowledging) == expected
