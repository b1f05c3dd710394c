"""The second phase of transactions: commits and rollbacks of half messages (R34).

All ends that arrive in one turn of the event loop are decided together, in the order in which they
came: what is committed becomes one derived batch for each target queue, what is rolled back one
record. Up to some bytes: what is beyond is read and decided in steps, and others have their turn
between. Decided on the state at `end`, answered when confirm has passed that (R28): the same end
again is answered the same, a contradicting one is refused, an unknown id has no effect. Only the
master of an open epoch decides (R3); an acting one ends nothing (R36).
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import (
    NotYetAvailableError,
    OutcomeUnknownError,
    PacelineError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from paceline.records.header import Cause, Kind, pack_source
from paceline.security.access import Asker
from paceline.types import MasterEpoch
from paceline.wire.calls.messages import EndRow, EndTransactions
from paceline.wire.message_ids import parse_handle
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.consume_queues import queue_of, topic_of
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.transactions import Ended, Half, operation_document
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings
from paceline_broker.service.transactions.half_messages import (
    DERIVED_BYTES,
    HANDLE_KIND,
    Chosen,
    HalfBatch,
    HalfMessageReader,
    batches_of,
    transaction_id,
)

LISTED_MAX = 1000
STEP_BYTES = DERIVED_BYTES
"""Of batches with halves that are read for one step of a request, and of what a turn decides; one
batch more where that does not reach."""
HELD_BYTES_MAX = 32 * 1024 * 1024
"""Of batches that are read and not decided, for all requests."""


@dataclass(slots=True)
class TransactionCounters:
    """What became of transactions at this broker since it started."""

    committed: int = 0
    rolled_back: int = 0
    checks: int = 0
    checked_out: int = 0


@dataclass(slots=True)
class _End:
    """One end that was asked for, and what came of it."""

    source: int
    wanted: Ended
    epoch: MasterEpoch
    asker: Asker
    batch: HalfBatch | None = None
    """Read before, as the decision does not wait; written again since, it says the same."""
    number: int = 0
    """Of the half in that batch."""
    held_bytes: int = 0
    """Counted for that batch; 0 where another end of the request counts it."""
    outcome: Ended | None = None
    """What the transaction has become, by this end or before; None: refused, see `error`."""
    error: PacelineError | None = None


@dataclass(slots=True)
class _Request:
    ends: list[_End]
    answered: "asyncio.Future[None]"

    @property
    def size_bytes(self) -> int:
        return sum(end.held_bytes for end in self.ends)


class TransactionEnds:
    """The use-case of ending transactions. One per broker; used on its event loop."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        ledger: Ledger,
        halves: HalfMessageReader,
        counters: TransactionCounters,
        settings: ServiceSettings,
    ) -> None:
        self._role = role
        self._routes = routes
        self._ledger = ledger
        self._halves = halves
        self._counters = counters
        self._settings = settings
        self._waiting: deque[_Request] = deque()
        self.held_bytes = 0
        """Of batches that were read and whose ends are not decided."""
        self._freed = asyncio.Event()

    def source_of(self, text: str) -> int:
        """The half that a transaction id names; 4xx for what was never given out here."""
        found = parse_handle(HANDLE_KIND, text)
        if found.group != self._routes.group:
            raise TransactionNotFoundError(
                f"transaction {text} is one of broker group {found.group}, this is"
                f" {self._routes.group}: ask its master",
                group=found.group,
            )
        return pack_source(found.position, found.number)

    async def end_one(self, text: str, wanted: Ended, *, asker: Asker) -> dict[str, Any]:
        """End one transaction; raises why not."""
        [end] = await self._end([(self.source_of(text), wanted)], asker)
        if end.error is not None:
            raise end.error
        assert end.outcome is not None
        return {"transaction_id": text, "outcome": end.outcome.name}

    async def end_many(
        self, commit: Sequence[str], rollback: Sequence[str], *, asker: Asker
    ) -> list[EndRow]:
        """End many, commits first; a row for each in that order, with `code` where refused."""
        asked = [(text, Ended.COMMITTED) for text in commit]
        asked += [(text, Ended.ROLLED_BACK) for text in rollback]
        refused: dict[str, PacelineError] = {}
        pairs: list[tuple[int, Ended]] = []
        for text, wanted in asked:
            try:
                pairs.append((self.source_of(text), wanted))
            except PacelineError as error:
                refused[text] = error
        ends = iter(await self._end(pairs, asker))
        return [
            _refused_row(text, refused[text]) if text in refused else _row(text, next(ends))
            for text, _ in asked
        ]

    async def _end(self, asked: Sequence[tuple[int, Ended]], asker: Asker) -> list[_End]:
        """In steps of some bytes. A failure after the first is told end by end: some have ended."""
        ends = await self._step(asked, asker)
        while len(ends) < len(asked):
            rest = asked[len(ends) :]
            try:
                ends += await self._step(rest, asker)
            except PacelineError as error:
                ends += [_End(*pair, self._role.epoch, asker, error=error) for pair in rest]
        return ends

    async def _step(self, asked: Sequence[tuple[int, Ended]], asker: Asker) -> list[_End]:
        """End the first of these, as many as are read at a time."""
        writer = _open_writer(self._role)
        ends: list[_End] = []
        try:
            await self._read_some(ends, asked, asker, writer)
            if not self._waiting:
                asyncio.get_running_loop().call_soon(self._decide_some)
            request = _Request(ends, asyncio.get_running_loop().create_future())
            self._waiting.append(request)
            await request.answered
        finally:
            self._release(ends)
        if any(isinstance(end.error, TransactionNotFoundError) for end in ends):
            # A master that was deposed knows not what a later one has stored (R4).
            await writer.read_round()
        return ends

    async def _read_some(
        self,
        ends: list[_End],
        asked: Sequence[tuple[int, Ended]],
        asker: Asker,
        writer: LogWriter,
    ) -> None:
        """Fill `ends`; what is to be committed is read before, as the decision does not wait."""
        known: dict[int, HalfBatch] = {}
        size = 0
        for source, wanted in asked:
            if size >= STEP_BYTES or (size and self.held_bytes >= HELD_BYTES_MAX):
                return  # who holds something waits for nobody
            while self.held_bytes >= HELD_BYTES_MAX:
                self._freed.clear()
                await self._freed.wait()
            end = _End(source, wanted, writer.epoch, asker)
            ends.append(end)
            if wanted is Ended.COMMITTED:
                await self._read(end, known)
                size += end.held_bytes

    async def _read(self, end: _End, known: dict[int, HalfBatch]) -> None:
        """`known`: by position, what was read for the same step."""
        half = self._role.projections.transactions.find(end.source)
        if half is None or half.ended is not Ended.OPEN:
            return
        end.number, end.batch = half.number, known.get(half.position)
        if end.batch is not None:
            return
        self._hold(end, half.size_bytes)
        try:
            end.batch = known[half.position] = await self._halves.batch_of(half)
        except PacelineError as error:
            end.error = error
            self._hold(end, 0)
        else:
            self._hold(end, end.batch.memory_bytes)

    def _hold(self, end: _End, size_bytes: int) -> None:
        self.held_bytes += size_bytes - end.held_bytes
        end.held_bytes = size_bytes

    def _release(self, ends: Sequence[_End]) -> None:
        """Decided, or nobody waits for it any more."""
        for end in ends:
            self._hold(end, 0)
            end.batch = None
        self._freed.set()

    # -- deciding ----------------------------------------------------------------------------------

    def _taken(self) -> list[_Request]:
        """The first of those that wait, so many as one turn decides."""
        requests: list[_Request] = []
        size = 0
        while self._waiting and (not requests or size < STEP_BYTES):
            requests.append(self._waiting.popleft())
            size += requests[-1].size_bytes
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._decide_some)
        return requests

    def _decide_some(self) -> None:
        """What waits, up to some bytes, in one synchronous step."""
        requests = self._taken()
        end = None
        try:
            writer = _open_writer(self._role)
            writer.ensure_can_append()
            end = writer.end
            self._decide(writer, requests)
        except PacelineError as caught:
            error = caught
            if end is not None and writer.end != end:  # some of it is in the log (R32)
                error = OutcomeUnknownError(f"the log failed among these ends: {caught.message}")
            for request in requests:
                if not request.answered.done():
                    request.answered.set_exception(error)
            return
        for request in requests:
            self._release(request.ends)

        def confirmed(error: PacelineError | None) -> None:
            for request in requests:
                if request.answered.done():
                    continue  # the asker has gone
                if error is None:
                    request.answered.set_result(None)
                else:
                    request.answered.set_exception(error)

        writer.wait_confirmed(writer.end, confirmed, timeout_ms=self._settings.send_timeout_ms)

    def _decide(self, writer: LogWriter, requests: list[_Request]) -> None:
        projections = self._role.projections
        now = self._ledger.log_time_ms()
        decided: dict[int, Ended] = {}
        committed: dict[int, list[Chosen]] = {}
        rolled_back: list[int] = []
        for request in requests:
            for end in request.ends:
                half = self._judge(end, writer, projections, decided)
                if half is None:
                    continue
                decided[half.source] = end.wanted
                if end.wanted is Ended.ROLLED_BACK:
                    rolled_back.append(half.source)
                    continue
                assert end.batch is not None
                chosen = Chosen(half.source, end.batch, end.number, {})
                committed.setdefault(half.key, []).append(chosen)
        self._append(writer, projections, committed, rolled_back, now)

    def _judge(
        self, end: _End, writer: LogWriter, projections: Projections, decided: dict[int, Ended]
    ) -> Half | None:
        """The half that this end ends; None if it changes nothing, with the answer in `end`."""
        if end.error is not None:
            return None
        half = projections.transactions.find(end.source)
        if half is None:
            end.error = TransactionNotFoundError(
                "no half message has this transaction id here, or its log was deleted; nothing was"
                " changed"
            )
            return None
        try:
            self._check_rights(end, half)
        except PacelineError as error:  # this asker's alone: the step has ends of others as well
            end.error = error
            return None
        now = decided.get(half.source, half.ended)
        if now is Ended.OPEN:
            if end.wanted is Ended.ROLLED_BACK:
                end.outcome = end.wanted
                return half
            topic_id = topic_of(half.key)
            if self._routes.is_deleted(topic_id):  # as soon as this broker has the news (R35)
                now = Ended.DROPPED
            elif not self._routes.queue_counts.get(topic_id):
                end.error = NotYetAvailableError(
                    "the topic has no queue here now, as far as this broker knows; try again"
                )
                return None
            elif end.batch is None or end.epoch != writer.epoch:
                end.error = NotYetAvailableError("the master has changed meanwhile; try again")
                return None
            else:
                end.outcome = end.wanted
                return half
        if now is end.wanted or (now is Ended.DROPPED and end.wanted is Ended.ROLLED_BACK):
            end.outcome = end.wanted
        else:
            end.error = TransactionEndedError(_ended_otherwise(now), outcome=now.name)
        return None

    def _check_rights(self, end: _End, half: Half) -> None:
        """Raise unless the asker may send to the topic, while there is one: NotAuthorizedError, or
        UnauthenticatedError if its key does not count any more."""
        name = self._routes.topic_name(topic_of(half.key))
        if name:
            end.asker.check_topic(name, *EndTransactions.finds)

    def _append(
        self,
        writer: LogWriter,
        projections: Projections,
        committed: dict[int, list[Chosen]],
        rolled_back: list[int],
        now: int,
    ) -> None:
        batches: list[bytes] = []  # all of them before any is appended: nothing is refused between
        for key, chosen in committed.items():
            topic_id, queue_id = topic_of(key), queue_of(key)
            batches += batches_of(
                chosen,
                group=self._routes.group,
                topic_id=topic_id,
                queue_id=queue_id % self._routes.queue_counts[topic_id],
                cause=Cause.COMMITTED,
            )
        for batch in batches:
            writer.appender.made(batch, store_unix_ms=now)
        self._counters.committed += sum(map(len, committed.values()))
        if rolled_back:
            document = operation_document(rolled_back=rolled_back)
            writer.appender.record(Kind.OPERATION, document, store_unix_ms=now)
            self._counters.rolled_back += len(rolled_back)

    # -- looking -----------------------------------------------------------------------------------

    async def list_open(self, *, topic_id: int | None, limit: int) -> dict[str, Any]:
        """Open halves, the oldest first, and how many there are."""

        def ask(projections: Projections) -> tuple[int, list[dict[str, Any]]]:
            rows: list[dict[str, Any]] = []
            for half in projections.transactions.all_open():
                if len(rows) == limit:
                    break
                if topic_id is None or topic_of(half.key) == topic_id:
                    rows.append(self._half_json(half, projections))
            return projections.transactions.open_count, rows

        count, rows = await self._ledger.query(ask)
        return {"open": count, "transactions": rows}

    async def show(self, text: str) -> dict[str, Any]:
        """One half, open or ended."""
        source = self.source_of(text)

        def ask(projections: Projections) -> dict[str, Any] | None:
            half = projections.transactions.find(source)
            return None if half is None else self._half_json(half, projections)

        found = await self._ledger.query(ask)
        if found is None:
            raise TransactionNotFoundError("no half message has this transaction id here")
        return found

    def _half_json(self, half: Half, projections: Projections) -> dict[str, Any]:
        checked = projections.transactions.checked(half.source)
        topic = projections.topics.get(topic_of(half.key))
        return {
            "transaction_id": transaction_id(half, self._routes.group),
            "outcome": half.ended.name,
            "topic": "" if topic is None else topic.topic,
            "queue": queue_of(half.key),
            "store_unix_ms": half.stored_unix_ms,
            "checks": checked.times,
            "last_check_unix_ms": checked.last_unix_ms or None,
        }


def _open_writer(role: Role) -> LogWriter:
    writer = role.writer()
    if not writer.is_open:  # R3
        raise NotYetAvailableError(f"epoch {writer.epoch} is not open yet")
    return writer


def _row(transaction_id: str, end: _End) -> EndRow:
    if end.error is not None:
        return _refused_row(transaction_id, end.error)
    assert end.outcome is not None
    return EndRow(transaction_id=transaction_id, outcome=end.outcome.name, code=None, detail=None)


def _refused_row(transaction_id: str, error: PacelineError) -> EndRow:
    outcome = error.details.get("outcome")
    return EndRow(
        transaction_id=transaction_id,
        outcome=None if outcome is None else str(outcome),
        code=error.code,
        detail=error.message,
    )


def _ended_otherwise(ended: Ended) -> str:
    match ended:
        case Ended.DROPPED:
            return "its topic was deleted: there is nothing to commit it to; roll it back"
        case Ended.CHECKED_OUT:
            return (
                "nobody ended the transaction in time: its message is in the check-max topic, and"
                " this end has no effect"
            )
        case _:
            return f"the transaction has been {_WORDS[ended]} before; this end has no effect"


_WORDS = {Ended.COMMITTED: "committed", Ended.ROLLED_BACK: "rolled back"}
