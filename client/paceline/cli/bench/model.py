"""The bench cases of the message model: what consumers do beyond reading in bulk."""

import asyncio
import time
from collections.abc import Sequence

from paceline.cli.bench.cases import BenchSetting, figures_of, fill
from paceline.cli.bench.delay import delayed
from paceline.cli.bench.figures import Figures
from paceline.cli.bench.ordered import check_committed, ordered
from paceline.cli.bench.transactions import transactions
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.consumer.simple import SimpleConsumer
from paceline.errors import ConfigError
from paceline.message import ReceivedMessage
from paceline.types import TopicName

MODEL_CASES = ("push", "ordered", "simple", "transactions", "delayed")
PUSH_MEMBERS = 2
PUSH_BATCH = 128
SIMPLE_CONSUMERS = 2
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
        for _ in range(SIMPLE_CONSUMERS)
    ]
    await asyncio.gather(*(consumer.start() for consumer in consumers))
    setting.meter.start()
    began = time.perf_counter()
    await asyncio.gather(*(work(one) for one in consumers for _ in range(RECEIVES_EACH)))
    seconds = time.perf_counter() - began
    figures = figures_of(setting, case="simple", seconds=seconds, messages=done)
    await asyncio.gather(*(consumer.close() for consumer in consumers))
    return figures


async def run_model_case(case: str, setting: BenchSetting) -> list[Figures]:
    """All figures of one named case."""
    match case:
        case "push":
            return [await push(setting, by_batch=by_batch) for by_batch in (False, True)]
        case "simple":
            return [await simple(setting)]
        case "ordered":
            return [await ordered(setting, by_batch=by_batch) for by_batch in (False, True)]
        case "transactions":
            return [await transactions(setting)]
        case "delayed":
            return await delayed(setting)
        case _:
            raise ConfigError(f"no case {case!r}")


async def push(setting: BenchSetting, *, by_batch: bool) -> Figures:
    """Two members of a group drain a filled topic; offsets are committed as they go, and all of
    them when the clock stops."""
    topic = TopicName(f"{setting.topic}-consume")
    filled = await fill(setting, topic)
    received = 0
    is_done = asyncio.Event()

    def count(messages: int) -> None:
        nonlocal received
        received += messages
        if received >= filled:
            is_done.set()

    async def listen(message: ReceivedMessage) -> None:
        count(1)

    async def listen_batch(messages: Sequence[ReceivedMessage]) -> None:
        count(len(messages))

    group = "bench-push-batch" if by_batch else "bench-push"
    members = [
        PushConsumer(
            setting.bootstrap,
            group=group,
            topics=[topic],
            settings=PushSettings(start="first", consume_message_batch_max_size=PUSH_BATCH),
            listener=None if by_batch else listen,
            batch_listener=listen_batch if by_batch else None,
        )
        for _ in range(PUSH_MEMBERS)
    ]
    setting.meter.start()
    began = time.perf_counter()
    await asyncio.gather(*(member.start() for member in members))
    await is_done.wait()
    await asyncio.gather(*(member.close() for member in members))
    seconds = time.perf_counter() - began
    await check_committed(setting, topic, group, filled)
    return figures_of(
        setting, case="push-batches" if by_batch else "push", seconds=seconds, messages=received
    )
