"""Pure: the bytes of a projection snapshot (little-endian).

offset size field
0      4    magic            0x534a4c50 "PLJS"
4      4    crc32c           of bytes 8 .. end
8      4    version          2; 1 has no parts, others are refused
12     4    0
16     8    position         u64, log position the state stands at
24     8    log_time_ms      i64
32     8    a                u64, bytes of the consume queues
40     8    b                u64, bytes of the producers
48     a    consume queues   `ConsumeQueues.snapshot`
..     b    producers        `Producers.snapshot`
..     8    c                u64, bytes of the document (version 1: it is the rest)
..     c    document         canonical JSON (sorted keys): locks, offsets, topics;
                          "parts": [[name, length], ...]
..     ..   parts            named binary states in order of name
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from crc32c import crc32c

from paceline.errors import CorruptLogError
from paceline.types import PhysicalOffset

MAGIC = 0x534A4C50
VERSION = 2
_CHECK = struct.Struct("<II")
_HEAD = struct.Struct("<IIQqQQ")
_LENGTH = struct.Struct("<Q")
_START = _CHECK.size + _HEAD.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The parts of a snapshot."""

    position: PhysicalOffset
    log_time_ms: int
    consume_queues: bytes
    producers: bytes
    document: dict[str, Any]
    parts: dict[str, Sequence[bytes]] = field(default_factory=dict)
    """State that is too large for JSON, by the name of its projection; in pieces."""

    def part(self, name: str) -> memoryview:
        """Empty if there is none of that name."""
        return memoryview(b"".join(self.parts.get(name, ())))


def encode(snapshot: Snapshot) -> bytes:
    """Canonical bytes."""
    return b"".join(encode_pieces(snapshot))


def encode_pieces(snapshot: Snapshot) -> list[bytes]:
    """What joined is `encode`: large states are not copied once more for it."""
    head = _HEAD.pack(
        VERSION,
        0,
        snapshot.position,
        snapshot.log_time_ms,
        len(snapshot.consume_queues),
        len(snapshot.producers),
    )
    names = sorted(snapshot.parts)
    listed = [[name, sum(map(len, snapshot.parts[name]))] for name in names]
    document = orjson.dumps({**snapshot.document, "parts": listed}, option=orjson.OPT_SORT_KEYS)
    pieces = [head, snapshot.consume_queues, snapshot.producers]
    pieces += [_LENGTH.pack(len(document)), document]
    for name in names:
        pieces += snapshot.parts[name]
    return [_CHECK.pack(MAGIC, crc_of(pieces)), *pieces]


def crc_of(pieces: Iterable[bytes]) -> int:
    """CRC-32C of what they are joined."""
    crc = 0
    for piece in pieces:
        crc = crc32c(piece, crc)
    return crc


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
    if version not in (1, VERSION):
        raise CorruptLogError(f"projection snapshot of version {version}, known is {VERSION}")
    producers_at = _START + queues_size
    at = producers_at + producers_size
    document, parts = _document_and_parts(view[at:], has_parts=version > 1)
    return Snapshot(
        position=PhysicalOffset(position),
        log_time_ms=log_time_ms,
        consume_queues=bytes(view[_START:producers_at]),
        producers=bytes(view[producers_at:at]),
        document=document,
        parts=parts,
    )


def _document_and_parts(
    rest: memoryview, *, has_parts: bool
) -> tuple[dict[str, Any], dict[str, Sequence[bytes]]]:
    if not has_parts:
        return orjson.loads(rest), {}
    (size,) = _LENGTH.unpack_from(rest)
    at = _LENGTH.size + size
    document = orjson.loads(rest[_LENGTH.size : at])
    parts: dict[str, Sequence[bytes]] = {}
    for name, length in document.pop("parts"):
        parts[name] = (bytes(rest[at : at + length]),)
        at += length
    return document, parts
