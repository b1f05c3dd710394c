"""Pure: calls of simple consumers (POP): receive, ack, change the invisible time."""

from typing import Annotated, Literal

from msgspec import Meta

from paceline.wire.calls.request import (
    EXPRESSION_LENGTH_MAX,
    Answer,
    ClientId,
    Number,
    Request,
    Route,
    Row,
    Text,
)
from paceline.wire.rights import KNOWN_USER, SUB, on_group, on_topic

MESSAGES_MAX = 32
"""RocketMQ's limit of one pop."""
HANDLES_MAX = 1024
TOPICS_MAX = 1000
INVISIBLE_MS = 60_000
INVISIBLE_MS_MIN = 10_000
INVISIBLE_MS_MAX = 12 * 3600 * 1000
WAIT_MS_MAX = 20_000

FilterType = Literal["TAG", "SQL92"]
Expression = Annotated[str, Meta(min_length=1, max_length=EXPRESSION_LENGTH_MAX)]
Handles = Annotated[list[str], Meta(min_length=1, max_length=HANDLES_MAX)]


class FilteredTopic(Row, kw_only=True):
    """A topic, and which of its messages."""

    topic: Text
    type: FilterType = "TAG"
    expression: Expression
    is_later: bool = False
    """The topic came to this broker group, or was made again, after the client had begun to receive
    it: in a group that broadcasts it begins there with the first message."""


class Received(Answer, kw_only=True):
    """Ranges of offsets: a client fetches them like any others and makes the handle of each message
    (docs/protocol/stream.md)."""

    position: int
    """What the handles are made of."""
    invisible_until_unix_ms: int
    messages: list[Annotated[list[int], Meta(min_length=5, max_length=5)]]
    """[topic id, queue, first, end, attempt]."""


class Receive(Request[Received], kw_only=True):
    """Give a client messages that nobody else is given until they are acknowledged or their
    invisible time is over."""

    needs = (on_group(SUB), on_topic(SUB, field="topics"))
    group: Text
    client_id: ClientId
    topics: Annotated[list[str | FilteredTopic], Meta(min_length=1, max_length=TOPICS_MAX)]
    max_messages: Annotated[int, Meta(ge=1, le=MESSAGES_MAX)] = MESSAGES_MAX
    invisible_ms: Annotated[int, Meta(ge=INVISIBLE_MS_MIN, le=INVISIBLE_MS_MAX)] = INVISIBLE_MS
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0
    start: Literal["first", "last"] = "first"
    order: bool = False
    """A queue's messages one receive after the other: the next when the last are acknowledged."""


class EndedReceives(Answer):
    """How many waiting receives were answered."""

    ended: int


class EndReceive(Request[EndedReceives], kw_only=True):
    """A client that goes waits for nothing more."""

    needs = (on_group(SUB),)
    group: Text
    client_id: ClientId
    has_gone: bool = False
    """It does not come back: where it stands in a group that broadcasts is forgotten."""


class ReceiptRow(Answer, kw_only=True, omit_defaults=True):
    """What became of a handle: null, RECEIPT_EXPIRED or INVALID_RECEIPT_HANDLE."""

    code: str | None
    handle: str | None = None
    """The next one."""
    invisible_until_unix_ms: int | None = None


class Receipts(Answer):
    """A row for each handle. If no handle counts, the call fails with the first code, and the rows
    stand in the problem's `receipts`."""

    receipts: list[ReceiptRow]


class Ack(Request[Receipts], kw_only=True):
    """These messages are done. Handles go back to the broker group that gave them."""

    routes = (Route("POST", "/v1/groups/{group}/ack"),)
    needs = (on_group(SUB),)
    group: Text
    client_id: ClientId | None = None
    """That received them; of a group that broadcasts it must be named."""
    handles: Handles


class Invisible(Request[Receipts], kw_only=True):
    """Nobody else is given these messages for so long from now on; 0 gives them back."""

    routes = (Route("POST", "/v1/groups/{group}/invisible"),)
    needs = (on_group(SUB),)
    group: Text
    client_id: ClientId | None = None
    """That received them; of a group that broadcasts it must be named."""
    handles: Handles
    invisible_ms: Annotated[int, Meta(ge=0, le=INVISIBLE_MS_MAX)]
    unseen: bool = False
    """The application has not seen them: the attempt does not count."""


class FilterNumber(Answer):
    """For fetches from this broker; ask again on a new connection."""

    filter_id: Number


class Filter(Request[FilterNumber], kw_only=True):
    """Register a filter for fetches."""

    needs = KNOWN_USER
    type: Text
    expression: Expression
