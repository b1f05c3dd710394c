"""Pure: the commands that controllers themselves propose, and the envelope of every command.

A command is one flat JSON object: the envelope's members and those of its kind. Brokers' kinds are
in `paceline.wire.session_commands`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeAlias, cast

import msgspec
from msgspec import Meta

from paceline.errors import BadRequestError
from paceline.types import ControllerId, ReplicaId
from paceline.wire.calls.request import Number, matching, read_struct
from paceline.wire.cluster import GroupSettings
from paceline.wire.commands import (
    MEMBERS_MAX,
    NAME_PATTERN,
    TOKEN_PATTERN,
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
from paceline.wire.session import KeyUsesTold
from paceline.wire.session_commands import (
    AlterSyncStateSet,
    OpenActingLocks,
    OpenEpoch,
    OpenSession,
    PresentStore,
    PresentTopics,
    QueueSealed,
    RaiseConfirmFloor,
    RegisterReplica,
)
from paceline.wire.topic_commands import EnsureConsumerGroup, EnsureTopic
from paceline_controller.state.group_settings import with_settings
from paceline_controller.state.operator_commands import (
    ForgetStore,
    RecoverGroup,
    RemoveGroup,
    RemoveReplica,
    SetControllers,
    SetWritePermission,
)
from paceline_controller.state.security_commands import (
    DeleteAccessKey,
    DeleteUser,
    PutAccessKey,
    PutPolicy,
    PutQuota,
    PutUser,
    SealAccessKeys,
    SetSecurityMode,
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
Cause: TypeAlias = Annotated[str, Meta(max_length=64)]


class Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every command carries, beside its kind."""

    session: Token
    sequence: Number
    at: Annotated[int, Meta(ge=0, le=UNIX_MS_MAX)]
    """The proposer's unix time; becomes replicated time, within bounds."""
    deadline: Number
    """Replicated time after which the command is refused."""

    def to_json(self) -> dict[str, Any]:
        """As on the wire."""
        return msgspec.structs.asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Envelope":
        """BadRequestError."""
        envelope = read_struct(cls, document, name="command")
        if not envelope.at <= envelope.deadline <= envelope.at + DEADLINE_MS_MAX:
            raise wrong("deadline", f"within {DEADLINE_MS_MAX} ms after at")
        return envelope


class Lead(Command, frozen=True, kw_only=True):
    """First command of a new leader: its term, and the cluster's identity if it has none yet."""

    controller_id: Annotated[ControllerId, matching(TOKEN_PATTERN)]
    term: Number
    cluster_id: Token
    """Taken only by the first one ever."""
    cluster_name: Annotated[str, matching(NAME_PATTERN)]


class Decision(Command, frozen=True, kw_only=True):
    """What the leader has decided for a group, with everything it was based on: apply compares it,
    and refuses if anything has moved since (R15)."""

    group: Group
    term: Number
    """Raft term in which liveness was judged."""
    master_epoch: Epoch
    set_epoch: SetNumber
    members: Members
    """The present set with incarnations."""
    reason: Reason
    """For the history: "dead", "silent", "unhealthy", ..."""


class ElectMaster(Decision, frozen=True, kw_only=True):
    """`members`: in the first election the set to begin with, in an unclean one only the winner."""

    winner: Replica
    position: Position
    """End of the winner's log, as its present incarnation reported (R16)."""
    floor: Position
    """The confirm floor the position was compared with."""
    without: Annotated[tuple[ReplicaId, ...], Meta(max_length=MEMBERS_MAX)]
    """Members found dead or unhealthy, then the leaving master: those to leave out first stand
    first; as many are left out as min allows (R8, R17)."""
    causes: Annotated[tuple[tuple[ReplicaId, Cause], ...], Meta(max_length=MEMBERS_MAX)] = ()
    """For the history: how those of `without` were found."""
    is_first: bool
    is_unclean: bool
    have_all_reported: bool
    """Every member of the set reported: a suspect may be elected (R23)."""
    spreads_system_topics: bool = False
    """Commands of an older version do not say it: applied again, they must make no other topic ids
    (R35)."""


class AppointActing(Decision, frozen=True, kw_only=True):
    """None of `members`, in these starts, can be elected (R36)."""

    acting: Replica
    incarnation: Start


class SetGroupSettings(Command, frozen=True, kw_only=True):
    """Recorded now, in effect with the group's next epoch (R8)."""

    group: Group
    settings: GroupSettings

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        return super().read(with_settings(document, "settings"))


class Tick(Command, frozen=True, kw_only=True):
    """Moves replicated time, keeps the sessions of connected brokers from expiring, and notes when
    access keys were used."""

    alive: Annotated[tuple[str, ...], Meta(max_length=ALIVE_SESSIONS_MAX)]
    key_uses: KeyUsesTold = {}


class Registration(RegisterReplica, frozen=True, kw_only=True, tag="register_replica"):
    """A broker's `RegisterReplica`, with what the proposer adds."""

    defaults: GroupSettings
    """For a group that is new."""
    cluster_id: Token | None = None
    """The cluster that the store belongs to, as its session's hello said; None: to none yet."""

    @classmethod
    def of(
        cls, request: RegisterReplica, *, defaults: GroupSettings, cluster_id: str | None = None
    ) -> Self:
        """What the broker asks for, completed."""
        given = msgspec.structs.asdict(request)
        return cls(**given, defaults=defaults, cluster_id=cluster_id)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        return super().read(with_settings(document, "defaults"))


AnyCommand: TypeAlias = (
    OpenSession
    | Lead
    | Registration
    | PresentStore
    | PresentTopics
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
    | PutUser
    | DeleteUser
    | PutAccessKey
    | SealAccessKeys
    | DeleteAccessKey
    | PutPolicy
    | PutQuota
    | SetSecurityMode
    | Tick
)
_KINDS: dict[str, type[Command]] = {command.kind_name(): command for command in AnyCommand.__args__}
_ENVELOPE = ("session", "sequence", "at", "deadline")


def read_command(document: object) -> tuple[Envelope, AnyCommand]:
    """Check one command. Raises BadRequestError."""
    if not isinstance(document, dict):
        raise BadRequestError("command must be an object", field="command")
    rest = dict(document)
    envelope = Envelope.read({name: rest.pop(name) for name in _ENVELOPE if name in rest})
    return envelope, cast(AnyCommand, read_kind(rest, _KINDS))


__all__ = [
    "AlterConsumerGroup",
    "AlterSyncStateSet",
    "AlterTopic",
    "AppointActing",
    "AnyCommand",
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
    "PresentTopics",
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
