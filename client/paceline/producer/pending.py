"""What of a producer waits for room in its buffer or for a route, in order per topic."""

from collections.abc import Callable

from paceline.producer.batch import Batch
from paceline.producer.results import Sending
from paceline.producer.route import Route
from paceline.queues import QueueKey
from paceline.types import GroupName, QueueId, TopicId

_NO_QUEUE = QueueKey(TopicId(0), GroupName(""), QueueId(0))


class Parked:
    """A message, or several bodies, that wait for room in the buffer or for a route."""

    __slots__ = ("cost_bytes", "place", "sending", "since")

    def __init__(
        self,
        cost_bytes: int,
        since: float,
        sending: Sending,
        place: Callable[[Route], tuple[Batch, int]],
    ) -> None:
        self.cost_bytes = cost_bytes
        self.since = since
        self.sending = sending
        self.place = place


def placeholder() -> Batch:
    """Stands for the batch of a message that has none yet."""
    return Batch(_NO_QUEUE, deadline=0.0, born_unix_ms=0)
