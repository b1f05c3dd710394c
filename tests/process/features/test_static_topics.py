"""Real processes: logical queues move between two broker groups under load, back and forth, while
masters are killed in the middle of a move; and what a group without a master has stays there."""

import asyncio
import signal
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.process.harness import RunningCluster, eventually, running_cluster, the_master
from tests.support.process.ordered import NUMBERS, SETTINGS, several_producers
from tests.support.process.topics import cli

from paceline.admin.client import AdminClient
from paceline.consumer.ordered import OrderedConsumer
from paceline.consumer.pull import PullConsumer
from paceline.errors import DeadlineError
from paceline.message import Message, ReceivedMessage
from paceline.producer.producer import Producer
from paceline.queues import index_of_key
from paceline.wire.cluster import TopicView
from paceline.wire.topics import FIFO

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

TOPIC, LOGICAL_QUEUES = "orders", 4


class Seen:
    """What an ordered consumer was given: keys' numbers, and logical offsets of each queue."""

    def __init__(self) -> None:
        self.numbers: defaultdict[int, list[int]] = defaultdict(list)
        self.offsets: defaultdict[int, list[int]] = defaultdict(list)

    async def listen(self, message: ReceivedMessage) -> None:
        assert message.logical_queue is not None
        assert message.logical_offset is not None
        key, number = divmod(int(message.body), NUMBERS)
        self.numbers[key].append(number)
        self.offsets[message.logical_queue].append(message.logical_offset)
        assert message.logical_queue == index_of_key(b"key-%d" % key, LOGICAL_QUEUES)

    async def more(self) -> None:
        """Wait for 100 messages more."""
        before = self._count

        async def have_come() -> bool:
            return self._count > before + 100

        await eventually(have_come, within_ms=30_000, what="more messages")

    @property
    def _count(self) -> int:
        return sum(len(numbers) for numbers in self.numbers.values())


async def moved(admin: AdminClient, number: int, group: str) -> TopicView:
    await admin.topics.remap_queue(TOPIC, number, group)
    return await admin.topics.wait_remapped(TOPIC, number, group, timeout_ms=30_000)


async def test_logical_queues_move_in_use_and_keep_every_message_and_its_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Seen()
    with running_cluster(tmp_path / "data", "--groups", "2", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            made = await admin.topics.create(
                TOPIC, logical_queues=LOGICAL_QUEUES, message_type=FIFO
            )
            assert [one.last.group for one in made.logical_queues] == ["g1", "g2", "g1", "g2"]
            consumer = OrderedConsumer(
                cluster.bootstrap,
                group="audit",
                topics=[TOPIC],
                listener=seen.listen,
                settings=SETTINGS,
            )
            async with consumer, several_producers(cluster) as sent:
                await seen.more()
                for group in ("g2", "g1", "g2"):  # there, back, and there again
                    await moved(admin, 0, group)
                    await moved(admin, 1, "g1" if group == "g2" else "g2")
                    await seen.more()
                await masters_die(cluster, admin)
                await seen.more()
                sent.over.set()

                async def all_seen() -> bool:
                    return all(len(set(seen.numbers[key])) >= sent[key] for key in sent)

                async def caught_up() -> list[dict[str, Any]] | None:
                    rows = await admin.consumer_groups.lag("audit")
                    return None if sum(row["lag"] for row in rows) else rows

                await eventually(all_seen, within_ms=30_000, what="every message")
                lag = await eventually(caught_up, what="all of it committed")
            (shown,) = await asyncio.to_thread(cli, cluster, capsys, "topic", "describe", TOPIC)
            topic = await admin.topics.get(TOPIC)
            stored = await everything(cluster)

    for key, count in sent.items():
        assert first_time(seen.numbers[key]) == list(range(count)), f"key {key}"
    for offsets in seen.offsets.values():
        assert first_time(offsets) == list(range(max(offsets) + 1))
    check_stored(topic, stored, sent)
    assert shown["logical_queues"] == [one.to_json() for one in topic.logical_queues]
    assert {row["logical_queue"] for row in lag} == set(range(LOGICAL_QUEUES))


async def masters_die(cluster: RunningCluster, admin: AdminClient) -> None:
    """In the middle of a move: first the one that is to seal; the next one seals, or tells of the
    seal. Then the one of the group that the queue goes to."""
    for victim, target in (("g1", "g2"), ("g1", "g1")):
        master = await the_master(cluster, victim)
        await admin.topics.remap_queue(TOPIC, 2, target)
        cluster.send_signal(master, signal.SIGKILL)
        await admin.topics.wait_remapped(TOPIC, 2, target, timeout_ms=30_000)


def check_stored(topic: TopicView, stored: "Stored", sent: dict[int, int]) -> None:
    """Segments fit together; nothing is stored twice or after a seal; producers' order holds."""
    assert [len(one.segments) for one in topic.logical_queues] == [4, 4, 3, 1]
    found: defaultdict[int, list[int]] = defaultdict(list)
    for logical in topic.logical_queues:
        for one, after in pairwise(logical.segments):
            assert one.end == after.start
        for segment in logical.segments:
            part = stored.get((segment.group, segment.queue_id), [])
            assert segment.sealed_end in (None, len(part)), segment
            for message in part:
                key, number = divmod(int(message.body), NUMBERS)
                found[key].append(number)
    assert found == {key: list(range(count)) for key, count in sent.items()}


def first_time(values: list[int]) -> list[int]:
    """Without what was given again after a failover."""
    return list(dict.fromkeys(values))


Stored = dict[tuple[str, int], list[ReceivedMessage]]


async def everything(cluster: RunningCluster) -> Stored:
    """All that is stored, by broker group and queue."""
    async with PullConsumer(cluster.bootstrap) as reader:
        ranges = await reader.ranges(await reader.queues(TOPIC))
        await reader.assign({name: found.start for name, found in ranges.items()})
        count = sum(found.end - found.start for found in ranges.values())
        messages: list[ReceivedMessage] = []
        while len(messages) < count:
            messages += await reader.poll(timeout_ms=5_000)
    stored: Stored = {}
    for message in sorted(messages, key=lambda message: message.queue_offset):
        part = stored.setdefault((message.group, message.queue_id), [])
        assert message.queue_offset == len(part)
        part.append(message)
    return stored


async def test_a_group_without_a_master_keeps_its_queue_until_it_has_one_again(
    tmp_path: Path,
) -> None:
    """No remap is forced: what lies there, acknowledged, would be passed over."""
    options = ("--groups", "2", "--brokers", "1", "--controllers", "1")
    with running_cluster(tmp_path / "data", *options) as cluster:
        async with AdminClient(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            await admin.topics.create(TOPIC, logical_queues=2)
            key = next(k for k in map(str, range(9)) if index_of_key(k.encode(), 2) == 0)
            for number in range(3):
                result = await producer.send(Message(TOPIC, b"%d" % number, key=key))
            assert (result.group, result.queue_offset) == ("g1", 2)
            alone = await the_master(cluster, "g1")
            with cluster.paused(alone):
                await admin.topics.remap_queue(TOPIC, 0, "g2")
                with pytest.raises(DeadlineError):
                    await admin.topics.wait_remapped(TOPIC, 0, "g2", timeout_ms=1500)
                assert (await admin.topics.get(TOPIC)).logical_queues[0].moving_to == "g2"

            topic = await admin.topics.wait_remapped(TOPIC, 0, "g2", timeout_ms=30_000)

            assert [one.end for one in topic.logical_queues[0].segments] == [3, None]
            result = await producer.send(Message(TOPIC, b"3", key=key))
            assert (result.group, result.queue_offset) == ("g2", 0)
