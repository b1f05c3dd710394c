"""Which of a queue's new messages a receiver's filter wants: looked at in memory, in one step.

What is not wanted is passed over for the whole group, as in RocketMQ: the group's receivers should
have one filter for a topic. Only confirmed messages are looked at, so many bytes a turn, and never
pages that would have to be read first: those are warmed and looked at again.
"""

from dataclasses import dataclass, field

from paceline.errors import CorruptLogError
from paceline.filters import Filter
from paceline.records.decode import BatchView
from paceline.types import PhysicalOffset
from paceline_broker.projections.consume_queues import ConsumeQueue
from paceline_broker.service.filters import LOOK_BYTES_MAX
from paceline_broker.service.ports import LogReader


@dataclass(slots=True)
class Sifted:
    """Messages that are wanted, and up to where a look has gone."""

    end: int
    """Everything below was looked at."""
    rows: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of offsets, rising."""
    cold: memoryview | None = None
    """What has to be in memory before the look goes on."""
    has_more: bool = False
    """The look ended at its bound."""


def sift(
    queue: ConsumeQueue, first: int, count_max: int, wanted: Filter, reader: LogReader
) -> Sifted:
    """Up to `count_max` wanted messages from offset `first` on."""
    confirm = reader.confirm
    end = queue.confirmed_end(confirm)
    found = Sifted(first)
    if first >= end:
        return found
    low, high = queue.entries(first, end)
    bases, positions = queue.index(low, high)
    sizes = queue.sizes(low, high)
    looked = 0
    for base, position, size in zip(bases, positions, sizes, strict=True):
        if looked and looked + size > LOOK_BYTES_MAX:
            found.has_more = True
            return found
        looked += size
        view = _view(reader, PhysicalOffset(position), size, found)
        if view is None:
            return found
        try:
            count_max -= _take(found, view, base, count_max, wanted)
        except CorruptLogError:
            return found  # nothing is passed over that was not looked at (R24)
        if count_max == 0:
            return found
    return found


def _view(
    reader: LogReader, position: PhysicalOffset, size: int, found: Sifted
) -> BatchView | None:
    """The batch; None if it is cold, or damaged and being mended (R24)."""
    raw = reader.read(position, size)
    if len(raw) < size or reader.is_damaged(position, PhysicalOffset(position + size)):
        return None
    if reader.is_cold(raw):
        found.cold = raw
        return None
    if not reader.is_sound(raw, position):  # what is passed over is so for ever
        return None
    return BatchView(raw)


def _take(found: Sifted, view: BatchView, base: int, count_max: int, wanted: Filter) -> int:
    """Add what is wanted of a batch from `found.end` on; how many messages that are."""
    mask = wanted.mask(view)
    taken = 0
    end = base + view.header.record_count
    offset = found.end
    while offset < end and taken < count_max:
        if mask is None or mask[offset - base]:
            taken += 1
            if found.rows and found.rows[-1][1] == offset:
                found.rows[-1] = (found.rows[-1][0], offset + 1)
            else:
                found.rows.append((offset, offset + 1))
        offset += 1
    found.end = offset
    return taken
