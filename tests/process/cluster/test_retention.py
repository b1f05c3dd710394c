"""Real processes that delete under load; replicas replaced on a log that begins above 0.

Nothing that is kept is lost (INV-1), all replicas hold the same bytes (INV-3), and nobody counts
before it has caught up (R10, R14, R26).
"""

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.process.harness import (
    RunningCluster,
    broker_status,
    eventually,
    has_ended,
    http_session,
    running_cluster,
    the_master,
)
from tests.support.process.load import (
    SEGMENT_BYTES,
    Load,
    Place,
    all_in_sync,
    reach,
    settled,
    under_load,
)

from paceline.consumer.fetch.gaps import Gap
from paceline.consumer.pull import PullConsumer
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.message import ReceivedMessage
from paceline.records.decode import BatchView
from paceline.records.header import Kind

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

FILLER_BYTES = 400
"""Files are full after some 2,000 messages: where a disk is slow, small ones take minutes."""

_SEGMENT = re.compile(r"(\d{20})\.log")


@pytest.fixture(autouse=True)
def _deletes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes inherit it: what is larger than two files goes within half a second."""
    for name, value in (
        ("LOG_SIZE_BYTES_MAX", 2 * SEGMENT_BYTES),
        ("CLEAN_RESOURCE_INTERVAL_MS", 200),
        ("CHECKPOINT_INTERVAL_MS", 200),
    ):
        monkeypatch.setenv(f"PACELINE_BROKER_{name}", str(value))


async def _start_of(address: str) -> int | None:
    async with http_session() as session:
        status = await broker_status(session, address)
        return None if status is None else int(status["start"])


async def _begins_above(cluster: RunningCluster, position: int) -> None:
    """Send on until every broker has deleted what lies below `position`."""

    async def have_all() -> bool:
        starts = [await _start_of(node["address"]) for node in cluster.brokers()]
        return all(start is not None and start > position for start in starts)

    await eventually(have_all, within_ms=120_000, what=f"all logs begin above {position}")


async def _come_back(
    cluster: RunningCluster, name: str, change: Callable[[Path], None]
) -> dict[str, Any]:
    """Kill a replica, change its folder, and wait until it is in the set again."""
    node = cluster.node(name)
    cluster.send_signal(name, signal.SIGKILL)

    async def is_gone() -> bool:
        return has_ended(node["pid"])

    await eventually(is_gone, what=f"the end of {name}")
    change(cluster.data_dir / name)
    async with http_session() as session:

        async def is_well() -> dict[str, Any] | None:
            status = await broker_status(session, node["address"])
            is_fine = status is not None and status["is_healthy"] and status["is_connected"]
            return status if is_fine else None

        status = await eventually(is_well, within_ms=30_000, what=f"{name} follows")
    await all_in_sync(cluster)
    return status


def _wipe(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "LOCK":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _log(folder: Path) -> tuple[int, bytes]:
    """Start, and the bytes up to the confirm that a clean stop wrote down."""
    confirm = orjson.loads((folder / "log" / "checkpoint.json").read_bytes())["confirm"]
    files = sorted(
        (int(match[1]), path)
        for path in (folder / "log").iterdir()
        if (match := _SEGMENT.fullmatch(path.name))
    )
    stops = [first for first, _ in files[1:]] + [confirm]
    pieces = [
        path.read_bytes()[: stop - first] for (first, path), stop in zip(files, stops, strict=True)
    ]
    content = b"".join(pieces)
    assert files[0][0] + len(content) == confirm, folder
    return files[0][0], content


def _check_kept(cluster: RunningCluster, load: Load, *, at_least: int) -> None:
    """Logs are equal where they overlap, and hold every acknowledged message that they may."""
    logs = [_log(cluster.data_dir / node["name"]) for node in cluster.brokers()]
    first = max(start for start, _ in logs)
    end = min(start + len(content) for start, content in logs)
    assert end >= at_least > first > 0
    kept = [content[first - start : end - start] for start, content in logs]
    assert kept[0] == kept[1] == kept[2]
    stored: dict[Place, bytes] = {}
    starts: dict[int, int] = {}
    at = 0
    while at < len(kept[0]):
        view = BatchView(kept[0], at)
        view.verify()
        header = view.header
        assert header.physical_offset == first + at
        at += header.size_bytes
        if header.kind == Kind.NORMAL and header.topic_id == load.topic_id:
            starts.setdefault(header.queue_id, header.base_queue_offset)
            for index, body in enumerate(view.bodies()):
                offset = header.base_queue_offset + index
                stored[Place("g1", header.queue_id, offset)] = bytes(body)
    told = {entry.place: entry.body for entry in load.acknowledged}
    assert len(told) == len(load.acknowledged), "one place was acknowledged for two messages"
    owed = {
        place: body
        for place, body in told.items()
        if place.queue_id in starts and place.queue_offset >= starts[place.queue_id]
    }
    assert len(owed) > 100
    assert [place for place, body in owed.items() if stored.get(place) != body] == []


async def test_replicas_come_back_below_the_start_while_messages_go(tmp_path: Path) -> None:
    with running_cluster(
        tmp_path / "data", "--segment-size", str(SEGMENT_BYTES), restart=True
    ) as cluster:
        async with under_load(cluster, "orders", filler_bytes=FILLER_BYTES) as load:
            await reach(load, 2_000)
            await _begins_above(cluster, SEGMENT_BYTES)
            master = await the_master(cluster)
            wiped, stale = [n["name"] for n in cluster.brokers() if n["name"] != master]
            start = await _start_of(cluster.node(master)["address"])
            status = await _come_back(cluster, wiped, _wipe)
            assert start is not None
            assert status["start"] >= start

            copy = tmp_path / "copy"
            with cluster.paused(stale):  # as a snapshot of the file system: at one moment
                shutil.copytree(cluster.data_dir / stale, copy)
            ends = orjson.loads((copy / "log" / "checkpoint.json").read_bytes())["flushed"]
            await _begins_above(cluster, ends + SEGMENT_BYTES)

            def restore(folder: Path) -> None:
                shutil.rmtree(folder / "log")
                shutil.rmtree(folder / "projections")
                for name in ("log", "projections"):
                    shutil.copytree(copy / name, folder / name)

            status = await _come_back(cluster, stale, restore)
            assert status["start"] > ends
            cluster.send_signal(await the_master(cluster), signal.SIGKILL)
            await reach(load, load.count + 1_000)
            await all_in_sync(cluster)
        positions = await settled(cluster)

    _check_kept(cluster, load, at_least=positions["g1"])


async def test_a_group_that_was_overtaken_goes_on_at_the_first_kept_message(
    tmp_path: Path,
) -> None:
    """Every message is delivered, or in a gap that was reported; what is kept is in none (R26)."""
    gaps: list[Gap] = []
    seen: dict[Place, bytes] = {}

    async def listener(message: ReceivedMessage) -> None:
        place = Place(message.group, message.queue_id, message.queue_offset)
        assert seen.setdefault(place, message.body) == message.body

    with running_cluster(
        tmp_path / "data", "--segment-size", str(SEGMENT_BYTES), restart=True
    ) as cluster:
        async with (
            under_load(cluster, "orders", filler_bytes=FILLER_BYTES) as load,
            PullConsumer(cluster.bootstrap) as pulling,
        ):
            await reach(load, 2_000)
            queues = await pulling.queues("orders")
            await pulling.commit("slow", dict.fromkeys(queues, 1))
            await _begins_above(cluster, 0)
        async with PullConsumer(cluster.bootstrap) as pulling:

            async def is_done() -> bool:
                stood = await pulling.committed("slow", queues)
                ranges = await pulling.ranges(queues)
                return all(stood[name] == ranges[name].end for name in queues)

            async with PushConsumer(
                cluster.bootstrap,
                group="slow",
                topics=["orders"],
                listener=listener,
                settings=PushSettings(commit_interval_ms=50),
                on_gap=gaps.append,
            ) as consumer:
                await eventually(is_done, within_ms=30_000, what="all that is kept is consumed")
            kept = await pulling.ranges(queues)

    assert {gap.queue: gap.start for gap in reversed(gaps)} == dict.fromkeys(queues, 1)
    assert all(gap.start < gap.end <= kept[gap.queue].start for gap in gaps)
    missed = {
        Place(gap.queue.group, gap.queue.queue_id, offset)
        for gap in gaps
        for offset in range(gap.start, gap.end)
    }
    assert consumer.missed_count == len(missed) > 100
    told = {entry.place: entry.body for entry in load.acknowledged if entry.place.queue_offset >= 1}
    owed = {place: body for place, body in told.items() if place not in missed}
    assert len(owed) > 100
    assert {place: seen.get(place) for place in owed} == owed
    assert not missed & seen.keys()
