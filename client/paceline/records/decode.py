"""Pure: reading record batches: views with lazy columns, and records.

A `BatchView` copies nothing until a column is asked for, and then passes over that column only.
Every function here turns any bytes into an answer or CorruptLogError: a column is checked when it
is read, whether or not a CRC was looked at before. Brokers check batches when they arrive, so that
what is in the log can be read by everybody for ever: `checking.py`.
"""

import struct
from collections.abc import Iterator
from itertools import chain, pairwise, repeat
from typing import Any, Literal, NamedTuple

import orjson
from crc32c import crc32c

from paceline.errors import CorruptLogError
from paceline.platform.ports import Buffer
from paceline.records.compression import decompress
from paceline.records.header import (
    COLUMN_BODY,
    COLUMN_BORN,
    COLUMN_DUE,
    COLUMN_KEY,
    COLUMN_PROPERTY,
    COLUMN_SETS,
    COLUMN_SOURCE,
    COLUMN_TAG,
    HEADER_BYTES,
    BatchHeader,
    Section,
    parse_header,
)


class Record(NamedTuple):
    """One record as a consumer sees it. `key` None and `tag` "" mean none."""

    queue_offset: int
    body: bytes
    key: str | None
    tag: str
    properties: dict[str, str]
    born_unix_ms: int


_Directory = dict[int, tuple[int, int]]
"""(start, length) in the uncompressed payload of each section that is present."""

_new_tuple = tuple.__new__
_SMALL_VALUE_BYTES = 4096


class BatchView:
    """One batch inside a buffer, read in place.

    The constructor checks the header and that the batch is whole; `verify` the payload's CRC.
    Column methods return a list of `header.record_count` values and raise CorruptLogError if the
    column is not well formed. Views keep the buffer alive and are valid as long as it is unchanged.
    """

    __slots__ = ("_directory", "_names", "_payload", "header", "raw")

    def __init__(self, buffer: Buffer, at: int = 0) -> None:
        """The batch at byte `at`; what follows it is not looked at. Raises CorruptLogError."""
        header = parse_header(buffer, at)
        view = memoryview(buffer)
        if header.size_bytes > len(view) - at:
            raise CorruptLogError(
                f"batch of {header.size_bytes} bytes at byte {at} ends after {len(view)}", offset=at
            )
        self.header: BatchHeader = header
        self.raw: memoryview = view[at : at + header.size_bytes]
        """The whole batch, header and payload."""
        self._payload: memoryview | None = None
        self._directory: _Directory | None = None
        self._names: list[str] | None = None

    @classmethod
    def stamped(cls, batch: Buffer, header: bytes) -> "BatchView":
        """The view of a batch whose stamped header is not in front of its payload."""
        view = cls(batch)
        view.header = parse_header(header)
        return view

    def verify(self) -> None:
        """Check the payload CRC; CorruptLogError if a byte changed since the producer made it."""
        crc = crc32c(self.raw[HEADER_BYTES:])
        if crc != self.header.payload_crc32c:
            raise CorruptLogError(
                f"payload CRC is {crc:#010x}, the header says {self.header.payload_crc32c:#010x}",
                offset=self.header.physical_offset,
            )

    def bodies(self, first: int = 0, end: int | None = None) -> list[bytes]:
        """The bodies, copied out; of the records from number `first` to before `end`."""
        if not self.header.columns & COLUMN_BODY:
            return [b""] * self._count(first, end)
        return self._values(Section.BODY_OFFSETS, Section.BODY_BLOB, first, end)

    def body_views(self) -> list[memoryview]:
        """The bodies as views of the buffer: cheaper than `bodies` when they are large."""
        if not self.header.columns & COLUMN_BODY:
            return [self.raw[:0]] * self.header.record_count
        blob = self.section(Section.BODY_BLOB)
        offsets = self.offsets(Section.BODY_OFFSETS, self.header.record_count, len(blob))
        return [blob[start:end] for start, end in pairwise(offsets)]

    def keys(self, first: int = 0, end: int | None = None) -> list[str | None]:
        """The keys; None where a record has none."""
        if not self.header.columns & COLUMN_KEY:
            return [None] * self._count(first, end)
        blob = self.section(Section.KEY_BLOB)
        offsets = self._some_offsets(Section.KEY_OFFSETS, len(blob), first, end)
        return [key or None for key in _texts(blob, offsets, "key")]

    def tags(self, first: int = 0, end: int | None = None) -> list[str]:
        """The tags; "" where a record has none."""
        if not self.header.columns & COLUMN_TAG:
            return [""] * self._count(first, end)
        names = self._names
        if names is None:
            names = self._names = ["", *self._tag_names()]
        return [names[number] for number in self.tag_ids(len(names) - 1, first, end)]

    def tag_names(self) -> list[str]:
        """The batch's distinct tags; tag id n means entry n - 1."""
        return self._tag_names() if self.header.columns & COLUMN_TAG else []

    def properties(self, first: int = 0, end: int | None = None) -> list[dict[str, str]]:
        """The properties; {} where a record has none."""
        if not self.header.columns & COLUMN_PROPERTY:
            return [{} for _ in range(self._count(first, end))]
        documents = self._values(Section.PROPERTY_OFFSETS, Section.PROPERTY_BLOB, first, end)
        return parse_properties(documents)

    def born(self, first: int = 0, end: int | None = None) -> list[int]:
        """The born times in unix ms."""
        if not self.header.columns & COLUMN_BORN:
            return [self.header.born_first_unix_ms] * self._count(first, end)
        return self.section(Section.BORN).cast("q")[first:end].tolist()

    def _count(self, first: int, end: int | None) -> int:
        return len(range(self.header.record_count)[first:end])

    def due(self) -> list[int]:
        """When each record is due, unix ms; CorruptLogError without such a column."""
        return self._numbers(Section.DUE, COLUMN_DUE, "q")

    def sources(self) -> list[int]:
        """What each record was made from (`unpack_source`); CorruptLogError without a column."""
        return self._numbers(Section.SOURCE, COLUMN_SOURCE, "Q")

    def _numbers(self, section: Section, column: int, code: Literal["q", "Q"]) -> list[int]:
        if not self.header.columns & column:
            raise CorruptLogError(f"a batch without {section.name}")
        return self.section(section).cast(code).tolist()

    def records(self, skip: int = 0, end: int | None = None) -> Iterator[Record]:
        """The records from number `skip` (0-based in the batch) to before `end`; their columns are
        decoded at once."""
        header = self.header
        rows = zip(
            range(header.base_queue_offset, header.end_queue_offset)[skip:end],
            self.bodies(skip, end),
            self.keys(skip, end),
            self.tags(skip, end),
            self.properties(skip, end),
            self.born(skip, end),
            strict=True,
        )
        return map(_new_tuple, repeat(Record), rows)

    def document(self) -> dict[str, Any]:
        """The JSON object that is the body of an internal record. Raises CorruptLogError."""
        bodies = self.bodies()
        try:
            document = orjson.loads(bodies[0])
        except orjson.JSONDecodeError as error:
            raise CorruptLogError(f"internal record is no JSON: {error}") from error
        if len(bodies) != 1 or not isinstance(document, dict):
            raise CorruptLogError("internal record is not one JSON object")
        return document

    def _tag_names(self) -> list[str]:
        return _texts(*self.tag_dictionary(), "tag")

    def tag_dictionary(self) -> tuple[memoryview, list[int]]:
        blob = self.section(Section.TAG_BLOB)
        _, length = self.directory()[Section.TAG_OFFSETS]
        return blob, self.offsets(Section.TAG_OFFSETS, length // 4 - 1, len(blob))

    def tag_ids(self, names_count: int, first: int = 0, end: int | None = None) -> list[int]:
        ids: list[int] = self.section(Section.TAG_IDS).cast("H")[first:end].tolist()
        if max(ids, default=0) > names_count:
            raise CorruptLogError(f"tag id {max(ids)} with {names_count} tags")
        return ids

    def payload(self) -> memoryview:
        """The payload, uncompressed."""
        payload = self._payload
        if payload is None:
            header = self.header
            payload = self.raw[HEADER_BYTES:]
            if header.codec:
                payload = memoryview(decompress(payload, header.codec, header.payload_raw_bytes))
            self._payload = payload
        return payload

    def directory(self) -> _Directory:
        """(start, length) of each present section in the uncompressed payload, checked."""
        if self._directory is None:
            self._directory = _parse_directory(self.header, self.payload())
        return self._directory

    def section(self, section: Section) -> memoryview:
        """The bytes of one section that is there, uncompressed; checked for its length only."""
        start, length = self.directory()[section]
        return self.payload()[start : start + length]

    def place_of(self, section: Section) -> tuple[int, int]:
        """Start and length, in the uncompressed payload, of a section that is there."""
        return self.directory()[section]

    def offsets(self, section: Section, count: int, blob_bytes: int) -> list[int]:
        """The count + 1 offsets of a column: from 0 to the end of its blob, never falling."""
        offsets: list[int] = self.section(section).cast("i").tolist()
        # sorted() of a sorted list is one pass in C; INV: slices by these stay inside the blob.
        if offsets[0] or offsets[-1] != blob_bytes or sorted(offsets) != offsets:
            raise CorruptLogError(f"{section.name} of {count} records do not rise to {blob_bytes}")
        return offsets

    def _some_offsets(
        self, section: Section, blob_bytes: int, first: int, end: int | None
    ) -> list[int]:
        """As `offsets`, of some records: where each begins, and where the last one ends."""
        count = self.header.record_count
        if first == 0 and (end is None or end >= count):
            return self.offsets(section, count, blob_bytes)
        stop = count if end is None else min(end, count)
        offsets = self.section(section).cast("i")[min(first, stop) : stop + 1].tolist()
        if offsets[0] < 0 or offsets[-1] > blob_bytes or sorted(offsets) != offsets:
            raise CorruptLogError(f"{section.name} do not rise to {blob_bytes}")
        return offsets

    def _values(
        self, offsets_section: Section, blob_section: Section, first: int, end: int | None
    ) -> list[bytes]:
        blob = self.section(blob_section)
        offsets = self._some_offsets(offsets_section, len(blob), first, end)
        start, stop = offsets[0], offsets[-1]
        if stop - start > _SMALL_VALUE_BYTES * len(offsets):
            return [bytes(blob[low:high]) for low, high in pairwise(offsets)]
        # Of small values a slice of bytes costs half of one of a view, so they are copied twice.
        copied = blob[start:stop].tobytes()
        places = pairwise(offset - start for offset in offsets) if start else pairwise(offsets)
        return [copied[low:high] for low, high in places]


class _Layout(NamedTuple):
    """The directory of one column set, worked out once."""

    sections: tuple[Section, ...]
    directory: struct.Struct
    lengths: tuple[tuple[Section, int, int], ...]
    """(section, a, b) where the length must be a x record count + b; blobs may have any length."""


def _layouts() -> dict[int, _Layout]:
    fixed = {
        Section.BORN: (8, 0),
        Section.BODY_OFFSETS: (4, 4),
        Section.KEY_OFFSETS: (4, 4),
        Section.PROPERTY_OFFSETS: (4, 4),
        Section.TAG_IDS: (2, 0),
        Section.DUE: (8, 0),
        Section.SOURCE: (8, 0),
    }
    found = {}
    for columns in COLUMN_SETS:
        sections = tuple(section for section in Section if columns >> section & 1)
        lengths = tuple((section, *fixed[section]) for section in sections if section in fixed)
        found[columns] = _Layout(sections, struct.Struct(f"<{2 * len(sections)}I"), lengths)
    return found


_LAYOUTS = _layouts()


def _parse_directory(header: BatchHeader, payload: memoryview) -> _Directory:
    """The directory, which must be the only one its lengths allow: sections in order, no gaps."""
    sections, directory, lengths = _LAYOUTS[header.columns]
    at = directory.size
    if at > len(payload):
        raise CorruptLogError(f"{len(payload)} bytes of payload for {len(sections)} sections")
    numbers = iter(directory.unpack_from(payload))
    found: _Directory = {}
    for section, start, length in zip(sections, numbers, numbers, strict=True):
        if start != at:
            raise CorruptLogError(f"{section.name} starts at {start}, not {at}")
        found[section] = (start, length)
        at += length + (-length & 7)
    if at != len(payload):
        raise CorruptLogError(f"sections end at {at}, the payload at {len(payload)}")
    for section, per_record, more in lengths:
        if found[section][1] != per_record * header.record_count + more:
            raise CorruptLogError(
                f"{section.name} of {header.record_count} records is {found[section][1]} bytes"
            )
    if header.columns & COLUMN_TAG:
        tag_bytes = found[Section.TAG_OFFSETS][1]
        if tag_bytes & 3 or not 8 <= tag_bytes <= 4 * (header.record_count + 1):
            raise CorruptLogError(
                f"tag offsets of {header.record_count} records: {tag_bytes} bytes"
            )
    return found


def _texts(blob: memoryview, offsets: list[int], what: str) -> list[str]:
    """The UTF-8 slices of a blob that begin and end at these offsets."""
    start = offsets[0]
    raw = blob[start : offsets[-1]].tobytes()
    places = pairwise(offset - start for offset in offsets) if start else pairwise(offsets)
    try:
        if raw.isascii():
            text = raw.decode()
            return [text[low:high] for low, high in places]
        return [raw[low:high].decode() for low, high in places]
    except UnicodeDecodeError as error:
        raise CorruptLogError(f"a {what} is no UTF-8: {error}") from error


def parse_properties(documents: list[bytes]) -> list[dict[str, str]]:
    """Each document as an object of strings; an empty one has none."""
    try:
        found = [orjson.loads(document) if document else {} for document in documents]
    except orjson.JSONDecodeError as error:
        raise CorruptLogError(f"properties are no JSON: {error}") from error
    if not set(map(type, found)) <= {dict}:
        raise CorruptLogError("properties are no JSON object")
    if not set(map(type, chain.from_iterable(map(dict.values, found)))) <= {str}:
        raise CorruptLogError("a property is no text")
    return found


def iter_batches(buffer: Buffer, at: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(start byte, header) of each batch from `at` to the end of the buffer; payloads are not read.

    Raises CorruptLogError at a bad header, or if the buffer ends inside a batch.
    """
    end = len(buffer)
    while at < end:
        header = parse_header(buffer, at)
        if at + header.size_bytes > end:
            raise CorruptLogError(f"batch at byte {at} ends after {end}", offset=at)
        yield at, header
        at += header.size_bytes
