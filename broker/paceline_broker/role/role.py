"""What this broker is for its group, and every change of that: one task owns it (DESIGN 7).

    STARTING -> REPLICA | MASTER | ACTING_MASTER | FENCED, and back and forth between the last four

machine.py decides what a view asks for; this task carries it out. It adopts an epoch in one order
(R2): the old role is ended with all its connections, the epoch is fsynced, and only then the new
role begins.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.types import MasterEpoch, PhysicalOffset, ReplicaId
from paceline.wire import session as wire
from paceline.wire.cluster import ClusterView, GroupView
from paceline_broker.integrity.repair import LogRepairer
from paceline_broker.integrity.repair_source import RepairSession
from paceline_broker.integrity.repair_wire import RepairHello
from paceline_broker.log.flusher import Flusher
from paceline_broker.ports import Identity, RoleState, no_writer
from paceline_broker.projections.projections import Projections
from paceline_broker.replication.install import Reception
from paceline_broker.replication.replica.client import ReplicationClient
from paceline_broker.role.acting_term import ActingTerm, begin_acting
from paceline_broker.role.context import RoleContext, make_client, make_mastership
from paceline_broker.role.controller_requests import ControllerRequests
from paceline_broker.role.exclusion import Exclusion, WayBack
from paceline_broker.role.handover import MasterHandover
from paceline_broker.role.heartbeat import heartbeat_of
from paceline_broker.role.machine import (
    Begin,
    EpochAdopted,
    GroupChanged,
    Returned,
    RoleEvent,
    RoleFacts,
    RoleMachine,
    RoleReady,
)
from paceline_broker.role.mastership import Mastership
from paceline_broker.role.replica_hooks import RoleReplicaHooks, install
from paceline_broker.storage.confirmed_reader import StoreReader
from paceline_broker.storage.disk_health import DiskPace

log = logging.getLogger("paceline.role")

MEMORY_FLUSH_LINGER_MS = 200
"""RocketMQ's asynchronous flush comes each 500 ms; a power cut of all members costs this much."""


class BrokerRole:
    """The role of one broker process, `Role` to the service. Used on the event loop only."""

    def __init__(self, around: RoleContext) -> None:
        self._around = around
        self._store = around.store
        self._machine = RoleMachine(self.identity.group)
        self.state = RoleState.STARTING
        self._listener = around.listener
        self.disk = DiskPace()  # a master on one that stalls may be replaced (DESIGN 6)
        self.is_stopping = False
        """The process is shutting down: the next role is not prepared."""
        self._mastership: Mastership | None = None
        self.acting: ActingTerm | None = None
        """The appointment in force, while this broker is ACTING_MASTER (R36)."""
        self._client: ReplicationClient | None = None
        self._client_master: ReplicaId | None = None
        self.exclusion = Exclusion(around.store)
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._parting: asyncio.Task[None] | None = None
        """Hands over because the log is damaged."""
        self.requests = ControllerRequests(around.links, group=self.identity.group)
        store = around.store
        self.flusher = Flusher(
            store.disk,
            store.log,
            f"{around.config.data_dir}/log",
            on_flushed=self._flushed,
            on_failed=self._flush_failed,
        )
        self.repairer = LogRepairer(
            self,
            store=store,
            config=around.config,
            secrets=around.secrets,
            dial=around.dial,
            probe=around.probe,
            clock=around.clock,
            random=around.random,
        )
        around.server.serve(RepairHello, partial(RepairSession, self.repairer.source))
        self.handover = MasterHandover(self)
        self.reader = StoreReader(around.store, on_damage=self.repairer.damaged)

    # -- Role, for the service --------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        known = self._store.identity.identity
        return Identity(
            cluster_id=known.cluster_id,
            group=known.group,
            replica_id=known.replica_id,
            incarnation=known.incarnation,
        )

    @property
    def epoch(self) -> MasterEpoch:
        return self._store.identity.epoch

    @property
    def projections(self) -> Projections:
        return self._store.projections

    @property
    def view(self) -> ClusterView | None:
        """The newest one."""
        return self._machine.view

    @property
    def group_view(self) -> GroupView | None:
        """This group in the newest view."""
        return self._machine.group_view

    @property
    def mastership(self) -> Mastership | None:
        return self._mastership

    def writer(self) -> Mastership:
        """The present mastership; NotMasterError names the master's client address elsewhere."""
        if self._mastership is None:
            raise no_writer(self.state, self.identity.group, self.group_view)
        return self._mastership

    def is_healthy(self) -> bool:  # it works, and the disk keeps up
        return self.is_fit() and not self.disk.is_stalled

    def is_fit(self) -> bool:
        """Whether the log works, however slow the disk is; a failed fsync is for ever (R22)."""
        is_running = self.exclusion.reason is None
        return is_running and self._store.log.is_whole and self._store.log.has_room  # R24

    def status(self) -> dict[str, Any]:
        """JSON values for `/v1/status`."""
        known, mastership, client = self.identity, self._mastership, self._client
        return {
            "cluster_id": known.cluster_id,
            "group": known.group,
            "replica_id": known.replica_id,
            "incarnation": known.incarnation,
            "role": self.state.value,
            "epoch": self.epoch,
            "is_open": mastership is not None and mastership.is_open,
            "is_healthy": self.is_healthy(),
            "is_fit": self.is_fit(),
            "view_version": 0 if self.view is None else self.view.version,
            **self._store.positions(),
            "replication": None if mastership is None else mastership.status(),
            "following": None if client is None else client.status(),
            "is_connected": client is not None and client.is_connected,
            "acting_since_unix_ms": None if self.acting is None else self.acting.since_unix_ms,
            "stopped": self.exclusion.reason,
            "care": self.repairer.status(),
        }

    def heartbeat(self) -> wire.Heartbeat | None:
        """What the controllers hear; None until this store is registered."""
        return heartbeat_of(self, self._store.log)

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        self.flusher.start()
        self._task = spawn(self._run(), name="role")
        self.repairer.start()

    async def stop(self) -> None:
        """End whatever this broker is; the log stays open for its owner."""
        await cancel_and_wait(self._task)
        await cancel_and_wait(self._parting)
        await self.repairer.stop()
        await self.handover.stop()
        await self._leave("the broker stops")
        await self.requests.stop()
        await self.flusher.stop()

    async def hand_over(self) -> None:
        """Before a stop, or with a damaged log: see `MasterHandover.before_stop` (R20)."""
        await self.handover.before_stop()

    def tell_health(self) -> None:
        """The disk stalled or recovered: the controllers hear it at once."""
        self._around.links.beat()

    def tell_floor(self) -> None:
        """Each second: the controllers hear how far confirm is (R16)."""
        if self._mastership is not None and self._mastership.is_open:
            self.requests.tell_floor(self._mastership)

    def registered(self) -> None:
        """The controllers have this start on record (R9): from now on views give it its role."""
        if self._machine.registered(self.identity.cluster_id):
            self._view_taken()
        self._arrived.set()

    def view_arrived(self, view: ClusterView) -> None:
        """A controller pushed a view; older ones and those of another cluster are ignored (R38)."""
        if self._machine.take(view, self.identity.cluster_id):
            self._view_taken()

    def _view_taken(self) -> None:
        assert self.view is not None
        self._listener.view_changed(self.view)
        self._arrived.set()

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            group = self.group_view
            if group is not None and self._machine.is_registered:
                try:
                    await self._take(group)
                except (StorageError, CorruptLogError) as error:
                    await self._give_up(error)

    async def _give_up(self, error: StorageError) -> None:
        """The store cannot take the role: leave it, stay out, let the operator see (R22)."""
        if not self.repairer.is_damage(error):
            log.error("role_failed", extra={"fault": error.message})
            self.exclusion.fail(error)
        await self._leave(error.message)
        self._become(RoleState.FENCED)

    # -- taking a view ----------------------------------------------------------------------------

    async def _take(self, group: GroupView) -> None:
        event: RoleEvent | None = GroupChanged(group, self._facts(group))
        while event is not None:
            event = await self._carry_out(group, self._machine.step(event))

    def _facts(self, group: GroupView) -> RoleFacts:
        known = self._store.identity.identity
        return RoleFacts(
            replica_id=known.replica_id,
            incarnation=known.incarnation,
            store_id=known.store_id,
            epoch=self.epoch,
            state=self.state,
            is_leading=self._mastership is not None,
            following=self._client_master,
            is_excluded=self.exclusion.reason is not None,
            may_return=self.exclusion.way_back(group) is not None,
            is_damaged=self._store.log.damage is not None,
            is_stopping=self.is_stopping,
        )

    async def _carry_out(self, group: GroupView, ready: RoleReady) -> RoleEvent | None:
        """Do what the machine said; returns what it is to hear next. Raises StorageError."""
        if ready.leave is not None:
            await self._leave(ready.leave)
        if ready.fatal is not None:
            self._listener.refuse(ready.fatal)
        if ready.adopt is not None:
            await self._store.identity.adopt_epoch(ready.adopt, is_disk_slow=self.disk.is_slow)
            self._around.node.epoch = ready.adopt
            return EpochAdopted(group, self._facts(group))
        if ready.returns:
            self._end_exclusion()
            return Returned(group, self._facts(group))
        if ready.is_committed and self._mastership is not None:
            self._mastership.term.committed(group)
        if ready.begin is not None:
            self._begin(ready.begin, group)
        if ready.is_fenced:
            self._become(RoleState.FENCED)
        if ready.needs_repair:
            self.repairer.wake()
        if ready.is_present:
            self._settle_suspicion()
        return None

    def _begin(self, role: Begin, group: GroupView) -> None:
        match role:
            case Begin.MASTER:
                self._begin_mastership(group)
            case Begin.ACTING_MASTER:
                self._begin_acting(group)
            case Begin.REPLICA:
                self._follow(group)

    def _begin_mastership(self, group: GroupView) -> None:
        mastership = make_mastership(
            self._around,
            group,
            owner=self,
            propose=self.requests.propose,
            probe=self.repairer.probe,
            flusher=self.flusher,
        )
        self._mastership = mastership
        self._pace_flushes(group)
        self._around.server.begin_term(mastership.term)
        self._become(RoleState.MASTER)
        mastership.term.begin()
        self.flusher.poke()

    def _begin_acting(self, group: GroupView) -> None:
        """Serve reads up to the own confirm: a durable mark of it counts, whoever told it (R36)."""
        self.acting = begin_acting(self._around, group, was_readable=self.reader.is_readable)
        self.reader.is_readable = True
        self._become(RoleState.ACTING_MASTER)

    def _end_exclusion(self) -> None:
        """See `Exclusion`: an excluded store that nobody counts on follows again."""
        way = self.exclusion.way_back(self.group_view)  # the view may have changed meanwhile
        if way is WayBack.BEGIN_ANEW:
            with self._unread():
                self._store.set_aside()
            self.reader.is_readable = False
            self._listener.role_changed()
        if way is not None:
            self.exclusion.end()

    def _follow(self, group: GroupView) -> None:
        """Replicate from the group's master, in the adopted epoch."""
        self._client = make_client(self._around, group, hooks=RoleReplicaHooks(self, self._around))
        self._client_master = group.master
        self._pace_flushes(group)
        self._client.start()
        self._become(RoleState.REPLICA)

    def _pace_flushes(self, group: GroupView) -> None:
        """Whoever waits for the disk is served at once; with memory durability nobody waits."""
        is_fsync = group.settings.durability == "fsync"
        self.flusher.linger_ms = 0 if is_fsync else MEMORY_FLUSH_LINGER_MS

    async def _leave(self, reason: str) -> None:
        """End the present role, with every connection of it (R2)."""
        mastership, self._mastership = self._mastership, None
        client, self._client, self._client_master = self._client, None, None
        acting, self.acting = self.acting, None
        if acting is not None:
            self.reader.is_readable = acting.was_readable
            await acting.end(reason)
        if client is not None:
            await client.stop()
        if mastership is not None:
            self._end_mastership(mastership, reason)

    def _end_mastership(self, mastership: Mastership, reason: str) -> None:
        # First of all: whatever fails below, this term answers nobody any more (R2).
        self._around.server.end_term(reason)
        self._store.forget_pending_checkpoint()
        mastership.finish_writes()
        if self.is_stopping or self._store.log.damage is not None:
            self.reader.is_readable = False  # nothing can be made anew before the log is whole
        elif self._store.log.failure is None:
            with self._unread():
                self._store.reload_projections()  # what was not confirmed is not kept (R28)
        log.info("mastership_ended", extra={"reason": reason})

    @contextmanager
    def _unread(self) -> Iterator[None]:
        """State is made anew in it. If that fails there is only a part, which nobody may read."""
        was_readable, self.reader.is_readable = self.reader.is_readable, False
        yield
        self.reader.is_readable = was_readable

    def _become(self, state: RoleState) -> None:
        if state is not self.state:
            log.info("role_changed", extra={"role": state.value})
        self.state = state
        self._around.links.beat()
        self._listener.role_changed()

    def _settle_suspicion(self) -> None:
        """A member is settled by the start of the present epoch, a master by its opening (R23)."""
        if self.group_view is not None and (self._mastership is None or self._mastership.is_open):
            self._store.settle_suspicion(self.group_view)

    # -- MastershipOwner --------------------------------------------------------------------------

    def confirm_moved(self, confirm: PhysicalOffset) -> None:
        if self._mastership is not None and self._mastership.is_open:
            self.reader.is_readable = True
        self.reader.confirm_moved(confirm)

    def mastership_opened(self, mastership: Mastership) -> None:
        self.reader.is_readable = True
        log.info("mastership_opened", extra={"confirm": mastership.confirm})
        self.requests.open_epoch(mastership)
        self._around.links.beat()
        self._listener.role_changed()

    def mastership_fenced(self, mastership: Mastership, reason: str, *, is_lossy: bool) -> None:
        """The term ended itself: a failed write, a higher epoch, or LOSSY (R1, R5, R16, R22)."""
        if self._mastership is not mastership:
            return
        self._mastership = None
        if is_lossy:
            self.exclusion.lossy(reason)
        try:
            self._end_mastership(mastership, reason)
        except StorageError as error:
            log.error("role_failed", extra={"fault": error.message})
            if not self.repairer.is_damage(error):
                self.exclusion.fail(error)
        self._become(RoleState.FENCED)
        self._arrived.set()  # the newest view may already name the next role

    # -- RepairedRole -----------------------------------------------------------------------------

    @property
    def is_leading(self) -> bool:
        return self._mastership is not None

    @property
    def is_idle(self) -> bool:
        is_nobody = self._mastership is None and self._client is None
        if not is_nobody or not self._machine.is_registered:
            return False
        return not self._store.identity.is_adopting and self.flusher.is_idle

    def log_damaged(self) -> None:
        """No acknowledgement from now on; a master has another one elected first (R24)."""
        if self._client is not None:
            self._client.halt()
        mastership = self._mastership
        if mastership is not None and (self._parting is None or self._parting.done()):
            self._parting = spawn(self._part(mastership), name="hand-over-damaged")
        self._around.links.beat()
        self._arrived.set()

    async def _part(self, mastership: Mastership) -> None:
        """Have a successor elected; lead no more in any case (R24)."""
        await self.hand_over()
        if self._mastership is mastership:
            mastership.term.fail("the log is damaged")

    def log_beyond_repair(self, reason: str) -> None:
        """Nobody has the damaged bytes any more: everything is fetched anew (R14, R26)."""
        if self.exclusion.reason is None:
            log.error("log_beyond_repair", extra={"fault": reason})
        self.exclusion.beyond_repair(reason)
        self._arrived.set()

    def log_reopened(self) -> None:
        """The log is whole again: the state is made anew, as after a start."""
        self.exclusion.mended()
        with self._unread():
            self._store.reload_projections()
        self.reader.is_readable = False  # until its master has told it confirm (R3)
        self._around.links.beat()
        self._listener.role_changed()
        self._arrived.set()

    # -- the flusher ------------------------------------------------------------------------------

    def _flushed(self, position: PhysicalOffset) -> None:
        if self._mastership is not None:
            self._mastership.term.flushed(position)
        elif self._client is not None:
            self._client.flushed(position)
        if self._store.log.checkpointed.is_suspect:
            try:
                self._settle_suspicion()
            except StorageError as error:
                self._flush_failed(error)

    def _flush_failed(self, error: StorageError) -> None:
        if self._mastership is not None:
            self._mastership.term.fail(f"an fsync failed: {error.message}")
        else:
            self.replica_failed(error)

    # -- the replica's hooks (through _Following) -------------------------------------------------

    def replica_confirmed(self, confirm: PhysicalOffset) -> None:
        """Confirm moved on this replica: fold, then wake readers."""
        try:
            self._store.fold_to(confirm)
        except CorruptLogError as error:
            if not self.repairer.is_damage(error):
                self.replica_failed(error)
            return
        self.reader.is_readable = True
        self.reader.confirm_moved(confirm)

    def replica_truncating(self, truncate_to: PhysicalOffset) -> None:
        """The log is about to be cut: other projections may stand there after (R21)."""
        with self._unread():
            is_changed = self._store.prepare_truncation(truncate_to)
        if is_changed:
            self._listener.role_changed()

    def replica_installing(self, reception: Reception, start: PhysicalOffset) -> None:
        """The master's checkpoint becomes the state (R14); readable again once confirm is told."""
        with self._unread():
            install(self._store, reception, start)
        self.reader.is_readable = False
        self._listener.role_changed()

    def replica_stopped(self, reason: str) -> None:
        self.exclusion.parted(reason)
        self._around.links.beat()
        self._arrived.set()  # a set without it may be committed already

    def replica_failed(self, error: StorageError) -> None:
        log.error("replica_failed", extra={"fault": error.message})
        self.exclusion.fail(error)
        if self._client is not None:
            self._client.halt()
        self._around.links.beat()
        self._arrived.set()
