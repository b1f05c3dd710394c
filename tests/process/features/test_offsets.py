"""Where groups stand, over the death of the master: what was acknowledged holds at the next one.

One cluster for all; each test kills its master once, right after an acknowledgement.
"""

import asyncio
import signal
from collections.abc import Iterator

import pytest
from tests.support.process.harness import RunningCluster, eventually, running_cluster, the_master
from tests.support.process.load import all_in_sync

from paceline.admin.client import AdminClient
from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.consumer.pull import PullConsumer
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.message import Message, ReceivedMessage
from paceline.platform.runtime import SystemClock
from paceline.producer.producer import Producer
from paceline.queues import QueueKey, QueueName
from paceline.types import GroupName, QueueId
from paceline.wire.cluster import TopicView

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(90),
    pytest.mark.xdist_group("offsets"),
]

QUEUES = 2
COUNT = 100
"""Of each queue."""
PUSH = PushSettings(start="first", commit_interval_ms=100)
LITE = LitePullSettings(start="first", auto_commit=False)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster") / "data", restart=True) as cluster:
        yield cluster


@pytest.fixture
async def cluster(running: RunningCluster) -> RunningCluster:
    """Whole again after the test before."""
    await all_in_sync(running)
    return running


@pytest.fixture
async def topic(cluster: RunningCluster, request: pytest.FixtureRequest) -> TopicView:
    """One of the test's own, with `COUNT` numbered messages in each queue."""
    name = request.function.__name__.removeprefix("test_").replace("_", "-")[:60]
    async with AdminClient(cluster.bootstrap) as admin:
        made = await admin.topics.create(name, queues=QUEUES)
    await send(cluster, made, range(COUNT))
    return made


async def send(cluster: RunningCluster, topic: TopicView, numbers: range) -> None:
    """Each number to each queue."""
    async with Producer(cluster.bootstrap) as producer:
        await producer.send_many(
            [
                Message(topic.topic, b"%d" % number, queue=queue)
                for number in numbers
                for queue in queues_of(topic)
            ]
        )


def queues_of(topic: TopicView) -> list[QueueName]:
    return [QueueName(topic.topic, GroupName("g1"), QueueId(q)) for q in range(QUEUES)]


def member_queue(member: PushConsumer, topic: TopicView, queue: int) -> QueueKey:
    """That queue of the topic, which is the member's."""
    key = QueueKey(topic.topic_id, GroupName("g1"), QueueId(queue))
    assert key in member.queues
    return key


async def kill_master(cluster: RunningCluster) -> None:
    cluster.send_signal(await the_master(cluster), signal.SIGKILL)


async def committed(cluster: RunningCluster, group: str, topic: TopicView) -> list[int | None]:
    """By queue."""
    async with PullConsumer(cluster.bootstrap) as reader:
        found = await reader.committed(group, queues_of(topic))
    return [found[name] for name in queues_of(topic)]


class Listener:
    """What a member got, by queue."""

    def __init__(self) -> None:
        self.numbers: list[list[int]] = [[] for _ in range(QUEUES)]

    async def listen(self, message: ReceivedMessage) -> None:
        self.numbers[message.queue_id].append(int(message.body))

    async def has(self, *wanted: set[int]) -> None:
        """Wait until it has got these numbers of each queue."""

        async def is_so() -> bool:
            pairs = zip(self.numbers, wanted, strict=True)
            return all(numbers <= set(got) for got, numbers in pairs)

        await eventually(is_so, within_ms=60_000, what=f"{wanted}")

    def forget(self) -> None:
        for numbers in self.numbers:
            numbers.clear()


def a_member(
    cluster: RunningCluster, listener: Listener, topic: TopicView, *, group: str
) -> PushConsumer:
    return PushConsumer(
        cluster.bootstrap,
        group=group,
        topics=[topic.topic],
        listener=listener.listen,
        settings=PUSH,
    )


async def test_resets_by_time_and_clones_hold(cluster: RunningCluster, topic: TopicView) -> None:
    """R33, S22: the next master knows both moves, and neither an older commit nor a copy."""
    clock = SystemClock()
    async with PullConsumer(cluster.bootstrap) as reader, AdminClient(cluster.bootstrap) as admin:
        middle_ms = clock.unix_ms() + 50

        async def is_later() -> bool:
            return clock.unix_ms() > middle_ms

        await eventually(is_later)
        await send(cluster, topic, range(COUNT, 2 * COUNT))
        await reader.commit("audit", dict.fromkeys(queues_of(topic), 2 * COUNT))
        moved = await admin.consumer_groups.reset_offsets("audit", topic.topic, unix_ms=middle_ms)
        cloned = await admin.consumer_groups.clone_offsets("copy", topic.topic, source="audit")
        await kill_master(cluster)

        assert [(row["before"], row["offset"]) for row in moved] == [(2 * COUNT, COUNT)] * QUEUES
        assert [(row["before"], row["offset"]) for row in cloned] == [(None, COUNT)] * QUEUES
        for group in ("audit", "copy"):
            assert await committed(cluster, group, topic) == [COUNT] * QUEUES
        second = await admin.consumer_groups.reset_offsets("audit", topic.topic, unix_ms=middle_ms)
        assert [row["generation"] for row in second] == [row["generation"] + 1 for row in moved]
        listener = Listener()
        async with a_member(cluster, listener, topic, group="copy"):
            await listener.has(*[set(range(COUNT, 2 * COUNT))] * QUEUES)
    assert [sorted(numbers) for numbers in listener.numbers] == [
        list(range(COUNT, 2 * COUNT))
    ] * QUEUES
    assert await committed(cluster, "copy", topic) == [2 * COUNT] * QUEUES


async def test_no_commit_of_a_member_undoes_a_reset(
    cluster: RunningCluster, topic: TopicView
) -> None:
    """R33: it works on messages while the group is moved back and the master dies."""
    held = asyncio.Event()
    goes_on = asyncio.Event()
    listener = Listener()

    async def listen(message: ReceivedMessage) -> None:
        await listener.listen(message)
        if int(message.body) == COUNT - 1:
            held.set()
            await goes_on.wait()

    member = PushConsumer(
        cluster.bootstrap, group="audit", topics=[topic.topic], listener=listen, settings=PUSH
    )
    async with AdminClient(cluster.bootstrap) as admin, member:
        async with asyncio.timeout(20):
            await held.wait()
        await listener.has(*[set(range(COUNT))] * QUEUES)
        listener.forget()
        moved = await admin.consumer_groups.reset_offsets("audit", topic.topic, to="first")
        await kill_master(cluster)
        assert [row["offset"] for row in moved] == [0] * QUEUES
        goes_on.set()  # what it is done with now is of the time before
        await listener.has(*[set(range(COUNT))] * QUEUES)
    assert await committed(cluster, "audit", topic) == [COUNT] * QUEUES


async def test_seeks_of_members_hold(cluster: RunningCluster, topic: TopicView) -> None:
    """A seek is a reset in one queue: the other one stands where it stood."""
    listener = Listener()
    async with a_member(cluster, listener, topic, group="audit") as member:
        await listener.has(*[set(range(COUNT))] * QUEUES)

        async def all_committed() -> bool:
            return await committed(cluster, "audit", topic) == [COUNT] * QUEUES

        await eventually(all_committed, what="all committed")
        member.pause()
        listener.forget()
        await member.seek(member_queue(member, topic, 0), 90)
        await kill_master(cluster)
        assert await committed(cluster, "audit", topic) == [90, COUNT]
        member.resume()
        await send(cluster, topic, range(COUNT, COUNT + 10))
        await listener.has(set(range(90, COUNT + 10)), set(range(COUNT, COUNT + 10)))
    assert [sorted(numbers) for numbers in listener.numbers] == [
        list(range(90, COUNT + 10)),
        list(range(COUNT, COUNT + 10)),
    ]


async def test_lite_pull_goes_on_where_it_committed(
    cluster: RunningCluster, topic: TopicView
) -> None:
    """S21, S22: what was polled and not committed comes again, what was committed does not."""
    polled: list[ReceivedMessage] = []
    group = {"group": "audit", "topics": [topic.topic], "settings": LITE}
    async with LitePullConsumer(cluster.bootstrap, **group) as member:  # type: ignore[arg-type]
        while len(polled) < COUNT:
            polled += await member.poll(max_messages=30)
        await member.commit()
        kept = await committed(cluster, "audit", topic)
        await kill_master(cluster)
        rest: list[ReceivedMessage] = []
        while len(polled) + len(rest) < QUEUES * COUNT:  # by the member that was there before
            rest += await member.poll(max_messages=30)
        assert await committed(cluster, "audit", topic) == kept
        [first, second] = queues_of(topic)
        await member.seek(first, 10)
        assert await member.poll(timeout_ms=5_000)  # not counted: it closes without a commit

    assert sum(offset or 0 for offset in kept) == len(polled)
    places = [(message.queue_id, message.queue_offset) for message in [*polled, *rest]]
    assert sorted(places) == [(queue, offset) for queue in range(QUEUES) for offset in range(COUNT)]
    assert await committed(cluster, "audit", topic) == [10, kept[second.queue_id]]


async def test_a_paused_member_keeps_its_queues_and_gets_nothing(
    cluster: RunningCluster, topic: TopicView
) -> None:
    """A pause is the member's own: it holds also at the next master, for that queue alone."""
    listener = Listener()
    async with a_member(cluster, listener, topic, group="audit") as member:
        await listener.has(*[set(range(COUNT))] * QUEUES)
        paused = member_queue(member, topic, 0)
        member.pause([paused])
        before = member.queues
        await kill_master(cluster)
        await send(cluster, topic, range(COUNT, 2 * COUNT))
        await listener.has(set(), set(range(2 * COUNT)))
        assert max(listener.numbers[0]) == COUNT - 1
        assert member.queues == before
        member.resume([paused])
        await listener.has(*[set(range(2 * COUNT))] * QUEUES)
    assert await committed(cluster, "audit", topic) == [2 * COUNT] * QUEUES
