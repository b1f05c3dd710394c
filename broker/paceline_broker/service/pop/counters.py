"""Counts of receives and receipts since the process started, for metrics."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ReceiptCounters:
    """Messages, by what was decided about them (projections/receipts.py has the items)."""

    given: int = 0
    given_again: int = 0
    """Of those: their time had run out, or their receiver gave them back."""
    acknowledged: int = 0
    changed: int = 0
    """Invisible for another time from then on, or given back."""

    def count(self, items: Iterable[Sequence[Any]]) -> None:
        """Take what a turn has put into the log."""
        for kind, *_, rows in items:
            if kind == "give":
                for _, first, end, attempt in rows:
                    self.given += end - first
                    if attempt > 1:
                        self.given_again += end - first
            elif kind == "ack":
                self.acknowledged += sum(end - first for _, first, end, _ in rows)
            elif kind == "change":
                self.changed += len(rows)
