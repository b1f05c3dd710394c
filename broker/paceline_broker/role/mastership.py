"""One mastership of this broker: the log writer of the service and the hooks of the term.

It gathers what one turn of the event loop appends into one write, one push per replica and one poke
of the flusher. It is made when an epoch is adopted and thrown away with it (R1): the role keeps no
reference to a fenced one. Everything here runs on the event loop, nothing blocks.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from paceline.errors import (
    CorruptLogError,
    DiskFullError,
    InSyncReplicasNotEnoughError,
    NotMasterError,
    NotYetAvailableError,
    OverloadedError,
    PacelineError,
    StorageError,
)
from paceline.platform.ports import Buffer, Clock
from paceline.records.header import Kind
from paceline.types import GroupName, Incarnation, MasterEpoch, PhysicalOffset, ReplicaId
from paceline.wire.cluster import GroupView
from paceline_broker.acting.withheld import WithheldWatch
from paceline_broker.appender import Appender
from paceline_broker.log.flusher import Flusher
from paceline_broker.projections.projections import epoch_start_document
from paceline_broker.replication.master.events import AlterSyncStateSet, MasterSettings
from paceline_broker.replication.master.master import MasterReplication
from paceline_broker.replication.master.ports import Probe
from paceline_broker.replication.master.relaxed_acks import answers_early
from paceline_broker.replication.master.send_window import TARGET_MS
from paceline_broker.replication.master.term import Confirmed, MasterTerm, TermSettings
from paceline_broker.storage.store import Store

log = logging.getLogger("paceline.role")

DRAIN_TIMEOUT_MS = 3000
DISK_FULL_RETRY_AFTER_MS = 1000
OVERLOAD_RETRY_AFTER_MS = 50
"""A full window of unconfirmed bytes empties within a few fsyncs, or not at all."""


class MastershipOwner(Protocol):
    """Who is told what becomes of a mastership: the role."""

    def confirm_moved(self, confirm: PhysicalOffset, /) -> None: ...

    def mastership_opened(self, mastership: "Mastership", /) -> None: ...

    def mastership_fenced(
        self, mastership: "Mastership", reason: str, /, *, is_lossy: bool
    ) -> None: ...


class Mastership:
    """LogWriter and TermHooks of one (epoch, incarnation)."""

    def __init__(
        self,
        *,
        owner: MastershipOwner,
        propose: "Callable[[Mastership, AlterSyncStateSet], None]",
        probe: Probe,
        store: Store,
        flusher: Flusher,
        view: GroupView,
        cluster_id: str,
        group: GroupName,
        replica_id: ReplicaId,
        incarnation: Incarnation,
        clock: Clock,
        settings: MasterSettings,
        unconfirmed_bytes_max: int,
        withheld: WithheldWatch,
    ) -> None:
        """Appends and writes the epoch-start record; the epoch was fsynced before (R2).

        Raises StorageError if the log rejects it; CorruptLogError if the tail cannot be folded.
        """
        self._owner = owner
        self._store = store
        self._log = store.log
        self._flusher = flusher
        self._loop = asyncio.get_running_loop()
        self._is_turn_due = False
        self._is_draining = False
        self._refused_count = 0
        """Sends refused for want of members since it last could take one (R6)."""
        self._epoch = view.master_epoch
        self.answers_early = answers_early(view.settings)
        self._term: MasterTerm | None = None
        self.appender = Appender(self, store.projections, clock)
        if store.projections.position > self._log.end:  # what was installed is ahead of it (R14)
            raise CorruptLogError("the log has not come as far as the installed checkpoint")
        store.fold_to(self._log.end)  # before the first append (R28)
        self._append_epoch_start(view, clock, withheld)
        self._log.write_pending()
        self._machine = self._replication(
            view, replica_id=replica_id, incarnation=incarnation, settings=settings
        )
        self._term = MasterTerm(
            self._machine,
            self._log,
            cluster_id=cluster_id,
            group=group,
            hooks=self,
            propose=partial(propose, self),
            probe=probe,
            clock=clock,
            settings=TermSettings(),
            unconfirmed_bytes_max=unconfirmed_bytes_max,
            counts_flushed=view.settings.durability == "fsync",
            answers_early=self.answers_early,
        )

    def _replication(
        self,
        view: GroupView,
        *,
        replica_id: ReplicaId,
        incarnation: Incarnation,
        settings: MasterSettings,
    ) -> MasterReplication:
        return MasterReplication(
            replica_id=replica_id,
            incarnation=incarnation,
            view=view,
            epoch_start_end=self._log.end,
            end=self._log.end,
            flushed=self._log.flushed,
            known_confirm=self._log.confirm,
            settings=settings,
        )

    def _append_epoch_start(self, view: GroupView, clock: Clock, watch: WithheldWatch) -> None:
        projections = self._store.projections
        now_ms = clock.monotonic_ms()
        store_unix_ms = max(self.appender.log_time_ms(), self._log.last_store_unix_ms)
        document = epoch_start_document(
            epoch=view.master_epoch,
            is_unclean=view.is_unclean,
            withhold_locks_ms=view.acting_leases_ms,
            withheld_rest_ms=watch.rest_ms(projections.locks.withheld, now_ms=now_ms),
        )
        self.appender.record(Kind.EPOCH_START, document, store_unix_ms=store_unix_ms)
        watch.look(projections.locks.withheld, now_ms=now_ms)

    @property
    def term(self) -> MasterTerm:
        assert self._term is not None
        return self._term

    def status(self) -> dict[str, object]:
        """JSON values for `/v1/status`."""
        return self.term.status(is_draining=self._is_draining)

    @property
    def is_member_full(self) -> bool:
        """Whether a member that cannot leave the set, so that it is needed, has no room (R26)."""
        return bool(self._members_without_room())

    def _members_without_room(self) -> list[ReplicaId]:
        """As they said last, also of those that are gone since: their disks may have failed."""
        machine = self._machine
        members = sorted(machine.sync_state_set - {machine.replica_id})
        return [replica for replica in members if not machine.paces.of(replica).has_room]

    # -- LogWriter --------------------------------------------------------------------------------

    @property
    def epoch(self) -> MasterEpoch:
        return self._epoch

    @property
    def end(self) -> PhysicalOffset:
        return self._log.end

    @property
    def confirm(self) -> PhysicalOffset:
        return self._log.confirm

    @property
    def is_open(self) -> bool:
        return self.term.is_open

    def ensure_can_append(self, *, is_freeing: bool = False) -> None:
        """See `LogWriter`; decided before anything is appended (R8, R26, R27)."""
        term = self.term
        if term.has_ended:
            raise NotMasterError(f"the mastership of epoch {self._epoch} has ended", master=None)
        if self._is_draining:
            raise NotYetAvailableError("the master is handing over to another replica")
        # First: replicas on the same disk, or of the same size, are full at the same time, and then
        # too few acknowledge because of that.
        if not self._log.has_room and not is_freeing:
            raise _disk_full("the master's disk is")
        if not is_freeing and not term.can_accept():
            self._refused_count += 1
            raise self._too_few()
        self._refused_count = 0
        unconfirmed, limit = self._log.end - self._log.confirm, term.window.refusal_bytes
        if unconfirmed > limit:
            raise OverloadedError(
                f"{unconfirmed} bytes wait for confirm, and so many as are confirmed within some "
                f"{TARGET_MS} ms, {limit}, may wait; nothing was stored",
                retry_after_ms=OVERLOAD_RETRY_AFTER_MS,
            )

    def has_window(self, unanswered_bytes: int) -> bool:
        """See `LogWriter`."""
        unconfirmed = self._log.end - self._log.confirm
        return self.term.window.has_room(unanswered_bytes, unconfirmed)

    def _too_few(self) -> PacelineError:
        """Why too few members acknowledge in time (R8): it is the disks, or that some are slow, if
        with those there were enough."""
        facts, full = self._machine.facts(), self._members_without_room()
        if full and facts.acknowledging + len(full) >= facts.minimum:
            return _disk_full(f"the disks of replicas {', '.join(map(str, full))} are")
        slow = [replica for replica in facts.others if facts.is_slow(replica)]
        if slow and facts.acknowledging + len(slow) >= facts.minimum:
            return OverloadedError(
                f"replicas {', '.join(map(str, slow))} are behind; nothing was stored",
                retry_after_ms=OVERLOAD_RETRY_AFTER_MS,
            )
        return InSyncReplicasNotEnoughError(
            "too few in-sync replicas acknowledge now; nothing was stored"
        )

    @property
    def waiting_count(self) -> int:
        """Work that this master owes (R6): sends that wait, bytes whose senders have given up, and
        sends it has to refuse because it reaches too few members."""
        waiting = self.term.waiting_count
        if waiting == 0 and self._log.end > self._log.confirm:
            waiting = 1
        return waiting if self.term.can_accept() else waiting + self._refused_count

    def append(self, header: bytes, payload: Buffer) -> PhysicalOffset:
        """Append one stamped batch; written and pushed at the end of this loop turn."""
        try:
            end = self._log.append(header, payload)
        except StorageError as error:
            # The log is poisoned, nothing of this batch was written; but whoever appended before in
            # this turn must hear "unknown", so the whole mastership ends (R1, R22).
            if self._term is not None:  # else it was the epoch's start record: none has begun
                self._fail_soon(error)
            raise
        if not self._is_turn_due and self._term is not None:
            self._is_turn_due = True
            self._loop.call_soon(self._end_turn)
        return end

    def abandon(self, reason: str) -> None:
        self.term.fail(reason)

    def wait_confirmed(
        self, position: PhysicalOffset, callback: Confirmed, *, timeout_ms: int
    ) -> None:
        self.term.wait_confirmed(position, callback, timeout_ms=timeout_ms)

    def wait_held(self, position: PhysicalOffset, callback: Confirmed, *, timeout_ms: int) -> None:
        self.term.wait_held(position, callback, timeout_ms=timeout_ms)

    def read_round(self) -> Awaitable[None]:
        return self.term.read_round()

    # -- the turn ---------------------------------------------------------------------------------

    def _end_turn(self) -> None:
        self._is_turn_due = False
        if self.term.has_ended:
            return
        try:
            written = self._log.write_pending()
        except StorageError as error:
            self.term.fail(f"a write to the log failed: {error.message}")
            return
        self.term.wrote(written)
        self._flusher.poke()

    def _fail_soon(self, error: StorageError) -> None:
        self._loop.call_soon(self.term.fail, f"an append to the log failed: {error.message}")

    def finish_writes(self) -> None:
        """Write what is still buffered: the log is truncated or handed on only after that."""
        if self._log.failure is None:
            self._log.write_pending()

    def drain(self) -> None:
        """Take nothing more; what was appended goes on to be confirmed (R20)."""
        self._is_draining = True

    def resume(self) -> None:
        """Take work again: nobody was asked to replace this master, or it was definitely refused
        (R20)."""
        self._is_draining = False

    async def all_confirmed(self) -> None:
        """Return when everything appended so far is confirmed; OutcomeUnknownError if it ends."""
        done: asyncio.Future[None] = self._loop.create_future()

        def confirmed(error: PacelineError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.wait_confirmed(self.end, confirmed, timeout_ms=DRAIN_TIMEOUT_MS)
        await done

    # -- TermHooks --------------------------------------------------------------------------------

    def confirmed(self, confirm: PhysicalOffset) -> None:
        self._owner.confirm_moved(confirm)

    def opened(self) -> None:
        self._owner.mastership_opened(self)

    def fenced(self, reason: str, *, is_lossy: bool) -> None:
        self._owner.mastership_fenced(self, reason, is_lossy=is_lossy)

    def newest_checkpoint(self) -> tuple[PhysicalOffset, bytes] | None:
        return self._store.newest_checkpoint()


def _disk_full(whose: str) -> DiskFullError:
    return DiskFullError(
        f"{whose} too full to take more; nothing was stored",
        retry_after_ms=DISK_FULL_RETRY_AFTER_MS,
    )
