"""Pure: calls about offsets: commits, ranges of queues, lag, resets."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from paceline.wire.calls.request import (
    QUEUES_MAX,
    Answer,
    LockToken,
    Number,
    QueueNumber,
    Request,
    Route,
    Row,
    Text,
    TopicNumber,
)
from paceline.wire.rights import GET, PUB, SEE_CLUSTER, SUB, UPDATE, Needs, on_group, on_topic


class QueueOf(Row, kw_only=True):
    """A queue, by the name of its topic or its number."""

    topic: Text | None = None
    topic_id: TopicNumber | None = None
    queue: QueueNumber


class CommitRow(QueueOf, kw_only=True):
    """Where a group goes on in a queue."""

    offset: Number
    token: LockToken | None = None
    """Of the queue's lock, if the group has locked it."""
    generation: Number | None = None
    """That the group was in when it read; a reset begins the next one."""


class CommittedRow(Answer, kw_only=True):
    """Where a group stands on a queue."""

    topic_id: int
    queue: int
    offset: int | None
    generation: int
    code: str | None
    """Why the commit of this queue was refused: OFFSET_MOVED_BACK, OFFSET_OUT_OF_RANGE,
    LOCK_FENCED, RECEIPTS_OPEN (messages are out at simple consumers)."""


class Committed(Answer):
    """A row for each queue, in the order asked."""

    offsets: list[CommittedRow]


class Commit(Request[Committed], kw_only=True):
    """Commit offsets of a group: the highest counts.

    `reset` may lower an offset, and needs Update on the group instead. It starts a generation,
    and a commit that names an older one is refused. `code` of a row is null, or
    OFFSET_MOVED_BACK, OFFSET_OUT_OF_RANGE, LOCK_FENCED, or RECEIPTS_OPEN (simple consumers have
    received messages that they have not acknowledged). If every queue is refused, the call
    fails with the first code, and the rows stand in the problem's `offsets`."""

    routes = (Route("PUT", "/v1/groups/{group}/offsets"),)
    needs = (on_group(SUB), on_topic(SUB, field="offsets"))
    group: Text
    offsets: Annotated[list[CommitRow], Meta(min_length=1, max_length=QUEUES_MAX)]
    reset: bool = False

    def needed(self) -> Needs:
        """A reset moves all members."""
        return (on_group(UPDATE),) if self.reset else self.needs


class StandingRow(CommittedRow, kw_only=True):
    """Where a group stands on a queue, and since when."""

    joined_offset: int | None
    """Where the queue stood when the group first committed on its topic here."""
    joined_unix_ms: int | None


class Standings(Answer):
    """In the order asked; of all queues in the order of topic and queue."""

    offsets: list[StandingRow]


class Offsets(Request[Standings], kw_only=True):
    """Where a group stands, on these queues or on all that it has committed here. Waits for confirm
    and one read round (R4)."""

    routes = (Route("GET", "/v1/groups/{group}/offsets"),)
    needs = (on_group(SUB, GET), on_topic(SUB, GET, field="queues"))
    group: Text
    queues: Annotated[list[QueueOf], Meta(min_length=1, max_length=QUEUES_MAX)] | None = None


class RangeRow(Answer, kw_only=True):
    """What may be read of a queue: [start, end)."""

    topic_id: int
    queue: int
    start: int
    end: int


class Ranges(Answer):
    """In the order asked."""

    queues: list[RangeRow]


class Ends(Request[Ranges], kw_only=True):
    """The first and the next offset of queues. Waits for confirm and one read round (R4)."""

    needs = (on_topic(PUB, SUB, GET, field="queues"),)
    queues: Annotated[list[QueueOf], Meta(min_length=1, max_length=QUEUES_MAX)]


class LagRow(RangeRow, kw_only=True, omit_defaults=True):
    """How far a group is behind on a queue."""

    topic: str
    offset: int | None
    lag: int
    """Messages."""
    behind_ms: int
    in_flight: int
    """Messages that are out at simple consumers."""
    first_unix_ms: int | None = None
    """When the first message was stored, if `times` were asked for and there is one."""
    last_unix_ms: int | None = None
    """The same of the last message."""
    consumed_unix_ms: int | None = None
    """The same of the last message before `offset`."""


class LagOf(Answer):
    """In all, and by queue."""

    queues: list[LagRow]
    lag: int


class SegmentOf(Row, kw_only=True):
    """A queue of a static topic that this broker may not have heard of yet: it is empty then."""

    topic_id: TopicNumber
    queue: QueueNumber


class Lag(Request[LagOf], kw_only=True):
    """How far a group is behind on each queue it has committed here; so too on those of `queues`
    that it has not committed: all that they have is unread."""

    routes = (Route("GET", "/v1/groups/{group}/lag"),)
    needs = (on_group(SUB, GET), on_topic(SUB, GET, field="queues"))
    group: Text
    queues: Annotated[list[SegmentOf], Meta(max_length=QUEUES_MAX)] | None = None
    times: bool = False
    """Also tell when messages of each queue were stored."""


class ResetsOf(Answer):
    """A number that changes with each confirmed reset of the group here (R28)."""

    resets: int


class Resets(Request[ResetsOf], kw_only=True):
    """Consumers ask each second and go on from where they are told."""

    needs = (on_group(SUB, GET),)
    group: Text


class MovedRow(Answer, kw_only=True):
    """A queue on which a group was moved."""

    topic_id: int
    queue: int
    before: int | None
    offset: int | None
    generation: int
    code: str | None


class Moved(Answer):
    """A row for each queue that was moved."""

    group: str
    queues: list[MovedRow]


QueueNumbers = Annotated[list[QueueNumber], Meta(min_length=1, max_length=QUEUES_MAX)]


class Reset(Request[Moved], kw_only=True):
    """Move a group on a topic's queues here: to the first or last offset, to one (moved into the
    queue's range), or to the first message stored at a time or later. One record for all queues.

    A group that is not on record and has committed nothing here is GROUP_NOT_FOUND, unless `new`.
    """

    routes = (Route("POST", "/v1/groups/{group}/reset"),)
    needs = (on_group(UPDATE), on_topic(SUB, GET))
    group: Text
    topic: Text
    queues: QueueNumbers | None = None
    """All that the topic has here, if absent."""
    to: Literal["first", "last"] | None = None
    offset: Number | None = None
    unix_ms: Number | None = None
    back_only: bool = False
    """Leave out queues that would go forward."""
    new: bool = False


class CloneOffsets(Request[Moved], kw_only=True):
    """Give a group the offsets that `source` has committed on a topic's queues here."""

    routes = (Route("POST", "/v1/groups/{group}/clone"),)
    needs = (on_group(UPDATE), on_group(SUB, GET, field="source"), on_topic(SUB, GET))
    group: Text
    source: Text
    topic: Text
    queues: QueueNumbers | None = None


class CutRow(QueueOf, kw_only=True):
    """[from, to) of a queue."""

    from_: Number = msgspec.field(name="from")
    to: Number


class CutsRow(RangeRow, kw_only=True):
    """Where a queue can be read in pieces."""

    cuts: list[Annotated[list[int], Meta(min_length=2, max_length=2)]]
    """[offset, bytes] of each piece."""
    next: int
    """Below `to`: ask for the rest from there."""


class CutsOf(Answer):
    """In the order asked."""

    queues: list[CutsRow]


class Cuts(Request[CutsOf], kw_only=True):
    """Where queues can be read in pieces of about `piece_bytes` of whole batches.

    `cuts` has the bytes of each piece. If `next` is below `to`, ask for the rest from there. Any
    readable replica answers from what is confirmed there (R3): `to` above that is
    NOT_YET_AVAILABLE, `from` below the start OFFSET_OUT_OF_RANGE."""

    needs = (on_topic(SUB, GET, field="queues"),)
    piece_bytes: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    queues: Annotated[list[CutRow], Meta(min_length=1, max_length=QUEUES_MAX)]


class TimesRow(RangeRow, kw_only=True):
    """The offset of a moment."""

    offset: int


class TimesOf(Answer):
    """In the order asked."""

    queues: list[TimesRow]


class Times(Request[TimesOf], kw_only=True):
    """The first offset stored at or after a moment, or the end. Any readable replica answers."""

    needs = (on_topic(SUB, GET, field="queues"),)
    unix_ms: Number
    queues: Annotated[list[QueueOf], Meta(min_length=1, max_length=QUEUES_MAX)]


class UnreadRow(Answer, kw_only=True, omit_defaults=True):
    """Messages of a queue that a group has not consumed; group null: no group reads it."""

    queue: int
    group: str | None
    messages: int
    pending: Literal["delayed", "transaction"] | None = None
    """They are still to come into the queue."""


class UnreadOf(Answer):
    """Enough rows to say why not."""

    unread: list[UnreadRow]


class Unread(Request[UnreadOf], kw_only=True):
    """What is unread in the queues of a topic from one on, before they are taken from readers.
    COMMAND_REFUSED (STILL_WRITTEN) while messages are sent there."""

    needs = SEE_CLUSTER
    topic_id: TopicNumber
    from_queue: QueueNumber
    version: Number
    """Of a view that this broker must have."""
