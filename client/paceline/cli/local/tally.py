"""Pure: counts what was sent, acknowledged and received, and says what is wrong with it.

Every message carries a row number, dense from 0 in the order it was sent. Out of order means: two
messages of one key whose rows rise in sending order and fall in delivery order.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The figures of one run; `is_clean` says whether nothing was lost, doubled or reordered."""

    sent: int
    acknowledged: int
    received: int
    lost: int
    """Acknowledged rows that nobody received."""
    duplicated: int
    """Deliveries beyond the first of a row."""
    out_of_order: int
    """Deliveries of a key that came after a later row of the same key."""
    conflicting: int
    """(queue, offset) places that held two different rows (INV-7)."""
    longest_gap_ms: float
    """Longest time between two acknowledgements while some were outstanding."""

    @property
    def is_clean(self) -> bool:
        return self.lost == self.duplicated == self.out_of_order == self.conflicting == 0


@dataclass(slots=True)
class Tally:
    """Feed it events as they happen; times are milliseconds of any monotonic clock."""

    sent: int = 0
    _acknowledged: set[int] = field(default_factory=set)
    _received: set[int] = field(default_factory=set)
    _last_row: dict[str, int] = field(default_factory=dict)
    _places: dict[tuple[str, int, int], int] = field(default_factory=dict)
    _duplicated: int = 0
    _out_of_order: int = 0
    _conflicting: int = 0
    _last_acknowledged_ms: float | None = None
    _longest_gap_ms: float = 0.0

    @property
    def acknowledged(self) -> int:
        return len(self._acknowledged)

    @property
    def received(self) -> int:
        return len(self._received)

    def row_sent(self) -> int:
        """The number of the next row."""
        self.sent += 1
        return self.sent - 1

    def row_acknowledged(self, row: int, *, at_ms: float) -> None:
        """An acknowledgement reached the application."""
        self._acknowledged.add(row)
        if self._last_acknowledged_ms is not None:
            self._longest_gap_ms = max(self._longest_gap_ms, at_ms - self._last_acknowledged_ms)
        self._last_acknowledged_ms = at_ms

    def row_received(self, row: int, key: str, *, place: tuple[str, int, int]) -> None:
        """A consumer was handed `row`; `place` is (broker group, queue id, queue offset)."""
        if self._places.setdefault(place, row) != row:
            self._conflicting += 1
        if row in self._received:
            self._duplicated += 1
            return
        self._received.add(row)
        last = self._last_row.get(key, -1)
        if row < last:
            self._out_of_order += 1
        else:
            self._last_row[key] = row

    def missing(self) -> int:
        """Acknowledged rows not received yet."""
        return len(self._acknowledged - self._received)

    def verdict(self) -> Verdict:
        return Verdict(
            sent=self.sent,
            acknowledged=len(self._acknowledged),
            received=len(self._received) + self._duplicated,
            lost=self.missing(),
            duplicated=self._duplicated,
            out_of_order=self._out_of_order,
            conflicting=self._conflicting,
            longest_gap_ms=self._longest_gap_ms,
        )
