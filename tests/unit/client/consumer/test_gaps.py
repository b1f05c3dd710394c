"""Consumers that retention has overtaken: they go on at the first kept message and say so (R26)."""

import asyncio

import pytest
from tests.support.client.consumers import PUSH, QUEUE, committed, eventually
from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.fetch.gaps import Gap
from paceline.consumer.pull import PullConsumer
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.errors import OffsetOutOfRangeError
from paceline.message import Message, ReceivedMessage
from paceline.producer.producer import Producer


async def one_by_one(cluster: FakeCluster, count: int, *, first: int = 0) -> None:
    """Messages "0" to "count - 1", each a batch of its own."""
    async with Producer(cluster.controller) as producer:
        for number in range(first, count):
            await producer.send(Message("orders", b"%d" % number))


def commit(cluster: FakeCluster, offset: int) -> None:
    cluster.logs["g1"].offsets[("audit", 1, 0)] = (offset, 0)


async def test_a_member_whose_position_was_deleted_goes_on_at_the_first_kept_message() -> None:
    seen: list[int] = []
    gaps: list[Gap] = []

    async def listener(message: ReceivedMessage) -> None:
        seen.append(int(message.body))

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await one_by_one(cluster, 10)
        commit(cluster, 2)
        cluster.logs["g1"].delete_below((1, 0), 6)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listener,
            settings=PUSH, on_gap=gaps.append,
        ) as consumer:  # fmt: skip
            await eventually(lambda: committed(cluster) == 10)

    assert seen == [6, 7, 8, 9]
    assert gaps == [Gap(QUEUE, 2, 6)]
    assert consumer.missed_count == 4
    assert str(gaps[0]) == "messages 2 to 5 of orders g1/0 were deleted before they were read"


async def test_a_gap_is_committed_though_nothing_is_left_behind_it() -> None:
    """Else the group's lag would never end, and the next start would report the gap again."""
    gaps: list[Gap] = []

    async def listener(message: ReceivedMessage) -> None:
        raise AssertionError(message)

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await one_by_one(cluster, 5)
        commit(cluster, 0)
        cluster.logs["g1"].delete_below((1, 0), 5)
        for _ in range(2):
            async with PushConsumer(
                cluster.controller, group="audit", topics=["orders"], listener=listener,
                settings=PUSH, on_gap=gaps.append,
            ):  # fmt: skip
                await eventually(lambda: committed(cluster) == 5)

    assert gaps == [Gap(QUEUE, 0, 5)]


async def test_what_was_fetched_before_the_gap_is_delivered_all_the_same() -> None:
    seen: list[int] = []
    go_on, is_told = asyncio.Event(), asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        if message.body == b"0":
            await go_on.wait()
        if message.body == b"2":  # the two before have made room for the fetch that finds the gap
            await is_told.wait()
        seen.append(int(message.body))

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await one_by_one(cluster, 10)
        settings = PushSettings(
            start="first",
            concurrency=1,
            messages_per_queue_max=3,
            queue_bytes_max=1,  # one message with each fetch
            commit_interval_ms=10,
        )
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listener,
            settings=settings, on_gap=lambda gap: is_told.set(),
        ) as consumer:  # fmt: skip
            await eventually(lambda: _stands_at(consumer) == 4)
            cluster.logs["g1"].delete_below((1, 0), 6)
            go_on.set()
            await eventually(lambda: committed(cluster) == 10)

    assert seen == [0, 1, 2, 3, 6, 7, 8, 9]
    assert consumer.missed_count == 2


def _stands_at(consumer: PushConsumer) -> int | None:
    """The next offset to be fetched, once there is no room for it."""
    for held in consumer._owner.held.values():
        if not held.fetch.has_room and not held.fetch.is_in_flight:
            return held.fetch.position
    return None


async def test_a_pull_consumer_reports_the_gap_once_and_goes_on_behind_it() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await one_by_one(cluster, 10)
        cluster.logs["g1"].delete_below((1, 0), 6)
        async with PullConsumer(cluster.controller) as consumer:
            await consumer.assign({QUEUE: 2})
            with pytest.raises(OffsetOutOfRangeError, match=r"2 .* \[6, 10\): .* deleted") as told:
                await consumer.poll()
            at = consumer.position(QUEUE)
            found: list[ReceivedMessage] = []
            while len(found) < 4:
                found += await consumer.poll()

    assert told.value.details == {
        "queue": ["orders", "g1", 0],
        "start": 6,
        "end": 10,
        "goes_on_at": 6,
    }
    assert at == 6
    assert [message.queue_offset for message in found] == [6, 7, 8, 9]
