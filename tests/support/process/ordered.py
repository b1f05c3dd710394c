"""What tests of ordered share with others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.support.process.harness import (
    RunningCluster,
)

from paceline.consumer.ordered import OrderedSettings
from paceline.message import Message
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.producer.producer import Producer

LEASE_MS = 3_000
SETTINGS = OrderedSettings(
    start="first",
    commit_interval_ms=200,
    rebalance_lock_max_live_time_ms=LEASE_MS,
    rebalance_lock_interval_ms=500,
)


NUMBERS = 1_000_000
"""A message's number is its key's number times this, and its place among those of the key."""


class Sent(dict[int, int]):
    """Messages acknowledged, by key."""

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()


@contextlib.asynccontextmanager
async def several_producers(cluster: RunningCluster) -> AsyncIterator[Sent]:
    """Three producers, four keys each; of a key the next is sent before the last is answered."""
    sent = Sent()

    async def send(producer: Producer, key: int) -> None:
        while not sent.over.is_set():
            base = sent.get(key, 0)
            numbers = range(base, base + 5)
            await producer.send_many(
                [
                    Message("orders", b"%d" % (key * NUMBERS + number), key=f"key-{key}")
                    for number in numbers
                ]
            )
            sent[key] = base + 5
            await pause(20)

    async with contextlib.AsyncExitStack() as stack:
        tasks = []
        for number in range(3):
            producer = await stack.enter_async_context(Producer(cluster.bootstrap))
            tasks += [
                spawn(send(producer, number * 4 + key), name=f"key-{number * 4 + key}")
                for key in range(4)
            ]
        try:
            yield sent
            await asyncio.gather(*tasks)
        finally:
            await cancel_and_wait(*tasks)
