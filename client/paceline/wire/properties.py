"""Pure: property names that belong to the system (RocketMQ's list, appendix A.4).

Applications may not set them; the library sets some for its features, brokers the rest, in the
batches that they derive.
"""

from collections.abc import Iterable, Mapping
from itertools import chain

from paceline.errors import BadRequestError

UNIQ_KEY = "UNIQ_KEY"
"""What the message is called: by its client, which came through a door of RocketMQ's protocols, or
`message_ids.unique_key` of the message that a derived one was made from."""
KEYS = "KEYS"
"""All keys of a message that has several, with blanks between; the first one is `Message.key`."""
INSTANCE_ID = "INSTANCE_ID"
TRACE_CONTEXT = "TRACE_CONTEXT"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
BODY_ENCODING = "__BODY_ENCODING"
"""How the producer has encoded the body: "GZIP"; absent: not at all."""
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
"""The topic that a message sent back was consumed from."""
RECONSUME_TIMES = "RECONSUME_TIME"
"""How often it was sent back."""
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
DELAY_LEVEL = "DELAY"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
"""When a delayed message was due."""
ESCAPED_FROM = "ESCAPED_FROM"
"""Of a message that an acting master sent on to another broker group: where it waited, as an
offset message id (R36). Who is given two of the same source may take one for a repetition."""
PRODUCER_GROUP = "PGROUP"
CHECK_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
SHARDING_KEY = "__SHARDINGKEY"
PRIORITY = "_SYS_MSG_PRIORITY_"
_PRIORITY_LENGTH_MAX = 10

_FEATURES = frozenset(
    {
        PRODUCER_GROUP,
        CHECK_IMMUNITY_S,
        CORRELATION_ID,
        REPLY_TO_CLIENT,
        TTL,
        SHARDING_KEY,
        PRIORITY,
    }
)
_DOORS = frozenset(
    {UNIQ_KEY, KEYS, INSTANCE_ID, TRACE_CONTEXT, BORN_HOST, BORN_TIMESTAMP, BODY_ENCODING}
    | {"CLUSTER", "MSG_REGION", "MSG_TYPE", "PUSH_REPLY_TIME", "TRACE_ON", "TRAN_MSG", "WAIT"}
)
"""What RocketMQ's clients say of their messages; no broker acts upon it."""
LIBRARY = _FEATURES | _DOORS
"""What the client library and the doors may set, in batches that come over the wire."""

_NAMES = """
KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET
MAX_OFFSET ORIGIN_MESSAGE_ID RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY
EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME INNER_NUM INNER_BASE
CHECK_IMMUNITY_TIME_IN_SECONDS TRAN_PREPARED_QUEUE_OFFSET __transactionId__
TRANSACTION_CHECK_TIMES INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME
PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME __SHARDINGKEY
REDIRECT INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET TRACE_CONTEXT TIMER_DELAY_SEC
TIMER_DELAY_MS TIMER_DELIVER_MS __BORNHOST BORN_TIMESTAMP TIMER_ENQUEUE_MS
TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL
DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID ESCAPED_FROM _SYS_MSG_PRIORITY_ __BODY_ENCODING
"""
RESERVED = frozenset(_NAMES.split())
BROKERS = RESERVED - LIBRARY
"""What no client may send, whatever library it uses."""
_REFUSED = BROKERS | {""}
_OF_ONE_MESSAGE = _REFUSED | {UNIQ_KEY}


def check_application_properties(properties: Mapping[str, str]) -> None:
    """Refuse the empty name and names of the system in what an application sets; BadRequestError
    names the first."""
    if "" in properties:
        _refuse("")
    taken = RESERVED.intersection(properties)
    if taken:
        _refuse(min(taken))


def check_sent_properties(rows: Iterable[Mapping[str, str]]) -> None:
    """Refuse the empty name and the brokers' names in what a client sends; BadRequestError names
    one."""
    if not _REFUSED.isdisjoint(chain.from_iterable(rows)):
        _refuse(min(_REFUSED.intersection(chain.from_iterable(rows))))


def without_brokers(properties: Mapping[str, str]) -> dict[str, str]:
    """What of a message that was read can be sent again, as a new message."""
    return {name: value for name, value in properties.items() if name not in _OF_ONE_MESSAGE}


def priority_in(properties: Mapping[str, str]) -> int | None:
    """The priority that a message was sent with; None also for what is none, from other clients."""
    text = properties.get(PRIORITY, "")
    is_number = len(text) <= _PRIORITY_LENGTH_MAX and text.isascii() and text.isdecimal()
    return int(text) if is_number else None


def _refuse(name: str) -> None:
    if not name:
        raise BadRequestError("a property needs a name: it is empty", field="properties")
    raise BadRequestError(
        f"property {name} belongs to the system: choose another name",
        field=f"properties.{name}",
    )
