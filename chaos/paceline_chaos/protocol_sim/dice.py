"""All chance of a run, from its seed."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

from paceline.platform.runtime import SeededRandom

Thing = TypeVar("Thing")


class Dice:
    """Choices from one seeded generator."""

    def __init__(self, seed: str) -> None:
        self.random = SeededRandom(seed)

    def below(self, count: int) -> int:
        """An index in [0, count)."""
        return int(self.random.uniform(0, count))

    def happens(self, probability: float) -> bool:
        return self.random.uniform(0, 1) < probability

    def one_of(self, things: Sequence[Thing]) -> Thing:
        return things[self.below(len(things))]


class Wheel:
    """Draws names by weight."""

    def __init__(self, weights: dict[str, float]) -> None:
        self._names = list(weights)
        self._sums = list(accumulate(weights.values()))

    def draw(self, dice: Dice) -> str:
        mark = dice.random.uniform(0, self._sums[-1])
        return self._names[min(bisect_right(self._sums, mark), len(self._names) - 1)]
