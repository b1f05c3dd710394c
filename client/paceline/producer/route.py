"""What a producer knows of one topic: its queues, and where keyless messages go at the moment."""

from collections.abc import Callable

from paceline.errors import MessageTypeError, QueueNotFoundError
from paceline.producer.batch import Batch
from paceline.producer.broker_sender import QueueOutbox
from paceline.queues import QueueName, next_index, shared_queues_of
from paceline.records.header import Kind
from paceline.types import GroupName, QueueId
from paceline.wire.topics import FIFO, PRIORITY, TopicView, no_priorities, queue_of_priority


class Route:
    """A topic's queues in stable order; logical ones, wherever they are, of a static topic."""

    __slots__ = (
        "has_priorities",
        "names",
        "needs_key",
        "outboxes",
        "queues",
        "sticky",
        "sticky_batches",
        "topic",
    )

    def __init__(self, topic: TopicView, outboxes: list[QueueOutbox], sticky: int) -> None:
        self.topic = topic
        self.queues = [outbox.queue for outbox in outboxes]
        named = shared_queues_of(topic) if topic.is_static else self.queues
        self.names = [QueueName(topic.topic, queue.group, queue.queue_id) for queue in named]
        self.outboxes = outboxes
        self.sticky = sticky
        self.sticky_batches: dict[Kind, Batch] = {}
        self.needs_key = topic.message_type == FIFO
        self.has_priorities = topic.message_type == PRIORITY

    def index_of(self, name: QueueName) -> int:
        """Where the named queue stands. QueueNotFoundError."""
        try:
            return self.names.index(name)
        except ValueError:
            raise QueueNotFoundError(self._why_not(name), queue=name.queue_id) from None

    def _why_not(self, name: QueueName) -> str:
        """What is the matter with a queue that no message can be sent to."""
        topic, group = self.topic, name.group
        if topic.is_static:
            hint = f"; name one like {self.names[0].group}/0"
            return f"topic {name.topic} has no queue {group}/{name.queue_id}{hint}"
        if name.queue_id >= topic.queues.get(group, 0):
            return f"topic {name.topic} has no queue {group}/{name.queue_id}"
        return (
            f"queue {group}/{name.queue_id} of topic {name.topic} is read only: group {group} takes"
            f" messages in {topic.write_queues.get(group, 0)} of {topic.queues[group]} queues;"
            f" its operator can change that (paceline topic alter {name.topic} --write-queues,"
            f" paceline cluster add-write-perm {group})"
        )

    def index_of_priority(self, priority: int, group: GroupName) -> int:
        """Where the queue of a priority stands in a broker group. MessageTypeError."""
        topic = self.topic
        if not self.has_priorities:
            raise no_priorities(topic)
        queue = queue_of_priority(priority, topic.write_queues[group])
        return self.index_of(QueueName(topic.topic, group, QueueId(queue)))

    def next_index(
        self, is_up: Callable[[GroupName], bool], is_quick: Callable[[GroupName], bool] | None
    ) -> int:
        """The queue that the next keyless batch goes to."""
        if not self.topic.is_static:
            return next_index(self.sticky, self.queues, is_up, is_quick)
        takes = self.topic.write_queues
        return next_index(
            self.sticky,
            self.queues,
            lambda group: bool(takes.get(group)) and is_up(group),
            is_quick,
        )

    def is_as(self, topic: TopicView) -> bool:
        """Whether a later view of the topic says the same about sending to it."""
        known = self.topic
        return (topic.write_queues, topic.message_type, topic.logical_queues) == (
            known.write_queues,
            known.message_type,
            known.logical_queues,
        )

    def keyless(self) -> MessageTypeError:
        """What is wrong with a message without a key, where it `needs_key`."""
        topic = self.topic.topic
        return MessageTypeError(
            f"topic {topic} is of type FIFO: give each message a sharding key (in gRPC clients a"
            " message group) or a key, or name its queue",
            topic=topic,
            message_type=FIFO,
        )
