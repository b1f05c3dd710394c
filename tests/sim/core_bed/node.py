"""One broker: the real log, identity and replication machines on a memory disk, with thin glue.

The glue is what `role.py`, `term.py` and `client.py` do, without sockets, tasks and projections:
each method is one step of one process. Anything the disk does may raise PowerLost; the world
catches it and restarts the node.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.sim.core_bed.controllers import GROUP, Answer, Request
from tests.sim.core_bed.network import Closed, Connection, Message, Push

from paceline.disk_memory import MemoryDisk
from paceline.errors import StorageError
from paceline.records.encode import encode_batch, encode_internal
from paceline.records.header import HEADER_BYTES, Kind, stamp
from paceline.types import Incarnation, PhysicalOffset, ReplicaId, SetEpoch
from paceline.wire.cluster import ClusterView, GroupView
from paceline.wire.session_commands import (
    AlterSyncStateSet as AlterCommand,
)
from paceline.wire.session_commands import OpenEpoch, RaiseConfirmFloor, RegisterReplica
from paceline_broker.identity import StoreIdentity
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.tickets import FlushTicket
from paceline_broker.replication.frames import Acknowledgement
from paceline_broker.replication.handshake import ConnectionId, Introduction, Refused, Welcome
from paceline_broker.replication.master import MasterReplication
from paceline_broker.replication.master_events import (
    AlterSyncStateSet,
    Appended,
    Failed,
    Flushed,
    GroupCommitted,
    MasterEvent,
    MasterReady,
    MasterSettings,
    MemberRefused,
    ProposalRefused,
    ProposalUnknown,
    Ran,
    ReplicaAcked,
    ReplicaIntroduced,
    ReplicaLeft,
    RoundRequested,
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

if TYPE_CHECKING:
    from tests.sim.core_bed.world import World

DATA = "data"
SEGMENT_BYTES = 4096
UNIX_MS = 1_700_000_000_000


class Link:
    """A replica as its master's shell sees it."""

    def __init__(self, connection: Connection, replica: ReplicaId) -> None:
        self.connection = connection
        self.replica = replica
        self.is_joined = False
        self.sent = PhysicalOffset(0)
        self.confirm = -1
        self.round = -1


class Node:
    """One machine with one broker process; `generation` counts the processes."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.disk = MemoryDisk()
        self.boots_count = 1
        self.generation = 0
        self.is_up = False
        self.paused_until = 0
        self.deaf_until = 0
        self.claimed: ReplicaId | None = None
        """The id that its configuration names, also for an emptied disk."""
        self.is_unclean = False
        """A durable mark, until a registration has told it: this log may lack what the set relies
        on, because power was lost with memory durability (R13), or because this start was found to
        be a stale one, and so its store may be an old copy (R9).
        """
        self._clear()

    def _clear(self) -> None:
        """A process begins with nothing in memory."""
        self.is_registered = False
        self.is_failed = False
        self.view: ClusterView | None = None
        self.views: list[ClusterView] = []
        self.master: MasterReplication | None = None
        self.links: dict[ConnectionId, Link] = {}
        self.client: ReplicaReplication | None = None
        self.connection: Connection | None = None
        self.has_joined = False
        self.leader: tuple[ReplicaId, Incarnation] | None = None
        self.ticket: FlushTicket | None = None
        self.sequence = 0
        self.asked: dict[int, tuple[dict[str, Any], int | None]] = {}
        self.proposed: dict[int, dict[str, Any]] = {}
        self.reads: list[tuple[int, int]] = []
        self.told_floor = 0

    # -- life

    def boot(self) -> None:
        """Start a process on whatever the disk holds."""
        self.generation += 1
        self._clear()
        self.disk.make_folder(DATA)
        self.store = StoreIdentity(self.disk, DATA)
        self.store.begin_incarnation(
            group=GROUP, boot_id=f"boot-{self.boots_count}", random=self.world.dice.random
        )
        self.log, report = CommitLog.open(
            self.disk, f"{DATA}/log", segment_size_bytes=SEGMENT_BYTES
        )
        self.was_suspect = report.is_suspect
        if self.is_memory and self.store.was_unclean:
            self.is_unclean = True
        self.is_up = True
        self.world.judge.adopted(self.name, self.store.epoch)
        self.world.judge.restarted(self.name, self.log)
        self.session = f"{self.name}-{self.store.identity.store_id[:4]}-{self.generation}"
        self.world.controllers.open_session(self.session)
        self.register()

    @property
    def replica_id(self) -> ReplicaId | None:
        return self.store.identity.replica_id

    @property
    def incarnation(self) -> Incarnation:
        return self.store.identity.incarnation

    @property
    def is_memory(self) -> bool:
        return self.world.settings.durability == "memory"

    def register(self) -> None:
        """R9, R13, R23: tell what this start is."""
        command = RegisterReplica(
            group=GROUP,
            store_id=self.store.identity.store_id,
            replica_id=self.replica_id or self.claimed,
            incarnation=self.incarnation,
            client_address=f"{self.name}:1",
            replication_address=f"{self.name}:2",
            end=self.log.end,
            confirm=self.log.confirm,
            is_empty=self.log.end == 0,
            is_unclean=self.is_unclean,
            is_suspect=self.was_suspect and self.log.end > 0,
        )
        self._ask(command.to_json(), None)

    def _ask(self, command: dict[str, Any], proposal: int | None) -> None:
        self.sequence += 1
        envelope = self.world.controllers.envelope(command, self.session, self.sequence)
        self.asked[self.sequence] = (envelope, proposal)
        if proposal is not None:
            self.proposed[proposal] = envelope
        self.world.ask(Request(envelope, self, self.generation))

    def ask_again(self) -> None:
        """No answer came: the same commands once more, or the machine hears "unknown" (R7)."""
        for envelope, proposal in list(self.asked.values()):
            if proposal is None:
                self.world.ask(Request(envelope, self, self.generation))
            else:
                self.step(ProposalUnknown(proposal))

    def answered(self, answer: Answer) -> None:
        asked = self.asked.pop(answer.sequence, None)
        if asked is None:
            return
        envelope, proposal = asked
        result = answer.result
        if envelope["kind"] == "register_replica":
            self._registered(result)
        elif proposal is not None and not result["ok"]:
            self.step(ProposalRefused(proposal, SetEpoch(result.get("set_epoch", 0))))

    def _registered(self, result: Mapping[str, Any]) -> None:
        if result["ok"]:
            self.store.join_cluster(
                cluster_id=result["cluster_id"], replica_id=ReplicaId(result["replica_id"])
            )
            self.claimed = self.replica_id
            self.is_unclean = False
            self.is_registered = True
        elif result["reason"] == "INCARNATION_STALE":
            self.world.note(f"{self.name} counts its incarnation up")
            self.is_unclean = True
            self.world.restart(self)
        elif result["reason"] != "RECOVERY_NEEDED":
            raise AssertionError(result)

    def heartbeat(self) -> None:
        if self.is_registered and self.replica_id is not None:
            self.world.controllers.heard(
                self.replica_id,
                self.incarnation,
                self.log.end,
                is_healthy=self.log.failure is None and not self.is_fenced,
            )
        if self.master is None or not self.master.is_open or not self.world.tells_floor:
            return
        if self.told_floor < self.log.confirm:
            self.told_floor = self.log.confirm
            self._ask(RaiseConfirmFloor(**self._of_master(self.master)).to_json(), None)

    @property
    def is_fenced(self) -> bool:
        """It was elected, and is not master any more."""
        group = None if self.view is None else self.view.groups.get(GROUP)
        return group is not None and self.is_elected(group) and self.master is None

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
            self.world.restart(self)
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

    def is_elected(self, group: GroupView) -> bool:
        """R1: this start of this replica."""
        return (group.master, group.master_incarnation) == (self.replica_id, self.incarnation)

    def leave(self) -> None:
        """End the present role, with every connection of it (R2)."""
        if self.connection is not None:
            self.connection.close(self.connection.replica)
        self.forget_connection()
        self.leader = None
        self.end_mastership()

    def end_mastership(self) -> None:
        if self.master is not None and self.log.failure is None:
            self.log.write_pending()
        self.master = None
        self.reads.clear()
        self.proposed.clear()
        self.asked = {key: asked for key, asked in self.asked.items() if asked[1] is None}
        for link in list(self.links.values()):
            link.connection.close(link.connection.master)
        self.links.clear()

    def lead(self, group: GroupView) -> None:
        """The epoch-start record first (R2), then the machine."""
        self.world.judge.became_master(self.name, group.master_epoch, self.incarnation, self.log)
        self.world.note(
            f"{self.name} leads epoch {group.master_epoch} from {self.log.end} "
            f"with {sorted(group.sync_state_set)}"
        )
        assert self.replica_id is not None
        self.append(
            encode_internal(Kind.EPOCH_START, {"epoch": group.master_epoch}, store_unix_ms=UNIX_MS),
            group.master_epoch,
        )
        self.log.write_pending()
        self.told_floor = 0
        self.master = MasterReplication(
            replica_id=self.replica_id,
            incarnation=self.incarnation,
            view=group,
            epoch_start_end=self.log.end,
            end=self.log.end,
            flushed=self.log.flushed,
            known_confirm=self.log.confirm,
            settings=MasterSettings(),
        )
        self.step(Appended(self.log.written))

    def fail(self, error: StorageError) -> None:
        """R22: this process never acknowledges again; it waits for its restart."""
        self.world.note(f"{self.name} failed: {error.message}")
        self.is_failed = True
        if self.master is not None:
            self.step(Failed(error.message))
        self.leave()

    # -- as master

    def append(self, batch: bytes, epoch: int) -> None:
        header = stamp(
            batch,
            physical_offset=self.log.end,
            base_queue_offset=0,
            store_unix_ms=UNIX_MS,
            master_epoch=epoch,
        )
        self.log.append(header, memoryview(batch)[HEADER_BYTES:])

    def send_messages(self, count: int) -> None:
        """One turn of a master: append, write, push."""
        if self.master is None or not self.master.can_accept():
            return
        for _ in range(count):
            body = self.world.next_body()
            self.append(
                encode_batch([body], born_unix_ms=UNIX_MS, topic_id=1, queue_id=0),
                self.master.epoch,
            )
        self.log.write_pending()
        self.step(Appended(self.log.written))
        self.push_all()

    def read(self) -> None:
        """A query that must see everything acknowledged before it (R4)."""
        if self.master is not None and self.master.is_open:
            before = len(self.world.judge.truth)
            ready = self.master.step(RoundRequested())
            self.reads.append((self.master.round_wanted, before))
            self.carry_out(ready)

    def ran(self, elapsed_ms: int) -> None:
        """A tick of the master, with its heartbeat."""
        self.step(Ran(elapsed_ms))
        self.step(RoundRequested())

    def push_all(self) -> None:
        for link in list(self.links.values()):
            if link.is_joined and self.world.dice.happens(0.8):
                self.push(link)

    def push(self, link: Link) -> None:
        """The next piece of the log, or news of confirm and round."""
        if self.master is None:
            return
        body = b""
        if link.sent < self.log.written:
            body = bytes(self.log.read_raw(link.sent, 200 + self.world.dice.below(2000)))
        elif link.confirm >= self.master.confirm and link.round >= self.master.round_wanted:
            return
        link.confirm, link.round = self.master.confirm, self.master.next_round()
        link.connection.send(
            link.connection.replica,
            Push(self.master.epoch, link.sent, self.master.confirm, link.round, body),
        )
        link.sent = PhysicalOffset(link.sent + len(body))

    def step(self, event: MasterEvent) -> None:
        if self.master is not None:
            self.carry_out(self.master.step(event))

    def carry_out(self, ready: MasterReady) -> None:
        """As `MasterTerm._carry_out`."""
        assert self.master is not None
        if ready.fence is not None:
            self.world.note(f"{self.name} is fenced: {ready.fence}")
            self.end_mastership()
            return
        if ready.confirm is not None:
            before = self.log.confirm
            self.log.set_confirm(ready.confirm)
            self.world.judge.master_confirmed(
                self.name, self.master.epoch, self.log, before, ready.confirm
            )
        if ready.opened:
            self.world.judge.opened(self.name, self.master.epoch, self.log.confirm)
            self._ask(OpenEpoch(**self._of_master(self.master)).to_json(), None)
        if ready.confirmed_round is not None:
            self._answer_reads(ready.confirmed_round)
        for connection in ready.close:
            link = self.links.pop(connection, None)
            if link is not None:
                link.connection.close(link.connection.master)
        if ready.welcome is not None:
            link = self.links[ready.welcome[0]]
            link.connection.send(link.connection.replica, ready.welcome[1])
        if ready.refuse is not None:
            link = self.links.pop(ready.refuse[0])
            link.connection.send(link.connection.replica, ready.refuse[1])
            link.connection.close(link.connection.master)
        if ready.joined is not None:
            self.links[ready.joined].is_joined = True
            self.push(self.links[ready.joined])
        if ready.propose is not None:
            self.propose(ready.propose)
        for replica, incarnation in ready.probe:
            self.world.probe(self, replica, incarnation)

    def _answer_reads(self, number: int) -> None:
        while self.reads and self.reads[0][0] <= number:
            _, before = self.reads.pop(0)
            self.world.judge.read_answered(self.name, asked_at=before, confirm=self.log.confirm)

    def member_refused(self, replica: ReplicaId, incarnation: Incarnation) -> None:
        self.step(MemberRefused(replica, incarnation))

    def propose(self, proposal: AlterSyncStateSet) -> None:
        """The same proposal goes out in the same envelope, however often (R7)."""
        envelope = self.proposed.get(proposal.sequence)
        if envelope is not None:
            self.asked[envelope["sequence"]] = (envelope, proposal.sequence)
            self.world.ask(Request(envelope, self, self.generation))
            return
        command = AlterCommand(
            group=GROUP,
            master=proposal.master,
            master_incarnation=self.incarnation,
            master_epoch=proposal.master_epoch,
            set_epoch=proposal.set_epoch,
            members=dict(proposal.incarnations),
            confirm=proposal.confirm,
        )
        self.world.note(f"{self.name} proposes {sorted(proposal.sync_state_set)}")
        self._ask(command.to_json(), proposal.sequence)

    def _of_master(self, master: MasterReplication) -> dict[str, Any]:
        return {
            "group": GROUP,
            "master": master.replica_id,
            "master_incarnation": master.incarnation,
            "master_epoch": master.epoch,
            "confirm": self.log.confirm,
        }

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

    def _from_replica(self, connection: Connection, message: Message) -> None:
        number = connection.connection
        match message:
            case Introduction():
                if self.master is None:
                    refused = Refused(code="NOT_MASTER", detail="")
                    connection.send(connection.replica, refused)
                    connection.close(connection.master)
                    return
                self.links[number] = Link(connection, message.replica_id)
                event = ReplicaIntroduced(number, message, self.log.start, self.log.epochs)
                self.step(event)
            case Acknowledgement():
                link = self.links.get(number)
                if link is None:
                    return
                if not link.is_joined:
                    link.sent = message.appended
                self.step(ReplicaAcked(number, *message))
                if link.is_joined and number in self.links:
                    self.push(link)
            case Closed():
                connection.close(connection.master)
                if self.links.pop(number, None) is not None:
                    self.step(ReplicaLeft(number))
            case _:
                raise AssertionError(message)

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
