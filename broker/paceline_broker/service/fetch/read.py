"""What a fetch finds at this moment: parts and views, without waiting for anything.

Synchronous and without side effects, so that a look costs little and can be repeated.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paceline.errors import PacelineError
from paceline.platform.ports import Buffer
from paceline.types import PhysicalOffset
from paceline.wire.stream import (
    FETCH_ANSWER,
    FETCH_FLAG_ACTING,
    FETCH_PART,
    FOLLOW_ANSWER,
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    FetchCode,
    FetchPart,
    FetchQueue,
)
from paceline_broker.ports import LogReader, Role
from paceline_broker.projections.consume_queues import ConsumeQueue, Span, queue_key
from paceline_broker.service.fetch.replica_suggestion import SlowReads
from paceline_broker.service.routes import Routes

HOT_TAIL_BYTES = 1024 * 1024
"""What was appended last is in memory: it came through memory, or recovery has just read it. The
residency question (mincore, some us) is asked only below this much of the confirmed tail."""
COST_QUEUES = 16
"""To look at so many queues costs a turn as much as to answer a request."""
JOIN_COUNT = 32
JOIN_BYTES_EACH = 4096
_VIEWS_ASKED_MAX = 16
"""Residency is asked of single views up to this many, else of the whole stretch they lie in."""


class RoundState(Protocol):
    """Whether a read round begun after the request has ended, and how (R3)."""

    is_round_done: bool
    is_round_failed: bool


class Asked:
    """What a fetch wants, and how far it has come."""

    __slots__ = ("is_over", "is_round_done", "is_round_failed", "max_bytes", "queues")

    def __init__(self, queues: Sequence[FetchQueue], max_bytes: int) -> None:
        self.queues = queues
        self.max_bytes = max_bytes
        self.is_over = False
        """No time left: answer with what there is."""
        self.is_round_done = False
        """A read round begun after the request is done, so out of range may be said (R3)."""
        self.is_round_failed = False


@dataclass(slots=True)
class Fetched:
    """An answer: parts in the order asked, and the bytes that follow them in the same order."""

    epoch: int
    confirm: int
    parts: list[FetchPart] = field(default_factory=list)
    buffers: Sequence[Buffer] = ()
    size_bytes: int = 0
    seen: int | None = None
    """Of a fetch session: the sequence of its last request that this answer knows of."""

    def head(self) -> bytes:
        """`FETCH_ANSWER` and the parts; `buffers` follow on the wire."""
        packed = [FETCH_ANSWER.pack(self.epoch, len(self.parts), self.confirm)]
        if self.seen is not None:
            packed.insert(0, FOLLOW_ANSWER.pack(self.seen))
        packed.extend(FETCH_PART.pack(*part) for part in self.parts)
        return b"".join(packed)

    def join_small(self) -> None:
        """Many small views are joined: a copy of 4 KiB costs less than one more of a writev."""
        if len(self.buffers) > JOIN_COUNT and self.size_bytes < JOIN_BYTES_EACH * len(self.buffers):
            self.buffers = [b"".join(self.buffers)]


class FetchSink(Protocol):
    """Where fetches are answered. Each request id gets exactly one call unless it is cancelled."""

    @property
    def asker(self) -> Hashable:
        """The address that asks; all who ask over HTTP count as one."""

    def fetched(self, request_id: int, answer: Fetched) -> None: ...

    def failed(self, request_id: int, error: PacelineError) -> None: ...


@dataclass(slots=True)
class Gathered:
    """An answer in the making."""

    answer: Fetched
    deep: list[memoryview] = field(default_factory=list)
    """Views below the hot tail, whose pages may be cold."""
    unsure: list[tuple[PhysicalOffset, memoryview]] = field(default_factory=list)
    """The same batches with their positions: verified before they leave (R24)."""
    counts: list[tuple[int, int, int]] = field(default_factory=list)
    """(topic id, messages, bytes) for the metrics."""
    has_code: bool = False
    """A part says something that waiting does not change."""
    needs_round: bool = False
    is_moved: bool = False
    """Filters have passed over something."""


def gather(
    asked: Asked, role: Role, routes: Routes, slow: SlowReads, *, is_open: bool, turn: int
) -> Gathered:
    """Everything readable now, up to the limits. `is_open`: this is the master of an open epoch.

    `turn` says with which queue to begin, so that under a byte limit none is starved for ever.
    """
    count = len(asked.queues)
    heads = FRAME_HEADER_BYTES + FETCH_ANSWER.size + FETCH_PART.size * count
    room = min(asked.max_bytes, FRAME_BYTES_MAX - heads)
    gathering = Gathering(role, routes, slow, is_open=is_open, room=room)
    parts: list[FetchPart | None] = [None] * count
    views: list[list[memoryview]] = [[] for _ in range(count)]
    for step in range(count):
        index = (turn + step) % count
        parts[index], views[index] = gathering.look(asked.queues[index], asked)
    found = gathering.found
    answer = found.answer
    answer.parts = [part for part in parts if part is not None]
    if heads + answer.size_bytes > FRAME_BYTES_MAX:
        # One batch near the limit was the first: its part goes alone, the frame must hold it.
        answer.parts = [part for part in answer.parts if part.size]
    answer.buffers = [view for part_views in views for view in part_views]
    return found


class Gathering:
    """An answer that grows queue by queue, up to `room` bytes or one batch."""

    def __init__(
        self, role: Role, routes: Routes, slow: SlowReads, *, is_open: bool, room: int
    ) -> None:
        """`is_open`: this is the master of an open epoch."""
        self.found = Gathered(Fetched(role.epoch, role.reader.confirm))
        self._role = role
        self._routes = routes
        self._slow = slow
        self._is_open = is_open
        self._room = room
        self._usual_flags = 0 if role.acting is None else FETCH_FLAG_ACTING
        self._slow_below = slow.floor(role.reader.confirm)

    def look(self, queue: FetchQueue, state: RoundState) -> tuple[FetchPart, list[memoryview]]:
        """What there is of one queue; it counts as taken."""
        found = self.found
        total = found.answer.size_bytes
        part, span = _look(
            queue,
            state,
            self._role,
            self._routes,
            found,
            self._is_open,
            self._room - total,
            total == 0,
        )
        flags = self._usual_flags
        views: list[memoryview] = []
        if span is not None:
            if span.runs[0].position < self._slow_below:
                flags |= self._slow.flags(queue.topic_id, queue.queue_id)
            found.answer.size_bytes = total + span.size_bytes
            views = _views(self._role.reader, span, found)
            messages = span.next_offset - queue.offset
            found.counts.append((queue.topic_id, messages, span.size_bytes))
        return (part._replace(flags=flags) if flags else part), views


def _look(
    asked: FetchQueue,
    request: RoundState,
    role: Role,
    routes: Routes,
    found: Gathered,
    is_open: bool,
    room: int,
    is_first: bool,
) -> tuple[FetchPart, Span | None]:
    """One queue: its part, and the batches if there are any."""
    topic_id, queue_id, offset, max_bytes, _ = asked
    if routes.view is None or not role.reader.is_readable:
        return FetchPart(topic_id, queue_id, FetchCode.NOT_YET_AVAILABLE, 0, 0, 0), None
    if queue_id >= routes.queue_counts.get(topic_id, 0):
        found.has_code = True
        return FetchPart(topic_id, queue_id, FetchCode.UNKNOWN_QUEUE, 0, 0, 0), None
    if topic_id in routes.unreadable:
        found.has_code = True
        return FetchPart(topic_id, queue_id, FetchCode.NO_PERMISSION, 0, 0, 0), None
    queue = role.projections.consume_queues.get(queue_key(topic_id, queue_id))
    start, end, folded = (0, 0, 0) if queue is None else _range(queue, found.answer.confirm)
    code = FetchCode.OK
    span = None
    if start <= offset <= end:
        if queue is not None:
            span = queue.span(
                offset,
                confirm=found.answer.confirm,
                max_bytes=min(max_bytes, room),
                is_first=is_first,
            )
        if span is not None and _is_damaged(role.reader, span):
            code, span = FetchCode.NOT_YET_AVAILABLE, None
    elif offset < start:
        code = FetchCode.OFFSET_OUT_OF_RANGE
        found.has_code = True
    elif not is_open:
        code = FetchCode.NOT_YET_AVAILABLE  # ahead of this broker is not out of range (R3)
    elif offset > folded:
        if request.is_round_done:
            code = FetchCode.OFFSET_OUT_OF_RANGE
            found.has_code = True
        elif request.is_round_failed:
            code = FetchCode.NOT_YET_AVAILABLE
        else:
            found.needs_round = True
    size = 0 if span is None else span.size_bytes
    return FetchPart(topic_id, queue_id, code, start, end, size), span


def _is_damaged(reader: LogReader, span: Span) -> bool:
    last = span.runs[-1]
    return reader.is_damaged(span.runs[0].position, PhysicalOffset(last.position + last.size_bytes))


def _range(queue: ConsumeQueue, confirm: int) -> tuple[int, int, int]:
    """Start, confirmed end, and the end of what is folded."""
    return queue.start, queue.confirmed_end(confirm), queue.end


def _views(reader: LogReader, span: Span, found: Gathered) -> list[memoryview]:
    """Views of the span's runs; those that may be cold are noted in `found`."""
    runs = span.runs
    start = runs[0].position
    last = runs[-1]
    stretch = reader.read(start, last.position + last.size_bytes - start)
    covered = start + len(stretch)
    views: list[memoryview] = []
    for position, size_bytes in runs:
        if position + size_bytes <= covered:
            views.append(stretch[position - start : position - start + size_bytes])
            continue
        at, end = position, position + size_bytes
        while at < end:  # the run goes on in the next segment
            view = reader.read(at, end - at)
            assert len(view) > 0, (at, end)
            views.append(view)
            at = type(at)(at + len(view))
    if start < found.answer.confirm - HOT_TAIL_BYTES:
        found.unsure.extend(_placed(span, views))
        found.deep.extend(views if len(views) <= _VIEWS_ASKED_MAX else [stretch, views[-1]])
    return views


def _placed(span: Span, views: list[memoryview]) -> list[tuple[PhysicalOffset, memoryview]]:
    """Each view with its position: the runs follow one another, cut where segments end."""
    placed, rest = [], iter(views)
    for position, size_bytes in span.runs:
        at, end = position, position + size_bytes
        while at < end:
            view = next(rest)
            placed.append((at, view))
            at = PhysicalOffset(at + len(view))
    return placed
