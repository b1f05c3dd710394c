"""Real processes, killed: nothing acknowledged is lost, doubled, reordered or changed."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest
from paceline.admin import AdminClient
from tests.process.harness import RunningCluster, eventually, master_of, running_cluster
from tests.process.logs import StoredRecord, confirmed_end, log_bytes, stored_records

from paceline.errors import PacelineError
from paceline.message import Message
from paceline.producer import Producer
from paceline.runtime import SystemClock, cancel_and_wait, spawn

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

WORKERS = 16
SEGMENT_BYTES = 4 * 1024 * 1024


@dataclass
class Load:
    """Keyed messages, each worker one key, each waiting for its acknowledgement."""

    acknowledged: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    """(broker group, queue id, queue offset) -> body."""
    failed: list[PacelineError] = field(default_factory=list)
    gap_ms_max: int = 0
    _last_ms: int | None = None

    @property
    def count(self) -> int:
        return len(self.acknowledged)

    async def work(self, producer: Producer, topic: str, worker: int) -> None:
        clock = SystemClock()
        row = 0
        while True:
            body = orjson.dumps([worker, row])
            try:
                result = await producer.send(Message(topic, body, key=f"worker-{worker}"))
            except PacelineError as error:
                self.failed.append(error)
                return
            now = clock.monotonic_ms()
            if self._last_ms is not None:
                self.gap_ms_max = max(self.gap_ms_max, now - self._last_ms)
            self._last_ms = now
            place = (result.group, result.queue_id, result.queue_offset)
            assert place not in self.acknowledged, place  # INV-7
            self.acknowledged[place] = body
            row += 1


@asynccontextmanager
async def under_load(cluster: RunningCluster, topic: str) -> AsyncIterator[Load]:
    """A topic and workers that send to it until the block ends."""
    async with AdminClient(cluster.bootstrap) as admin:
        await admin.create_topic(topic, queues=4)
    load = Load()
    async with Producer(cluster.bootstrap) as producer:
        workers = [
            spawn(load.work(producer, topic, worker), name=f"load-{worker}")
            for worker in range(WORKERS)
        ]
        try:
            yield load
        finally:
            await cancel_and_wait(*workers)


async def reach(load: Load, count: int) -> None:
    async def is_reached() -> bool:
        assert not load.failed, load.failed[0]
        return load.count >= count

    await eventually(is_reached, within_ms=20_000, what=f"{count} acknowledged messages")


async def the_master(cluster: RunningCluster, group: str = "g1") -> str:
    node = await eventually(lambda: master_of(cluster, group), what=f"a master of {group}")
    name: str = node["name"]
    return name


def check_stored(cluster: RunningCluster, load: Load, *, group: str = "g1") -> None:
    """Judge the files of the stopped cluster (INV-1, INV-3, INV-7, INV-12)."""
    folders = [
        cluster.data_dir / node["name"]
        for node in cluster.nodes()
        if node["role"] == "broker" and node["name"].startswith(f"{group}-")
    ]
    confirms = [confirmed_end(folder) for folder in folders]
    common = min(confirms)
    contents = [log_bytes(folder, common) for folder in folders]
    assert all(content == contents[0] for content in contents), "logs differ below confirm"  # INV-3
    longest = folders[confirms.index(max(confirms))]
    records = stored_records(log_bytes(longest, max(confirms)))
    check_records(records, load, group=group)


def check_records(records: list[StoredRecord], load: Load, *, group: str) -> None:
    stored = {(group, record.queue_id, record.queue_offset): record.body for record in records}
    mine = {place: body for place, body in load.acknowledged.items() if place[0] == group}
    lost = {place: body for place, body in mine.items() if stored.get(place) != body}
    assert not lost, f"{len(lost)} acknowledged messages are lost or changed: {list(lost)[:5]}"
    bodies = [record.body for record in records]
    assert len(set(bodies)) == len(bodies), "a message is stored twice"
    last: dict[int, int] = {}
    for record in sorted(records, key=lambda record: (record.queue_id, record.queue_offset)):
        worker, row = orjson.loads(record.body)
        assert row == last.get(worker, -1) + 1, f"worker {worker}: {row} after {last.get(worker)}"
        last[worker] = row


async def test_kill_of_the_master_under_load_loses_nothing(tmp_path: Path) -> None:
    with running_cluster(
        tmp_path / "data", "--segment-size", str(SEGMENT_BYTES), restart=True
    ) as cluster:
        async with under_load(cluster, "orders") as load:
            await reach(load, 2_000)
            for _ in range(3):
                master = await the_master(cluster)
                cluster.send_signal(master, signal.SIGKILL)
                await reach(load, load.count + 2_000)
            await eventually(
                lambda: all_in_sync(cluster), within_ms=20_000, what="three replicas in sync"
            )
        assert load.gap_ms_max < 5_000, load.gap_ms_max
    check_stored(cluster, load)


async def test_kill_of_the_controller_leader_under_load_goes_unnoticed(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with under_load(cluster, "orders") as load:
            await reach(load, 1_000)
            leader = await controller_leader(cluster)
            cluster.send_signal(leader, signal.SIGKILL)
            await reach(load, load.count + 3_000)
            master = await the_master(cluster)
            await eventually(lambda: controller_leader(cluster), what="another leader")
            cluster.send_signal(master, signal.SIGKILL)
            await reach(load, load.count + 2_000)
            await eventually(lambda: all_in_sync(cluster), within_ms=20_000, what="all in sync")
    check_stored(cluster, load)


async def test_kill_and_restart_of_everything_loses_nothing(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running_cluster(data_dir, restart=True) as cluster:
        async with under_load(cluster, "orders") as load:
            await reach(load, 2_000)
            for node in cluster.nodes():
                cluster.send_signal(node["name"], signal.SIGKILL)
            await reach(load, load.count + 2_000)
            await eventually(lambda: all_in_sync(cluster), within_ms=20_000, what="all in sync")
    check_stored(cluster, load)

    with running_cluster(data_dir) as again:
        async with under_load(again, "more") as more:
            await reach(more, 500)
    folder = data_dir / "g1-b1"
    records = stored_records(log_bytes(folder, confirmed_end(folder)))
    topics = {record.topic_id for record in records}
    assert len(topics) == 2
    first = [record for record in records if record.topic_id == min(topics)]
    check_records(first, load, group="g1")


async def test_a_master_killed_in_one_of_two_groups_leaves_the_other_alone(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path / "data", "--groups", "2", restart=True) as cluster:
        async with under_load(cluster, "orders") as load:
            await reach(load, 1_000)
            cluster.send_signal(await the_master(cluster, "g2"), signal.SIGKILL)
            await reach(load, load.count + 3_000)
            await eventually(lambda: all_in_sync(cluster, 6), within_ms=20_000, what="all in sync")
        groups = {place[0] for place in load.acknowledged}
        assert groups == {"g1", "g2"}
    check_stored_of_two_groups(cluster, load)


def check_stored_of_two_groups(cluster: RunningCluster, load: Load) -> None:
    """Keys live in one group each, so every worker's rows are whole within its group."""
    for group in ("g1", "g2"):
        check_stored(cluster, load, group=group)


async def all_in_sync(cluster: RunningCluster, count: int = 3) -> bool:
    async with AdminClient(cluster.bootstrap) as admin:
        view = await admin.cluster_view()
    members = sum(len(group.sync_state_set) for group in view.groups.values())
    return members == count and all(group.master is not None for group in view.groups.values())


async def controller_leader(cluster: RunningCluster) -> str | None:
    async with AdminClient(cluster.bootstrap) as admin:
        try:
            status = await admin.cluster_status()
        except PacelineError:
            return None
    leader = status.get("leader")
    if leader is None:
        return None
    for node in cluster.nodes():
        if node["address"] == leader.get("address"):
            name: str = node["name"]
            return name
    return None
