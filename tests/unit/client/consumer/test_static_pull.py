"""Pull consumers of static topics: segments one after another, also those that come."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.client.consumers import eventually, fill
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.static_consumers import stands

from paceline.consumer.pull import PullConsumer
from paceline.message import ReceivedMessage
from paceline.types import GroupName, TopicName
from paceline.wire.static_topics import LogicalQueue


async def test_a_pull_consumer_reads_segments_in_order_and_follows_a_remap() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1", "g2"])
        await fill(cluster, 30)
        cluster.remap("orders", 0, "g2")
        await fill(cluster, 60, first=30)
        found: list[ReceivedMessage] = []
        async with PullConsumer(cluster.controller) as consumer:
            await consumer.subscribe("orders")
            while len(found) < 40:
                found += await consumer.poll(max_messages=7)
            cluster.remap("orders", 1, "g1")
            cluster.remap("orders", 0, "g1")
            await fill(cluster, 90, first=60)
            while len(found) < 90:
                found += await consumer.poll(max_messages=7)
            await consumer.commit("audit")

        for number in range(2):
            mine = [message for message in found if message.logical_queue == number]
            assert [message.body for message in mine] == cluster.logical_bodies("orders", number)
            assert [message.logical_offset for message in mine] == list(range(len(mine)))
        topic = cluster.view.topics[TopicName("orders")]
        for logical in topic.logical_queues:
            for segment in logical.segments:
                end = cluster.logs[segment.group].end((1, segment.queue_id))
                assert stands(cluster, segment.group, segment.queue_id) == end


@pytest.mark.parametrize("start", ["first", "last"])
async def test_a_pull_consumer_follows_a_remap_that_comes_while_it_subscribes(start: str) -> None:
    """What it names was the last segment when it was named."""
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        await fill(cluster, 5)
        usual = cluster.answer_call
        async with PullConsumer(cluster.controller) as consumer:

            async def moving(broker: FakeBroker, document: dict[str, Any]) -> dict[str, Any]:
                answer = await usual(broker, document)
                if document["call"] == "ends" and not cluster.logs["g1"].sealed:
                    cluster.remap("orders", 0, "g2")
                    await eventually(lambda: consumer._cluster.view == cluster.view)
                return answer

            cluster.answer_call = moving  # type: ignore[method-assign]
            await consumer.subscribe("orders", start=start)
            await fill(cluster, 8, first=5)
            found: list[ReceivedMessage] = []
            wanted = 8 if start == "first" else 3
            while len(found) < wanted:
                more = await consumer.poll(timeout_ms=3_000)
                assert more, found
                found += more

        assert [message.logical_offset for message in found] == list(range(8 - wanted, 8))


async def test_a_pull_consumer_that_has_read_all_goes_on_in_the_segment_that_comes() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        await fill(cluster, 5)
        async with PullConsumer(cluster.controller) as consumer:
            await consumer.subscribe("orders")
            found: list[ReceivedMessage] = []
            while len(found) < 5:
                found += await consumer.poll()
            for group in ("g2", "g1"):
                cluster.remap("orders", 0, group)
                await fill(cluster, len(found) + 3, first=len(found))
                found += await consumer.poll(timeout_ms=3_000)

        assert [message.logical_offset for message in found] == list(range(11))


async def test_a_pull_consumer_that_seeks_back_reads_the_segments_again() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        await fill(cluster, 5)
        cluster.remap("orders", 0, "g2")
        await fill(cluster, 10, first=5)
        async with PullConsumer(cluster.controller) as consumer:
            await consumer.subscribe("orders")
            found: list[ReceivedMessage] = []
            while len(found) < 6:
                found += await consumer.poll(max_messages=6)
            first, second = await consumer.queues("orders")
            await consumer.seek(second, 2)
            await consumer.seek(first, 3)
            again: list[ReceivedMessage] = []
            while len(again) < 5:
                again += await consumer.poll(max_messages=1)
            last_only = {second: 4}
            await consumer.assign(last_only)
            [alone] = await consumer.poll()

        assert [message.logical_offset for message in again] == [3, 4, 7, 8, 9]
        assert alone.logical_offset == 9


async def test_a_pull_consumer_goes_on_behind_a_segment_whose_broker_group_was_given_up() -> None:
    """All that it was assigned is gone with the group."""
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        await fill(cluster, 5)
        async with PullConsumer(cluster.controller) as consumer:
            await consumer.subscribe("orders")
            found = await consumer.poll()
            before = cluster.view.topics[TopicName("orders")]
            [logical] = before.logical_queues
            heir = replace(logical.last, generation=1, group=GroupName("g2"), start=0)
            queues = {GroupName("g2"): 1}
            cluster.alter_topic(
                "orders",
                queues=queues,
                read_queues=queues,
                write_queues=queues,
                logical_queues=(LogicalQueue(segments=(heir,)),),
            )
            await fill(cluster, 8, first=5)
            while len(found) < 8:
                more = await consumer.poll(timeout_ms=3_000)
                assert more, found
                found += more

        assert [message.body for message in found[5:]] == cluster.logical_bodies("orders", 0)
