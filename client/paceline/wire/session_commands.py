"""Pure: what a broker asks of the controllers' state machine, over its session.

The requests of `paceline.wire.session`, checked and typed. Every one but `StepDown` is a command of
the machine as it stands.
"""

from typing import Annotated, TypeAlias, cast

import msgspec
from msgspec import Meta

from paceline.types import Incarnation
from paceline.wire.calls.request import U32_MAX, TopicNumber, matching
from paceline.wire.commands import (
    Address,
    BegunEpoch,
    Command,
    Epoch,
    Group,
    Members,
    Position,
    Reason,
    Replica,
    SetNumber,
    Start,
    Token,
    read_kind,
    wrong,
)
from paceline.wire.static_topics import LOGICAL_QUEUES_MAX
from paceline.wire.topic_commands import (
    QUEUES_MAX,
    TOPIC_PATTERN,
    EnsureConsumerGroup,
    EnsureTopic,
)

PRESENTED_TOPICS_MAX = 160_000
"""As many as a cluster can have, the system's own included."""
PRESENTED_TOPIC_ID_MAX = 2**31 - 1
"""Half of all ids: above what an old store holds there is always room for new ones (R35)."""
LEASES_MS_MAX = 24 * 3600 * 1000
"""Locks are withheld for it: a day without any would be noticed."""
ELECTION_PRIORITY_MAX = 2**31 - 1
"""RocketMQ's default: nobody is preferred."""


class OpenSession(Command, frozen=True, kw_only=True):
    """Sequence 0 of a session. Result: {"ok": true}."""


class RegisterReplica(Command, frozen=True, kw_only=True):
    """One start of a replica (R9). Result: {"ok": true, "replica_id", "cluster_id", ...}.

    INCARNATION_STALE (details `incarnation`: the recorded one) removed it from the set (R9): raise
    the counter above that, fsync, register again.
    """

    group: Group
    store_id: Token
    replica_id: Replica | None = None
    """None: never had one."""
    incarnation: Start
    client_address: Address
    replication_address: Address
    end: Position
    """Physical offset after recovery."""
    confirm: Position
    last_epoch: Epoch
    """The epoch of the log's last record after recovery, 0 without any (R16)."""
    is_learner: bool
    is_empty: bool
    """The store holds no record: only such stores bootstrap a group (R18)."""
    is_unclean: bool
    """Memory durability, another boot id, no clean-shutdown mark (R13)."""
    is_suspect: bool
    """Recovery cut non-zero bytes (R23)."""
    election_priority: Annotated[int, Meta(ge=0, le=ELECTION_PRIORITY_MAX)] = ELECTION_PRIORITY_MAX
    """RocketMQ's brokerElectionPriority: the least is preferred as master (R17)."""


class PresentedTopic(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A topic as a store's own log knows it; [name, id, queues] on the wire."""

    topic: Annotated[str, matching(TOPIC_PATTERN)]
    topic_id: Annotated[int, Meta(ge=1, le=PRESENTED_TOPIC_ID_MAX)]
    queues: Annotated[int, Meta(ge=1, le=QUEUES_MAX)]
    """In this store's broker group."""


class PresentStore(Command, frozen=True, kw_only=True):
    """A store that the controllers cannot place shows what it holds (R18).

    Sent once a start, after RECOVERY_NEEDED for a registration. Result: RECOVERY_NEEDED again, now
    with the store on record; the broker repeats its registration until an operator has decided.
    """

    group: Group
    cluster_id: Token
    """The cluster that the store belongs to."""
    store_id: Token
    replica_id: Replica
    """What that cluster called it."""
    incarnation: Annotated[Incarnation, Meta(ge=2, le=U32_MAX)]
    """From 2: whoever recovers it has the one before on record, and this one registers (R9)."""
    client_address: Address
    replication_address: Address
    epoch: Epoch
    """The highest one that the store was told."""
    last_epoch: Epoch
    """The epoch of the log's last record after recovery, 0 without any."""
    start: Position
    end: Position
    confirm: Position
    topics: Annotated[tuple[PresentedTopic, ...], Meta(max_length=PRESENTED_TOPICS_MAX)]
    """As the whole log has them, also above confirm: the first of them."""
    topics_to_come: Annotated[int, Meta(ge=0, le=PRESENTED_TOPICS_MAX)] = 0
    """How many more follow (`PresentTopics`). The group is not recovered from it before."""
    topic_id_max: Annotated[int, Meta(ge=0, le=PRESENTED_TOPIC_ID_MAX)]
    is_learner: bool
    is_unclean: bool
    """R13, as in a registration."""
    is_suspect: bool
    """Recovery cut non-zero bytes (R23)."""
    is_damaged: bool
    """The log has a hole (R24), or no state for what is below its start (R14)."""
    leases_ms: Annotated[int, Meta(ge=1, le=LEASES_MS_MAX)]
    """As an acting master it may have granted queue locks for so long (R36)."""

    @property
    def topics_count(self) -> int:
        """Of those shown and those to come."""
        return len(self.topics) + self.topics_to_come

    def check(self) -> None:
        for field in ("topic", "topic_id"):
            if len({getattr(topic, field) for topic in self.topics}) < len(self.topics):
                raise wrong("topics", f"a list with no {field} twice")


class PresentTopics(Command, frozen=True, kw_only=True):
    """More topics of a store that has presented itself (R18).

    Result: RECOVERY_NEEDED, as for the store.
    """

    group: Group
    store_id: Token
    incarnation: Annotated[Incarnation, Meta(ge=2, le=U32_MAX)]
    """In which the store presented itself."""
    first: Annotated[int, Meta(ge=0, le=PRESENTED_TOPICS_MAX)]
    """How many come before these."""
    topics: Annotated[tuple[PresentedTopic, ...], Meta(max_length=PRESENTED_TOPICS_MAX)]


class AlterSyncStateSet(Command, frozen=True, kw_only=True):
    """Compare and set of a group's sync state set, by its master (R6 R7 R8 R9 R16).

    Result: {"ok": true, "set_epoch", "sync_state_set", "master_epoch"}.
    """

    group: Group
    master: Replica
    master_incarnation: Start
    master_epoch: Epoch
    set_epoch: SetNumber
    """The set epoch this was decided on; the new set gets the next one."""
    members: Members
    """The new set, each member with the incarnation it was judged in."""
    confirm: Position
    """The master's confirm; raises the group's floor (R16)."""
    reason: Reason = "untold"
    """For the history: caught_up, or gone, lag, disk_full of those who leave."""


class _OfMaster(Command, frozen=True, kw_only=True):
    """What a master says of its own epoch."""

    group: Group
    master: Replica
    master_incarnation: Start
    master_epoch: BegunEpoch
    confirm: Position


class OpenEpoch(_OfMaster, frozen=True, kw_only=True):
    """The epoch-start record is confirmed (R6). `confirm` is at or past its end. Result: ok."""


class RaiseConfirmFloor(_OfMaster, frozen=True, kw_only=True):
    """No candidate that ends below `confirm` may lead (R16); sent each second if it moved."""


class QueueSealed(_OfMaster, frozen=True, kw_only=True):
    """A queue of a static topic is sealed, by a record below `confirm`; sent until the view says
    so (R28). Result: {"ok": true, "topic": its view}.

    TOPIC_UNKNOWN, SEGMENT_UNKNOWN, NOT_MOVING: there is nothing to say it of.
    """

    topic_id: TopicNumber
    logical_queue: Annotated[int, Meta(ge=0, lt=LOGICAL_QUEUES_MAX)]
    generation: Annotated[int, Meta(ge=0, le=U32_MAX)]
    end: Position
    """Of its own queue: how many messages it holds, deleted ones included."""


class StepDown(_OfMaster, frozen=True, kw_only=True):
    """A master that has stopped intake asks for its replacement (R17 R20).

    The leader elects another member and leaves this one out of the new set where min allows.
    Result: that of the election; a refusal is definite, the master may resume intake.
    """

    preferred: Replica | None = None


class OpenActingLocks(Command, frozen=True, kw_only=True):
    """An acting master is about to grant queue locks, or asks whether it still acts (R36).

    Result: ok, which says that no higher epoch had begun when this was applied; NOT_ACTING.
    """

    group: Group
    replica_id: Replica
    incarnation: Start
    master_epoch: BegunEpoch
    """The epoch of its appointment."""
    leases_ms: Annotated[int, Meta(ge=1, le=LEASES_MS_MAX)]
    """What it grants on this answer ends at most so long after it asked."""


BrokerCommand: TypeAlias = (
    OpenSession
    | RegisterReplica
    | PresentStore
    | PresentTopics
    | AlterSyncStateSet
    | OpenEpoch
    | RaiseConfirmFloor
    | QueueSealed
    | StepDown
    | OpenActingLocks
    | EnsureTopic
    | EnsureConsumerGroup
)
_KINDS: dict[str, type[Command]] = {
    command.kind_name(): command for command in BrokerCommand.__args__
}


def read_command(document: object) -> BrokerCommand:
    """Check a command object (as in `Request.command`). Raises BadRequestError."""
    return cast(BrokerCommand, read_kind(document, _KINDS))
