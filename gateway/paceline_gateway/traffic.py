"""How much goes through a gateway now, over all of its doors: for people."""

from collections.abc import Callable

from paceline.platform.ports import Clock

WINDOW_S = 10
"""A rate is over so many whole seconds, which have ended."""


class Rate:
    """How many of something there are in a second. It costs a few numbers, and no timer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts = [0] * (WINDOW_S + 1)
        self._second = self._since = clock.monotonic_ms() // 1000

    def add(self, count: int) -> None:
        """So many more, now."""
        self._counts[self._now() % len(self._counts)] += count

    def per_second(self) -> float:
        """Over the window; while it is younger than that, over the seconds that there are."""
        second = self._now()
        total = sum(self._counts) - self._counts[second % len(self._counts)]
        return total / max(1, min(WINDOW_S, second - self._since))

    def _now(self) -> int:
        """The second that it is, with nothing counted of one that it took the place of."""
        second = self._clock.monotonic_ms() // 1000
        for each in range(max(self._second, second - len(self._counts)) + 1, second + 1):
            self._counts[each % len(self._counts)] = 0
        self._second = second
        return second


class Traffic:
    """Of one gateway. Owner: its `UserClusters`, where all doors find it; the doors count."""

    def __init__(self, clock: Clock) -> None:
        self.stored = Rate(clock)
        """Messages that clients have sent, and brokers acknowledged."""
        self.given = Rate(clock)
        """Messages that clients were given."""
        self.listeners: list[Callable[[], int]] = []
        """How many connections each door has."""

    @property
    def connections(self) -> int:
        return sum(count() for count in self.listeners)
