"""Pure: what a query reads: ranges of queue offsets, cut into tasks by bytes, filtered, limited.

Everything travels inside the partitions that Spark hands to its tasks: an executor looks nothing
up but the bytes themselves.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from paceline.queues import QueueName
from paceline.spark.offsets import Offsets


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offsets [start, end) of one queue."""

    queue: QueueName
    topic_id: int
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece of a queue that may be read alone: it begins with a batch, or with the range."""

    offset: int
    size_bytes: int
    """Of the batches from here to the next cut, as stored."""


@dataclass(slots=True)
class Bounds:
    """What pushed filters leave of a read. Empty sets mean: nothing matches."""

    offset_low: int = 0
    offset_high: int | None = None
    """Exclusive."""
    stored_low_ms: int | None = None
    stored_high_ms: int | None = None
    """Exclusive."""
    queue_ids: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    groups: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None

    def takes(self, queue: QueueName) -> bool:
        """Whether anything of this queue may match."""
        return (
            (self.queue_ids is None or int(queue.queue_id) in self.queue_ids)
            and (self.topics is None or str(queue.topic) in self.topics)
            and (self.groups is None or str(queue.group) in self.groups)
        )

    def narrowed(self, ranges: Iterable[QueueRange]) -> list[QueueRange]:
        """The ranges without what lies outside the offset bounds; empty ones are left out."""
        found = []
        for one in ranges:
            if not self.takes(one.queue):
                continue
            start = max(one.start, self.offset_low)
            end = one.end if self.offset_high is None else min(one.end, self.offset_high)
            if start < end:
                found.append(replace(one, start=start, end=end))
        return found


@dataclass(frozen=True, slots=True)
class Task:
    """One Spark task: some pieces of queues, one after another."""

    ranges: tuple[QueueRange, ...]
    number: int = 0
    """Which task of the query: readers of one group begin with different replicas."""
    size_bytes: int = field(default=0, compare=False)


def tasks_of(
    cuts: Mapping[QueueName, Sequence[Cut]],
    ranges: Sequence[QueueRange],
    *,
    bytes_max: int,
    tasks_min: int,
) -> list[Task]:
    """Tasks of at most about `bytes_max`, at least `tasks_min` where batches allow it.

    Large queues are split at their cuts; small ones of one broker group share a task.
    """
    total = sum(cut.size_bytes for one in ranges for cut in cuts[one.queue])
    target = max(1, min(bytes_max, -(-total // max(1, tasks_min))))
    tasks: list[Task] = []
    for group in sorted({one.queue.group for one in ranges}):
        open_ranges: list[QueueRange] = []
        open_bytes = 0
        for piece, size_bytes in _pieces(
            [one for one in ranges if one.queue.group == group], cuts, target
        ):
            if open_ranges and open_bytes + size_bytes > target:
                tasks.append(Task(tuple(open_ranges), len(tasks), open_bytes))
                open_ranges, open_bytes = [], 0
            open_ranges.append(piece)
            open_bytes += size_bytes
        if open_ranges:
            tasks.append(Task(tuple(open_ranges), len(tasks), open_bytes))
    return tasks


def _pieces(
    ranges: Sequence[QueueRange], cuts: Mapping[QueueName, Sequence[Cut]], target: int
) -> list[tuple[QueueRange, int]]:
    """Each range in pieces of at most `target` bytes, as far as its cuts allow."""
    found: list[tuple[QueueRange, int]] = []
    for one in ranges:
        start, held = one.start, 0
        for cut in cuts[one.queue]:
            if held and held + cut.size_bytes > target and start < cut.offset < one.end:
                found.append((replace(one, start=start, end=cut.offset), held))
                start, held = cut.offset, 0
            held += cut.size_bytes
        found.append((replace(one, start=start), held))
    return found


def limited(start: Offsets, end: Offsets, *, records_max: int) -> Offsets:
    """Where a micro-batch ends: at most `records_max` in all, shared in proportion to the backlog.

    Every queue with a backlog gets at least one record, so none starves (an integer share of 0
    would stop it); only then the sum may be above `records_max`.
    """
    backlog = {queue: end[queue] - start.get(queue, 0) for queue in end}
    total = sum(backlog.values())
    if total <= records_max:
        return dict(end)
    found: Offsets = {}
    for queue, count in backlog.items():
        share = count * records_max // total
        found[queue] = start.get(queue, 0) + min(count, max(1, share) if count else 0)
    return found


def cut_to_bytes(
    ranges: Sequence[QueueRange], cuts: Mapping[QueueName, Sequence[Cut]], *, bytes_max: int
) -> Offsets:
    """Where each range ends so that about `bytes_max` are read in all, shared by the backlog.

    Every range gets at least its first piece, so none starves.
    """
    total = sum(cut.size_bytes for one in ranges for cut in cuts[one.queue])
    found: Offsets = {}
    for one in ranges:
        mine = sum(cut.size_bytes for cut in cuts[one.queue])
        share = mine if total <= bytes_max else mine * bytes_max // total
        held, end = 0, one.end
        for cut in cuts[one.queue]:
            if held and held + cut.size_bytes > share:
                end = cut.offset
                break
            held += cut.size_bytes
        found[one.queue] = end
    return found
