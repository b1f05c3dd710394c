"""Single messages read back from the log, to be made into others: sent back, buried, resent.

Only confirmed messages that a queue still has. A record is taken out of its batch column by
column, so that one message of a large batch does not cost the decoding of all.
"""

from collections.abc import Sequence
from typing import NamedTuple

import orjson

from paceline.errors import (
    CorruptLogError,
    NotYetAvailableError,
    OffsetOutOfRangeError,
    PacelineError,
    TooLargeError,
)
from paceline.platform.runtime import pause
from paceline.records.decode import BatchView
from paceline.records.header import (
    COLUMN_BODY,
    COLUMN_BORN,
    COLUMN_KEY,
    COLUMN_PROPERTY,
    COLUMN_TAG,
    HEADER_BYTES,
    BatchHeader,
    Section,
    pack_source,
    parse_header,
    unpack_source,
)
from paceline.types import PhysicalOffset
from paceline_broker.ports import LogReader, Role
from paceline_broker.projections.consume_queues import queue_key

DAMAGED = "the log is damaged there; it is being repaired"
_BYTES_A_TURN = 1024 * 1024
"""After so many bytes were checked and decompressed, others have their turn on the loop."""


class Wanted(NamedTuple):
    """One message by its queue."""

    key: int
    offset: int


class Source(NamedTuple):
    """One message as it lies in the log."""

    key: int
    offset: int
    header: BatchHeader
    number: int
    """Which record of its batch it is."""
    body: bytes
    message_key: str
    tag: str
    properties: dict[str, str]
    born_unix_ms: int

    @property
    def packed(self) -> int:
        """Its value in a SOURCE column."""
        return pack_source(self.header.physical_offset, self.number)


class SourceReader:
    """Reads messages of this broker's confirmed log."""

    def __init__(self, role: Role) -> None:
        self._role = role

    async def read(
        self, wanted: Sequence[Wanted], *, bytes_max: int | None = None
    ) -> list[Source | PacelineError]:
        """Each message, or why it cannot be had: OffsetOutOfRangeError (deleted),
        NotYetAvailableError (not confirmed here, or damaged and being mended).

        Raises TooLargeError once the bodies are more than `bytes_max`, before the rest is read.
        """
        found = await self.read_some(wanted, bytes_max=bytes_max)
        return [found[index] for index in range(len(wanted))]

    async def read_some(
        self,
        wanted: Sequence[Wanted],
        *,
        bytes_max: int | None = None,
        enough_bytes: int | None = None,
    ) -> dict[int, Source | PacelineError]:
        """Like `read`, by index in `wanted`; none more is read once the bodies are `enough_bytes`:
        what comes last, by queue and offset, is not in the answer."""
        found: dict[int, Source | PacelineError] = {}
        at: PhysicalOffset | None = None
        view: BatchView | None = None
        total = checked = 0
        # Those of one batch stand together, so that one payload is in memory at a time.
        for index in sorted(range(len(wanted)), key=wanted.__getitem__):
            one = wanted[index]
            try:
                position, size = self._place(one)
                if view is None or position != at:
                    view = None  # given back before the next one is read
                    view = await read_batch(self._role.reader, position, size)
                    at = position
                    checked += view.header.payload_raw_bytes
                    if checked >= _BYTES_A_TURN:
                        checked = 0
                        await pause(0)
                source = source_of(view, one.offset)
            except (OffsetOutOfRangeError, NotYetAvailableError) as error:
                found[index] = error
                continue
            total += len(source.body)
            if bytes_max is not None and total > bytes_max:
                raise TooLargeError(
                    f"more than {bytes_max} bytes of messages at once: name fewer", limit=bytes_max
                )
            found[index] = source
            if enough_bytes is not None and total >= enough_bytes:
                break
        return found

    async def due_of(self, made: int) -> int | None:
        """When a confirmed DELAY record is due (`made` as `pack_source`); None if it is gone."""
        header = await self.header_of(made)
        if header is None:
            return None
        try:
            position = PhysicalOffset(header.physical_offset)
            view = await read_batch(self._role.reader, position, header.size_bytes)
        except (CorruptLogError, NotYetAvailableError):
            return None
        return view.due()[unpack_source(made)[1]]

    async def header_of(self, made: int) -> BatchHeader | None:
        """Of a confirmed record's batch (`made` as `pack_source`); None if it is gone."""
        position = PhysicalOffset(unpack_source(made)[0])
        reader = self._role.reader
        if position < reader.start or position + HEADER_BYTES > reader.confirm:
            return None
        raw = reader.read(position, HEADER_BYTES)
        if reader.is_cold(raw):
            await reader.warm(raw)
        try:
            return parse_header(raw)
        except CorruptLogError:
            return None

    def _place(self, one: Wanted) -> tuple[PhysicalOffset, int]:
        """Position and size of the batch that holds the message."""
        reader = self._role.reader
        queue = self._role.projections.consume_queues.get(one.key)
        start = 0 if queue is None else queue.start
        end = 0 if queue is None else queue.confirmed_end(reader.confirm)
        if one.offset < start:
            raise OffsetOutOfRangeError(
                f"the queue begins at {start}: message {one.offset} is deleted",
                start=start,
                end=end,
            )
        if queue is None or one.offset >= end:
            # Never "out of range": another master may know more (R3).
            raise NotYetAvailableError(
                f"message {one.offset} is not confirmed here, the end is {end}"
            )
        first, beyond = queue.entries(one.offset, one.offset + 1)
        _, positions = queue.index(first, beyond)
        return PhysicalOffset(positions[0]), queue.sizes(first, beyond)[0]


async def read_batch(reader: LogReader, position: PhysicalOffset, size: int) -> BatchView:
    """A batch, verified (R24). NotYetAvailableError where the log is damaged."""
    view = reader.read(position, size)
    if len(view) < size or reader.is_damaged(position, PhysicalOffset(position + size)):
        raise NotYetAvailableError(DAMAGED)
    if reader.is_cold(view):
        await reader.warm(view)
    if not reader.is_sound(view, position):
        raise NotYetAvailableError(DAMAGED)
    return BatchView(view)


def source_of(view: BatchView, offset: int) -> Source:
    """The message of that queue offset in a batch that has it."""
    header = view.header
    index = offset - header.base_queue_offset
    assert 0 <= index < header.record_count, (offset, header)
    born = header.born_first_unix_ms
    if header.columns & COLUMN_BORN:
        born = view.section(Section.BORN).cast("q")[index]
    tag = ""
    if header.columns & COLUMN_TAG:
        tag_id = view.section(Section.TAG_IDS).cast("H")[index]
        if tag_id:
            tag = _value(
                view, tag_id - 1, COLUMN_TAG, Section.TAG_OFFSETS, Section.TAG_BLOB
            ).decode()
    return Source(
        queue_key(header.topic_id, header.queue_id),
        offset,
        header,
        index,
        _value(view, index, COLUMN_BODY, Section.BODY_OFFSETS, Section.BODY_BLOB),
        _value(view, index, COLUMN_KEY, Section.KEY_OFFSETS, Section.KEY_BLOB).decode(),
        tag,
        _properties(view, index),
        born,
    )


def _properties(view: BatchView, index: int) -> dict[str, str]:
    document = _value(view, index, COLUMN_PROPERTY, Section.PROPERTY_OFFSETS, Section.PROPERTY_BLOB)
    found: dict[str, str] = orjson.loads(document or b"{}")
    return found


def _value(
    view: BatchView, index: int, column: int, offsets_section: Section, blob_section: Section
) -> bytes:
    if not view.header.columns & column:
        return b""
    offsets, blob = view.section(offsets_section).cast("i"), view.section(blob_section)
    start, end = offsets[index], offsets[index + 1]
    if not 0 <= start <= end <= len(blob):
        raise CorruptLogError(f"{blob_section.name} of record {index} is outside its batch")
    return bytes(blob[start:end])
