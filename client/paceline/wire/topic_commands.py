"""Pure: topics and consumer groups that brokers ask the controllers for, on behalf of clients.

Any registered broker may; what is there already is the answer, so asking twice is no harm.
"""

from typing import Annotated

from msgspec import Meta

from paceline.types import ConsumerGroupName, TopicName
from paceline.wire.calls.request import matching
from paceline.wire.commands import Creation
from paceline.wire.names import NAMESPACE_BEFORE
from paceline.wire.static_topics import LOGICAL_QUEUES_MAX
from paceline.wire.topics import MIXED, MessageType

TOPIC_PATTERN = r"[A-Za-z0-9_.%|-]{1,255}"
"""RocketMQ's characters and the dot; the length that it allows the topics of consumer groups."""
CONSUMER_GROUP_PATTERN = rf"{NAMESPACE_BEFORE}[A-Za-z0-9_.-]{{1,127}}"
QUEUES_MAX = 4096
"""Queues of a topic in one group; a queue id is u16, and each costs an index on every replica."""
GROUPS_MAX = 1024
"""Broker groups that one request or command names."""

Topic = Annotated[TopicName, matching(TOPIC_PATTERN)]
ConsumerGroup = Annotated[ConsumerGroupName, matching(CONSUMER_GROUP_PATTERN)]
QueueCount = Annotated[int, Meta(ge=1, le=QUEUES_MAX)]
QueueCountLeft = Annotated[int, Meta(ge=0, le=QUEUES_MAX)]
LogicalQueueCount = Annotated[int, Meta(ge=1, le=LOGICAL_QUEUES_MAX)]


class EnsureTopic(Creation, frozen=True, kw_only=True):
    """Have the topic made in every broker group unless it exists (auto_create_topic_enable).

    Result: {"ok": true, "topic": its view, "version"}.
    """

    topic: Topic
    queues: QueueCount
    """In each broker group."""
    message_type: MessageType = MIXED


class EnsureConsumerGroup(Creation, frozen=True, kw_only=True):
    """Have the consumer group made, with its retry and dead letter topics, unless it exists.

    Result: {"ok": true, "group": its view, "version"}.
    """

    group: ConsumerGroup
