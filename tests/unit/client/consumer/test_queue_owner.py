"""Queues of a member that come, go and come back while something of them is under way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.support.client.consumers import eventually, fill
from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.offsets.group_offsets import GroupOffsets
from paceline.consumer.offsets.start_positions import StartPosition
from paceline.consumer.process.assignment import OPENS_MAX, Assignment, HeldQueue
from paceline.consumer.queues.process_queue import ProcessQueue
from paceline.consumer.settings.push import PushSettings
from paceline.message import ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import pause
from paceline.queues import QueueKey
from paceline.types import GroupName, QueueId, TopicId, TopicName

KEY = QueueKey(TopicId(1), GroupName("g1"), QueueId(0))


class Member:
    """A membership that the test plays; notes which claims are given up."""

    def __init__(self) -> None:
        self.released: list[QueueKey] = []

    def join(
        self,
        on_targets: Callable[[set[QueueKey]], None],
        on_owned: Callable[[QueueKey], None],
        on_lost: Callable[[], None],
    ) -> "Member":
        self.on_targets, self.on_owned, self.on_lost = on_targets, on_owned, on_lost
        return self

    def start(self) -> None: ...

    def stop_claiming(self) -> None: ...

    def release(self, key: QueueKey) -> None:
        self.released.append(key)

    async def close(self) -> None: ...

    def grant(self) -> None:
        self.on_targets({KEY})
        self.on_owned(KEY)


class Listening:
    """A processing with one listener that the test ends."""

    def __init__(self) -> None:
        self.taken: list[tuple[HeldQueue, ReceivedMessage]] = []

    def arrived(self, held: HeldQueue) -> None:
        if held.queue.has_waiting:
            self.taken.append((held, held.queue.take_many(1)[0]))

    def dropped(self, held: HeldQueue) -> None: ...


class GatedOffsets(GroupOffsets):
    """Opens and closes queues when the test lets it; notes how many are open."""

    gate: asyncio.Event
    opening = 0
    open_count = 0

    async def opened(self, key: QueueKey) -> ProcessQueue:
        self.opening += 1
        await self.gate.wait()
        queue = await super().opened(key)
        self.open_count += 1
        return queue

    async def closed(self, queue: ProcessQueue) -> None:
        self.open_count -= 1

    def abandoned(self, queue: ProcessQueue) -> None:
        self.open_count -= 1


class World:
    """An owner of queues, and who plays with it."""

    def __init__(self, cluster: Cluster) -> None:
        links = GroupLinks(cluster)
        self.member, self.listening = Member(), Listening()
        self.offsets = GatedOffsets(
            cluster, links, group="audit", start=StartPosition("first"), timeout_ms=5_000
        )
        self.offsets.gate = asyncio.Event()
        self.offsets.gate.set()
        self.owner = Assignment(
            cluster,
            links,
            self.offsets,
            group="audit",
            settings=PushSettings(start="first"),
            join=self.member.join,
            processing=self.listening,
            on_gap=None,
        )

    @property
    def held(self) -> HeldQueue | None:
        return self.owner.held.get(KEY)


@asynccontextmanager
async def a_world(queues: int = 1) -> AsyncIterator[World]:
    async with FakeCluster() as fake:
        fake.add_topic("orders", queues)
        await fill(fake, 3)
        cluster = Cluster(fake.controller)
        try:
            cluster.start()
            await cluster.watch.wait_for(lambda view: True, timeout_ms=5_000)
            world = World(cluster)
            try:
                yield world
            finally:
                await world.owner.close()
        finally:
            await cluster.close()


async def test_a_release_that_outlives_its_claim_gives_up_nothing_of_the_next_one() -> None:
    async with a_world() as world:
        member, listening = world.member, world.listening
        member.grant()
        await eventually(lambda: len(listening.taken) == 1)
        old, message = listening.taken[0]
        member.on_targets(set())  # and the release waits for the listener
        await eventually(lambda: old.is_releasing)
        member.on_lost()
        member.released.clear()
        member.grant()
        await eventually(lambda: world.held is not None)
        new = world.held

        old.queue.fail(message)
        world.owner.settled(old)
        await eventually(lambda: len(world.owner._changes) == 0)

        assert world.held is new is not old
        assert member.released == []
        assert world.owner._held_counts[TopicName("orders")] == 1
        assert world.offsets.open_count == 1


async def test_a_queue_whose_claim_was_lost_while_it_was_opened_is_not_held() -> None:
    async with a_world() as world:
        member, offsets = world.member, world.offsets
        offsets.gate.clear()
        member.grant()
        await eventually(lambda: offsets.opening == 1)
        member.on_lost()
        offsets.gate.set()
        await eventually(lambda: len(world.owner._changes) == 0)

        assert world.held is None
        assert member.released == []
        assert offsets.open_count == 0


async def test_many_queues_are_opened_some_at_a_time() -> None:
    """All at once they were refused, and claimed and refused again."""
    async with a_world(queues=3 * OPENS_MAX) as world:
        member, offsets = world.member, world.offsets
        keys = [KEY._replace(queue_id=QueueId(number)) for number in range(3 * OPENS_MAX)]
        offsets.gate.clear()
        member.on_targets(set(keys))
        for key in keys:
            member.on_owned(key)
        await eventually(lambda: offsets.opening == OPENS_MAX)
        await pause(0)
        assert offsets.opening == OPENS_MAX
        offsets.gate.set()
        await eventually(lambda: len(world.owner.held) == len(keys))

        assert member.released == []


async def test_a_claim_that_comes_while_a_lost_one_is_opened_is_opened_by_itself() -> None:
    async with a_world() as world:
        member, offsets = world.member, world.offsets
        offsets.gate.clear()
        member.grant()
        await eventually(lambda: offsets.opening == 1)
        member.on_lost()
        member.grant()
        offsets.gate.set()
        await eventually(lambda: len(world.owner._changes) == 0)

        assert world.held is not None
        assert offsets.opening == 2
        assert offsets.open_count == 1
        assert member.released == []
