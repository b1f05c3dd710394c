"""Pure: JSON forms of the client HTTP interface (DESIGN 8): strict reading, and the answers.

Everything that is not exactly the documented shape is refused with the field's name; a request of
many messages is taken whole or not at all. Offsets, locks and members are calls, the same for
streams and HTTP, and are read with `paceline.wire.fields` by the broker's service.
"""

import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from paceline.errors import BadJsonError, BadRequestError, TooLargeError
from paceline.filters import ALL, Filter, TagFilter, make_filter
from paceline.filters.filter import TAG
from paceline.records.dues import written_due
from paceline.records.header import (
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    RECORDS_MAX,
    SEQUENCE_MAX,
    TAG_BYTES_MAX,
)
from paceline.types import ProducerEpoch, ProducerId, QueueId, QueueOffset
from paceline.types import Sequence as SequenceNumber
from paceline.wire.fields import I64_MAX, Fields
from paceline.wire.names import check_name
from paceline.wire.properties import CHECK_IMMUNITY_S, PRIORITY, PRODUCER_GROUP, SHARDING_KEY
from paceline.wire.stream import (
    PRODUCE_FLAG_DUPLICATE,
    PRODUCE_FLAG_OFFSET_UNKNOWN,
    PRODUCE_FLAG_UNCONFIRMED,
    ProduceAnswer,
)
from paceline.wire.topics import PRIORITY_MAX, is_priority

JSON_BYTES_MAX = 1024 * 1024
"""Limit of a JSON body. 1 MiB of the worst JSON (only brackets) takes orjson 30 ms of the event
loop; larger messages go as batches or over a stream."""
PULL_MESSAGES_MAX = 10_000
PULL_BYTES_MAX = 16 * 1024 * 1024
PULL_WAIT_MS_MAX = 300_000
"""Above it `wait_ms` is a mistake; the broker waits no longer than its own limit anyway."""
TAGS_MAX = 64
U64_MAX = 2**64 - 1

_DIGITS = re.compile(r"[0-9]{1,20}", re.ASCII)
_ESCAPED_COLON = b"\\u003"
_DELAY_FIELDS = frozenset({"delay_level", "delay_ms", "delivery_unix_ms"})
_MESSAGE_FIELDS = (
    frozenset({"body", "body_base64", "key", "tag", "properties", "sharding_key", "priority"})
    | _DELAY_FIELDS
)


def parse_json_object(body: bytes, *, limit: int = JSON_BYTES_MAX) -> dict[str, Any]:
    """The JSON object that `body` is. TooLargeError over `limit` bytes, BadJsonError for the rest.

    Refused: no UTF-8 (also a byte order mark), NaN and infinite numbers, lone surrogates, more than
    254 levels, a duplicate key in any object, another top level than an object.

    orjson does all but the duplicates, of which it keeps the last. Each member of the text has
    one colon outside strings, and orjson writes colons in strings as they are, so the document
    written again has fewer colons than the text exactly if members were dropped. For a thousand
    messages of 100 B that is half the time of orjson and a parser hook per object (0.3 ms against
    0.7); only where a string may hide a colon as an escape the hook is needed.
    """
    if len(body) > limit:
        raise TooLargeError(f"JSON body of {len(body)} bytes", limit=limit)
    try:
        document = orjson.loads(body)
        written = orjson.dumps(document)
    except orjson.JSONDecodeError as error:
        raise BadJsonError(f"body is not JSON: {error}", field="body") from error
    except orjson.JSONEncodeError as error:
        raise BadJsonError("JSON is nested too deeply", field="body") from error
    if not isinstance(document, dict):
        raise BadJsonError(
            f"body must be a JSON object, not {type(document).__name__}", field="body"
        )
    # One byte is searched much faster than five, and few bodies have a backslash at all.
    if b"\\" in body and _ESCAPED_COLON in body:
        json.loads(body, object_pairs_hook=_distinct)
    elif body.count(b":") != written.count(b":"):
        raise _duplicate_key(body)
    return document


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise BadJsonError(f"key {name!r} is there twice", field=name)
    return found


def _duplicate_key(body: bytes) -> BadJsonError:
    """The error that names the key; the second parse happens on the way to a refusal only."""
    try:
        json.loads(body, object_pairs_hook=_distinct)
    except BadJsonError as error:
        return error
    raise AssertionError("colons differ without a duplicate key")


# -- sending --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerFields:
    """Idempotence of a JSON send (R31): the sequence is that of the first message."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: SequenceNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """A checked body of POST .../messages, as the parallel columns `encode_batch` takes."""

    bodies: Sequence[bytes]
    keys: Sequence[str | None]
    shardings: Sequence[str | None]
    """What chooses the queue instead of the key."""
    priorities: Sequence[int | None]
    """What chooses the queue before all, in topics of type PRIORITY."""
    tags: Sequence[str | None]
    properties: Sequence[Mapping[str, str] | None]
    dues: Sequence[int | None]
    """What a DELAY batch says of each (records/dues.py); None: not delayed."""
    queue: QueueId | None
    """None: chosen by sharding key or key, or by the broker."""
    producer: ProducerFields | None
    """Only together with `queue`, as sequences run per queue."""
    is_transaction: bool = False
    """They are half messages; `properties` say whom to ask about each."""

    @property
    def chosen_by(self) -> list[str | None]:
        """What chooses each message's queue, as in the client: its sharding key, else its key."""
        return [sharding or key for sharding, key in zip(self.shardings, self.keys, strict=True)]


def parse_send(document: Mapping[str, Any]) -> SendRequest:
    """The request {messages: [...], queue?, producer?, transaction?, producer_group?,
    check_immunity_s?}; all messages or none. With "transaction": true they become half messages.

    A message is {body | body_base64, key?, sharding_key?, priority?, tag?, properties?,
    delay_level? | delay_ms? | delivery_unix_ms?}: text or base64 (RFC 4648, padded), text, an
    object of text, numbers.
    BadRequestError names the field, as "messages[2].key"; TooLargeError for a body over 4 MiB.
    """
    fields = Fields(document, name="send")
    messages = fields.any("messages")
    if not isinstance(messages, list) or not 1 <= len(messages) <= RECORDS_MAX:
        raise BadRequestError(
            f"messages must be a list of 1 to {RECORDS_MAX} objects", field="messages"
        )
    queue = fields.integer("queue", high=0xFFFF) if fields.has("queue") else None
    producer = None
    if fields.has("producer"):
        if queue is None:
            raise BadRequestError("producer needs queue: sequences run per queue", field="queue")
        producer = _parse_producer(fields.any("producer"), len(messages))
    of_half = _parse_transaction(fields)
    fields.done()
    rows = [_parse_message(message, index) for index, message in enumerate(messages)]
    bodies, keys, shardings, priorities, tags, properties, dues = zip(*rows, strict=True)
    if producer is not None and None in dues and any(due is not None for due in dues):
        raise BadRequestError(
            "messages with producer are all delayed or none: they are one batch", field="messages"
        )
    if of_half is not None:
        if any(due is not None for due in dues):
            raise BadRequestError("transactional messages cannot be delayed", field="transaction")
        properties = tuple({**(own or {}), **of_half} for own in properties)
    return SendRequest(
        bodies=bodies,
        keys=keys,
        shardings=shardings,
        priorities=priorities,
        tags=tags,
        properties=properties,
        dues=dues,
        queue=None if queue is None else QueueId(queue),
        producer=producer,
        is_transaction=of_half is not None,
    )


def _parse_transaction(fields: Fields) -> dict[str, str] | None:
    """The properties that each half message gets; None: these are none."""
    if not (fields.has("transaction") and fields.flag("transaction")):
        for name in ("producer_group", "check_immunity_s"):
            if fields.has(name):
                raise BadRequestError(f'{name} goes with "transaction": true', field=name)
        return None
    found = {PRODUCER_GROUP: check_name(fields.text("producer_group"), "producer_group")}
    if fields.has("check_immunity_s"):
        found[CHECK_IMMUNITY_S] = str(fields.integer("check_immunity_s", high=72 * 3600))
    return found


def _parse_producer(document: object, count: int) -> ProducerFields:
    """{id, epoch, sequence}; the id also as decimal text, as JavaScript's numbers end at 2^53."""
    fields = Fields(document, name="producer")
    if isinstance(fields.any("id"), str):
        text = fields.text("id", pattern=_DIGITS.pattern)
        producer_id = int(text)
    else:
        producer_id = fields.integer("id", low=1, high=U64_MAX)
    if not 1 <= producer_id <= U64_MAX:
        raise fields.wrong("id", f"from 1 to {U64_MAX}", producer_id)
    found = ProducerFields(
        producer_id=ProducerId(producer_id),
        epoch=ProducerEpoch(fields.integer("epoch", high=0xFFFF)),
        sequence=SequenceNumber(fields.integer("sequence", high=SEQUENCE_MAX - count + 1)),
    )
    fields.done()
    return found


_Row = tuple[
    bytes, str | None, str | None, int | None, str | None, dict[str, str] | None, int | None
]


def _parse_message(message: object, index: int) -> _Row:
    if not isinstance(message, dict):
        raise _wrong(index, "", "must be an object")
    if not message.keys() <= _MESSAGE_FIELDS:
        unknown = min(message.keys() - _MESSAGE_FIELDS)
        raise _wrong(index, f".{unknown}", "is unknown")
    sharding = _parse_text(message, index, "sharding_key", KEY_BYTES_MAX)
    priority = _parse_priority(message.get("priority"), index)
    return (
        _parse_body(message, index),
        _parse_text(message, index, "key", KEY_BYTES_MAX),
        sharding,
        priority,
        _parse_text(message, index, "tag", TAG_BYTES_MAX),
        _parse_properties(message.get("properties"), sharding, priority, index),
        _parse_due(message, index),
    )


def _parse_due(message: Mapping[str, Any], index: int) -> int | None:
    try:
        due = written_due(
            message.get("delay_level"), message.get("delay_ms"), message.get("delivery_unix_ms")
        )
    except BadRequestError as error:
        raise _wrong(index, f".{error.details['field']}", f"is wrong: {error.message}") from error
    if due is not None and due > I64_MAX:
        raise _wrong(index, ".delivery_unix_ms", "is no time that will come")
    return due


def _parse_body(message: Mapping[str, Any], index: int) -> bytes:
    if "body_base64" in message:
        if "body" in message:
            raise _wrong(index, ".body_base64", "excludes body")
        text = message["body_base64"]
        if not isinstance(text, str):
            raise _wrong(index, ".body_base64", "must be text in base64")
        try:
            body = binascii.a2b_base64(text, strict_mode=True)
        except ValueError as error:  # binascii.Error, and text beyond ASCII
            raise _wrong(index, ".body_base64", f"is no base64: {error}") from error
    else:
        text = message.get("body")
        if not isinstance(text, str):
            raise _wrong(index, ".body", "must be text (other bytes go as body_base64)")
        body = text.encode()
    if len(body) > MESSAGE_BYTES_MAX:
        raise TooLargeError(
            f"messages[{index}].body has {len(body)} bytes",
            limit=MESSAGE_BYTES_MAX,
            field=f"messages[{index}].body",
        )
    return body


def _parse_text(message: Mapping[str, Any], index: int, name: str, limit: int) -> str | None:
    """A key or tag; null and "" are none."""
    text = message.get(name)
    if text is None:
        return None
    if not isinstance(text, str) or len(text.encode()) > limit:
        raise _wrong(index, f".{name}", f"must be text of at most {limit} bytes")
    return text


def _parse_priority(priority: object, index: int) -> int | None:
    if priority is None or is_priority(priority):
        return priority
    raise _wrong(index, ".priority", f"must be 0 to {PRIORITY_MAX}")


def _parse_properties(
    properties: object, sharding: str | None, priority: int | None, index: int
) -> dict[str, str] | None:
    """With the sharding key and the priority, which readers see there."""
    if properties is None:
        properties = {}
    if not isinstance(properties, dict):
        raise _wrong(index, ".properties", "must be an object of text")
    for name, value in properties.items():
        if not isinstance(value, str):
            raise _wrong(index, f".properties.{name}", "must be text")
        if not name:
            raise _wrong(index, ".properties", "must not have an empty name")
    if sharding:
        properties = {**properties, SHARDING_KEY: sharding}
    if priority is not None:
        properties = {**properties, PRIORITY: str(priority)}
    if len(orjson.dumps(properties)) > PROPERTIES_BYTES_MAX:
        raise _wrong(index, ".properties", f"must be at most {PROPERTIES_BYTES_MAX} bytes of JSON")
    return properties or None


def _wrong(index: int, path: str, problem: str) -> BadRequestError:
    field = f"messages[{index}]{path}"
    return BadRequestError(f"{field} {problem}", field=field)


def produce_answer_to_json(answer: ProduceAnswer, *, queue: int) -> dict[str, Any]:
    """The answer to a stored batch. `offset` is the first record's, null when it is not known."""
    is_known = not answer.flags & PRODUCE_FLAG_OFFSET_UNKNOWN
    return {
        "status": "SEND_OK",
        "queue": queue,
        "offset": answer.base_queue_offset if is_known else None,
        "count": answer.record_count,
        "store_unix_ms": answer.store_unix_ms,
        "epoch": answer.master_epoch,
        "confirm": answer.confirm,
        "position": answer.position or None,
        "duplicate": bool(answer.flags & PRODUCE_FLAG_DUPLICATE),
        "confirmed": not answer.flags & PRODUCE_FLAG_UNCONFIRMED,
    }


# -- pulling --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """The checked query of GET .../messages."""

    offset: QueueOffset
    max_messages: int = 32
    """RocketMQ's pullBatchSize."""
    max_bytes: int = 1024 * 1024
    wait_ms: int = 0
    wanted: Filter = ALL
    """By `tags=a,b`, or `filter=` with `filter_type=` TAG (default) or SQL92."""
    group: str | None = None
    """The consumer group on whose behalf it is, for statistics and quotas."""


CONTROLS_FROM_BYTES = 16 * 1024
"""Smaller bodies are text whatever characters they have."""
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r"))
_PULL_FIELDS = frozenset(
    {"offset", "max_messages", "max_bytes", "wait_ms", "tags", "filter", "filter_type", "group"}
)


def parse_pull(query: Iterable[tuple[str, str]]) -> PullRequest:
    """The query of a pull, fields as in `PullRequest`; `offset` is required.

    `query` holds all (name, value) pairs, so that one given twice is seen. BadRequestError or
    BadNameError with the field.
    """
    given: dict[str, str] = {}
    for name, value in query:
        if name not in _PULL_FIELDS:
            raise BadRequestError(f"query parameter {name!r} is unknown", field=name)
        if name in given:
            raise BadRequestError(f"query parameter {name} is there twice", field=name)
        given[name] = value
    if "offset" not in given:
        raise BadRequestError("query parameter offset is missing", field="offset")
    defaults = PullRequest(offset=QueueOffset(0))
    return PullRequest(
        offset=QueueOffset(parse_number(given["offset"], "offset", high=I64_MAX)),
        max_messages=_bounded(given, "max_messages", 1, PULL_MESSAGES_MAX, defaults.max_messages),
        max_bytes=_bounded(given, "max_bytes", 1, PULL_BYTES_MAX, defaults.max_bytes),
        wait_ms=_bounded(given, "wait_ms", 0, PULL_WAIT_MS_MAX, defaults.wait_ms),
        wanted=_parse_filter(given),
        group=check_name(given["group"], "group") if "group" in given else None,
    )


def parse_number(text: str, field: str, *, low: int = 0, high: int) -> int:
    """Decimal digits as a number in [low, high]: no sign, space, underscore or other script."""
    if _DIGITS.fullmatch(text) is None or not low <= int(text) <= high:
        raise BadRequestError(
            f"{field} must be a number from {low} to {high}, not {text[:40]!r}", field=field
        )
    return int(text)


def _bounded(given: Mapping[str, str], name: str, low: int, high: int, default: int) -> int:
    return parse_number(given[name], name, low=low, high=high) if name in given else default


def _parse_filter(given: Mapping[str, str]) -> Filter:
    if "tags" in given:
        if "filter" in given:
            raise BadRequestError("give tags or filter, not both", field="filter")
        tags = given["tags"].split(",")
        if not all(tags) or len(tags) > TAGS_MAX:
            raise BadRequestError(f"tags must be 1 to {TAGS_MAX} tags between commas", field="tags")
        return TagFilter(tags)
    if "filter" not in given:
        if "filter_type" in given:
            raise BadRequestError("filter_type without filter", field="filter")
        return ALL
    return make_filter(given.get("filter_type", TAG), given["filter"])


def message_to_json(message: dict[str, Any], store_unix_ms: int) -> dict[str, Any]:
    """A record: `body` if its bytes are UTF-8 text, else `body_base64`, also of a large text of
    control characters, which are six in JSON each. Changes `message`."""
    body = message.pop("body")
    try:
        if len(body) > CONTROLS_FROM_BYTES and _has_many_controls(body):
            message["body_base64"] = binascii.b2a_base64(body, newline=False).decode()
        else:
            message["body"] = body.decode()
    except UnicodeDecodeError:
        message["body_base64"] = binascii.b2a_base64(body, newline=False).decode()
    message["offset"] = message.pop("queue_offset")
    message["tag"] = message["tag"] or None
    message["store_unix_ms"] = store_unix_ms
    return message


def _has_many_controls(body: bytes) -> bool:
    return len(body) - len(body.translate(None, _CONTROLS)) > len(body) // 16
