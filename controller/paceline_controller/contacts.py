"""Pure: what a controller has heard of each replica: sessions, heartbeats, probes.

All controllers keep this, not only the leader: brokers send heartbeats to every one, so a new
leader knows the cluster the moment it leads. Times are the process's monotonic milliseconds.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from paceline.types import GroupName, Incarnation, MasterEpoch, ReplicaId
from paceline.wire.session import Heartbeat
from paceline_controller.election import Belief, Standing
from paceline_controller.state.model import Replica

REPROBE_MS = 250
"""Between inconclusive probes of one replica: several within a heartbeat timeout."""

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
    penalty_until_ms: int = 0
    """It could not open an epoch (R6)."""

    def renew(self, incarnation: Incarnation, *, now_ms: int) -> None:
        """Another start: what was known of the old one says nothing about it."""
        self.incarnation = incarnation
        self.since_ms = now_ms
        self.report = None
        self.heard_ms = self.back_ms = 0
        self.connections.clear()
        self.is_gone = self.is_probing = False
        self.penalty_until_ms = 0
        # Its first heartbeat follows its registration; before that its port may not be open.
        self.probe_after_ms = now_ms + REPROBE_MS

    def hear(self, *, now_ms: int, pause_ms: int) -> None:
        """A heartbeat, after a pause worth noting if it was longer than `pause_ms`."""
        if self.heard_ms and now_ms - self.heard_ms > pause_ms:
            self.back_ms = now_ms
        self.heard_ms = now_ms

    def is_silent(self, *, floor_ms: int, now_ms: int, timeout_ms: int) -> bool:
        """Nothing heard for the timeout, counted at the earliest from `floor_ms`."""
        return now_ms >= max(self.since_ms, self.heard_ms, floor_ms) + timeout_ms

    def belief(self, replica: Replica, *, floor_ms: int, now_ms: int, timeout_ms: int) -> Belief:
        """Of the replica in its recorded incarnation."""
        is_silent = self.is_silent(floor_ms=floor_ms, now_ms=now_ms, timeout_ms=timeout_ms)
        report = self.report
        if self.incarnation != replica.incarnation:
            # Heard of a newer start that has not registered, or only of an older one.
            return Belief(standing=Standing.SILENT if is_silent else Standing.UNKNOWN)
        if self.is_gone:
            standing = Standing.GONE
        elif is_silent:
            standing = Standing.SILENT
        elif report is None:
            standing = Standing.UNKNOWN
        else:
            standing = Standing.HEALTHY if report.is_healthy else Standing.UNHEALTHY
        return Belief(
            standing=standing,
            end=report.end if report is not None else 0,
            view_version=report.view_version if report is not None else 0,
            is_penalised=now_ms < self.penalty_until_ms,
        )


class ProbeTarget(NamedTuple):
    """Ask this replica's port who it is (R19)."""

    key: ReplicaKey
    incarnation: Incarnation
    address: str
    number: int
    """Which probe of this contact it is."""


class ProbeAnswer(NamedTuple):
    """What a broker's /v1/probe says."""

    group: str
    replica_id: int | None
    incarnation: int
    role: str
    epoch: MasterEpoch
