"""Consumers in groups: the push consumer, and ordered consumption under queue locks.

The ordered consumer takes a queue's lock, reads from the committed offset, processes messages one
after another and commits with its token (R33); now and then it works on although its lease may have
run out, which only the token makes harmless (S26).
"""

from typing import Any

from paceline.consumer.push import PushConsumer, PushSettings
from paceline.consumer.settings.push import ConsumeLater
from paceline.errors import OffsetOutOfRangeError, PacelineError
from paceline.message import ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import pause
from paceline.queues import reading_address
from paceline.types import GroupName
from paceline.wire import properties as names
from paceline.wire.calls import locks, offsets
from paceline.wire.calls.messages import SendBack, SendBackRow
from paceline.wire.calls.request import AnswerT, Reply, Request
from paceline.wire.names import retry_topic
from paceline_chaos.cluster_sim.bodies import crc_of
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around, queues_in
from paceline_chaos.cluster_sim.jobs.reading import first_of, pull_http, seen
from paceline_chaos.history.model import (
    Commit,
    Deliver,
    Lock,
    QueryOffset,
    Queue,
    Seen,
    Unlock,
    token_number,
)

PUSH_GROUP = "push-1"
ORDERED_GROUP = "ordered-1"
RETRIES_MAX = 2
"""Of a message of the push consumers' group, each after a second; then it is dead (S29)."""
_LEVEL = 1
_POISON_ONE_IN = 61
_TWICE_ONE_IN = 2
_PROCESS_MS_MAX = 20.0
_SLOW_MS_MAX = 2_000.0
"""Some messages hold the others' offsets back for several commits."""
_LEASE_MS = 2_000
_LATE_SHARE = 0.1
"""Requests of long ago are heard again, as if they had been under way (R34)."""
_ANEW_SHARE, _UNLOCK_LATE_SHARE = 0.15, 0.3
_LOOK_SHARE = 0.1
_SESSION_POLLS = 100
"""So many looks at the clock, then the consumer leaves its group and joins it again."""


class Pusher:
    """A member of the push consumers' group; joins and leaves."""

    def __init__(self, around: Around, *, group: str = PUSH_GROUP, label: str = "push") -> None:
        """`label`: in names of members."""
        self._around = around
        self._group = group
        self._label = label
        self._sessions = 0
        self._late = around.apart("again")
        self._sent_back: list[tuple[Queue, int]] = []

    async def run(self) -> None:
        """One membership after another until it is over."""
        around = self._around
        while not around.is_over():
            self._sessions += 1
            cluster = around.cluster()
            links = GroupLinks(cluster)
            member = f"{around.alias}/{self._label}-{self._sessions}"
            consumer = PushConsumer(
                cluster,
                group=self._group,
                topics=[around.topic],
                listener=self._listener(member, links),
                settings=PushSettings(
                    start="first",
                    concurrency=4,
                    commit_interval_ms=300,
                    max_reconsume_times=RETRIES_MAX,
                ),
                client_id=member,
            )
            async with around.session(links.close, consumer.close, cluster.close):
                await consumer.start()
                for _ in around.turns(_SESSION_POLLS):
                    await pause(100)
                    await look_at_offsets(
                        around, cluster, links, self._group, around.topic, retry_topic(self._group)
                    )
                    if self._sent_back and self._late.happens(_LATE_SHARE):
                        await self._ask_to_send_back(links, *self._late.choice(self._sent_back))

    def _listener(self, member: str, links: GroupLinks) -> Any:
        around = self._around

        async def listen(message: ReceivedMessage) -> None:
            with around.recorder.asking(
                Deliver,
                client=around.client,
                consumer_group=self._group,
                member=member,
                queue=Queue(_real_topic(message), message.group, message.queue_id),
                message=seen(message.queue_offset, message.body),
            ) as asking:
                if around.happens(0.01):
                    await pause(around.random.uniform(0, _SLOW_MS_MAX))
                elif around.happens(0.2):
                    await pause(around.random.uniform(0, _PROCESS_MS_MAX))
                if around.happens(0.01) or _is_poison(message):
                    await self._send_back(links, message)
                    raise _ListenerFailedError
                asking.ok()

        return listen

    async def _send_back(self, links: GroupLinks, message: ReceivedMessage) -> None:
        """Some are sent back beside what the library does, as if its answer were lost (R34)."""
        if crc_of(message.body) % _TWICE_ONE_IN:
            return
        queue = Queue(_real_topic(message), message.group, message.queue_id)
        self._sent_back.append((queue, message.queue_offset))
        await self._ask_to_send_back(links, queue, message.queue_offset)

    async def _ask_to_send_back(self, links: GroupLinks, queue: Queue, offset: int) -> None:
        row = SendBackRow(topic=queue.topic, queue=queue.queue, offset=offset, delay_level=_LEVEL)
        request = SendBack(group=self._group, messages=[row], max_reconsume_times=RETRIES_MAX)
        try:
            await call_group(links, queue, request)
        except PacelineError:
            return  # the library goes on asking


async def call_group(links: GroupLinks, queue: Queue, request: Request[AnswerT]) -> Reply[AnswerT]:
    """One call about a consumer group, to the master that has the queue."""
    return await links.call(
        GroupName(queue.group), request, timeout_ms=CALL_TIMEOUT_MS, attempt_ms=1_000
    )


async def ask_committed(around: Around, links: GroupLinks, group: str, queue: Queue) -> int | None:
    """The offset that a group has committed, 0 if there is none; None if nobody says."""
    request = offsets.Offsets(
        group=group, queues=[offsets.QueueOf(topic=queue.topic, queue=queue.queue)]
    )
    with around.recorder.asking(
        QueryOffset, client=around.client, consumer_group=group, queue=queue
    ) as asking:
        try:
            answer, envelope = await call_group(links, queue, request)
        except PacelineError as error:
            asking.raised(error)
            return None
        [row] = answer.offsets
        asking.ok(offset=row.offset, maybe_stale=envelope.maybe_stale)
        return row.offset or 0


async def look_at_offsets(
    around: Around,
    cluster: Cluster,
    links: GroupLinks,
    group: str,
    *topics: str,
    share: float = _LOOK_SHARE,
) -> None:
    """Now and then: what the library has committed is judged by what the group is told (S21)."""
    queues = [queue for topic in topics for queue in queues_in(cluster, topic)]
    if queues and around.happens(share):
        await ask_committed(around, links, group, around.choice(queues))


class _ListenerFailedError(ConsumeLater):
    """What an application may raise: the message comes again, soon enough for a world."""

    def __init__(self) -> None:
        super().__init__(delay_level=_LEVEL)


def _real_topic(message: ReceivedMessage) -> str:
    """Where the message lies: listeners are shown a retry under the topic it was sent to."""
    return message.properties.get(names.REAL_TOPIC, message.topic)


def _is_poison(message: ReceivedMessage) -> bool:
    """Some messages never work: no dice, so that every attempt fails."""
    return crc_of(message.body) % _POISON_ONE_IN == 0


class OrderedConsumer:
    """Consumes queues in order, each under its lock."""

    def __init__(
        self, around: Around, *, group: str = ORDERED_GROUP, label: str = "ordered"
    ) -> None:
        self._around = around
        self._group = group
        self._member = f"{around.alias}/{label}"
        self._former: dict[Queue, int] = {}
        """Tokens that it held last, given back or not."""

    async def run(self) -> None:
        """Take queues by chance until it is over."""
        around = self._around
        cluster = around.cluster()
        cluster.start()
        links = GroupLinks(cluster)
        try:
            while not around.is_over():
                queues = queues_in(cluster, around.topic)
                if queues:
                    await self._hold(cluster, links, around.choice(queues))
                await around.think()
        finally:
            await links.close()
            await cluster.close()

    async def _hold(self, cluster: Cluster, links: GroupLinks, queue: Queue) -> None:
        """Lock, work some rounds from the committed offset on, unlock (most times)."""
        around = self._around
        token = await self._lock(links, queue, None)
        if queue in self._former and around.happens(_UNLOCK_LATE_SHARE):
            # It was on its way for long: what is held now must stand (R33).
            await self._unlock(links, queue, self._former.pop(queue))
        offset = (
            None if token is None else await ask_committed(self._around, links, self._group, queue)
        )
        if token is None or offset is None:
            return
        for _ in range(around.whole(1, 6)):
            if around.is_over():
                break
            done = await self._work(cluster, links, queue, token, offset)
            if done is None:
                return  # fenced, or nobody knows: whoever locks next begins at the committed offset
            offset = done
            if around.happens(0.1):
                await pause(around.random.uniform(0, 1.5 * _LEASE_MS))  # perhaps too long
            elif around.happens(0.5) and await self._lock(links, queue, token) != token:
                return
            elif around.happens(_ANEW_SHARE):
                # As after a crash: what it had under way under its old token must not count.
                anew = await self._lock(links, queue, None)
                await self._commit(links, queue, token, offset)
                await self._unlock(links, queue, token)
                if anew is None:
                    return
                token = anew
                await pause(around.random.uniform(0, 0.5 * _LEASE_MS))
        if around.happens(0.8):
            await self._unlock(links, queue, token)
        self._former[queue] = token

    async def _lock(self, links: GroupLinks, queue: Queue, token: int | None) -> int | None:
        """The token, if the lock was granted, or the grant of `token` renewed."""
        around = self._around
        request = locks.Lock(
            group=self._group,
            client_id=self._member,
            lease_ms=_LEASE_MS,
            queues=[_lock_row(queue, token)],
        )
        with around.recorder.asking(
            Lock,
            client=around.client,
            consumer_group=self._group,
            member=self._member,
            queue=queue,
            lease_ms=_LEASE_MS,
            is_renewal=token is not None,
        ) as asking:
            try:
                reply = await call_group(links, queue, request)
            except PacelineError as error:
                asking.raised(error)
                return None
            [row] = reply.answer.queues
            assert row.token is not None, row
            granted = token_number(row.token)
            asking.ok(token=granted)
            return granted

    async def _unlock(self, links: GroupLinks, queue: Queue, token: int) -> None:
        around = self._around
        request = locks.Unlock(
            group=self._group, client_id=self._member, queues=[_lock_row(queue, token)]
        )
        with around.recorder.asking(
            Unlock,
            client=around.client,
            consumer_group=self._group,
            member=self._member,
            queue=queue,
            token=token,
        ) as asking:
            try:
                await call_group(links, queue, request)
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok()

    async def _work(
        self, cluster: Cluster, links: GroupLinks, queue: Queue, token: int, offset: int
    ) -> int | None:
        """Process some messages from `offset` on and commit; the next offset, None to give up."""
        around = self._around
        address = _master(cluster, queue)
        if address is None:
            return None
        rows = await pull_http(cluster, around, address, queue, offset, "")
        if isinstance(rows, OffsetOutOfRangeError):
            kept = first_of(rows, offset)  # the same if it is not retention: who acts may have less
            return kept if kept > offset else None
        if isinstance(rows, PacelineError):
            return None
        for row in rows[: around.whole(1, 10)]:
            await self._deliver(queue, row, token)
            offset = row.offset + 1
        if rows and not await self._commit(links, queue, token, offset):
            return None
        return offset

    async def _deliver(self, queue: Queue, message: Seen, token: int) -> None:
        around = self._around
        with around.recorder.asking(
            Deliver,
            client=around.client,
            consumer_group=self._group,
            member=self._member,
            queue=queue,
            message=message,
            token=token,
        ) as asking:
            await pause(around.random.uniform(0, _PROCESS_MS_MAX))
            asking.ok()

    async def _commit(self, links: GroupLinks, queue: Queue, token: int, offset: int) -> bool:
        around = self._around
        row = offsets.CommitRow(
            topic=queue.topic, queue=queue.queue, offset=offset, token=_pair(token)
        )
        request = offsets.Commit(group=self._group, offsets=[row])
        with around.recorder.asking(
            Commit,
            client=around.client,
            consumer_group=self._group,
            member=self._member,
            queue=queue,
            offset=offset,
            token=token,
        ) as asking:
            try:
                reply = await call_group(links, queue, request)
            except PacelineError as error:
                asking.raised(error)
                return False
            asking.ok(is_provisional=reply.envelope.acting)
            return True


def _pair(token: int) -> tuple[int, int]:
    """As it is on the wire."""
    return token >> 64, token & (2**64 - 1)


def _lock_row(queue: Queue, token: int | None) -> locks.LockRow:
    held = None if token is None else _pair(token)
    return locks.LockRow(topic=queue.topic, queue=queue.queue, token=held)


def _master(cluster: Cluster, queue: Queue) -> str | None:
    view = cluster.view
    return None if view is None else reading_address(view, GroupName(queue.group))
