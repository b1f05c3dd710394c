"""Rules of whole brokers and clients, taken out where only shells keep them: for the world.

The core bed drives the state machines below; these are about the role that owns them, the
connections around them, HTTP, and the client library in one piece.
"""

from typing import Any

from paceline.consumer.fetch.fetcher import FetchSession
from paceline.consumer.process.concurrent import ConcurrentProcessing
from paceline.consumer.queues.process_queue import ProcessQueue
from paceline.errors import NotMasterError
from paceline.producer import results
from paceline.producer.broker_sender import BrokerSender
from paceline.producer.dispatcher import Dispatcher
from paceline.producer.queue_buffer import QueueBuffer
from paceline_broker.log.flusher import Flusher
from paceline_broker.log.tickets import FlushTicket
from paceline_broker.replication.master.lag import Paces
from paceline_broker.replication.master.term import MasterTerm
from paceline_broker.role.mastership import Mastership
from paceline_broker.role.role import BrokerRole
from paceline_broker.service import messages
from paceline_broker.service.fetch import sessions
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment
from paceline_controller.state import replicas

# -- brokers ---------------------------------------------------------------------------------------


def _old_master_followed() -> list[Patch]:
    """A new epoch leaves a replica's connection to its old master as it is (R2)."""

    leave = BrokerRole._leave

    async def leave_connected(role: BrokerRole, reason: str) -> None:
        role._client = role._client_master = None
        await leave(role, reason)

    return [(BrokerRole, "_leave", leave_connected)]


def _restarted_in_its_epoch() -> list[Patch]:
    """A master that died and came back goes on in its epoch, as if nothing had been (R1)."""

    def stays(group: Any, outcome: Any, *, reason: str) -> None:
        group.master_incarnation = group.replicas[group.master].incarnation

    take = BrokerRole._take

    async def take_again(role: BrokerRole, group: Any) -> None:
        await take(role, group)
        known = role.identity
        is_mine = (group.master, group.master_incarnation) == (known.replica_id, known.incarnation)
        if is_mine and role.mastership is None and group.master_epoch == role.epoch:
            role._begin_mastership(group)

    append_epoch_start = Mastership._append_epoch_start

    def append_once(led: Mastership, view: Any, clock: Any, watch: Any) -> None:
        if led._log.epochs.last_epoch < view.master_epoch:
            append_epoch_start(led, view, clock, watch)

    return [
        (replicas, "vacate", stays),
        (BrokerRole, "_take", take_again),
        (Mastership, "_append_epoch_start", append_once),
    ]


def _dead_members_stay() -> list[Patch]:
    """No member is ever behind: who is dead keeps its place, and all wait for it (R12)."""
    return [(Paces, "is_keeping_up", lambda paces, replica: True)]


def _ended_means_stored() -> list[Patch]:
    """Who waits when a mastership ends is told that all is well (R1)."""
    end = MasterTerm.end

    def end_with_answers(term: MasterTerm, reason: str) -> None:
        if not term._has_ended:
            for callback in term._tracker.fail_all():
                callback(None)
        end(term, reason)

    return [(MasterTerm, "end", end_with_answers)]


def _rows_of_the_first() -> list[Patch]:
    """Each message of a JSON send is told the offset of the first."""
    row = messages._row
    return [(messages, "_row", lambda queue, number, answer: row(queue, 0, answer))]


def _newest_file_synced() -> list[Patch]:
    """A flush over several files syncs the newest; the rest of a sealed segment stays unsynced."""

    async def sync_last(flusher: Flusher, ticket: FlushTicket) -> None:
        for file in ticket.files[-1:]:
            if ticket.generation != flusher._log.generation:
                return
            await flusher._disk.sync(file)
        if ticket.folder is not None:
            await flusher._disk.sync_folder_later(ticket.folder)

    return [(Flusher, "_sync", sync_last)]


def _range_told_unasked() -> list[Patch]:
    """Who reads from beyond an end is told the range that this broker knows, master or not."""
    ask_round = sessions._Session._ask_round

    class NobodyAsked:
        async def read_round(self) -> None:
            return

    async def ask_nobody(session: Any, writer: Any) -> None:
        await ask_round(session, NobodyAsked())  # type: ignore[arg-type]

    return [(sessions._Session, "_ask_round", ask_nobody)]


def _range_never_told() -> list[Patch]:
    """What a read round has said is told to nobody who waits for it."""

    async def ask(session: Any, writer: Any) -> None:
        await writer.read_round()
        session._is_round_under_way = False

    return [(sessions._Session, "_ask_round", ask)]


# -- clients ---------------------------------------------------------------------------------------


def _lost_means_refused() -> list[Patch]:
    """A lost connection counts as a refusal: what was on it is made anew, elsewhere perhaps."""

    def lost(box: QueueBuffer) -> None:
        for batch in box.pending:
            if batch.is_in_flight:
                box._landed(batch)
                box._is_rewinding = True
        box._resolve_when_quiet()

    def on_lost(lane: BrokerSender, attempt: Any) -> None:
        if lane._land(attempt):
            error = NotMasterError("the connection was lost", master=None)
            attempt.outbox.refused(attempt.batch, error)
            lane.ready_again(attempt.outbox)
            lane._on_progress(attempt.outbox)

    return [(QueueBuffer, "lost", lost), (BrokerSender, "_on_lost", on_lost)]


def _offset_of_the_first() -> list[Patch]:
    """Whoever sent a message of a batch is told the offset of its first."""
    result_of = results.result_of
    return [(results, "result_of", lambda batch, index: result_of(batch, 0))]


def _one_producer_id() -> list[Patch]:
    """A producer that starts again takes the id that it had, and sequence 0."""
    return [(Dispatcher, "_new_producer_id", lambda dispatcher: 4711)]


def _committed_when_fetched() -> list[Patch]:
    """What was fetched counts as processed."""
    return [(ProcessQueue, "commit_offset", property(lambda queue: queue._end))]


def _failed_means_processed() -> list[Patch]:
    """What a listener raises is noted, and the message is done."""

    def done(processing: Any, held: Any, message: Any, error: Exception) -> None:
        held.queue.finish(message)

    return [(ConcurrentProcessing, "_failed", done)]


def _lost_fetch_counts() -> list[Patch]:
    """After a reconnect the position is one message past what was lost."""
    on_lost = FetchSession._on_lost

    def on_lost_moved(session: FetchSession, fetch: Any) -> None:
        for queue in fetch.queues():
            queue.position += 1
        on_lost(session, fetch)

    return [(FetchSession, "_on_lost", on_lost_moved)]


SHELLS = (
    Mutant(
        rule="R1",
        meaning="a restarted master goes on in its epoch",
        caught_by=frozenset({"R1", "INV-12", "S1", "S2", "S14"}),
        patches=_restarted_in_its_epoch,
        bed="world",
    ),
    Mutant(
        rule="R12",
        meaning="dead members keep their place",
        patches=_dead_members_stay,
        **of_moment("gone"),
    ),
    Mutant(
        rule="R2",
        meaning="replicas go on acknowledging to their old master",
        patches=_old_master_followed,
        **of_moment("replaced-unheard"),
    ),
    Mutant(
        rule="R1-waiters",
        meaning="the end of a mastership acknowledges",
        patches=_ended_means_stored,
        **of_moment("ended-waiting", "S1", "S16"),
    ),
    Mutant(
        rule="R25-files",
        meaning="of a flush only the newest file is synced",
        caught_by=frozenset({"R23", "INV-2", "S16", "S1"}),
        patches=_newest_file_synced,
        bed="world",
    ),
    Mutant(
        rule="S1-json",
        meaning="JSON sends name one offset for all",
        caught_by=frozenset({"S1", "S2"}),
        patches=_rows_of_the_first,
        bed="world",
    ),
    Mutant(
        rule="R32-lost",
        meaning="a lost connection counts as refused",
        caught_by=frozenset({"S4", "S5"}),
        patches=_lost_means_refused,
        bed="world",
    ),
    Mutant(
        rule="S1-batch",
        meaning="a batch's messages have one offset",
        caught_by=frozenset({"S1", "S2"}),
        patches=_offset_of_the_first,
        bed="world",
    ),
    Mutant(
        rule="R31-id",
        meaning="producers begin again under their id",
        caught_by=frozenset({"S1", "S2", "S5"}),
        patches=_one_producer_id,
        bed="world",
    ),
    Mutant(
        rule="R3-range",
        meaning="who reads from beyond an end is told a range without a round",
        patches=_range_told_unasked,
        **of_moment("old-range", "S19"),
    ),
    Mutant(
        rule="L11",
        meaning="a consumer beyond an end waits for ever for what the round has said",
        caught_by=frozenset({"L11"}),
        patches=_range_never_told,
        bed="world",
    ),
    Mutant(
        rule="S21",
        meaning="offsets are committed when fetched",
        caught_by=frozenset({"S21"}),
        patches=_committed_when_fetched,
        bed="world",
    ),
    Mutant(
        rule="S21-failed",
        meaning="a failed message counts as processed",
        caught_by=frozenset({"S21"}),
        patches=_failed_means_processed,
        bed="world",
    ),
    Mutant(
        rule="S9",
        meaning="a reconnect skips a message",
        caught_by=frozenset({"S9", "S21", "L1"}),
        patches=_lost_fetch_counts,
        bed="world",
    ),
)
"""Judged by the seeds of the world, like the product."""
