"""Pure: the bytes of a projection snapshot (little-endian).

offset size field
0      4    magic            0x534a4c50 "PLJS"
4      4    crc32c           of bytes 8 .. end
8      4    version          1; another one is refused
12     4    0
16     8    position         u64, log position the state stands at
24     8    log_time_ms      i64
32     8    a                u64, bytes of the consume queues
40     8    b                u64, bytes of the producers
48     a    consume queues   `ConsumeQueues.snapshot`
..     b    producers        `Producers.snapshot`
..     ..   document         canonical JSON (sorted keys): locks, offsets, topics
"""

import struct
from dataclasses import dataclass
from typing import Any

import orjson
from crc32c import crc32c

from paceline.errors import CorruptLogError
from paceline.types import PhysicalOffset

MAGIC = 0x534A4C50
VERSION = 1
_CHECK = struct.Struct("<II")
_HEAD = struct.Struct("<IIQqQQ")
_START = _CHECK.size + _HEAD.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The parts of a snapshot."""

    position: PhysicalOffset
    log_time_ms: int
    consume_queues: bytes
    producers: bytes
    document: dict[str, Any]


def encode(snapshot: Snapshot) -> bytes:
    """Canonical bytes."""
    head = _HEAD.pack(
        VERSION,
        0,
        snapshot.position,
        snapshot.log_time_ms,
        len(snapshot.consume_queues),
        len(snapshot.producers),
    )
    document = orjson.dumps(snapshot.document, option=orjson.OPT_SORT_KEYS)
    rest = b"".join((head, snapshot.consume_queues, snapshot.producers, document))
    return _CHECK.pack(MAGIC, crc32c(rest)) + rest


def decode(content: bytes) -> Snapshot:
    """The parts of `content`. Raises CorruptLogError for anything `encode` did not write."""
    view = memoryview(content)
    if len(view) < _START:
        raise CorruptLogError(f"{len(view)} bytes are no projection snapshot")
    magic, crc = _CHECK.unpack_from(view)
    if magic != MAGIC or crc != crc32c(view[_CHECK.size :]):
        raise CorruptLogError("projection snapshot: magic or CRC differs")
    version, _, position, log_time_ms, queues_size, producers_size = _HEAD.unpack_from(
        view, _CHECK.size
    )
    if version != VERSION:
        raise CorruptLogError(f"projection snapshot of version {version}, known is {VERSION}")
    producers_at = _START + queues_size
    document_at = producers_at + producers_size
    return Snapshot(
        position=PhysicalOffset(position),
        log_time_ms=log_time_ms,
        consume_queues=bytes(view[_START:producers_at]),
        producers=bytes(view[producers_at:document_at]),
        document=orjson.loads(view[document_at:]),
    )
