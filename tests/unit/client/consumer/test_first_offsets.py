"""Where a group that starts "last" begins on queues that came after it had subscribed."""

from typing import Any

import pytest
from tests.support.client.consumers import committed, eventually, fill
from tests.support.client.fake_calls import JOINED_UNIX_MS
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.group_rules import publish

from paceline.consumer.lite_pull import LitePullConsumer
from paceline.consumer.offsets.start_positions import StartPosition, StartPositions
from paceline.consumer.ordered import OrderedConsumer, OrderedSettings
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.message import ReceivedMessage
from paceline.platform.disk_memory import MemoryDisk
from paceline.queues import QueueKey
from paceline.records.encode import encode_batch
from paceline.records.header import parse_header
from paceline.types import GroupName
from paceline.wire.consumer_groups import ConsumerGroupSettings

PUSH = PushSettings(commit_interval_ms=20)
BROADCASTING = PushSettings(
    message_model="broadcasting",
    commit_interval_ms=10,
    persist_interval_ms=20,
    offsets_folder="/home/offsets",
)
FROM_A_TIME = PushSettings(start="timestamp", commit_interval_ms=20)
ORDERED = OrderedSettings(commit_interval_ms=20)


class Member:
    """Notes what it is handed."""

    def __init__(
        self,
        cluster: FakeCluster,
        settings: PushSettings | OrderedSettings = PUSH,
        *,
        disk: MemoryDisk | None = None,
        name: str = "a",
    ) -> None:
        self.seen: list[int] = []
        self.consumer: PushConsumer | OrderedConsumer
        fields: dict[str, Any] = {"group": "audit", "topics": ["orders"], "client_id": name}
        fields |= {"listener": self._listen, "settings": settings}
        if isinstance(settings, OrderedSettings):
            self.consumer = OrderedConsumer(cluster.controller, **fields)
        else:
            disk = disk or MemoryDisk()
            self.consumer = PushConsumer(cluster.controller, disk=disk, **fields)

    async def _listen(self, message: ReceivedMessage) -> None:
        self.seen.append(int(message.body))


def store(cluster: FakeCluster, queue: int, *numbers: int, group: str = "g1") -> None:
    """Acknowledged before anybody could open the queue."""
    batch = encode_batch(
        [b"%d" % number for number in numbers], born_unix_ms=1, topic_id=1, queue_id=queue
    )
    cluster.logs[group].put(batch, parse_header(batch), 1)


def grow(cluster: FakeCluster, queues: int) -> None:
    cluster.alter_topic("orders", queues={GroupName("g1"): queues})


@pytest.mark.parametrize("settings", [PUSH, ORDERED, BROADCASTING])
async def test_a_queue_that_comes_to_a_running_group_is_read_from_its_first_message(
    settings: PushSettings | OrderedSettings,
) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        store(cluster, 0, 1, 2)
        member = Member(cluster, settings)
        async with member.consumer:
            await eventually(lambda: len(member.consumer.queues) == 1)
            grow(cluster, 2)
            store(cluster, 1, 3, 4)
            await eventually(lambda: len(member.consumer.queues) == 2)
            store(cluster, 1, 5)
            await eventually(lambda: 5 in member.seen)

    assert member.seen == [3, 4, 5]


@pytest.mark.parametrize("settings", [PUSH, ORDERED])
async def test_a_reset_before_the_first_commit_of_a_member_holds(
    settings: PushSettings | OrderedSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reset comes after the member's question where the queue ends (R33)."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        store(cluster, 0, 1, 2)
        offset_of = StartPositions.offset_of

        async def reset_meanwhile(
            starts: StartPositions, key: QueueKey, start: StartPosition
        ) -> int:
            found = await offset_of(starts, key, start)
            if starts._cluster.topic_name(key.topic_id) == "orders":
                cluster.group_calls.reset(cluster.brokers[("g1", 1)], "audit", (1, 0), 0)
            return found

        monkeypatch.setattr(StartPositions, "offset_of", reset_meanwhile)
        member = Member(cluster, settings)
        async with member.consumer:
            await eventually(lambda: committed(cluster) == 2)

    assert member.seen == [1, 2]


async def test_a_topic_that_comes_after_its_subscription_is_read_from_its_first_message() -> None:
    async with FakeCluster() as cluster:
        member = Member(cluster)
        async with member.consumer:
            cluster.add_topic("orders", 1)
            store(cluster, 0, 1, 2)
            await eventually(lambda: len(member.consumer.queues) == 1)
            store(cluster, 0, 3)
            await eventually(lambda: 3 in member.seen)

    assert sorted(member.seen) == [1, 2, 3]


async def test_a_group_without_consume_from_min_begins_at_the_end_of_new_queues_too() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        publish(cluster, ConsumerGroupSettings(consume_from_min_enable=False))
        member = Member(cluster)
        async with member.consumer:
            await eventually(lambda: len(member.consumer.queues) == 1)
            grow(cluster, 2)
            store(cluster, 1, 3, 4)
            await eventually(lambda: len(member.consumer.queues) == 2)
            store(cluster, 1, 5)
            await eventually(lambda: 5 in member.seen)

    assert member.seen == [5]


async def test_a_new_group_begins_at_the_end_of_each_queue_whoever_opens_the_first() -> None:
    """That the group has committed on one queue does not make the others younger than it."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        store(cluster, 0, 1, 2)
        store(cluster, 1, 3, 4)
        cluster.logs["g1"].offsets[("audit", 1, 0)] = (2, 0)  # by another member, just before
        member = Member(cluster)
        async with member.consumer:
            await eventually(lambda: len(member.consumer.queues) == 2)
            assert committed(cluster, 1) == 2
            store(cluster, 1, 5)
            await eventually(lambda: 5 in member.seen)

    assert member.seen == [5]


@pytest.mark.parametrize("settings", [PUSH, ORDERED, FROM_A_TIME])
async def test_a_queue_that_came_while_no_member_ran_is_read_from_its_first_message(
    settings: PushSettings | OrderedSettings,
) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        store(cluster, 0, 1, 2)
        cluster.group_calls.told_at_time = 2
        first = Member(cluster, settings)
        async with first.consumer:
            await eventually(lambda: committed(cluster) == 2)
        grow(cluster, 2)
        store(cluster, 1, 3, 4)
        again = Member(cluster, settings)
        async with again.consumer:
            await eventually(lambda: len(again.seen) == 2)

    assert first.seen == []
    assert again.seen == [3, 4]


async def test_a_lite_pull_member_reads_queues_that_came_while_it_was_stopped() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        store(cluster, 0, 1, 2)
        async with LitePullConsumer(cluster.controller, group="audit", topics=["orders"]):
            await eventually(lambda: committed(cluster) == 2)
        grow(cluster, 2)
        store(cluster, 1, 3, 4)
        seen: list[int] = []
        async with LitePullConsumer(
            cluster.controller, group="audit", topics=["orders"]
        ) as consumer:
            while len(seen) < 2:
                seen += [int(message.body) for message in await consumer.poll()]

    assert seen == [3, 4]


async def test_a_broker_group_that_came_while_no_member_ran_is_read_from_when_the_group_began() -> (
    None
):
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", {"g1": 1})
        first = Member(cluster)
        async with first.consumer:
            await eventually(lambda: committed(cluster) == 0)
        cluster.alter_topic("orders", queues={GroupName("g1"): 1, GroupName("g2"): 1})
        store(cluster, 0, 1, 2, group="g2")
        again = Member(cluster)
        async with again.consumer:
            await eventually(lambda: len(again.seen) == 2)

    assert again.seen == [1, 2]
    assert cluster.group_calls.times_asked == [JOINED_UNIX_MS]


async def test_a_new_group_begins_though_another_broker_group_does_not_answer() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", {"g1": 1, "g2": 1})
        store(cluster, 0, 1, 2)
        cluster.elect("g2", None)
        member = Member(cluster)
        async with member.consumer:
            await eventually(lambda: committed(cluster) == 2)


async def test_a_broadcasting_member_reads_queues_that_came_while_it_was_stopped() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 2)
        disk = MemoryDisk()
        first = Member(cluster, BROADCASTING, disk=disk)
        async with first.consumer:
            await eventually(lambda: len(first.consumer.queues) == 1)
        grow(cluster, 2)
        store(cluster, 1, 3, 4)
        again = Member(cluster, BROADCASTING, disk=disk)
        async with again.consumer:
            await eventually(lambda: len(again.seen) == 2)

    assert first.seen == []
    assert sorted(again.seen) == [3, 4]
