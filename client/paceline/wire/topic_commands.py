"""Pure: topics and consumer groups that brokers ask the controllers for, on behalf of clients.

Any registered broker may; what is there already is the answer, so asking twice is no harm.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.types import ConsumerGroupName, TopicName
from paceline.wire.fields import Fields
from paceline.wire.topics import MIXED, read_message_type

TOPIC_PATTERN = r"[A-Za-z0-9_.%|-]{1,255}"
"""RocketMQ's characters and the dot; the length that it allows the topics of consumer groups."""
CONSUMER_GROUP_PATTERN = r"[A-Za-z0-9_.-]{1,127}"
QUEUES_MAX = 4096
"""Queues of a topic in one group; a queue id is u16, and each costs an index on every replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsureTopic:
    """Have the topic made in every broker group unless it exists (auto_create_topic_enable).

    Result: {"ok": true, "topic": its view, "version"}.
    """

    kind: ClassVar[str] = "ensure_topic"
    topic: TopicName
    queues: int
    """In each broker group."""
    message_type: str = MIXED

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "topic": self.topic,
            "queues": self.queues,
            "message_type": self.message_type,
        }

    @classmethod
    def read(cls, fields: Fields) -> "EnsureTopic":
        return cls(
            topic=TopicName(fields.text("topic", pattern=TOPIC_PATTERN)),
            queues=fields.integer("queues", low=1, high=QUEUES_MAX),
            message_type=read_message_type(fields),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsureConsumerGroup:
    """Have the consumer group made, with its retry and dead letter topics, unless it exists.

    Result: {"ok": true, "group": its view, "version"}.
    """

    kind: ClassVar[str] = "ensure_consumer_group"
    group: ConsumerGroupName

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "group": self.group}

    @classmethod
    def read(cls, fields: Fields) -> "EnsureConsumerGroup":
        return cls(group=ConsumerGroupName(fields.text("group", pattern=CONSUMER_GROUP_PATTERN)))
