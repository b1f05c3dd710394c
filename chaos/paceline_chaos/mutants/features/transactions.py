"""Rules of transactions, taken out (R34, INV-8)."""

from typing import Any
from unittest.mock import patch

from paceline.errors import PacelineError
from paceline.records.checking import check_batch
from paceline.records.header import HEADER_BYTES, Kind, pack_header
from paceline_broker.projections.transactions import Ended, Half, Transactions
from paceline_broker.service.long_work import Job
from paceline_broker.service.produce.send import Sender
from paceline_broker.service.transactions.transactions import TransactionEnds
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


def _half_is_visible() -> list[Patch]:
    """A half message is stored as any other."""
    send = Sender.send

    def send_at_once(
        sender: Sender, batch: Any, sink: Any, request_id: int, **who: Any
    ) -> Job | None:
        try:
            header = check_batch(batch)
        except PacelineError:
            header = None
        if header is not None and header.kind == Kind.HALF:
            batch = pack_header(header._replace(kind=Kind.NORMAL)) + bytes(batch)[HEADER_BYTES:]
        return send(sender, batch, sink, request_id, **who)

    return [(Sender, "send", send_at_once)]


def _ends_forgotten(*forgotten: Ended) -> list[Patch]:
    """The state calls those open that have ended so."""
    find = Transactions.find

    def find_open(transactions: Transactions, source: int) -> Half | None:
        half = find(transactions, source)
        if half is None or half.ended not in forgotten:
            return half
        return half._replace(ended=Ended.OPEN)

    def set_once(transactions: Transactions, current: int, ended: Ended) -> None:
        half = find(transactions, current)
        if half is not None and half.ended is Ended.OPEN:
            set_as_ever(transactions, current, ended)

    set_as_ever = Transactions._set
    return [(Transactions, "find", find_open), (Transactions, "_set", set_once)]


def _ends_unaware() -> list[Patch]:
    """Each end is judged by the state before the step."""
    judge = TransactionEnds._judge

    def judge_alone(
        ends: TransactionEnds, end: Any, writer: Any, projections: Any, decided: Any
    ) -> Half | None:
        return judge(ends, end, writer, projections, {})

    return [(TransactionEnds, "_judge", judge_alone)]


def _commits_forgotten() -> list[Patch]:
    return _ends_forgotten(Ended.COMMITTED)


def _rollbacks_forgotten() -> list[Patch]:
    return _ends_forgotten(Ended.ROLLED_BACK)


def _outcomes_dropped() -> list[Patch]:
    """What has ended is forgotten at once, and not when its half leaves the log."""
    find = Transactions.find

    def find_open(transactions: Transactions, source: int) -> Half | None:
        half = find(transactions, source)
        return half if half is not None and half.ended is Ended.OPEN else None

    return [(Transactions, "find", find_open)]


def _decided_on_what_is_confirmed() -> list[Patch]:
    """A half counts as open until confirm has passed its end: who repeats it commits it again."""
    append, read, judge = TransactionEnds._append, TransactionEnds._read, TransactionEnds._judge
    find = Transactions.find
    ended_at: dict[tuple[int, int], int] = {}

    def note_ends(ends: TransactionEnds, writer: Any, *rest: Any) -> None:
        _, committed, *_ = rest
        append(ends, writer, *rest)
        for chosen in (row for rows in committed.values() for row in rows):
            ended_at[id(ends), chosen.source] = int(writer.end)

    def seen_late(ends: TransactionEnds, source: int) -> Half | None:
        half = find(ends._role.projections.transactions, source)
        is_late = ended_at.get((id(ends), source), 0) > ends._role.reader.confirm
        return half._replace(ended=Ended.OPEN) if half is not None and is_late else half

    async def read_late(ends: TransactionEnds, *arguments: Any) -> None:
        with patch.object(Transactions, "find", lambda _, source: seen_late(ends, source)):
            await read(ends, *arguments)

    def judge_late(ends: TransactionEnds, *arguments: Any) -> Half | None:
        with patch.object(Transactions, "find", lambda _, source: seen_late(ends, source)):
            return judge(ends, *arguments)

    return [
        (TransactionEnds, "_append", note_ends),
        (TransactionEnds, "_read", read_late),
        (TransactionEnds, "_judge", judge_late),
    ]


def _checks_in_memory() -> list[Patch]:
    """Only the master that asked knows how often: the records say nothing."""

    def apply_ends(transactions: Transactions, document: Any, *, now_unix_ms: int) -> None:
        transactions.close(document.get("rolled_back", ()), Ended.ROLLED_BACK)

    return [(Transactions, "apply", apply_ends)]


TRANSACTIONS = (
    Mutant(
        rule="R34-races",
        meaning="two ends that are decided in one step do not know of each other",
        caught_by=frozenset({"S5", "S24"}),
        patches=_ends_unaware,
        bed="world",
    ),
    Mutant(
        rule="R34-checks",
        meaning="checks are not counted in the log",
        caught_by=frozenset({"S24"}),
        patches=_checks_in_memory,
        bed="world",
    ),
    Mutant(
        rule="R34-early",
        meaning="a half message is seen at once",
        caught_by=frozenset({"S24"}),
        patches=_half_is_visible,
        bed="world",
    ),
    Mutant(
        rule="R34-again",
        meaning="a commit that is asked for again is carried out again",
        caught_by=frozenset({"S5", "S24"}),
        patches=_commits_forgotten,
        bed="world",
    ),
    Mutant(
        rule="R34-remembered",
        meaning="the outcome of a transaction is forgotten while its half is in the log",
        caught_by=frozenset({"S24"}),
        patches=_outcomes_dropped,
        bed="world",
    ),
    Mutant(
        rule="R34-decided",
        meaning="a half is decided twice, as its first end is not confirmed yet",
        patches=_decided_on_what_is_confirmed,
        **of_moment("ended-again", "S5", "S24"),
    ),
    Mutant(
        rule="R34-both",
        meaning="what was rolled back can be committed",
        caught_by=frozenset({"S24"}),
        patches=_rollbacks_forgotten,
        bed="world",
    ),
)
