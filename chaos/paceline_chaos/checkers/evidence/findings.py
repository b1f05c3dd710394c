"""Pure: what one checker has found."""

from collections import Counter

from paceline_chaos.history.model import Event
from paceline_chaos.verdict import Violation

LISTED_MAX = 20
"""Violations of one property that are listed; more are counted. One bug breaks thousands."""


class Findings:
    """The violations of one property, and how much there was to judge."""

    def __init__(self, prop: str) -> None:
        self.prop = prop
        self.violations: list[Violation] = []
        self.violations_count = 0
        self.judged = 0
        """Things judged; 0 means that the history says nothing of this property."""
        self.counters: Counter[str] = Counter()

    @property
    def is_full(self) -> bool:
        """No more are listed: a costly proof need not be looked for."""
        return len(self.violations) >= LISTED_MAX

    def violate(self, sentence: str, *proof: Event | int | None) -> None:
        """`proof`: entries or their numbers; None is left out."""
        self.violations_count += 1
        if not self.is_full:
            numbers = (entry.number if isinstance(entry, Event) else entry for entry in proof)
            named = tuple(sorted({number for number in numbers if number is not None}))
            self.violations.append(Violation(property=self.prop, sentence=sentence, proof=named))
