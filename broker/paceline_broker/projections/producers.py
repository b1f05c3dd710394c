"""Pure: idempotent producers (R30, R31): which batches of which producer a queue already has.

State per (producer id, topic id, queue): producer epoch, last sequence and the last five batches.
Sequences count records, are dense, and go on at 0 after 2^31 - 1 (as Kafka's do). Expiry is a
record (R29): `forget_before` is called by the fold of a retention record only.
"""

import struct
from collections.abc import Callable
from enum import Enum
from itertools import chain
from typing import NamedTuple

from sortedcontainers import SortedDict

from paceline.errors import (
    OutOfOrderSequenceError,
    PacelineError,
    ProducerFencedError,
    UnknownProducerError,
)
from paceline.records.header import BatchHeader
from paceline.types import QueueOffset
from paceline_broker.projections.consume_queues import topic_of

WINDOW_BATCHES = 5
"""Kafka's max.in.flight with idempotence: a client has at most this many batches under way."""
SEQUENCE_MASK = 2**31 - 1
_BEHIND_MAX = 2**30  # a distance beyond half of the circle means ahead, not behind

_STATE = struct.Struct("<QQHHiq")  # producer id, queue key, epoch, window, last sequence, last ms
_BATCH = struct.Struct("<iHxxQq")  # base sequence, count, base queue offset, store ms
_WINDOWS = [struct.Struct("<" + "iHxxQq" * count) for count in range(WINDOW_BATCHES + 1)]
"""By their number, as many batches in a row."""
_COUNT = struct.Struct("<Q")


class StoredBatch(NamedTuple):
    """One batch of the window."""

    base_sequence: int
    record_count: int
    base_queue_offset: QueueOffset
    store_unix_ms: int


class Verdict(Enum):
    """What becomes of an incoming batch that is not refused."""

    NEW = "new"
    DUPLICATE = "duplicate"
    DUPLICATE_OFFSET_UNKNOWN = "duplicate_offset_unknown"


class ProducerState:
    """One producer in one queue."""

    __slots__ = ("epoch", "last_sequence", "last_unix_ms", "packed", "window")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_sequence = -1
        self.last_unix_ms = 0
        self.window: list[StoredBatch] = []
        self.packed = b""
        """Its part of a snapshot, by `pack`; empty from the next batch on. Not state."""

    def decide(self, header: BatchHeader) -> tuple[Verdict, StoredBatch | None]:
        """Verdict on a batch of this producer; raises the refusals of R31. Changes nothing."""
        if header.producer_epoch != self.epoch:
            self._check_new_epoch(header)
            return Verdict.NEW, None
        base, count = header.base_sequence, header.record_count
        expected = (self.last_sequence + 1) & SEQUENCE_MASK
        if base == expected:
            return Verdict.NEW, None
        behind = (expected - base) & SEQUENCE_MASK
        if behind > _BEHIND_MAX:
            raise _out_of_order(header, expected, "records before it are missing")
        if behind < count:
            raise _out_of_order(header, expected, "part of it is stored already")
        for batch in self.window:
            if batch.base_sequence == base and batch.record_count == count:
                return Verdict.DUPLICATE, batch
        oldest = (expected - self.window[0].base_sequence) & SEQUENCE_MASK
        if behind - count >= oldest:
            return Verdict.DUPLICATE_OFFSET_UNKNOWN, None
        raise _out_of_order(header, expected, "it overlaps stored batches")

    def _check_new_epoch(self, header: BatchHeader) -> None:
        if header.producer_epoch < self.epoch:
            raise ProducerFencedError(
                f"producer {header.producer_id:x} epoch {header.producer_epoch} is older than"
                f" {self.epoch}",
                producer_epoch=self.epoch,
            )
        if header.base_sequence != 0:
            raise _unknown(header, f"epoch {header.producer_epoch} is new here")

    def add(self, header: BatchHeader, base_queue_offset: int, store_unix_ms: int) -> None:
        """Take in a batch that `decide` called NEW, at the offset where it was stored."""
        base = header.base_sequence
        if header.producer_epoch != self.epoch:
            self.epoch = header.producer_epoch
            self.window.clear()
        elif len(self.window) == WINDOW_BATCHES:
            del self.window[0]
        self.last_sequence = (base + header.record_count - 1) & SEQUENCE_MASK
        self.last_unix_ms = store_unix_ms
        self.window.append(
            StoredBatch(base, header.record_count, QueueOffset(base_queue_offset), store_unix_ms)
        )
        self.packed = b""

    def pack(self, producer_id: int, key: int) -> None:
        """Prepare its part of a snapshot; always with the same two."""
        window = self.window
        self.packed = _STATE.pack(
            producer_id, key, self.epoch, len(window), self.last_sequence, self.last_unix_ms
        ) + _WINDOWS[len(window)].pack(*chain.from_iterable(window))


class Producers:
    """All producers of a broker's log."""

    def __init__(self) -> None:
        self._states: dict[tuple[int, int], ProducerState] = SortedDict()
        """In the order of snapshots: to sort half a million takes half a second of one turn."""
        self._unpacked: list[tuple[int, int]] = []
        """Whose part of a snapshot is not packed; each once."""
        self.voided_at = 0
        """The newest unclean epoch began there in the log: of batches below nobody knows whose they
        are. 0 if there was none."""

    def __len__(self) -> int:
        return len(self._states)

    def decide(self, key: int, header: BatchHeader) -> tuple[Verdict, StoredBatch | None]:
        """Verdict on an idempotent batch for the queue `key`; the stored batch of a duplicate.

        Raises OutOfOrderSequenceError, UnknownProducerError, ProducerFencedError (R31).
        """
        state = self._states.get((header.producer_id, key))
        if state is not None:
            return state.decide(header)
        if header.base_sequence != 0:
            raise _unknown(header, "nothing of it is stored here")
        return Verdict.NEW, None

    def add(
        self, key: int, header: BatchHeader, base_queue_offset: int, store_unix_ms: int
    ) -> None:
        """Fold a stored idempotent batch."""
        at = (header.producer_id, key)
        state = self._states.get(at)
        if state is None:
            state = self._states[at] = ProducerState(header.producer_epoch)
            self._unpacked.append(at)
        elif state.packed:
            self._unpacked.append(at)
        state.add(header, base_queue_offset, store_unix_ms)

    def knows(self, key: int, header: BatchHeader) -> bool:
        """Whether a queue has anything of the batch's producer."""
        return (header.producer_id, key) in self._states

    def oldest_unix_ms(self) -> int | None:
        """Store time of the producer that has been silent longest; None if there is none."""
        return min((state.last_unix_ms for state in self._states.values()), default=None)

    def forget_before(self, unix_ms: int) -> None:
        """Drop producers whose last batch was stored before `unix_ms` (a retention record)."""
        self._keep(lambda _, state: state.last_unix_ms >= unix_ms)

    def fence_all(self, at: int) -> None:
        """An unclean epoch begins at `at` (R21): what they stored is no longer known, so all must
        start anew."""
        self._states.clear()
        self._unpacked.clear()
        self.voided_at = at

    def drop_topic(self, topic_id: int) -> None:
        self._keep(lambda at, _: topic_of(at[1]) != topic_id)

    def _keep(self, is_kept: "Callable[[tuple[int, int], ProducerState], bool]") -> None:
        kept = [(at, state) for at, state in self._states.items() if is_kept(at, state)]
        if len(kept) < len(self._states):
            self._states = SortedDict(kept)
            self._unpacked = [at for at in self._unpacked if at in self._states]

    def pack_some(self, count: int) -> bool:
        """Prepare up to `count` states for the next snapshot; whether there are more."""
        for _ in range(min(count, len(self._unpacked))):
            at = self._unpacked.pop()
            self._states[at].pack(*at)
        return bool(self._unpacked)

    def snapshot(self) -> bytes:
        """Canonical bytes. Quick where `pack_some` has left little to pack."""
        self.pack_some(len(self._unpacked))
        states = self._states
        return _COUNT.pack(len(states)) + b"".join([states[at].packed for at in states])

    @classmethod
    def restore(cls, snapshot: memoryview, voided_at: int = 0) -> "Producers":
        producers = cls()
        producers.voided_at = voided_at
        (count,) = _COUNT.unpack_from(snapshot)
        at = _COUNT.size
        states = []
        for _ in range(count):
            producer_id, key, epoch, window, last, last_ms = _STATE.unpack_from(snapshot, at)
            at += _STATE.size
            state = ProducerState(epoch)
            state.last_sequence, state.last_unix_ms = last, last_ms
            for _ in range(window):
                state.window.append(StoredBatch(*_BATCH.unpack_from(snapshot, at)))
                at += _BATCH.size
            states.append(((producer_id, key), state))
        producers._states.update(states)
        producers._unpacked.extend(at for at, _ in states)
        return producers


def _out_of_order(header: BatchHeader, expected: int, why: str) -> PacelineError:
    return OutOfOrderSequenceError(
        f"batch of {header.record_count} records at sequence {header.base_sequence}, expected"
        f" {expected}: {why}",
        expected=expected,
    )


def _unknown(header: BatchHeader, why: str) -> PacelineError:
    return UnknownProducerError(
        f"producer {header.producer_id:x} begins at sequence {header.base_sequence}, not 0,"
        f" but {why}"
    )
