"""A machine that became another one stops its controller, and no other (INV-10)."""

from pathlib import Path

import pytest
from tests.sim.raft.cluster import NAMES, Cluster, eventually

from paceline_controller.raft.library import RaftInvariantError
from paceline_controller.raft.settings import RaftSettings

pytestmark = pytest.mark.real_time

SETTINGS = RaftSettings(digest_every_entries=4)


@pytest.mark.parametrize("is_leader", [False, True], ids=["follower", "leader"])
async def test_the_one_that_differs_stops_and_the_majority_goes_on(
    tmp_path: Path, is_leader: bool
) -> None:
    cluster = Cluster(str(tmp_path), settings=SETTINGS)
    await cluster.start()
    for number in range(10):
        await cluster.write(number)
    leader = await cluster.leader()
    odd = next(name for name in NAMES if (cluster.nodes[name] is leader) == is_leader)

    cluster.machines[odd].values[3] = "a bit flipped in memory"
    for number in range(10):
        await cluster.write(number)

    await eventually(lambda: odd in cluster.failures)
    assert list(cluster.failures) == [odd]
    failure = cluster.failures[odd]
    assert isinstance(failure, RaftInvariantError)
    assert f"the state of controller {odd} differs from that of most" in str(failure)
    gone = cluster.nodes.pop(odd)
    await cluster.settled()
    await gone.stop()
    await cluster.stop()


async def test_machines_that_are_the_same_stop_nobody(tmp_path: Path) -> None:
    cluster = Cluster(str(tmp_path), settings=SETTINGS)
    await cluster.start()

    for number in range(60):
        await cluster.write(number)
    await cluster.settled()

    assert cluster.failures == {}
    await cluster.stop()
