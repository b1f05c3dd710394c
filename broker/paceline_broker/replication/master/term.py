"""The shell around one mastership: connections, pushes, waiters and timers of `MasterReplication`.

It carries out what the machine decides, in the order of `MasterReady`, and feeds it what happens.
The role makes one per epoch and tells it of every write, flush, view and proposal outcome; the
`ReplicationServer` hands it proven connections. All calls come on the event loop; the role's task
owns every field.

Pushes: what one loop turn wrote leaves in one write per replica, straight from the buffers of the
append. A replica that is not at the end of the log, or whose window is full, catches up from the
log instead, one bounded frame per callback. A confirm or round that no data frame has carried
leaves in an empty frame at the end of the turn.
"""

import asyncio
import logging
from collections import deque

from msgspec.structs import replace

from paceline.errors import (
    DeadlineError,
    FlushDiskTimeoutError,
    FlushReplicaTimeoutError,
    NotMasterError,
    OutcomeUnknownError,
)
from paceline.platform.ports import Buffer, Clock
from paceline.platform.runtime import spawn
from paceline.types import GroupName, Incarnation, MasterEpoch, PhysicalOffset, ReplicaId, SetEpoch
from paceline.wire.cluster import GroupView
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.tickets import Written
from paceline_broker.replication.frames import Acknowledgement, encode_frame_header
from paceline_broker.replication.handshake import ConnectionId, Install, Introduction, Welcome
from paceline_broker.replication.master.acknowledgement import AcknowledgementTracker
from paceline_broker.replication.master.catch_up import CatchUp, Push
from paceline_broker.replication.master.confirm_waits import ConfirmWaits
from paceline_broker.replication.master.events import (
    NOTHING,
    Appended,
    Failed,
    Flushed,
    GroupCommitted,
    MasterEvent,
    MasterReady,
    MemberRefused,
    ProposalRefused,
    ProposalUnknown,
    Ran,
    ReplicaAcked,
    ReplicaIntroduced,
    ReplicaLeft,
    RoundRequested,
)
from paceline_broker.replication.master.master import MasterReplication
from paceline_broker.replication.master.ports import (
    Confirmed,
    Probe,
    Propose,
    ReplicaLink,
    TermHooks,
    TermSettings,
)
from paceline_broker.replication.master.progress import Progress
from paceline_broker.replication.master.send_window import SendWindow
from paceline_broker.replication.master.waits import waits_of
from paceline_broker.replication.messages import Refused

__all__ = ["Confirmed", "MasterTerm", "TermHooks", "TermSettings"]

log = logging.getLogger("paceline.replication")


class MasterTerm:
    """See the module. Made when the epoch-start record is appended and written; `begin` first."""

    def __init__(
        self,
        machine: MasterReplication,
        commit_log: CommitLog,
        *,
        cluster_id: str,
        group: GroupName,
        hooks: TermHooks,
        propose: Propose,
        probe: Probe,
        clock: Clock,
        settings: TermSettings,
        unconfirmed_bytes_max: int,
        counts_flushed: bool,
        answers_early: bool,
    ) -> None:
        self.cluster_id = cluster_id
        self.group = group
        self._machine = machine
        self._log = commit_log
        self._hooks = hooks
        self._propose = propose
        self._is_gone = probe
        self._clock = clock
        self._settings = settings
        self._counts_flushed = counts_flushed
        self._pushes: dict[ConnectionId, Push] = {}
        self._tracker: AcknowledgementTracker[Confirmed] = AcknowledgementTracker(
            confirm=machine.confirm
        )
        self._early: AcknowledgementTracker[Confirmed] | None = None
        """Who is answered when n members hold it; made if the group has asked for that (R37)."""
        if answers_early:
            self._early = AcknowledgementTracker(confirm=machine.confirm)
        self._rounds: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_ms = clock.monotonic_ms()
        self._heartbeat_ms = self._ticked_ms
        self._is_push_due = False
        self._has_ended = False
        self._catch_up = CatchUp(
            commit_log,
            clock,
            settings,
            is_current=lambda push: self._pushes.get(push.link.connection) is push,
            write_frame=self._write_frame,
            fail=self.fail,
        )
        self._progress = Progress(machine.facts())
        self._waits = ConfirmWaits()
        self.window = SendWindow(now_ms=self._ticked_ms, bytes_max=unconfirmed_bytes_max)

    # -- queries

    @property
    def epoch(self) -> MasterEpoch:
        return self._machine.epoch

    @property
    def replica_id(self) -> ReplicaId:
        return self._machine.replica_id

    @property
    def incarnation(self) -> Incarnation:
        return self._machine.incarnation

    @property
    def confirm(self) -> PhysicalOffset:
        return self._machine.confirm

    @property
    def is_open(self) -> bool:
        return self._machine.is_open

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def can_accept(self) -> bool:
        """R8; see `MasterReplication.can_accept`."""
        return self._machine.can_accept()

    @property
    def sync_state_set(self) -> frozenset[ReplicaId]:
        """As committed last."""
        return self._machine.sync_state_set

    @property
    def waiting_count(self) -> int:
        """What waits for confirm (R6), answered early (R37) or not."""
        if self._early is not None and self._log.end > self.confirm:
            return max(1, self._tracker.waiting_count + self._early.waiting_count)
        return self._tracker.waiting_count

    def status(self, *, is_draining: bool = False) -> dict[str, object]:
        """JSON values for `/v1/status`."""
        facts = self._machine.facts()
        sent = {push.replica: push.sent for push in self._pushes.values()}
        return {
            "epoch": self.epoch,
            "confirm": self.confirm,
            "is_open": self.is_open,
            "is_draining": is_draining,
            "sync_state_set": sorted(facts.sync_state_set),
            "set_epoch": facts.set_epoch,
            "can_accept": self.can_accept(),
            "waiting": self.waiting_count,
            "send_window_bytes": self.window.size_bytes,
            "connections": len(self._pushes),
            "waits": waits_of(facts, is_draining=is_draining),
            "replicas": self._progress.rows(facts, self._clock.monotonic_ms(), sent=sent),
        }

    # -- what the role tells

    def begin(self) -> None:
        """Start the clock; the log's present positions count from here."""
        self._step(Appended(self._log.written))
        self._step(Flushed(self._log.flushed))
        self._timer = self._loop.call_later(self._settings.tick_ms / 1000, self._tick)

    def wrote(self, written: list[Written]) -> None:
        """What `CommitLog.write_pending` returned: push it, in this very turn."""
        for position, buffers in written:
            self._push(position, buffers)
        self._waits.wrote(self._log.written, self._clock.monotonic_ms())
        self.window.wrote(self._log.written - self._log.confirm)
        self._step(Appended(self._log.written))

    def flushed(self, position: PhysicalOffset) -> None:
        self._step(Flushed(position))

    def committed(self, view: GroupView) -> None:
        """A newer view of the group; in order of version (R38)."""
        self._step(GroupCommitted(view))

    def proposal_refused(self, sequence: int, *, set_epoch: SetEpoch) -> None:
        """A definite refusal; `set_epoch` is the group's when it was refused, 0 if not told."""
        self._step(ProposalRefused(sequence, set_epoch))

    def proposal_unknown(self, sequence: int) -> None:
        """No definite answer; `propose` comes again within a tick (R7)."""
        self._step(ProposalUnknown(sequence))

    def fail(self, reason: str) -> None:
        """A write or fsync failed, or the role gives mastership up: fence (R1, R22)."""
        self._step(Failed(reason))

    def wait_confirmed(
        self, position: PhysicalOffset, callback: Confirmed, *, timeout_ms: int
    ) -> None:
        """Call back once: None when confirm >= `position` (at once if it is), else why unknown."""
        if position <= self._machine.confirm:
            callback(None)
        elif self._has_ended:
            callback(OutcomeUnknownError(f"the mastership of epoch {self.epoch} has ended"))
        else:
            deadline_ms = self._clock.monotonic_ms() + timeout_ms
            self._tracker.add(position, callback, deadline_ms=deadline_ms)

    def wait_held(self, position: PhysicalOffset, callback: Confirmed, *, timeout_ms: int) -> None:
        """R37: as `wait_confirmed`, but None may come before confirm, when n members hold it.

        For a batch appended in this very step only, in a term that answers early.
        """
        assert self._early is not None
        assert not self._has_ended
        self._early.add(position, callback, deadline_ms=self._clock.monotonic_ms() + timeout_ms)

    async def read_round(self) -> None:
        """Wait for a replication round begun after this call (R4).

        Raises NotMasterError when the mastership ends first, DeadlineError after
        `read_round_timeout_ms`.
        """
        if self._has_ended:
            raise NotMasterError(f"the mastership of epoch {self.epoch} has ended", master=None)
        future: asyncio.Future[None] = self._loop.create_future()
        deadline_ms = self._clock.monotonic_ms() + self._settings.read_round_timeout_ms
        # The request takes the next number; if it is confirmed at once, the future is resolved.
        self._request_round(future, deadline_ms)
        await future

    def end(self, reason: str) -> None:
        """Stop for good, idempotent: close every connection, answer every waiter "unknown"."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._machine.fenced is None:
            self._machine.step(Failed(reason))
        for push in list(self._pushes.values()):
            push.link.close()
        self._pushes.clear()
        for callback in [
            *(self._early.fail_all() if self._early else ()),
            *self._tracker.fail_all(),
        ]:
            callback(OutcomeUnknownError(f"the mastership of epoch {self.epoch} ended: {reason}"))
        for _, _, future in self._rounds:
            if not future.done():
                future.set_exception(NotMasterError(f"the mastership ended: {reason}", master=None))
        self._rounds.clear()

    # -- what the server tells

    def introduce(self, link: ReplicaLink, introduction: Introduction) -> None:
        """A proven replica described its log; it is welcomed or refused."""
        if self._has_ended:
            link.refuse(Refused(code="NOT_MASTER", detail="this mastership has ended"))
            return
        now_ms = self._clock.monotonic_ms()
        self._pushes[link.connection] = Push(link, introduction.replica_id, now_ms)
        self._step(
            ReplicaIntroduced(link.connection, introduction, self._log.start, self._log.epochs)
        )

    def acknowledged(self, connection: ConnectionId, ack: Acknowledgement) -> None:
        push = self._pushes.get(connection)
        if push is None:
            return
        push.heard_ms = self._clock.monotonic_ms()
        push.acked = ack.appended
        epoch, appended, flushed, round_number, is_ready, has_room = ack
        self._step(
            ReplicaAcked(connection, epoch, appended, flushed, round_number, is_ready, has_room)
        )
        if push.is_joined and not push.is_live and not push.is_pumping:
            self._catch_up.pump(push)

    def lost(self, connection: ConnectionId) -> None:
        """A connection ended."""
        push = self._pushes.pop(connection, None)
        if push is not None:
            log.info("replica_left", extra={"replica": push.replica, "epoch": self.epoch})
            self._step(ReplicaLeft(connection))

    # -- carrying out

    def _step(self, event: MasterEvent) -> None:
        ready = self._machine.step(event)
        if ready is not NOTHING:
            self._carry_out(ready)

    def _carry_out(self, ready: MasterReady) -> None:
        if ready.fence is not None:
            log.warning("master_fenced", extra={"epoch": self.epoch, "reason": ready.fence})
            self.end(ready.fence)
            self._hooks.fenced(ready.fence, is_lossy=ready.is_lossy)
            return
        if ready.confirm is not None:
            self._confirm_moved(ready.confirm)
        if ready.held is not None:
            self._answer_early(ready.held)
        if ready.opened:
            self._hooks.opened()
        if ready.confirmed_round is not None:
            self._round_confirmed(ready.confirmed_round)
        for connection in ready.close:
            self._close(connection)
        if ready.welcome is not None:
            self._welcome(*ready.welcome, installs=ready.installs)
        if ready.refuse is not None:
            self._pushes.pop(ready.refuse[0]).link.refuse(ready.refuse[1])
        if ready.joined is not None:
            self._joined(self._pushes[ready.joined])
        if ready.propose is not None:
            self._propose(ready.propose)
        for replica, incarnation in ready.probe:
            spawn(self._probe(replica, incarnation), name=f"probe-replica-{replica}")

    def _welcome(self, connection: ConnectionId, welcome: Welcome, *, installs: bool) -> None:
        push = self._pushes[connection]
        if not installs:
            push.link.send_welcome(welcome, None)
            return
        found = self._hooks.newest_checkpoint()
        if found is None:
            detail = f"the log here begins at {self._log.start} and no checkpoint is intact"
            self._pushes.pop(connection).link.refuse(Refused(code="NO_CHECKPOINT", detail=detail))
            self._step(ReplicaLeft(connection))
            return
        push.is_installing = True
        install = Install(position=found[0], confirm=self.confirm, size_bytes=len(found[1]))
        log.info("checkpoint_sent", extra={"replica": push.replica, "position": found[0]})
        push.link.send_welcome(replace(welcome, install=install), found[1])

    def _confirm_moved(self, confirm: PhysicalOffset) -> None:
        self._log.set_confirm(confirm)
        now_ms = self._clock.monotonic_ms()
        waits_ms = self._waits.confirmed(confirm, now_ms)
        self._catch_up.pace.waited(waits_ms, now_ms)
        self.window.waited(waits_ms, now_ms)
        self._hooks.confirmed(confirm)
        self._answer_early(confirm)
        for callback in self._tracker.advance(confirm):
            callback(None)
        self._push_soon()

    def _answer_early(self, held: PhysicalOffset) -> None:
        if self._early is not None and held > self._early.confirm:
            for callback in self._early.advance(held):
                callback(None)

    def _close(self, connection: ConnectionId) -> None:
        push = self._pushes.pop(connection, None)
        if push is not None:
            log.info("replica_closed", extra={"replica": push.replica, "epoch": self.epoch})
            push.link.close()

    def _joined(self, push: Push) -> None:
        push.is_joined, push.is_installing = True, False
        push.sent = push.acked
        log.info(
            "replica_joined",
            extra={"replica": push.replica, "epoch": self.epoch, "position": push.sent},
        )
        self._write_frame(push, [], 0)
        self._catch_up.pump(push)

    async def _probe(self, replica: ReplicaId, incarnation: Incarnation) -> None:
        if await self._is_gone(replica, incarnation):
            self._step(MemberRefused(replica, incarnation))

    # -- pushing

    def _push(self, position: PhysicalOffset, buffers: list[Buffer]) -> None:
        size = sum(map(len, buffers))
        live = [push for push in self._pushes.values() if push.is_live]
        if not live:
            return
        fits = size <= self._settings.live_frame_bytes_max
        for push in live:
            in_window = push.sent - push.acked <= self._settings.window_bytes
            if fits and in_window and push.sent == position:
                self._write_frame(push, buffers, size)
            else:
                push.is_live = False
                self._catch_up.pump_soon(push)

    def _write_frame(self, push: Push, buffers: list[Buffer], size: int) -> None:
        push.confirm, push.round = self._machine.confirm, self._machine.next_round()
        header = encode_frame_header(
            body_bytes=size,
            epoch=self.epoch,
            position=push.sent,
            confirm=self._machine.confirm,
            round=push.round,
        )
        push.sent = PhysicalOffset(push.sent + size)
        push.link.write([header, *buffers])

    def _push_soon(self) -> None:
        if not self._is_push_due and self._pushes:
            self._is_push_due = True
            self._loop.call_soon(self._push_news)

    def _push_news(self) -> None:
        """Tell confirm and round to whoever no data frame has told in this turn."""
        self._is_push_due = False
        for push in list(self._pushes.values()):
            is_told = (
                push.confirm >= self._machine.confirm and push.round >= self._machine.round_wanted
            )
            if push.is_joined and not is_told:
                self._write_frame(push, [], 0)

    # -- rounds and time

    def _request_round(self, future: asyncio.Future[None], deadline_ms: int) -> None:
        ready = self._machine.step(RoundRequested())
        self._rounds.append((self._machine.round_wanted, deadline_ms, future))
        self._carry_out(ready)
        self._push_soon()

    def _round_confirmed(self, number: int) -> None:
        while self._rounds and self._rounds[0][0] <= number:
            _, _, future = self._rounds.popleft()
            if not future.done():
                future.set_result(None)

    def _tick(self) -> None:
        if self._has_ended:
            return
        self._timer = self._loop.call_later(self._settings.tick_ms / 1000, self._tick)
        now_ms = self._clock.monotonic_ms()
        elapsed_ms, self._ticked_ms = now_ms - self._ticked_ms, now_ms
        self._step(Ran(elapsed_ms))
        is_behind = any(push.is_far for push in self._pushes.values())
        longest_ms = self._waits.longest_ms(now_ms)
        self._catch_up.pace.tick(
            now_ms, self._log.written, elapsed_ms, longest_ms=longest_ms, is_behind=is_behind
        )
        self.window.tick(longest_ms, now_ms)
        self._progress.sample(self._machine.facts(), now_ms)
        if now_ms - self._heartbeat_ms >= self._settings.heartbeat_ms:
            self._heartbeat_ms = now_ms
            self._step(RoundRequested())
            self._push_soon()
        self._expire(now_ms)
        self._close_silent(now_ms - self._settings.replica_idle_ms_max)

    def _expire(self, now_ms: int) -> None:
        early = self._early.expire(now_ms) if self._early is not None else ()
        for position, callback in (*early, *self._tracker.expire(now_ms)):
            if self._counts_flushed and position > self._log.flushed:
                callback(FlushDiskTimeoutError(f"{position} is not yet on the master's disk"))
            else:
                callback(FlushReplicaTimeoutError(f"{position} is not yet confirmed"))
        while self._rounds and self._rounds[0][1] <= now_ms:
            _, _, future = self._rounds.popleft()
            if not future.done():
                future.set_exception(DeadlineError("no round of all members in time"))

    def _close_silent(self, limit_ms: int) -> None:
        for push in list(self._pushes.values()):
            if push.heard_ms < limit_ms and not push.is_installing:
                push.link.close()  # `lost` follows
