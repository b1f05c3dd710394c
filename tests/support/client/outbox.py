"""What tests of outbox share with others."""

from itertools import count

from paceline.producer.batch import Batch
from paceline.producer.queue_buffer import QueueBuffer
from paceline.queues import QueueKey
from paceline.types import GroupName, QueueId, TopicId
from paceline.wire.stream import ProduceAnswer

QUEUE = QueueKey(TopicId(1), GroupName("g1"), QueueId(0))
ANSWER = ProduceAnswer(1, 1, 0, 0, 0, 0, 0)


def an_outbox() -> QueueBuffer:
    ids = count(7)
    return QueueBuffer(QUEUE, lambda: next(ids))


def put(
    outbox: QueueBuffer, *bodies: bytes, deadline: float = 30.0, key: str | None = None
) -> Batch:
    """One batch of its own."""
    batch = outbox.open_batch(1 << 30, 1, deadline=deadline, born_unix_ms=5)
    for body in bodies:
        batch.add(body, key, None, None, 5)
    return batch
