"""A queue that a member holds, with what is fetched of it and what becomes of it."""

from paceline.consumer.fetch.fetched import QueueFetch
from paceline.consumer.queues.process_queue import ProcessQueue
from paceline.filters import Filter
from paceline.types import TopicName
from paceline.wire.static_topics import Place


class HeldQueue:
    """A queue that is ours: fetch and process state."""

    __slots__ = (
        "attempts",
        "fetch",
        "is_paused",
        "is_ready",
        "is_releasing",
        "place",
        "queue",
        "topic",
    )

    def __init__(self, queue: ProcessQueue, topic: TopicName, wanted: Filter) -> None:
        self.queue = queue
        self.topic = topic
        self.fetch = QueueFetch(queue.key, queue.committed, wanted)
        self.attempts: dict[int, int] = {}
        """Failed listener calls by queue offset."""
        self.is_releasing = False
        self.is_paused = False
        """Nothing more is fetched, nothing more is handed to listeners."""
        self.is_ready = False
        """Owned by the `Processing`: it stands in its line."""
        self.place: Place | None = None
        """Which segment of a logical queue it is, if the topic is static."""
