"""Which of a queue's new messages a receiver's filter wants: looked at in memory, in one step.

What is not wanted is passed over for the whole group, as in RocketMQ: the group's receivers should
have one filter for a topic. Only confirmed messages are looked at, so many bytes and tests a turn
of the loop, over all receivers, and never pages that would have to be read first: those are warmed
and looked at again.
"""

from dataclasses import dataclass, field

from paceline.errors import CorruptLogError
from paceline.filters import Filter
from paceline.records.decode import BatchView
from paceline.types import PhysicalOffset
from paceline_broker.ports import LogReader
from paceline_broker.projections.consume_queues import ConsumeQueue
from paceline_broker.service.fetch.filters import (
    BATCH_COST,
    LOOK_BYTES_MAX,
    RAW_BYTES_OF_COST,
    STEP_COST,
    Look,
)

PIECE_RECORDS = 256
"""Looked at in one go, where a record costs one test."""


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


class TurnLook:
    """What receivers' filters may cost in one turn, and the batch that the last look ended in."""

    def __init__(self) -> None:
        self.look = Look(STEP_COST)
        self._kept: tuple[LogReader, int, BatchView] | None = None

    def begin(self) -> None:
        """The next turn."""
        self.look = Look(STEP_COST)

    def taken(self, reader: LogReader, position: int) -> BatchView | None:
        """What `keep` kept; it is unpacked already."""
        kept, self._kept = self._kept, None
        if kept is None or kept[0] is not reader or kept[1] != position:
            return None
        return kept[2]

    def keep(self, reader: LogReader, position: int, view: BatchView) -> None:
        self._kept = (reader, position, view)


def sift(
    queue: ConsumeQueue,
    first: int,
    count_max: int,
    wanted: Filter,
    reader: LogReader,
    turn: TurnLook,
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
        if turn.look.left <= 0 or (looked and looked + size > LOOK_BYTES_MAX):
            found.has_more = True
            return found
        looked += size
        view = turn.taken(reader, position)
        if view is None:
            view = _view(reader, PhysicalOffset(position), size, found)
            if view is None:
                return found
            raw_bytes = view.header.payload_raw_bytes if view.header.codec else 0
            turn.look.spend(BATCH_COST + raw_bytes // RAW_BYTES_OF_COST)
        try:
            count_max -= _take(found, view, base, count_max, wanted, turn.look)
        except CorruptLogError:
            return found  # nothing is passed over that was not looked at (R24)
        if found.end < view.header.record_count + base:
            turn.keep(reader, position, view)
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


def _take(
    found: Sifted, view: BatchView, base: int, count_max: int, wanted: Filter, look: Look
) -> int:
    """Add what is wanted of a batch from `found.end` on, as far as the turn has tests left; how
    many messages that are."""
    taken = 0
    end = base + view.header.record_count
    piece = max(1, PIECE_RECORDS // max(1, wanted.terms))
    while found.end < end and taken < count_max:
        first = found.end - base
        beyond = min(end - base, first + piece)
        mask = wanted.mask(view, first, beyond)
        for offset in range(found.end, base + beyond):
            if taken == count_max:
                break
            if mask is None or mask[offset - base - first]:
                taken += 1
                if found.rows and found.rows[-1][1] == offset:
                    found.rows[-1] = (found.rows[-1][0], offset + 1)
                else:
                    found.rows.append((offset, offset + 1))
            found.end = offset + 1
        look.spend((beyond - first) * max(1, wanted.terms))
        if look.left <= 0 and found.end < end:
            found.has_more = True
            break
    return taken
