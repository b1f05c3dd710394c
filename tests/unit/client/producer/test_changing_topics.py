"""Producers of topics that are made by the first send, shrink while in use, or want keys."""

import asyncio
from typing import Any

import pytest
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.fake_log import NO_FAULT, Fault

from paceline.errors import (
    BadNameError,
    CommandRefusedError,
    MessageTypeError,
    NoPermissionError,
    OutcomeUnknownError,
    PacelineError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from paceline.message import Message
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline.queues import QueueName, index_of_key
from paceline.records.header import BatchHeader
from paceline.types import GroupName, QueueId, TopicName
from paceline.wire.topics import FIFO

G1 = GroupName("g1")


async def stored(cluster: FakeCluster, queues: int = 4) -> list[bytes]:
    return sorted(body for queue in range(queues) for body in cluster.bodies(queue=queue))


async def own_view(producer: Producer, cluster: FakeCluster) -> None:
    """The producer sees the present view."""
    version = cluster.view.version
    await producer._cluster.watch.wait_for(lambda view: view.version >= version, timeout_ms=5000)


async def test_the_first_message_makes_its_topic() -> None:
    async with FakeCluster() as cluster:
        cluster.makes_topics = True
        async with Producer(cluster.controller) as producer:
            results = await producer.send_many([Message("new", b"%d" % n) for n in range(3)])

        assert [str(result.topic) for result in results] == ["new"] * 3
        assert list(cluster.view.topics) == ["new"], "asked for once"


async def test_where_topics_are_not_made_the_message_fails_as_ever() -> None:
    settings = ProducerSettings(topic_wait_ms=50)
    async with FakeCluster() as cluster, Producer(cluster.controller, settings=settings) as one:
        with pytest.raises(TopicNotFoundError):
            await one.send(Message("new", b"x"))


async def test_a_topic_that_can_never_be_fails_at_once_with_the_reason() -> None:
    refusal = CommandRefusedError("there are 10000 topics", reason="TOO_MANY_TOPICS")
    async with FakeCluster() as cluster, Producer(cluster.controller) as producer:
        cluster.refuses_topics = refusal

        with pytest.raises(CommandRefusedError, match="10000"):
            await producer.send(Message("new", b"x"))
        cluster.refuses_topics = BadNameError("topic must be 1 to 127 of ...", field="topic")
        with pytest.raises(BadNameError, match="1 to 127"):
            await producer.send(Message("a/b", b"x"))


async def test_messages_of_a_queue_that_takes_no_more_go_to_the_others() -> None:
    """They are on their way as the topic shrinks: definitely refused, so stored once elsewhere."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 4)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"warm", key="warm"))
            bodies = [b"%02d" % n for n in range(40)]
            plain = [Message("orders", body) for body in bodies[:10]]
            keyed = [Message("orders", body, key=body.decode()) for body in bodies[10:]]
            sendings = [producer.send(message) for message in (*plain, *keyed)]

            cluster.alter_topic("orders", write_queues={G1: 1})
            results = [await sending for sending in sendings]

        assert {result.queue_id for result in results[10:]} == {0}
        assert await stored(cluster) == sorted([*bodies, b"warm"])


async def test_growing_uses_the_new_queues_again() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 4)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"x"))
            for count in (1, 4):
                cluster.alter_topic("orders", write_queues={G1: count})
                await own_view(producer, cluster)
            results = [await producer.send(Message("orders", b"x")) for _ in range(8)]

        assert {result.queue_id for result in results} == {0, 1, 2, 3}


async def test_a_queue_that_the_application_named_is_not_replaced() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"warm"))
            last = QueueName(TopicName("orders"), G1, QueueId(1))
            sending = producer.send(Message("orders", b"x", queue=last))

            cluster.alter_topic("orders", write_queues={G1: 1})

            with pytest.raises(QueueNotFoundError):
                await sending


async def test_a_named_queue_of_a_wiped_broker_group_says_what_was_done_to_it() -> None:
    """Both what waits when the view comes, and what is sent afterwards."""
    words = "group g1 takes no messages: .* was wiped.*paceline cluster add-write-perm g1"
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 1)
        named = Message("orders", b"x", queue=QueueName(TopicName("orders"), G1, QueueId(0)))
        nowhere = Message("orders", b"x", queue=QueueName(TopicName("orders"), G1, QueueId(7)))
        async with Producer(cluster.controller) as producer:
            await producer.send(named)
            before = producer.send(named)
            cluster.wipe("g1")
            with pytest.raises(NoPermissionError, match=words) as waited:
                await before
            with pytest.raises(NoPermissionError, match=words) as later:
                await producer.send(named)
            with pytest.raises(QueueNotFoundError, match="has no queue g1/7"):
                await producer.send(nowhere)
            elsewhere = await producer.send(Message("orders", b"y"))

        assert waited.value.is_definite
        assert later.value.is_definite
        assert elsewhere.group == "g2"
        assert (cluster.bodies("g1"), cluster.bodies("g2")) == ([b"x"], [b"y"])


async def test_a_callback_is_told_of_a_queue_that_is_not_there() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        queue = QueueName(TopicName("orders"), G1, QueueId(7))
        told: list[PacelineError | None] = []
        async with Producer(cluster.controller) as producer:
            # The first message of its topic: it is placed, and refused, before there is a batch.
            producer.send_nowait(
                Message("orders", b"x", queue=queue), lambda _, error: told.append(error)
            )
            await producer.send(Message("orders", b"y"))

    assert isinstance(told[0], QueueNotFoundError)


async def test_where_all_broker_groups_are_wiped_a_send_says_so() -> None:
    settings = ProducerSettings(delivery_timeout_ms=100, request_timeout_ms=50)
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 1)
        cluster.add_static_topic("fixed", ["g1", "g2"])
        cluster.wipe("g1")
        cluster.wipe("g2")
        async with Producer(cluster.controller, settings=settings) as producer:
            for topic in ("orders", "fixed"):
                with pytest.raises(NoPermissionError, match="groups g1, g2 take no") as refused:
                    await producer.send(Message(topic, b"x", key="k"))
                assert "paceline cluster add-write-perm g1" in refused.value.message


async def test_a_message_that_may_be_stored_in_a_retired_queue_ends_unknown() -> None:
    """R32: it must not go elsewhere, and nobody can say that it is not stored."""
    cluster = FakeCluster()
    attempts: list[int] = []

    def fault(broker: FakeBroker, header: BatchHeader) -> Fault:
        if header.queue_id != 1:
            return NO_FAULT
        attempts.append(header.base_sequence)
        if len(attempts) == 1:
            asyncio.get_running_loop().call_soon(
                lambda: cluster.alter_topic("orders", write_queues={G1: 1})
            )
        return Fault(drop_before=True) if len(attempts) == 1 else NO_FAULT

    async with cluster:
        cluster.add_topic("orders", 2)
        cluster.fault = fault
        async with Producer(cluster.controller) as producer:
            sending = await_in_queue_one(producer)

            with pytest.raises(OutcomeUnknownError):
                await sending
            await producer.send(Message("orders", b"y"))

        assert await stored(cluster) == [b"y"]


def await_in_queue_one(producer: Producer) -> Any:
    """A keyless message that goes to queue 1, by way of a key that means it."""
    key = next(str(n) for n in range(100) if index_of_key(str(n).encode(), 2) == 1)
    return producer.send(Message("orders", b"x", key=key))


async def test_a_topic_without_permission_fails_sends_at_once() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        cluster.fault = lambda broker, header: Fault(refuse=NoPermissionError("R--"))
        async with Producer(cluster.controller) as producer:
            with pytest.raises(NoPermissionError):
                await producer.send(Message("orders", b"x"))


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_ordered_topic_wants_a_key_or_a_queue(is_known: bool) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        cluster.alter_topic("orders", message_type=FIFO)
        async with Producer(cluster.controller) as producer:
            if is_known:
                await producer.send(Message("orders", b"x", key="k"))
            with pytest.raises(MessageTypeError):
                await producer.send(Message("orders", b"x"))
            await producer.send(Message("orders", b"x", sharding="k"))
