"""The segments that a pull consumer reads of logical queues: one after another.

A segment waits until all of an earlier one of its logical queue that is assigned too was handed
out. Who reads the last segment of a logical queue reads on in those that come.
"""

from collections.abc import Iterable, Mapping

from paceline.consumer.assigned import Assigned
from paceline.consumer.fetched import QueueFetch
from paceline.consumer.segments import SegmentBook, queue_of
from paceline.routing import QueueKey, QueueName


class SegmentLines:
    """Owned by one pull consumer; `assigned` is its own."""

    def __init__(self, book: SegmentBook, assigned: Mapping[QueueKey, Assigned]) -> None:
        self._book = book
        self._assigned = assigned
        self._followed: set[QueueKey] = set()
        """Logical queues of which the last segment was assigned."""

    def lasts(self, keys: Iterable[QueueKey]) -> set[QueueKey]:
        """Logical queues of which the present last segment is among these."""
        found: set[QueueKey] = set()
        for key in keys:
            logical = self._book.logical_key(key)
            segments = self._book.segments_of(logical)
            if segments and queue_of(logical, segments[-1]) == key:
                found.add(logical)
        return found

    def named(self, before: set[QueueKey]) -> None:
        """The application has named what it reads. `before`: the `lasts` of when it began to: more
        segments may have come since."""
        self._followed = before | self.lasts(self._assigned)

    def come(self) -> list[Assigned]:
        """Segments that are to be read as well, each from its first message; not in a line yet."""
        found: list[Assigned] = []
        for logical in sorted(self._followed):
            segments = self._book.segments_of(logical)
            keys = [queue_of(logical, segment) for segment in segments]
            last = max((n for n, key in enumerate(keys) if key in self._assigned), default=-1)
            if last < 0:
                continue
            before = self._assigned[keys[last]]
            for key in keys[last + 1 :]:
                name = QueueName(before.name.topic, key.group, key.queue)
                fetch = QueueFetch(key, 0, before.fetch.wanted)
                fetch.has_room = False
                item = Assigned(name, fetch)
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
