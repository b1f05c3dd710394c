"""Pure: messages as RocketMQ stores them and gives them to clients (interop 2.2).

    i32 size  i32 magic  i32 body CRC32  i32 queue  i32 flag  i64 queue offset  i64 physical offset
    i32 sysFlag  i64 born ms  born host  i64 store ms  store host  i32 reconsume times
    i64 prepared offset  i32 length, body  u8 length (version 2: u16), topic
    i16 length, properties

Hosts have 8 bytes, 20 with a bit in sysFlag: then they are IPv6.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from paceline.errors import BadRequestError
from paceline.records.decode import BatchView
from paceline.wire import properties as names
from paceline.wire.message_ids import unique_key
from paceline_gateway.remoting.codec.codes import BORN_HOST_V6, CLUSTER, STORE_HOST_V6
from paceline_gateway.remoting.codec.message_ids import physical_offset
from paceline_gateway.remoting.codec.properties import parse_properties, properties_text

MAGIC = 0xDAA3_20A7
MAGIC_2 = 0xDAA3_20AB
"""Of a topic whose name has more than 127 bytes."""
FLAG = "__FLAG"
"""Property: the number that a client has put into its message, if it is not 0."""
_HEAD = struct.Struct(">IIiiiqqiq")
_TIMES = struct.Struct(">iqi")
_I64, _I16 = struct.Struct(">q"), struct.Struct(">h")
_BATCH_HEAD = struct.Struct(">iiiii")
_UNKNOWN_HOST = bytes(8)
_NAME_BYTES_MAX = 127


class Stored(NamedTuple):
    """One message as it goes to a client."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: Mapping[str, str]
    born_unix_ms: int
    store_unix_ms: int
    reconsume_times: int = 0
    sys_flag: int = 0
    flag: int = 0
    prepared_offset: int = 0


def encode_message(message: Stored, store_host: bytes) -> bytes:
    """Its bytes. `store_host`: `host_bytes` of the listener of its broker group."""
    body, properties = message.body, properties_text(message.properties)
    topic = message.topic.encode()
    is_long = len(topic) > _NAME_BYTES_MAX
    topic_length = len(topic).to_bytes(2 if is_long else 1, "big")
    sys_flag = message.sys_flag
    if len(store_host) > len(_UNKNOWN_HOST):
        sys_flag |= STORE_HOST_V6
    size = (
        *(_HEAD.size, len(_UNKNOWN_HOST), _I64.size, len(store_host), _TIMES.size, len(body)),
        *(len(topic_length), len(topic), _I16.size, len(properties)),
    )
    head = _HEAD.pack(
        sum(size),
        MAGIC_2 if is_long else MAGIC,
        zlib.crc32(body) & 0x7FFF_FFFF,
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.physical_offset,
        sys_flag,
        message.born_unix_ms,
    )
    return b"".join(
        (
            head,
            _UNKNOWN_HOST,
            _I64.pack(message.store_unix_ms),
            store_host,
            _TIMES.pack(message.reconsume_times, message.prepared_offset, len(body)),
            body,
            topic_length,
            topic,
            _I16.pack(len(properties)),
            properties,
        )
    )


def decode_messages(content: bytes) -> Iterator[tuple[Stored, bytes]]:
    """The messages one after another, each with its store host. BadRequestError."""
    at = 0
    try:
        while at < len(content):
            message, store_host, end = _decode(content, at)
            yield message, store_host
            at = end
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise BadRequestError(f"a stored message that does not hold together: {error}") from error


def _decode(content: bytes, at: int) -> tuple[Stored, bytes, int]:
    size, magic, crc, queue, flag, offset, physical, sys_flag, born_ms = _HEAD.unpack_from(
        content, at
    )
    if magic not in (MAGIC, MAGIC_2) or at + size > len(content):
        raise BadRequestError(f"magic {magic:#x} or size {size} is none of a stored message")
    end = at + size
    at += _HEAD.size + (20 if sys_flag & BORN_HOST_V6 else 8)
    (store_ms,) = _I64.unpack_from(content, at)
    at += _I64.size
    host_end = at + (20 if sys_flag & STORE_HOST_V6 else 8)
    store_host, at = content[at:host_end], host_end
    times, prepared, body_bytes = _TIMES.unpack_from(content, at)
    at += _TIMES.size
    body, at = content[at : at + body_bytes], at + body_bytes
    width = 2 if magic == MAGIC_2 else 1
    topic_bytes = int.from_bytes(content[at : at + width], "big")
    at += width
    topic, at = content[at : at + topic_bytes].decode(), at + topic_bytes
    (properties_bytes,) = _I16.unpack_from(content, at)
    at += _I16.size
    properties = parse_properties(content[at : at + properties_bytes].decode())
    if at + properties_bytes != end or zlib.crc32(body) & 0x7FFF_FFFF != crc:
        raise BadRequestError("a stored message whose size or CRC is wrong")
    message = Stored(
        *(topic, queue, offset, physical, body, properties, born_ms, store_ms, times),
        *(sys_flag, flag, prepared),
    )
    return message, store_host, end


def properties_of(
    properties: Mapping[str, str], *, key: str | None, tag: str | None, unique_key: str
) -> tuple[dict[str, str], int, int]:
    """Properties as RocketMQ's clients read them, with the reconsume times and the flag that are
    numbers of the message there."""
    found = dict(properties)
    if tag:
        found["TAGS"] = tag
    if key and names.KEYS not in found:
        found[names.KEYS] = key
    found.setdefault(names.UNIQ_KEY, unique_key)
    if names.REPLY_TO_CLIENT in found:
        found["CLUSTER"] = CLUSTER  # repliers find the reply topic by it
    times, flag = _number(found.get(names.RECONSUME_TIMES)), _number(found.pop(FLAG, None))
    return found, times, flag


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0


class StoredBatch:
    """The messages of one batch of the log, its columns decoded once."""

    __slots__ = ("_bodies", "_born", "_keys", "_properties", "_tags", "group", "topic", "view")

    def __init__(self, view: BatchView, *, topic: str, group: str) -> None:
        """CorruptLogError."""
        self.view = view
        self.topic = topic
        self.group = group
        self._bodies = view.bodies()
        self._keys = view.keys()
        self._tags = view.tags()
        self._properties = view.properties()
        self._born = view.born()

    def message(self, number: int) -> Stored:
        """The record of that number."""
        header = self.view.header
        properties, times, flag = properties_of(
            self._properties[number],
            key=self._keys[number],
            tag=self._tags[number],
            unique_key=unique_key(header, number, self.group),
        )
        return Stored(
            self.topic,
            header.queue_id,
            header.base_queue_offset + number,
            physical_offset(header.physical_offset, number),
            self._bodies[number],
            properties,
            self._born[number],
            header.store_unix_ms,
            times,
            flag=flag,
        )


class BatchMember(NamedTuple):
    """A message of a request of code 320."""

    body: bytes
    properties: dict[str, str]
    flag: int


def decode_batch(content: bytes) -> list[BatchMember]:
    """The messages that a client has put into one request (its own batch format):
    i32 size, i32 magic, i32 CRC, i32 flag, i32 length and body, i16 length and properties.
    BadRequestError."""
    found: list[BatchMember] = []
    at = 0
    try:
        while at < len(content):
            size, _, _, flag, body_bytes = _BATCH_HEAD.unpack_from(content, at)
            body_at = at + _BATCH_HEAD.size
            (properties_bytes,) = _I16.unpack_from(content, body_at + body_bytes)
            properties_at = body_at + body_bytes + _I16.size
            end = properties_at + properties_bytes
            if body_bytes < 0 or properties_bytes < 0 or end != at + size or end > len(content):
                raise BadRequestError(f"a batch member of {size} bytes does not hold together")
            text = content[properties_at:end].decode()
            body = content[body_at : body_at + body_bytes]
            found.append(BatchMember(body, parse_properties(text), flag))
            at = end
    except (struct.error, UnicodeDecodeError) as error:
        raise BadRequestError(f"a batch that does not hold together: {error}") from error
    if not found:
        raise BadRequestError("a batch without messages")
    return found
