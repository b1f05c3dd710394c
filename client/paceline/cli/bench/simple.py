"""The bench case of simple consumers: receive by receipt, acknowledge, until a topic is drained."""

import asyncio
import time

from paceline.cli.bench.cases import BenchSetting, figures_of, fill
from paceline.cli.bench.figures import Figures
from paceline.consumer.simple import SimpleConsumer
from paceline.types import TopicName

CONSUMERS = 2
RECEIVES_EACH = 8
"""Receives of one consumer that are under way: each is answered when confirm has passed it."""


async def simple(setting: BenchSetting) -> Figures:
    """Two receivers drain a filled topic, 32 messages a receive; each is acknowledged."""
    topic = TopicName(f"{setting.topic}-consume")
    filled = await fill(setting, topic)
    done = 0

    async def work(consumer: SimpleConsumer) -> None:
        nonlocal done
        while done < filled:
            messages = await consumer.receive(wait_ms=200)
            await consumer.ack(messages)
            done += len(messages)

    consumers = [
        SimpleConsumer(setting.bootstrap, group="bench-simple", topics=[topic])
        for _ in range(CONSUMERS)
    ]
    await asyncio.gather(*(consumer.start() for consumer in consumers))
    setting.meter.start()
    began = time.perf_counter()
    await asyncio.gather(*(work(one) for one in consumers for _ in range(RECEIVES_EACH)))
    seconds = time.perf_counter() - began
    figures = figures_of(setting, case="simple", seconds=seconds, messages=done)
    await asyncio.gather(*(consumer.close() for consumer in consumers))
    return figures
