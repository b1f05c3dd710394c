"""One broker: the real log, identity and replication machines on a memory disk, with thin glue.

Here is what `role.py` and `client.py` do: taking views, leaving a role, following a master, and the
flusher's steps; `leading.py` has the rest.
"""

from typing import TYPE_CHECKING

from paceline.errors import StorageError
from paceline.types import PhysicalOffset
from paceline.wire.cluster import ClusterView, GroupView
from paceline_broker.replication.handshake import Introduction, Refused, Welcome
from paceline_broker.replication.master_events import (
    Failed,
    Flushed,
    GroupCommitted,
)
from paceline_broker.replication.replica import (
    FrameReceived,
    ReplicaAppended,
    ReplicaFlushed,
    ReplicaReady,
    ReplicaReplication,
    Truncated,
    Welcomed,
)
from paceline_chaos.core.controllers import GROUP
from paceline_chaos.core.leading import Leading
from paceline_chaos.core.network import Closed, Connection, Message, Push

if TYPE_CHECKING:
    pass

DATA = "data"
SEGMENT_BYTES = 4096
UNIX_MS = 1_700_000_000_000


class Node(Leading):
    """One machine with one broker process."""

    # -- the role

    def view_arrived(self, view: ClusterView) -> None:
        """R38: only newer ones."""
        if not self.is_registered or (self.view is not None and view.version <= self.view.version):
            return
        self.view = view
        group = view.groups.get(GROUP)
        if group is not None and not self.is_failed:
            self.take(group)

    def take(self, group: GroupView) -> None:
        """As `BrokerRole._take`."""
        own = None if self.replica_id is None else group.replicas.get(self.replica_id)
        if own is None or own.incarnation < self.incarnation:
            return
        if own.incarnation > self.incarnation:
            self.world.note(f"{self.name} ends: another start of it is registered")
            self.world.restart(self.name)
            return
        if group.master_epoch < self.store.epoch:
            return
        is_mine = self.is_elected(group)
        if group.master_epoch > self.store.epoch:
            self.leave()
            self.store.adopt_epoch(group.master_epoch)  # R2
            self.world.judge.adopted(self.name, group.master_epoch)
            if is_mine:
                self.lead(group)
                return
        if self.master is not None:
            self.step(GroupCommitted(group))
        elif not is_mine and group.master is not None:
            assert group.master_incarnation is not None
            self.leader = (group.master, group.master_incarnation)

    def leave(self) -> None:
        """End the present role, with every connection of it (R2)."""
        if self.connection is not None:
            self.connection.close(self.connection.replica)
        self.forget_connection()
        self.leader = None
        self.end_mastership()

    def fail(self, error: StorageError) -> None:
        """R22: this process never acknowledges again; it waits for its restart."""
        self.world.note(f"{self.name} failed: {error.message}")
        self.is_failed = True
        if self.master is not None:
            self.step(Failed(error.message))
        self.leave()

    # -- as replica

    @property
    def wants_connection(self) -> bool:
        return self.leader is not None and self.connection is None and not self.is_failed

    def connect(self) -> None:
        """Open a connection to the master; its process may be another one by now."""
        if self.leader is None or not self.wants_connection:
            return
        master = self.world.node_of(self.leader[0])
        if master is None or master is self or not self.world.can_reach(self, master):
            return
        assert self.replica_id is not None
        introduction = Introduction(
            replica_id=self.replica_id,
            store_id=self.store.identity.store_id,
            incarnation=self.incarnation,
            epoch=self.store.epoch,
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
        self.connection.send(self.connection.master, introduction)

    def forget_connection(self) -> None:
        self.connection = self.client = None
        self.has_joined = False

    def close_connection(self, reason: str) -> None:
        if self.connection is not None:
            self.world.note(f"{self.name} closes: {reason}")
            self.connection.close(self.connection.replica)
            self.forget_connection()

    # -- messages
    def receive(self, connection: Connection, message: Message) -> None:
        if connection.master.node is self:
            self._from_replica(connection, message)
        elif connection is self.connection and self.client is not None:
            self._from_master(self.client, message)

    def _from_master(self, client: ReplicaReplication, message: Message) -> None:
        match message:
            case Welcome():
                self._welcomed(client, message)
            case Push(epoch, position, confirm, round_number, body):
                frame = FrameReceived(epoch, position, confirm, round_number, len(body))
                ready = client.step(frame)
                if ready.append:
                    self.log.append_raw(position, body)
                    self.log.write_pending()
                    ready = client.step(ReplicaAppended(self.log.end))
                self._carry_out_client(ready)
            case Refused() | Closed():
                self.close_connection(str(message))
            case _:
                raise AssertionError(message)

    def _welcomed(self, client: ReplicaReplication, welcome: Welcome) -> None:
        ready = client.step(Welcomed(welcome))
        self._carry_out_client(ready)
        if ready.truncate_to is None:
            return
        if ready.truncate_to < self.log.end:
            self.world.note(f"{self.name} cuts {self.log.end} to {ready.truncate_to}")
            self.log.truncate_to(ready.truncate_to)
            self.ticket = None
        self.has_joined = True
        self._carry_out_client(client.step(Truncated(self.log.end, self.log.flushed)))

    def _carry_out_client(self, ready: ReplicaReady) -> None:
        if ready.stop is not None:
            raise AssertionError(f"{self.name} stops: {ready.stop}")
        if ready.close is not None:
            self.close_connection(ready.close)
            return
        if ready.acknowledge is not None and self.connection is not None:
            self.connection.send(self.connection.master, ready.acknowledge)
        if ready.confirm is not None:
            before = self.log.confirm
            self.log.set_confirm(ready.confirm)
            self.world.judge.replica_confirmed(self.name, self.log, before, ready.confirm)

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
        if self.master is not None:
            self.step(Flushed(position))
        elif self.client is not None and self.has_joined:
            self._carry_out_client(self.client.step(ReplicaFlushed(position)))

    def flush_failed(self, error: StorageError) -> None:
        self.log.fail_flush(error)
        self.fail(error)

    def save_checkpoint(self) -> None:
        if self.log.failure is None:
            self.log.save_checkpoint()
