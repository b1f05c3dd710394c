"""The bench case of catching up: a replica far behind returns while producers go on.

All runs on one machine: the three brokers, their controllers and the producers share its disk and
its cores, so who catches up takes from those who acknowledge. On machines of their own they do not.
"""

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from paceline.cli.bench.cases import BULK_BATCH_BYTES, BenchSetting, create_topic
from paceline.cli.bench.figures import CpuMeter, Figures
from paceline.cli.local.local_client import broker_status, find_master
from paceline.cli.local.local_cluster import LocalCluster, Node
from paceline.errors import ConfigError, DeadlineError
from paceline.platform.runtime import SystemClock, SystemRandom, cancel_and_wait, pause, spawn
from paceline.producer.producer import Producer
from paceline.types import TopicName

MIB = 1024 * 1024
LOAD_BYTES_PER_S = 20_000_000
BATCH_BYTES = 64 * 1024
WORKERS = 8
CALM_MS = 5000
RETURN_TIMEOUT_MS = 300_000
POLL_MS = 50
"""In every phase, as what watches costs the master too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """What was measured from one moment of the run to another."""

    seconds: float
    latencies_ms: list[float]
    cpu_us: dict[str, float]
    """Of each process, in all."""


async def catch_up(
    cluster: LocalCluster, setting: BenchSetting, *, behind_mib: int, has_own_core: bool
) -> list[Figures]:
    """The disk's sequential speed; sends in calm, while the replica starts, and while it catches
    up; the catch-up.

    `behind_mib` are written while one replica is dead; then it starts again, at 20 MB/s of load.
    `has_own_core`: that replica has the last core for itself, and all others share the rest.
    """
    disk_s = _write_and_sync(cluster.plan.data_dir, behind_mib)
    topic = TopicName(f"{setting.topic}-catch-up")
    await create_topic(setting.bootstrap, topic, queues=1)
    found = await find_master(cluster, "g1")
    assert found is not None
    master, _ = found
    victim = next(node for node in cluster.brokers if node is not master)
    await _kill(cluster, victim)
    own_core = _keep_off_one_core(cluster) if has_own_core else None
    async with Producer(setting.bootstrap) as producer, _watching(master) as watch:
        await _write(producer, topic, setting.size, behind_mib)
        async with _load(producer, topic, setting) as latencies_ms:
            processes = {"client": os.getpid(), **_pids(cluster, master, victim)}
            meter = _Meter(processes, latencies_ms)
            await watch.until(lambda row: False, timeout_ms=CALM_MS)
            calm = meter.take()
            cluster.restart(victim)
            assert victim.pid
            if own_core is not None:
                os.sched_setaffinity(victim.pid, {own_core})
            began = await watch.until(lambda row: bool(row["joined"]))
            starting = meter.take({"replica2": victim.pid})
            ended = await watch.until(lambda row: bool(row["in_set"]))
            during = meter.take()
    if began is None or ended is None:
        raise DeadlineError("the replica did not come back in sync: see the nodes' logs")
    rows = (("before", calm), ("starting", starting), ("during", during))
    per_send = max(1, BATCH_BYTES // (setting.size + 64))
    return [
        _figures(setting, "catch-up-disk", behind_mib * MIB // setting.size, disk_s),
        *(
            _figures(
                setting,
                f"catch-up-{name}",
                len(phase.latencies_ms) * per_send,
                phase.seconds,
                latencies_ms=phase.latencies_ms,
                cpu_us=phase.cpu_us,
            )
            for name, phase in rows
        ),
        _figures(
            setting,
            "catch-up",
            max(1, ended - began) // setting.size,
            during.seconds,
            cpu_us=_cost(calm, during),
        ),
    ]


def _keep_off_one_core(cluster: LocalCluster) -> int:
    """This process and all nodes that run leave the last core, which is the answer.

    ConfigError where a process cannot be bound to a core, or there is one only.
    """
    if sys.platform != "linux":
        raise ConfigError("--own-core binds processes to cores, which only Linux can")
    *others, own = sorted(os.sched_getaffinity(0))
    if not others:
        raise ConfigError("--own-core needs two cores, and this process may use one")
    pids = [node.pid for node in cluster.nodes if node.is_running]
    for pid in (os.getpid(), *pids):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), others)
    return own


async def _write(producer: Producer, topic: TopicName, size: int, behind_mib: int) -> None:
    """So much of messages of `size` bytes, in large batches."""
    count = max(1, BULK_BATCH_BYTES // (size + 64))
    bodies = [b"x" * size] * count
    for _ in range(max(1, behind_mib * MIB // (count * size))):
        await producer.send_bodies(topic, bodies)


async def _kill(cluster: LocalCluster, node: Node) -> None:
    cluster.signal(node, signal.SIGKILL)
    while node.is_running:
        cluster.reap()
        await pause(5)


def _figures(
    setting: BenchSetting,
    case: str,
    messages: int,
    seconds: float,
    *,
    latencies_ms: list[float] | None = None,
    cpu_us: dict[str, float] | None = None,
) -> Figures:
    return Figures(
        case=case,
        path="stream",
        replicas=setting.replicas,
        durability=setting.durability,
        size=setting.size,
        inflight=WORKERS,
        messages=messages,
        seconds=seconds,
        latencies_ms=latencies_ms or [],
        cpu_us_per_message={
            name: spent / max(1, messages) for name, spent in (cpu_us or {}).items()
        },
    )


def _cost(calm: _Phase, during: _Phase) -> dict[str, float]:
    """CPU of the catch-up alone: of the replica all, of the master what the load did not take."""
    load_us = calm.cpu_us["master"] / calm.seconds * during.seconds
    return {
        "master": max(0.0, during.cpu_us["master"] - load_us),
        "replica2": during.cpu_us["replica2"],
    }


def _pids(cluster: LocalCluster, master: Node, victim: Node) -> dict[str, int]:
    pids = {"master": master.pid, "replica1": None}
    for node in cluster.nodes:
        if node.role == "controller":
            pids[node.name] = node.pid
        elif node is not master and node is not victim:
            pids["replica1"] = node.pid
    return {name: pid for name, pid in pids.items() if pid is not None}


class _Meter:
    """Latencies and CPU since it was made or last asked."""

    def __init__(self, processes: dict[str, int], latencies_ms: list[float]) -> None:
        self._processes = processes
        self._latencies_ms = latencies_ms
        latencies_ms.clear()
        self._begin()

    def _begin(self) -> None:
        self._cpu = CpuMeter(self._processes)
        self._cpu.start()
        self._began = time.perf_counter()

    def take(self, newcomers: dict[str, int] | None = None) -> _Phase:
        """What was since then; `newcomers` are counted from now on."""
        phase = _Phase(
            seconds=time.perf_counter() - self._began,
            latencies_ms=list(self._latencies_ms),
            cpu_us=self._cpu.per_message(1),
        )
        self._latencies_ms.clear()
        self._processes.update(newcomers or {})
        self._begin()
        return phase


class _Watch:
    """Asks the master how far the replica is that is not in the set, or was not."""

    def __init__(self, master: Node, session: aiohttp.ClientSession) -> None:
        self._master = master
        self._session = session
        self._replica: int | None = None

    async def until(
        self, condition: Callable[[dict[str, Any]], bool], *, timeout_ms: int = RETURN_TIMEOUT_MS
    ) -> int | None:
        """What the replica had appended when its row met the condition; None: it did not."""
        clock = SystemClock()
        deadline = clock.monotonic_ms() + timeout_ms
        while clock.monotonic_ms() < deadline:
            status = await broker_status(self._session, self._master.address)
            replication = None if status is None else status["replication"]
            for row in [] if replication is None else replication["replicas"]:
                if self._replica is None and not row["in_set"]:
                    self._replica = row["replica"]
                if row["replica"] == self._replica and condition(row):
                    return int(row["appended"] or 0)
            await pause(POLL_MS)
        return None


@asynccontextmanager
async def _watching(master: Node) -> AsyncIterator[_Watch]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        yield _Watch(master, session)


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
