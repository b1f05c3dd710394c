"""Rules of receipts, taken out: what S23 must notice (R28, R29)."""

from paceline_broker.projections.receipt_queue import QueueReceipts, Run
from paceline_chaos.mutants.mutant import Mutant, Patch

_EARLY_MS = 9_000


def _expires_early() -> list[Patch]:
    """A message is due long before its invisible time is over."""
    due = QueueReceipts.due

    def due_early(queue: QueueReceipts, now_unix_ms: int, count_max: int) -> list[Run]:
        return due(queue, now_unix_ms + _EARLY_MS, count_max)

    return [(QueueReceipts, "due", due_early)]


def _acknowledgement_forgotten() -> list[Patch]:
    """An acknowledgement is answered, and its record says nothing."""

    def acknowledge_nothing(queue: QueueReceipts, first: int, end: int, position: int) -> None:
        """As if it were still out."""

    return [(QueueReceipts, "acknowledge", acknowledge_nothing)]


RECEIPTS = (
    Mutant(
        rule="R29-receipts",
        meaning="a received message is given to others before its invisible time is over",
        caught_by=frozenset({"S23"}),
        patches=_expires_early,
        bed="world",
    ),
    Mutant(
        rule="R28-acks",
        meaning="an acknowledged message is given again",
        caught_by=frozenset({"S23"}),
        patches=_acknowledgement_forgotten,
        bed="world",
    ),
)
