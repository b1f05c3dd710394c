"""The bench case of many queues: what a message costs, and how fast a broker starts, with 10,000
queues that a consumer polls and a producer sends to, beside the same traffic in one queue."""

import asyncio
import signal
import time
from collections import deque
from collections.abc import Awaitable, Sequence

from paceline.cli.bench.cases import BenchSetting, create_topic, figures_of
from paceline.cli.bench.failures import all_in_sync
from paceline.cli.bench.figures import Figures
from paceline.cli.local.local_client import find_master
from paceline.cli.local.local_cluster import LocalCluster
from paceline.consumer.pull import PullConsumer
from paceline.errors import ConfigError
from paceline.message import Message
from paceline.platform.runtime import pause
from paceline.producer.batch import MESSAGE_OVERHEAD_BYTES
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline.types import TopicName

MANY = 10_000
TOPICS = 4
"""A topic has at most 4096 queues of a broker group."""
SHAPES = ((32, 200), (1, 2_000))
"""Messages of a batch, batches a second."""
TICK_MS = 10
STARTS = 5
PRIMING_PER_TICK = 20
IN_FLIGHT = 256
SETTLE_MS = 2_000
PATIENCE_MS = 10_000


async def many_queues(cluster: LocalCluster, setting: BenchSetting) -> list[Figures]:
    """At a steady rate: batches of 32 messages, each to the next queue, so that both topics have
    the same batches; then single messages, of which one queue has many in a batch, and of many
    queues each has one. Then a replica is killed and started again: until it is in the set."""
    rows: list[Figures] = []
    for batch, per_second in SHAPES:
        for queues in (1, MANY):
            rows.append(await _steady(setting, queues, batch, per_second))
    rows.append(await _start(cluster, setting))
    return rows


async def _steady(setting: BenchSetting, queues: int, batch: int, per_second: int) -> Figures:
    topics = TOPICS if queues == MANY else 1
    names = [TopicName(f"{setting.topic}-{batch}-{queues}-{number}") for number in range(topics)]
    for name in names:
        await create_topic(setting.bootstrap, name, queues=queues // topics)
    # Room for one batch, or two of the same queue would leave as one.
    room = batch * (setting.size + MESSAGE_OVERHEAD_BYTES)
    settings = ProducerSettings(batch_bytes_max=room) if batch > 1 else ProducerSettings()
    producer = Producer(setting.bootstrap, settings=settings)
    async with producer, PullConsumer(setting.bootstrap) as consumer:
        found = [queue for name in names for queue in await consumer.queues(name)]
        await consumer.assign(dict.fromkeys(found, "first"))
        traffic = _Traffic(producer, consumer, names, setting.bodies[0], batch)
        # Every queue has been sent to before the clock runs: its state is there.
        await traffic.run(count=queues, per_tick=PRIMING_PER_TICK)
        await pause(SETTLE_MS)
        setting.meter.start()
        began = time.perf_counter()
        late_ms = await traffic.run(
            count=int(per_second * setting.seconds), per_tick=per_second * TICK_MS // 1000
        )
        return figures_of(
            setting,
            case=f"queues-{queues}-batches" if batch > 1 else f"queues-{queues}-singles",
            seconds=time.perf_counter() - began,
            messages=len(late_ms),
            latencies_ms=late_ms,
        )


class _Traffic:
    """One producer and one consumer of the same queues."""

    def __init__(
        self,
        producer: Producer,
        consumer: PullConsumer,
        topics: Sequence[TopicName],
        body: bytes,
        batch: int,
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._topics = topics
        self._body = body
        self._batch = batch

    async def run(self, *, count: int, per_tick: int) -> list[float]:
        """Offer `count` batches and read them all: how late a message was after its tick."""
        late_ms: list[float] = []
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._offer(count, per_tick, began))
            while len(late_ms) < count * self._batch:
                got = await self._consumer.poll(timeout_ms=PATIENCE_MS)
                if not got:
                    raise ConfigError(f"{len(late_ms)} of {count * self._batch} messages came")
                now_ms = (time.perf_counter() - began) * 1000
                for number in range(len(late_ms), len(late_ms) + len(got)):
                    late_ms.append(now_ms - number // (self._batch * per_tick) * TICK_MS)
        return late_ms

    async def _offer(self, count: int, per_tick: int, began: float) -> None:
        sending: deque[Awaitable[object]] = deque()
        bodies = [self._body] * self._batch
        for number in range(count):
            topic = self._topics[number % len(self._topics)]
            if self._batch == 1:  # without a key a few would go to one queue together
                self._producer.send_nowait(Message(topic, self._body, key=str(number)))
            else:
                sending.append(self._producer.send_bodies(topic, bodies))
            if len(sending) > IN_FLIGHT:
                await sending.popleft()
            if (number + 1) % per_tick == 0:
                due = began + (number + 1) // per_tick * TICK_MS / 1000
                await pause(max(0.0, (due - time.perf_counter()) * 1000))
        for one in sending:
            await one
        await self._producer.flush()


async def _start(cluster: LocalCluster, setting: BenchSetting) -> Figures:
    """From the start of a replica's process until it is in the sync state set again."""
    took_ms = [await _start_once(cluster) for _ in range(STARTS)]
    return Figures(
        case=f"queues-{2 * MANY}-start",
        path="stream",
        replicas=setting.replicas,
        durability=setting.durability,
        size=setting.size,
        inflight=1,
        messages=STARTS,
        seconds=sum(took_ms) / 1000,
        latencies_ms=took_ms,
    )


async def _start_once(cluster: LocalCluster) -> float:
    await all_in_sync(cluster)
    found = await find_master(cluster, "g1")
    assert found is not None
    replica = next((node for node in cluster.brokers if node is not found[0]), found[0])
    cluster.signal(replica, signal.SIGKILL)
    while replica.is_running:
        cluster.reap()
        await pause(5)
    await pause(SETTLE_MS)  # the others have noticed
    began = time.perf_counter()
    cluster.restart(replica)
    await all_in_sync(cluster)
    return (time.perf_counter() - began) * 1000
