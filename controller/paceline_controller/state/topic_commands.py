"""Pure: commands on topics and consumer groups, as HTTP handlers propose them.

Those that brokers ask for are in `paceline.wire.topic_commands`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline.types import ConsumerGroupName, GroupName, TopicId, TopicName
from paceline.wire.consumer_groups import ConsumerGroupSettings
from paceline.wire.fields import Fields
from paceline.wire.session_commands import NAME_PATTERN, U32_MAX
from paceline.wire.static_topics import LOGICAL_QUEUES_MAX
from paceline.wire.topic_commands import CONSUMER_GROUP_PATTERN, QUEUES_MAX, TOPIC_PATTERN
from paceline.wire.topics import (
    NORMAL,
    PERM_BOTH,
    read_attributes,
    read_message_type,
    read_perm,
)

Queues = Mapping[GroupName, int]
GROUPS_MAX = 1024
"""Broker groups that one command names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    kind: ClassVar[str] = "create_topic"
    topic: TopicName
    queues: Queues
    """To write to; `read_queues` left out: to read from as well."""
    read_queues: Queues | None = None
    perm: int = PERM_BOTH
    message_type: str = NORMAL
    attributes: Mapping[str, str | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "topic": self.topic,
            "queues": dict(self.queues),
            "read_queues": None if self.read_queues is None else dict(self.read_queues),
            "perm": self.perm,
            "message_type": self.message_type,
            "attributes": dict(self.attributes),
        }

    @classmethod
    def read(cls, fields: Fields) -> "CreateTopic":
        """Commands of an older version say only the queues."""
        has_type = fields.has("message_type")
        return cls(
            topic=_topic(fields),
            queues=read_queues(fields, "queues"),
            read_queues=(read_queues(fields, "read_queues") if fields.has("read_queues") else None),
            perm=read_perm(fields) if fields.has("perm") else PERM_BOTH,
            message_type=read_message_type(fields) if has_type else NORMAL,
            attributes=read_attributes(fields) if fields.has("attributes") else {},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStaticTopic:
    """A topic of logical queues, spread over broker groups in turn."""

    kind: ClassVar[str] = "create_static_topic"
    topic: TopicName
    logical_queues: int
    groups: tuple[GroupName, ...]
    """Empty: all that are registered, by name."""
    perm: int = PERM_BOTH
    message_type: str = NORMAL
    attributes: Mapping[str, str | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "topic": self.topic,
            "logical_queues": self.logical_queues,
            "groups": list(self.groups),
            "perm": self.perm,
            "message_type": self.message_type,
            "attributes": dict(self.attributes),
        }

    @classmethod
    def read(cls, fields: Fields) -> "CreateStaticTopic":
        return cls(
            topic=_topic(fields),
            logical_queues=fields.integer("logical_queues", low=1, high=LOGICAL_QUEUES_MAX),
            groups=read_groups(fields, "groups"),
            perm=read_perm(fields),
            message_type=read_message_type(fields),
            attributes=read_attributes(fields),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowStaticTopic:
    """More logical queues, spread like those of a new one. Decided on the topic of that id."""

    kind: ClassVar[str] = "grow_static_topic"
    topic: TopicName
    topic_id: TopicId
    logical_queues: int
    """In all; as many as there are changes nothing."""
    groups: tuple[GroupName, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "logical_queues": self.logical_queues,
            "groups": list(self.groups),
        }

    @classmethod
    def read(cls, fields: Fields) -> "GrowStaticTopic":
        return cls(
            topic=_topic(fields),
            topic_id=TopicId(fields.integer("topic_id", low=1, high=U32_MAX)),
            logical_queues=fields.integer("logical_queues", low=1, high=LOGICAL_QUEUES_MAX),
            groups=read_groups(fields, "groups"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapQueue:
    """Move a logical queue: it goes on in that broker group once its present one has sealed it.

    Decided on its present generation; the same once more finds it moving there, or moved.
    """

    kind: ClassVar[str] = "remap_queue"
    topic: TopicName
    topic_id: TopicId
    logical_queue: int
    group: GroupName
    generation: int
    """Of the segment that it leaves."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "logical_queue": self.logical_queue,
            "group": self.group,
            "generation": self.generation,
        }

    @classmethod
    def read(cls, fields: Fields) -> "RemapQueue":
        return cls(
            topic=_topic(fields),
            topic_id=TopicId(fields.integer("topic_id", low=1, high=U32_MAX)),
            logical_queue=fields.integer("logical_queue", high=LOGICAL_QUEUES_MAX - 1),
            group=GroupName(fields.text("group", pattern=NAME_PATTERN)),
            generation=fields.integer("generation", high=U32_MAX),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopic:
    """Change a topic; None leaves a part as it is. Decided on the topic of that id."""

    kind: ClassVar[str] = "alter_topic"
    topic: TopicName
    topic_id: TopicId
    read_queues: Queues | None = None
    """Of the broker groups named; the others keep their number."""
    write_queues: Queues | None = None
    perm: int | None = None
    message_type: str | None = None
    attributes: Mapping[str, str | None] = field(default_factory=dict)
    is_forced: bool = False
    """Messages in queues that are not read any more may stay unread."""
    alterations: int | None = None
    """Of the topic whose queues were found to be read to their ends; None: nobody looked."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "read_queues": None if self.read_queues is None else dict(self.read_queues),
            "write_queues": None if self.write_queues is None else dict(self.write_queues),
            "perm": self.perm,
            "message_type": self.message_type,
            "attributes": dict(self.attributes),
            "is_forced": self.is_forced,
            "alterations": self.alterations,
        }

    @classmethod
    def read(cls, fields: Fields) -> "AlterTopic":
        return cls(
            topic=_topic(fields),
            topic_id=TopicId(fields.integer("topic_id", low=1, high=U32_MAX)),
            **{
                name: read_queues(fields, name, low=0) if fields.has(name) else None
                for name in ("read_queues", "write_queues")
            },
            perm=read_perm(fields) if fields.has("perm") else None,
            message_type=read_message_type(fields) if fields.has("message_type") else None,
            attributes=read_attributes(fields),
            is_forced=fields.flag("is_forced"),
            # Commands of an older version say nothing of it.
            alterations=fields.integer("alterations") if fields.has("alterations") else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    kind: ClassVar[str] = "delete_topic"
    topic: TopicName

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "topic": self.topic}

    @classmethod
    def read(cls, fields: Fields) -> "DeleteTopic":
        return cls(topic=_topic(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class PutConsumerGroup:
    """Make a consumer group. Settings are whole."""

    kind: ClassVar[str] = "put_consumer_group"
    group: ConsumerGroupName
    settings: ConsumerGroupSettings
    is_new: bool
    """It must not exist; otherwise it must, and is changed: a command of an older version."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "group": self.group,
            "settings": self.settings.to_json(),
            "is_new": self.is_new,
        }

    @classmethod
    def read(cls, fields: Fields) -> "PutConsumerGroup":
        return cls(
            group=_consumer_group(fields),
            settings=ConsumerGroupSettings.read(fields.any("settings")),
            is_new=fields.flag("is_new"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConsumerGroup:
    """Change settings of a consumer group; those that are left out are as they are by then."""

    kind: ClassVar[str] = "alter_consumer_group"
    group: ConsumerGroupName
    changes: Mapping[str, Any]
    """As `ConsumerGroupSettings.read` takes them."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "group": self.group, "changes": dict(self.changes)}

    @classmethod
    def read(cls, fields: Fields) -> "AlterConsumerGroup":
        changes = fields.any("changes")
        ConsumerGroupSettings.read(changes)
        return cls(group=_consumer_group(fields), changes=changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteConsumerGroup:
    """With its retry and dead letter topics and what they hold."""

    kind: ClassVar[str] = "delete_consumer_group"
    group: ConsumerGroupName

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "group": self.group}

    @classmethod
    def read(cls, fields: Fields) -> "DeleteConsumerGroup":
        return cls(group=_consumer_group(fields))


def read_queues(fields: Fields, key: str, *, low: int = 1) -> dict[GroupName, int]:
    """A table of broker groups with their numbers of queues. Raises BadRequestError."""
    document = fields.any(key)
    table = Fields(document, name=key)
    queues = {
        GroupName(group): table.integer(group, low=low, high=QUEUES_MAX)
        for group in sorted(document)
    }
    if not queues:
        raise fields.wrong(key, "at least one broker group", document)
    return queues


def read_groups(fields: Fields, key: str) -> tuple[GroupName, ...]:
    """A list of broker groups, none twice; it may be empty. Raises BadRequestError."""
    names = fields.any(key)
    if not isinstance(names, list) or len(names) > GROUPS_MAX:
        raise fields.wrong(key, "a list of broker groups", names)
    groups = tuple(
        GroupName(Fields({key: name}, name=key).text(key, pattern=NAME_PATTERN)) for name in names
    )
    if len(set(groups)) < len(groups):
        raise fields.wrong(key, "a list with no broker group twice", names)
    return groups


def _topic(fields: Fields) -> TopicName:
    return TopicName(fields.text("topic", pattern=TOPIC_PATTERN))


def _consumer_group(fields: Fields) -> ConsumerGroupName:
    return ConsumerGroupName(fields.text("group", pattern=CONSUMER_GROUP_PATTERN))
