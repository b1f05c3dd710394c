"""Pure: events of the master's replication machine, and what it wants done.

The events of the path of every batch are NamedTuples: they cost a third of a dataclass. Positions
are physical offsets, ends are exclusive, durations are milliseconds of the process's running time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from paceline.types import Incarnation, MasterEpoch, PhysicalOffset, ReplicaId, SetEpoch
from paceline.wire.cluster import GroupView
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication.handshake import ConnectionId, Introduction, Welcome
from paceline_broker.replication.messages import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterSettings:
    """What the master's own process decides; what the group decides is in `GroupSettings`."""

    replica_lag_ms_max: int = 2000
    """A member silent or behind for this long leaves the set (Kafka and RocketMQ: 10-30 s)."""
    stall_ms_max: int = 200
    """A gap of the master's own loop beyond this restarts everybody's lag (R12)."""
    rejoin_backoff_ms_max: int = 30_000
    """Cap of the growing wait before a replica that lagged may join again (R12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSyncStateSet:
    """A proposal to the controller: compare and set (R9, R16)."""

    sequence: int
    """Number of the proposal in this mastership: sent again, it is the same proposal (R7)."""
    master: ReplicaId
    master_epoch: MasterEpoch
    set_epoch: SetEpoch
    """The set epoch it was decided on."""
    sync_state_set: frozenset[ReplicaId]
    incarnations: Mapping[ReplicaId, Incarnation]
    """Of every member of the new set."""
    confirm: PhysicalOffset
    """For the confirm floor."""
    reason: str
    """For the group's history: caught_up, or how those who leave fail."""


# -- events ---------------------------------------------------------------------------------------


class ReplicaAcked(NamedTuple):
    """An acknowledgement frame; the first of a connection says that its truncation is durable."""

    connection: ConnectionId
    epoch: MasterEpoch
    appended: PhysicalOffset
    flushed: PhysicalOffset
    round: int
    is_ready: bool
    has_room: bool = True


class Appended(NamedTuple):
    """Own log bytes up to `end` are written to the file (R13)."""

    end: PhysicalOffset


class Flushed(NamedTuple):
    """Own log bytes up to `flushed` are on the disk."""

    flushed: PhysicalOffset


class ReplicaIntroduced(NamedTuple):
    """A proven replica described its log; `start` and `epochs` are of the master's own."""

    connection: ConnectionId
    introduction: Introduction
    start: PhysicalOffset
    epochs: EpochTable


class ReplicaLeft(NamedTuple):
    """A connection ended, whoever closed it."""

    connection: ConnectionId


class MemberRefused(NamedTuple):
    """A probe found the port of this start of a member closed, or another start behind it (R12)."""

    replica: ReplicaId
    incarnation: Incarnation


class GroupCommitted(NamedTuple):
    """The controller's view of the group; the role passes views on in order of version (R38)."""

    view: GroupView


class ProposalRefused(NamedTuple):
    """A definite no. `set_epoch` is the group's when it was refused, so an older attempt shows.

    0: refused before the group was looked at (session, deadline): as good as no answer.
    """

    sequence: int
    set_epoch: SetEpoch


class ProposalUnknown(NamedTuple):
    """No definite answer: it is proposed again, never guessed (R7)."""

    sequence: int


class RoundRequested(NamedTuple):
    """A read needs a round begun from now on (R4)."""


class Ran(NamedTuple):
    """The process has run for `elapsed_ms` since the last one; at least every 100 ms."""

    elapsed_ms: int


class Failed(NamedTuple):
    """A write, an fsync or the role ends this mastership (R1, R22)."""

    reason: str


MasterEvent: TypeAlias = (
    ReplicaAcked
    | Appended
    | Flushed
    | ReplicaIntroduced
    | ReplicaLeft
    | MemberRefused
    | GroupCommitted
    | ProposalRefused
    | ProposalUnknown
    | RoundRequested
    | Ran
    | Failed
)


class MasterReady(NamedTuple):
    """What to do after a step, in this order; most steps ask for nothing."""

    fence: str | None = None
    """Stop: fail all waiters as unknown, close everything, tell the role why."""
    is_lossy: bool = False
    """With `fence`: this log lacks what was confirmed, so it must not lead again (R16)."""
    confirm: PhysicalOffset | None = None
    """The new confirm offset: release answers up to it and tell the replicas."""
    opened: bool = False
    """The epoch-start record has just been confirmed (R3, R6)."""
    confirmed_round: int | None = None
    """Reads that wait for this round or a lower one may be answered."""
    welcome: tuple[ConnectionId, Welcome] | None = None
    installs: bool = False
    """The welcomed replica's log parts below our start: send the newest checkpoint too (R14)."""
    refuse: tuple[ConnectionId, Refused] | None = None
    """Send the refusal and close."""
    joined: ConnectionId | None = None
    """The replica is in place: push from its position, an empty frame at once."""
    close: tuple[ConnectionId, ...] = ()
    propose: AlterSyncStateSet | None = None
    probe: tuple[tuple[ReplicaId, Incarnation], ...] = ()
    """Members without a connection: find out whether their port refuses."""
    held: PhysicalOffset | None = None
    """R37, only with the switch off: answers up to here may leave, confirmed or not. After
    `confirm` in order, so that an answer says which."""


NOTHING = MasterReady()
