"""What waits, missing in checkpoints (R14, INV-9): the log before them is not read again."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from paceline_broker.projections.receipt_queue import Done, QueueReceipts, Run
from paceline_broker.projections.send_backs import SendBacks
from paceline_broker.projections.timers import Timers
from paceline_broker.projections.transactions import Transactions
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


def _checkpointed_empty(projection: type[Any]) -> Callable[[], list[Patch]]:
    """Its part of each checkpoint says that there is nothing."""

    def patches() -> list[Patch]:
        snapshot = projection.snapshot
        empty = projection()

        def snapshot_of_nothing(state: Any, *given: Any) -> Any:
            return snapshot(empty, *given)

        return [(projection, "snapshot", snapshot_of_nothing)]

    return patches


def _receipts_over() -> list[Patch]:
    """What was out at a consumer when the broker restarted comes again at once."""
    fill = QueueReceipts.fill

    def fill_over(
        queue: QueueReceipts, floor: int, next_offset: int, runs: Iterable[Run], done: deque[Done]
    ) -> None:
        over = [run._replace(grant=run.grant._replace(until_unix_ms=0)) for run in runs]
        fill(queue, floor, next_offset, over, done)

    return [(QueueReceipts, "fill", fill_over)]


def _receipts_passed_over() -> list[Patch]:
    """A group stands where nobody was given more, whatever is out."""

    def advance(queue: QueueReceipts) -> None:
        queue.floor = queue.next

    return [(QueueReceipts, "_advance", advance)]


def _missing(rule: str, projection: type[Any], what: str, caught_by: str) -> Mutant:
    return Mutant(
        rule=rule,
        meaning=f"checkpoints hold no {what}",
        patches=_checkpointed_empty(projection),
        **of_moment("waiting", caught_by),
    )


WAITING = (
    _missing("INV-9-timers", Timers, "messages that wait for their time", "S25"),
    _missing("INV-9-halves", Transactions, "half messages", "S24"),
    Mutant(
        rule="INV-9-receipts",
        meaning="checkpoints do not say how long a message is out",
        patches=_receipts_over,
        **of_moment("waiting", "S23"),
    ),
    Mutant(
        rule="R28-floor",
        meaning="a group's offset passes over messages that are out",
        patches=_receipts_passed_over,
        **of_moment("waiting", "S23"),
    ),
    _missing("INV-9-retries", SendBacks, "messages that were sent back", "S29"),
)
"""Judged by the script in which all power goes while something of each sort waits (R28)."""
