"""The segments that a pull consumer reads of logical queues: one after another.

A segment waits until all of an earlier one of its logical queue that is assigned too was handed
out. Who reads the last segment of a logical queue reads on in those that come.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from paceline.consumer.fetch.assigned import Assigned
from paceline.consumer.fetch.fetched import QueueFetch
from paceline.consumer.queues.segments import SegmentBook, queue_of
from paceline.filters import Filter
from paceline.queues import QueueKey, QueueName
from paceline.types import TopicName


class _Tail(NamedTuple):
    """The newest segment that is read of a logical queue: those that come are read as it is."""

    generation: int
    topic: TopicName
    wanted: Filter


class SegmentLines:
    """Owned by one pull consumer; `assigned` is its own."""

    def __init__(self, book: SegmentBook, assigned: Mapping[QueueKey, Assigned]) -> None:
        self._book = book
        self._assigned = assigned
        self._followed: dict[QueueKey, _Tail] = {}
        """Logical queues of which the last segment was assigned. By its generation: its broker
        group may be given up, and the segment with it."""

    def lasts(self, keys: Iterable[QueueKey]) -> dict[QueueKey, int]:
        """Logical queues of which the present last segment is among these; its generation."""
        found: dict[QueueKey, int] = {}
        for key in keys:
            logical = self._book.logical_key(key)
            segments = self._book.segments_of(logical)
            if segments and queue_of(logical, segments[-1]) == key:
                found[logical] = segments[-1].generation
        return found

    def named(self, before: Mapping[QueueKey, int]) -> None:
        """The application has named what it reads. `before`: the `lasts` of when it began to: more
        segments may have come since."""
        lasts = {**before, **self.lasts(self._assigned)}
        self._followed.clear()
        for key, item in self._assigned.items():
            logical = self._book.logical_key(key)
            if logical in lasts:
                self._followed[logical] = _Tail(lasts[logical], item.name.topic, item.fetch.wanted)

    def come(self) -> list[Assigned]:
        """Segments that are to be read as well, each from its first message; not in a line yet."""
        found: list[Assigned] = []
        for logical in sorted(self._followed):
            tail = self._followed[logical]
            for segment in self._book.segments_of(logical):
                if segment.generation <= tail.generation:
                    continue
                self._followed[logical] = tail._replace(generation=segment.generation)
                key = queue_of(logical, segment)
                if key in self._assigned:
                    continue
                fetch = QueueFetch(key, 0, tail.wanted)
                fetch.has_room = False
                item = Assigned(QueueName(tail.topic, key.group, key.queue_id), fetch)
                item.is_behind = True  # `settle` tells, also at once, that it is not
                found.append(item)
        return found

    def settle(self, keys: Iterable[QueueKey]) -> list[Assigned]:
        """Look who waits for whom in the logical queues of these; those that changed."""
        changed: list[Assigned] = []
        for logical in {self._book.logical_key(key) for key in keys}:
            is_behind = False
            for segment in self._book.segments_of(logical):
                item = self._assigned.get(queue_of(logical, segment))
                if item is None:
                    continue
                item.place = self._book.place_of(item.fetch.key)
                if item.is_behind != is_behind:
                    item.is_behind = is_behind
                    changed.append(item)
                end = segment.sealed_end
                is_behind = is_behind or end is None or item.position < end
        return changed
