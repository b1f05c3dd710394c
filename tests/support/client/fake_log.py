"""The log of a fake broker group, with the rules of idempotent producers (R31), and faults."""

import asyncio
from dataclasses import dataclass, field

from paceline.errors import (
    OutOfOrderSequenceError,
    PacelineError,
    ProducerFencedError,
    QueueSealedError,
    UnknownProducerError,
)
from paceline.records.checking import check_batch
from paceline.records.decode import BatchView, Record
from paceline.records.header import HEADER_BYTES, BatchHeader, stamp
from paceline.wire.stream import PRODUCE_FLAG_DUPLICATE, PRODUCE_FLAG_OFFSET_UNKNOWN

_WINDOW = 5


@dataclass
class Fault:
    """What goes wrong with one produce request."""

    refuse: PacelineError | None = None
    """Answer this before anything is stored."""
    drop_before: bool = False
    """Close the connection, store nothing."""
    drop_after: bool = False
    """Store, then close the connection without an answer."""
    late_ms: float | None = None
    """Close the connection now and process the bytes later all the same (a paused broker)."""
    is_unknown: bool = False
    """Store, but answer FLUSH_SLAVE_TIMEOUT."""
    answer_epoch: int | None = None
    """Name this epoch in the answer."""
    answer_after_ms: float = 0
    is_silent: bool = False
    """Store and never answer."""


NO_FAULT = Fault()


@dataclass
class ProducerState:
    """R31, per (producer, topic, queue)."""

    epoch: int
    last: int = -1
    window: list[tuple[int, int, int]] = field(default_factory=list)  # base, last, queue offset


@dataclass
class StoredBatch:
    base: int
    count: int
    data: bytes


class FakeLog:
    """The shared log of one group."""

    def __init__(self) -> None:
        self.queues: dict[tuple[int, int], list[StoredBatch]] = {}
        self.producers: dict[tuple[int, int, int], ProducerState] = {}
        self.confirm = 0
        self.new_flags = 0
        """Flags of what is stored now: a group that answers early says so (R37)."""
        self.offsets: dict[tuple[str, int, int], tuple[int, int]] = {}
        """(group, topic id, queue) -> (committed offset, reset generation)."""
        self.changed = asyncio.Event()
        self.joined: dict[tuple[str, int], dict[int, int]] = {}
        """(group, topic id) -> where the topic's queues ended when the group first committed."""
        self.starts: dict[tuple[int, int], int] = {}
        self.ends: dict[tuple[int, int], int] = {}
        """Of queues of which nothing is kept."""
        self.sealed: set[tuple[int, int]] = set()
        """Queues of static topics that take nothing any more."""

    def commit(self, key: tuple[str, int, int], offset: int, generation: int) -> None:
        group, topic_id, _ = key
        if key not in self.offsets and (group, topic_id) not in self.joined:
            ours = [queue for topic, queue in self.queues if topic == topic_id]
            ends = {queue: self.end((topic_id, queue)) for queue in ours}
            self.joined[group, topic_id] = ends
        self.offsets[key] = (offset, generation)

    def start(self, queue: tuple[int, int]) -> int:
        return self.starts.get(queue, 0)

    def delete_below(self, queue: tuple[int, int], offset: int) -> None:
        """Retention: whole batches go, as far as they lie below `offset`."""
        kept = [batch for batch in self.queues[queue] if batch.base + batch.count > offset]
        self.starts[queue] = kept[0].base if kept else self.end(queue)
        self.ends[queue] = self.end(queue)
        self.queues[queue] = kept

    def end(self, queue: tuple[int, int]) -> int:
        batches = self.queues.get(queue)
        return batches[-1].base + batches[-1].count if batches else self.ends.get(queue, 0)

    def bodies(self, queue: tuple[int, int]) -> list[bytes]:
        return [
            bytes(body)
            for stored in self.queues.get(queue, [])
            for body in BatchView(stored.data).bodies()
        ]

    def record(self, queue: tuple[int, int], offset: int) -> Record:
        """The message at a queue offset."""
        for stored in self.queues[queue]:
            if stored.base <= offset < stored.base + stored.count:
                return next(BatchView(stored.data).records(offset - stored.base))
        raise AssertionError(offset)

    def append(self, batch: bytes, epoch: int) -> tuple[int, int]:
        """(base queue offset, flags). Raises what a broker refuses."""
        header = check_batch(batch)
        duplicate = self._judge(header)
        if duplicate is not None:
            return duplicate
        base = self.put(batch, header, epoch)
        key = (header.producer_id, header.topic_id, header.queue_id)
        state = self.producers.get(key, ProducerState(0))
        state.last = header.base_sequence + header.record_count - 1
        state.window = [*state.window, (header.base_sequence, state.last, base)][-_WINDOW:]
        return base, self.new_flags

    def put(self, batch: bytes, header: BatchHeader, epoch: int) -> int:
        """Store a batch at the end of its queue, without a question; its first offset."""
        queue = (header.topic_id, header.queue_id)
        base = self.end(queue)
        head = stamp(
            batch,
            physical_offset=self.confirm,
            base_queue_offset=base,
            store_unix_ms=1,
            master_epoch=epoch,
        )
        self.confirm += len(batch)
        stored = StoredBatch(base, header.record_count, head + batch[HEADER_BYTES:])
        self.queues.setdefault(queue, []).append(stored)
        self.changed.set()
        self.changed = asyncio.Event()
        return base

    def lose_newest(self, queue: tuple[int, int], count: int) -> None:
        """A failover cut what was answered and not confirmed (R37)."""
        lost = [check_batch(stored.data) for stored in self.queues[queue][-count:]]
        del self.queues[queue][-count:]
        for header in reversed(lost):
            state = self.producers[(header.producer_id, *queue)]
            state.last = header.base_sequence - 1
            state.window.pop()

    def _judge(self, header: BatchHeader) -> tuple[int, int] | None:
        if header.producer_id == 0:
            return None  # nobody sends it again
        key = (header.producer_id, header.topic_id, header.queue_id)
        state = self.producers.get(key)
        first, last = header.base_sequence, header.base_sequence + header.record_count - 1
        if (header.topic_id, header.queue_id) in self.sealed:
            known = state if state and state.epoch == header.producer_epoch else ProducerState(0)
            for base, end, offset in known.window:
                if (base, end) == (first, last):
                    return offset, PRODUCE_FLAG_DUPLICATE
            raise QueueSealedError("sealed", topic_id=header.topic_id, queue=header.queue_id)
        if state is None or header.producer_epoch > state.epoch:
            if first != 0:
                raise UnknownProducerError(f"first sequence {first}")
            self.producers[key] = ProducerState(header.producer_epoch)
            return None
        if header.producer_epoch < state.epoch:
            raise ProducerFencedError(f"epoch {header.producer_epoch} < {state.epoch}")
        for base, end, offset in state.window:
            if (base, end) == (first, last):
                return offset, PRODUCE_FLAG_DUPLICATE
        if first == state.last + 1:
            return None
        if last <= state.last and state.window and last < state.window[0][0]:
            return 0, PRODUCE_FLAG_DUPLICATE | PRODUCE_FLAG_OFFSET_UNKNOWN
        raise OutOfOrderSequenceError(f"{first} after {state.last}", expected=state.last + 1)
