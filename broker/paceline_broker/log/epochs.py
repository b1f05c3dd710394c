"""The epoch table: which mastership wrote which part of the log. Pure.

A master opens its epoch by appending an epoch-start record (R2), so the table is a digest of the
log: one entry per epoch-start record, strictly rising in epoch and in position. Two replicas
compare tables to find where their logs part. That works because within an epoch a master never
takes back an offset (R1): equal (epoch, start) entries mean equal bytes up to the nearer end.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.errors import CorruptLogError
from paceline.types import MasterEpoch, PhysicalOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEntry:
    """`start` is the position of the epoch-start record of `epoch`."""

    epoch: MasterEpoch
    start: PhysicalOffset


class EpochTable:
    """Entries in rising order; a value: changes make a new table.

    No dataclass: messages would carry its fields then, in place of what `to_json` says.
    """

    __slots__ = ("entries",)

    def __init__(self, entries: tuple[EpochEntry, ...] = ()) -> None:
        self.entries = entries

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochTable) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"EpochTable({self.to_json()})"

    @property
    def last_epoch(self) -> MasterEpoch:
        """The epoch of the newest record, 0 if there is none."""
        return self.entries[-1].epoch if self.entries else MasterEpoch(0)

    def epoch_at(self, position: PhysicalOffset) -> MasterEpoch:
        """The epoch that wrote the byte at `position`; 0 before the first entry."""
        index = bisect_right(self.entries, position, key=_start)
        return self.entries[index - 1].epoch if index else MasterEpoch(0)

    def start_of(self, epoch: MasterEpoch) -> PhysicalOffset | None:
        """Where `epoch` begins in this log; None if it has no record here."""
        for entry in self.entries:
            if entry.epoch == epoch:
                return entry.start
        return None

    def end_of(self, epoch: MasterEpoch, *, log_end: PhysicalOffset) -> PhysicalOffset | None:
        """The first position that `epoch` did not write (open end); None if it is not here."""
        for index, entry in enumerate(self.entries):
            if entry.epoch == epoch:
                is_last = index + 1 == len(self.entries)
                return log_end if is_last else self.entries[index + 1].start
        return None

    def with_entry(self, epoch: MasterEpoch, start: PhysicalOffset) -> "EpochTable":
        """The table after an epoch-start record; CorruptLogError unless both numbers rise."""
        if self.entries:
            last = self.entries[-1]
            if epoch <= last.epoch or start <= last.start:
                raise CorruptLogError(
                    f"epoch {epoch} at {start} after epoch {last.epoch} at {last.start}",
                    offset=start,
                )
        elif epoch < 1:
            raise CorruptLogError(f"the first epoch is {epoch}, not at least 1", offset=start)
        return EpochTable((*self.entries, EpochEntry(epoch=epoch, start=start)))

    def cut_to(self, end: PhysicalOffset) -> "EpochTable":
        """The table of the same log truncated to `end`."""
        kept = bisect_right(self.entries, PhysicalOffset(end - 1), key=_start)
        return self if kept == len(self.entries) else EpochTable(self.entries[:kept])

    def truncation_point(
        self, own_end: PhysicalOffset, other: "EpochTable", other_end: PhysicalOffset
    ) -> PhysicalOffset | None:
        """Up to where two logs are surely equal; symmetric, so both sides compute the same.

        None: both hold records and no epoch is common (R5 says what then). A log without records
        agrees with every other on nothing: 0.
        """
        if not self.entries or not other.entries:
            return PhysicalOffset(0)
        common = set(self.entries) & set(other.entries)
        if not common:
            return None
        epoch = max(entry.epoch for entry in common)
        here = self.end_of(epoch, log_end=own_end)
        there = other.end_of(epoch, log_end=other_end)
        assert here is not None, epoch
        assert there is not None, epoch
        return min(here, there)

    def to_json(self) -> list[list[int]]:
        """[[epoch, start], ...]: the form of the handshake and of the checkpoint."""
        return [[entry.epoch, entry.start] for entry in self.entries]

    @classmethod
    def from_json(cls, document: object) -> "EpochTable":
        """Inverse of `to_json`; CorruptLogError for anything else, also for falling numbers."""
        if not isinstance(document, list):
            raise CorruptLogError(f"an epoch table is a list, not {type(document).__name__}")
        table = cls()
        for pair in document:
            is_pair = isinstance(pair, list) and len(pair) == 2
            if not is_pair or not all(type(number) is int and number >= 0 for number in pair):
                raise CorruptLogError(f"an epoch table entry is [epoch, start], not {pair!r}")
            table = table.with_entry(MasterEpoch(pair[0]), PhysicalOffset(pair[1]))
        return table

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> "EpochTable":
        """From (epoch, start) pairs in order."""
        return cls.from_json([list(pair) for pair in pairs])


def _start(entry: EpochEntry) -> PhysicalOffset:
    return entry.start
