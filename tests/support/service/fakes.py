"""In-memory twins of the service's ports: a list of batches for a log, a role the test sets."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.askers import ANYBODY
from tests.support.http.turns import turn

from paceline.errors import DiskFullError, NotMasterError, OutcomeUnknownError, PacelineError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.ports import Buffer
from paceline.platform.runtime import ManualClock
from paceline.records.decode import BatchView
from paceline.records.header import Kind
from paceline.types import (
    GroupName,
    Incarnation,
    MasterEpoch,
    PhysicalOffset,
    ReplicaId,
    SetEpoch,
    TopicId,
    TopicName,
)
from paceline.wire.calls.request import read_answer
from paceline.wire.calls.table import CALLS
from paceline.wire.cluster import ClusterView, GroupSettings, GroupView, ReplicaView, TopicView
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.session_commands import BrokerCommand
from paceline.wire.topic_commands import EnsureConsumerGroup
from paceline.wire.topics import MIXED
from paceline_broker.acting.offsets_file import OffsetsFile
from paceline_broker.appender import Appender
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.log.repair import first_bad
from paceline_broker.ports import Confirmed, Identity, RoleState, no_writer
from paceline_broker.projections.projections import Projections, epoch_start_document
from paceline_broker.role.acting_term import ActingTerm
from paceline_broker.service.hooks import Hooks
from paceline_broker.service.service import Service
from paceline_broker.service.settings import ServiceSettings

GROUP = GroupName("g1")
OTHER_MASTER = "127.0.0.1:9999"


class ListLog:
    """A log in one growing buffer, and its confirm. `is_automatic`: confirm follows each turn."""

    def __init__(self, *, is_automatic: bool = True) -> None:
        self.content = bytearray()
        self.batches: list[bytes] = []
        self.confirm_position = 0
        self.is_automatic = is_automatic
        self.listeners: list[Callable[[PhysicalOffset], None]] = []
        self.cold: set[int] = set()
        self.bad: set[PhysicalOffset] = set()
        self.warmed = 0
        self.reads = 0
        self.is_readable = True
        self.epoch_starts = {1: 0}

    def epochs(self) -> list[dict[str, int]]:
        rows = sorted(self.epoch_starts.items())
        stops = [*(start for _, start in rows[1:]), int(self.end)]
        return [
            {"epoch": epoch, "start": start, "end": stop}
            for (epoch, start), stop in zip(rows, stops, strict=True)
        ]

    @property
    def start(self) -> PhysicalOffset:
        return PhysicalOffset(0)

    @property
    def end(self) -> PhysicalOffset:
        return PhysicalOffset(sum(map(len, self.batches)))

    @property
    def confirm(self) -> PhysicalOffset:
        return PhysicalOffset(self.confirm_position)

    def read(self, start: PhysicalOffset, max_bytes: int) -> memoryview:
        self.reads += 1
        end = min(start + max_bytes, self.confirm_position)
        parts = []
        at = 0
        for batch in self.batches:
            parts.append(batch[max(0, start - at) : max(0, end - at)])
            at += len(batch)
        return memoryview(b"".join(parts))

    def is_cold(self, view: memoryview) -> bool:
        return bool(self.cold)

    def is_damaged(self, start: PhysicalOffset, end: PhysicalOffset) -> bool:
        return any(start <= position < end for position in self.bad)

    def is_sound(self, view: memoryview, position: PhysicalOffset) -> bool:
        bad = first_bad(view, position)
        if bad is not None:
            self.bad.add(bad)
        return bad is None

    async def warm(self, view: memoryview) -> None:
        self.warmed += 1
        self.cold.clear()

    def on_confirm(self, callback: Callable[[PhysicalOffset], None]) -> Callable[[], None]:
        self.listeners.append(callback)
        return lambda: self.listeners.remove(callback)

    def views(self) -> list[BatchView]:
        return [BatchView(batch) for batch in self.batches]


class FakeWriter:
    """LogWriter over a ListLog. `refusal` is raised by `ensure_can_append`."""

    def __init__(self, log: ListLog, epoch: int) -> None:
        self.log = log
        self._epoch = MasterEpoch(epoch)
        self.appender: Appender
        self.is_open = True
        self.refusal: PacelineError | None = None
        self.window_bytes = 1 << 40
        self.abandoned: str | None = None
        self.rounds = 0
        self.rounds_blocked = False
        self.round_waiters: list[asyncio.Future[None]] = []
        self.waiting: deque[tuple[int, Confirmed]] = deque()
        self.answers_early = False
        self.waiting_early: deque[tuple[int, Confirmed]] = deque()
        self._end = int(log.end)
        self._is_turn_due = False

    @property
    def epoch(self) -> MasterEpoch:
        return self._epoch

    @property
    def end(self) -> PhysicalOffset:
        return PhysicalOffset(self._end)

    @property
    def confirm(self) -> PhysicalOffset:
        return self.log.confirm

    def ensure_can_append(self, *, is_freeing: bool = False) -> None:
        is_taken = is_freeing and isinstance(self.refusal, DiskFullError)
        if self.refusal is not None and not is_taken:
            raise self.refusal

    def has_window(self, unanswered_bytes: int) -> bool:
        return unanswered_bytes <= self.window_bytes

    def append(self, header: bytes, payload: Buffer) -> PhysicalOffset:
        batch = header + bytes(payload)
        self.log.batches.append(batch)
        self._end += len(batch)
        if self.log.is_automatic and not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self.confirm_all)
        return self.end

    def abandon(self, reason: str) -> None:
        self.abandoned = reason
        self.refusal = NotMasterError("abandoned", master=None)
        self.fence()

    def wait_confirmed(
        self, position: PhysicalOffset, callback: Confirmed, *, timeout_ms: int
    ) -> None:
        if position <= self.log.confirm_position:
            callback(None)
            return
        assert not self.waiting or self.waiting[-1][0] <= position, "positions must rise"
        self.waiting.append((position, callback))

    def wait_held(self, position: PhysicalOffset, callback: Confirmed, *, timeout_ms: int) -> None:
        self.waiting_early.append((position, callback))

    def hold_to(self, position: int) -> None:
        """As many members as the group asks for hold it (R37)."""
        while self.waiting_early and self.waiting_early[0][0] <= position:
            self.waiting_early.popleft()[1](None)

    async def read_round(self) -> None:
        self.rounds += 1
        if self.rounds_blocked:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.round_waiters.append(waiter)
            await waiter

    def end_rounds(self) -> None:
        for waiter in self.round_waiters:
            if not waiter.done():
                waiter.set_result(None)

    def confirm_all(self) -> None:
        self.confirm_to(self._end)

    def confirm_to(self, position: int) -> None:
        """Confirm moves: waiters first, then listeners, as the role does."""
        self._is_turn_due = False
        self.log.confirm_position = position
        self.hold_to(position)
        while self.waiting and self.waiting[0][0] <= position:
            self.waiting.popleft()[1](None)
        for listener in list(self.log.listeners):
            listener(PhysicalOffset(position))

    def fence(self) -> None:
        """The mastership ends: whoever waits does not know."""
        while self.waiting:
            self.waiting.popleft()[1](OutcomeUnknownError("fenced"))
        for waiter in self.round_waiters:
            if not waiter.done():
                waiter.set_exception(NotMasterError("fenced", master=None))
        self.round_waiters.clear()


class FakeRole:
    """Role that the test sets. Begins as master of epoch 1 with its start record confirmed."""

    def __init__(self, log: ListLog, clock: ManualClock) -> None:
        self.log = log
        self.clock = clock
        self.state = RoleState.MASTER
        self.epoch = MasterEpoch(1)
        self.projections = Projections()
        self.identity = Identity(
            cluster_id="cluster",
            group=GROUP,
            replica_id=ReplicaId(1),
            incarnation=Incarnation(1),
        )
        self.current: FakeWriter | None = None
        self.acting: ActingTerm | None = None
        self.asked: list[int] = []
        self.answer: dict[str, Any] = {"ok": True}
        self.begin_epoch(1)

    @property
    def reader(self) -> ListLog:
        return self.log

    def writer(self) -> FakeWriter:
        if self.current is None:
            raise no_writer(self.state, GROUP, a_view(master=2).groups[GROUP])
        return self.current

    def begin_epoch(self, epoch: int, *, is_unclean: bool = False) -> FakeWriter:
        self.state, self.epoch, self.acting = RoleState.MASTER, MasterEpoch(epoch), None
        writer = self.current = FakeWriter(self.log, epoch)
        writer.appender = Appender(writer, self.projections, self.clock)
        was_automatic, self.log.is_automatic = self.log.is_automatic, False
        now = max(self.clock.unix_ms(), self.projections.log_time_ms)
        document = epoch_start_document(epoch=epoch, is_unclean=is_unclean)
        writer.appender.record(Kind.EPOCH_START, document, store_unix_ms=now)
        self.log.is_automatic = was_automatic
        writer.confirm_all()
        return writer

    def become_replica(self) -> None:
        if self.current is not None:
            self.current.fence()
        self.state, self.current = RoleState.REPLICA, None

    def become_acting(self, epoch: int, *, lease_ms: int = 60_000) -> ActingTerm:
        """As an election does: what was not confirmed here is not known."""
        self.become_replica()
        self.state, self.epoch = RoleState.ACTING_MASTER, MasterEpoch(epoch)

        async def ask(leases_ms: int) -> dict[str, Any]:
            self.asked.append(leases_ms)
            return dict(self.answer)

        self.acting = ActingTerm(self.epoch, lease_ms=lease_ms, clock=self.clock, ask=ask)
        return self.acting

    def is_fit(self) -> bool:
        return True

    def status(self) -> dict[str, Any]:
        positions = {"end": 0, "flushed": 0, "confirm": 0}
        return {
            "role": self.state.value,
            "epoch": self.epoch,
            "replication": None,
            **positions,
        }


def a_view(
    *, version: int = 1, master: int = 1, topics: dict[str, int] | None = None
) -> ClusterView:
    """One group of three brokers; topics get ids 1, 2, ... in order of insertion."""
    counts = {"orders": 4} if topics is None else topics
    replicas = {
        ReplicaId(number): ReplicaView(
            replica_id=ReplicaId(number),
            store_id=f"s{number}",
            incarnation=Incarnation(1),
            client_address=OTHER_MASTER if number == 2 else f"127.0.0.1:{9000 + number}",
            replication_address=f"127.0.0.1:{9100 + number}",
        )
        for number in (1, 2, 3)
    }
    group = GroupView(
        group=GROUP,
        master=ReplicaId(master),
        master_incarnation=Incarnation(1),
        master_epoch=MasterEpoch(1),
        sync_state_set=frozenset(replicas),
        set_epoch=SetEpoch(1),
        settings=GroupSettings(),
        replicas=replicas,
    )
    return ClusterView(
        cluster_id="cluster",
        version=version,
        groups={GROUP: group},
        topics={
            TopicName(name): TopicView(
                topic=TopicName(name),
                topic_id=TopicId(index),
                queues={GROUP: count},
                message_type=MIXED,
            )
            for index, (name, count) in enumerate(counts.items(), start=1)
        },
    )


class Bench:
    """A service on fakes, with what tests reach for."""

    def __init__(
        self,
        *,
        is_automatic: bool = True,
        hooks: Hooks | None = None,
        group: GroupName = GROUP,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        self.log = ListLog(is_automatic=is_automatic)
        self.role = FakeRole(self.log, self.clock)
        self.role.identity = replace(self.role.identity, group=group)
        self.disk = MemoryDisk()
        self.disk.make_folder("/data")
        self.kept = OffsetsFile(self.disk, "/data")
        self.trust = ClockTrust.AGREES
        self.told_unix_ms: int | None = None
        settings.setdefault("auto_create_topic_enable", False)
        self.service = Service(
            role=self.role,
            group=group,
            clock=self.clock,
            settings=ServiceSettings(**settings),
            kept=self.kept,
            trust=lambda: self.trust,
            told_unix_ms=lambda: self.told_unix_ms,
            ask=self._make_group,
            hooks=hooks,
        )
        self.service.view_changed(a_view())

    async def _make_group(self, command: BrokerCommand) -> dict[str, Any]:
        """As controllers do for a consumer group that is used and not there."""
        assert isinstance(command, EnsureConsumerGroup), command
        routes = self.service.routes
        made = ConsumerGroupView(group=command.group)
        # Not by a newer view: tests number theirs.
        routes.consumer_groups = {**routes.consumer_groups, made.group: made}
        return {"ok": True, "version": routes.version}

    @property
    def writer(self) -> FakeWriter:
        return self.role.writer()

    def finish_work(self) -> None:
        """What takes several turns of the loop, such as the check of a large batch."""
        while not self.service.work.is_idle:
            self.service.work.turn()

    def append_derived(self, batch: bytes) -> None:
        """A batch that the master made, as a duty does it; confirmed."""
        now = self.service.ledger.log_time_ms()
        self.writer.appender.made(batch, store_unix_ms=now)
        self.writer.confirm_all()

    async def call(self, name: str, **fields: Any) -> dict[str, Any]:
        """The answer of a call, which is of the type that its table says."""
        answer = await self.service.calls.call({"call": name, **fields}, asker=ANYBODY)
        read_answer(CALLS[name].answer_type(), answer)
        return answer


def replayed(bench: Bench) -> bytes:
    """What the log alone says (INV-9)."""
    projections = Projections()
    for view in bench.log.views():
        projections.apply(view.header, view)
    assert Projections.restore(projections.snapshot()).snapshot() == projections.snapshot()
    return projections.snapshot()


async def until(is_true: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds; fails after 10 s of the loop's time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 10
    while not is_true():
        assert loop.time() < deadline, "the condition never held"
        await turn()
