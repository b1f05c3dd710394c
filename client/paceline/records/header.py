"""Pure: the 96-byte header of a record batch: layout, checks, and the broker's stamp.

docs/format/record-batch.md is the contract. The header CRC starts from `size_bytes` and runs over
bytes 12..96, and the magic is compared, so a header that parses has every byte as it was written:
a walk over headers alone can trust the sizes. The payload has a CRC of its own, made by the
producer, that stays valid from there to the consumer; the broker rewrites header fields only.
"""

import struct
import sys
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from paceline.errors import CorruptLogError
from paceline.platform.ports import Buffer

# Columns are read in place with memoryview.cast, which is native-endian.
assert sys.byteorder == "little", "paceline needs a little-endian machine"

HEADER_BYTES = 96
MAGIC = 0x31424C50  # "PLB1" as bytes; a new layout gets a new magic
BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Limit of `size_bytes`, and of `payload_raw_bytes` (what a compressed payload may grow to)."""
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Limit of one body (RocketMQ's maxMessageSize)."""
PROPERTIES_BYTES_MAX = 32_767
"""Limit of one record's properties as JSON (RocketMQ's)."""
DERIVED_PROPERTIES_BYTES_MAX = 65_535
"""The same in batches that brokers derive: room for what they add."""
KEY_BYTES_MAX = 32_767
TAG_BYTES_MAX = 32_767
"""Key and tag are properties in RocketMQ, and have the limit of those."""
RECORDS_MAX = 65_535
DELAYED_RECORDS_MAX = 4096
"""Of a batch of delayed messages: each becomes an entry of its own, all in one step (13 ms
where no two are due in one second)."""
SEQUENCE_MAX = 2**31 - 1


class Kind(IntEnum):
    """What the records of a batch are. Everything but the client kinds is made by brokers."""

    NORMAL = 0
    EPOCH_START = 1
    OFFSET_COMMIT = 2
    LOCK = 3
    DELAY = 4
    HALF = 5
    OPERATION = 6
    SEND_BACK = 7
    GROUP = 8
    TOPIC = 9
    RETENTION = 10
    PIN = 11
    POP = 12


class Cause(IntEnum):
    """Why a broker made a batch of messages out of others: the low byte of `flags` (R34).

    Such a batch has a SOURCE column and no producer; the fold closes every source by it. Only what
    ESCAPED lies in another log, so that such a batch closes nothing and has no SOURCE.
    """

    CLIENT = 0
    """Nobody derived it: a client sent it."""
    DELAYED = 1
    """It was due."""
    COMMITTED = 2
    """Its transaction was committed."""
    RETRIED = 3
    """A consumer sent it back."""
    DEAD = 4
    """No attempt is left, or its target is gone."""
    CHECKED_OUT = 5
    """Its transaction was never ended, and the checks are used up."""
    RESENT = 6
    """It was a dead letter."""
    REPLIED = 7
    ESCAPED = 8
    """Another group's acting master sent it on (R36)."""
    AGAIN = 9
    """It waits still: the same records, written again at the log's end (R26)."""


CAUSE_MASK = 0xFF


CLIENT_KINDS = frozenset({Kind.NORMAL, Kind.DELAY, Kind.HALF})
"""The only kinds a broker takes from a client (whoever takes it in checks this)."""


class Codec(IntEnum):
    """Compression of the payload of one batch."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class Section(IntEnum):
    """Bit of a section in `columns`; sections stand in this order in the payload."""

    BORN = 0
    BODY_OFFSETS = 1
    KEY_OFFSETS = 2
    PROPERTY_OFFSETS = 3
    TAG_IDS = 4
    TAG_OFFSETS = 5
    BODY_BLOB = 6
    KEY_BLOB = 7
    PROPERTY_BLOB = 8
    TAG_BLOB = 9
    DUE = 10
    SOURCE = 11


COLUMN_BORN = 1 << Section.BORN
COLUMN_BODY = 1 << Section.BODY_OFFSETS | 1 << Section.BODY_BLOB
COLUMN_KEY = 1 << Section.KEY_OFFSETS | 1 << Section.KEY_BLOB
COLUMN_PROPERTY = 1 << Section.PROPERTY_OFFSETS | 1 << Section.PROPERTY_BLOB
COLUMN_TAG = 1 << Section.TAG_IDS | 1 << Section.TAG_OFFSETS | 1 << Section.TAG_BLOB
COLUMN_DUE = 1 << Section.DUE
COLUMN_SOURCE = 1 << Section.SOURCE


def _column_sets() -> frozenset[int]:
    """All legal values of `columns`: the sections of one column are present together or not."""
    found = {0}
    for column in (
        COLUMN_BORN,
        COLUMN_BODY,
        COLUMN_KEY,
        COLUMN_PROPERTY,
        COLUMN_TAG,
        COLUMN_DUE,
        COLUMN_SOURCE,
    ):
        found |= {columns | column for columns in found}
    return frozenset(found)


COLUMN_SETS = _column_sets()


class BatchHeader(NamedTuple):
    """All fields of a header, in the order of the bytes. `kind` and `codec` are checked ints."""

    magic: int
    size_bytes: int
    header_crc32c: int
    payload_crc32c: int
    physical_offset: int
    base_queue_offset: int
    store_unix_ms: int
    born_first_unix_ms: int
    born_last_unix_ms: int
    producer_id: int
    master_epoch: int
    topic_id: int
    payload_raw_bytes: int
    base_sequence: int
    producer_epoch: int
    queue_id: int
    record_count: int
    kind: int
    codec: int
    columns: int
    flags: int
    reserved: int

    @property
    def end_offset(self) -> int:
        """Physical offset of the first byte after this batch."""
        return self.physical_offset + self.size_bytes

    @property
    def cause(self) -> int:
        """`Cause` of a batch that a broker made; 0 for a client's."""
        return self.flags & CAUSE_MASK

    @property
    def is_of_broker(self) -> bool:
        """A broker made it: what its properties of the system say is a broker's word."""
        return bool(self.flags & CAUSE_MASK)

    @property
    def is_derived(self) -> bool:
        """A broker made it out of the records its SOURCE column names (R34)."""
        return bool(self.flags & CAUSE_MASK and self.columns & COLUMN_SOURCE)

    @property
    def end_queue_offset(self) -> int:
        """Queue offset of the first record after this batch."""
        return self.base_queue_offset + self.record_count


HEADER = struct.Struct("<IIIIQQqqqQIIIiHHHBBHHI")
HEADER_PREFIX = struct.Struct("<III")
"""Magic, size, header CRC: what stands before the bytes the header CRC runs over."""
HEADER_REST = struct.Struct("<IQQqqqQIIIiHHHBBHHI")
assert HEADER.size == HEADER_BYTES
assert HEADER_PREFIX.size + HEADER_REST.size == HEADER_BYTES

_MAGIC_AND_SIZE = struct.Struct("<II")
_STAMP_FIRST = struct.Struct("<QQq")  # physical offset, base queue offset, store time, at 16
_U32 = struct.Struct("<I")
_KIND_MAX = max(Kind)
_CODEC_MAX = max(Codec)
_unpack_header = HEADER.unpack_from
_new_tuple = tuple.__new__


def parse_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """The header at byte `at` of `buffer`, checked; the payload need not be there and is not read.

    Raises CorruptLogError if there is no whole header, the magic, the header CRC or the reserved
    field is wrong, or a field is outside its range.
    """
    try:
        header: BatchHeader = _new_tuple(BatchHeader, _unpack_header(buffer, at))
    except struct.error:
        raise _too_short(buffer, at) from None
    (magic, size, header_crc, _, _, _, _, _, _, _, _, _, raw_bytes, sequence, _, _) = header[:16]
    if (
        magic != MAGIC
        or crc32c(buffer[at + 12 : at + HEADER_BYTES], size) != header_crc
        or size & 7
        or not HEADER_BYTES <= size <= BATCH_BYTES_MAX
        or sequence < -1
        or header.kind > _KIND_MAX
        or header.record_count == 0
        or header.columns not in COLUMN_SETS
        or header.reserved
        or not _is_raw_size(raw_bytes, size, header.codec)
    ):
        raise CorruptLogError(f"batch header at byte {at}: {_fault(buffer, at)}", offset=at)
    return header


def _is_raw_size(raw_bytes: int, size: int, codec: int) -> bool:
    """Whether the uncompressed length fits the codec; false also for an unknown codec."""
    if codec == 0:
        return raw_bytes == size - HEADER_BYTES
    return codec <= _CODEC_MAX and 0 < raw_bytes <= BATCH_BYTES_MAX and not raw_bytes & 7


def _too_short(buffer: Buffer, at: int) -> CorruptLogError:
    left = len(buffer) - at
    return CorruptLogError(f"{left} bytes left at byte {at} are no batch header", offset=at)


def _fault(buffer: Buffer, at: int) -> str:
    """What is wrong with a header that `parse_header` refuses, for the operator."""
    header = BatchHeader._make(_unpack_header(buffer, at))
    if header.magic != MAGIC:
        return f"magic is {header.magic:#010x}, not {MAGIC:#010x}"
    if crc32c(buffer[at + 12 : at + HEADER_BYTES], header.size_bytes) != header.header_crc32c:
        return "header CRC differs"
    return (
        f"a field is out of range: size_bytes {header.size_bytes}, kind {header.kind},"
        f" codec {header.codec}, payload_raw_bytes {header.payload_raw_bytes},"
        f" record_count {header.record_count}, columns {header.columns:#x},"
        f" base_sequence {header.base_sequence}, reserved {header.reserved}"
    )


SOURCE_INDEX_BITS = 16
SOURCE_POSITION_MAX = 2**48 - 1


def pack_source(position: int, index: int) -> int:
    """One value of the SOURCE column: record `index` of the batch at physical offset `position`."""
    assert 0 <= position <= SOURCE_POSITION_MAX, position
    assert 0 <= index < RECORDS_MAX, index
    return position << SOURCE_INDEX_BITS | index


def unpack_source(source: int) -> tuple[int, int]:
    """(position, index) of a value of the SOURCE column."""
    return source >> SOURCE_INDEX_BITS, source & RECORDS_MAX


def peek_size(buffer: Buffer, at: int = 0) -> int:
    """`size_bytes` of the batch at `at`, from its first 8 bytes; the CRC is not looked at.

    For framing only: how many bytes to read before `parse_header`. Raises CorruptLogError if the
    magic is wrong or the size is no legal one.
    """
    try:
        magic, size = _MAGIC_AND_SIZE.unpack_from(buffer, at)
    except struct.error:
        raise _too_short(buffer, at) from None
    if magic != MAGIC or size & 7 or not HEADER_BYTES <= size <= BATCH_BYTES_MAX:
        raise CorruptLogError(
            f"no batch at byte {at}: magic {magic:#010x}, size_bytes {size}", offset=at
        )
    assert isinstance(size, int)
    return size


def stamp(
    batch: Buffer,
    *,
    physical_offset: int,
    base_queue_offset: int,
    store_unix_ms: int,
    master_epoch: int,
) -> bytes:
    """The header of `batch` as the master stores it: 96 bytes with the broker's fields set.

    `batch` must have passed `parse_header` or `check_batch`; its payload is untouched and follows
    the new header. Only the master of `master_epoch` calls this, once per batch it appends.
    """
    header = bytearray(batch[:HEADER_BYTES])
    _STAMP_FIRST.pack_into(header, 16, physical_offset, base_queue_offset, store_unix_ms)
    _U32.pack_into(header, 64, master_epoch)
    _, size = _MAGIC_AND_SIZE.unpack_from(header)
    _U32.pack_into(header, 8, crc32c(header[12:], size))
    return bytes(header)


def pack_header(header: BatchHeader) -> bytes:
    """The 96 bytes of `header` with its CRC computed anew (`header.header_crc32c` is ignored)."""
    rest = HEADER_REST.pack(*header[3:])
    prefix = HEADER_PREFIX.pack(header.magic, header.size_bytes, crc32c(rest, header.size_bytes))
    return prefix + rest
