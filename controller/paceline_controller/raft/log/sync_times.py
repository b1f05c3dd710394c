"""Pure: how long the journal's fsyncs took lately."""

from collections import deque
from dataclasses import dataclass

WINDOW = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTimes:
    """Milliseconds over the last `count` fsyncs."""

    count: int
    p50_ms: int
    p99_ms: int
    max_ms: int


class SyncWindow:
    """The last `WINDOW` fsyncs, and the longest ever."""

    def __init__(self) -> None:
        self._lately: deque[int] = deque(maxlen=WINDOW)
        self.total = 0
        self.max_ms_ever = 0

    def note(self, elapsed_ms: int) -> None:
        self._lately.append(elapsed_ms)
        self.total += 1
        self.max_ms_ever = max(self.max_ms_ever, elapsed_ms)

    def times(self) -> SyncTimes:
        ordered = sorted(self._lately)
        if not ordered:
            return SyncTimes(count=0, p50_ms=0, p99_ms=0, max_ms=0)
        last = len(ordered) - 1
        return SyncTimes(
            count=len(ordered),
            p50_ms=ordered[last // 2],
            p99_ms=ordered[min(last, len(ordered) * 99 // 100)],
            max_ms=ordered[-1],
        )
