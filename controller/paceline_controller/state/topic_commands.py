"""Pure: commands on topics and consumer groups, as HTTP handlers propose them.

Those that brokers ask for are in `paceline.wire.topic_commands`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self, TypeAlias

from msgspec import Meta

from paceline.errors import BadRequestError
from paceline.types import GroupName, TopicId
from paceline.wire.calls.request import U32_MAX, Number
from paceline.wire.commands import Command, Creation, Group
from paceline.wire.consumer_groups import ConsumerGroupSettings, SettingsChanges
from paceline.wire.static_topics import LOGICAL_QUEUES_MAX
from paceline.wire.topic_commands import (
    GROUPS_MAX,
    ConsumerGroup,
    LogicalQueueCount,
    QueueCount,
    QueueCountLeft,
    Topic,
)
from paceline.wire.topics import NORMAL, PERM_BOTH, Attributes, MessageType, Perm

_InGroups = Meta(min_length=1, max_length=GROUPS_MAX)
Queues: TypeAlias = Annotated[Mapping[GroupName, QueueCount], _InGroups]
"""Numbers of queues of broker groups."""
QueuesLeft: TypeAlias = Annotated[Mapping[GroupName, QueueCountLeft], _InGroups]
Groups: TypeAlias = Annotated[tuple[Group, ...], Meta(max_length=GROUPS_MAX)]


def check_groups(groups: Sequence[str]) -> None:
    """BadRequestError if one is there twice."""
    if len(set(groups)) < len(groups):
        raise BadRequestError("groups: a broker group is there twice", field="groups")


class CreateTopic(Creation, frozen=True, kw_only=True):
    topic: Topic
    queues: Queues
    """To write to; `read_queues` left out: to read from as well."""
    read_queues: Queues | None = None
    perm: Perm = PERM_BOTH
    message_type: MessageType = NORMAL
    attributes: Attributes = {}


class CreateStaticTopic(Creation, frozen=True, kw_only=True):
    """A topic of logical queues, spread over broker groups in turn."""

    topic: Topic
    logical_queues: LogicalQueueCount
    groups: Groups
    """Empty: all that are registered, by name. None is there twice."""
    perm: Perm = PERM_BOTH
    message_type: MessageType = NORMAL
    attributes: Attributes = {}

    def check(self) -> None:
        check_groups(self.groups)


class GrowStaticTopic(Command, frozen=True, kw_only=True):
    """More logical queues, spread like those of a new one. Decided on the topic of that id."""

    topic: Topic
    topic_id: Annotated[TopicId, Meta(ge=1, le=U32_MAX)]
    logical_queues: LogicalQueueCount
    """In all; as many as there are changes nothing."""
    groups: Groups

    def check(self) -> None:
        check_groups(self.groups)


class RemapQueue(Command, frozen=True, kw_only=True):
    """Move a logical queue: it goes on in that broker group once its present one has sealed it.

    Decided on its present generation; the same once more finds it moving there, or moved.
    """

    topic: Topic
    topic_id: Annotated[TopicId, Meta(ge=1, le=U32_MAX)]
    logical_queue: Annotated[int, Meta(ge=0, lt=LOGICAL_QUEUES_MAX)]
    group: Group
    generation: Annotated[int, Meta(ge=0, le=U32_MAX)]
    """Of the segment that it leaves."""


class AlterTopic(Command, frozen=True, kw_only=True):
    """Change a topic; None leaves a part as it is. Decided on the topic of that id."""

    topic: Topic
    topic_id: Annotated[TopicId, Meta(ge=1, le=U32_MAX)]
    read_queues: QueuesLeft | None = None
    """Of the broker groups named; the others keep their number."""
    write_queues: QueuesLeft | None = None
    perm: Perm | None = None
    message_type: MessageType | None = None
    attributes: Attributes = {}
    is_forced: bool = False
    """Messages in queues that are not read any more may stay unread."""
    alterations: Number | None = None
    """Of the topic whose queues were found to be read to their ends; None: nobody looked."""


class DeleteTopic(Command, frozen=True, kw_only=True):
    topic: Topic


class PutConsumerGroup(Creation, frozen=True, kw_only=True):
    """Make a consumer group. Settings are whole."""

    group: ConsumerGroup
    settings: ConsumerGroupSettings
    is_new: bool
    """It must not exist; otherwise it must, and is changed: a command of an older version."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        settings = ConsumerGroupSettings.read(document.get("settings"))
        return super().read({**document, "settings": settings})


class AlterConsumerGroup(Command, frozen=True, kw_only=True):
    """Change settings of a consumer group; those that are left out are as they are by then."""

    group: ConsumerGroup
    changes: SettingsChanges


class DeleteConsumerGroup(Command, frozen=True, kw_only=True):
    """With its retry and dead letter topics and what they hold."""

    group: ConsumerGroup
