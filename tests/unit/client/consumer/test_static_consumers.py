"""Consumers of static topics: logical queues are shared, and read segment by segment."""

from collections import defaultdict
from typing import Any

import pytest
from tests.support.client.broadcasting import SETTINGS as BROADCASTING
from tests.support.client.consumers import eventually, fill
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.lite_pull import BY_HAND, polled
from tests.support.client.pins import a_master
from tests.support.client.static_consumers import queue, segments, stands
from tests.support.http.http import send

from paceline.admin.client import AdminClient
from paceline.consumer.group.membership import coordinating_group
from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.consumer.ordered import OrderedConsumer, OrderedSettings
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.consumer.queues.segments import GroupPosition, next_segment, not_begun
from paceline.errors import BadRequestError, DeadlineError, ForbiddenError, QueueNotFoundError
from paceline.message import ReceivedMessage
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import pause
from paceline.queues import LOGICAL, QueueName
from paceline.types import ConsumerGroupName, GroupName, QueueId, TopicName
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.static_topics import LogicalQueue

PUSH = PushSettings(start="first", commit_interval_ms=10, concurrency=1, send_back=False)
ORDERED = OrderedSettings(start="first", commit_interval_ms=10)


@pytest.mark.parametrize(
    ("ends", "stood", "wanted"),
    [
        ((), [None], None),
        ((10, 10), [None, None, None], None),
        ((10, 10), [4, None, None], 0),
        ((10, 10), [10, None, None], 1),
        ((10, 10), [10, 0, None], 1),
        ((10, 10), [10, 10, None], 2),
        ((10, 10), [10, 10, 3], 2),
        ((10, 10), [None, None, 0], 2),  # it began with "last"
        ((10, 10), [None, 10, None], 2),
        ((10, 10), [10, None, 3], 1),  # a simple consumer has taken from the last
        ((10, 10), [2, 10, 3], 0),  # reset
        ((10, 10), [10, 0, 0], 1),
        ((0, 0), [0, None, None], 1),
        ((0, 0), [0, 0, None], 2),
    ],
)
def test_the_first_segment_that_is_not_done_is_next(
    ends: tuple[int, ...], stood: list[int | None], wanted: int | None
) -> None:
    assert next_segment(segments(*ends), [GroupPosition(offset) for offset in stood]) == wanted


@pytest.mark.parametrize(("joined", "wanted"), [(None, 1), (10, 1), (4, 0)])
def test_a_segment_that_the_group_met_before_its_end_is_not_passed_over(
    joined: int | None, wanted: int
) -> None:
    assert next_segment(segments(10), [GroupPosition(None, joined), GroupPosition(3, 0)]) == wanted


class Listener:
    """Notes what it gets by logical queue, and where the group stood by then."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.bodies: defaultdict[int, list[bytes]] = defaultdict(list)
        self.offsets: defaultdict[int, list[int]] = defaultdict(list)
        self.early: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        assert message.logical_queue is not None
        assert message.logical_offset is not None
        self.bodies[message.logical_queue].append(message.body)
        self.offsets[message.logical_queue].append(message.logical_offset)
        if not self._is_next(message):
            self.early.append(message)

    def _is_next(self, message: ReceivedMessage) -> bool:
        """Whether all segments before are committed up to their ends."""
        topic = self._cluster.view.topics[TopicName(message.topic)]
        logical_queue = topic.logical_queues[message.logical_queue or 0]
        for segment in logical_queue.segments:
            if (segment.group, segment.queue_id) == (message.group, message.queue_id):
                return True
            stood = stands(self._cluster, segment.group, segment.queue_id)
            if stood is None or stood < (segment.sealed_end or 0):
                return False
        return False

    @property
    def count(self) -> int:
        return sum(map(len, self.bodies.values()))


def push(cluster: FakeCluster, listener: Any, **more: Any) -> PushConsumer:
    fields: dict[str, Any] = {"settings": PUSH, **more}
    return PushConsumer(
        cluster.controller, group="audit", topics=["orders"], listener=listener, **fields
    )


def ordered(cluster: FakeCluster, listener: Any, **more: Any) -> OrderedConsumer:
    fields: dict[str, Any] = {"settings": ORDERED, **more}
    return OrderedConsumer(
        cluster.controller, group="audit", topics=["orders"], listener=listener, **fields
    )


@pytest.mark.parametrize("make", [push, ordered])
async def test_segments_are_read_in_order_also_those_that_come_later(make: Any) -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1", "g2", "g1"])
        await fill(cluster, 60)
        cluster.remap("orders", 0, "g2")
        cluster.remap("orders", 1, "g1")
        await fill(cluster, 120, first=60)
        listener = Listener(cluster)
        async with make(cluster, listener) as consumer:
            await eventually(lambda: listener.count == 120)
            for _ in range(2):
                cluster.remap("orders", 0, "g1")
                cluster.remap("orders", 0, "g2")
            await fill(cluster, 200, first=120)
            await eventually(lambda: listener.count == 200)
            assert len(consumer.queues) == 3

        for number in range(3):
            assert listener.bodies[number] == cluster.logical_bodies("orders", number)
            assert listener.offsets[number] == list(range(len(listener.offsets[number])))
        assert not listener.early


@pytest.mark.parametrize("make", [push, ordered])
async def test_members_share_the_logical_queues(make: Any) -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1", "g2", "g1", "g2"])
        for number in range(3):
            cluster.remap("orders", number, "g1")
        one, other = Listener(cluster), Listener(cluster)
        async with make(cluster, one, client_id="a") as a, make(cluster, other, client_id="b") as b:
            await eventually(lambda: len(a.queues) == len(b.queues) == 2)
            await fill(cluster, 100)
            await eventually(lambda: one.count + other.count == 100)

        assert sorted(one.bodies) == [0, 1]
        assert sorted(other.bodies) == [2, 3]


async def test_a_group_goes_on_in_the_segment_it_stood_in_and_skips_nothing() -> None:
    """With "last" too: what it has not seen of a queue that it consumes is not new to it."""
    settings = PushSettings(start="last", commit_interval_ms=10, concurrency=1, send_back=False)
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        await fill(cluster, 5)
        listener = Listener(cluster)
        async with push(cluster, listener, settings=settings):
            await eventually(lambda: stands(cluster, "g1", 0) == 5)
            await fill(cluster, 8, first=5)
            await eventually(lambda: listener.count == 3)
        await fill(cluster, 10, first=8)
        cluster.remap("orders", 0, "g2")
        await fill(cluster, 15, first=10)
        cluster.remap("orders", 0, "g1")
        await fill(cluster, 20, first=15)
        async with push(cluster, listener, settings=settings):
            await eventually(lambda: listener.count == 15)

        assert listener.bodies[0] == [b"%d" % number for number in range(5, 20)]


@pytest.mark.parametrize("start", ["first", "last"])
async def test_what_was_committed_out_of_order_hides_no_segment_before_it(start: str) -> None:
    """R33: a simple consumer of the group takes from any segment."""
    settings = PushSettings(start=start, commit_interval_ms=10, concurrency=1, send_back=False)
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1", "g1"])
        cluster.logs["g1"].commit(("audit", 1, 1), 0, 0)  # it reads the topic there from now on
        await fill(cluster, 20)
        for number, group in enumerate(("g2", "g1", "g2"), start=1):
            cluster.remap("orders", 0, group)
            await fill(cluster, 20 * number + 20, first=20 * number)
        wanted = cluster.logical_bodies("orders", 0)
        *before, last = cluster.view.topics[TopicName("orders")].logical_queues[0].segments
        cluster.logs["g2"].commit(("audit", 1, last.queue_id), 1, 0)
        del wanted[sum(segment.sealed_end or 0 for segment in before)]
        listener = Listener(cluster)
        async with push(cluster, listener, settings=settings):
            await eventually(lambda: len(listener.bodies[0]) == len(wanted))

        assert listener.bodies[0] == wanted
        assert not listener.early


async def test_a_new_group_with_last_begins_at_the_end_of_the_open_segment() -> None:
    settings = PushSettings(start="last", commit_interval_ms=10, concurrency=1, send_back=False)
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        await fill(cluster, 5)
        cluster.remap("orders", 0, "g2")
        await fill(cluster, 8, first=5)
        listener = Listener(cluster)
        async with push(cluster, listener, settings=settings):
            await eventually(lambda: stands(cluster, "g2", 0) == 3)
            cluster.remap("orders", 0, "g1")
            await fill(cluster, 12, first=8)
            await eventually(lambda: listener.count == 4)
        async with push(cluster, listener, settings=settings):
            await fill(cluster, 13, first=12)
            await eventually(lambda: listener.count == 5)

        assert listener.bodies[0] == [b"%d" % number for number in range(8, 13)]
        assert stands(cluster, "g1", 0) is None, "never begun"


async def test_the_next_segment_waits_until_the_end_is_committed() -> None:
    """A commit that fails is no reason to go on: what was not committed comes again."""
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        await fill(cluster, 5)
        listener = Listener(cluster)
        settings = PushSettings(
            start="first", commit_interval_ms=60_000, concurrency=1, send_back=False
        )
        async with push(cluster, listener, settings=settings):
            await eventually(lambda: listener.count == 5)
            cluster.group_calls.failures = [ForbiddenError("not now")]
            cluster.remap("orders", 0, "g2")
            await fill(cluster, 8, first=5)
            await eventually(lambda: b"7" in listener.bodies[0])

        assert not listener.early
        assert stands(cluster, "g1", 0) == 5
        assert listener.bodies[0][-3:] == [b"5", b"6", b"7"]


@pytest.mark.parametrize(
    ("begun", "wanted"),
    [([], []), ([0], [1, 2]), ([1], [2]), ([0, 2], [1]), ([2], []), ([9], [])],
)
def test_segments_after_the_first_that_was_begun_are_ahead(
    begun: list[int], wanted: list[int]
) -> None:
    moved = LogicalQueue(segments=tuple(segments(10, 10)))

    found = not_begun([moved], {queue("g1", number) for number in begun})

    assert found == [queue("g1", number) for number in wanted]


async def test_lag_counts_what_waits_in_segments_that_are_not_begun() -> None:
    """Here one broker has all segments: offset 2 of 3 in the first, and all of those after it."""
    async with a_master() as (cluster, door, admin):
        for body in "abc":
            await send(door, body)
        offsets = [{"topic": "orders", "queue": 0, "offset": 2}]
        await door.ask("POST", "/v1/call", {"call": "commit", "group": "audit", "offsets": offsets})
        await send(door, "d", queue=2)
        await send(door, "e", queue=3)
        cluster.alter_topic(
            "orders",
            queues={GroupName("g1"): 4},
            logical_queues=(LogicalQueue(segments=tuple(segments(3, 0, 1))),),
        )
        found = await admin.consumer_groups.lag("audit")
        other = ConsumerGroupView(group=ConsumerGroupName("other"))
        cluster.publish(consumer_groups={other.group: other})
        untouched = await admin.consumer_groups.lag("other")

    assert [(row["queue"], row["offset"], row["lag"]) for row in found] == [
        (0, 2, 1),
        (1, None, 0),
        (2, None, 1),
        (3, None, 1),
    ]
    assert {row["logical_queue"] for row in found} == {0}
    assert untouched == []


async def test_each_member_of_a_broadcasting_group_goes_on_where_its_file_says() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1", "g2"])
        disk, seen = MemoryDisk(), defaultdict[int, list[bytes]](list)

        async def listen(message: ReceivedMessage) -> None:
            seen[message.logical_queue or 0].append(message.body)

        async def consume(count: int) -> None:
            async with push(cluster, listen, settings=BROADCASTING, disk=disk):
                await eventually(lambda: sum(map(len, seen.values())) == count)

        await fill(cluster, 20)
        cluster.remap("orders", 0, "g2")
        await fill(cluster, 40, first=20)
        await consume(40)
        await fill(cluster, 50, first=40)
        cluster.remap("orders", 0, "g1")
        await fill(cluster, 60, first=50)
        await consume(60)

        for number in range(2):
            assert sorted(seen[number]) == sorted(cluster.logical_bodies("orders", number))


async def test_a_reset_leads_back_into_an_earlier_segment() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        await fill(cluster, 5)
        cluster.remap("orders", 0, "g2")
        await fill(cluster, 10, first=5)
        listener = Listener(cluster)
        async with push(cluster, listener):
            await eventually(lambda: listener.count == 10)
            async with AdminClient(cluster.controller) as admin:
                rows = await admin.consumer_groups.reset_offsets("audit", "orders", to="first")
                await eventually(lambda: listener.count == 20)
                with pytest.raises(BadRequestError, match="static"):
                    await admin.consumer_groups.reset_offsets("audit", "orders", offset=3)

        assert [row["group"] for row in rows] == ["g1", "g2"], "in order of the segments"
        assert listener.bodies[0][10:] == listener.bodies[0][:10]


async def test_a_segment_whose_broker_group_was_given_up_is_not_waited_for() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        await fill(cluster, 5)
        listener = Listener(cluster)
        async with push(cluster, listener) as consumer:
            await eventually(lambda: listener.count == 5)
            cluster.remap("orders", 0, "g2")
            await eventually(lambda: [key.group for key in consumer.queues] == ["g2"])
            cluster.remap("orders", 0, "g1")
            topic = cluster.view.topics[TopicName("orders")]
            [logical] = topic.logical_queues
            kept = LogicalQueue(segments=logical.segments[2:])
            cluster.alter_topic("orders", logical_queues=(kept,))
            await fill(cluster, 8, first=5)
            await eventually(lambda: listener.count == 8)


async def test_what_retention_has_deleted_of_a_segment_does_not_hold_up_the_next() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        await fill(cluster, 5)
        cluster.remap("orders", 0, "g2")
        await fill(cluster, 8, first=5)
        cluster.logs["g1"].delete_below((1, 0), 5)
        listener = Listener(cluster)
        async with push(cluster, listener):
            await eventually(lambda: listener.count == 3)

        assert listener.offsets[0] == [5, 6, 7]


async def test_a_group_that_does_not_answer_for_a_segment_holds_up_only_its_queue() -> None:
    async with FakeCluster(groups=2) as cluster:
        coordinator = coordinating_group("audit", cluster.view.groups)
        other = "g1" if coordinator == "g2" else "g2"
        cluster.add_static_topic("orders", [other, coordinator])
        await fill(cluster, 20)
        cluster.remap("orders", 0, coordinator)
        await fill(cluster, 40, first=20)
        listener = Listener(cluster)
        cluster.brokers[(other, 1)].not_yet = DeadlineError("stopped")
        async with push(cluster, listener):
            await eventually(lambda: listener.bodies[1] == cluster.logical_bodies("orders", 1))
            assert not listener.bodies[0]
            cluster.brokers[(other, 1)].not_yet = None
            await eventually(lambda: listener.count == 40, within_ms=20_000)

        assert listener.bodies[0] == cluster.logical_bodies("orders", 0)


async def test_a_lite_pull_consumer_may_be_given_a_logical_queue() -> None:
    name = QueueName(TopicName("orders"), LOGICAL, QueueId(1))
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1", "g1"])
        await fill(cluster, 30)
        cluster.remap("orders", 1, "g2")
        await fill(cluster, 60, first=30)
        wanted = cluster.logical_bodies("orders", 1)
        consumer = LitePullConsumer(cluster.controller, group="audit", settings=BY_HAND)
        async with consumer:
            consumer.assign([name])
            found: list[int] = []
            while len(found) < len(wanted):
                found += await polled(consumer, 1)
                await consumer.commit()
            assert consumer.position(name) == len(cluster.bodies("g2"))
            consumer.assign([name._replace(queue_id=QueueId(2))])
            with pytest.raises(QueueNotFoundError):
                consumer.pause([name._replace(queue_id=QueueId(2))])

        assert [b"%d" % number for number in found] == wanted


async def test_closing_waits_for_the_commit_of_a_segment_that_is_given_up() -> None:
    """What the close counts as processed is its end: the release began before the close."""
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        await fill(cluster, 5)
        usual = cluster.answer_call

        async def slow(broker: FakeBroker, document: dict[str, Any]) -> dict[str, Any]:
            if document["call"] == "commit" and document["offsets"][0]["offset"] == 5:
                await pause(50)
            return await usual(broker, document)

        consumer = LitePullConsumer(
            cluster.controller,
            group="audit",
            topics=["orders"],
            settings=LitePullSettings(start="first"),
        )
        await consumer.start()
        assert len(await consumer.poll()) == 5
        cluster.remap("orders", 0, "g2")
        await eventually(lambda: consumer._cluster.view == cluster.view)
        cluster.answer_call = slow  # type: ignore[method-assign]
        await consumer.close()

        assert stands(cluster, "g1", 0) == 5


async def test_a_paused_logical_queue_stays_paused_in_its_next_segment() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        await fill(cluster, 5)
        listener = Listener(cluster)
        async with push(cluster, listener) as consumer:
            await eventually(lambda: listener.count == 5)
            consumer.pause(consumer.queues)
            cluster.remap("orders", 0, "g2")
            await eventually(lambda: [key.group for key in consumer.queues] == ["g2"])
            await fill(cluster, 8, first=5)
            assert listener.count == 5
            consumer.resume(consumer.queues)
            await eventually(lambda: listener.count == 8)
