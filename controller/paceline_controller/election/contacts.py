"""Pure: the health of each replica, from its sessions, heartbeats and probes.

All controllers keep this, not only the leader: brokers send heartbeats to every one, so a new
leader knows the cluster the moment it leads. Times are the process's monotonic milliseconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from paceline.types import GroupName, Incarnation, MasterEpoch, ReplicaId
from paceline.wire.session import Heartbeat
from paceline_controller.election.election import ReplicaHealth, ReplicaStatus
from paceline_controller.state.model import Group, Replica

REPROBE_MS = 250
"""Between inconclusive probes of one replica: several within a heartbeat timeout."""
ASK_AHEAD_MS = 300
"""The other controllers are asked this long before a master counts as silent: no time is lost."""
ASK_AGAIN_MS = 300
DENIAL_MS_MAX = 1000
"""So old an answer that nobody hears it may be; an inquiry takes a quarter of a second at most."""

BACKOFF_FACTOR_MAX = 8
OUTDONE_RATIO = 4
"""So many times longer than another's syncs take those of a disk that is to blame for its stall.
Where the disks of all members take 0.2 to 1.5 s, the longest of some seconds differ by less."""

ConnectionId: TypeAlias = int
"""Number of a session's connection, unique in this process."""


class ReplicaKey(NamedTuple):
    """A replica of the cluster."""

    group: GroupName
    replica_id: ReplicaId


@dataclass(slots=True, kw_only=True)
class Contact:
    """One replica, in the newest incarnation this controller knows."""

    incarnation: Incarnation
    since_ms: int
    """When this incarnation was first known here."""
    report: Heartbeat | None = None
    heard_ms: int = 0
    """Of the last heartbeat."""
    stalled_ms: int | None = None
    """Since when its heartbeats say that its disk stalls."""
    back_ms: int = 0
    """When it was heard again after its last long pause; 0: it has made none."""
    connections: set[ConnectionId] = field(default_factory=set)
    is_gone: bool = False
    """Its port refused or another start answered, and nothing was heard since (R19)."""
    is_probing: bool = False
    probe_number: int = 0
    """Of the newest probe: answers to older ones, sent before a session closed, are no news."""
    probe_after_ms: int = 0
    """Not before: an inconclusive probe is repeated, but not at once."""
    elsewhere_ms: int = 0
    """When another controller heard it last, by our clock."""
    is_asking: bool = False
    ask_number: int = 0
    asked_ms: int = 0
    """When the last inquiry began."""
    denied_ms: int | None = None
    """When that inquiry began in which no other controller had heard it lately."""
    failures_count: int = 0
    """Epochs it could not open, or made no progress in, until the penalty ends (R6)."""
    penalty_until_ms: int = 0

    def renew(self, incarnation: Incarnation, *, now_ms: int) -> None:
        """Another start: what was known of the old one says nothing about it."""
        self.incarnation = incarnation
        self.since_ms = now_ms
        self.report = self.stalled_ms = None
        self.heard_ms = self.back_ms = 0
        self.connections.clear()
        self.elsewhere_ms = 0
        self.is_gone = self.is_probing = self.is_asking = False
        self.denied_ms = None
        self.failures_count = self.penalty_until_ms = 0
        # Its first heartbeat follows its registration; before that its port may not be open.
        self.probe_after_ms = now_ms + REPROBE_MS

    def hear(self, heartbeat: Heartbeat, *, now_ms: int, pause_ms: int) -> None:
        """A heartbeat, after a pause worth noting if it was longer than `pause_ms`."""
        self.report = heartbeat
        if not heartbeat.is_stalled:
            self.stalled_ms = None
        elif self.stalled_ms is None:
            self.stalled_ms = now_ms
        if self.heard_ms and now_ms - self.heard_ms > pause_ms:
            self.back_ms = now_ms
        self.heard_ms = now_ms
        self.denied_ms = None

    def hear_of(self, heartbeat: Heartbeat, *, heard_ms: int) -> None:
        """Another controller heard it then; news only if we have not since."""
        if heartbeat.incarnation == self.incarnation and heard_ms > self.last_ms:
            self.report, self.elsewhere_ms = heartbeat, heard_ms

    @property
    def last_ms(self) -> int:
        """When anybody heard it last."""
        return max(self.heard_ms, self.elsewhere_ms)

    def blame(self, *, now_ms: int, penalty_ms: int) -> None:
        """It led an epoch that did not work: the last choice for a while, longer each time (R6)."""
        if now_ms >= self.penalty_until_ms:
            self.failures_count = 0
        self.failures_count += 1
        self.penalty_until_ms = now_ms + penalty_ms * backoff_factor(self.failures_count - 1)

    def is_silent(self, *, floor_ms: int, now_ms: int, timeout_ms: int) -> bool:
        """Nothing heard for the timeout, counted at the earliest from `floor_ms`."""
        return now_ms >= max(self.since_ms, self.last_ms, floor_ms) + timeout_ms

    def is_outdone(self, others: Iterable["Contact"]) -> bool:
        """Whether its disk stalls and another's does clearly better.

        Where all stall, another master would as well. What the others told before this one stalled
        does not count: they may not have met yet what it waits for.
        """
        report, since_ms = self.report, self.stalled_ms
        if report is None or since_ms is None:
            return False
        return any(
            other.report is not None
            and other.report.is_healthy
            and other.last_ms >= since_ms
            and other.report.sync_ms * OUTDONE_RATIO <= report.sync_ms
            for other in others
        )

    def is_denied(self, *, now_ms: int) -> bool:
        """Whether the other controllers were asked of late, and none hears it either (R15)."""
        return self.denied_ms is not None and now_ms - self.denied_ms <= DENIAL_MS_MAX

    def belief(
        self,
        replica: Replica,
        others: Iterable["Contact"],
        *,
        floor_ms: int,
        now_ms: int,
        timeout_ms: int,
    ) -> ReplicaHealth:
        """Of the replica in its recorded incarnation; `others` may lead in its place."""
        is_silent = self.is_silent(floor_ms=floor_ms, now_ms=now_ms, timeout_ms=timeout_ms)
        report = self.report
        if self.incarnation != replica.incarnation:
            # Heard of a newer start that has not registered, or only of an older one.
            return ReplicaHealth(
                standing=ReplicaStatus.SILENT if is_silent else ReplicaStatus.UNKNOWN
            )
        if self.is_gone:
            standing = ReplicaStatus.GONE
        elif is_silent:
            standing = ReplicaStatus.SILENT
        elif report is None:
            standing = ReplicaStatus.UNKNOWN
        else:
            is_well = report.is_healthy and not self.is_outdone(others)
            standing = ReplicaStatus.HEALTHY if is_well else ReplicaStatus.UNHEALTHY
        return ReplicaHealth(
            standing=standing,
            end=report.end if report is not None else 0,
            last_epoch=report.last_epoch if report is not None else MasterEpoch(0),
            view_version=report.view_version if report is not None else 0,
            failures_count=self.failures_count if now_ms < self.penalty_until_ms else 0,
        )


def backoff_factor(failures_count: int) -> int:
    """1, 2, 4, 8 and no more."""
    return int(min(2**failures_count, BACKOFF_FACTOR_MAX))


class ProbeTarget(NamedTuple):
    """Ask this replica's port who it is (R19)."""

    key: ReplicaKey
    incarnation: Incarnation
    address: str
    number: int
    """Which probe of this contact it is."""


class Inquiry(NamedTuple):
    """Ask the other controllers whether they hear this replica in this start."""

    key: ReplicaKey
    incarnation: Incarnation
    number: int
    """Which inquiry of this contact it is."""


class HeardElsewhere(NamedTuple):
    """What another controller heard last of a replica."""

    heartbeat: Heartbeat
    age_ms: int


class ProbeAnswer(NamedTuple):
    """What a broker's /v1/probe says."""

    group: str
    replica_id: int | None
    incarnation: int
    role: str
    epoch: MasterEpoch


def is_expected(group: Group | None, target: ProbeTarget, answer: ProbeAnswer) -> bool:
    """The replica asked for, in that start, and, if it is master, in its epoch (R19)."""
    is_same = (answer.group, answer.replica_id, answer.incarnation) == (
        target.key.group,
        target.key.replica_id,
        target.incarnation,
    )
    if not is_same or group is None or group.master != target.key.replica_id:
        return is_same
    if not group.is_open and answer.epoch < group.master_epoch:
        return True  # elected a moment ago, and about to learn it
    return answer.role == "MASTER" and answer.epoch == group.master_epoch
