"""Pure: the index of every queue: which batch of the commit log holds which queue offsets.

One entry per batch in three arrays: first queue offset, position in the log, size. The size is
kept (4 bytes beside 16) so that a fetch can cut whole batches, see neighbours in the log and limit
bytes without touching a page of the log, which may be cold.

On a master the index runs to `end`; readers pass confirm and never see past it (INV-8).
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

from paceline.errors import CorruptLogError
from paceline.types import PhysicalOffset, QueueId, QueueOffset, TopicId

_QUEUE_HEAD = struct.Struct("<QQQQ")  # key, start, end, count of entries
_COUNT = struct.Struct("<Q")
_ENTRY_BYTES = 8 + 8 + 4


def queue_key(topic_id: int, queue_id: int) -> int:
    """One int for (topic id, queue id): the key of everything that is kept per queue."""
    return topic_id << 16 | queue_id


def topic_of(key: int) -> TopicId:
    """The topic of a queue key."""
    return TopicId(key >> 16)


def queue_of(key: int) -> QueueId:
    """The queue of a queue key, within its topic and broker group."""
    return QueueId(key & 0xFFFF)


class Run(NamedTuple):
    """Whole batches of one queue that are neighbours in the log."""

    position: PhysicalOffset
    size_bytes: int


class Span(NamedTuple):
    """What a reader may have of one queue: the batches, and the queue offset after them."""

    runs: list[Run]
    size_bytes: int
    next_offset: QueueOffset


class TopicBytes:
    """What the queues of one topic hold."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class ConsumeQueue:
    """Index of one queue. Queue offsets are dense (INV-7): an entry ends where the next begins."""

    __slots__ = (
        "_bases",
        "_positions",
        "_sizes",
        "_topic_bytes",
        "end",
        "is_watched",
        "key",
        "start",
    )

    def __init__(self, key: int, topic_bytes: TopicBytes) -> None:
        self.key = key
        self._topic_bytes = topic_bytes
        """Of all queues of its topic."""
        self.start = QueueOffset(0)
        self.end = QueueOffset(0)
        self.is_watched = False
        """Somebody waits for the next batch: the fold reports it once (`Projections.touched`)."""
        self._bases = array("Q")
        self._positions = array("Q")
        self._sizes = array("I")

    def __len__(self) -> int:
        return len(self._bases)

    @property
    def topic_id(self) -> TopicId:
        return topic_of(self.key)

    @property
    def queue_id(self) -> QueueId:
        return queue_of(self.key)

    def add(self, base: int, record_count: int, position: int, size_bytes: int) -> None:
        """Index the batch at `position`. Raises CorruptLogError if it is not the queue's next."""
        if base != self.end:
            raise CorruptLogError(  # INV-7
                f"batch at {position} begins at queue offset {base}, queue ends at {self.end}",
                offset=position,
            )
        self._bases.append(base)
        self._positions.append(position)
        self._sizes.append(size_bytes)
        self._topic_bytes.count += size_bytes
        self.end = QueueOffset(base + record_count)

    def confirmed_end(self, confirm: int) -> QueueOffset:
        """First queue offset at or above confirm: the end that readers may know."""
        positions = self._positions
        if not positions or positions[-1] + self._sizes[-1] <= confirm:
            return self.end
        # Batches never straddle confirm: every member counts by whole batches.
        return QueueOffset(self._bases[bisect_left(positions, confirm)])

    def span(self, offset: int, *, confirm: int, max_bytes: int, is_first: bool) -> Span | None:
        """Confirmed batches from the one that holds `offset` on, neighbours merged into runs.

        At most `max_bytes` in all; with `is_first` always one batch, however large. None if there
        is nothing (the confirmed end, or no room). `offset` must be in [start, confirmed_end].
        """
        bases, positions, sizes = self._bases, self._positions, self._sizes
        at = bisect_right(bases, offset) - 1
        if at < 0 or offset >= self.end:
            return None
        position, size = positions[at], sizes[at]
        if position + size > confirm or (size > max_bytes and not is_first):
            return None
        runs: list[Run] = []
        total = size
        for later in range(at + 1, len(bases)):
            next_position, next_size = positions[later], sizes[later]
            if total + next_size > max_bytes or next_position + next_size > confirm:
                next_offset = QueueOffset(bases[later])
                break
            total += next_size
            if next_position == position + size:
                size += next_size
            else:
                runs.append(Run(PhysicalOffset(position), size))
                position, size = next_position, next_size
        else:
            next_offset = self.end
        runs.append(Run(PhysicalOffset(position), size))
        return Span(runs, total, next_offset)

    def entries(self, low: int, high: int) -> tuple[int, int]:
        """Entries [first, beyond) of the batches that hold queue offsets [low, high)."""
        return max(0, bisect_right(self._bases, low) - 1), bisect_left(self._bases, high)

    def base(self, entry: int) -> int:
        """First queue offset of an entry's batch."""
        return self._bases[entry]

    def index(self, first: int, beyond: int) -> "tuple[array[int], array[int]]":
        """First queue offsets and physical offsets of entries [first, beyond)."""
        return self._bases[first:beyond], self._positions[first:beyond]

    def sizes(self, first: int, beyond: int) -> "array[int]":
        """Sizes in bytes of the batches of entries [first, beyond)."""
        return self._sizes[first:beyond]

    def position_of(self, offset: int) -> PhysicalOffset | None:
        """Where the batch with `offset` lies; the first kept one for lower; None at the end."""
        if offset >= self.end or not self._bases:
            return None
        return PhysicalOffset(self._positions[max(0, bisect_right(self._bases, offset) - 1)])

    def drop_below(self, log_start: int) -> None:
        """Forget batches below the log's start (a confirmed retention record moved it, R26)."""
        keep = bisect_left(self._positions, log_start)
        if keep == 0:
            return
        self.start = QueueOffset(self._bases[keep]) if keep < len(self._bases) else self.end
        self._topic_bytes.count -= sum(self._sizes[:keep])
        del self._bases[:keep]
        del self._positions[:keep]
        del self._sizes[:keep]

    def to_bytes(self, log_start: int = 0) -> bytes:
        """Canonical form, little-endian (the machine's own order: asserted by the codec).

        As if what lies below `log_start` had been dropped already.
        """
        bases, positions, sizes = self._bases, self._positions, self._sizes
        start = self.start
        if log_start and positions and positions[0] < log_start:
            keep = bisect_left(positions, log_start)
            start = QueueOffset(bases[keep]) if keep < len(bases) else self.end
            bases, positions, sizes = bases[keep:], positions[keep:], sizes[keep:]
        head = _QUEUE_HEAD.pack(self.key, start, self.end, len(bases))
        return head + bases.tobytes() + positions.tobytes() + sizes.tobytes()

    @classmethod
    def from_bytes(
        cls, snapshot: memoryview, topic_bytes: Callable[[int], TopicBytes]
    ) -> tuple["ConsumeQueue", memoryview]:
        """The queue at the front of `snapshot`, and what follows it. `topic_bytes`: of a queue's
        key."""
        key, start, end, count = _QUEUE_HEAD.unpack_from(snapshot)
        queue = cls(key, topic_bytes(key))
        queue.start, queue.end = QueueOffset(start), QueueOffset(end)
        rest = snapshot[_QUEUE_HEAD.size :]
        for column in (queue._bases, queue._positions, queue._sizes):
            size = count * column.itemsize
            column.frombytes(rest[:size])
            rest = rest[size:]
        queue._topic_bytes.count += sum(queue._sizes)
        return queue, rest


class ConsumeQueues:
    """All queues of a broker's log, made when their first batch (or reader) comes."""

    def __init__(self) -> None:
        self._queues: dict[int, ConsumeQueue] = {}
        self._bytes: dict[TopicId, TopicBytes] = {}
        """By topic, of those with queues."""

    def topic_bytes(self, topic_id: int) -> int:
        """Bytes of the batches that the queues of a topic hold, up to `end` on a master."""
        found = self._bytes.get(TopicId(topic_id))
        return 0 if found is None else found.count

    def _bytes_of(self, key: int) -> TopicBytes:
        return self._bytes.setdefault(topic_of(key), TopicBytes())

    def get(self, key: int) -> ConsumeQueue | None:
        return self._queues.get(key)

    def get_or_make(self, key: int) -> ConsumeQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = ConsumeQueue(key, self._bytes_of(key))
        return queue

    def all(self) -> list[ConsumeQueue]:
        """Every queue, by key."""
        return [self._queues[key] for key in sorted(self._queues)]

    def drop_below(self, log_start: int) -> None:
        for queue in self._queues.values():
            queue.drop_below(log_start)

    def drop_topic(self, topic_id: int) -> None:
        for key in [key for key in self._queues if topic_of(key) == topic_id]:
            del self._queues[key]
        self._bytes.pop(TopicId(topic_id), None)

    def snapshot(self, log_start: int = 0) -> bytes:
        # A queue without a record is not state: only a reader's question made it.
        queues = [queue for queue in self.all() if queue.end > 0]
        return _COUNT.pack(len(queues)) + b"".join(queue.to_bytes(log_start) for queue in queues)

    @classmethod
    def restore(cls, snapshot: memoryview) -> "ConsumeQueues":
        queues = cls()
        (count,) = _COUNT.unpack_from(snapshot)
        rest = snapshot[_COUNT.size :]
        for _ in range(count):
            queue, rest = ConsumeQueue.from_bytes(rest, queues._bytes_of)
            queues._queues[queue.key] = queue
        return queues
