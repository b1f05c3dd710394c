"""Pure: events of `Liveness`, and what it wants done."""

from dataclasses import dataclass, field
from typing import TypeAlias

from paceline.types import GroupName, ReplicaId
from paceline.wire.session import Heartbeat
from paceline_controller.election.acting import SETTLE_MS, Proposal
from paceline_controller.election.contacts import (
    ConnectionId,
    HeardElsewhere,
    Inquiry,
    ProbeAnswer,
    ProbeTarget,
)
from paceline_controller.state.model import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessSettings:
    heartbeat_timeout_ms: int = 1500
    election_open_timeout_ms: int = 3000
    """A master that has not opened its epoch after this is replaced (R6)."""
    progress_timeout_ms: int = 6000
    """A master whose confirm stands still this long while sends wait is replaced (R6)."""
    penalty_ms: int = 30_000
    """How long such a master is the last choice (R6); twice as long each time, up to eightfold."""
    preferred_settle_ms: int = 30_000
    """A preferred member gets mastership back after so long in the set, healthy without a break."""
    acting_settle_ms: int = SETTLE_MS
    """So long nobody can be elected before another replica acts as master (R36)."""


# -- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A heartbeat of a registered replica, over one of its sessions."""

    connection: ConnectionId
    group: GroupName
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed:
    """A connection ended, whoever closed it."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFinished:
    """`answer` None: refused (`is_refused`), or no answer in time."""

    target: ProbeTarget
    answer: ProbeAnswer | None
    is_refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OthersAsked:
    """An inquiry ended: what those other controllers that answered in time have heard."""

    inquiry: Inquiry
    heard: tuple[HeardElsewhere, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipChanged:
    """`is_leader` only after this node's `lead` command was applied."""

    is_leader: bool
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionFinished:
    """A proposal of ours has its outcome, or was given up."""

    group: GroupName


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged:
    """The machine has applied something: look again."""

    groups: frozenset[GroupName] | None = None
    """At these; None: at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Every TICK_MS, while this controller leads."""


LivenessEvent: TypeAlias = (
    Heard
    | SessionClosed
    | ProbeFinished
    | OthersAsked
    | LeadershipChanged
    | ElectionFinished
    | StateChanged
    | Tick
)


@dataclass(slots=True, kw_only=True)
class Ready:
    """What to do now."""

    probes: list[ProbeTarget] = field(default_factory=list)
    inquiries: list[Inquiry] = field(default_factory=list)
    transfers: list[tuple[Group, ReplicaId]] = field(default_factory=list)
    """Have these groups' masters hand over to the member that is preferred."""
    ask_reports: list[GroupName] = field(default_factory=list)
    """Ask these groups' brokers for a heartbeat at once: positions count in the choice."""
    elections: list[Proposal] = field(default_factory=list)
    """At most one under way per group until ElectionFinished."""
