"""Hooks of applications: called once for each batch and listener call, and never in the way."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest
from tests.support.client.consumers import fill
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.fake_log import NO_FAULT, Fault
from tests.support.client.simple import lead, send
from tests.support.http.door import a_door

from paceline.consumer.hooks import ConsumeContext, ConsumeHooks
from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.consumer.settings.simple import SimpleSettings
from paceline.consumer.simple import SimpleConsumer
from paceline.errors import (
    CorruptBatchError,
    ForbiddenError,
    NotYetAvailableError,
    PacelineError,
)
from paceline.message import Message, ReceivedMessage
from paceline.producer.hooks import SendContext
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings


class Watching:
    """Notes what it is told, and fails if asked to."""

    def __init__(self, *, raises: bool = False) -> None:
        self.notes: list[tuple[Any, ...]] = []
        self.raises = raises

    def before_send(self, context: SendContext) -> None:
        context.state["seen"] = context.count
        self.notes.append(("before", context.topic, context.count, context.is_oneway))
        if self.raises:
            raise LookupError("a bug of the hook")

    def after_send(self, context: SendContext) -> None:
        error = context.error
        outcome = context.queue_offset if error is None else error.code
        self.notes.append(("after", context.state["seen"], outcome, context.attempts))
        if self.raises:
            raise LookupError("a bug of the hook")

    def before_consume(self, context: ConsumeContext) -> None:
        self.notes.append(("before", context.consumer_group, len(context.messages)))
        if self.raises:
            raise LookupError("a bug of the hook")

    def after_consume(self, context: ConsumeContext) -> None:
        self.notes.append(("after", context.done_count, repr(context.error)))
        if self.raises:
            raise LookupError("a bug of the hook")


class OnlyTea:
    def check_forbidden(self, message: Message) -> None:
        if message.body == b"bug":
            raise LookupError("a bug of the check")
        if message.body != b"tea":
            raise ForbiddenError("we serve tea only")


async def test_send_hooks_are_called_once_a_batch_around_all_its_attempts() -> None:
    hook = Watching()
    faults = [
        Fault(refuse=NotYetAvailableError("epoch not open")),
        Fault(drop_after=True),
    ]
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        settings = ProducerSettings(group="waiters", send_hooks=(hook,))
        async with Producer(cluster.controller, settings=settings) as producer:
            cluster.fault = lambda broker, header: faults.pop(0) if faults else NO_FAULT
            await producer.send_many([Message("orders", b"a"), Message("orders", b"b")])
            cluster.fault = lambda broker, header: Fault(refuse=CorruptBatchError("crc"))
            with pytest.raises(CorruptBatchError):
                await producer.send(Message("orders", b"c"))

    assert hook.notes == [
        ("before", "orders", 2, False),
        ("after", 2, 0, 3),
        ("before", "orders", 1, False),
        ("after", 1, "CORRUPT_BATCH", 1),
    ]


async def test_a_batch_that_never_leaves_is_no_business_of_hooks() -> None:
    hook = Watching()
    settings = ProducerSettings(delivery_timeout_ms=60, request_timeout_ms=60, send_hooks=(hook,))
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        cluster.elect("g1", None)
        async with Producer(cluster.controller, settings=settings) as producer:
            with pytest.raises(PacelineError):
                await producer.send(Message("orders", b"x"))

    assert hook.notes == []


async def test_a_hook_that_fails_is_counted_and_loses_nothing() -> None:
    first, second = Watching(raises=True), Watching()
    settings = ProducerSettings(send_hooks=(first, second))
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller, settings=settings) as producer:
            await producer.send(Message("orders", b"x"))
            producer.send_oneway(Message("orders", b"y"))
            await producer.flush()
            errors = producer.hook_errors

    assert cluster.bodies() == [b"x", b"y"]
    assert errors == 4
    assert [note[0] for note in second.notes] == ["before", "after"] * 2
    assert second.notes[2] == ("before", "orders", 1, True)


async def test_a_check_refuses_every_way_to_send_and_one_that_fails_refuses_too() -> None:
    settings = ProducerSettings(forbidden_hooks=(OnlyTea(),))
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller, settings=settings) as producer:
            await producer.send(Message("orders", b"tea"))
            coffee = Message("orders", b"coffee")
            for refused in (
                lambda: producer.send(coffee),
                lambda: producer.send_nowait(coffee),
                lambda: producer.send_many([Message("orders", b"tea"), coffee]),
                lambda: producer.send_batch([coffee]),
                lambda: producer.send_bodies("orders", [b"coffee"]),
                lambda: producer.send_oneway(coffee),
            ):
                with pytest.raises(ForbiddenError, match="tea only"):
                    refused()
            with pytest.raises(ForbiddenError, match="a bug of the check"):
                producer.send(Message("orders", b"bug"))

    assert cluster.bodies() == [b"tea"]


def a_message(offset: int) -> ReceivedMessage:
    return ReceivedMessage("orders", "g1", 0, offset, b"x", None, "", {}, 1, 2)


@pytest.mark.parametrize("raises", [False, True])
async def test_consume_hooks_see_each_listener_call_and_what_became_of_it(raises: bool) -> None:
    hook = Watching(raises=raises)
    hooks = ConsumeHooks((hook,), consumer_group="readers")
    answers: list[int | None | Exception] = [None, 1, ValueError("no")]

    async def listen(messages: Sequence[ReceivedMessage]) -> int | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    run = hooks.around(listen)
    assert await run([a_message(0), a_message(1)]) is None
    assert await run([a_message(2), a_message(3)]) == 1
    with pytest.raises(ValueError, match="no"):
        await run([a_message(3)])

    assert hook.notes == [
        ("before", "readers", 2),
        ("after", 2, "None"),
        ("before", "readers", 2),
        ("after", 1, "None"),
        ("before", "readers", 1),
        ("after", 0, "ValueError('no')"),
    ]
    assert hooks.errors == (6 if raises else 0)


async def test_without_hooks_the_listener_is_called_as_it_is() -> None:
    async def listen(messages: Sequence[ReceivedMessage]) -> int | None:
        return None

    assert ConsumeHooks((), consumer_group="readers").around(listen) is listen


@pytest.mark.parametrize("raises", [False, True])
async def test_a_lite_pull_consumer_tells_of_each_queues_part_of_a_poll(raises: bool) -> None:
    hook = Watching(raises=raises)
    settings = LitePullSettings(start="first", consume_hooks=(hook,))
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        await fill(cluster, 10)
        consumer = LitePullConsumer(
            cluster.controller, group="readers", topics=["orders"], settings=settings
        )
        parts: list[tuple[int, int]] = []
        async with consumer:
            while sum(count for _, count in parts) < 10:
                polled = await consumer.poll(max_messages=7)
                for queue_id, part in groupby(polled, key=lambda message: message.queue_id):
                    parts.append((queue_id, len(list(part))))
            assert await consumer.poll(timeout_ms=1) == []
            errors = consumer.hooks.errors

    assert {queue_id for queue_id, _ in parts} == {0, 1}
    assert hook.notes == [
        note
        for _, count in parts
        for note in (("before", "readers", count), ("after", count, "None"))
    ]
    assert errors == (len(hook.notes) if raises else 0)


@pytest.mark.parametrize("raises", [False, True])
async def test_a_simple_consumer_tells_of_what_a_receive_hands_out(raises: bool) -> None:
    hook = Watching(raises=raises)
    settings = SimpleSettings(consume_hooks=(hook,))
    async with a_door() as door:
        consumer = SimpleConsumer(lead(door), group="g", topics=["orders"], settings=settings)
        async with consumer:
            send(door, b"a", b"b", b"c")
            first = await consumer.receive(2)
            await consumer.ack(first)
            [last] = await consumer.receive(2)
            await consumer.change_invisible(last, 10_000)
            assert await consumer.receive(wait_ms=0) == []
            errors = consumer.hooks.errors

    assert [message.body for message in (*first, last)] == [b"a", b"b", b"c"]
    assert hook.notes == [
        ("before", "g", 2),
        ("after", 2, "None"),
        ("before", "g", 1),
        ("after", 1, "None"),
    ]
    assert errors == (4 if raises else 0)
