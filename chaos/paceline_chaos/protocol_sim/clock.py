"""The bed's own time, and the clocks that processes read."""

UNIX_MS = 1_700_000_000_000
"""Wall clock at the beginning of every run."""


class BedClock:
    """Time of the bed in microseconds: no fault touches it, histories are written in it."""

    __slots__ = ("now_us",)

    def __init__(self) -> None:
        self.now_us = 0

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000


class MachineClock:
    """The Clock port of one machine; `offset_ms` is how far its wall clock was stepped."""

    __slots__ = ("_bed", "offset_ms")

    def __init__(self, bed: BedClock) -> None:
        self._bed = bed
        self.offset_ms = 0

    def monotonic_ms(self) -> int:
        return self._bed.now_us // 1000

    def unix_ms(self) -> int:
        return UNIX_MS + self._bed.now_us // 1000 + self.offset_ms
