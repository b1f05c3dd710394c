"""Rules of receipts, taken out: what S23 must notice (R28, R29, R34)."""

from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from paceline.wire.calls import pop as wire
from paceline_broker.ports import LogWriter
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.receipt_queue import QueueReceipts, Run
from paceline_broker.projections.send_backs import SendBacks
from paceline_broker.service.pop import cursors as cursors_module
from paceline_broker.service.pop.calls import ReceiptCalls
from paceline_broker.service.pop.cursors import Cursors
from paceline_broker.service.pop.operations import Operation
from paceline_broker.service.pop.pop import Receipts
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment

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


def _given_before_confirm() -> list[Patch]:
    """Who receives is answered as soon as the grant is appended."""

    def answer_now(desk: Receipts, decided: list[Operation], writer: LogWriter) -> None:
        for operation in decided:
            operation.writer = writer
            operation.finish(None)

    return [(Receipts, "_answer_later", answer_now)]


def _letter_of_any_group() -> list[Patch]:
    """A message that is one group's dead letter counts as every group's."""

    def made_for_any(state: SendBacks, topic_id: int, source: int, **_: Any) -> int | None:
        found = [state.made(topic, source) for topic in sorted(state._topics)]
        return next((made for made in found if made is not None), None)

    return [(SendBacks, "made_for", made_for_any)]


def _commits_over_receipts() -> list[Patch]:
    """An offset is committed whatever is invisible."""
    return [(Projections, "has_open_receipts", lambda *of: False)]


def _commits_hide_nothing() -> list[Patch]:
    """What a group has committed without receipts is given all the same."""
    return [(QueueReceipts, "commit", lambda queue, offset: None)]


def _cursors_of_one_master() -> list[Patch]:
    """A master forgets where clients of broadcasting groups stood at the one before."""
    admit = Cursors.admit

    async def admit_anew(
        cursors: Cursors, group: str, client_id: str, keys: Collection[int]
    ) -> str:
        if not cursors._heard:
            for cursor in cursors._known.cursors():
                await cursors.end(cursor)
        return await admit(cursors, group, client_id, keys)

    return [(Cursors, "admit", admit_anew)]


def _ended_too_early() -> list[Patch]:
    """Whoever ends its receives is taken not to come back."""
    end_receive = ReceiptCalls._end_receive

    async def end_for_good(calls: ReceiptCalls, asked: wire.EndReceive) -> wire.EndedReceives:
        return await end_receive(calls, replace(asked, has_gone=True))

    return [(ReceiptCalls, "_end_receive", end_for_good)]


def _one_cursor_for_all() -> list[Patch]:
    """The clients of a broadcasting group share one cursor."""
    return [(cursors_module, "cursor_of", lambda group, client_id: f"{group}@all")]


def _never_due() -> list[Patch]:
    """What receivers forgot stays with them for ever."""

    def due_never(queue: QueueReceipts, now_unix_ms: int, count_max: int) -> list[Run]:
        return []

    return [(QueueReceipts, "due", due_never)]


RECEIPTS = (
    Mutant(
        rule="ADR26-own",
        meaning="two clients of a broadcasting group share a cursor",
        patches=_one_cursor_for_all,
        **of_moment("broadcasting"),
    ),
    Mutant(
        rule="R28-cursors",
        meaning="cursors of a broadcasting group are forgotten at a failover",
        patches=_cursors_of_one_master,
        **of_moment("broadcasting"),
    ),
    Mutant(
        rule="ADR26-gone",
        meaning="the cursor of a client that is there ends",
        patches=_ended_too_early,
        **of_moment("broadcasting"),
    ),
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
    Mutant(
        rule="R29-expired",
        meaning="a message that was forgotten is never given anew",
        patches=_never_due,
        **of_moment("expiring"),
    ),
    Mutant(
        rule="R28-grants",
        meaning="a message is handed out before its grant is confirmed",
        patches=_given_before_confirm,
        **of_moment("ended-grants", "S23"),
    ),
    Mutant(
        rule="S23-commit",
        meaning="a group's offset is committed without receipts while a message is invisible",
        caught_by=frozenset({"S23"}),
        patches=_commits_over_receipts,
        bed="world",
    ),
    Mutant(
        rule="S23-past",
        meaning="a message that its group has committed without receipts is given all the same",
        patches=_commits_hide_nothing,
        **of_moment("expiring", "S23"),
    ),
    Mutant(
        rule="R34-letters",
        meaning="one group's dead letter stands for another's",
        caught_by=frozenset({"S23"}),
        patches=_letter_of_any_group,
        bed="world",
    ),
)
