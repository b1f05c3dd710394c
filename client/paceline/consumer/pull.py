"""The pull consumer: the application names queues and positions, and asks for messages.

Batches are fetched ahead into a bounded buffer per queue; `poll` hands them out. No group is
involved unless the application commits or reads offsets of one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from paceline.consumer.fetch.assigned import Assigned, PulledBatch
from paceline.consumer.fetch.fetched import FetchedBatch, QueueFetch, Trouble
from paceline.consumer.fetch.fetcher import FetchSession
from paceline.consumer.fetch.replica_reads import ReplicaReads
from paceline.consumer.fetch.segment_order import SegmentLines
from paceline.consumer.fetch.unreadable_topics import UnreadableTopics
from paceline.consumer.opened import ReadingConsumer
from paceline.consumer.queues.segments import SegmentBook
from paceline.errors import (
    ConflictError,
    CorruptLogError,
    OffsetOutOfRangeError,
    QueueNotFoundError,
)
from paceline.filters import ALL, Filter
from paceline.message import ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.net.connect import Bootstrap
from paceline.net.group_links import GroupLinks
from paceline.queues import QueueKey, QueueName, queues_of
from paceline.records.header import BATCH_BYTES_MAX, Kind
from paceline.types import GroupName, QueueOffset, TopicName
from paceline.wire.calls import offsets as wire
from paceline.wire.calls.request import AnswerT, Reply, Request, to_json
from paceline.wire.stream import FetchPart

FIRST = "first"
LAST = "last"
_CORRUPT_ATTEMPTS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """How a pull consumer fetches."""

    fetch_bytes_max: int = 4 * 1024 * 1024
    """Of one answer; at least one batch comes in any case."""
    queue_bytes_max: int = 1024 * 1024
    """Of one queue in one answer."""
    buffer_bytes_max: int = 4 * 1024 * 1024
    """Fetched ahead and not polled, per queue; above it the queue pauses."""
    call_timeout_ms: int = 10_000


class QueueRange(NamedTuple):
    """The confirmed offsets of a queue: [start, end)."""

    start: QueueOffset
    end: QueueOffset
    maybe_stale: bool = False
    """An acting master said so: a master has this, and perhaps more (R36)."""


class CommittedOffsets(dict[QueueName, QueueOffset | None]):
    """What a consumer group has committed, by queue; None where it never has."""

    stale_groups: frozenset[GroupName] = frozenset()
    """Broker groups of which an acting master answered: a master may know of more (R36)."""


class PullConsumer(ReadingConsumer):
    """Reads assigned queues on one event loop; `async with` or `close`."""

    def __init__(
        self, bootstrap: Bootstrap | Cluster, *, settings: PullSettings | None = None
    ) -> None:
        """`bootstrap`: "host:port,..." of controllers or brokers, or a `Cluster` to share."""
        self._settings = settings or PullSettings()
        self._topic_wait_ms = self._settings.call_timeout_ms // 5
        super().__init__(bootstrap)
        self._links = GroupLinks(self._cluster)
        self._sessions: dict[GroupName, FetchSession] = {}
        self._assigned: dict[QueueKey, Assigned] = {}
        self._ready: OrderedDict[QueueKey, None] = OrderedDict()
        self._waiter: asyncio.Future[None] | None = None
        self._lines = SegmentLines(SegmentBook(lambda: self._cluster.view), self._assigned)
        self._refusals = UnreadableTopics(self._cluster, self._reads, on_refused=self._wake)
        self._end_listening = self._cluster.watch.listen(lambda view: self._follow())

    async def close(self) -> None:
        """Stop fetching and disconnect."""
        self._end_listening()
        self._refusals.close()
        for session in self._sessions.values():
            session.close()
        await self._links.close()
        await self._leave_cluster()

    # -- queues and positions ---------------------------------------------------------------------

    async def queues(self, topic: str) -> list[QueueName]:
        """All queues of a topic, in stable order. TopicNotFoundError."""
        found = await self._cluster.wait_topic(topic, timeout_ms=self._topic_wait_ms)
        return [QueueName(found.topic, key.group, key.queue_id) for key in queues_of(found)]

    async def ranges(self, queues: Iterable[QueueName]) -> dict[QueueName, QueueRange]:
        """First and end offset of queues, as of now (R4)."""
        found: dict[QueueName, QueueRange] = {}
        for group, names in _by_group(queues).items():
            rows = [wire.QueueOf(topic=name.topic, queue=name.queue_id) for name in names]
            answer, envelope = await self._call(group, wire.Ends(queues=rows))
            for name, row in zip(names, answer.queues, strict=True):
                start, end = QueueOffset(row.start), QueueOffset(row.end)
                found[name] = QueueRange(start, end, envelope.acting)
        return found

    async def assign(
        self, positions: Mapping[QueueName, int | str], *, wanted: Filter = ALL
    ) -> None:
        """Read exactly these queues, from an offset, "first" or "last" (only what comes now).

        Queues that were assigned before and are not named are dropped; the others seek and keep
        their filter.
        """
        lasts = self._lines.lasts(self._present_keys(positions))
        resolved = await self._resolve(positions)
        keys = {name: await self._key(name) for name in positions}
        named = set(keys.values())
        for key in [key for key in self._assigned if key not in named]:
            del self._assigned[key]
            self._sessions[key.group].remove(key)
        for name, key in keys.items():
            known = self._assigned.get(key)
            if known is None:
                fetch = QueueFetch(key, resolved[name], wanted)
                self._assigned[key] = Assigned(name, fetch)
                self._session(key.group).add(fetch)
            else:
                self._seek(known, resolved[name])
        self._lines.named(lasts)
        self._follow()

    def _follow(self) -> None:
        """Of static topics: read the segments that have come, each behind the one before it."""
        for item in self._lines.come():
            self._assigned[item.fetch.key] = item
            self._session(item.fetch.key.group).add(item.fetch)
        self._in_line(self._assigned)

    def _in_line(self, keys: Iterable[QueueKey]) -> None:
        for item in self._lines.settle(keys):
            self._set_room(item)
            if item.batches:
                self._make_ready(item)

    async def subscribe(
        self, topic: str, *, start: int | str = FIRST, wanted: Filter = ALL
    ) -> None:
        """Assign all present queues of a topic, from `start`; `wanted`: `make_filter`.

        Of a static topic all segments, those of a logical queue one after another, also those that
        come later.
        """
        await self.assign(dict.fromkeys(await self.queues(topic), start), wanted=wanted)

    async def seek(self, queue: QueueName, position: int | str) -> None:
        """Go on from another offset; what was fetched ahead is thrown away."""
        key = await self._key(queue)
        if key in self._assigned:
            resolved = await self._resolve({queue: position})
            if key in self._assigned:  # another assignment may have come while ends were asked for
                self._seek(self._assigned[key], resolved[queue])
                return
        raise QueueNotFoundError(f"queue {queue.group}/{queue.queue_id} is not assigned")

    def position(self, queue: QueueName) -> QueueOffset:
        """The offset of the next message that `poll` returns of an assigned queue."""
        for assigned in self._assigned.values():
            if assigned.name == queue:
                return QueueOffset(assigned.position)
        raise QueueNotFoundError(f"queue {queue.group}/{queue.queue_id} is not assigned")

    # -- messages ---------------------------------------------------------------------------------

    async def poll(
        self,
        *,
        max_messages: int = 500,
        timeout_ms: int = 1_000,
        messages_max: int | None = None,
    ) -> list[ReceivedMessage]:
        """At least one message of the assigned queues, or none after `timeout_ms`.

        `messages_max` is the former name of `max_messages`.

        In order within each queue. OffsetOutOfRangeError (details `queue`, `start`, `end`): a
        queue's position is not there any more. With `goes_on_at` it was deleted by retention: that
        is said once, and the next poll goes on at the first kept message; else seek it. The other
        queues go on. QueueNotFoundError: the topic was deleted. CorruptLogError: brokers keep
        answering damaged bytes. NoPermissionError while a topic gives no messages: later polls go
        on when it does again; so with NotAuthorizedError and UnauthenticatedError, if nothing came
        and the cluster refuses to let it read.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while (
            not (found := await self._polled(messages_max or max_messages, timeout_ms))
            and timeout_ms > 0
        ):
            timeout_ms = int((deadline - loop.time()) * 1000)  # a filter wanted none of them
        return found

    async def _polled(self, max_messages: int, timeout_ms: int) -> list[ReceivedMessage]:
        assigned = await self._next_ready(timeout_ms)
        found: list[ReceivedMessage] = []
        while assigned is not None:
            decoded = assigned.decoded()
            first = assigned.decoded_at
            taken = decoded[first : first + max_messages - len(found)]
            found += taken
            if first + len(taken) < len(decoded):
                assigned.decoded_at += len(taken)
                assigned.position = taken[-1].queue_offset + 1
                self._ready[assigned.fetch.key] = None
                break
            self._pop(assigned)
            assigned = self._take_ready(is_first=False) if len(found) < max_messages else None
        return found

    async def poll_batch(self, *, timeout_ms: int = 1_000) -> PulledBatch | None:
        """The next whole batch, undecoded: the fastest way for bulk. Errors as for `poll`."""
        assigned = await self._next_ready(timeout_ms)
        if assigned is None:
            return None
        view = assigned.batches[0].view
        skip = max(0, assigned.position - view.header.base_queue_offset)
        self._pop(assigned)
        return PulledBatch(assigned.name, view, skip, assigned.fetch.wanted, assigned.place)

    # -- offsets of groups ------------------------------------------------------------------------

    async def committed(self, consumer_group: str, queues: Iterable[QueueName]) -> CommittedOffsets:
        """What a consumer group has committed; None where it never has."""
        found = CommittedOffsets()
        for group, names in _by_group(queues).items():
            rows = [wire.QueueOf(topic=name.topic, queue=name.queue_id) for name in names]
            request = wire.Offsets(group=consumer_group, queues=rows)
            answer, envelope = await self._call(group, request)
            if envelope.acting:
                found.stale_groups |= {group}
            for name, row in zip(names, answer.offsets, strict=True):
                found[name] = None if row.offset is None else QueueOffset(row.offset)
        return found

    async def commit(
        self,
        consumer_group: str,
        offsets: Mapping[QueueName, int] | None = None,
        *,
        reset: bool = False,
    ) -> frozenset[GroupName]:
        """Commit offsets (default: the positions of all assigned queues) for a consumer group.

        Each is the next offset to consume. OffsetMovedBackError below the committed one, unless
        `reset`; OffsetOutOfRangeError beyond the queue's end. Returns the broker groups whose
        acting master has taken them provisionally, to hand them to the next master (R36).
        """
        provisional: set[GroupName] = set()
        if offsets is None:
            offsets = {item.name: item.position for item in self._assigned.values()}
        for group, names in _by_group(offsets).items():
            rows = [
                wire.CommitRow(topic=name.topic, queue=name.queue_id, offset=offsets[name])
                for name in names
            ]
            request = wire.Commit(group=consumer_group, offsets=rows, reset=reset)
            answer, envelope = await self._call(group, request)
            if envelope.acting:
                provisional.add(group)
            refused = [row for row in answer.offsets if row.code is not None]
            if refused:
                raise ConflictError(
                    f"{len(refused)} of {len(names)} offsets were refused: {refused[0].code}",
                    offsets=to_json(refused),
                )
        return frozenset(provisional)

    # -- inside -----------------------------------------------------------------------------------

    async def _next_ready(self, timeout_ms: int) -> Assigned | None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    self._refusals.raise_fresh()
                    assigned = self._take_ready(is_first=True)
                    if assigned is not None:
                        self._links.refusals.passed()
                        return assigned
                    self._waiter = asyncio.get_running_loop().create_future()
                    await self._waiter
        except TimeoutError:
            self._refusals.raise_standing()
            self._links.refusals.raise_heard()
            return None

    def _take_ready(self, *, is_first: bool) -> Assigned | None:
        """A queue with a batch. An error is raised only if nothing would be lost by it."""
        while self._ready:
            assigned = self._assigned.get(self._ready.popitem(last=False)[0])
            if assigned is None or assigned.is_behind:
                continue
            if assigned.batches:
                return assigned
            if assigned.error is not None:
                if not is_first:
                    self._ready[assigned.fetch.key] = None
                    return None
                error, assigned.error = assigned.error, None
                if assigned.goes_on_at is not None:
                    self._seek(assigned, assigned.goes_on_at)
                raise error
        return None

    def _pop(self, assigned: Assigned) -> None:
        batch = assigned.batches.popleft()
        assigned.forget_decoded()
        assigned.held_bytes -= batch.view.header.size_bytes
        assigned.position = batch.view.header.end_queue_offset
        if not assigned.batches:
            assigned.position = assigned.fetch.position  # a filter may have passed over the rest
        if assigned.batches or assigned.error is not None:
            self._ready[assigned.fetch.key] = None
        self._regulate(assigned)

    def _regulate(self, assigned: Assigned) -> None:
        self._set_room(assigned)
        if assigned.place is not None:
            self._in_line((assigned.fetch.key,))

    def _set_room(self, assigned: Assigned) -> None:
        has_room = not assigned.is_behind and assigned.held_bytes < self._settings.buffer_bytes_max
        if has_room != assigned.fetch.has_room:
            assigned.fetch.has_room = has_room
            if has_room:
                self._sessions[assigned.fetch.key.group].wake()

    def _session(self, group: GroupName) -> FetchSession:
        session = self._sessions.get(group)
        if session is None:
            session = self._sessions[group] = FetchSession(
                self._links.link(group),
                self._cluster.random,
                fetch_bytes_max=min(self._settings.fetch_bytes_max, BATCH_BYTES_MAX),
                queue_bytes_max=self._settings.queue_bytes_max,
                on_batches=self._on_batches,
                on_trouble=self._on_trouble,
                replica_reads=partial(ReplicaReads, self._cluster, group),
            )
        return session

    def _on_batches(self, queue: QueueFetch, batches: list[FetchedBatch], end: int) -> None:
        assigned = self._assigned.get(queue.key)
        if assigned is None or assigned.fetch is not queue:
            return
        for batch in batches:
            header = batch.view.header
            if header.kind == Kind.NORMAL:
                assigned.batches.append(batch)
                assigned.held_bytes += header.size_bytes
        assigned.corrupt_attempts = 0
        if assigned.batches:
            self._make_ready(assigned)
        else:
            assigned.position = queue.position
        self._regulate(assigned)

    def _on_trouble(self, queue: QueueFetch, trouble: Trouble, part: FetchPart | None) -> None:
        assigned = self._assigned.get(queue.key)
        if assigned is None or assigned.fetch is not queue:
            return
        name = assigned.name
        if trouble is Trouble.NO_PERMISSION:
            self._refusals.note(name.topic)
            return
        if trouble is Trouble.OUT_OF_RANGE and part is not None:
            self._out_of_range(assigned, part)
        elif trouble is Trouble.UNKNOWN_QUEUE:
            topic = self._cluster.topic(name.topic)
            if topic is not None and topic.topic_id == queue.key.topic_id:
                return  # the broker is behind our view: it is asked again
            assigned.error = QueueNotFoundError(f"topic {name.topic} was deleted")
            queue.has_room = False
        else:
            assigned.corrupt_attempts += 1
            if assigned.corrupt_attempts < _CORRUPT_ATTEMPTS_MAX:
                return
            assigned.error = CorruptLogError(
                f"{name.topic} {name.group}/{name.queue_id} at {queue.position}: damaged bytes"
            )
        self._make_ready(assigned)

    def _out_of_range(self, assigned: Assigned, part: FetchPart) -> None:
        name, position = assigned.name, assigned.fetch.position
        is_deleted = position < part.start
        details: dict[str, Any] = {"queue": list(name), "start": part.start, "end": part.end}
        if is_deleted:
            assigned.goes_on_at = details["goes_on_at"] = part.start
        assigned.error = OffsetOutOfRangeError(
            f"offset {position} of {name.topic} {name.group}/{name.queue_id} is not in"
            f" [{part.start}, {part.end})" + (": what is missing was deleted" * is_deleted),
            **details,
        )
        assigned.fetch.has_room = False  # until a seek

    def _make_ready(self, assigned: Assigned) -> None:
        self._ready[assigned.fetch.key] = None  # where it stands, if it does
        self._wake()

    def _reads(self, topic: TopicName) -> bool:
        return any(assigned.name.topic == topic for assigned in self._assigned.values())

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _seek(self, assigned: Assigned, position: int) -> None:
        assigned.batches.clear()
        assigned.forget_decoded()
        assigned.held_bytes = 0
        assigned.error = assigned.goes_on_at = None
        assigned.position = position
        assigned.fetch.seek(position)
        self._regulate(assigned)
        self._sessions[assigned.fetch.key.group].wake()

    async def _resolve(self, positions: Mapping[QueueName, int | str]) -> dict[QueueName, int]:
        named = [name for name, position in positions.items() if isinstance(position, str)]
        ranges = await self.ranges(named) if named else {}
        resolved: dict[QueueName, int] = {}
        for name, position in positions.items():
            if isinstance(position, int):
                resolved[name] = position
            elif position in (FIRST, LAST):
                resolved[name] = ranges[name].start if position == FIRST else ranges[name].end
            else:
                raise OffsetOutOfRangeError(f"{position!r} is no offset, {FIRST!r} or {LAST!r}")
        return resolved

    async def _key(self, name: QueueName) -> QueueKey:
        topic = await self._cluster.wait_topic(name.topic, timeout_ms=self._topic_wait_ms)
        if name.queue_id >= topic.queues.get(name.group, 0):
            raise QueueNotFoundError(
                f"topic {name.topic} has no queue {name.group}/{name.queue_id}"
            )
        return QueueKey(topic.topic_id, name.group, name.queue_id)

    def _present_keys(self, names: Iterable[QueueName]) -> list[QueueKey]:
        """Of those whose topic the present view has."""
        return [
            QueueKey(topic.topic_id, name.group, name.queue_id)
            for name in names
            if (topic := self._cluster.topic(name.topic)) is not None
        ]

    async def _call(self, group: GroupName, request: Request[AnswerT]) -> Reply[AnswerT]:
        timeout_ms = self._settings.call_timeout_ms
        return await self._links.call(group, request, timeout_ms=timeout_ms)


def _by_group(queues: Iterable[QueueName]) -> dict[GroupName, list[QueueName]]:
    found: dict[GroupName, list[QueueName]] = {}
    for name in queues:
        found.setdefault(name.group, []).append(name)
    return found
