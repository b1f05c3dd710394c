"""What tests of offsets share with others."""

from paceline.queues import QueueName
from paceline.types import GroupName, QueueId, TopicName


def queue(topic: str, number: int, group: str = "g1") -> QueueName:
    return QueueName(TopicName(topic), GroupName(group), QueueId(number))
