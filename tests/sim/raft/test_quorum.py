"""RaftQuorum over loopback sockets: the Quorum port, failover, restart, hand-over."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.sim.raft.cluster import NAMES, Cluster, ListMachine, eventually

from paceline.errors import (
    BadRequestError,
    ConfigError,
    CorruptLogError,
    NotLeaderError,
    OutcomeUnknownError,
    ShuttingDownError,
    StorageError,
    TooLargeError,
)
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SystemClock, SystemRandom
from paceline.platform.secret import ClusterSecrets
from paceline.types import ControllerId
from paceline_controller.quorum import Quorum
from paceline_controller.raft.host import RaftQuorum
from paceline_controller.raft.settings import RaftSettings

pytestmark = pytest.mark.real_time

PATIENT = RaftSettings(election_min_ms=3_000, election_max_ms=6_000, leader_fallback_ms=6_000)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(str(tmp_path))
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def patient(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Hundreds of syncs in a row on a disk that others use: the leader must not be given up."""
    made = Cluster(str(tmp_path), settings=PATIENT)
    yield made
    await made.stop()


async def test_a_command_is_applied_everywhere_and_answered_with_its_result(
    cluster: Cluster,
) -> None:
    await cluster.start()
    leader = await cluster.leader()

    results = [await leader.propose({"value": n}, timeout_ms=2_000) for n in range(20)]

    assert [result["count"] for result in results] == list(range(1, 21))
    await eventually(lambda: all(m.values == list(range(20)) for m in cluster.running_machines()))


async def test_many_proposals_at_once_keep_their_order(patient: Cluster) -> None:
    await patient.start()
    leader = await patient.leader()

    await asyncio.gather(*(leader.propose({"value": n}, timeout_ms=20_000) for n in range(300)))

    assert patient.machines[patient.name_of(leader)].values == list(range(300))


async def test_a_follower_refuses_with_the_leader_as_hint(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    name = cluster.name_of(leader)
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    await eventually(lambda: follower.status().leader == name)

    with pytest.raises(NotLeaderError) as caught:
        await follower.propose({"value": 1}, timeout_ms=1_000)
    with pytest.raises(NotLeaderError):
        await follower.read_barrier(timeout_ms=1_000)

    assert caught.value.details == {"leader": name}


async def test_commands_that_cannot_be_sent_are_refused(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()

    with pytest.raises(TooLargeError):
        await leader.propose({"value": "x" * 2_000_000}, timeout_ms=1_000)
    with pytest.raises(BadRequestError):
        await leader.propose({"value": object()}, timeout_ms=1_000)


async def test_barriers_are_shared_and_end_after_what_was_committed_before(
    cluster: Cluster,
) -> None:
    await cluster.start()
    leader = await cluster.leader()
    before = leader.status().commit_index

    await asyncio.gather(*(leader.read_barrier(timeout_ms=2_000) for _ in range(100)))

    assert leader.status().applied_index - before == 2  # the one in flight, and one for the rest
    await asyncio.gather(
        leader.propose({"value": 1}, timeout_ms=2_000), leader.read_barrier(timeout_ms=2_000)
    )


async def test_a_killed_leader_is_replaced_and_nothing_is_lost(cluster: Cluster) -> None:
    await cluster.start()
    for number in range(10):
        await cluster.write(number)
    killed = cluster.name_of(await cluster.leader())

    cluster.kill(killed)
    await cluster.write("after")

    assert (await cluster.leader()).status().term > 1
    await cluster.settled()
    assert cluster.running_machines()[0].values == [*range(10), "after", "settled"]


async def test_a_waiting_proposal_of_a_lost_leader_ends_as_unknown(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    for name in NAMES:
        if name != cluster.name_of(leader):
            cluster.kill(name)

    with pytest.raises(OutcomeUnknownError):
        await leader.propose({"value": 1}, timeout_ms=5_000)

    await eventually(lambda: not leader.status().is_leader)
    with pytest.raises(NotLeaderError):
        await leader.propose({"value": 1}, timeout_ms=1_000)


async def test_every_node_tells_where_all_members_listen(cluster: Cluster) -> None:
    """Its own address too, also while nobody has changed the configured list."""
    await cluster.start()

    for node in cluster.nodes.values():
        members = node.status().members
        assert members is not None
        listening = {name: f"{host}:{port}" for name, (host, port) in cluster.addresses.items()}
        assert {member.controller_id: member.raft for member in members.members} == listening


async def test_status_tells_of_waiting_commands_and_of_a_silent_leader(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.write("first")
    leader = await cluster.leader()
    first, second = (name for name in NAMES if name != cluster.name_of(leader))
    follower = cluster.nodes[first]
    cluster.kill(second)
    assert (leader.status().leader_silent_ms, leader.status().waiting_count) == (0, 0)
    await eventually(lambda: follower.status().leader_silent_ms is not None)

    cluster.kill(first)
    waiting = asyncio.gather(leader.propose({"value": 1}, timeout_ms=5_000))
    await eventually(lambda: leader.status().waiting_count == 1)
    with pytest.raises(OutcomeUnknownError):
        await waiting
    assert leader.status().waiting_count == 0


async def test_a_follower_alone_tells_how_long_it_heard_nobody(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.write("first")
    leader = await cluster.leader()
    alone, other = (name for name in NAMES if name != cluster.name_of(leader))
    cluster.kill(other)
    cluster.kill(cluster.name_of(leader))

    await eventually(lambda: (cluster.nodes[alone].status().leader_silent_ms or 0) > 300)


async def test_a_follower_that_was_away_catches_up(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    away = next(name for name in NAMES if name != cluster.name_of(leader))
    await cluster.nodes.pop(away).stop()
    for number in range(50):
        await cluster.write(number)

    await cluster.start(away)

    await eventually(lambda: cluster.machines[away].values == list(range(50)))
    assert leader.status().is_leader  # its return deposed nobody


async def test_all_stop_and_start_again_with_their_journals(cluster: Cluster) -> None:
    await cluster.start()
    for number in range(10):
        await cluster.write(number)
    await cluster.stop()

    await cluster.start()

    await cluster.settled()
    assert cluster.running_machines()[0].values == [*range(10), "settled"]


async def test_a_stopping_leader_hands_over_without_a_gap(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.write(1)
    leader = await cluster.leader()
    changes: list[tuple[bool, int]] = []
    leader.on_leadership(lambda is_leader, term: changes.append((is_leader, term)))

    del cluster.nodes[cluster.name_of(leader)]
    await leader.stop()

    await eventually(
        lambda: any(node.status().is_leader for node in cluster.nodes.values()), limit_ms=200
    )
    assert [is_leader for is_leader, _ in changes] == [False]
    with pytest.raises(ShuttingDownError):
        await leader.propose({"value": 1}, timeout_ms=100)


async def test_callbacks_tell_of_commands_and_leadership(cluster: Cluster) -> None:
    applied: list[tuple[object, object]] = []
    leading: list[tuple[bool, int]] = []
    for name in NAMES:
        node = cluster.make(name)
        node.on_applied(lambda command, result, events, index: applied.append((command, events)))
        node.on_leadership(lambda is_leader, term: leading.append((is_leader, term)))
        await node.start()

    await cluster.write("x")

    await eventually(lambda: applied == [({"value": "x"}, [{"appended": "x"}])] * 3)
    assert [is_leader for is_leader, _ in leading] == [True]


async def test_a_follower_behind_the_journal_is_sent_a_snapshot(tmp_path: Path) -> None:
    settings = RaftSettings(compact_after_entries=20, retain_entries=5)
    cluster = Cluster(str(tmp_path), settings=settings)
    await cluster.start()
    leader = await cluster.leader()
    away = next(name for name in NAMES if name != cluster.name_of(leader))
    await cluster.nodes.pop(away).stop()
    for number in range(80):
        await cluster.write(number)
    restored: list[int] = []

    node = cluster.make(away)
    node.on_restored(restored.append)
    await node.start()

    await eventually(lambda: cluster.machines[away].values == list(range(80)))
    assert restored[-1] > 50
    assert node.status().log_length < 40
    await cluster.stop()


# -- one node --------------------------------------------------------------------------------------


def alone(disk: MemoryDisk, machine: ListMachine, failures: list[Exception]) -> RaftQuorum:
    return RaftQuorum(
        machine,
        controller_id=ControllerId("c1"),
        listen=("127.0.0.1", 0),
        peers={},
        data_folder="/data",
        disk=disk,
        clock=SystemClock(),
        random=SystemRandom(),
        secrets=ClusterSecrets(b"secret"),
        on_fatal=failures.append,
    )


async def test_a_controller_alone_answers_after_its_own_sync() -> None:
    disk, machine = MemoryDisk(), ListMachine()
    node: Quorum = alone(disk, machine, [])
    await node.start()
    await eventually(lambda: node.status().is_leader)
    syncs = disk.syncs_count

    await node.propose({"value": 1}, timeout_ms=1_000)
    await node.read_barrier(timeout_ms=1_000)

    assert machine.values == [1]
    assert disk.syncs_count >= syncs + 2
    await node.stop()


async def test_a_failed_sync_stops_the_node_for_good() -> None:
    disk, failures = MemoryDisk(), list[Exception]()
    node = alone(disk, ListMachine(), failures)
    await node.start()
    await eventually(lambda: node.status().is_leader)
    disk.fail_next("sync")

    with pytest.raises(OutcomeUnknownError):
        await node.propose({"value": 1}, timeout_ms=1_000)

    assert [type(failure) for failure in failures] == [StorageError]
    with pytest.raises(ShuttingDownError):
        await node.propose({"value": 2}, timeout_ms=1_000)
    await node.stop()


async def test_a_machine_that_raises_stops_the_node() -> None:
    machine, failures = ListMachine(), list[Exception]()
    node = alone(MemoryDisk(), machine, failures)
    await node.start()
    await eventually(lambda: node.status().is_leader)

    with pytest.raises(OutcomeUnknownError):
        await node.propose({"no value": 1}, timeout_ms=1_000)

    assert [type(failure) for failure in failures] == [KeyError]
    await node.stop()


async def test_a_folder_in_use_is_refused() -> None:
    disk = MemoryDisk()
    node = alone(disk, ListMachine(), [])
    await node.start()

    with pytest.raises(StorageError, match="in use"):
        await alone(disk, ListMachine(), []).start()

    await node.stop()


async def test_a_lost_journal_refuses_to_start() -> None:
    disk = MemoryDisk()
    node = alone(disk, ListMachine(), [])
    await node.start()
    await node.stop()
    disk.unlink("/data/raft/journal-0000000001")

    with pytest.raises(StorageError, match="must be replaced under a new id"):
        await alone(disk, ListMachine(), []).start()


async def test_a_damaged_journal_refuses_to_start_and_frees_the_folder() -> None:
    disk = MemoryDisk()
    node = alone(disk, ListMachine(), [])
    await node.start()
    await eventually(lambda: node.status().is_leader)
    await node.propose({"value": 1}, timeout_ms=1_000)
    await node.stop()
    disk.flip_bit("/data/raft/journal-0000000001", 40)

    for _ in range(2):
        with pytest.raises(CorruptLogError):
            await alone(disk, ListMachine(), []).start()


async def test_an_address_in_use_is_refused_with_a_sentence() -> None:
    node = alone(MemoryDisk(), ListMachine(), [])
    await node.start()
    disk = MemoryDisk()

    other = RaftQuorum(
        ListMachine(),
        controller_id=ControllerId("c1"),
        listen=("127.0.0.1", node.port),
        peers={},
        data_folder="/data",
        disk=disk,
        clock=SystemClock(),
        random=SystemRandom(),
        secrets=ClusterSecrets(b"secret"),
    )
    with pytest.raises(ConfigError, match=f"raft cannot listen on 127.0.0.1:{node.port}"):
        await other.start()

    await other.stop()
    disk.lock_folder("/data/raft").close()
    await node.stop()
