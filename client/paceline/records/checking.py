"""Pure: what a broker checks of a client's batch before it stores it, in steps.

What passes can be decoded by every reader for ever. A batch of some KiB may unpack to 16 MiB with
a million properties, so lengths are checked before contents, and contents piece by piece: whoever
runs the steps lets others have their turn between two of them (ADR 18). A batch that `is_short`
costs no more than a step or two.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter, sub
from typing import TypeAlias

from paceline.errors import CorruptLogError, TooLargeError
from paceline.platform.ports import Buffer
from paceline.records.decode import BatchView, parse_properties
from paceline.records.header import (
    COLUMN_BODY,
    COLUMN_BORN,
    COLUMN_KEY,
    COLUMN_PROPERTY,
    COLUMN_TAG,
    DERIVED_PROPERTIES_BYTES_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    SEQUENCE_MAX,
    TAG_BYTES_MAX,
    BatchHeader,
    Section,
)

STEP_RECORDS = 2048
STEP_BYTES = 128 * 1024
"""Of texts or properties that one step looks at (or of one record): some 2 ms at most."""
SHORT_RECORDS = 4096
SHORT_RAW_BYTES = 64 * 1024
"""Of a compressed payload: there only the header says what comes out."""

RowsCheck: TypeAlias = Callable[[int, Sequence[Mapping[str, str]]], None]
"""Called with the properties of records from a number on; raises to refuse the batch."""

_CONTINUATION = bytes(range(0x80, 0xC0))


class BatchCheck:
    """The check of one batch; the whole buffer."""

    __slots__ = ("header", "view")

    def __init__(self, buffer: Buffer) -> None:
        """Looks at the header. Raises CorruptLogError."""
        self.view = view = BatchView(buffer)
        self.header: BatchHeader = view.header
        header = view.header
        if header.size_bytes != len(buffer):
            raise CorruptLogError(f"{len(buffer)} bytes for a batch of {header.size_bytes}")
        if (header.producer_id != 0) != (header.base_sequence >= 0):
            raise CorruptLogError(
                f"producer id {header.producer_id} with base sequence {header.base_sequence}"
            )
        if header.base_sequence + header.record_count - 1 > SEQUENCE_MAX:
            raise CorruptLogError(f"sequences from {header.base_sequence} do not fit 31 bits")

    def is_short(self) -> bool:
        """Whether everything may be checked at once. Raises CorruptLogError."""
        header = self.header
        if header.record_count > SHORT_RECORDS:
            return False
        if header.codec:
            return header.payload_raw_bytes <= SHORT_RAW_BYTES
        texts = header.columns & (COLUMN_KEY | COLUMN_PROPERTY | COLUMN_TAG)
        return not texts or header.size_bytes <= STEP_BYTES or self._text_bytes() <= STEP_BYTES

    def _text_bytes(self) -> int:
        view, columns = self.view, self.header.columns
        blobs = (Section.KEY_BLOB, Section.PROPERTY_BLOB, Section.TAG_BLOB)
        return sum(view.place_of(blob)[1] for blob in blobs if columns >> blob & 1)

    def steps(self, check_rows: RowsCheck | None = None) -> Iterator[None]:
        """Everything, a bounded piece at a time. Raises CorruptLogError, or TooLargeError over a
        limit, or what `check_rows` raises."""
        view, header = self.view, self.header
        columns = header.columns
        view.verify()
        if header.codec and header.payload_raw_bytes > STEP_BYTES:
            view.payload()
            yield
        if columns & COLUMN_BODY:
            _, blob_bytes = view.place_of(Section.BODY_BLOB)
            offsets = view.offsets(Section.BODY_OFFSETS, header.record_count, blob_bytes)
            _check_longest(offsets, MESSAGE_BYTES_MAX)
        else:
            view.directory()
        if columns & COLUMN_KEY:
            keys = view.section(Section.KEY_BLOB)
            offsets = view.offsets(Section.KEY_OFFSETS, header.record_count, len(keys))
            _check_longest(offsets, KEY_BYTES_MAX)
            yield from _check_texts(keys, offsets, "key")
        if columns & COLUMN_TAG:
            tags, offsets = view.tag_dictionary()
            _check_longest(offsets, TAG_BYTES_MAX)
            yield from _check_texts(tags, offsets, "tag")
            view.tag_ids(len(offsets) - 1)
        if columns & COLUMN_PROPERTY:
            yield from self._check_properties(check_rows)
        elif check_rows is not None:
            check_rows(0, [{}])
        born = view.born() if columns & COLUMN_BORN else [header.born_first_unix_ms]
        if born[0] != header.born_first_unix_ms or born[-1] != header.born_last_unix_ms:
            raise CorruptLogError("born times differ from the header's first and last")

    def _check_properties(self, check_rows: RowsCheck | None) -> Iterator[None]:
        view, header = self.view, self.header
        blob = view.section(Section.PROPERTY_BLOB)
        offsets = view.offsets(Section.PROPERTY_OFFSETS, header.record_count, len(blob))
        is_of_broker = header.is_of_broker  # whose own come beside the application's
        limit = DERIVED_PROPERTIES_BYTES_MAX if is_of_broker else PROPERTIES_BYTES_MAX
        _check_longest(offsets, limit)
        for first, end in _pieces(offsets):
            if first:
                yield
            start = offsets[first]
            piece = blob[start : offsets[end]].tobytes()
            rows = parse_properties(
                [
                    piece[low - start : high - start]
                    for low, high in pairwise(offsets[first : end + 1])
                ]
            )
            _check_names(piece, rows)
            if check_rows is not None:
                check_rows(first, rows)


def check_batch(buffer: Buffer) -> BatchHeader:
    """All of a batch's check at once. Raises CorruptLogError, or TooLargeError for a value over its
    limit. Not here: whether the kind is a client kind, topic, queue, sequence."""
    check = BatchCheck(buffer)
    for _ in check.steps():
        pass
    return check.header


def _check_names(piece: bytes, rows: list[dict[str, str]]) -> None:
    """Each name stands once in its object: readers differ in which of two they take.

    `piece`: the objects of strings as they came. Each member has four quotes that are not part of
    a text, and a parser keeps one member of each name.
    """
    if b"\\" in piece:
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    if piece.count(b'"') != 4 * sum(map(len, rows)):
        raise CorruptLogError("a record has two properties of one name")


def _check_longest(offsets: list[int], limit: int) -> None:
    if offsets[-1] > limit:
        longest = max(map(sub, offsets[1:], offsets))
        if longest > limit:
            raise TooLargeError(f"a record with {longest} bytes in one column", limit=limit)


def _pieces(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges of records with so many bytes as a step may look at."""
    first, count = 0, len(offsets) - 1
    while first < count:
        end = min(bisect_right(offsets, offsets[first] + STEP_BYTES) - 1, first + STEP_RECORDS)
        end = min(max(end, first + 1), count)
        yield first, end
        first = end


def _check_texts(blob: memoryview, offsets: list[int], what: str) -> Iterator[None]:
    """Every slice is UTF-8 if pieces of the blob are and no slice begins inside a character."""
    for first, end in _pieces(offsets):
        if first:
            yield
        start = offsets[first]
        raw = blob[start : offsets[end]].tobytes()
        if raw.isascii():
            continue
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise CorruptLogError(f"a {what} is no UTF-8: {error}") from error
        # One byte past the end, so that the start of an empty last slice can be looked at as well.
        places = [offset - start for offset in offsets[first : end + 1]]
        firsts = bytes(itemgetter(*places)(raw + b"\0"))
        if len(firsts.translate(None, _CONTINUATION)) != len(firsts):
            raise CorruptLogError(f"a {what} begins inside a UTF-8 character")
