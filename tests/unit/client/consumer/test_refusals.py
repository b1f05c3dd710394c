"""A topic loses its read permission while it is read: polls raise, the log says it, both go on.

Brokers refuse what is fetched; nothing of what was fetched before is lost.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.support.client.consumers import eventually, fill
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.group_rules import GROUP, Seen
from tests.support.client.simple import a_consumer, bodies, send
from tests.support.http.door import a_door

from paceline import BlockingPullConsumer
from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.consumer.ordered import OrderedConsumer, OrderedSettings
from paceline.consumer.pull import PullConsumer
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.errors import NoPermissionError, NotAuthorizedError
from paceline.message import ReceivedMessage
from paceline.queues import QueueKey
from paceline.types import TopicName

BOTH, WRITE = 6, 2
Poll = Callable[..., Awaitable[list[ReceivedMessage]]]


@asynccontextmanager
async def pulling(cluster: FakeCluster) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(cluster.controller) as consumer:
        await consumer.subscribe("orders", start="first")
        yield consumer


def lite(cluster: FakeCluster) -> LitePullConsumer:
    settings = LitePullSettings(start="first")
    return LitePullConsumer(cluster.controller, group=GROUP, topics=["orders"], settings=settings)


KINDS: dict[str, Callable[[FakeCluster], Any]] = {"pull": pulling, "lite pull": lite}


async def polled(poll: Poll, count: int) -> list[int]:
    """What polls return until so many have come; a refusal fails the test."""
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await poll(timeout_ms=1_000)
    return sorted(int(message.body) for message in found)


async def refused(poll: Poll) -> str:
    with pytest.raises(NoPermissionError) as raised:
        await poll(timeout_ms=3_000)
    assert raised.value.details == {"topic": "orders"}
    return raised.value.message


@pytest.mark.parametrize("kind", KINDS)
async def test_each_poll_of_a_topic_without_permission_raises_and_later_ones_go_on(
    kind: str,
) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        await fill(cluster, 10)
        async with KINDS[kind](cluster) as consumer:
            assert await polled(consumer.poll, 10) == [*range(10)]

            cluster.alter_topic("orders", perm=WRITE)
            message = await refused(consumer.poll)
            assert "permissions are -W-" in message
            assert "paceline topic alter orders --perm rw" in message
            await fill(cluster, 20, first=10)
            for _ in range(2):
                await refused(consumer.poll)
            # Shorter than the pause between two fetches: it is told all the same.
            with pytest.raises(NoPermissionError):
                await consumer.poll(timeout_ms=20)

            cluster.alter_topic("orders", perm=BOTH)
            await readable(consumer)
            assert await polled(consumer.poll, 10) == [*range(10, 20)]


async def readable(consumer: Any) -> None:
    """The consumer's own view says so: from then on nothing is raised."""
    watch = consumer._cluster.watch
    await watch.wait_for(lambda view: view.topics[TopicName("orders")].can_read, timeout_ms=5_000)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_broker_that_refuses_before_our_view_says_so_is_not_believed_alone(
    kind: str,
) -> None:
    async with FakeCluster() as cluster:
        topic_id = cluster.add_topic("orders", 1)
        cluster.unread.add(topic_id)
        async with KINDS[kind](cluster) as consumer:
            assert await consumer.poll(timeout_ms=300) == []

            cluster.alter_topic("orders", perm=WRITE)  # the view follows
            await refused(consumer.poll)

            cluster.alter_topic("orders", perm=BOTH)
            cluster.unread.clear()
            await readable(consumer)
            await fill(cluster, 5)
            assert await polled(consumer.poll, 5) == [*range(5)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_loop_that_polls_again_at_once_leaves_the_event_loop_time(kind: str) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with KINDS[kind](cluster) as consumer:
            cluster.alter_topic("orders", perm=WRITE)
            loop = asyncio.get_running_loop()
            end = loop.time() + 1.5
            raised = 0
            while loop.time() < end:
                try:
                    await consumer.poll(timeout_ms=5_000)
                except NoPermissionError:
                    raised += 1
            assert 1 <= raised <= 4


async def test_a_topic_that_is_read_beside_it_goes_on() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("shut", 1)
        cluster.add_topic("orders", 1)
        cluster.alter_topic("shut", perm=WRITE)
        await fill(cluster, 50)
        async with PullConsumer(cluster.controller) as consumer:
            names = [*await consumer.queues("shut"), *await consumer.queues("orders")]
            await consumer.assign(dict.fromkeys(names, 0))
            found = 0
            refusals: list[NoPermissionError] = []
            async with asyncio.timeout(10):
                while found < 50 or not refusals:
                    try:
                        found += len(await consumer.poll(max_messages=7))
                    except NoPermissionError as error:
                        refusals.append(error)
            assert {str(error.details["topic"]) for error in refusals} == {"shut"}
            # Who reads it no more hears no more of it.
            await consumer.assign({names[1]: 50})
            assert await consumer.poll(timeout_ms=1_500) == []


async def test_a_paused_queue_raises_nothing() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with lite(cluster) as consumer:
            cluster.alter_topic("orders", perm=WRITE)
            await refused(consumer.poll)
            consumer.pause()
            assert await consumer.poll(timeout_ms=1_500) == []
            consumer.resume()
            await refused(consumer.poll)


async def test_a_blocking_pull_raises_and_goes_on() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 3)
        cluster.alter_topic("orders", perm=WRITE)

        def opened() -> BlockingPullConsumer:
            consumer = BlockingPullConsumer(cluster.controller)
            consumer.subscribe("orders", start="first")
            return consumer

        consumer = await asyncio.to_thread(opened)
        try:
            with pytest.raises(NoPermissionError):
                await asyncio.to_thread(consumer.poll, timeout_ms=3_000)
            cluster.alter_topic("orders", perm=BOTH)

            def polled_bodies() -> list[bytes]:
                found: list[bytes] = []
                while len(found) < 3:
                    try:
                        found += [message.body for message in consumer.poll(timeout_ms=500)]
                    except NoPermissionError:  # its view is a moment behind
                        continue
                return found

            assert await asyncio.to_thread(polled_bodies) == [b"0", b"1", b"2"]
        finally:
            await asyncio.to_thread(consumer.close)


PUSHES: dict[str, Callable[[str, Any], Any]] = {
    "push": lambda at, listen: PushConsumer(
        at, group=GROUP, topics=["orders"], listener=listen, settings=PushSettings(start="first")
    ),
    "ordered": lambda at, listen: OrderedConsumer(
        at,
        group=GROUP,
        topics=["orders"],
        listener=listen,
        settings=OrderedSettings(start="first"),
    ),
}


@pytest.mark.parametrize("kind", PUSHES)
async def test_a_push_consumer_says_it_once_for_each_change_and_goes_on(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="paceline.client")
    seen = Seen()

    def told(event: str) -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.msg == event]

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        await fill(cluster, 10)
        async with PUSHES[kind](cluster.controller, seen.listen):
            await eventually(lambda: seen.has(10))
            for change in (1, 2):
                cluster.alter_topic("orders", perm=WRITE)
                await eventually(lambda: len(told("topic_not_readable")) == change)  # noqa: B023
                await fill(cluster, 10 + 10 * change, first=10 * change)
                assert seen.has(10 * change)
                cluster.alter_topic("orders", perm=BOTH)
                await eventually(lambda: seen.has(10 + 10 * change))  # noqa: B023
                assert len(told("topic_readable_again")) == change

        assert len(told("topic_not_readable")) == 2, "both queues were refused, several times"
        record = told("topic_not_readable")[0]
        assert record.levelno == logging.WARNING
        fields = record.__dict__
        assert (fields["topic"], fields["why"]) == ("orders", "its permissions are -W-")
        assert "paceline topic alter orders --perm rw" in fields["what_to_do"]


async def test_a_receive_of_a_topic_without_permission_raises_and_a_later_one_goes_on() -> None:
    async with a_door() as door, a_consumer(door) as consumer:
        send(door, b"a")
        view = door.service.routes.view
        assert view is not None
        topic = view.topics[TopicName("orders")]
        shut = {**view.topics, topic.topic: replace(topic, perm=WRITE)}
        door.service.view_changed(replace(view, version=view.version + 1, topics=shut))

        with pytest.raises(NoPermissionError, match="orders gives no messages"):
            await consumer.receive(wait_ms=100)

        door.service.view_changed(replace(view, version=view.version + 2))
        assert bodies(await consumer.receive()) == [b"a"]


@pytest.mark.parametrize("kind", [PushConsumer, OrderedConsumer])
async def test_a_consumer_without_polls_tells_its_application_which_right_it_lacks(
    kind: type[PushConsumer] | type[OrderedConsumer],
) -> None:
    told: list[tuple[QueueKey | None, str]] = []
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 1)
        cluster.group_calls.heartbeat_refusal = NotAuthorizedError("ana may not Sub on Group:g")
        seen = Seen()
        settings: Any = PushSettings if kind is PushConsumer else OrderedSettings
        consumer = kind(
            cluster.controller,
            group=GROUP,
            topics=["orders"],
            listener=seen.listen,
            settings=settings(start="first"),
            on_error=lambda key, error: told.append((key, error.message)),
        )
        async with consumer:
            await eventually(lambda: bool(told))
            cluster.group_calls.heartbeat_refusal = None
            await eventually(lambda: seen.has(1))

    assert told == [(None, "ana may not Sub on Group:g")]
