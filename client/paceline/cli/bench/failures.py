"""Bench cases that kill: the gap after kill -9 of the master, and how fast a restart is."""

import signal
import time
from dataclasses import dataclass, field
from itertools import cycle, islice

from paceline.cli.bench.cases import BULK_BATCH_BYTES, BenchSetting, create_topic
from paceline.cli.bench.figures import Figures
from paceline.cli.local.local_client import find_master, wait_ready
from paceline.cli.local.local_cluster import LocalCluster
from paceline.errors import DeadlineError
from paceline.message import Message
from paceline.platform.runtime import SystemClock, cancel_and_wait, pause, spawn
from paceline.producer.producer import Producer
from paceline.types import TopicName

WORKERS = 8
KILLS = 10
SETTLE_MS = 1000
SYNC_TIMEOUT_MS = 20_000
RESTART_LOG_BYTES = 1024 * 1024 * 1024


@dataclass(slots=True)
class _Load:
    """Acknowledgements of a few workers; `longest_gap_ms` since `begin_gap`."""

    acknowledged: int = 0
    longest_gap_ms: float = 0.0
    _last: float = field(default_factory=time.perf_counter)

    def begin_gap(self) -> None:
        self._last = time.perf_counter()
        self.longest_gap_ms = 0.0

    async def work(self, producer: Producer, message: Message) -> None:
        while True:
            await producer.send(message)
            now = time.perf_counter()
            self.longest_gap_ms = max(self.longest_gap_ms, (now - self._last) * 1000)
            self._last = now
            self.acknowledged += 1


async def failover(cluster: LocalCluster, setting: BenchSetting) -> Figures:
    """kill -9 of the master, ten times: the longest time without any acknowledgement after each."""
    load = _Load()
    gaps_ms: list[float] = []
    began = time.perf_counter()
    async with Producer(setting.bootstrap) as producer:
        workers = [
            spawn(
                load.work(producer, Message(setting.topic, setting.bodies[0], key=f"k{index}")),
                name=f"bench-load-{index}",
            )
            for index in range(WORKERS)
        ]
        try:
            for _ in range(KILLS):
                gaps_ms.append(await _kill_once(cluster, load))
        finally:
            await cancel_and_wait(*workers)
    return Figures(
        case="failover",
        path="stream",
        replicas=setting.replicas,
        durability=setting.durability,
        size=setting.size,
        inflight=WORKERS,
        messages=load.acknowledged,
        seconds=time.perf_counter() - began,
        latencies_ms=gaps_ms,
    )


async def _kill_once(cluster: LocalCluster, load: _Load) -> float:
    await all_in_sync(cluster)
    found = await find_master(cluster, "g1")
    assert found is not None
    master, _ = found
    await pause(SETTLE_MS)
    load.begin_gap()
    cluster.signal(master, signal.SIGKILL)
    await pause(SETTLE_MS)
    gap_ms = load.longest_gap_ms
    while master.is_running:
        cluster.reap()
        await pause(5)
    cluster.restart(master)
    return gap_ms


async def all_in_sync(cluster: LocalCluster) -> None:
    """Wait until every broker of the group is in the sync state set."""
    clock = SystemClock()
    deadline = clock.monotonic_ms() + SYNC_TIMEOUT_MS
    wanted = len(cluster.brokers)
    while True:
        found = await find_master(cluster, "g1")
        replication = None if found is None else found[1]["replication"]
        if replication is not None and len(replication["sync_state_set"]) == wanted:
            return
        if clock.monotonic_ms() > deadline:
            raise DeadlineError("the replicas did not come back in sync: see the nodes' logs")
        await pause(20)


async def restart(cluster: LocalCluster, setting: BenchSetting) -> Figures:
    """1 GiB of log, kill -9 of every process, start again: until the first acknowledgement."""
    topic = TopicName(f"{setting.topic}-restart")
    await create_topic(setting.bootstrap, topic, queues=1)
    count = max(1, BULK_BATCH_BYTES // (setting.size + 64))
    bodies = list(islice(cycle(setting.bodies), count))
    async with Producer(setting.bootstrap) as producer:
        for _ in range(RESTART_LOG_BYTES // BULK_BATCH_BYTES):
            await producer.send_bodies(topic, bodies)
    for node in cluster.nodes:
        cluster.signal(node, signal.SIGKILL)
    while any(node.is_running for node in cluster.nodes):
        cluster.reap()
        await pause(5)
    began = time.perf_counter()
    for node in cluster.nodes:
        cluster.restart(node)
    await wait_ready(cluster)
    async with Producer(setting.bootstrap) as producer:
        await producer.send(Message(topic, setting.bodies[0]))
    took_ms = (time.perf_counter() - began) * 1000
    return Figures(
        case="restart-1GiB",
        path="stream",
        replicas=setting.replicas,
        durability=setting.durability,
        size=setting.size,
        inflight=1,
        messages=1,
        seconds=took_ms / 1000,
        latencies_ms=[took_ms],
    )
