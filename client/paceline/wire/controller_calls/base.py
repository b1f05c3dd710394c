"""Pure: what several requests to the controllers have in common."""

from typing import Annotated, TypeAlias

from msgspec import Meta

from paceline.wire.calls.request import U32_MAX, Answer, AnswerT, Request, matching
from paceline.wire.commands import CONTROLLER_ID_PATTERN, NAME_PATTERN

GroupId: TypeAlias = Annotated[str, matching(NAME_PATTERN)]
"""The name of a broker group."""
ControllerName: TypeAlias = Annotated[str, matching(CONTROLLER_ID_PATTERN)]
ReplicaNumber: TypeAlias = Annotated[int, Meta(ge=1, le=10**9 - 1)]
EpochNumber: TypeAlias = Annotated[int, Meta(ge=1, le=U32_MAX)]


class Read(Request[AnswerT]):
    """A question about the replicated state. Each controller answers what it has applied."""

    linearizable: bool = False
    """Show every write that was answered before: the leader answers, after a read barrier."""


class Written(Answer):
    """The command is committed."""

    version: int
    """Of the cluster view that shows it."""
