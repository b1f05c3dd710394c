"""The bench case of overload: producers without a throttle, and one client that sends little."""

import asyncio
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

from paceline.cli.bench.cases import WARM_UP_S, BenchSetting, create_topic, figures_of
from paceline.cli.bench.figures import Figures
from paceline.message import Message
from paceline.net.connect import Bootstrap
from paceline.platform.event_loop import run_loop
from paceline.platform.runtime import SystemRandom, pause
from paceline.producer.producer import Producer
from paceline.types import TopicName

PROCESSES = 2
"""So that the flood does not wait for its own loop, nor the light client for the flood's."""
PRODUCERS = 32
"""Of each process."""
IN_FLIGHT = 64
"""Of each producer: it sends the next message as soon as one of so many is acknowledged."""
QUEUES = 8
LIGHT_INTERVAL_MS = 50


class Flooded(NamedTuple):
    """What the producers of one process saw."""

    latencies_ms: list[float]
    moments: list[float]
    """Of the acknowledgements, by the monotonic clock."""


async def overload(setting: BenchSetting) -> list[Figures]:
    """The light client alone, the flood, the light client beside it, and the longest time in which
    none of the flood's messages was acknowledged. Any failed send ends the bench."""
    topic, light = TopicName(f"{setting.topic}-flood"), TopicName(f"{setting.topic}-light")
    await create_topic(setting.bootstrap, topic, queues=QUEUES)
    await create_topic(setting.bootstrap, light, queues=1)
    alone = await _send_little(setting, light)
    loop = asyncio.get_running_loop()
    seconds = setting.seconds + 2 * WARM_UP_S
    flood = partial(run_flood, setting.bootstrap, topic, setting.size, seconds)
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        floods = [loop.run_in_executor(pool, flood) for _ in range(PROCESSES)]
        await pause(1000 * 2 * WARM_UP_S)
        setting.meter.start()
        beside = await _send_little(setting, light)
        seen = await asyncio.gather(*floods)
    latencies_ms = [latency for one in seen for latency in one.latencies_ms]
    moments = sorted(moment for one in seen for moment in one.moments)
    gaps_ms = [1000 * (later - moment) for moment, later in zip(moments, moments[1:], strict=False)]
    row = partial(figures_of, setting, seconds=setting.seconds)
    return [
        row(case="overload-before", messages=len(alone), latencies_ms=alone),
        row(
            case="overload-flood",
            messages=int(len(latencies_ms) * setting.seconds / seconds),
            latencies_ms=latencies_ms,
            inflight=PROCESSES * PRODUCERS * IN_FLIGHT,
        ),
        row(case="overload-light", messages=len(beside), latencies_ms=beside),
        row(case="overload-gap", messages=1, latencies_ms=[max(gaps_ms)]),
    ]


async def _send_little(setting: BenchSetting, topic: TopicName) -> list[float]:
    """A small message each `LIGHT_INTERVAL_MS`, whether those before it are acknowledged or not."""
    latencies_ms: list[float] = []
    async with Producer(setting.bootstrap) as producer, asyncio.TaskGroup() as sends:

        async def send() -> None:
            began = time.perf_counter()
            await producer.send(Message(topic, b"little"))
            latencies_ms.append((time.perf_counter() - began) * 1000)

        stop_at = time.perf_counter() + setting.seconds
        while time.perf_counter() < stop_at:
            sends.create_task(send())
            await pause(LIGHT_INTERVAL_MS)
    return latencies_ms


def run_flood(bootstrap: Bootstrap, topic: TopicName, size: int, seconds: float) -> Flooded:
    """The producers of one process, for so long."""
    return run_loop(_flood(bootstrap, topic, size, seconds))


async def _flood(bootstrap: Bootstrap, topic: TopicName, size: int, seconds: float) -> Flooded:
    seen = Flooded([], [])
    message = Message(topic, SystemRandom().token(size))  # nothing that compresses
    stop_at = time.perf_counter() + seconds

    async def work(producer: Producer) -> None:
        while (began := time.perf_counter()) < stop_at:
            await producer.send(message)
            now = time.perf_counter()
            seen.latencies_ms.append((now - began) * 1000)
            seen.moments.append(now)

    async def produce() -> None:
        async with Producer(bootstrap) as producer, asyncio.TaskGroup() as workers:
            for _ in range(IN_FLIGHT):
                workers.create_task(work(producer))

    async with asyncio.TaskGroup() as producers:
        for _ in range(PRODUCERS):
            producers.create_task(produce())
    return seen
