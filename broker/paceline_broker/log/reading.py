"""Reading batches back out of the segments: whole ones, never part of one.

Bytes below confirm are mapped, without a copy; bytes above it are copied with pread, because the
unconfirmed tail may still be cut and a view of it must not exist then (R25).
"""

from collections.abc import Iterator

from paceline.errors import CorruptLogError
from paceline.records.header import HEADER_BYTES, BatchHeader, peek_size
from paceline.types import PhysicalOffset
from paceline_broker.log.segment import Segments
from paceline_broker.log.walk import iter_headers, whole_batches

_READ_BYTES = 1 << 20  # step of a walk: at this size the cost per step is lost in that per batch


def read_batches(
    segments: Segments,
    start: PhysicalOffset,
    max_bytes: int,
    *,
    stop: PhysicalOffset,
    confirm: PhysicalOffset,
) -> memoryview:
    """Whole batches from `start`, at most `max_bytes` but at least one, below `stop`.

    They lie in one segment. Empty at `stop`; CorruptLogError if no whole batch begins at `start`.
    """
    if start >= stop:
        return memoryview(b"")

    def span(size: int) -> memoryview:
        end = PhysicalOffset(min(start + size, stop))
        if end <= confirm:
            return segments.view(start, end)
        return memoryview(segments.pread(start, end))

    buffer = span(max_bytes)
    size = whole_batches(buffer, max_bytes)
    if size == 0:  # the first batch alone is larger than what was asked for
        need = peek_size(span(HEADER_BYTES))
        buffer = span(need)
        size = whole_batches(buffer, need)
    if size == 0:
        raise CorruptLogError(f"no whole batch at {start}", offset=start)
    return buffer[:size]


def walk_headers(
    segments: Segments, start: PhysicalOffset, *, stop: PhysicalOffset, confirm: PhysicalOffset
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """(header, bytes) of every batch in [start, stop); CorruptLogError where a header is bad."""
    position = start
    while position < stop:
        chunk = read_batches(segments, position, _READ_BYTES, stop=stop, confirm=confirm)
        for at, header in iter_headers(chunk):
            if header.physical_offset != position + at:
                raise CorruptLogError(
                    f"a batch made for {header.physical_offset} stands at {position + at}",
                    offset=position + at,
                )
            yield header, chunk[at : at + header.size_bytes]
        position = PhysicalOffset(position + len(chunk))


def check_boundary(
    segments: Segments,
    offset: PhysicalOffset,
    *,
    known: list[PhysicalOffset],
    confirm: PhysicalOffset,
) -> None:
    """CorruptLogError unless a batch begins, or the log ends, at `offset`.

    `known` are boundaries, the nearest one at or below `offset` saves walking from the start.
    """
    position = max(boundary for boundary in known if boundary <= offset)
    while position < offset:
        step = read_batches(segments, position, _READ_BYTES, stop=offset, confirm=confirm)
        position = PhysicalOffset(position + len(step))
