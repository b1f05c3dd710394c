"""Pure: messages that clients send, as paceline's.

The id that the client gave is the property UNIQ_KEY. The message group is the sharding key: it
chooses the queue, whatever queue the client has chosen, since clients of different languages choose
different ones for one group.
"""

import hashlib
from dataclasses import dataclass
from typing import NoReturn

from paceline.message import Message
from paceline.wire import properties as names
from paceline_gateway.grpc.codec.limits import (
    BODY_BYTES_MAX,
    MESSAGE_GROUP_LENGTH_MAX,
    check_user_properties,
)
from paceline_gateway.grpc.codec.statuses import Refused
from paceline_gateway.grpc.codec.values import milliseconds
from paceline_gateway.grpc.stubs import messages_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code, MessageType

MESSAGE_ID_LENGTH_MAX = 128
GZIP = "GZIP"
# The enums look a name up in Python, each time.
_UNSPECIFIED, _NORMAL = MessageType.MESSAGE_TYPE_UNSPECIFIED, MessageType.NORMAL
_FIFO, _DELAY, _PRIORITY = MessageType.FIFO, MessageType.DELAY, MessageType.PRIORITY
_TRANSACTION, _LITE = MessageType.TRANSACTION, MessageType.LITE
_MD5, _SHA1 = wire.DigestType.MD5, wire.DigestType.SHA1
_GZIP = wire.Encoding.GZIP


@dataclass(frozen=True, slots=True)
class Sent:
    """A message to send."""

    message: Message
    message_id: str
    is_half: bool = False
    """Of a transaction."""
    recovery_ms: int = 0
    """Of a transaction: nobody is asked about it before; 0: as usual."""


def sent_of(message: wire.Message, topic: str) -> Sent:
    """A message for the topic of that full name; Refused."""
    system = message.system_properties
    body = message.body
    if not body:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "a message needs a body: it is empty")
    if len(body) > BODY_BYTES_MAX:
        raise Refused(
            Code.MESSAGE_BODY_TOO_LARGE, f"a body of {len(body)} bytes is over {BODY_BYTES_MAX}"
        )
    _check_digest(system.body_digest, body)
    properties = dict(message.user_properties)
    if properties:
        check_user_properties(properties)
        _check_names(properties)
    type_ = _type_of(system)
    _add_system(properties, system)
    return Sent(
        Message(
            topic,
            body,
            key=system.keys[0] if system.keys else None,
            tag=_tag(system.tag) if system.HasField("tag") else None,
            properties=properties,
            delivery_unix_ms=milliseconds(system.delivery_timestamp)
            if system.HasField("delivery_timestamp")
            else None,
            priority=system.priority if type_ == _PRIORITY else None,
            sharding=_group(system.message_group) if type_ == _FIFO else None,
        ),
        system.message_id,
        *_half(system) if type_ == _TRANSACTION else (),
    )


def _half(system: wire.SystemProperties) -> tuple[bool, int]:
    """`is_half` and `recovery_ms` of a transaction's message."""
    return True, max(0, milliseconds(system.orphaned_transaction_recovery_duration))


def _add_system(properties: dict[str, str], system: wire.SystemProperties) -> None:
    """What is kept of the client's system properties."""
    message_id = system.message_id
    if not message_id.strip() or len(message_id) > MESSAGE_ID_LENGTH_MAX:
        raise Refused(
            Code.ILLEGAL_MESSAGE_ID,
            f"a message id has 1 to {MESSAGE_ID_LENGTH_MAX} characters, not {message_id[:80]!r}",
        )
    properties[names.UNIQ_KEY] = message_id
    for key in system.keys:
        _check_text(key, Code.ILLEGAL_MESSAGE_KEY, "key")
    if len(system.keys) > 1:
        properties[names.KEYS] = " ".join(system.keys)
    if system.born_host:
        properties[names.BORN_HOST] = system.born_host[:255]
    if system.HasField("trace_context"):
        properties[names.TRACE_CONTEXT] = system.trace_context
    if system.body_encoding == _GZIP:
        properties[names.BODY_ENCODING] = GZIP


def _type_of(system: wire.SystemProperties) -> MessageType:
    """The type that the properties give; Refused where the client names another."""
    if system.HasField("lite_topic"):
        _not_here("lite_topic")
    has_group = system.HasField("message_group") and bool(system.message_group)
    is_delayed = system.HasField("delivery_timestamp")
    told = system.message_type
    if told == _LITE:
        _not_here("type LITE")
    if told == _TRANSACTION:
        found = _TRANSACTION
    elif has_group:
        found = _FIFO
    elif system.HasField("priority"):
        found = _PRIORITY
    else:
        found = _DELAY if is_delayed else _NORMAL
    if told not in (_UNSPECIFIED, found):
        _conflict(f"a message of type {MessageType.Name(told)} has properties of another type")
    if system.HasField("priority") and found != _PRIORITY:
        _conflict("a priority goes with neither a message group nor a transaction")
    if has_group and (is_delayed or found == _TRANSACTION):
        _conflict("a message group goes with neither a delivery timestamp nor a transaction")
    if is_delayed and found == _TRANSACTION:
        _conflict("a transactional message cannot be delayed")
    return found


def _conflict(why: str) -> NoReturn:
    raise Refused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, why)


def _not_here(what: str) -> NoReturn:
    raise Refused(
        Code.NOT_IMPLEMENTED, f"messages with {what} are not served here: send them without"
    )


def _check_names(properties: dict[str, str]) -> None:
    taken = names.RESERVED.intersection(properties)
    if taken or "" in properties:
        name = min(taken, default="")
        raise Refused(
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
            f"property {name} belongs to the system: choose another name"
            if name
            else "a property needs a name: it is empty",
        )


def _tag(tag: str) -> str:
    if "|" in tag:
        raise Refused(Code.ILLEGAL_MESSAGE_TAG, f"a tag has no |: {tag[:80]!r}")
    return _check_text(tag, Code.ILLEGAL_MESSAGE_TAG, "tag")


def _group(group: str) -> str:
    if len(group) > MESSAGE_GROUP_LENGTH_MAX:
        raise Refused(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"a message group of {len(group)} characters is over {MESSAGE_GROUP_LENGTH_MAX}",
        )
    return _check_text(group, Code.ILLEGAL_MESSAGE_GROUP, "message group")


def _check_text(text: str, code: Code, what: str) -> str:
    if not text.strip() or not text.isprintable():
        raise Refused(code, f"a {what} is text without control characters, not {text[:80]!r}")
    return text


def _check_digest(digest: wire.Digest, body: bytes) -> None:
    """Of CRC32 there is no one way to write it, so it is passed over."""
    if digest.type == _MD5:
        found = md5_of(body)
    elif digest.type == _SHA1:
        found = hashlib.sha1(body, usedforsecurity=False).hexdigest()
    else:
        return
    if found.upper() != digest.checksum.upper():
        raise Refused(Code.MESSAGE_CORRUPTED, "the body is not what its digest says: send it again")


def md5_of(body: bytes) -> str:
    """The digest that clients of all languages read alike."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
