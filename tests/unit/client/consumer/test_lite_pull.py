"""The lite pull consumer: a member of a group that asks for its messages."""

from typing import Any

import pytest
from tests.support.client.consumers import PUSH, QUEUE, committed, eventually, fill
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.lite_pull import BY_HAND, polled

from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.consumer.push import PushConsumer
from paceline.errors import ConfigError, QueueNotFoundError
from paceline.message import ReceivedMessage
from paceline.platform.runtime import pause
from paceline.queues import QueueName
from paceline.types import QueueId, TopicName

AUTO = LitePullSettings(start="first", auto_commit_interval_ms=1_000)


def member(cluster: FakeCluster, **more: Any) -> LitePullConsumer:
    fields = {"topics": ["orders"], "settings": AUTO, **more}
    return LitePullConsumer(cluster.controller, group="audit", **fields)


async def test_two_members_share_the_queues_and_commit_what_they_polled() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 4)
        async with member(cluster) as first, member(cluster) as second:
            await eventually(lambda: len(first.queues) == len(second.queues) == 2)
            await fill(cluster, 100)
            found: list[int] = []
            while len(found) < 100:
                for consumer in (first, second):
                    messages = await consumer.poll(max_messages=7, timeout_ms=20)
                    found += [int(message.body) for message in messages]
        stood = sum(committed(cluster, queue) or 0 for queue in range(4))

    assert sorted(found) == list(range(100))
    assert stood == 100


async def test_a_topic_assigned_late_begins_at_its_end_and_a_new_one_at_its_start() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        last = LitePullSettings(start="last", auto_commit_interval_ms=1_000)
        async with member(cluster, topics=[], settings=last) as consumer:
            cluster.add_topic("prices", 1)
            await fill(cluster, 3, topic="prices")
            new = QueueName(TopicName("prices"), QUEUE.group, QUEUE.queue_id)
            consumer.assign([QUEUE, new])
            await eventually(lambda: len(consumer.queues) == 2)
            found: list[ReceivedMessage] = []
            while len(found) < 3:
                found += await consumer.poll(timeout_ms=50)
            position = consumer.position(QUEUE)

    assert {message.topic for message in found} == {"prices"}
    assert position == 10


async def test_what_a_poll_returned_counts_with_the_next_one() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        async with member(cluster) as consumer:
            assert await polled(consumer, 4, messages_max=4) == [0, 1, 2, 3]
            assert consumer.position(QUEUE) == 0
            await consumer.poll(max_messages=2)
            assert consumer.position(QUEUE) == 4
            await eventually(lambda: committed(cluster) == 4)


async def test_a_member_that_fails_leaves_its_last_poll_to_the_next_one() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)

        async def fails() -> None:
            async with member(cluster) as consumer:
                await polled(consumer, 4, messages_max=4)
                await polled(consumer, 2, messages_max=2)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fails()
        assert committed(cluster) == 4
        async with member(cluster) as consumer:
            again = await polled(consumer, 6)

    assert again == [4, 5, 6, 7, 8, 9]


async def test_without_auto_commit_only_commit_sync_commits() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        async with member(cluster, settings=BY_HAND) as consumer:
            await polled(consumer, 3, messages_max=3)
            await consumer.commit()
            assert committed(cluster) == 3
            await polled(consumer, 3, messages_max=3)
        assert committed(cluster) == 3
        async with member(cluster, settings=BY_HAND) as consumer:
            assert (await polled(consumer, 7))[0] == 3


async def test_seeking_goes_anywhere_and_is_committed_there() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        cluster.group_calls.told_at_time = 6
        async with member(cluster) as consumer:
            await polled(consumer, 10)
            await consumer.seek(QUEUE, 4)
            assert committed(cluster) == 4
            middle = await polled(consumer, 6)
            await consumer.seek(QUEUE, "first")
            first = await polled(consumer, 10)
            await consumer.seek_to_time(QUEUE, 1_000)
            timed = await polled(consumer, 4)
            await consumer.seek(QUEUE, "last")
            nothing = await consumer.poll(timeout_ms=30)
            at_time = await consumer.offset_for_timestamp(QUEUE, 1_000)

    assert (middle, first, timed, nothing, at_time) == (
        list(range(4, 10)), list(range(10)), list(range(6, 10)), [], 6,
    )  # fmt: skip


async def test_paused_queues_return_nothing() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 3)
        async with member(cluster) as consumer:
            await polled(consumer, 3)
            consumer.pause([QUEUE])
            await fill(cluster, 5, first=3)
            nothing = await consumer.poll(timeout_ms=50)
            consumer.resume([QUEUE])
            found = await polled(consumer, 2)

    assert (nothing, found) == ([], [3, 4])


async def test_assigned_queues_are_read_from_where_the_group_stands() -> None:
    other = QUEUE._replace(queue_id=QueueId(1))
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        await fill(cluster, 40)
        async with member(cluster, topics=()) as consumer:
            consumer.assign([QUEUE])
            count = cluster.logs["g1"].end((1, 0))
            found = [await consumer.poll() for _ in range(1)][0]
            await eventually(lambda: consumer.queues == [QUEUE])
            consumer.assign([other])
            await consumer.commit()
            await eventually(lambda: consumer.queues == [other])
            rest = await polled(consumer, 40 - count)
            with pytest.raises(QueueNotFoundError):
                consumer.position(QUEUE)
        assert {message.queue_id for message in found} == {0}
        assert committed(cluster, 0) == len(found)
        assert committed(cluster, 1) == len(rest)


async def test_sharing_and_assigning_exclude_each_other() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with member(cluster) as consumer:
            with pytest.raises(ConfigError, match="either share queues or assign them"):
                consumer.assign([QUEUE])
    with pytest.raises(ConfigError, match="auto_commit_interval_ms"):
        LitePullConsumer(
            "127.0.0.1:1", group="g", settings=LitePullSettings(auto_commit_interval_ms=999)
        )


async def test_polling_goes_on_through_a_failover() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        await fill(cluster, 20)
        async with member(cluster) as consumer:
            found = await polled(consumer, 20)
            cluster.brokers[("g1", 1)].kill()
            cluster.elect("g1", 2)
            await fill(cluster, 40, first=20)
            found += await polled(consumer, 20)

    assert sorted(found) == list(range(40))


async def test_a_push_consumer_seeks_too() -> None:
    seen: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(int(message.body))

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listen, settings=PUSH
        ) as consumer:
            await eventually(lambda: len(seen) == 10)
            [queue] = consumer.queues
            await consumer.seek(queue, 8)
            await eventually(lambda: len(seen) == 12)
            await pause(30)
            with pytest.raises(QueueNotFoundError):
                await consumer.seek(queue._replace(queue_id=QueueId(9)), "first")

    assert sorted(seen[10:]) == [8, 9]
