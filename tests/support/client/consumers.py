"""What tests of consumers share with others."""

import asyncio
from collections.abc import Callable

from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.push import PushSettings
from paceline.message import Message
from paceline.platform.runtime import pause
from paceline.producer.producer import Producer
from paceline.queues import QueueName
from paceline.types import GroupName, QueueId, TopicName

QUEUE = QueueName(TopicName("orders"), GroupName("g1"), QueueId(0))
PUSH = PushSettings(start="first", commit_interval_ms=20, retry_first_ms=5)


async def eventually(condition: Callable[[], bool], within_ms: int = 5_000) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_ms / 1000
    while not condition():
        assert loop.time() < deadline, "it did not happen in time"
        await pause(2)


def committed(cluster: FakeCluster, queue: int = 0) -> int | None:
    return cluster.logs["g1"].offsets.get(("audit", 1, queue), (None, 0))[0]


async def fill(cluster: FakeCluster, count: int, *, first: int = 0, topic: str = "orders") -> None:
    """Messages "0" to "count - 1", each its own key."""
    async with Producer(cluster.controller) as producer:
        await producer.send_many(
            [Message(topic, b"%d" % number, key=f"k{number}") for number in range(first, count)]
        )
