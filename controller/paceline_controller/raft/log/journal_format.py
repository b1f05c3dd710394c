"""Pure: the bytes of the Raft journal's segments. Table: docs/protocol/raft.md, "Files".

A segment is a row of records, the first of which is its header. The header says whose segment it
is, which number it has, how the one before it ended, and the state that it goes on from, so that
segments can be read from any one on, and a lost or foreign one is noticed.
"""

import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum

import orjson
from crc32c import crc32c

from paceline_controller.raft.log.entries import Entry

FORMAT_VERSION = 2
ONE_FILE_VERSION = 1
"""Before there were segments: one file `journal` that compaction wrote anew."""
ONE_FILE_NAME = "journal"
_PREFIX = "journal-"
_DIGITS = 10

MAGIC = b"PLJ1"
HEAD = struct.Struct("<4sIIIQQ")  # magic, crc, payload length, kind, sequence, durable mark
_CRC_FROM = 8  # the CRC covers everything after itself
ALIGNMENT = 8
ENTRY_HEAD = struct.Struct("<QQ")
NUMBER = struct.Struct("<Q")


class RecordKind(IntEnum):
    HEADER = 0
    ENTRY = 1
    STATE = 2
    TRUNCATE = 3
    COMMIT = 4
    SEAL = 5
    """Nothing follows here: the next segment exists and goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One whole record, where it stood."""

    kind: int
    payload: bytes
    sequence: int
    mark: int
    """Size of the segment known to be durable when it was written."""
    crc: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What all records up to some point come to, but for the entries themselves."""

    last_index: int = 0
    term: int = 0
    voted_for: str = ""
    commit_index: int = 1

    def after(self, kind: int, payload: bytes) -> "Position":
        """One record further."""
        last_index, term = self.last_index, self.term
        voted_for, commit_index = self.voted_for, self.commit_index
        match kind:
            case RecordKind.ENTRY:
                last_index, _ = ENTRY_HEAD.unpack_from(payload)
            case RecordKind.TRUNCATE:
                (index,) = NUMBER.unpack(payload)
                last_index = index - 1
            case RecordKind.STATE:
                (term,) = NUMBER.unpack_from(payload)
                voted_for = payload[NUMBER.size :].decode()
            case RecordKind.COMMIT:
                (commit_index,) = NUMBER.unpack(payload)
        return Position(
            last_index=last_index, term=term, voted_for=voted_for, commit_index=commit_index
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The first record of a segment."""

    controller: str
    number: int
    is_base: bool
    """The journal begins here: whatever lies in lower numbers is not part of it any more."""
    previous_bytes: int
    previous_crc: int
    """Size, and CRC of the last record, of the segment before, without its seal; 0 for a base."""
    position: Position
    content_bytes: int = 0
    """Size of the segment as it was made: all of that is durable."""
    format: int = FORMAT_VERSION


def segment_name(number: int) -> str:
    return f"{_PREFIX}{number:0{_DIGITS}d}"


def segment_number(name: str) -> int | None:
    """None for files that are no segments."""
    digits = name.removeprefix(_PREFIX)
    is_one = name.startswith(_PREFIX) and len(digits) == _DIGITS and digits.isdigit()
    return int(digits) if is_one else None


def encode_record(kind: int, payload: bytes, *, sequence: int, durable: int) -> bytes:
    head = HEAD.pack(MAGIC, 0, len(payload), kind, sequence, durable)
    crc = crc32c(payload, crc32c(head[_CRC_FROM:]))
    record = head[:4] + crc.to_bytes(4, "little") + head[_CRC_FROM:] + payload
    return record + bytes(-len(record) % ALIGNMENT)


def entry_payload(entry: Entry) -> bytes:
    command, index, term = entry
    return ENTRY_HEAD.pack(index, term) + command


def crc_of(record: bytes) -> int:
    """The CRC that an encoded record carries."""
    return int.from_bytes(record[4:_CRC_FROM], "little")


def encode_segment(header: SegmentHeader, entries: Iterable[Entry] = ()) -> list[bytes]:
    """The records of a segment as it is made: its header, and the entries of a base."""
    body = [
        encode_record(RecordKind.ENTRY, entry_payload(entry), sequence=number, durable=0)
        for number, entry in enumerate(entries, start=1)
    ]
    return [_encode_header(header, sum(map(len, body))), *body]


def _encode_header(header: SegmentHeader, body_bytes: int) -> bytes:
    """The header names the size of all that is made, itself included."""
    document = asdict(header)
    header_bytes = 0
    while True:  # the number of digits is part of the size; settles in two or three rounds
        document["content_bytes"] = header_bytes + body_bytes
        payload = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
        record = encode_record(RecordKind.HEADER, payload, sequence=0, durable=0)
        if len(record) == header_bytes:
            return record
        header_bytes = len(record)


def parse_header(payload: bytes) -> SegmentHeader:
    """Of a record whose CRC is right. Raises ValueError for what is no header of this format."""
    document = orjson.loads(payload)
    if document.get("format") != FORMAT_VERSION:
        raise ValueError(f"format {document.get('format')} is unknown")
    try:
        position = Position(**document.pop("position"))
        return SegmentHeader(position=position, **document)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the header has other fields: {error}") from error


def parse_record(content: bytes, at: int) -> Record | None:
    """The record that begins at byte `at`; None if it is not whole."""
    if len(content) - at < HEAD.size:
        return None
    magic, crc, length, kind, sequence, mark = HEAD.unpack_from(content, at)
    payload_at = at + HEAD.size
    payload_end = payload_at + length
    end = payload_end + -payload_end % ALIGNMENT
    if magic != MAGIC or end > len(content):
        return None
    payload = content[payload_at:payload_end]
    head = memoryview(content)[at + _CRC_FROM : payload_at]
    is_padded = not content[payload_end:end].strip(b"\0")
    if not is_padded or crc32c(payload, crc32c(head)) != crc:
        return None
    return Record(kind=kind, payload=payload, sequence=sequence, mark=mark, crc=crc, end=end)


def highest_mark_after(content: bytes, start: int) -> int:
    """The highest durable mark of any whole record behind a bad one."""
    highest = 0
    at = content.find(MAGIC, start)
    while at >= 0:
        if at % ALIGNMENT == 0:
            record = parse_record(content, at)
            if record is not None:
                highest = max(highest, record.mark)
        at = content.find(MAGIC, at + 1)
    return highest
