"""The simple consumer against the broker's own door and service, on fakes below them."""

import asyncio
from dataclasses import replace

import pytest
from tests.support.client.simple import a_consumer, bodies, send
from tests.support.http.door import a_batch, a_door
from tests.support.service.fakes import until
from tests.support.service.send import Answers

from paceline import SimpleConsumer, SimpleSettings
from paceline.consumer.simple import give_back
from paceline.errors import (
    BadRequestError,
    ConfigError,
    InvalidReceiptHandleError,
    ReceiptExpiredError,
    TopicNotFoundError,
)
from paceline.types import ConsumerGroupName, TopicId, TopicName
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView


async def test_messages_come_with_receipts_and_acknowledged_ones_never_again() -> None:
    async with a_door() as door, a_consumer(door) as consumer:
        send(door, b"a", b"b", b"c")
        first = await consumer.receive(2)
        await consumer.ack(first)
        second = await consumer.receive()
        door.clock.advance(60_000)
        again = await consumer.receive()

        assert (bodies(first), bodies(second), bodies(again)) == ([b"a", b"b"], [b"c"], [b"c"])
        assert [message.attempt for message in (*first, *again)] == [1, 1, 2]
        assert first[0].invisible_until_unix_ms == again[0].invisible_until_unix_ms - 60_000
        assert (first[0].topic, first[0].group, first[1].queue_offset) == ("orders", "g1", 1)
        with pytest.raises(ReceiptExpiredError):
            await consumer.ack(second)
        await consumer.ack(again[0].handle)
        await consumer.ack(again)


async def test_part_of_a_batch_is_read_once_for_several_receives() -> None:
    async with a_door() as door, a_consumer(door) as consumer:
        send(door, *[b"%d" % number for number in range(100)])
        got: list[bytes] = []
        while len(got) < 100:
            got += bodies(await consumer.receive())
        reads = door.log.reads

        assert got == [b"%d" % number for number in range(100)]
        assert reads < 4


async def test_part_of_a_batch_is_read_once_for_receives_at_one_time() -> None:
    async with a_door() as door, a_consumer(door) as consumer:
        assert await consumer.receive(wait_ms=0) == []
        send(door, *[b"%d" % number for number in range(128)])
        before = door.service.counters.stream_requests

        received = await asyncio.gather(*(consumer.receive() for _ in range(4)))

        got = [body for messages in received for body in bodies(messages)]
        assert sorted(got) == sorted(b"%d" % number for number in range(128))
        assert door.service.counters.stream_requests - before == 4 + 1


async def test_receive_waits_for_a_message_and_ends_empty() -> None:
    async with a_door() as door, a_consumer(door) as consumer:
        assert await consumer.receive(wait_ms=0) == []
        receiving = asyncio.gather(consumer.receive())
        await until(lambda: door.service.receipts.waiting_count == 1)
        send(door, b"late", queue_id=3)

        assert bodies((await receiving)[0]) == [b"late"]


async def test_many_acknowledgements_travel_together() -> None:
    async with a_door() as door, a_consumer(door) as consumer:
        send(door, *[b"x"] * 32)
        messages = await consumer.receive()
        before = door.service.counters.stream_requests

        await asyncio.gather(*(consumer.ack(message) for message in messages))

        assert door.service.counters.stream_requests - before == 1
        committed = door.role.projections.offsets.get("g", 1 << 16)
        assert committed is not None
        assert committed.offset == 32


async def test_changed_time_gives_a_new_receipt() -> None:
    async with a_door() as door, a_consumer(door) as consumer:
        send(door, b"x")
        [message] = await consumer.receive()
        changed = await consumer.change_invisible(message, 0)
        [again] = await consumer.receive()

        assert again.attempt == 2
        for old in (message, changed):
            with pytest.raises(ReceiptExpiredError):
                await consumer.ack(old)
        with pytest.raises(ReceiptExpiredError):
            await consumer.change_invisible(message, 10_000)
        await consumer.ack(again)


async def test_closing_gives_back_what_was_never_returned() -> None:
    async with a_door() as door:
        async with a_consumer(door) as consumer:
            receiving = asyncio.gather(consumer.receive())
            await until(lambda: door.service.receipts.waiting_count == 1)
            receiving.cancel()
            send(door, b"x")
            await until(lambda: door.service.receipts.waiting_count == 0)
        async with a_consumer(door) as other:
            [message] = await other.receive(wait_ms=1_000)

            assert (message.body, message.attempt) == (b"x", 1)


async def test_a_receive_that_ended_before_it_was_connected_asks_nothing() -> None:
    async with a_door() as door, a_consumer(door) as consumer:
        receiving = asyncio.gather(consumer.receive())
        await until(lambda: bool(consumer._links._links))
        receiving.cancel()
        [link] = consumer._links._links.values()
        await until(lambda: link.connection is not None)
        await until(lambda: consumer.is_quiet)

        assert door.service.receipts._received == 0


async def test_renewed_messages_stay_invisible_and_their_first_receipt_still_counts() -> None:
    settings = SimpleSettings(auto_renew=True)
    async with a_door() as door, a_consumer(door, settings) as consumer:
        send(door, b"x")
        [message] = await consumer.receive()
        [held] = consumer._renewing._held.values()
        await consumer._renewing._renew(held.renew_at)
        door.clock.advance(59_999)
        async with a_consumer(door) as other:
            assert await other.receive(wait_ms=0) == []
        assert held.handle != message.handle

        await consumer.ack(message)

        door.clock.advance(600_000)
        assert await consumer.receive(wait_ms=0) == []


async def test_what_is_given_back_comes_at_once_and_has_cost_no_attempt() -> None:
    settings = SimpleSettings(auto_renew=True)
    async with a_door() as door, a_consumer(door, settings=settings) as consumer:
        send(door, b"a", b"b")
        first = await consumer.receive(1)

        await consumer.give_back(first)
        again = [message for _ in range(2) for message in await consumer.receive(1)]

        assert sorted(bodies(again)) == [b"a", b"b"]
        assert [message.attempt for message in again] == [1, 1]
        with pytest.raises(ReceiptExpiredError):
            await consumer.ack(first)


async def test_a_renewed_message_is_given_back_by_its_newest_receipt() -> None:
    async with a_door() as door, a_consumer(door, SimpleSettings(auto_renew=True)) as consumer:
        send(door, b"x")
        given = await consumer.receive()
        [held] = consumer._renewing._held.values()
        await consumer._renewing._renew(held.renew_at)

        give_back(consumer, given)

        [again] = await consumer.receive(wait_ms=5_000)
        assert (again.body, again.attempt) == (b"x", 1)


async def test_wrong_use_says_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="invisible_ms"):
        SimpleConsumer("127.0.0.1:1", group="g", settings=SimpleSettings(invisible_ms=1))
    async with a_door() as door, a_consumer(door) as consumer:
        send(door, b"x")
        with pytest.raises(BadRequestError, match="max_messages"):
            await consumer.receive(33)
        with pytest.raises(InvalidReceiptHandleError):
            await consumer.ack("garbage")
    async with a_door() as door:
        settings = SimpleSettings(call_timeout_ms=50)
        async with a_consumer(door, settings, topics=["nowhere"]) as consumer:
            with pytest.raises(TopicNotFoundError):
                await consumer.receive(wait_ms=0)


async def test_a_broadcasting_client_misses_nothing_of_a_topic_that_is_made_again() -> None:
    """Nor of one that comes to another broker group."""
    group = ConsumerGroupName("g")
    model = ConsumerGroupSettings(message_model="broadcasting")
    async with a_door() as door, a_consumer(door) as consumer:
        view = door.service.routes.view
        assert view is not None
        groups = {group: ConsumerGroupView(group=group, settings=model)}
        door.service.view_changed(replace(view, version=3, consumer_groups=groups))
        send(door, b"before")
        assert await consumer.receive(wait_ms=0) == []

        again = replace(view.topics[TopicName("orders")], topic_id=TopicId(99))
        topics = {**view.topics, TopicName("orders"): again}
        changed = replace(view, version=4, consumer_groups=groups, topics=topics, topic_id_max=99)
        door.service.view_changed(changed)
        door.service.sender.send(a_batch(b"first", topic_id=99), Answers(), 0)
        await until(lambda: consumer._cluster.topic("orders") == again)

        assert bodies(await consumer.receive()) == [b"first"]
