"""The bench case of delayed messages: how many a second are accepted, and how late they come."""

import asyncio
import time

from paceline.admin.client import AdminClient
from paceline.cli.bench.cases import BenchSetting, figures_of
from paceline.cli.bench.figures import Figures
from paceline.consumer.pull import PullConsumer
from paceline.message import Message
from paceline.platform.runtime import SystemClock, pause
from paceline.producer.producer import Producer
from paceline.types import TopicName
from paceline.wire.topics import DELAY

INFLIGHT = 512
FAR_MS = 3_600_000
"""What is accepted at full speed is not delivered while the bench lasts."""
QUEUES = 4
RATE = 10_000
"""Messages a second whose lateness is measured: the goal for what is accepted."""
TICK_MS = 10
DELAY_MS = 1_000
PATIENCE_MS = 10_000


async def delayed(setting: BenchSetting) -> list[Figures]:
    """Sends at full speed for much later; then a steady rate, read as it is delivered: latencies
    of the first are those of acknowledgements, of the second how late a consumer had a message."""
    topic = TopicName(f"{setting.topic}-delay")
    async with AdminClient(setting.bootstrap) as admin:
        await admin.topics.create(topic, queues=QUEUES, message_type=DELAY)
    return [await _accepted(setting, topic), await _delivered(setting, topic)]


async def _accepted(setting: BenchSetting, topic: TopicName) -> Figures:
    message = Message(topic, setting.bodies[0], delay_ms=FAR_MS)
    latencies_ms: list[float] = []
    async with Producer(setting.bootstrap) as producer:
        await producer.send(message)
        setting.meter.start()
        began = time.perf_counter()

        async def work() -> None:
            while (asked := time.perf_counter()) < began + setting.seconds:
                await producer.send(message)
                latencies_ms.append((time.perf_counter() - asked) * 1000)

        await asyncio.gather(*(work() for _ in range(INFLIGHT)))
        seconds = time.perf_counter() - began
    return figures_of(
        setting,
        case="delayed-accepted",
        seconds=seconds,
        messages=len(latencies_ms),
        inflight=INFLIGHT,
        latencies_ms=latencies_ms,
    )


async def _delivered(setting: BenchSetting, topic: TopicName) -> Figures:
    message = Message(topic, setting.bodies[0], delay_ms=DELAY_MS)
    late_ms: list[float] = []
    clock = SystemClock()
    count = int(RATE * setting.seconds)
    async with (
        Producer(setting.bootstrap) as producer,
        PullConsumer(setting.bootstrap) as consumer,
        asyncio.TaskGroup() as group,
    ):
        await consumer.assign(dict.fromkeys(await consumer.queues(topic), "first"))

        async def offer() -> None:
            for number in range(count // (RATE * TICK_MS // 1000)):
                for _ in range(RATE * TICK_MS // 1000):
                    producer.send_nowait(message)
                wait_ms = (began - time.perf_counter()) * 1000 + (number + 1) * TICK_MS
                await pause(max(0.0, wait_ms))
            await producer.flush()

        setting.meter.start()
        began = time.perf_counter()
        group.create_task(offer())
        while len(late_ms) < count:
            got = await consumer.poll(timeout_ms=PATIENCE_MS)
            if not got:
                break
            now = clock.unix_ms()
            late_ms += [now - int(one.properties["TIMER_OUT_MS"]) for one in got]
        seconds = time.perf_counter() - began
    return figures_of(
        setting,
        case="delayed-late",
        seconds=seconds,
        messages=len(late_ms),
        latencies_ms=late_ms,
    )
