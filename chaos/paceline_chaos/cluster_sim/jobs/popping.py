"""Simple consumers: messages received by receipt, acknowledged, forgotten or given back (S23).

Now and then somebody commits an offset of their group, as members without receipts do: that is
refused while a message is invisible, and else the group is done with all below it.
"""

import asyncio
from functools import partial
from typing import NamedTuple

from paceline.admin.client import AdminClient
from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.consumer.settings.simple import SimpleSettings
from paceline.consumer.simple import SimpleConsumer
from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import pause
from paceline.wire.calls.offsets import Commit as CommitRequest
from paceline.wire.calls.offsets import CommitRow
from paceline_chaos.cluster_sim.bodies import crc_of
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around, queues_in
from paceline_chaos.cluster_sim.jobs.consuming import (
    ask_committed,
    call_group,
    look_at_offsets,
)
from paceline_chaos.cluster_sim.jobs.reading import seen
from paceline_chaos.history.model import Ack, Commit, Pop, Queue

POP_GROUP = "simple-1"
COMMITTING_GROUP = "simple-2"
BROADCASTING_GROUP = "simple-everyone"
ORDERED_BROADCASTING_GROUP = "simple-everyone-in-order"
FAILING_GROUPS = ("failing-1", "failing-2")
INVISIBLE_MS = 10_000
"""The least that brokers take: what is forgotten comes again while the world still runs."""
_WAIT_MS = 1_000
_MEMBERS = 2
_SESSION_RECEIVES = 40
_FORGET_SHARE = 0.15
_BACK_SHARE = 0.1
_COMMIT_AHEAD_MAX = 8
_SLOW_SHARE, _SLOW_MS_MAX = 0.08, 4_000.0
_POISON_ONE_IN = 23


class _Member(NamedTuple):
    """One consumer object and what the history calls it."""

    consumer: SimpleConsumer
    name: str


class Popper:
    """Members of a simple consumers' group, which come and go."""

    group = POP_GROUP
    _commit_share = 0.1

    def __init__(self, around: Around) -> None:
        self._around = around.apart(self._name)
        self._committer = around.apart(f"{self._name}-commit")
        self._sessions = 0

    @property
    def _name(self) -> str:
        """In names of members, and of the stream of chance."""
        return "pop"

    def _group_of(self, name: str) -> str:
        """Under which name the receipts of a member are judged."""
        return self.group

    async def run(self) -> None:
        """Some members after another, side by side, until it is over."""
        around = self._around
        while not around.is_over():
            self._sessions += 1
            cluster = around.cluster()
            settings = SimpleSettings(invisible_ms=INVISIBLE_MS, wait_ms=_WAIT_MS)
            members = [self._member(cluster, number, settings) for number in range(_MEMBERS)]
            links = GroupLinks(cluster)
            closes = [member.consumer.close for member in members]
            async with around.session(links.close, *closes, cluster.close):
                for member in members:
                    await member.consumer.start()
                for _ in around.turns(_SESSION_RECEIVES):
                    await self._round(members)
                    await look_at_offsets(around, cluster, links, self.group, around.topic)
                    if self._committer.happens(self._commit_share):
                        await self._commit(cluster, links)

    async def _commit(self, cluster: Cluster, links: GroupLinks) -> None:
        """A little above where the group stands, without any receipt."""
        around = self._committer
        queues = queues_in(cluster, around.topic)
        if not queues:
            return
        queue = around.choice(queues)
        stood = await ask_committed(around, links, self.group, queue)
        if stood is None:
            return
        offset = stood + around.whole(1, _COMMIT_AHEAD_MAX)
        row = CommitRow(topic=queue.topic, queue=queue.queue, offset=offset)
        with around.recorder.asking(
            Commit,
            client=around.client,
            consumer_group=self.group,
            member=f"{around.alias}/{self._name}-commit",
            queue=queue,
            offset=offset,
        ) as asking:
            try:
                request = CommitRequest(group=self.group, offsets=[row])
                reply = await call_group(links, queue, request)
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok(is_provisional=reply.envelope.acting)

    def _member(self, cluster: Cluster, number: int, settings: SimpleSettings) -> _Member:
        around = self._around
        name = f"{around.alias}/{self._name}-{self._sessions}-{number}"
        consumer = SimpleConsumer(
            cluster, group=self.group, topics=[around.topic], settings=settings, client_id=name
        )
        return _Member(consumer, name)

    async def _round(self, members: list[_Member]) -> None:
        """One receive of one of them, and what becomes of its messages."""
        around = self._around
        consumer, name = around.choice(members)
        if not consumer.is_quiet:
            # What comes now may have been asked for at any time before: nothing can be judged.
            for message in await consumer.receive(wait_ms=0):
                if around.is_over():
                    return
                await self._ack(consumer, name, message)
            await around.think()
            return
        asked_us = around.recorder.now_us()
        messages = await consumer.receive(around.whole(1, 16))
        for message in messages:
            with around.recorder.asking(
                Pop,
                asked_us=asked_us,
                client=around.client,
                consumer_group=self._group_of(name),
                member=name,
                queue=_queue(message),
                message=seen(message.queue_offset, message.body),
                attempt=message.attempt,
                invisible_ms=INVISIBLE_MS,
            ) as asking:
                asking.ok()
        await around.think()
        for message in messages:
            if around.is_over():
                return  # without a master each acknowledgement lasts as long as it may
            await self._settle(consumer, name, message)

    async def _settle(self, consumer: SimpleConsumer, name: str, message: PoppedMessage) -> None:
        drawn = self._around.random.uniform(0, 1)
        if drawn < _FORGET_SHARE:
            return  # it comes again
        is_back = drawn < _FORGET_SHARE + _BACK_SHARE
        await self._ack(consumer, name, message, is_back=is_back)

    async def _ack(
        self, consumer: SimpleConsumer, name: str, message: PoppedMessage, *, is_back: bool = False
    ) -> None:
        """It is done, or given back."""
        with self._around.recorder.asking(
            Ack,
            client=self._around.client,
            consumer_group=self._group_of(name),
            member=name,
            queue=_queue(message),
            offset=message.queue_offset,
            is_back=is_back,
        ) as asking:
            try:
                if is_back:
                    await consumer.change_invisible(message, 0)
                else:
                    await consumer.ack(message)
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok()


class CommittingPopper(Popper):
    """Members of a group that acknowledge all they receive, and commit past what they were given.

    In `Popper`'s group a message is invisible most of the time, so few commits succeed there.
    """

    group = COMMITTING_GROUP
    _commit_share = 1.0

    @property
    def _name(self) -> str:
        return self.group

    async def _settle(self, consumer: SimpleConsumer, name: str, message: PoppedMessage) -> None:
        await self._ack(consumer, name, message)


class OwnPopper(Popper):
    """Members of a group that somebody names; they work on some messages for a while."""

    def __init__(self, around: Around, *, group: str, label: str) -> None:
        self.group = group
        self._label = label
        super().__init__(around)

    @property
    def _name(self) -> str:
        return self._label

    async def _settle(self, consumer: SimpleConsumer, name: str, message: PoppedMessage) -> None:
        if self._around.happens(_SLOW_SHARE):
            await pause(self._around.random.uniform(0, _SLOW_MS_MAX))
        await super()._settle(consumer, name, message)


class BroadcastPopper(Popper):
    """Clients of a group that broadcasts, which come again under their ids. Each is judged as a
    group of its own: it is given every message, and what it has acknowledged never again."""

    _commit_share = 0.0

    def __init__(self, around: Around, *, is_ordered: bool) -> None:
        self.group = ORDERED_BROADCASTING_GROUP if is_ordered else BROADCASTING_GROUP
        self._is_ordered = is_ordered
        super().__init__(around)

    @property
    def _name(self) -> str:
        return self.group

    def _group_of(self, name: str) -> str:
        return f"{self.group}@{name}"

    def _member(self, cluster: Cluster, number: int, settings: SimpleSettings) -> _Member:
        around = self._around
        name = f"{around.alias}/{self._name}-{number}"
        consumer = SimpleConsumer(
            cluster, group=self.group, topics=[around.topic], settings=settings, client_id=name
        )
        return _Member(consumer, name)

    async def run(self) -> None:
        """Once the group's record says so."""
        await self._around.try_again(self._make)
        await super().run()

    async def _make(self) -> None:
        async def make(admin: AdminClient) -> None:
            if self.group not in {str(known.group) for known in await admin.consumer_groups.all()}:
                await admin.consumer_groups.create(
                    self.group,
                    message_model="broadcasting",
                    consume_message_orderly=self._is_ordered,
                )

        await self._around.as_admin(make, timeout_ms=CALL_TIMEOUT_MS)


class _Failer(Popper):
    """Members of a group that fails on some messages, again and again: they become its dead
    letters after two deliveries."""

    _commit_share = 0.0

    def __init__(self, around: Around, group: str) -> None:
        self.group = group
        super().__init__(around)

    @property
    def _name(self) -> str:
        return self.group

    async def _settle(self, consumer: SimpleConsumer, name: str, message: PoppedMessage) -> None:
        is_poison = crc_of(message.body) % _POISON_ONE_IN == 0
        await self._ack(consumer, name, message, is_back=is_poison)


class DeadLetters:
    """Two groups of simple consumers over one topic, which fail on the same messages (S23, S29)."""

    def __init__(self, around: Around) -> None:
        self._around = around

    async def run(self) -> None:
        """Both side by side, once their groups are there."""
        around = self._around
        for group in FAILING_GROUPS:
            await around.try_again(partial(self._make, group))
        async with asyncio.TaskGroup() as both:
            for group in FAILING_GROUPS:
                both.create_task(_Failer(around, group).run(), name=f"{around.client}-{group}")

    async def _make(self, group: str) -> None:
        async def make(admin: AdminClient) -> None:
            if group not in {str(known.group) for known in await admin.consumer_groups.all()}:
                await admin.consumer_groups.create(group, retry_max_times=1)

        await self._around.as_admin(make, timeout_ms=CALL_TIMEOUT_MS)


def _queue(message: PoppedMessage) -> Queue:
    return Queue(message.topic, message.group, message.queue_id)
