"""Pure: calls about messages: those that failed, wait, are in a transaction, or are looked for."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from paceline.records.header import KEY_BYTES_MAX
from paceline.wire.calls.offsets import QueueOf
from paceline.wire.calls.request import (
    Answer,
    ClientId,
    LockToken,
    Number,
    QueueNumber,
    Request,
    Route,
    Row,
    Text,
    matching,
)
from paceline.wire.fields import I64_MAX
from paceline.wire.rights import (
    GET,
    KNOWN_USER,
    PUB,
    SEE_CLUSTER,
    SEE_TOPIC,
    SUB,
    TRANSACT,
    UPDATE,
    on_group,
    on_topic,
)

ROWS_MAX = 1000
"""Messages of one call."""
LEVEL_MAX = 1000
"""Levels above the ladder's last one are that one, as in RocketMQ; this is only a bound."""
TIMES_MAX = 2**31 - 1
DELAYS_LISTED_MAX = 1000
ENDS_MAX = 4096
"""Transactions ended by one call."""
CHECKS_WAIT_MS = 15_000
CHECKS_WAIT_MS_MAX = 300_000
TRANSACTIONS_LISTED_MAX = 1000
RESULTS_MAX = 64
RESULTS_DEFAULT = 32


class SendBackRow(QueueOf, kw_only=True):
    """A message that a consumer could not process."""

    offset: Number
    delay_level: Annotated[int, Meta(ge=-1, le=LEVEL_MAX)] | None = None
    """0: as the group's retry policy says; above: that level of the ladder; -1: a dead letter."""
    token: LockToken | None = None


class SentBackRow(Answer, kw_only=True):
    """What became of a message. `code` says why one was refused: deleted, not confirmed here,
    LOCK_FENCED."""

    topic_id: int
    queue: int
    offset: int
    code: str | None
    outcome: str | None
    """"retry", "dead", or "passed" (committed before)."""
    reconsume_times: int | None
    due_unix_ms: int | None
    message_id: str | None
    duplicate: bool
    """It was sent back before; this is the first answer (R34)."""


class SentBack(Answer):
    """In the order asked."""

    messages: list[SentBackRow]


class SendBack(Request[SentBack], kw_only=True):
    """The group gets each message again later, from `%RETRY%group`, or it becomes a dead letter in
    `%DLQ%group`: `outcome` is "retry" or "dead".

    `delay_level` 0 waits as the group's retry policy says, a higher one as that level of the ladder
    says; -1 makes a dead letter at once, as more than `max_reconsume_times` retries do. A message
    becomes a retry or a dead letter once (R34), unless the group was reset meanwhile: asked again,
    the answer is the first one's, with `duplicate`. With `only_uncommitted` the `outcome` of one
    that the group has committed is "passed". If all are refused for one reason, the call fails."""

    routes = (Route("POST", "/v1/groups/{group}/send-back"),)
    needs = (on_group(SUB), on_topic(SUB, field="messages"))
    group: Text
    messages: Annotated[list[SendBackRow], Meta(min_length=1, max_length=ROWS_MAX)]
    max_reconsume_times: Annotated[int, Meta(ge=0, le=TIMES_MAX)] | None = None
    """The group's `retry_max_times`, if absent."""
    only_uncommitted: bool = False
    """Leave alone what the group has committed."""


class ResendRow(Row, kw_only=True):
    """A dead letter."""

    queue: QueueNumber = 0
    offset: Number


class ResentRow(Answer, kw_only=True):
    """Where a dead letter was put."""

    queue: int
    offset: int
    code: str | None
    topic: str | None
    to_queue: int | None
    message_id: str | None
    duplicate: bool


class Resent(Answer):
    """In the order asked."""

    messages: list[ResentRow]


class Resend(Request[Resent], kw_only=True):
    """Put dead letters of a group into the topic they came from, which needs Pub on that too, or
    with `to` "group" into the group's retry topic with all attempts anew; each once."""

    routes = (Route("POST", "/v1/groups/{group}/dead-letters/resend"),)
    needs = (on_group(UPDATE),)
    finds = (PUB,)
    group: Text
    messages: Annotated[list[ResendRow], Meta(min_length=1, max_length=ROWS_MAX)]
    to: Literal["topic", "group"] = "topic"


class Recalled(Answer):
    """The message that was waiting."""

    message_id: str
    topic: str


class Recall(Request[Recalled], kw_only=True):
    """Take a delayed message back. CONFLICT: it waits no more, was delivered or taken back.
    BAD_REQUEST: the handle was made up, or is of another topic or broker group."""

    routes = (Route("POST", "/v1/topics/{topic}/recall"),)
    needs = (on_topic(PUB),)
    topic: Text
    handle: Text


class DelayedTopic(Answer, kw_only=True):
    """How many messages of a topic wait."""

    topic_id: int
    topic: str
    pending: int


class DelayedMessage(Answer, kw_only=True):
    """One that waits."""

    topic: str
    queue: int
    due_unix_ms: int
    message_id: str
    recall_handle: str


class Delayed(Answer, kw_only=True):
    """What waits for its time here."""

    pending: int
    topics: list[DelayedTopic]
    next_due_unix_ms: int | None
    messages: list[DelayedMessage]


class Delays(Request[Delayed], kw_only=True):
    """How many messages wait here, by topic, and the next `max` ones."""

    routes = (Route("GET", "/v1/delays"),)
    needs = SEE_CLUSTER
    also_names = (on_topic(),)
    lists_all = ("topics", "messages")
    topic: Text | None = None
    max: Annotated[int, Meta(ge=0, le=DELAYS_LISTED_MAX)] = 0


TransactionIds = list[Annotated[str, Meta(max_length=255)]]


class EndRow(Answer, kw_only=True):
    """How a transaction has ended."""

    transaction_id: str
    outcome: str | None
    code: str | None
    """null: as asked."""
    detail: str | None


class TransactionEnds(Answer):
    """A row for each, commits first. With `code` null the transaction has ended as asked."""

    ends: list[EndRow]


class EndTransactions(Request[TransactionEnds], kw_only=True):
    """End transactions: 1 to 4096 in all."""

    needs = KNOWN_USER
    finds = (PUB,)
    commit: TransactionIds = []
    rollback: TransactionIds = []


class CheckRow(Answer, kw_only=True, omit_defaults=True):
    """A half whose transaction is open."""

    transaction_id: str
    unique_key: str
    topic: str
    queue: int
    checks: int
    """Questions so far, this one included."""
    store_unix_ms: int
    born_unix_ms: int
    key: str | None
    tag: str | None
    properties: dict[str, str]
    body: str | None = None
    """If it is short UTF-8 text."""
    body_base64: str | None = None
    """If it is not."""


class Checks(Answer):
    """Questions about halves of that group, at most 32 and about 12 MiB; the others come with the
    next call. `body` is there if the body is short UTF-8 text, else `body_base64`."""

    checks: list[CheckRow]


class TransactionChecks(Request[Checks], kw_only=True):
    """A producer waits for questions about its group's open transactions; none after `wait_ms`."""

    routes = (Route("GET", "/v1/producers/{group}/checks"),)
    needs = TRANSACT
    group: Text
    client_id: ClientId
    wait_ms: Annotated[int, Meta(ge=0, le=CHECKS_WAIT_MS_MAX)] = CHECKS_WAIT_MS


class Transactions(Request[dict[str, Any]], kw_only=True):
    """The oldest open halves: `open`, `transactions`."""

    routes = (Route("GET", "/v1/transactions"),)
    needs = SEE_CLUSTER
    also_names = (on_topic(),)
    lists_all = ("transactions",)
    topic: Text | None = None
    limit: Annotated[int, Meta(ge=1, le=TRANSACTIONS_LISTED_MAX)] = 100


class Transaction(Request[dict[str, Any]], kw_only=True):
    """A transaction: `outcome` (OPEN, COMMITTED, ROLLED_BACK, CHECKED_OUT, DROPPED), `topic`,
    `queue`, `store_unix_ms`, `checks`."""

    routes = (Route("GET", "/v1/transactions/{id}"),)
    needs = KNOWN_USER
    finds = SEE_TOPIC
    id: Text


class Found(Answer):
    """A row as of `search`, with `topic`."""

    message: dict[str, Any]


class Message(Request[Found], kw_only=True):
    """The message of an offset message id. NOT_MASTER names the master of its broker group."""

    routes = (Route("GET", "/v1/messages/{id}"),)
    needs = KNOWN_USER
    finds = (SUB,)
    id: Text


class Results(Answer):
    """Rows of a pull and `group`, `queue`, `message_id`, `unique_key`, `cause`."""

    messages: list[dict[str, Any]]
    after: str | None
    """Ask again with it; null at the end."""
    maybe_stale: bool = False
    """No master that knows all has answered: the latest messages may be missing."""


class Search(Request[Results], kw_only=True):
    """Messages of a topic here by key, unique key or time: of storing, and of being born. Stops
    after 2 s. Also on replicas."""

    routes = (Route("GET", "/v1/topics/{topic}/search"),)
    needs = (on_topic(SUB),)
    topic: Text
    key: Annotated[str, Meta(min_length=1, max_length=KEY_BYTES_MAX)] | None = None
    unique_key: Text | None = None
    begin_unix_ms: Number = 0
    end_unix_ms: Annotated[int, Meta(ge=0, le=I64_MAX - 1)] = I64_MAX - 1
    born_begin_unix_ms: Number = 0
    born_end_unix_ms: Number = I64_MAX
    maybe_stale: bool = False
    """Also of a master that cannot know whether it has all that was acknowledged (R4): its epoch
    is not open, or its members do not answer."""
    max: Annotated[int, Meta(ge=1, le=RESULTS_MAX)] = RESULTS_DEFAULT
    after: Annotated[str, matching(r"[0-9]{1,5}:[0-9]{1,18}")] | None = None
    """Of the answer before."""


class TrackedGroup(Answer, kw_only=True):
    """A group that has committed on the queue."""

    group: str
    offset: int
    is_done: bool
    """It is past the message."""


class Tracked(Answer):
    """Every group that has committed there."""

    groups: list[TrackedGroup]


class Track(Request[Tracked], kw_only=True):
    """Which consumer groups are past a message (R4)."""

    routes = (Route("GET", "/v1/topics/{topic}/track"),)
    needs = (on_topic(SUB, GET),)
    lists_all = ("groups",)
    topic: Text
    queue: QueueNumber
    offset: Number
