"""The bench case of catching up: a replica far behind returns while producers go on."""

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from paceline.cli.bench_cases import BULK_BATCH_BYTES, BenchSetting, create_topic
from paceline.cli.bench_figures import Figures
from paceline.cli.local_client import find_master
from paceline.cli.local_cluster import LocalCluster
from paceline.errors import DeadlineError
from paceline.producer import Producer
from paceline.runtime import SystemClock, SystemRandom, cancel_and_wait, pause, spawn
from paceline.types import TopicName

MIB = 1024 * 1024
LOAD_BYTES_PER_S = 20_000_000
BATCH_BYTES = 64 * 1024
WORKERS = 8
CALM_S = 5.0
RETURN_TIMEOUT_MS = 300_000
POLL_MS = 20


async def catch_up(
    cluster: LocalCluster, setting: BenchSetting, *, behind_mib: int
) -> list[Figures]:
    """Four rows: the disk's sequential speed, what sends take before and meanwhile, the catch-up.

    `behind_mib` are written while one replica is dead; then it starts again, at 20 MB/s of load.
    """
    disk_s = _write_and_sync(cluster.plan.data_dir, behind_mib)
    topic = TopicName(f"{setting.topic}-catch-up")
    await create_topic(setting.bootstrap, topic, queues=1)
    found = await find_master(cluster, "g1")
    assert found is not None
    victim = next(node for node in cluster.brokers if node is not found[0])
    cluster.signal(victim, signal.SIGKILL)
    while victim.is_running:
        cluster.reap()
        await pause(5)
    count = max(1, BULK_BATCH_BYTES // (setting.size + 64))
    bodies = [b"x" * setting.size] * count
    async with Producer(setting.bootstrap) as producer:
        for _ in range(max(1, behind_mib * MIB // (count * setting.size))):
            await producer.send_bodies(topic, bodies)
        async with _load(producer, topic, setting) as latencies_ms:
            await pause(CALM_S * 1000)
            calm_ms = list(latencies_ms)
            latencies_ms.clear()
            began = time.perf_counter()
            cluster.restart(victim)
            size_bytes, seconds = await _caught_up(cluster)
            load_s = time.perf_counter() - began
            during_ms = list(latencies_ms)
    per_send = max(1, BATCH_BYTES // (setting.size + 64))

    def figures(case: str, messages: int, took_s: float, took_ms: list[float]) -> Figures:
        return Figures(
            case=case,
            path="stream",
            replicas=setting.replicas,
            durability=setting.durability,
            size=setting.size,
            inflight=WORKERS,
            messages=messages,
            seconds=took_s,
            latencies_ms=took_ms,
        )

    return [
        figures("catch-up-disk", behind_mib * MIB // setting.size, disk_s, []),
        figures("catch-up-before", len(calm_ms) * per_send, CALM_S, calm_ms),
        figures("catch-up-during", len(during_ms) * per_send, load_s, during_ms),
        figures("catch-up", size_bytes // setting.size, seconds, []),
    ]


def _write_and_sync(folder: Path, size_mib: int) -> float:
    """Seconds to write and fsync as much to the same disk, 1 MiB at a time; then it is removed."""
    path = folder / "disk-speed"
    block = SystemRandom().token(MIB)
    began = time.perf_counter()
    try:
        with path.open("wb") as file:
            for _ in range(size_mib):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        return time.perf_counter() - began
    finally:
        path.unlink(missing_ok=True)


@asynccontextmanager
async def _load(
    producer: Producer, topic: TopicName, setting: BenchSetting
) -> AsyncIterator[list[float]]:
    """20 MB/s of batches of 64 KiB, each worker on a schedule of its own; what each send took."""
    count = max(1, BATCH_BYTES // (setting.size + 64))
    bodies = [b"y" * setting.size] * count
    interval_s = WORKERS * count * setting.size / LOAD_BYTES_PER_S
    latencies_ms: list[float] = []

    async def work(index: int) -> None:
        due = time.perf_counter() + interval_s * index / WORKERS
        while True:
            await pause(max(0.0, (due - time.perf_counter()) * 1000))
            began = time.perf_counter()
            await producer.send_bodies(topic, bodies)
            latencies_ms.append((time.perf_counter() - began) * 1000)
            due = max(due + interval_s, time.perf_counter() - interval_s)

    workers = [spawn(work(index), name=f"bench-load-{index}") for index in range(WORKERS)]
    try:
        yield latencies_ms
    finally:
        await cancel_and_wait(*workers)


async def _caught_up(cluster: LocalCluster) -> tuple[int, float]:
    """Wait until all are in the set; the bytes sent to the one that returned, and how long."""
    clock = SystemClock()
    deadline = clock.monotonic_ms() + RETURN_TIMEOUT_MS
    first: tuple[int, float] | None = None
    while True:
        found = await find_master(cluster, "g1")
        replication = None if found is None else found[1]["replication"]
        if replication is not None:
            rows = [row for row in replication["replicas"] if row["joined"] and not row["in_set"]]
            if rows and first is None:
                first = rows[0]["appended"], time.perf_counter()
            if rows:
                last = rows[0]["appended"], time.perf_counter()
            elif first is not None and all(row["in_set"] for row in replication["replicas"]):
                return max(1, last[0] - first[0]), max(last[1] - first[1], 0.001)
        if clock.monotonic_ms() > deadline:
            raise DeadlineError("the replica did not come back in sync: see the nodes' logs")
        await pause(POLL_MS)
