"""Pure: what a broker asks of the controllers' state machine, over its session.

The requests of `paceline.wire.session`, checked and typed. Every one but `StepDown` is a command of
the machine as it stands.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

from paceline.errors import BadRequestError
from paceline.types import GroupName, Incarnation, MasterEpoch, ReplicaId, SetEpoch
from paceline.wire.fields import Fields
from paceline.wire.static_topics import LOGICAL_QUEUES_MAX
from paceline.wire.topic_commands import (
    QUEUES_MAX,
    TOPIC_PATTERN,
    EnsureConsumerGroup,
    EnsureTopic,
)

MEMBERS_MAX = 64
"""Replicas of one group; far above any use, bounds a message."""
NAME_PATTERN = r"(?!\.+\Z)[A-Za-z0-9_.-]{1,127}"
"""Names of broker groups and clusters; one of dots only would mean something to a path."""
CONTROLLER_ID_PATTERN = r"(?!\.+\Z)[A-Za-z0-9_.-]{1,64}"
TOKEN_PATTERN = r"[A-Za-z0-9_.:-]{1,64}"
"""Session ids, store ids, cluster ids."""
U32_MAX = 2**32 - 1
PRESENTED_TOPICS_MAX = 16_000
"""As many as a cluster can have, the system's own included."""
PRESENTED_TOPIC_ID_MAX = 2**31 - 1
"""Half of all ids: above what an old store holds there is always room for new ones (R35)."""
LEASES_MS_MAX = 24 * 3600 * 1000
"""Locks are withheld for it: a day without any would be noticed."""
ELECTION_PRIORITY_MAX = 2**31 - 1
"""RocketMQ's default: nobody is preferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """Sequence 0 of a session. Result: {"ok": true}."""

    kind: ClassVar[str] = "open_session"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def read(cls, fields: Fields) -> "OpenSession":
        return cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterReplica:
    """One start of a replica (R9). Result: {"ok": true, "replica_id", "cluster_id", ...}.

    INCARNATION_STALE (details `incarnation`: the recorded one) removed it from the set (R9): raise
    the counter above that, fsync, register again.
    """

    kind: ClassVar[str] = "register_replica"
    group: GroupName
    store_id: str
    replica_id: ReplicaId | None
    """None: never had one."""
    incarnation: Incarnation
    client_address: str
    replication_address: str
    end: int
    """Physical offset after recovery."""
    confirm: int
    last_epoch: MasterEpoch
    """The epoch of the log's last record after recovery, 0 without any (R16)."""
    is_learner: bool = False
    is_empty: bool
    """The store holds no record: only such stores bootstrap a group (R18)."""
    is_unclean: bool = False
    """Memory durability, another boot id, no clean-shutdown mark (R13)."""
    is_suspect: bool = False
    """Recovery cut non-zero bytes (R23)."""
    election_priority: int = ELECTION_PRIORITY_MAX
    """RocketMQ's brokerElectionPriority: the least is preferred as master (R17)."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def read(cls, fields: Fields) -> "RegisterReplica":
        return cls(
            group=GroupName(fields.text("group", pattern=NAME_PATTERN)),
            store_id=fields.text("store_id", pattern=TOKEN_PATTERN),
            replica_id=optional_replica(fields, "replica_id"),
            incarnation=Incarnation(fields.integer("incarnation", low=1, high=U32_MAX)),
            client_address=fields.address("client_address"),
            replication_address=fields.address("replication_address"),
            end=fields.integer("end"),
            confirm=fields.integer("confirm"),
            last_epoch=MasterEpoch(fields.integer("last_epoch", high=U32_MAX)),
            is_learner=fields.flag("is_learner"),
            is_empty=fields.flag("is_empty"),
            is_unclean=fields.flag("is_unclean"),
            is_suspect=fields.flag("is_suspect"),
            election_priority=(  # commands of an older version do not say it
                fields.integer("election_priority", high=ELECTION_PRIORITY_MAX)
                if fields.has("election_priority")
                else ELECTION_PRIORITY_MAX
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentedTopic:
    """A topic as a store's own log knows it."""

    topic: str
    topic_id: int
    queues: int
    """In this store's broker group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentStore:
    """A store that the controllers cannot place shows what it holds (R18).

    Sent once a start, after RECOVERY_NEEDED for a registration. Result: RECOVERY_NEEDED again, now
    with the store on record; the broker repeats its registration until an operator has decided.
    """

    kind: ClassVar[str] = "present_store"
    group: GroupName
    cluster_id: str
    """The cluster that the store belongs to."""
    store_id: str
    replica_id: ReplicaId
    """What that cluster called it."""
    incarnation: Incarnation
    """From 2: whoever recovers it has the one before on record, and this one registers (R9)."""
    client_address: str
    replication_address: str
    epoch: MasterEpoch
    """The highest one that the store was told."""
    last_epoch: MasterEpoch
    """The epoch of the log's last record after recovery, 0 without any."""
    start: int
    end: int
    confirm: int
    topics: tuple[PresentedTopic, ...]
    """As the whole log has them, also above confirm."""
    topic_id_max: int
    is_learner: bool
    is_unclean: bool
    """R13, as in a registration."""
    is_suspect: bool
    """Recovery cut non-zero bytes (R23)."""
    is_damaged: bool
    """The log has a hole (R24), or no state for what is below its start (R14)."""
    leases_ms: int
    """As an acting master it may have granted queue locks for so long (R36)."""

    def to_json(self) -> dict[str, Any]:
        topics = [[topic.topic, topic.topic_id, topic.queues] for topic in self.topics]
        return {"kind": self.kind, **asdict(self), "topics": topics}

    @classmethod
    def read(cls, fields: Fields) -> "PresentStore":
        return cls(
            group=GroupName(fields.text("group", pattern=NAME_PATTERN)),
            cluster_id=fields.text("cluster_id", pattern=TOKEN_PATTERN),
            store_id=fields.text("store_id", pattern=TOKEN_PATTERN),
            replica_id=replica(fields, "replica_id"),
            incarnation=Incarnation(fields.integer("incarnation", low=2, high=U32_MAX)),
            client_address=fields.address("client_address"),
            replication_address=fields.address("replication_address"),
            epoch=MasterEpoch(fields.integer("epoch", high=U32_MAX)),
            last_epoch=MasterEpoch(fields.integer("last_epoch", high=U32_MAX)),
            start=fields.integer("start"),
            end=fields.integer("end"),
            confirm=fields.integer("confirm"),
            topics=_read_topics(fields),
            topic_id_max=fields.integer("topic_id_max", high=PRESENTED_TOPIC_ID_MAX),
            is_learner=fields.flag("is_learner"),
            is_unclean=fields.flag("is_unclean"),
            is_suspect=fields.flag("is_suspect"),
            is_damaged=fields.flag("is_damaged"),
            leases_ms=fields.integer("leases_ms", low=1, high=LEASES_MS_MAX),
        )


def _read_topics(fields: Fields) -> tuple[PresentedTopic, ...]:
    """A list of [name, id, queues] with no name and no id twice."""
    rows = fields.any("topics")
    if not isinstance(rows, list) or len(rows) > PRESENTED_TOPICS_MAX:
        raise fields.wrong("topics", f"a list of at most {PRESENTED_TOPICS_MAX} topics", rows)
    topics: list[PresentedTopic] = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 3:
            raise fields.wrong("topics", "a list of [name, id, queues]", row)
        columns = Fields(dict(zip(("name", "id", "queues"), row, strict=True)), name="topics")
        topics.append(
            PresentedTopic(
                topic=columns.text("name", pattern=TOPIC_PATTERN),
                topic_id=columns.integer("id", low=1, high=PRESENTED_TOPIC_ID_MAX),
                queues=columns.integer("queues", low=1, high=QUEUES_MAX),
            )
        )
    if len({topic.topic for topic in topics}) < len(topics):
        raise fields.wrong("topics", "a list with no name twice", rows)
    if len({topic.topic_id for topic in topics}) < len(topics):
        raise fields.wrong("topics", "a list with no id twice", rows)
    return tuple(topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSyncStateSet:
    """Compare and set of a group's sync state set, by its master (R6 R7 R8 R9 R16).

    Result: {"ok": true, "set_epoch", "sync_state_set", "master_epoch"}.
    """

    kind: ClassVar[str] = "alter_sync_state_set"
    group: GroupName
    master: ReplicaId
    master_incarnation: Incarnation
    master_epoch: MasterEpoch
    set_epoch: SetEpoch
    """The set epoch this was decided on; the new set gets the next one."""
    members: Mapping[ReplicaId, Incarnation]
    """The new set, each member with the incarnation it was judged in."""
    confirm: int
    """The master's confirm; raises the group's floor (R16)."""
    reason: str = "untold"
    """For the history: caught_up, or gone, lag, disk_full of those who leave."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "group": self.group,
            "master": self.master,
            "master_incarnation": self.master_incarnation,
            "master_epoch": self.master_epoch,
            "set_epoch": self.set_epoch,
            "members": [[replica, self.members[replica]] for replica in sorted(self.members)],
            "confirm": self.confirm,
            "reason": self.reason,
        }

    @classmethod
    def read(cls, fields: Fields) -> "AlterSyncStateSet":
        return cls(
            group=GroupName(fields.text("group", pattern=NAME_PATTERN)),
            master=replica(fields, "master"),
            master_incarnation=Incarnation(
                fields.integer("master_incarnation", low=1, high=U32_MAX)
            ),
            master_epoch=MasterEpoch(fields.integer("master_epoch", high=U32_MAX)),
            set_epoch=SetEpoch(fields.integer("set_epoch")),
            members=read_members(fields, "members"),
            confirm=fields.integer("confirm"),
            reason=fields.text("reason", length_max=64) if fields.has("reason") else "untold",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfMaster:
    """What a master says of its own epoch."""

    group: GroupName
    master: ReplicaId
    master_incarnation: Incarnation
    master_epoch: MasterEpoch
    confirm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEpoch(_OfMaster):
    """The epoch-start record is confirmed (R6). `confirm` is at or past its end. Result: ok."""

    kind: ClassVar[str] = "open_epoch"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def read(cls, fields: Fields) -> "OpenEpoch":
        return cls(**_of_master(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseConfirmFloor(_OfMaster):
    """No candidate that ends below `confirm` may lead (R16); sent each second if it moved."""

    kind: ClassVar[str] = "raise_confirm_floor"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def read(cls, fields: Fields) -> "RaiseConfirmFloor":
        return cls(**_of_master(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSealed(_OfMaster):
    """A queue of a static topic is sealed, by a record below `confirm`; sent until the view says
    so (R28). Result: {"ok": true, "topic": its view}.

    TOPIC_UNKNOWN, SEGMENT_UNKNOWN, NOT_MOVING: there is nothing to say it of.
    """

    kind: ClassVar[str] = "queue_sealed"
    topic_id: int
    logical_queue: int
    generation: int
    end: int
    """Of its own queue: how many messages it holds, deleted ones included."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def read(cls, fields: Fields) -> "QueueSealed":
        return cls(
            **_of_master(fields),
            topic_id=fields.integer("topic_id", low=1, high=U32_MAX),
            logical_queue=fields.integer("logical_queue", high=LOGICAL_QUEUES_MAX - 1),
            generation=fields.integer("generation", high=U32_MAX),
            end=fields.integer("end"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown(_OfMaster):
    """A master that has stopped intake asks for its replacement (R17 R20).

    The leader elects another member and leaves this one out of the new set where min allows.
    Result: that of the election; a refusal is definite, the master may resume intake.
    """

    kind: ClassVar[str] = "step_down"
    preferred: ReplicaId | None = None

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def read(cls, fields: Fields) -> "StepDown":
        return cls(**_of_master(fields), preferred=optional_replica(fields, "preferred"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenActingLocks:
    """An acting master is about to grant queue locks, or asks whether it still acts (R36).

    Result: ok, which says that no higher epoch had begun when this was applied; NOT_ACTING.
    """

    kind: ClassVar[str] = "open_acting_locks"
    group: GroupName
    replica_id: ReplicaId
    incarnation: Incarnation
    master_epoch: MasterEpoch
    """The epoch of its appointment."""
    leases_ms: int
    """What it grants on this answer ends at most so long after it asked."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def read(cls, fields: Fields) -> "OpenActingLocks":
        return cls(
            group=GroupName(fields.text("group", pattern=NAME_PATTERN)),
            replica_id=replica(fields, "replica_id"),
            incarnation=Incarnation(fields.integer("incarnation", low=1, high=U32_MAX)),
            master_epoch=MasterEpoch(fields.integer("master_epoch", low=1, high=U32_MAX)),
            leases_ms=fields.integer("leases_ms", low=1, high=LEASES_MS_MAX),
        )


BrokerCommand: TypeAlias = (
    OpenSession
    | RegisterReplica
    | PresentStore
    | AlterSyncStateSet
    | OpenEpoch
    | RaiseConfirmFloor
    | QueueSealed
    | StepDown
    | OpenActingLocks
    | EnsureTopic
    | EnsureConsumerGroup
)
_COMMANDS: dict[str, type[BrokerCommand]] = {
    command.kind: command
    for command in (
        OpenSession,
        RegisterReplica,
        PresentStore,
        AlterSyncStateSet,
        OpenEpoch,
        RaiseConfirmFloor,
        QueueSealed,
        StepDown,
        OpenActingLocks,
        EnsureTopic,
        EnsureConsumerGroup,
    )
}


def read_command(document: object) -> BrokerCommand:
    """Check a command object (as in `Request.command`). Raises BadRequestError."""
    fields = Fields(document, name="command")
    kind = fields.text("kind", length_max=64)
    command_class = _COMMANDS.get(kind)
    if command_class is None:
        raise BadRequestError(f"unknown command kind {kind!r}", field="kind")
    command = command_class.read(fields)
    fields.done()
    return command


def read_members(fields: Fields, key: str) -> dict[ReplicaId, Incarnation]:
    """A list of [replica id, incarnation] with no id twice."""
    pairs = fields.any(key)
    if not isinstance(pairs, list) or len(pairs) > MEMBERS_MAX:
        raise fields.wrong(key, f"a list of at most {MEMBERS_MAX} pairs", pairs)
    members: dict[ReplicaId, Incarnation] = {}
    for pair in pairs:
        is_pair = isinstance(pair, list) and len(pair) == 2
        if not is_pair or any(type(part) is not int or not 1 <= part <= U32_MAX for part in pair):
            raise fields.wrong(key, "a list of [replica id, incarnation]", pairs)
        if pair[0] in members:
            raise fields.wrong(key, "a list with no replica twice", pairs)
        members[ReplicaId(pair[0])] = Incarnation(pair[1])
    return members


def _of_master(fields: Fields) -> dict[str, Any]:
    return {
        "group": fields.text("group", pattern=NAME_PATTERN),
        "master": replica(fields, "master"),
        "master_incarnation": fields.integer("master_incarnation", low=1, high=U32_MAX),
        "master_epoch": fields.integer("master_epoch", low=1, high=U32_MAX),
        "confirm": fields.integer("confirm"),
    }


def replica(fields: Fields, key: str) -> ReplicaId:
    return ReplicaId(fields.integer(key, low=1, high=U32_MAX))


def optional_replica(fields: Fields, key: str) -> ReplicaId | None:
    return replica(fields, key) if fields.has(key) else None
