"""Pure: messages as clients receive them."""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.wire import properties as names
from paceline.wire.fields import I64_MAX
from paceline.wire.topics import PRIORITY_MAX
from paceline_gateway.grpc.codec.sent import GZIP, md5_of
from paceline_gateway.grpc.codec.values import duration_of, timestamp_of
from paceline_gateway.grpc.stubs import messages_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import MessageType, Resource

_PRIVATE = names.RESERVED


class Handed(NamedTuple):
    """What a client is told beside the message."""

    topic: Resource
    """As it names the topic."""
    queue_id: int
    """Of the route: over all broker groups."""
    invisible_ms: int


class Half(Protocol):
    """A half message, as `TransactionProducer` tells of it."""

    @property
    def body(self) -> bytes: ...
    @property
    def key(self) -> str | None: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    @property
    def unique_key(self) -> str: ...
    @property
    def checks(self) -> int: ...


def received_of(message: PoppedMessage, handed: Handed) -> wire.Message:
    """A message with its receipt."""
    properties = message.properties
    system = _system(message.body, message.key, message.tag, properties)
    system.message_id = properties.get(names.UNIQ_KEY) or place_id(message)
    system.born_timestamp.CopyFrom(timestamp_of(message.born_unix_ms))
    system.store_timestamp.CopyFrom(timestamp_of(message.store_unix_ms))
    system.store_host = message.group
    system.receipt_handle = message.handle
    system.delivery_attempt = message.attempt
    system.invisible_duration.CopyFrom(duration_of(handed.invisible_ms))
    system.queue_id = handed.queue_id
    system.queue_offset = message.queue_offset
    return _message(handed.topic, message.body, properties, system)


def found_of(row: Mapping[str, Any], topic: Resource, queue_id: int) -> wire.Message:
    """A message that was searched for: a row of `AdminClient.messages`. It has no receipt."""
    properties: Mapping[str, str] = row["properties"] or {}
    text = row.get("body")
    body = b64decode(row.get("body_base64") or "") if text is None else text.encode()
    system = _system(body, row["key"], row["tag"] or "", properties)
    system.message_id = properties.get(names.UNIQ_KEY) or row["unique_key"] or row["message_id"]
    system.born_timestamp.CopyFrom(timestamp_of(row["born_unix_ms"]))
    system.store_timestamp.CopyFrom(timestamp_of(row["store_unix_ms"]))
    system.store_host = row["group"]
    system.queue_id = queue_id
    system.queue_offset = row["offset"]
    return _message(topic, body, properties, system)


def half_of(half: Half, topic: Resource) -> wire.Message:
    """A half message, for the producer that is asked what became of its transaction."""
    system = _system(half.body, half.key, half.tag or "", half.properties)
    system.message_id = half.properties.get(names.UNIQ_KEY) or half.unique_key
    system.message_type = MessageType.TRANSACTION
    system.delivery_attempt = half.checks
    return _message(topic, half.body, half.properties, system)


def place_id(message: PoppedMessage) -> str:
    """What a message is called that no client of RocketMQ has sent."""
    return f"{message.group}-{message.topic}-{message.queue_id}-{message.queue_offset}"


def _system(
    body: bytes, key: str | None, tag: str, properties: Mapping[str, str]
) -> wire.SystemProperties:
    """What producer and broker have said of a message."""
    system = wire.SystemProperties(
        body_digest=wire.Digest(type=wire.DigestType.MD5, checksum=md5_of(body)),
        body_encoding=wire.Encoding.GZIP
        if properties.get(names.BODY_ENCODING) == GZIP
        else wire.Encoding.IDENTITY,
        message_type=MessageType.NORMAL,
        born_host=properties.get(names.BORN_HOST, ""),
    )
    if tag:
        system.tag = tag
    several = properties.get(names.KEYS, "").split()
    if several or key:
        system.keys.extend(several or [str(key)])
    group = properties.get(names.SHARDING_KEY)
    if group is not None:
        system.message_group = group
        system.message_type = MessageType.FIFO
    due = properties.get(names.TIMER_OUT_MS, "")
    if _is_number(due, I64_MAX):
        system.delivery_timestamp.CopyFrom(timestamp_of(int(due)))
        system.message_type = MessageType.DELAY
    priority = properties.get(names.PRIORITY, "")
    if _is_number(priority, PRIORITY_MAX):
        system.priority = int(priority)
        system.message_type = MessageType.PRIORITY
    if names.PRODUCER_GROUP in properties:
        system.message_type = MessageType.TRANSACTION
    trace = properties.get(names.TRACE_CONTEXT)
    if trace is not None:
        system.trace_context = trace
    origin = properties.get(names.DLQ_ORIGIN_TOPIC)
    if origin:
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = properties.get(names.DLQ_ORIGIN_MESSAGE_ID, "")
    return system


def _is_number(text: str, limit: int) -> bool:
    """Clients of any making write properties."""
    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= limit


def _message(
    topic: Resource, body: bytes, properties: Mapping[str, str], system: wire.SystemProperties
) -> wire.Message:
    own = {name: value for name, value in properties.items() if name not in _PRIVATE}
    return wire.Message(topic=topic, user_properties=own, system_properties=system, body=body)
