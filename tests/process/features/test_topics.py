"""Real processes: a topic shrinks and grows while it is used and its master is killed; topics and
groups make themselves; permissions and types are kept."""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.process.harness import RunningCluster, eventually, running_cluster, the_master
from tests.support.process.topics import cli

from paceline.admin.client import AdminClient
from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.consumer.pull import PullConsumer
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.consumer.simple import SimpleConsumer
from paceline.errors import (
    CommandRefusedError,
    ForbiddenError,
    MessageTypeError,
    NoPermissionError,
)
from paceline.message import Message, ReceivedMessage
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.producer.producer import Producer
from paceline.queues import QueueName

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

TOPIC, GROUP = "parcels", "porters"
Way = Callable[..., Awaitable[Sequence[ReceivedMessage | PoppedMessage]]]


class Load:
    """Numbered messages, with keys and without, until it is stopped; every send must succeed."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.places: dict[int, tuple[int, int]] = {}
        self.is_over = False

    async def run(self, worker: int) -> None:
        number = worker
        while not self.is_over:
            key = f"k{number % 7}" if number % 2 else None
            result = await self.producer.send(Message(TOPIC, b"%d" % number, key=key))
            assert result.queue_offset is not None
            self.places[number] = (result.queue_id, result.queue_offset)
            number += 4


async def test_a_topic_shrinks_and_grows_in_use_across_a_failover(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: Counter[int] = Counter()

    async def listen(message: ReceivedMessage) -> None:
        seen[int(message.body)] += 1

    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            await admin.topics.create(TOPIC, queues=4)
            load = Load(producer)
            workers = [spawn(load.run(worker), name=f"load-{worker}") for worker in range(4)]
            await eventually(lambda: has(load, 200), what="some messages")

            await asyncio.to_thread(
                cli, cluster, capsys, "topic", "alter", TOPIC, "--write-queues", "2"
            )
            cluster.send_signal(await the_master(cluster), signal.SIGKILL)
            before = len(load.places)
            await eventually(lambda: has(load, before + 200), what="more messages")

            with pytest.raises(CommandRefusedError) as refused:
                await admin.topics.alter(TOPIC, read_queues=2)
            assert refused.value.details["reason"] == "UNREAD_MESSAGES"

            settings = PushSettings(start="first", commit_interval_ms=100)
            async with PushConsumer(
                cluster.bootstrap, group=GROUP, topics=[TOPIC], listener=listen, settings=settings
            ):
                shrunk = await eventually(lambda: shrinks(admin), what="all to be drained")
                assert dict(shrunk.queues) == {"g1": 2}
                ends = {queue: ended_at(load, queue) for queue in (2, 3)}
                late = set(load.places)

                await admin.topics.alter(TOPIC, queues=4)
                await eventually(lambda: is_used_again(load, late), what="queues 2 and 3")
                load.is_over = True
                await asyncio.gather(*workers)
                await eventually(
                    lambda: all_seen(load, seen), what="all messages", within_ms=30_000
                )
            await cancel_and_wait(*workers)

            again = [place for number, place in load.places.items() if number not in late]
            for queue, end in ends.items():
                first = min(at for on, at in again if on == queue)
                assert first >= end, "offsets go on where the queue ended"
            assert len(set(load.places.values())) == len(load.places), "each place once"
            assert len(await everything(cluster)) == len(load.places), "nothing stored twice"
            # It consumed, so the group is on record, with its topics.
            assert (await admin.consumer_groups.get(GROUP)).settings.retry_max_times == 16
            assert (await admin.topics.get(f"%RETRY%{GROUP}")).is_system


def ended_at(load: Load, queue: int) -> int:
    return 1 + max(at for on, at in load.places.values() if on == queue)


async def has(load: Load, count: int) -> bool:
    return len(load.places) >= count


async def shrinks(admin: AdminClient) -> Any:
    try:
        return await admin.topics.alter(TOPIC, read_queues=2)
    except CommandRefusedError as error:
        if error.details["reason"] != "UNREAD_MESSAGES":
            raise
        return None


async def is_used_again(load: Load, late: set[int]) -> bool:
    used = {on for number, (on, _) in load.places.items() if number not in late}
    return {2, 3} <= used


async def all_seen(load: Load, seen: Counter[int]) -> bool:
    return set(load.places) <= set(seen)


async def everything(cluster: RunningCluster) -> list[ReceivedMessage]:
    async with PullConsumer(cluster.bootstrap) as reader:
        ranges = await reader.ranges(await reader.queues(TOPIC))
        await reader.assign({name: found.start for name, found in ranges.items()})
        count = sum(found.end - found.start for found in ranges.values())
        messages: list[ReceivedMessage] = []
        while len(messages) < count:
            messages += await reader.poll(timeout_ms=5_000)
    return messages


async def test_readers_hear_of_a_permission_that_was_taken_and_go_on_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Taken, kept across a failover, given back: polls and receives raise meanwhile, push logs."""
    pushed: set[bytes] = set()
    warned: list[str] = []

    async def listen(message: ReceivedMessage) -> None:
        pushed.add(message.body)

    async def has_pushed(count: int) -> bool:
        return len(pushed) == count

    async def is_warned() -> bool:
        warned[:] = [record.message for record in caplog.records]
        return "topic_not_readable" in warned

    with running_cluster(tmp_path / "data", restart=True) as cluster:
        at = cluster.bootstrap
        push_settings = PushSettings(start="first")
        lite_settings = LitePullSettings(start="first")
        async with AdminClient(at) as admin, Producer(at) as producer:
            await admin.topics.create(TOPIC, queues=2)
            async with (
                PullConsumer(at) as pull,
                LitePullConsumer(at, group="lite", topics=[TOPIC], settings=lite_settings) as lite,
                SimpleConsumer(at, group="simple", topics=[TOPIC]) as simple,
                PushConsumer(
                    at, group=GROUP, topics=[TOPIC], listener=listen, settings=push_settings
                ),
            ):
                await pull.subscribe(TOPIC)

                ways: dict[str, Way] = {
                    "pull": pull.poll,
                    "lite pull": lite.poll,
                    "simple": receiving(simple),
                }

                await producer.send_many([Message(TOPIC, b"%d" % n) for n in range(10)])
                await read_by_all(ways, {b"%d" % n for n in range(10)})
                await eventually(lambda: has_pushed(10), what="the listener to have all")

                await admin.topics.alter(TOPIC, perm=2)
                await eventually(is_warned, what="a warning")
                await producer.send_many([Message(TOPIC, b"%d" % n) for n in range(10, 20)])
                await all_are_refused(ways)
                cluster.send_signal(await the_master(cluster), signal.SIGKILL)
                await the_master(cluster)  # the next one
                await all_are_refused(ways)
                assert len(pushed) == 10

                await admin.topics.alter(TOPIC, perm=6)
                await read_by_all(ways, {b"%d" % n for n in range(10, 20)})
                await eventually(lambda: has_pushed(20), what="the listener to have all")


async def got(way: Way, count: int) -> set[bytes]:
    """Bodies of the next messages, each once; views may be a moment behind a permission."""
    found: list[bytes] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            try:
                found += [message.body for message in await way(timeout_ms=1_000)]
            except NoPermissionError:
                continue
    assert len(found) == count
    return set(found)


async def read_by_all(ways: dict[str, Way], bodies: set[bytes]) -> None:
    for name, way in ways.items():
        assert await got(way, len(bodies)) == bodies, name


async def all_are_refused(ways: dict[str, Way]) -> None:
    """With NoPermissionError, once all have heard of it; no message comes before."""
    for name, way in ways.items():
        async with asyncio.timeout(30):
            while not await is_refused(way, name):
                pass


async def is_refused(way: Way, name: str) -> bool:
    try:
        assert not await way(timeout_ms=1_000), name
    except NoPermissionError:
        return True
    return False


def receiving(simple: SimpleConsumer) -> Way:
    async def receive(*, timeout_ms: int) -> list[PoppedMessage]:
        messages = await simple.receive(wait_ms=timeout_ms)
        await simple.ack(messages)
        return messages

    return receive


async def test_topics_and_groups_are_managed_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> list[Any]:
        return cli(cluster, capsys, *words)

    with running_cluster(tmp_path / "data") as cluster:
        async with AdminClient(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            made = await producer.send(Message("sent-first", b"x"))
            topic = await admin.topics.get("sent-first")
            assert (topic.message_type, sum(topic.queues.values())) == ("MIXED", 8)

            [described] = await asyncio.to_thread(
                run, "topic", "alter", "sent-first", "--perm", "r", "--attribute", "owner=me"
            )
            assert (described["perm"], described["attributes"]) == (4, {"owner": "me"})
            cluster.send_signal(await the_master(cluster), signal.SIGKILL)
            await the_master(cluster)  # the next one
            with pytest.raises(NoPermissionError):
                await producer.send(Message("sent-first", b"x"))
            async with PullConsumer(cluster.bootstrap) as reader:
                name = QueueName(topic.topic, made.group, made.queue_id)
                await reader.assign({name: 0})
                assert [message.body for message in await reader.poll(timeout_ms=5_000)] == [b"x"]

            await asyncio.to_thread(run, "topic", "create", "ordered", "--message-type", "FIFO")
            with pytest.raises(MessageTypeError):
                await producer.send(Message("ordered", b"x"))
            await producer.send(Message("ordered", b"x", key="k"))

            [group] = await asyncio.to_thread(
                run, "group", "create", GROUP, "--set", "retry_max_times=3"
            )
            [altered] = await asyncio.to_thread(
                run, "group", "alter", GROUP, "--set", "consume_enable=false"
            )
            assert group["settings"]["retry_max_times"] == 3
            assert altered["settings"] == {**group["settings"], "consume_enable": False}
            [listed] = await asyncio.to_thread(run, "group", "list")
            assert listed == altered
            system = await asyncio.to_thread(run, "topic", "list", "--system")
            assert {f"%RETRY%{GROUP}", f"%DLQ%{GROUP}", "TRANS_CHECK_MAX_TIME_TOPIC"} <= {
                row["topic"] for row in system
            }
            with pytest.raises(ForbiddenError):
                await admin.topics.create(f"%RETRY%{GROUP}")
            await asyncio.to_thread(run, "group", "delete", GROUP, "--yes")
            assert await asyncio.to_thread(run, "group", "list") == []
