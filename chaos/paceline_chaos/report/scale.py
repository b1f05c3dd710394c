"""Pure: where things stand on the page, and round numbers for its axes."""

import math
from dataclasses import dataclass

WIDTH = 1240.0
LEFT = 144.0
TITLE = 6.0
"""Where the names of panels and nodes begin."""
RIGHT = 16.0
PLOT = WIDTH - LEFT - RIGHT
"""Width of the time axis, px."""

TIME_STEPS_MS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000)
NICE = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)
MINUTES_MS = (120_000, 300_000, 600_000, 1_800_000, 3_600_000)


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Milliseconds of the run to pixels of the plot."""

    length_ms: float

    def x(self, ms: float) -> float:
        """0 at the left edge of the plot; what lies outside is taken to the edge."""
        return min(max(ms, 0.0), self.length_ms) / self.length_ms * PLOT

    def ticks(self) -> list[float]:
        """Round moments, about ten."""
        for step in (*TIME_STEPS_MS, *MINUTES_MS):
            if self.length_ms / step <= 14:
                break
        return [float(step * index) for index in range(int(self.length_ms // step) + 1)]


def seconds(ms: float) -> str:
    """A moment of the run: "12.3 s"."""
    return f"{ms / 1000:g} s"


def duration(ms: float | None) -> str:
    """A length of time with three digits that matter."""
    if ms is None:
        return "-"
    if ms < 10:
        return f"{ms:.2f} ms"
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.2f} s"


def round_up(value: float) -> float:
    """A number with one or two digits that is not much above `value`."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in NICE if power * factor >= value)


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from the one at or below `low` to the one at or above `high`."""
    first = math.floor(math.log10(max(low, 1e-3)))
    last = max(first + 1, math.ceil(math.log10(max(high, 1e-3))))
    return [10.0**power for power in range(first, last + 1)]


def amount(value: float) -> str:
    """A count or a size in few characters: 950, 12k, 3.4M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"
