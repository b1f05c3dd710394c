"""Pure: logical queues of a static topic, made of segments in broker groups; with their JSON form.

A logical queue is read segment by segment. Only the last one may be open; an earlier one was sealed
by its group's master at the length that the controllers then learnt, and the next one begins there.
A broker group's queue numbers of a topic are never used twice, so each segment is a queue of its
own, from offset 0: logical offset = the segment's start + offset in its queue.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from paceline.types import GroupName, QueueId

LOGICAL_QUEUES_MAX = 4096
"""Of one topic; as many as it may have queues in one broker group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a logical queue: one queue of one broker group."""

    generation: int
    """Counts the segments of its logical queue, from 0."""
    group: GroupName
    queue_id: QueueId
    """Its number in that broker group."""
    start: int
    """Logical offset of its first message."""
    end: int | None = None
    """Logical offset after its last one; None while it is open."""

    @property
    def is_open(self) -> bool:
        return self.end is None

    def logical(self, queue_offset: int) -> int:
        """The logical offset of a message of this segment."""
        return self.start + queue_offset

    @property
    def sealed_end(self) -> int | None:
        """Its queue's own offset after its last message; None while it is open."""
        return None if self.end is None else self.end - self.start

    def to_json(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "group": self.group,
            "queue": self.queue_id,
            "start": self.start,
            "end": self.end,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Segment":
        return cls(
            generation=document["generation"],
            group=GroupName(document["group"]),
            queue_id=QueueId(document["queue"]),
            start=document["start"],
            end=document["end"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalQueue:
    """One logical queue; its number is its place in the topic."""

    segments: tuple[Segment, ...]
    """Oldest first, at least one."""
    moving_to: GroupName | None = None
    """The broker group that the next segment opens in, once the last one is sealed."""

    @property
    def last(self) -> Segment:
        """Where producers send to, unless it is sealed."""
        return self.segments[-1]

    def to_json(self) -> dict[str, Any]:
        return {
            "segments": [segment.to_json() for segment in self.segments],
            "moving_to": self.moving_to,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "LogicalQueue":
        return cls(
            segments=tuple(Segment.from_json(segment) for segment in document["segments"]),
            moving_to=document.get("moving_to"),
        )


class Place(NamedTuple):
    """Which segment a queue is."""

    logical_queue: int
    segment: Segment


def places(logical_queues: Iterable[LogicalQueue]) -> dict[tuple[GroupName, QueueId], Place]:
    """Every queue of a static topic, by (broker group, queue)."""
    return {
        (segment.group, segment.queue_id): Place(number, segment)
        for number, logical_queue in enumerate(logical_queues)
        for segment in logical_queue.segments
    }
