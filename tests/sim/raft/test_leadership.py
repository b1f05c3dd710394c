"""Leadership handed over, and members changed, on three real nodes over sockets."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.sim.raft.cluster import NAMES, Cluster, eventually

from paceline.errors import CommandRefusedError, NotLeaderError
from paceline.types import ControllerId
from paceline_controller.quorum import MembersWish
from paceline_controller.raft.settings import RaftSettings

pytestmark = pytest.mark.real_time

C4 = ControllerId("c4")
PATIENT = RaftSettings(election_min_ms=2_000, election_max_ms=4_000, leader_fallback_ms=4_000)
"""Nobody leads by accident on a busy machine."""


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(str(tmp_path), settings=PATIENT)
    await made.start()
    await made.write("first")
    yield made
    await made.stop()


async def test_the_named_follower_leads_at_once_under_load(cluster: Cluster) -> None:
    leader = await cluster.leader()
    target = next(name for name in NAMES if name != cluster.name_of(leader))
    async with asyncio.TaskGroup() as tasks:
        for number in range(50):
            tasks.create_task(cluster.write(number))

        assert await leader.transfer(target, timeout_ms=2_000) == target

    assert cluster.nodes[target].status().is_leader
    await cluster.settled()


async def test_a_transfer_that_cannot_work_is_refused_and_changes_nothing(
    cluster: Cluster,
) -> None:
    leader = await cluster.leader()
    before = leader.status().term
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    gone = next(n for n, node in cluster.nodes.items() if node not in (leader, follower))
    cluster.kill(gone)
    await eventually(lambda: not _is_linked(cluster, gone))

    with pytest.raises(CommandRefusedError, match="c9 is no other voter"):
        await leader.transfer(ControllerId("c9"), timeout_ms=1_000)
    with pytest.raises(CommandRefusedError, match=f"{gone} is not connected"):
        await leader.transfer(gone, timeout_ms=1_000)
    with pytest.raises(NotLeaderError):
        await follower.transfer(None, timeout_ms=1_000)

    await cluster.write("goes on")
    assert leader.status().term == before


async def test_a_leader_is_replaced_and_hears_of_it(cluster: Cluster) -> None:
    leader = await cluster.leader()
    old = cluster.name_of(leader)
    cluster.addresses[C4] = cluster.spare_address()
    await cluster.start(C4)
    at = cluster.addresses[C4]

    await leader.change_members(
        MembersWish(add=C4, raft=f"{at[0]}:{at[1]}", client="127.0.0.1:9", remove=old),
        timeout_ms=2_000,
    )

    await eventually(lambda: old in cluster.failures)
    assert "was removed from the quorum" in str(cluster.failures.pop(old))
    del cluster.nodes[old], cluster.machines[old]
    await cluster.settled()
    members = (await cluster.leader()).status().members
    assert members is not None
    assert sorted(m.controller_id for m in members.members if m.is_voter) == sorted(cluster.nodes)
    assert members.generation == members.committed_generation == 3


async def test_a_change_of_members_asked_of_leader_after_leader_is_one_change(
    cluster: Cluster,
) -> None:
    """Nobody has to know whether the first try did it (R38)."""
    leader = await cluster.leader()
    wish = MembersWish(add=C4, raft="127.0.0.1:7", client="127.0.0.1:9", generation=0)

    asked = [await leader.change_members(wish, timeout_ms=2_000) for _ in range(2)]
    await leader.transfer(None, timeout_ms=2_000)
    await eventually(lambda: not leader.status().is_leader)
    leader = await cluster.leader()
    asked.append(await leader.change_members(wish, timeout_ms=2_000))
    given_up = MembersWish(remove=C4, generation=1)
    asked += [await leader.change_members(given_up, timeout_ms=2_000) for _ in range(2)]
    with pytest.raises(CommandRefusedError, match="generation 2, not 0"):
        await leader.change_members(wish, timeout_ms=2_000)

    assert asked == [1, 1, 1, 2, 2]
    members = leader.status().members
    assert members is not None
    assert [member.controller_id for member in members.members] == NAMES


async def test_a_controller_that_nobody_added_is_let_in_nowhere(cluster: Cluster) -> None:
    cluster.addresses[C4] = cluster.spare_address()
    await cluster.start(C4)

    await cluster.write("without it")

    status = cluster.nodes[C4].status()
    assert (status.is_leader, status.leader, status.commit_index) == (False, None, 1)
    await cluster.nodes.pop(C4).stop()
    del cluster.machines[C4]


def _is_linked(cluster: Cluster, name: ControllerId) -> bool:
    leaders = [node for node in cluster.nodes.values() if node.status().is_leader]
    members = leaders[0].status().members if leaders else None
    return members is None or any(
        member.is_linked for member in members.members if member.controller_id == name
    )
