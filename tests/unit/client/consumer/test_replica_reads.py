"""Queues far behind are read from the replica that brokers name, and the rest from the master."""

from typing import Any

from tests.support.client.consumers import QUEUE, committed, eventually
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.pull import PullConsumer, PullSettings
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.message import Message, ReceivedMessage
from paceline.producer.producer import Producer
from paceline.types import ConsumerGroupName
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView

ONE_BY_ONE = PullSettings(queue_bytes_max=1, buffer_bytes_max=1)
"""One batch with each fetch, and none ahead."""


async def batches(cluster: FakeCluster, count: int) -> None:
    async with Producer(cluster.controller) as producer:
        for number in range(count):
            await producer.send(Message("orders", b"%d" % number))


def brokers(cluster: FakeCluster) -> tuple[FakeBroker, FakeBroker]:
    return cluster.brokers[("g1", 1)], cluster.brokers[("g1", 2)]


def lag_below(cluster: FakeCluster, offset: int, *, replica: int = 2) -> None:
    """What brokers of a log far longer than their memory say."""
    for broker in brokers(cluster):
        broker.slow_below, broker.slow_replica = offset, replica


async def read(consumer: PullConsumer, count: int) -> list[int]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found += await consumer.poll()
    return [int(message.body) for message in found]


async def test_what_is_far_behind_comes_from_the_replica_and_what_is_near_from_the_master() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await batches(cluster, 60)
        lag_below(cluster, 40)
        master, replica = brokers(cluster)
        async with PullConsumer(cluster.controller, settings=ONE_BY_ONE) as consumer:
            await consumer.assign({QUEUE: 0})
            found = await read(consumer, 60)

    assert found == list(range(60))
    assert replica.fetched > 30
    assert master.fetched >= 19  # the near ones; and until the connection was up
    assert master.fetched + replica.fetched == 60


async def test_the_master_is_asked_again_when_the_replica_dies() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await batches(cluster, 60)
        lag_below(cluster, 60)
        master, replica = brokers(cluster)
        async with PullConsumer(cluster.controller, settings=ONE_BY_ONE) as consumer:
            await consumer.assign({QUEUE: 0})
            found = await read(consumer, 20)
            assert replica.fetched > 0
            replica.kill()
            found += await read(consumer, 40)

    assert found == list(range(60))


async def test_a_replica_that_lacks_something_sends_its_readers_to_the_master() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await batches(cluster, 30)
        lag_below(cluster, 30)
        _, replica = brokers(cluster)
        replica.slow_below = 0
        replica.serves_nothing_from = 10
        async with PullConsumer(cluster.controller, settings=ONE_BY_ONE) as consumer:
            await consumer.assign({QUEUE: 0})
            found = await read(consumer, 30)

    assert found == list(range(30))


async def consumed(cluster: FakeCluster, **more: Any) -> None:
    async def listen(message: ReceivedMessage) -> None:
        """Done."""

    settings = PushSettings(
        start="first", queue_bytes_max=1, messages_per_queue_max=1, commit_interval_ms=20
    )
    async with PushConsumer(
        cluster.controller, group="audit", topics=["orders"], listener=listen, settings=settings,
        **more,
    ):  # fmt: skip
        await eventually(lambda: committed(cluster) == 30)


async def test_a_group_reads_far_behind_from_the_replica_and_commits_at_the_master() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await batches(cluster, 30)
        lag_below(cluster, 30)
        await consumed(cluster)
        _, replica = brokers(cluster)

    assert replica.fetched > 15


async def test_a_group_may_forbid_it() -> None:
    """RocketMQ's whichBrokerWhenConsumeSlowly."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        name = ConsumerGroupName("audit")
        settings = ConsumerGroupSettings(which_broker_when_consume_slowly=0)
        view = ConsumerGroupView(group=name, settings=settings)
        cluster.publish(consumer_groups={name: view})
        await batches(cluster, 30)
        lag_below(cluster, 30)
        await consumed(cluster)
        _, replica = brokers(cluster)

    assert replica.fetched == 0
