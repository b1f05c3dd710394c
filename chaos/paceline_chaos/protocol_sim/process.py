"""One broker process: its start, its registration, and what it asks of the controllers.

As `app.py`, `duties.py` and `controllers/session.py` do it, without sockets and tasks. Anything the
disk does may raise PowerLost or StorageError; the scene catches it. The machine (disk, clock, name)
outlives its processes.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from paceline.errors import StorageError
from paceline.platform.disk_memory import MemoryDisk
from paceline.types import Incarnation, MasterEpoch, ReplicaId, SetEpoch
from paceline.wire.cluster import ClusterView, GroupSettings, GroupView
from paceline.wire.session_commands import AlterSyncStateSet as AlterCommand
from paceline.wire.session_commands import OpenEpoch, RaiseConfirmFloor, RegisterReplica
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.tickets import FlushTicket
from paceline_broker.replication.master.events import AlterSyncStateSet
from paceline_broker.replication.master.ports import TermSettings
from paceline_broker.role.exclusion import Exclusion
from paceline_broker.role.machine import RoleMachine
from paceline_broker.role.mastership import Mastership
from paceline_broker.service.service import Service
from paceline_broker.storage.identity import StoreIdentity
from paceline_broker.storage.store import Store, lock_data_folder, open_store
from paceline_chaos.protocol_sim.clock import BedClock, MachineClock
from paceline_chaos.protocol_sim.controllers import GROUP, Answer, Controllers, Request
from paceline_chaos.protocol_sim.coverage import Coverage
from paceline_chaos.protocol_sim.dice import Dice
from paceline_chaos.protocol_sim.judge import Judge
from paceline_chaos.protocol_sim.turns import TurnLoop

DATA = "data"


class StepDown(NamedTuple):
    """A master asks to be replaced; `answer` is what its process waits for."""

    node: "Process"
    generation: int
    master_epoch: MasterEpoch
    preferred: ReplicaId | None
    answer: "asyncio.Future[str | None]"


class RunContext(Protocol):
    """What a process sees of the run (`Scene`): its settings, its judge, and who hears it."""

    clock: BedClock
    loop: TurnLoop
    dice: Dice
    judge: Judge
    coverage: Coverage
    controllers: Controllers
    settings: GroupSettings
    segment_bytes: int
    log_bytes_max: int
    lag_ms_max: int
    unconfirmed_bytes_max: int
    term_settings: TermSettings
    lease_ms: int
    tells_floor: bool
    step_downs: list[StepDown]

    def ask(self, request: Request, /) -> None: ...

    def probe(
        self, master: Any, replica: ReplicaId, incarnation: Incarnation, /
    ) -> "asyncio.Future[bool]": ...

    def node_of(self, replica: ReplicaId, /) -> Any: ...

    def can_reach(self, one: Any, other: Any, /) -> bool: ...

    def connect(self, replica: Any, master: Any, /) -> Any: ...

    def aim(self, node: "Process", /) -> None: ...

    def restart(self, name: str, /) -> None: ...

    def note(self, line: str, /) -> None: ...


class ProcessLife:
    """One run of a process: callbacks of one that is over are dropped."""

    __slots__ = ("is_over", "node")

    def __init__(self, node: "Process") -> None:
        self.node = node
        self.is_over = False


class Process:
    """One machine with at most one broker process; `generation` counts the processes."""

    store: Store
    service: Service
    exclusion: Exclusion

    def __init__(self, world: RunContext, name: str) -> None:
        self.world = world
        self.name = name
        self.disk = MemoryDisk()
        self.clock = MachineClock(world.clock)
        self.boots_count = 1
        self.generation = 0
        self.is_up = False
        self.paused_until_us = 0
        self.deaf_until_us = 0
        self.is_learner = False
        """As its configuration says."""
        self.claimed: ReplicaId | None = None
        """The id that its configuration names, also for an emptied disk."""
        self.life = ProcessLife(self)
        self.clear()

    def clear(self) -> None:
        """A process begins with nothing in memory."""
        self.machine = RoleMachine(GROUP)
        self.is_failed = False
        self.views: list[ClusterView] = []
        self.mastership: Mastership | None = None
        self.ticket: FlushTicket | None = None
        self.sequence = 0
        self.asked: dict[int, tuple[dict[str, Any], int | None]] = {}
        self.proposed: dict[int, dict[str, Any]] = {}
        self.told_floor = 0

    @property
    def log(self) -> CommitLog:
        return self.store.log

    @property
    def identity(self) -> StoreIdentity:
        return self.store.identity

    @property
    def replica_id(self) -> ReplicaId | None:
        return self.store.identity.identity.replica_id

    @property
    def incarnation(self) -> Incarnation:
        return self.store.identity.identity.incarnation

    @property
    def is_fit(self) -> bool:
        """As `BrokerRole.is_fit`."""
        return self.exclusion.reason is None and self.log.failure is None

    @property
    def is_memory(self) -> bool:
        return self.world.settings.durability == "memory"

    # -- life

    def boot(self) -> None:
        """Start a process on whatever the disk holds."""
        self.generation += 1
        self.life = self.world.loop.life = ProcessLife(self)
        self.clear()
        lock = lock_data_folder(self.disk, DATA)
        identity = StoreIdentity(self.disk, DATA)
        identity.begin_incarnation(
            group=GROUP, boot_id=f"boot-{self.boots_count}", random=self.world.dice.random
        )
        self.store = open_store(
            self.disk,
            DATA,
            lock=lock,
            identity=identity,
            segment_size_bytes=self.world.segment_bytes,
        )
        self.exclusion = Exclusion(self.store)
        self._count_start()
        self.is_up = True
        self.world.judge.adopted(self.name, identity.epoch)
        self.world.judge.restarted(self.name, self.store)
        self.session = f"{self.name}-{identity.identity.store_id[:4]}-{self.generation}"
        self.world.controllers.open_session(self.session)
        self.begin_service()
        self.register()

    def view_taken(self) -> None:
        """A newer view has come; `Node` has it."""

    def take_role(self) -> None:
        """The newest view may give this broker another role; `Node` has it."""

    def fail(self, error: StorageError) -> None:
        """Its disk has failed; `Node` has it."""

    def begin_service(self) -> None:
        """The doors open; `Node` has them."""

    def _count_start(self) -> None:
        report, saw = self.store.report, self.world.coverage.saw
        self.was_suspect = report.is_suspect
        if report.cut_bytes:
            saw("torn_tails")
        if report.is_suspect:
            saw("suspects")
        if self.store.checkpointed:
            saw("checkpoint_restores")

    def register(self) -> None:
        """Tell what this start is (R9, R13, R23)."""
        known = self.identity.identity
        command = RegisterReplica(
            group=GROUP,
            store_id=known.store_id,
            replica_id=self.replica_id or self.claimed,
            incarnation=self.incarnation,
            client_address=f"{self.name}:1",
            replication_address=f"{self.name}:2",
            end=self.log.end,
            confirm=self.log.confirm,
            last_epoch=self.log.epochs.last_epoch,
            is_learner=self.is_learner,
            is_empty=self.log.end == 0,
            is_unclean=known.is_unclean,
            is_suspect=self.was_suspect,
        )
        self._ask(command.to_json(), None)

    # -- commands to the controllers

    def _ask(self, command: dict[str, Any], proposal: int | None) -> None:
        self.sequence += 1
        envelope = self.world.controllers.envelope(command, self.session, self.sequence)
        self.asked[self.sequence] = (envelope, proposal)
        if proposal is not None:
            self.proposed[proposal] = envelope
        self.world.ask(Request(envelope, self.name, self.generation))

    def ask_again(self) -> None:
        """No answer came: the same commands once more, or the term hears "unknown" (R7)."""
        for envelope, proposal in list(self.asked.values()):
            if proposal is None:
                self.world.ask(Request(envelope, self.name, self.generation))
            elif self.mastership is not None:
                self.mastership.term.proposal_unknown(proposal)

    def answered(self, answer: Answer) -> None:
        asked = self.asked.pop(answer.sequence, None)
        if asked is None:
            return
        envelope, proposal = asked
        result = answer.result
        if envelope["kind"] == "register_replica":
            self._registered(result)
        elif proposal is not None and not result["ok"] and self.mastership is not None:
            self.world.coverage.saw("set_changes_refused")
            set_epoch = SetEpoch(result.get("set_epoch", 0))
            self.mastership.term.proposal_refused(proposal, set_epoch=set_epoch)

    def _registered(self, result: Mapping[str, Any]) -> None:
        if result["ok"]:
            self.identity.join_cluster(
                cluster_id=result["cluster_id"], replica_id=ReplicaId(result["replica_id"])
            )
            self.claimed = self.replica_id
            if self.machine.registered(self.identity.identity.cluster_id):
                self.view_taken()
            else:
                self.take_role()
        elif result["reason"] == "INCARNATION_STALE":
            self.world.note(f"{self.name} counts its incarnation up")
            self.world.restart(self.name)
        elif result["reason"] != "RECOVERY_NEEDED":
            raise AssertionError(result)

    def heartbeat(self) -> None:
        """What every controller hears of this process."""
        if self.machine.is_registered and self.replica_id is not None:
            self.world.controllers.heard(
                self.replica_id,
                self.incarnation,
                self.log.end,
                last_epoch=self.log.epochs.last_epoch,
                is_healthy=self.is_fit and not self.is_fenced,
                view_version=0 if self.machine.view is None else self.machine.view.version,
            )

    def tell_floor(self) -> None:
        """Each second, when it moved (R16)."""
        mastership = self.mastership
        if mastership is None or not mastership.is_open or not self.world.tells_floor:
            return
        if self.told_floor < self.log.confirm:
            self.told_floor = self.log.confirm
            self._ask(RaiseConfirmFloor(**self._of_master(mastership)).to_json(), None)

    def tell_opened(self, mastership: Mastership) -> None:
        self._ask(OpenEpoch(**self._of_master(mastership)).to_json(), None)

    def ask_for_set(self, mastership: Mastership, proposal: AlterSyncStateSet) -> None:
        """The same proposal goes out in the same envelope, however often (R7)."""
        envelope = self.proposed.get(proposal.sequence)
        if envelope is not None:
            self.world.coverage.saw("set_changes_repeated")
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

    def _of_master(self, mastership: Mastership) -> dict[str, Any]:
        return {
            "group": GROUP,
            "master": mastership.term.replica_id,
            "master_incarnation": mastership.term.incarnation,
            "master_epoch": mastership.epoch,
            "confirm": self.log.confirm,
        }

    @property
    def is_fenced(self) -> bool:
        """It was elected, and is not master any more."""
        group = self.machine.group_view
        return group is not None and self.is_elected(group) and self.mastership is None

    def is_elected(self, group: GroupView) -> bool:
        """This start of this replica (R1)."""
        return (group.master, group.master_incarnation) == (self.replica_id, self.incarnation)
