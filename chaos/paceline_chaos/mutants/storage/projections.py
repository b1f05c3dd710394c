"""Rules of projections and of the service, taken out (R14, R27 to R33, INV-7 to INV-11)."""

from typing import Any

from paceline.errors import PacelineError
from paceline.records.header import BatchHeader, Kind
from paceline.types import PhysicalOffset
from paceline_broker.appender import Appender
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.projections import offsets as offsets_module
from paceline_broker.projections.consume_queues import ConsumeQueue
from paceline_broker.projections.locks import LockEntry, LockOutcome, LockRequest, Locks, Token
from paceline_broker.projections.offsets import CommitOutcome, Committed
from paceline_broker.projections.producers import Producers, Verdict
from paceline_broker.projections.projections import Projections
from paceline_broker.role.mastership import Mastership
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.produce import send
from paceline_broker.service.produce.send import Sender, _duplicate_answer
from paceline_broker.storage.checkpoints import CheckpointFolder
from paceline_broker.storage.confirmed_reader import StoreReader
from paceline_broker.storage.store import Store
from paceline_chaos.mutants.mutant import Mutant, Patch


def _serves_above_confirm() -> list[Patch]:
    """A master shows what it has written, confirmed or not."""

    def confirm(reader: StoreReader) -> PhysicalOffset:
        return reader._log.written

    def read(reader: StoreReader, start: PhysicalOffset, max_bytes: int) -> memoryview:
        end = PhysicalOffset(min(start + max_bytes, reader._log.written))
        return memoryview(reader._log._segments.pread(start, end))

    return [(StoreReader, "confirm", property(confirm)), (StoreReader, "read", read)]


def _checkpoints_unconfirmed() -> list[Patch]:
    """A checkpoint is written at once, and none is ever dropped."""

    async def finish_checkpoint(store: Store) -> bool:
        pending, store._pending = store._pending, None
        if pending is None:
            return False
        return await store._checkpoints.write(
            pending.position, pending.snapshot, is_current=lambda: True
        )

    def drop_beyond(folder: CheckpointFolder, limit: PhysicalOffset) -> None:
        return

    return [
        (Store, "finish_checkpoint", finish_checkpoint),
        (CheckpointFolder, "drop_beyond", drop_beyond),
    ]


def _suffix_not_folded() -> list[Patch]:
    """A start takes the checkpoint for the state at confirm."""
    reload_projections = Store.reload_projections

    def reload_without(store: Store, *, limit: PhysicalOffset | None = None) -> None:
        reload_projections(store, limit=limit)
        found = store._checkpoints.newest(limit=store.log.confirm)
        if found is not None:
            position = store.projections.position
            store.projections = Projections.restore(found.snapshot)
            store.projections.position = position

    return [(Store, "reload_projections", reload_without)]


def _demoted_keeps_state() -> list[Patch]:
    """What was folded stays in the state, though the log is cut below it."""
    reload_projections = Store.reload_projections

    def reload_at_start(store: Store, *, limit: PhysicalOffset | None = None) -> None:
        if store.projections.position == 0:
            reload_projections(store, limit=limit)

    return [(Store, "reload_projections", reload_at_start)]


def _tail_not_folded() -> list[Patch]:
    """A new master appends before it has folded its tail."""
    append_epoch_start = Mastership._append_epoch_start

    def append_unfolded(led: Mastership, view: Any, clock: Any, watch: Any) -> None:
        led._store.reload_projections()
        led._store.projections.position = led._log.end
        append_epoch_start(led, view, clock, watch)

    return [(Mastership, "_append_epoch_start", append_unfolded)]


def _duplicates_not_waited_for() -> list[Patch]:
    """A duplicate is answered before its original is confirmed."""
    as_ever = Sender._is_answered

    def is_answered(
        sender: Sender, header: BatchHeader, key: int, writer: Any, sink: Any, request_id: int
    ) -> bool:
        try:
            verdict, original = sender._role.projections.producers.decide(key, header)
        except PacelineError:
            return as_ever(sender, header, key, writer, sink, request_id)
        if verdict is Verdict.NEW:
            return False
        sink.produced(request_id, _duplicate_answer(header, original, writer))
        return True

    return [(Sender, "_is_answered", is_answered)]


def _no_deduplication() -> list[Patch]:
    """Every batch is new."""

    def decide(producers: Producers, key: int, header: BatchHeader) -> tuple[Verdict, None]:
        return Verdict.NEW, None

    return [(Producers, "decide", decide)]


def _deduplication_in_memory() -> list[Patch]:
    """Only the master that stored a batch remembers it: no replica, no restart."""
    apply = Projections.apply

    def apply_without(projections: Projections, header: BatchHeader, batch: Any) -> Any:
        if header.kind != Kind.NORMAL:
            return apply(projections, header, batch)
        producers, projections.producers = projections.producers, Producers()
        try:
            return apply(projections, header, batch)
        finally:
            projections.producers = producers

    return [(Projections, "apply", apply_without)]


def _producers_not_in_checkpoints() -> list[Patch]:
    def snapshot(producers: Producers) -> bytes:
        return bytes(8)

    return [(Producers, "snapshot", snapshot)]


def _sequences_checked_late() -> list[Patch]:
    """A gap in the sequences of a producer is let through."""
    decide = Producers.decide

    def decide_anything(producers: Producers, key: int, header: BatchHeader) -> Any:
        try:
            return decide(producers, key, header)
        except PacelineError:
            return Verdict.NEW, None

    return [(Producers, "decide", decide_anything)]


def _index_entry_dropped() -> list[Patch]:
    """One batch of fifty is missing in the index of its queue."""
    add = ConsumeQueue.add

    def add_some(
        queue: ConsumeQueue, base: int, record_count: int, position: int, size_bytes: int
    ) -> None:
        add(queue, base, record_count, position, size_bytes)
        if base % 50 == 49 and len(queue) > 1:
            for column in (queue._bases, queue._positions, queue._sizes):
                column.pop()

    return [(ConsumeQueue, "add", add_some)]


def _commit_too_far() -> list[Patch]:
    """A commit goes one message further than it says."""
    decide = offsets_module._decide

    def decide_further(
        request: Any, entry: Any, now: Committed | None, facts: Any, now_unix_ms: int
    ) -> CommitOutcome:
        outcome = decide(request, entry, now, facts, now_unix_ms)
        is_short = entry.offset < facts.queue_end(entry.key)
        if outcome.code is None and outcome.committed is not None and is_short:
            further = (
                outcome.committed._replace(offset=type(now.offset)(entry.offset + 1))
                if (now is not None)
                else outcome.committed
            )
            return outcome._replace(committed=further)
        return outcome

    return [(offsets_module, "_decide", decide_further)]


def _commits_lower() -> list[Patch]:
    """The last commit counts, not the highest."""

    def decide(
        request: Any, entry: Any, now: Committed | None, facts: Any, now_unix_ms: int
    ) -> CommitOutcome:
        generation = 0 if now is None else now.generation
        lowered = max(0, entry.offset - 1 if entry.offset % 3 == 0 else entry.offset)
        return CommitOutcome(entry.key, None, Committed(lowered, generation))

    return [(offsets_module, "_decide", decide)]


def _commits_in_memory() -> list[Patch]:
    """Only the master that took a commit knows of it."""
    fold_to = Store.fold_to

    def fold_without(store: Store, limit: PhysicalOffset) -> None:
        committed = store.projections.offsets
        fold_to(store, limit)
        store.projections.offsets = type(committed).from_json([], [])

    return [(Store, "fold_to", fold_without)]


def _lock_for_everybody() -> list[Patch]:
    """A lock is granted whoever holds it."""

    def decide_lock(
        locks: Locks, request: LockRequest, entry: LockEntry, new_token: Token, now_unix_ms: int
    ) -> LockOutcome:
        from paceline_broker.projections.locks import Lock

        expires = now_unix_ms + request.lease_ms
        return LockOutcome(
            entry.key, None, Lock(request.client_id, new_token, expires, request.lease_ms)
        )

    return [(Locks, "_decide_lock", decide_lock)]


def _unlocked_by_any_token() -> list[Patch]:
    """A lock is given back by whatever token its holder once had."""
    decide_unlock = Locks._decide_unlock

    def decide_any(
        locks: Locks, request: LockRequest, entry: LockEntry, new_token: Token, now_unix_ms: int
    ) -> LockOutcome:
        held = locks._locks.get((request.group, entry.key))
        token = entry.token if held is None else held.token
        return decide_unlock(locks, request, LockEntry(entry.key, token), new_token, now_unix_ms)

    return [(Locks, "_decide_unlock", decide_any)]


def _token_used_again(*, by_holder_only: bool) -> list[Patch]:
    """Whoever gets a lock, or its holder alone, gets the token that it had before."""
    decide_lock = Locks._decide_lock

    def decide_again(
        locks: Locks, request: LockRequest, entry: LockEntry, new_token: Token, now_unix_ms: int
    ) -> LockOutcome:
        held = locks._locks.get((request.group, entry.key))
        if held is not None and (held.client_id == request.client_id or not by_holder_only):
            new_token = held.token
        return decide_lock(locks, request, entry, new_token, now_unix_ms)

    return [(Locks, "_decide_lock", decide_again)]


def _epoch_voids_locks() -> list[Patch]:
    """An epoch start frees all locks, though their holders know nothing of it."""

    def renew_all(locks: Locks, **of: int | None) -> None:
        locks._locks.clear()

    return [(Locks, "renew_all", renew_all)]


def _lease_by_wall_clock() -> list[Patch]:
    """Records are stamped by the clock of whoever leads.

    The assertions of `Appender` and of the log go with the rule: what they write has to be noticed.
    """

    def log_time_ms(ledger: Ledger) -> int:
        return ledger._clock.unix_ms()

    record = Appender.record

    def record_at_any_time(
        appender: Appender, kind: Kind, document: Any, *, store_unix_ms: int
    ) -> Any:
        projections = appender._projections
        time_ms = projections.log_time_ms
        projections.log_time_ms = min(time_ms, store_unix_ms)
        outcomes = record(appender, kind, document, store_unix_ms=store_unix_ms)
        projections.log_time_ms = max(time_ms, store_unix_ms)
        return outcomes

    append = CommitLog.append

    def append_to_log(log: CommitLog, header: Any, payload: Any) -> Any:
        log._last_store_unix_ms = 0
        return append(log, header, payload)

    return [
        (Ledger, "log_time_ms", log_time_ms),
        (CommitLog, "append", append_to_log),
        (Appender, "record", record_at_any_time),
    ]


def _no_bound_on_unconfirmed() -> list[Patch]:
    init = Mastership.__init__

    def init_without(led: Mastership, **arguments: Any) -> None:
        init(led, **{**arguments, "unconfirmed_bytes_max": 1 << 60})

    return [(Mastership, "__init__", init_without)]


def _queries_not_waited_for() -> list[Patch]:
    """A query is answered from the master's state at once: neither confirm nor a round."""

    async def query(ledger: Ledger, ask: Any) -> Any:
        ledger._role.writer()
        return ask(ledger._role.projections)

    return [(Ledger, "query", query)]


def _early_answer_called_confirmed() -> list[Patch]:
    """An answer that leaves before confirm does not say so."""
    return [(send._StoredEarly, "__call__", send._Stored.__call__)]


PROJECTIONS = (
    Mutant(
        rule="R37",
        meaning="early answers call themselves confirmed",
        caught_by=frozenset({"S1", "S2", "S16"}),
        patches=_early_answer_called_confirmed,
    ),
    Mutant(
        rule="INV-8",
        meaning="a master serves above confirm",
        caught_by=frozenset({"S2", "S10"}),
        patches=_serves_above_confirm,
    ),
    Mutant(
        rule="R28-checkpoint",
        meaning="checkpoints above confirm",
        caught_by=frozenset({"INV-8", "INV-9", "INV-7", "R16", "R23"}),
        patches=_checkpoints_unconfirmed,
    ),
    Mutant(
        rule="INV-9",
        meaning="the log after a checkpoint is not folded",
        caught_by=frozenset({"INV-9"}),
        patches=_suffix_not_folded,
    ),
    Mutant(
        rule="R28-demoted",
        meaning="state keeps what was cut from the log",
        caught_by=frozenset({"INV-9", "R23"}),
        patches=_demoted_keeps_state,
    ),
    Mutant(
        rule="R28-tail",
        meaning="a new master does not fold its tail",
        caught_by=frozenset({"INV-9", "S2", "S6"}),
        patches=_tail_not_folded,
    ),
    Mutant(
        rule="R30",
        meaning="duplicates are answered before confirm",
        caught_by=frozenset({"S1", "S2", "S16"}),
        patches=_duplicates_not_waited_for,
    ),
    Mutant(
        rule="R31",
        meaning="retries are stored again",
        caught_by=frozenset({"S5"}),
        patches=_no_deduplication,
    ),
    Mutant(
        rule="R31-memory",
        meaning="only the storing master knows a batch",
        caught_by=frozenset({"S5", "INV-9"}),
        patches=_deduplication_in_memory,
    ),
    Mutant(
        rule="R31-checkpoint",
        meaning="checkpoints forget producers",
        caught_by=frozenset({"S5", "S8", "INV-9"}),
        patches=_producers_not_in_checkpoints,
    ),
    Mutant(
        rule="R31-gap",
        meaning="gaps of sequences are let through",
        caught_by=frozenset({"S5", "S7", "S8"}),
        patches=_sequences_checked_late,
    ),
    Mutant(
        rule="INV-7",
        meaning="an index entry is missing",
        caught_by=frozenset({"S6", "S9", "S1", "S20"}),
        patches=_index_entry_dropped,
    ),
    Mutant(
        rule="R33-far",
        meaning="a commit goes one too far",
        caught_by=frozenset({"S21"}),
        patches=_commit_too_far,
    ),
    Mutant(
        rule="R33-max",
        meaning="commits may lower",
        caught_by=frozenset({"S22"}),
        patches=_commits_lower,
    ),
    Mutant(
        rule="R33-memory",
        meaning="commits die with their master",
        caught_by=frozenset({"S22", "INV-9"}),
        patches=_commits_in_memory,
    ),
    Mutant(
        rule="INV-11",
        meaning="locks are granted to everybody",
        caught_by=frozenset({"S26"}),
        patches=_lock_for_everybody,
    ),
    Mutant(
        rule="INV-11-token",
        meaning="a new holder gets the old token",
        caught_by=frozenset({"S26", "S27"}),
        patches=lambda: _token_used_again(by_holder_only=False),
    ),
    Mutant(
        rule="INV-11-anew",
        meaning="a holder that asks without its token gets the same token",
        caught_by=frozenset({"INV-11"}),
        patches=lambda: _token_used_again(by_holder_only=True),
        bed="moments",
        script="contended",
    ),
    Mutant(
        rule="INV-11-unlock",
        meaning="a lock is given back by whatever token its holder once had",
        caught_by=frozenset({"S26"}),
        patches=_unlocked_by_any_token,
        bed="moments",
        script="contended",
    ),
    Mutant(
        rule="R33-epoch",
        meaning="an epoch start frees all locks",
        caught_by=frozenset({"S26"}),
        patches=_epoch_voids_locks,
    ),
    Mutant(
        rule="R29",
        meaning="records are stamped by the wall clock",
        caught_by=frozenset({"R29"}),
        patches=_lease_by_wall_clock,
    ),
    Mutant(
        rule="R27",
        meaning="no bound on unconfirmed bytes",
        caught_by=frozenset({"R27"}),
        patches=_no_bound_on_unconfirmed,
    ),
    Mutant(
        rule="R28-query",
        meaning="queries wait for nothing",
        caught_by=frozenset({"S19", "S20", "S22"}),
        patches=_queries_not_waited_for,
    ),
)
