"""Pure: what all commands of the controllers' state machine have: how each is read and written.

A command is a struct. Reading one refuses unknown fields, wrong types (`true` and `1.0` are no
integers) and what is out of range; a field that is null counts as absent where it may be absent.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Self, TypeAlias

import msgspec
from msgspec import Meta

from paceline.errors import BadRequestError
from paceline.types import GroupName, Incarnation, MasterEpoch, ReplicaId, SetEpoch
from paceline.wire.calls.request import (
    U32_MAX,
    Number,
    matching,
    read_struct,
    snake_case,
    tag_of,
    without_nulls,
)
from paceline.wire.fields import ADDRESS_PATTERN, I64_MAX

SESSION_HEADER = "Paceline-Session"
SEQUENCE_HEADER = "Paceline-Sequence"
NOT_RELAYED_HEADER = "Paceline-Not-Relayed"
"""A controller that does not lead names the leader, and does not ask it itself."""
NOT_ADMITTED = ("UNKNOWN_SESSION", "STALE_SEQUENCE")
"""Reasons of refusals that tell nothing of what an earlier attempt has done: too much time has
passed since, or too many commands."""
MEMBERS_MAX = 64
"""Replicas of one group; far above any use, bounds a message."""
NAME_PATTERN = r"(?!\.+$)[A-Za-z0-9_.-]{1,127}"
"""Names of broker groups and clusters; one of dots only would mean something to a path."""
CONTROLLER_ID_PATTERN = r"(?!\.+$)[A-Za-z0-9_.-]{1,64}"
TOKEN_PATTERN = r"[A-Za-z0-9_.:-]{1,64}"
"""Session ids, store ids, cluster ids."""

KIND = "kind"
"""The member that names a command."""

Group: TypeAlias = Annotated[GroupName, matching(NAME_PATTERN)]
Token: TypeAlias = Annotated[str, matching(TOKEN_PATTERN)]
Address: TypeAlias = Annotated[str, Meta(max_length=300, pattern=rf"^(?:{ADDRESS_PATTERN})$(?!\n)")]
""""host:port", with a port from 1 to 65535."""
Replica: TypeAlias = Annotated[ReplicaId, Meta(ge=1, le=U32_MAX)]
Start: TypeAlias = Annotated[Incarnation, Meta(ge=1, le=U32_MAX)]
"""The incarnation of a replica."""
Epoch: TypeAlias = Annotated[MasterEpoch, Meta(ge=0, le=U32_MAX)]
BegunEpoch: TypeAlias = Annotated[MasterEpoch, Meta(ge=1, le=U32_MAX)]
SetNumber: TypeAlias = Annotated[SetEpoch, Meta(ge=0, le=I64_MAX)]
Position: TypeAlias = Number
"""A physical offset."""
Members: TypeAlias = Annotated[Mapping[Replica, Start], Meta(max_length=MEMBERS_MAX)]
"""Replicas, each with its incarnation; [[id, incarnation], ...] on the wire."""
Reason: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]


class Once(NamedTuple):
    """A session of the controllers and a number in it: what makes a command the same, however often
    it is asked (R38)."""

    session: str
    sequence: int

    def next(self) -> "Once":
        return Once(self.session, self.sequence + 1)

    def headers(self) -> dict[str, str]:
        return {SESSION_HEADER: self.session, SEQUENCE_HEADER: str(self.sequence)}


class Command(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field=KIND,
    tag=snake_case,
):
    """One command. Its kind on the wire is the class's name in lower case, words joined by "_"."""

    @classmethod
    def kind_name(cls) -> str:
        """As on the wire."""
        return tag_of(cls)

    @property
    def kind(self) -> str:
        return self.kind_name()

    def to_json(self) -> dict[str, Any]:
        """As on the wire, `kind` included."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        members = document.get("members")
        if isinstance(members, dict):
            document["members"] = [[member, members[member]] for member in sorted(members)]
        return document

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Checked. BadRequestError names the field."""
        given = without_nulls(cls, document)
        if "members" in given:
            given["members"] = _read_members(given["members"])
        command = read_struct(cls, given, name="command")
        command.check()
        return command

    def check(self) -> None:
        """What types do not say. BadRequestError."""


class Creation(Command, frozen=True, kw_only=True):
    """A command that may make a topic or a consumer group."""

    by: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """The user who asks, for its quota; None: nobody whom quotas bound."""

    def to_json(self) -> dict[str, Any]:
        document = super().to_json()
        if self.by is None:  # as nodes write it that know no quotas
            del document["by"]
        return document


def wrong(field: str, what: str) -> BadRequestError:
    """A field of a command that is not `what` it must be."""
    return BadRequestError(f"command: {field} must be {what}", field=field)


def read_kind(document: object, kinds: Mapping[str, type[Command]]) -> Command:
    """A command of one of these kinds. BadRequestError."""
    if not isinstance(document, dict):
        raise BadRequestError("command must be an object", field="command")
    kind = document.get(KIND)
    if not isinstance(kind, str) or kind not in kinds:
        raise BadRequestError(f"unknown command kind {str(kind)[:64]!r}", field=KIND)
    return kinds[kind].read(document)


def _read_members(pairs: object) -> dict[Any, Any]:
    """A list of [replica id, incarnation] with no id twice."""
    if not isinstance(pairs, list) or len(pairs) > MEMBERS_MAX:
        raise wrong("members", f"a list of at most {MEMBERS_MAX} pairs")
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise wrong("members", "a list of [replica id, incarnation]")
    if any(type(part) is not int for pair in pairs for part in pair):
        raise wrong("members", "a list of [replica id, incarnation]")
    members = dict(pairs)
    if len(members) < len(pairs):
        raise wrong("members", "a list with no replica twice")
    return members
