"""Pure: the segments of logical queues: which one a group works on, and which one a queue is.

A logical queue is consumed segment by segment: the next one begins when the one before is committed
up to its sealed end. So where a group stands on the queues of the segments says which one is next.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple

from paceline.queues import LOGICAL, QueueKey
from paceline.types import GroupName, QueueId, TopicId
from paceline.wire.cluster import ClusterView
from paceline.wire.static_topics import LogicalQueue, Place, Segment, places
from paceline.wire.topics import TopicView


class GroupPosition(NamedTuple):
    """Where a group stands on a queue."""

    offset: int | None
    """What is committed; None: nothing."""
    joined: int | None = None
    """Where the queue stood when the group began to read the topic in that broker group."""


def next_segment(segments: Sequence[Segment], stood: Sequence[GroupPosition]) -> int | None:
    """The number of the segment to go on with; None: nothing is known of any, so it is a start.

    Those without an offset before the first with one were passed over as the group began, unless
    something came to them after that. Any other without an offset is still to be read, also when
    a later one has been begun: a simple consumer takes from any. One with an offset below its end
    is not done, also when later ones have been begun: somebody has reset the group.
    """
    begun = next((number for number, one in enumerate(stood) if one.offset is not None), None)
    if begun is None:
        return None
    for number, (segment, (offset, joined)) in enumerate(zip(segments, stood, strict=True)):
        end = segment.sealed_end
        if number < begun and (joined is None or (end is not None and joined >= end)):
            continue
        if offset is None or end is None or offset < end:
            return number
    return len(segments) - 1


def not_begun(
    logical_queues: Iterable[LogicalQueue], begun: Container[tuple[GroupName, QueueId]]
) -> list[tuple[GroupName, QueueId]]:
    """Queues of segments that a group has still before it, all of them unread.

    `begun`: where it has committed. What follows the first such segment of a logical queue is read
    from its first message; of a logical queue where it has committed nothing, nothing is known.
    """
    found: list[tuple[GroupName, QueueId]] = []
    for logical_queue in logical_queues:
        where = [(segment.group, segment.queue_id) for segment in logical_queue.segments]
        first = next((number for number, queue in enumerate(where) if queue in begun), None)
        if first is not None:
            found += [queue for queue in where[first + 1 :] if queue not in begun]
    return found


class SegmentBook:
    """Looks up segments in the present view; a new one is read when it is first needed."""

    def __init__(self, view: Callable[[], ClusterView | None]) -> None:
        self._present = view
        self._view: ClusterView | None = None
        self._topics: dict[TopicId, TopicView] = {}
        self._places: dict[TopicId, dict[tuple[GroupName, QueueId], Place]] = {}

    def place_of(self, key: QueueKey) -> Place | None:
        """Which segment a queue is; None where the topic is not static."""
        topic = self._topic(key)
        if topic is None:
            return None
        found = self._places.get(key.topic_id)
        if found is None:
            found = self._places[key.topic_id] = places(topic.logical_queues)
        return found.get((key.group, key.queue_id))

    def segments_of(self, key: QueueKey) -> tuple[Segment, ...]:
        """All segments of a logical queue; none if it is gone."""
        topic = self._topic(key)
        if topic is None or key.queue_id >= len(topic.logical_queues):
            return ()
        return topic.logical_queues[key.queue_id].segments

    def logical_key(self, key: QueueKey) -> QueueKey:
        """The logical queue that a queue is part of; itself where the topic is not static."""
        place = self.place_of(key)
        if place is None:
            return key
        return QueueKey(key.topic_id, LOGICAL, QueueId(place.logical_queue))

    def _topic(self, key: QueueKey) -> TopicView | None:
        view = self._present()
        if view is not self._view and view is not None:
            self._view = view
            self._places.clear()
            topics = view.topics.values()
            self._topics = {topic.topic_id: topic for topic in topics if topic.is_static}
        return self._topics.get(key.topic_id)


def queue_of(key: QueueKey, segment: Segment) -> QueueKey:
    """The queue of a segment of the logical queue `key`."""
    return QueueKey(key.topic_id, segment.group, segment.queue_id)
