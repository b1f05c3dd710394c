"""Pure: what happened in a run, as it is recorded, and all that a checker ever sees.

A history has what clients did (`Operation`s, with the time of asking and of the answer), what was
seen of the nodes (`Probe`s, `Committed` events of controllers), what was done to them
(`FaultEvent`s), and at the end a dump of every replica's log and of every controller. All times
are microseconds of one clock, the harness's, which no fault touches. Everything is identified by
its `number`, the place in the history, so that a violation can name its proof.

Which code sent, what a producer believed or what the workload intended is not here on purpose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from paceline_chaos.history.basis import Event as Event
from paceline_chaos.history.basis import Found
from paceline_chaos.history.basis import Operation as Operation
from paceline_chaos.history.basis import Outcome as Outcome
from paceline_chaos.history.basis import Queue as Queue
from paceline_chaos.history.basis import Seen as Seen
from paceline_chaos.history.hooked import HookCall
from paceline_chaos.history.secured import ChangeRights, ListNames, SecurityApplied

ALL_ACK = "all_ack_in_sync_state_set"
IN_SYNC = "in_sync_replicas"
AUTO_IN_SYNC = "enable_auto_in_sync_replicas"
"""Where a history's world says whether answers wait for confirm (R37)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Operation):
    """One message sent; retries of the client library are inside."""

    topic: str
    key: str | None
    value: str
    crc: int
    session: str = ""
    """The producer object: order is promised within one (S8)."""
    is_idempotent: bool = True
    wanted: Queue | None = None
    """The queue that the application chose; None: it left that to the client."""
    queue: Queue | None = None
    """Where it was stored; None unless OK."""
    offset: int | None = None
    """-1: a duplicate of which the broker no longer knows the offset."""
    epoch: int | None = None
    """Master epoch that the acknowledgement names (S13)."""
    is_duplicate: bool = False
    is_confirmed: bool = True
    """False only under the weaker choices of R37: acknowledged before confirm."""
    delay_ms: int = 0
    """In its queue not before so long after it was stored; `offset` is -1 then."""
    tag: str = ""
    properties: Mapping[str, str] | None = None
    """What filters look at (S39)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall(Operation):
    """A delayed message is taken back before it is due."""

    topic: str
    value: str
    """What was sent (`Send.value`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull(Operation):
    """Messages of one queue read from an offset on."""

    queue: Queue
    offset: int
    assignment: str = ""
    """Pulls of one client, queue and assignment follow each other without gap (S9); "" = none."""
    messages: tuple[Seen, ...] = ()
    start: int | None = None
    end: int | None = None
    """The queue's valid range as the answer states it, if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver(Operation):
    """One message handed to a member's listener: asked = it began, answered = it returned."""

    consumer_group: str
    member: str
    queue: Queue
    message: Seen
    token: int | None = None
    """Fencing token under which it was processed, in ordered consumption (S26, S27)."""
    is_broadcast: bool = False
    """The member gets every message, and no other one counts for it (S35)."""
    wanted: str = ""
    """The expression of the group's filter; "" = all messages (S39)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Operation):
    """A group's offset of a queue is committed: the next offset to consume."""

    consumer_group: str
    member: str
    queue: Queue
    offset: int
    is_reset: bool = False
    is_provisional: bool = False
    """An acting master has taken it, to hand it to the next master: no promise (R36)."""
    token: int | None = None
    """The lock's token that the commit named, if any (INV-11); as in `Lock`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOffset(Operation):
    """What a group has committed in a queue; `offset` None = never anything."""

    consumer_group: str
    queue: Queue
    offset: int | None = None
    maybe_stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRange(Operation):
    """First and next offset of a queue, as answered by the node."""

    queue: Queue
    start: int | None = None
    end: int | None = None
    maybe_stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Find(Operation):
    """All messages of a topic are looked for that have a key, a unique key, an id, a time."""

    topic: str
    by: str
    wanted: str
    """Of a time "from-to", both included."""
    found: tuple[Found, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock(Operation):
    """A queue lock is asked for, or renewed."""

    consumer_group: str
    member: str
    queue: Queue
    token: int | None = None
    """One number that orders grants: epoch * 2**64 + physical offset of the grant (R33)."""
    lease_ms: int = 0
    is_renewal: bool = False
    """It named the token that it held; else it asked for a lock of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlock(Operation):
    """A queue lock is given back."""

    consumer_group: str
    member: str
    queue: Queue
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pop(Operation):
    """One message received by receipt; asked and answered = the receive that brought it."""

    consumer_group: str
    member: str
    queue: Queue
    message: Seen
    attempt: int
    """As the broker says: 1 = it was never given to anybody before."""
    invisible_ms: int
    is_ordered: bool = False
    """Its group is given a queue's messages in order, one receive after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack(Operation):
    """A received message is acknowledged."""

    consumer_group: str
    member: str
    queue: Queue
    offset: int
    is_back: bool = False
    """Not done, but given back: others may be given it at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend(Operation):
    """A dead letter is given to its consumer group again."""

    consumer_group: str
    queue: Queue
    """Of the dead-letter topic."""
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransaction(Operation):
    """A half message is stored; nobody may see it before its commit is asked for (S24)."""

    topic: str
    value: str
    crc: int
    group: str | None = None
    """Broker group that has it; None unless OK."""
    producer_group: str = ""
    """Whose producers are asked about it if nobody ends it; "" = not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction(Operation):
    """A transaction is committed or rolled back; what was asked for because of a check has an
    UNKNOWN outcome."""

    value: str
    is_commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTransaction(Operation):
    """A producer was asked what became of a transaction, and answered at once."""

    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic(Operation):
    """A topic is made; `topic_id` None unless OK."""

    topic: str
    queues: Mapping[str, int]
    topic_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopic(Operation):
    """The numbers of a topic's queues are changed, by group; None: they stay."""

    topic: str
    read_queues: Mapping[str, int] | None = None
    write_queues: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopic(Operation):
    """A topic is looked up, linearizably; OK with `topic_id` None = there is none."""

    topic: str
    topic_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderElection(Operation):
    """An operator orders an election."""

    group: str
    replica: int | None = None
    """Who is to win."""
    is_unclean: bool = False
    """The loss of records is accepted (R21)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Event):
    """A broker's own word on itself at a moment (white box)."""

    at_us: int
    """It was so then or later: the moment of asking."""
    node: str
    group: str
    replica: int | None
    incarnation: int
    role: str
    """ "master", "replica", "none" ..., as `/v1/status` says."""
    epoch: int
    is_open: bool
    start: int
    end: int
    flushed: int
    confirm: int
    answered_us: int | None = None
    """It was so then or earlier; None: at `at_us` exactly."""

    @property
    def last_us(self) -> int:
        """The latest moment of which it may speak: what it claims holds from then on."""
        return self.at_us if self.answered_us is None else self.answered_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Event):
    """One event of the controllers' machine, when a controller applied it."""

    at_us: int
    node: str
    index: int
    """Index of the replicated command, equal on all controllers."""
    kind: str
    """ "master_elected", "set_changed", "replica_registered" ..., as the machine notes it."""
    members: Mapping[str, Any]
    """The event's other members: group, master, master_epoch, set_epoch, sync_state_set ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEvent(Event):
    """A fault begins or ends."""

    at_us: int
    kind: str
    """Name in `faults.plan.KINDS`."""
    target: str
    """What it hit in the end: "g1-b2", "c1", "g1-b1>g1-b2" for a one-way cut, "all"."""
    is_begin: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase(Event):
    """The run enters a phase: "load", "heal" (from here on only what is named stays broken),
    "over" (clients begin nothing new), "drain", "end"."""

    at_us: int
    name: str
    broken: tuple[str, ...] = ()
    """Nodes that stay broken for ever (L3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(Event):
    """The harness itself, and with it every client, stood still: nobody knows whose time it was."""

    at_us: int
    for_us: int


SKIPPED = "SKIPPED"
"""Cause of a record that says what another group has (R36)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """One batch of a replica's log."""

    position: int
    size: int
    epoch: int
    kind: str
    """Name of `records.header.Kind`."""
    crc: int
    """crc32c over all its bytes."""
    queue: Queue | None = None
    base_offset: int = 0
    messages: tuple[tuple[str, int], ...] = ()
    """(value, crc of the body) of each record, for normal batches."""
    log_start: int = 0
    """Of a retention record: nothing below is kept once it is confirmed (R26)."""
    cause: str = ""
    """Name of `records.header.Cause`, of a batch that a master made out of others (R34); SKIPPED:
    of a record that says what another group has (R36)."""
    sources: tuple[int, ...] = ()
    """What each of its records was made from: `position << 16 | number in the batch`."""
    target: str = ""
    """The topic that such a batch is made for, also while its messages wait."""
    marks: tuple[str, ...] = ()
    """Where each record waited in another group, as the acting master that sent it has it (R36)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDump(Event):
    """The log of one replica at the end, read from its files by other code than wrote them."""

    node: str
    group: str
    replica: int | None
    start: int
    confirm: int
    end: int
    batches: tuple[StoredBatch, ...]
    damage: str | None = None
    """Why reading stopped before `end`, if it did."""
    is_discarded: bool = False
    """Of a disk that was thrown away in the course of the run: it owes nothing any more, but what
    is on it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalQueueDump(Event):
    """One logical queue of a static topic at the end, as the controllers have it (S37)."""

    node: str
    """The controller that says so."""
    logical_queue: int
    queues: tuple[Queue, ...]
    """Of its segments, oldest first."""
    starts: tuple[int, ...]
    """Logical offset at which each begins."""
    ends: tuple[int, ...]
    """How many messages each had when it was sealed; the last one is open and has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerDump(Event):
    """State of one controller at the end (S32)."""

    node: str
    index: int
    """Applied so far."""
    digest: str
    replayed_digest: str | None = None
    """Digest of a fresh machine that applied the log (or snapshot and tail) from the files."""


Entry: TypeAlias = (
    Send
    | Recall
    | Pull
    | Deliver
    | Commit
    | QueryOffset
    | QueryRange
    | Find
    | Lock
    | Unlock
    | Pop
    | Ack
    | Resend
    | BeginTransaction
    | EndTransaction
    | CheckTransaction
    | CreateTopic
    | AlterTopic
    | DescribeTopic
    | OrderElection
    | HookCall
    | SecurityApplied
    | ListNames
    | ChangeRights
    | Probe
    | Decision
    | FaultEvent
    | Phase
    | Stall
    | ReplicaDump
    | LogicalQueueDump
    | ControllerDump
)


@dataclass(slots=True)
class History:
    """All entries of one run, in order of number, and what the run was."""

    world: Mapping[str, Any]
    """Seed, bed ("core", "world", "processes"), topology, settings: for people and checkers."""
    entries: list[Entry] = field(default_factory=list)


def token_number(token: Sequence[int]) -> int:
    """The token of a lock, (epoch, position), as entries hold it: one number that orders grants."""
    epoch, position = token
    return (epoch << 64) + position
