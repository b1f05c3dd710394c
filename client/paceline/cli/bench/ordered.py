"""The bench case of ordered consumption: queue by queue, in order, under locks."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence

from paceline.cli.bench.cases import BenchSetting, figures_of, fill
from paceline.cli.bench.figures import Figures
from paceline.consumer.ordered import OrderedConsumer, OrderedSettings
from paceline.consumer.pull import PullConsumer
from paceline.errors import ConfigError
from paceline.message import ReceivedMessage
from paceline.types import TopicName

MEMBERS = 2
BATCH = 128


async def ordered(setting: BenchSetting, *, by_batch: bool) -> Figures:
    """Two members of a group drain a filled topic in order; offsets are committed under their locks
    as they go, and all of them when the clock stops."""
    topic = TopicName(f"{setting.topic}-consume")
    filled = await fill(setting, topic)
    is_done = asyncio.Event()
    received = 0
    next_offset: defaultdict[tuple[str, int], int] = defaultdict(int)

    async def listen(messages: Sequence[ReceivedMessage]) -> None:
        nonlocal received
        first = messages[0]
        queue = first.group, first.queue_id
        if first.queue_offset != next_offset[queue]:
            raise ConfigError(f"{first.queue_offset} of {queue} came after {next_offset[queue]}")
        next_offset[queue] = messages[-1].queue_offset + 1
        received += len(messages)
        if received >= filled:
            is_done.set()

    async def listen_one(message: ReceivedMessage) -> None:
        await listen((message,))

    group = "bench-ordered-batch" if by_batch else "bench-ordered"
    members = [
        OrderedConsumer(
            setting.bootstrap,
            group=group,
            topics=[topic],
            settings=OrderedSettings(start="first", consume_message_batch_max_size=BATCH),
            listener=None if by_batch else listen_one,
            batch_listener=listen if by_batch else None,
        )
        for _ in range(MEMBERS)
    ]
    setting.meter.start()
    began = time.perf_counter()
    await asyncio.gather(*(member.start() for member in members))
    await is_done.wait()
    await asyncio.gather(*(member.close() for member in members))
    seconds = time.perf_counter() - began
    await check_committed(setting, topic, group, filled)
    case = "ordered-batches" if by_batch else "ordered"
    return figures_of(setting, case=case, seconds=seconds, messages=received)


async def check_committed(setting: BenchSetting, topic: TopicName, group: str, filled: int) -> None:
    """A figure without its offsets would be no figure."""
    async with PullConsumer(setting.bootstrap) as reader:
        committed = await reader.committed(group, await reader.queues(topic))
    done = sum(offset or 0 for offset in committed.values())
    if done != filled:
        raise ConfigError(f"{done} of {filled} messages are committed")
