"""Real processes, killed: nothing acknowledged is lost, doubled, reordered or changed.

Judged from the files (load.py, logs.py): what was acknowledged is there (INV-1), once and in order
(INV-12), a place is always the same message (INV-7), all replicas hold the same bytes (INV-3).
"""

import signal
from pathlib import Path

import pytest
from tests.support.process.harness import BUSY_MS_MAX, running_cluster, the_master
from tests.support.process.load import (
    SEGMENT_BYTES,
    all_in_sync,
    check_epochs,
    check_stored,
    controller_leader,
    pulled_everything,
    reach,
    settled,
    under_load,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SMALL_SEGMENTS = ("--segment-size", str(SEGMENT_BYTES))


async def test_kill_of_the_master_under_load_loses_nothing(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", *SMALL_SEGMENTS, restart=True) as cluster:
        async with under_load(cluster, "orders") as load:
            await reach(load, 2_000)
            for _ in range(3):
                await all_in_sync(cluster)  # else the gap is a restart, not a failover
                cluster.send_signal(await the_master(cluster), signal.SIGKILL)
                await reach(load, load.count + 2_000)
            await all_in_sync(cluster)
        positions = await settled(cluster)

    assert load.gap_ms_max() < BUSY_MS_MAX
    assert len({entry.epoch for entry in load.acknowledged}) == 4
    check_epochs(load)
    check_stored(cluster, positions, load)


@pytest.mark.alone
async def test_kill_of_the_controller_leader_under_load_goes_unnoticed(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with under_load(cluster, "orders") as load:
            await reach(load, 1_000)
            leader = await controller_leader(cluster)
            cluster.send_signal(leader, signal.SIGKILL)
            await reach(load, load.count + 3_000)
            gap_ms = load.gap_ms_max()
            # The next leader works: it has a dead master replaced.
            assert await controller_leader(cluster) != leader
            cluster.send_signal(await the_master(cluster), signal.SIGKILL)
            await reach(load, load.count + 2_000)
            await all_in_sync(cluster)
        positions = await settled(cluster)

    assert gap_ms < 1_000, "brokers do not need a controller to acknowledge"
    check_epochs(load)
    check_stored(cluster, positions, load)


async def test_kill_and_restart_of_everything_loses_nothing(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with under_load(cluster, "orders") as load:
            await reach(load, 2_000)
            for node in cluster.nodes():
                cluster.send_signal(node["name"], signal.SIGKILL)
            await reach(load, load.count + 2_000)
            await all_in_sync(cluster)
        positions = await settled(cluster)

    check_epochs(load)
    check_stored(cluster, positions, load)


async def test_graceful_stop_and_start_keeps_everything(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running_cluster(data_dir) as cluster:
        async with under_load(cluster, "orders") as load:
            await reach(load, 1_000)
        positions = await settled(cluster)
    check_stored(cluster, positions, load)

    with running_cluster(data_dir) as again:
        shown = await pulled_everything(again, "orders")
        async with under_load(again, "more") as more:
            await reach(more, 500)
        positions = await settled(again)

    told = {entry.place: entry.body for entry in load.acknowledged}
    assert told.items() <= shown.items()
    check_stored(again, positions, load, more)


async def test_kill_in_one_of_two_groups_leaves_the_other_alone(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", "--groups", "2", restart=True) as cluster:
        async with under_load(cluster, "orders") as load:
            await reach(load, 1_000)
            cluster.send_signal(await the_master(cluster, "g2"), signal.SIGKILL)
            await reach(load, load.count + 3_000)
            await all_in_sync(cluster)
        positions = await settled(cluster)

    assert positions.keys() == {"g1", "g2"}
    epochs = {(entry.place.group, entry.epoch) for entry in load.acknowledged}
    assert epochs == {("g1", 1), ("g2", 1), ("g2", 2)}
    check_stored(cluster, positions, load)
