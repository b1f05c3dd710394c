"""One broker process and its master's side: life, registration, and what `term.py` does.

The glue is thin on purpose: each method is one step of one process, without sockets, tasks and
projections. Anything the disk does may raise PowerLost; the world catches it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.disk_memory import MemoryDisk
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
from paceline_broker.replication.handshake import ConnectionId, Introduction, Refused
from paceline_broker.replication.master import MasterReplication
from paceline_broker.replication.master_events import (
    AlterSyncStateSet,
    Appended,
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
    ReplicaReplication,
)
from paceline_chaos.core.controllers import GROUP, Answer, Request
from paceline_chaos.core.network import Closed, Connection, Message, Push

if TYPE_CHECKING:
    from paceline_chaos.core.scene import Scene

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


class Leading:
    """One machine with one broker process; `generation` counts the processes."""

    def __init__(self, world: "Scene", name: str) -> None:
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
            is_unclean=self.store.identity.is_unclean,
            is_suspect=self.was_suspect and self.log.end > 0,
        )
        self._ask(command.to_json(), None)

    def _ask(self, command: dict[str, Any], proposal: int | None) -> None:
        self.sequence += 1
        envelope = self.world.controllers.envelope(command, self.session, self.sequence)
        self.asked[self.sequence] = (envelope, proposal)
        if proposal is not None:
            self.proposed[proposal] = envelope
        self.world.ask(Request(envelope, self.name, self.generation))

    def ask_again(self) -> None:
        """No answer came: the same commands once more, or the machine hears "unknown" (R7)."""
        for envelope, proposal in list(self.asked.values()):
            if proposal is None:
                self.world.ask(Request(envelope, self.name, self.generation))
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
            self.is_registered = True
        elif result["reason"] == "INCARNATION_STALE":
            self.world.note(f"{self.name} counts its incarnation up")
            self.world.restart(self.name)
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

    def is_elected(self, group: GroupView) -> bool:
        """R1: this start of this replica."""
        return (group.master, group.master_incarnation) == (self.replica_id, self.incarnation)

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
            self.world.probe(self.name, replica, incarnation)

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
            self.world.ask(Request(envelope, self.name, self.generation))
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
