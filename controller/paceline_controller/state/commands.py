"""Pure: the commands that controllers themselves propose, and the envelope of every command.

A command is one flat JSON object: the envelope's members and those of its kind. Brokers' kinds are
in `paceline.wire.session_commands`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from paceline.errors import BadRequestError
from paceline.types import (
    ControllerId,
    GroupName,
    Incarnation,
    MasterEpoch,
    ReplicaId,
    SetEpoch,
)
from paceline.wire.cluster import GroupSettings
from paceline.wire.fields import Fields
from paceline.wire.session_commands import (
    MEMBERS_MAX,
    NAME_PATTERN,
    TOKEN_PATTERN,
    U32_MAX,
    AlterSyncStateSet,
    OpenActingLocks,
    OpenEpoch,
    OpenSession,
    PresentStore,
    QueueSealed,
    RaiseConfirmFloor,
    RegisterReplica,
    read_members,
    replica,
)
from paceline.wire.topic_commands import EnsureConsumerGroup, EnsureTopic
from paceline_controller.state.model import read_settings
from paceline_controller.state.operator_commands import (
    ForgetStore,
    RecoverGroup,
    RemoveGroup,
    RemoveReplica,
    SetControllers,
    SetWritePermission,
)
from paceline_controller.state.topic_commands import (
    AlterConsumerGroup,
    AlterTopic,
    CreateStaticTopic,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteTopic,
    GrowStaticTopic,
    PutConsumerGroup,
    RemapQueue,
)

UNIX_MS_MAX = 2**53
DEADLINE_MS_MAX = 60_000
"""A tenth of a session's life: a late repetition cannot revive an expired session (R38)."""
ALIVE_SESSIONS_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What every command carries."""

    kind: str
    session: str
    sequence: int
    at: int
    """The proposer's unix time; becomes replicated time, within bounds."""
    deadline: int
    """Replicated time after which the command is refused."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "session": self.session,
            "sequence": self.sequence,
            "at": self.at,
            "deadline": self.deadline,
        }

    @classmethod
    def read(cls, fields: Fields) -> "Envelope":
        at = fields.integer("at", high=UNIX_MS_MAX)
        return cls(
            kind=fields.text("kind", length_max=64),
            session=fields.text("session", pattern=TOKEN_PATTERN),
            sequence=fields.integer("sequence"),
            at=at,
            deadline=fields.integer("deadline", low=at, high=at + DEADLINE_MS_MAX),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """First command of a new leader: its term, and the cluster's identity if it has none yet."""

    kind: ClassVar[str] = "lead"
    controller_id: ControllerId
    term: int
    cluster_id: str
    """Taken only by the first one ever."""
    cluster_name: str

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "controller_id": self.controller_id,
            "term": self.term,
            "cluster_id": self.cluster_id,
            "cluster_name": self.cluster_name,
        }

    @classmethod
    def read(cls, fields: Fields) -> "Lead":
        return cls(
            controller_id=ControllerId(fields.text("controller_id", pattern=TOKEN_PATTERN)),
            term=fields.integer("term"),
            cluster_id=fields.text("cluster_id", pattern=TOKEN_PATTERN),
            cluster_name=fields.text("cluster_name", pattern=NAME_PATTERN),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the leader has decided for a group, with everything it was based on: apply compares it,
    and refuses if anything has moved since (R15)."""

    group: GroupName
    term: int
    """Raft term in which liveness was judged."""
    master_epoch: MasterEpoch
    set_epoch: SetEpoch
    members: Mapping[ReplicaId, Incarnation]
    """The present set with incarnations."""
    reason: str
    """For the history: "dead", "silent", "unhealthy", ..."""

    def basis_to_json(self) -> dict[str, Any]:
        """The members of every decision."""
        return {
            "group": self.group,
            "term": self.term,
            "master_epoch": self.master_epoch,
            "set_epoch": self.set_epoch,
            "members": [[member, self.members[member]] for member in sorted(self.members)],
            "reason": self.reason,
        }


def _read_basis(fields: Fields) -> dict[str, Any]:
    """The arguments of every `Decision`."""
    return {
        "group": GroupName(fields.text("group", pattern=NAME_PATTERN)),
        "term": fields.integer("term"),
        "master_epoch": MasterEpoch(fields.integer("master_epoch", high=U32_MAX)),
        "set_epoch": SetEpoch(fields.integer("set_epoch")),
        "members": read_members(fields, "members"),
        "reason": fields.text("reason", length_max=64),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectMaster(Decision):
    """`members`: in the first election the set to begin with, in an unclean one only the winner."""

    kind: ClassVar[str] = "elect_master"
    winner: ReplicaId
    position: int
    """End of the winner's log, as its present incarnation reported (R16)."""
    floor: int
    """The confirm floor the position was compared with."""
    without: tuple[ReplicaId, ...]
    """Members found dead or unhealthy, then the leaving master: those to leave out first stand
    first; as many are left out as min allows (R8, R17)."""
    causes: tuple[tuple[ReplicaId, str], ...] = ()
    """For the history: how those of `without` were found."""
    is_first: bool = False
    is_unclean: bool = False
    have_all_reported: bool = False
    """Every member of the set reported: a suspect may be elected (R23)."""
    spreads_system_topics: bool = True
    """False in commands of an older version: applied again, they must make no other topic ids
    (R35)."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            **self.basis_to_json(),
            "winner": self.winner,
            "position": self.position,
            "floor": self.floor,
            "without": list(self.without),
            "causes": [list(cause) for cause in self.causes],
            "is_first": self.is_first,
            "is_unclean": self.is_unclean,
            "have_all_reported": self.have_all_reported,
            "spreads_system_topics": self.spreads_system_topics,
        }

    @classmethod
    def read(cls, fields: Fields) -> "ElectMaster":
        without = fields.any("without")
        if not isinstance(without, list) or len(without) > MEMBERS_MAX:
            raise fields.wrong("without", "a list of replica ids", without)
        if any(type(member) is not int for member in without):
            raise fields.wrong("without", "a list of replica ids", without)
        return cls(
            **_read_basis(fields),
            winner=replica(fields, "winner"),
            position=fields.integer("position"),
            floor=fields.integer("floor"),
            without=tuple(ReplicaId(member) for member in without),
            causes=_read_causes(fields),
            is_first=fields.flag("is_first"),
            is_unclean=fields.flag("is_unclean"),
            have_all_reported=fields.flag("have_all_reported"),
            spreads_system_topics=(
                fields.has("spreads_system_topics") and fields.flag("spreads_system_topics")
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AppointActing(Decision):
    """None of `members`, in these starts, can be elected (R36)."""

    kind: ClassVar[str] = "appoint_acting"
    acting: ReplicaId
    incarnation: Incarnation

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            **self.basis_to_json(),
            "acting": self.acting,
            "incarnation": self.incarnation,
        }

    @classmethod
    def read(cls, fields: Fields) -> "AppointActing":
        return cls(
            **_read_basis(fields),
            acting=replica(fields, "acting"),
            incarnation=Incarnation(fields.integer("incarnation", low=1, high=U32_MAX)),
        )


def _read_causes(fields: Fields) -> tuple[tuple[ReplicaId, str], ...]:
    """Commands of an older version have none."""
    causes = fields.any("causes") if fields.has("causes") else []
    is_list = isinstance(causes, list) and len(causes) <= MEMBERS_MAX
    if not is_list or not all(
        isinstance(pair, list)
        and len(pair) == 2
        and type(pair[0]) is int
        and isinstance(pair[1], str)
        and len(pair[1]) <= 64
        for pair in causes
    ):
        raise fields.wrong("causes", "a list of [replica id, cause]", causes)
    return tuple((ReplicaId(member), cause) for member, cause in causes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGroupSettings:
    """Recorded now, in effect with the group's next epoch (R8)."""

    kind: ClassVar[str] = "set_group_settings"
    group: GroupName
    settings: GroupSettings

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "group": self.group, "settings": self.settings.to_json()}

    @classmethod
    def read(cls, fields: Fields) -> "SetGroupSettings":
        return cls(
            group=GroupName(fields.text("group", pattern=NAME_PATTERN)),
            settings=read_settings(fields.any("settings")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Moves replicated time and keeps the sessions of connected brokers from expiring."""

    kind: ClassVar[str] = "tick"
    alive: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "alive": list(self.alive)}

    @classmethod
    def read(cls, fields: Fields) -> "Tick":
        alive = fields.any("alive")
        if not isinstance(alive, list) or len(alive) > ALIVE_SESSIONS_MAX:
            raise fields.wrong("alive", "a list of sessions", alive)
        if any(not isinstance(session, str) for session in alive):
            raise fields.wrong("alive", "a list of sessions", alive)
        return cls(alive=tuple(alive))


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A broker's `RegisterReplica`, with what the proposer adds."""

    kind: ClassVar[str] = "register_replica"
    request: RegisterReplica
    defaults: GroupSettings
    """For a group that is new."""
    cluster_id: str | None = None
    """The cluster that the store belongs to, as its session's hello said; None: to none yet."""

    def to_json(self) -> dict[str, Any]:
        return {
            **self.request.to_json(),
            "defaults": self.defaults.to_json(),
            "cluster_id": self.cluster_id,
        }

    @classmethod
    def read(cls, fields: Fields) -> "Registration":
        return cls(
            request=RegisterReplica.read(fields),
            defaults=read_settings(fields.any("defaults")),
            cluster_id=(  # commands of an older version do not say it
                fields.text("cluster_id", pattern=TOKEN_PATTERN)
                if fields.has("cluster_id")
                else None
            ),
        )


Command: TypeAlias = (
    OpenSession
    | Lead
    | Registration
    | PresentStore
    | ElectMaster
    | AppointActing
    | OpenActingLocks
    | AlterSyncStateSet
    | OpenEpoch
    | RaiseConfirmFloor
    | QueueSealed
    | CreateTopic
    | CreateStaticTopic
    | GrowStaticTopic
    | RemapQueue
    | EnsureTopic
    | AlterTopic
    | DeleteTopic
    | PutConsumerGroup
    | AlterConsumerGroup
    | EnsureConsumerGroup
    | DeleteConsumerGroup
    | SetGroupSettings
    | SetWritePermission
    | RemoveReplica
    | RemoveGroup
    | RecoverGroup
    | ForgetStore
    | SetControllers
    | Tick
)
_KINDS: dict[str, type[Command]] = {
    command.kind: command
    for command in (
        OpenSession,
        Lead,
        Registration,
        PresentStore,
        ElectMaster,
        AppointActing,
        OpenActingLocks,
        AlterSyncStateSet,
        OpenEpoch,
        RaiseConfirmFloor,
        QueueSealed,
        CreateTopic,
        CreateStaticTopic,
        GrowStaticTopic,
        RemapQueue,
        EnsureTopic,
        AlterTopic,
        DeleteTopic,
        PutConsumerGroup,
        AlterConsumerGroup,
        EnsureConsumerGroup,
        DeleteConsumerGroup,
        SetGroupSettings,
        SetWritePermission,
        RemoveReplica,
        RemoveGroup,
        RecoverGroup,
        ForgetStore,
        SetControllers,
        Tick,
    )
}


def read_command(document: object) -> tuple[Envelope, Command]:
    """Check one command. Raises BadRequestError."""
    fields = Fields(document, name="command")
    envelope = Envelope.read(fields)
    command_class = _KINDS.get(envelope.kind)
    if command_class is None:
        raise BadRequestError(f"unknown command kind {envelope.kind!r}", field="kind")
    command = command_class.read(fields)
    fields.done()
    return envelope, command


__all__ = [
    "AlterConsumerGroup",
    "AlterSyncStateSet",
    "AlterTopic",
    "AppointActing",
    "Command",
    "CreateStaticTopic",
    "CreateTopic",
    "Decision",
    "DeleteConsumerGroup",
    "DeleteTopic",
    "ElectMaster",
    "EnsureConsumerGroup",
    "EnsureTopic",
    "Envelope",
    "ForgetStore",
    "GrowStaticTopic",
    "Lead",
    "OpenActingLocks",
    "OpenEpoch",
    "OpenSession",
    "PresentStore",
    "PutConsumerGroup",
    "QueueSealed",
    "RaiseConfirmFloor",
    "RecoverGroup",
    "RegisterReplica",
    "Registration",
    "RemapQueue",
    "RemoveGroup",
    "RemoveReplica",
    "SetControllers",
    "SetGroupSettings",
    "SetWritePermission",
    "Tick",
    "read_command",
]
