"""One broker: taking views, leaving a role, following a master, and the flusher's steps.

As `role.py`, `client.py` and `flusher.py` do it; `leading.py` and `process.py` have the rest, and
the service in front is the product's own.
"""

from typing import Any

from paceline.errors import CorruptLogError, NotMasterError, PacelineError, StorageError
from paceline.platform.runtime import spawn
from paceline.types import MasterEpoch, PhysicalOffset, ReplicaId
from paceline.wire.cluster import ClusterView, GroupView
from paceline_broker.acting.offsets_file import OffsetsFile
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.ports import Identity, Role, RoleState
from paceline_broker.projections.projections import Projections
from paceline_broker.replication.frames import FRAME_HEADER_BYTES, parse_frame_header
from paceline_broker.replication.handshake import Introduction, Welcome
from paceline_broker.replication.messages import Refused
from paceline_broker.replication.replica.replica import (
    FrameReceived,
    ReplicaAppended,
    ReplicaFlushed,
    ReplicaReady,
    ReplicaReplication,
    Truncated,
    Welcomed,
)
from paceline_broker.role.exclusion import WayBack
from paceline_broker.role.machine import (
    Begin,
    EpochAdopted,
    GroupChanged,
    Returned,
    RoleEvent,
    RoleFacts,
    RoleReady,
)
from paceline_broker.role.mastership import Mastership
from paceline_broker.service.service import Service
from paceline_broker.service.settings import ServiceSettings
from paceline_broker.storage.confirmed_reader import StoreReader
from paceline_chaos.protocol_sim.controllers import GROUP
from paceline_chaos.protocol_sim.handing import Handing
from paceline_chaos.protocol_sim.leading import Leading
from paceline_chaos.protocol_sim.network import Closed, Connection, Message, WelcomeWith
from paceline_chaos.protocol_sim.process import DATA
from paceline_chaos.protocol_sim.retaining import WalkedFlusher, make_cleaner
from paceline_chaos.protocol_sim.turns import finish_now

MASTER_IDLE_US_MAX = 2_000_000
"""As `ReplicaSettings.master_idle_ms_max`."""


def damaged(position: PhysicalOffset, reason: str) -> None:
    """No disk of this bed changes what was written."""
    raise AssertionError((position, reason))


class NodeRole(Role):
    """What the service sees of a node."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    @property
    def identity(self) -> Identity:
        known = self._node.identity.identity
        return Identity(
            cluster_id=known.cluster_id,
            group=known.group,
            replica_id=known.replica_id,
            incarnation=known.incarnation,
        )

    @property
    def state(self) -> RoleState:
        return self._node.state

    @property
    def acting(self) -> None:
        """Never: this bed is about the log, to which an acting master takes nothing (R36)."""
        return None

    @property
    def epoch(self) -> MasterEpoch:
        return self._node.identity.epoch

    @property
    def projections(self) -> Projections:
        return self._node.store.projections

    @property
    def reader(self) -> StoreReader:
        return self._node.reader

    def writer(self) -> Mastership:
        mastership = self._node.mastership
        if mastership is None:
            raise NotMasterError(f"{self._node.name} is {self._node.state.value}", master=None)
        return mastership

    def is_fit(self) -> bool:
        return self._node.log.failure is None

    def status(self) -> dict[str, Any]:
        return {}


class Node(Leading):
    """One machine with one broker process."""

    def clear(self) -> None:
        super().clear()
        self.client: ReplicaReplication | None = None
        self.connection: Connection[Node] | None = None
        self.has_joined = False
        self.heard_us = 0
        self.leader: ReplicaId | None = None

    def begin_service(self) -> None:
        self.reader = StoreReader(self.store, on_damage=damaged)
        self.flusher = WalkedFlusher(self, f"{DATA}/log")
        role = NodeRole(self)
        self.service = Service(
            role=role,
            group=GROUP,
            clock=self.clock,
            settings=ServiceSettings(lock_lease_ms=self.world.lease_ms),
            kept=OffsetsFile(self.disk, DATA),
            trust=lambda: ClockTrust.UNKNOWN,  # no duty fires here
        )
        self.cleaner = make_cleaner(self, role, self.flusher)
        self.handing = Handing(self)

    def role_changed(self) -> None:
        self.service.role_changed()

    @property
    def state(self) -> RoleState:
        if self.mastership is not None:
            return RoleState.MASTER
        return RoleState.FENCED if self.leader is None else RoleState.REPLICA

    # -- the role

    def view_arrived(self, view: ClusterView) -> None:
        if self.machine.take(view, self.identity.identity.cluster_id):
            self.view_taken()

    def view_taken(self) -> None:
        assert self.machine.view is not None
        self.service.view_changed(self.machine.view)
        self.take_role()

    def take_role(self) -> None:
        """The role that the newest view gives; see machine.py."""
        group = self.machine.group_view
        if group is None or self.is_failed or not self.machine.is_registered:
            return
        event: RoleEvent | None = GroupChanged(group, self.facts(group))
        while event is not None:
            event = self._carry_out(group, self.machine.step(event))

    def facts(self, group: GroupView) -> RoleFacts:
        return RoleFacts(
            replica_id=self.replica_id,
            incarnation=self.incarnation,
            store_id=self.identity.identity.store_id,
            epoch=self.identity.epoch,
            state=self.state,
            is_leading=self.mastership is not None,
            following=self.leader,
            is_excluded=self.exclusion.reason is not None,
            may_return=self.exclusion.way_back(group) is not None,
            is_damaged=self.log.damage is not None,
            is_stopping=False,
        )

    def _carry_out(self, group: GroupView, ready: RoleReady) -> RoleEvent | None:
        """As `BrokerRole`, without tasks, acting masters and repairs."""
        if ready.leave is not None:
            self.leave(ready.leave)
        if ready.fatal is not None:
            self.world.note(f"{self.name} ends: {ready.fatal}")
            self.world.restart(self.name)
            return None
        if ready.adopt is not None:
            finish_now(self.identity.adopt_epoch(ready.adopt))  # R2
            self.world.judge.adopted(self.name, ready.adopt)
            return EpochAdopted(group, self.facts(group))
        if ready.returns:
            self._end_exclusion(group)
            return Returned(group, self.facts(group))
        if ready.is_committed and self.mastership is not None:
            self.mastership.term.committed(group)
        match ready.begin:
            case Begin.MASTER:
                self.lead(group)
            case Begin.REPLICA:
                self.leader = group.master
            case Begin.ACTING_MASTER:
                raise AssertionError("this bed appoints no acting masters")
            case None:
                pass
        if ready.is_present:
            self.settle_suspicion()
        return None

    def _end_exclusion(self, group: GroupView) -> None:
        way = self.exclusion.way_back(group)
        self.world.note(f"{self.name} comes back: {way}")
        if way is WayBack.BEGIN_ANEW:
            self.store.set_aside()
            self.reader.is_readable = False
            self.role_changed()
        self.exclusion.end()

    def settle_suspicion(self) -> None:
        """As `BrokerRole._settle_suspicion` (R23)."""
        group, log = self.machine.group_view, self.log
        if not log.checkpointed.is_suspect or group is None or self.is_failed:
            return
        epoch = self.identity.epoch
        is_present = group.master_epoch == epoch and self.store.has_regained(epoch)
        is_open = self.mastership is None or self.mastership.is_open
        if self.replica_id in group.sync_state_set and is_present and is_open:
            log.clear_suspicion()

    def leave(self, reason: str) -> None:
        """End the present role, with every connection of it (R2)."""
        if self.connection is not None:
            self.connection.close(self.connection.replica)
        self.forget_connection()
        self.leader = None
        self.end_mastership(reason)

    def fail(self, error: PacelineError) -> None:
        """This process never acknowledges again; it waits for its restart (R22)."""
        self.world.note(f"{self.name} failed: {error.message}")
        self.world.coverage.saw("disk_failures")
        self.is_failed = True
        if self.mastership is not None:
            self.mastership.term.fail(error.message)
        self.leave(error.message)

    @property
    def wants_restart(self) -> bool:
        """Its disk has failed, in its own hands or in those of its mastership: only another start
        verifies what is there (R22)."""
        return self.is_up and (self.is_failed or self.log.failure is not None)

    # -- as replica

    @property
    def wants_connection(self) -> bool:
        return self.leader is not None and self.connection is None and not self.is_failed

    def connect(self) -> None:
        """Open a connection to the master; its process may be another one by now."""
        if self.leader is None or not self.wants_connection:
            return
        master = self.world.node_of(self.leader)
        if master is None or master is self or not self.world.can_reach(self, master):
            return
        assert self.replica_id is not None
        introduction = Introduction(
            replica_id=self.replica_id,
            store_id=self.identity.identity.store_id,
            incarnation=self.incarnation,
            epoch=self.identity.epoch,
            start=self.log.start,
            end=self.log.end,
            confirm=self.log.confirm,
            epochs=self.log.epochs,
        )
        self.connection = self.world.connect(self, master)
        self.client = ReplicaReplication(
            introduction=introduction,
            flushed=self.log.flushed,
            counts_flushed=not self.is_memory,
            is_ready=True,
        )
        self.heard_us = self.world.clock.now_us
        self.connection.send(self.connection.master, introduction)

    def forget_connection(self) -> None:
        self.connection = self.client = None
        self.has_joined = False

    def close_connection(self, reason: str) -> None:
        if self.connection is not None:
            self.world.note(f"{self.name} closes: {reason}")
            self.connection.close(self.connection.replica)
            self.forget_connection()

    def close_if_idle(self) -> None:
        """A master that says nothing for two seconds is tried anew."""
        if self.world.clock.now_us - self.heard_us > MASTER_IDLE_US_MAX:
            self.close_connection("nothing heard of the master")

    # -- messages

    def receive(self, connection: Connection["Node"], message: Message) -> None:
        if connection.master.node is self:
            self.from_replica(connection, message)
        elif connection is self.connection and self.client is not None:
            self._from_master(self.client, message)

    def _from_master(self, client: ReplicaReplication, message: Message) -> None:
        self.heard_us = self.world.clock.now_us
        match message:
            case bytes():
                header = parse_frame_header(message)
                body = memoryview(message)[FRAME_HEADER_BYTES:]
                ready = client.step(
                    FrameReceived(
                        header.epoch, header.position, header.confirm, header.round, len(body)
                    )
                )
                if ready.append:
                    try:
                        self.log.append_raw(header.position, body)
                    except CorruptLogError as error:
                        self.close_connection(error.message)
                        return
                    self.log.write_pending()
                    ready = client.step(ReplicaAppended(self.log.end))
                self._carry_out_client(ready)
            case WelcomeWith(welcome, checkpoint):
                self._welcomed(client, welcome, checkpoint)
            case Refused() | Closed():
                self.close_connection(str(message))
            case _:
                raise AssertionError(message)

    def _welcomed(
        self, client: ReplicaReplication, welcome: Welcome, checkpoint: bytes | None
    ) -> None:
        ready = client.step(Welcomed(welcome))
        self._carry_out_client(ready)
        if ready.truncate_to is None:
            return
        if ready.installs:
            self._install(welcome, checkpoint)
        elif ready.truncate_to < self.log.end:
            self.world.note(f"{self.name} cuts {self.log.end} to {ready.truncate_to}")
            self.world.coverage.saw("truncations")
            self.world.aim(self)
            if self.store.prepare_truncation(ready.truncate_to):
                self.role_changed()
            self.log.truncate_to(ready.truncate_to)
            self.ticket = None
        self.has_joined = True
        self._carry_out_client(client.step(Truncated(self.log.end, self.log.flushed)))

    def _install(self, welcome: Welcome, checkpoint: bytes | None) -> None:
        assert welcome.install is not None
        assert checkpoint is not None
        self.world.note(f"{self.name} begins anew at {welcome.truncate_to}")
        self.world.coverage.saw("installs")
        self.world.aim(self)
        received = self.store.begin_receiving(welcome.install.position)
        received.write(checkpoint)
        received.sync_now()
        self.store.install(received, start=welcome.truncate_to, epochs=welcome.epochs)
        self.ticket = None
        self.reader.is_readable = False
        self.role_changed()

    def _carry_out_client(self, ready: ReplicaReady) -> None:
        if ready.stop is not None:
            self.world.judge.stopped(self.name, ready.stop)
        if ready.close is not None:
            self.close_connection(ready.close)
            return
        if ready.acknowledge is not None and self.connection is not None:
            if not self.is_learner:
                said = ready.acknowledge
                position = said.appended if self.is_memory else said.flushed
                self.world.judge.acknowledged(self.name, said.epoch, position)
            self.connection.send(self.connection.master, ready.acknowledge)
        if ready.confirm is not None:
            before = self.log.confirm
            self.log.set_confirm(ready.confirm)
            self.world.judge.replica_confirmed(self.name, self.log, before, ready.confirm)
            self.store.fold_to(self.log.confirm)
            self.reader.is_readable = True
            self.reader.confirm_moved(self.log.confirm)

    # -- the disk

    @property
    def has_unflushed(self) -> bool:
        return self.ticket is not None or self.log.flushed < self.log.written

    def flush(self) -> None:
        """One step of the flusher: begin a flush, or finish the one under way."""
        if self.log.failure is not None:
            return
        if self.ticket is None:
            self.ticket = self.log.begin_flush()
            return
        ticket, self.ticket = self.ticket, None
        try:
            ticket.run_now(self.disk)
        except StorageError as error:
            self.flush_failed(error)
            return
        self.flushed(self.log.finish_flush(ticket))

    def flushed(self, position: PhysicalOffset) -> None:
        if self.mastership is not None:
            self.mastership.term.flushed(position)
        elif self.client is not None and self.has_joined:
            self._carry_out_client(self.client.step(ReplicaFlushed(position)))
        self.settle_suspicion()

    def flush_failed(self, error: StorageError) -> None:
        self.log.fail_flush(error)
        self.fail(error)

    def save_log_checkpoint(self) -> None:
        """The marks that recovery starts from, lazily."""
        if self.log.failure is None:
            self.log.save_checkpoint()

    def keep_projections(self) -> None:
        """As `Duties._checkpoint_if_due`."""
        if self.log.failure is not None:
            return
        self.store.begin_checkpoint()
        try:
            if finish_now(self.store.finish_checkpoint()):
                self.world.coverage.saw("checkpoints")
        except StorageError as error:
            self.world.note(f"{self.name} writes no checkpoint: {error.message}")

    def clean(self) -> None:
        """Give up what is too much, if it leads; let go what was given up (R26)."""
        if self.log.failure is None and self.world.log_bytes_max:
            before = self.store.projections.log_start
            self.cleaner.clean()
            self.world.coverage.saw("retentions", self.store.projections.log_start > before)

    # -- reads

    def read(self) -> None:
        """A question behind a read round, watched by the judge."""
        if self.mastership is not None and self.mastership.is_open:
            spawn(self._read(self.mastership), name="read")

    async def _read(self, mastership: Mastership) -> None:
        try:
            await self.watch_read(mastership)
        except PacelineError as error:
            self.world.note(f"{self.name} answers no read: {error.message}")
