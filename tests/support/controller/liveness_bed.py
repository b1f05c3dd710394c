"""A judge of liveness, its group, and brokers that beat; time is a number the test sets."""

from typing import Any

from tests.support.controller.builders import G1, Driver, a_group

from paceline.types import ReplicaId
from paceline.wire.session import Heartbeat, Role
from paceline_controller.election.contacts import (
    HeardElsewhere,
    Inquiry,
    ProbeAnswer,
    ProbeTarget,
    ReplicaKey,
)
from paceline_controller.election.liveness import TICK_MS, Liveness
from paceline_controller.election.liveness_events import (
    ElectionFinished,
    Heard,
    LeadershipChanged,
    LivenessEvent,
    LivenessSettings,
    OthersAsked,
    ProbeFinished,
    Ready,
    SessionClosed,
    Tick,
)

TIMEOUT_MS = 1500
OPEN_MS = 3000
PROGRESS_MS = 6000


class Bed:
    """A group, its judge, and brokers that send heartbeats over connection = replica id."""

    def __init__(self, driver: Driver, *, is_leader: bool = True) -> None:
        self.driver = driver
        self.now = 10_000
        self.liveness = Liveness(
            lambda: driver.machine.groups,
            LivenessSettings(
                heartbeat_timeout_ms=TIMEOUT_MS,
                election_open_timeout_ms=OPEN_MS,
                progress_timeout_ms=PROGRESS_MS,
            ),
        )
        self.elections: list[Any] = []  # ElectMaster, and AppointActing where nobody can lead
        self.probes: list[ProbeTarget] = []
        self.asked = 0
        self.elsewhere: dict[int, HeardElsewhere] = {}
        """What other controllers say when they are asked."""
        self.answers_inquiries = True
        self.inquiries: list[Inquiry] = []
        self.transfers: list[ReplicaId] = []
        self.beating: dict[int, dict[str, Any]] = {}
        if is_leader:
            self.lead()

    def step(self, event: LivenessEvent) -> Ready:
        ready = self.liveness.step(event, self.now)
        self.elections += ready.elections
        self.probes += ready.probes
        self.asked += len(ready.ask_reports)
        self.inquiries += ready.inquiries
        self.transfers += [preferred for _, preferred in ready.transfers]
        if self.answers_inquiries:
            for inquiry in ready.inquiries:
                self.answer(inquiry)
        return ready

    def answer(self, inquiry: Inquiry) -> None:
        """The other controllers say what the test has put into `elsewhere`."""
        heard = self.elsewhere.get(inquiry.key.replica_id)
        self.step(OthersAsked(inquiry=inquiry, heard=() if heard is None else (heard,)))

    def heartbeat(self, number: int, **changes: Any) -> Heartbeat:
        replica = self.driver.group.replicas[ReplicaId(number)]
        is_master = self.driver.group.master == number
        arguments = {
            "replica_id": ReplicaId(number),
            "incarnation": replica.incarnation,
            "role": Role.MASTER if is_master else Role.REPLICA,
            "epoch": self.driver.group.master_epoch,
            "end": 10_000,
            "flushed": 10_000,
            "confirm": 10_000,
            "is_healthy": True,
            "waiting": 0,
            "last_epoch": self.driver.group.master_epoch,
            "view_version": self.driver.machine.version,
            **changes,
        }
        return Heartbeat(**arguments)

    def lead(self) -> None:
        self.step(LeadershipChanged(is_leader=True, term=1))

    def beat(self, number: int, **changes: Any) -> None:
        heartbeat = self.heartbeat(number, **changes)
        self.step(Heard(connection=number, group=G1, heartbeat=heartbeat))

    def run(self, milliseconds: int, *beating: int, **changes: Any) -> None:
        """Time passes in ticks; the replicas named send a heartbeat with every other tick."""
        for tick in range(milliseconds // TICK_MS):
            self.now += TICK_MS
            if tick % 2 == 0:
                for number in beating:
                    self.beat(number, **changes)
            self.step(Tick())

    def close(self, number: int) -> None:
        self.step(SessionClosed(connection=number))

    def probe(self, number: int, *, is_refused: bool = False, **answer: Any) -> None:
        """The last probe of a replica ends: refused, unclear, or answered."""
        target = [p for p in self.probes if p.key == ReplicaKey(G1, ReplicaId(number))][-1]
        told = None
        if answer:
            told = ProbeAnswer(
                **{
                    "group": G1,
                    "replica_id": number,
                    "incarnation": target.incarnation,
                    "role": "MASTER",
                    "epoch": self.driver.group.master_epoch,
                    **answer,
                }
            )
        self.step(ProbeFinished(target=target, answer=told, is_refused=is_refused))

    def apply(self) -> None:
        """The proposed election is committed."""
        assert self.driver.do(self.elections[-1])["ok"]
        self.step(ElectionFinished(group=G1))


def a_running_group() -> Bed:
    """Three brokers, replica 1 master of an open epoch, all reported."""
    driver = a_group()
    driver.report_open(confirm=100)
    bed = Bed(driver)
    bed.run(200, 1, 2, 3)
    assert not bed.elections
    bed.probes.clear()
    return bed
