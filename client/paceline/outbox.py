"""Pure: the batches of one producer for one queue, in order, from first message to outcome.

Owned by the `Producer` on its event loop. An outbox gives every batch its sequence (R31) and keeps
queue order through any failure:

- `unsent` holds batches without bytes, oldest first; the last may still take messages.
- `pending` holds encoded batches in order of sequence; the first `in_flight_count` are on the wire.
- A refused attempt *rewinds*: nothing more is sent until every attempt on the wire is answered,
  then the batches go out again from the first one.

R32, unknown is sticky: a batch with one attempt of unknown outcome keeps its bytes and its place.
The others go back to `unsent` on a rewind and leave their sequences to whoever comes next, so they
can also be failed as "not stored" or move to another queue. When an unknown outcome has been
reported to the application, the queue goes on under a higher producer epoch from sequence 0; the
state on brokers is per (producer, queue), so the other queues are not concerned.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import NotMasterError, OutcomeUnknownError, PacelineError
from paceline.records.encode import encode_batch
from paceline.records.header import RECORDS_MAX, SEQUENCE_MAX, Codec
from paceline.retry import Verdict, judge
from paceline.routing import QueueKey
from paceline.wire.stream import ProduceAnswer

MESSAGE_OVERHEAD_BYTES = 64
"""Charged per message beside its bytes: list slots, awaitable, waiter (measured 50-200 B)."""
EPOCH_MAX = 65_535
WINDOW_BATCHES = 5
"""Brokers know the offsets of so many last batches (R31): nothing may get further behind."""
JOIN_WINDOW_S = 0.5
"""How much earlier than its own deadline a message may be given up by joining an older batch."""


class Batch:
    """Messages of one queue that share one fate. Mutable, owned by the outbox it is in."""

    __slots__ = (
        "_borns",
        "answer",
        "attempt",
        "base_sequence",
        "bodies",
        "born_last",
        "callbacks",
        "cost_bytes",
        "deadline",
        "doom",
        "encoded",
        "error",
        "is_in_flight",
        "is_movable",
        "is_unknown",
        "keys",
        "last_refusal",
        "number",
        "properties",
        "queue",
        "tags",
        "waiters",
    )

    def __init__(self, queue: QueueKey, *, deadline: float, born_unix_ms: int) -> None:
        self.queue = queue
        self.deadline = deadline
        """Loop time in seconds at which the batch is given up."""
        self.bodies: list[bytes] = []
        self.keys: list[str | None] | None = None
        self.tags: list[str | None] | None = None
        self.properties: list[Mapping[str, str] | None] | None = None
        self.born_last = born_unix_ms
        self._borns: list[int] | None = None
        self.cost_bytes = 0
        self.is_movable = True
        self.encoded: bytes | None = None
        self.base_sequence = -1
        self.number = 0  # counts the batches of its queue in order of encoding
        self.attempt = 0
        self.is_in_flight = False
        self.is_unknown = False
        self.last_refusal: PacelineError | None = None
        self.doom: PacelineError | None = None
        """Why it will be failed as soon as nothing of its queue is on the wire."""
        self.answer: ProduceAnswer | None = None
        self.error: PacelineError | None = None
        # Whom the shell tells the outcome; opaque here.
        self.waiters: list[Any] = []
        self.callbacks: list[tuple[Any, Any]] | None = None

    @property
    def is_settled(self) -> bool:
        return self.answer is not None or self.error is not None

    def add(
        self,
        body: bytes,
        key: str | None,
        tag: str | None,
        properties: Mapping[str, str] | None,
        born_unix_ms: int,
    ) -> int:
        """Take one message; return its index."""
        bodies = self.bodies
        index = len(bodies)
        if born_unix_ms != self.born_last or self._borns is not None:
            self._add_born(index, born_unix_ms)
        if key or self.keys is not None:
            self.is_movable = self.is_movable and not key
            self.keys = _column(self.keys, index, key)
        if tag or self.tags is not None:
            self.tags = _column(self.tags, index, tag)
        if properties or self.properties is not None:
            self.properties = _column(self.properties, index, properties)
        bodies.append(body)
        return index

    def add_bodies(self, bodies: list[bytes], key: str | None, born_unix_ms: int) -> int:
        """Take bodies of one key (or none) without tag or properties; index of the first."""
        index, count = len(self.bodies), len(bodies)
        if key or self.keys is not None:
            self.is_movable = self.is_movable and not key
            self.keys = _column(self.keys, index, key)
            self.keys.extend([key] * (count - 1))
        if self.tags is not None:
            self.tags.extend([None] * count)
        if self.properties is not None:
            self.properties.extend([None] * count)
        if born_unix_ms != self.born_last or self._borns is not None:
            self._add_born(index, born_unix_ms)
            assert self._borns is not None
            self._borns.extend([born_unix_ms] * (count - 1))
        self.bodies.extend(bodies)
        return index

    def _add_born(self, index: int, born_unix_ms: int) -> None:
        if self._borns is None:
            self._borns = [self.born_last] * index
        self._borns.append(born_unix_ms)
        self.born_last = born_unix_ms

    def encode(
        self, *, producer_id: int, producer_epoch: int, base_sequence: int, codec: Codec
    ) -> bytes:
        """Make the bytes under this sequence; kept until the batch is settled or taken back."""
        self.base_sequence = base_sequence
        self.encoded = encode_batch(
            self.bodies,
            keys=self.keys,
            tags=self.tags,
            properties=self.properties,
            born_unix_ms=self.born_last if self._borns is None else self._borns,
            topic_id=self.queue.topic_id,
            queue_id=self.queue.queue,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        return self.encoded


def _column(column: list[Any] | None, index: int, value: Any) -> list[Any]:
    """The column with `value` at `index`; made when its first value appears."""
    if column is None:
        column = [None] * index
    column.append(value)
    return column


class Outbox:
    """All unsettled batches of one producer for one queue. See the module's text for the rules."""

    __slots__ = (
        "_codec",
        "_encoded_count",
        "_in_flight_count",
        "_is_numbering_lost",
        "_is_rewinding",
        "_new_producer_id",
        "_settled",
        "next_sequence",
        "pending",
        "producer_epoch",
        "producer_id",
        "queue",
        "unsent",
    )

    def __init__(
        self, queue: QueueKey, new_producer_id: Callable[[], int], *, codec: Codec = Codec.NONE
    ) -> None:
        """`new_producer_id` gives 64 random bits, not 0."""
        self.queue = queue
        self._new_producer_id = new_producer_id
        self.producer_id = new_producer_id()
        self.producer_epoch = 0
        self.next_sequence = 0
        self._codec = codec
        self.unsent: deque[Batch] = deque()
        self.pending: deque[Batch] = deque()
        self._in_flight_count = 0
        self._encoded_count = 0
        self._is_rewinding = False
        self._is_numbering_lost = False
        self._settled: list[Batch] = []

    @property
    def is_idle(self) -> bool:
        """Nothing waits for an outcome."""
        return not self.unsent and not self.pending

    @property
    def in_flight_count(self) -> int:
        return self._in_flight_count

    @property
    def next_cost_bytes(self) -> int:
        """Roughly the size of what `take` would give; call only when `can_take`."""
        if self._in_flight_count < len(self.pending):
            return self.pending[self._in_flight_count].cost_bytes
        return self.unsent[0].cost_bytes

    def can_take(self, in_flight_max: int) -> bool:
        """Whether `take` would give a batch (or find one that cannot be encoded)."""
        if self._is_rewinding or self._in_flight_count >= in_flight_max:
            return False
        if self._in_flight_count < len(self.pending):
            return True
        return bool(self.unsent) and (
            not self.pending or self._encoded_count - self.pending[0].number < WINDOW_BATCHES
        )

    def open_batch(
        self, size_bytes: int, batch_bytes_max: int, *, deadline: float, born_unix_ms: int
    ) -> Batch:
        """The batch that takes the next message: the last unsent one, or a new one."""
        if self.unsent:
            last = self.unsent[-1]
            if (
                last.cost_bytes + size_bytes <= batch_bytes_max
                and len(last.bodies) < RECORDS_MAX
                and deadline - last.deadline <= JOIN_WINDOW_S
            ):
                return last
        batch = Batch(self.queue, deadline=deadline, born_unix_ms=born_unix_ms)
        self.unsent.append(batch)
        return batch

    def adopt(self, batch: Batch) -> None:
        """Take over a batch that another queue's outbox gave away (`give_away`)."""
        assert batch.encoded is None
        assert not batch.is_unknown  # R32
        batch.queue = self.queue
        self.unsent.append(batch)

    def give_away(self) -> list[Batch]:
        """Remove the unsent batches that may go to any queue: keyless, no attempt unknown (R32)."""
        given = [batch for batch in self.unsent if batch.is_movable]
        if given:
            self.unsent = deque(batch for batch in self.unsent if not batch.is_movable)
        return given

    def take(self, in_flight_max: int) -> Batch | None:
        """The next batch to put on the wire, its bytes in `encoded`; None when it must wait.

        A batch that cannot be encoded is settled (see `drain_settled`).
        """
        while self.can_take(in_flight_max):
            if self._in_flight_count < len(self.pending):
                batch = self.pending[self._in_flight_count]
            else:
                fresh = self._encode_next()
                if fresh is None:
                    continue
                batch = fresh
            self._in_flight_count += 1
            batch.is_in_flight = True
            batch.attempt += 1
            return batch
        return None

    def _encode_next(self) -> Batch | None:
        batch = self.unsent.popleft()
        count = len(batch.bodies)
        if self.next_sequence + count - 1 > SEQUENCE_MAX and not self.pending:
            self._raise_epoch()
        try:
            batch.encode(
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.next_sequence,
                codec=self._codec,
            )
        except PacelineError as error:
            self._settle(batch, error)
            return None
        self.next_sequence += count
        batch.number = self._encoded_count
        self._encoded_count += 1
        self.pending.append(batch)
        return batch

    # -- outcomes of attempts ---------------------------------------------------------------------

    def acknowledged(self, batch: Batch, answer: ProduceAnswer) -> None:
        """The attempt on the wire was answered with success: stored and confirmed."""
        self._landed(batch)
        self.pending.remove(batch)
        batch.answer = answer
        self._settled.append(batch)
        self._resolve_when_quiet()

    def refused(self, batch: Batch, error: PacelineError) -> Verdict:
        """The attempt on the wire was answered with `error`; returns what that means for it."""
        self._landed(batch)
        verdict = judge(error)
        batch.last_refusal = error
        self._is_rewinding = True
        if verdict is Verdict.UNKNOWN:
            batch.is_unknown = True
        elif verdict is Verdict.FATAL:
            batch.doom = error
        elif verdict is Verdict.SEQUENCE and batch is self.pending[0]:
            # Nothing of ours is missing before it: the broker lost or expired this numbering.
            if batch.is_unknown or batch.base_sequence == 0:
                batch.doom = error  # 0 is what a new epoch starts with (R31): no number can help
            else:
                self._is_numbering_lost = True
        self._resolve_when_quiet()
        return verdict

    def lost(self) -> None:
        """The connection is gone: every attempt on the wire has an unknown outcome."""
        for batch in self.pending:
            if batch.is_in_flight:
                self._landed(batch)
                batch.is_unknown = True
                self._is_rewinding = True
        self._resolve_when_quiet()

    def expire(self, now: float) -> None:
        """Give up every batch whose deadline has passed; one on the wire counts as unknown."""
        if self.unsent and any(batch.deadline <= now for batch in self.unsent):
            kept: deque[Batch] = deque()
            for batch in self.unsent:
                if batch.deadline <= now:
                    self._settle(batch, batch.last_refusal or _never_sent(batch))
                else:
                    kept.append(batch)
            self.unsent = kept
        overdue = [batch for batch in self.pending if batch.deadline <= now and not batch.doom]
        if not overdue:
            return
        if any(batch.is_unknown or batch.is_in_flight for batch in overdue):
            self._abandon()
            return
        for batch in overdue:
            batch.doom = batch.last_refusal or _never_sent(batch)
        self._is_rewinding = True
        self._resolve_when_quiet()

    def fail_all(self, error: PacelineError) -> None:
        """Settle everything now: unknown where an attempt may have stored, else `error`."""
        for batch in (*self.pending, *self.unsent):
            if batch.is_in_flight:
                self._landed(batch)
                batch.is_unknown = True
            self._settle(batch, batch.doom or error)
        self.pending.clear()
        self.unsent.clear()
        self._is_rewinding = False

    def drain_settled(self) -> list[Batch]:
        """Batches that got their outcome since the last call, in order."""
        settled = self._settled
        if settled:
            self._settled = []
        return settled

    # -- inside -----------------------------------------------------------------------------------

    def _landed(self, batch: Batch) -> None:
        assert batch.is_in_flight, batch.base_sequence
        batch.is_in_flight = False
        self._in_flight_count -= 1

    def _settle(self, batch: Batch, error: PacelineError) -> None:
        """R32: "not stored" may be said only when every attempt was definitely refused."""
        if batch.is_unknown and error.is_definite:
            batch.last_refusal = error
            error = _unknown(batch)
        batch.error = error
        self._settled.append(batch)

    def _resolve_when_quiet(self) -> None:
        """End a rewind once nothing is on the wire."""
        if not self._is_rewinding or self._in_flight_count:
            return
        self._is_rewinding = False
        doomed = [batch for batch in self.pending if batch.doom is not None]
        for batch in doomed:
            assert batch.doom is not None
            self.pending.remove(batch)
            self._settle(batch, batch.doom)
        first_gap = min((batch.base_sequence for batch in doomed), default=SEQUENCE_MAX)
        if (
            self._is_numbering_lost
            or any(batch.is_unknown for batch in doomed)
            # A follower with an unknown attempt can never fit behind the gap: it ends unknown too.
            or any(batch.is_unknown and batch.base_sequence > first_gap for batch in self.pending)
        ):
            self._abandon()
        else:
            self._take_back(min(first_gap, self.next_sequence))

    def _take_back(self, next_sequence: int) -> None:
        """Return the batches behind the last unknown one to `unsent`, and their sequences.

        `next_sequence`: the lowest sequence already left free, or the present next one.
        """
        while self.pending and not self.pending[-1].is_unknown:
            batch = self.pending.pop()
            next_sequence = min(next_sequence, batch.base_sequence)
            batch.encoded = None
            batch.base_sequence = -1
            self.unsent.appendleft(batch)
        self.next_sequence = next_sequence
        if self.pending:
            last = self.pending[-1]
            # Not equal: a batch behind an unknown one may have been acknowledged already.
            assert last.base_sequence + len(last.bodies) <= next_sequence, next_sequence

    def _abandon(self) -> None:
        """Report every possibly stored batch as unknown, and go on under a new epoch (R32)."""
        kept: list[Batch] = []
        for batch in self.pending:
            if batch.is_in_flight:
                self._landed(batch)
                batch.is_unknown = True
            if batch.is_unknown:
                self._settle(batch, _unknown(batch))
            elif batch.doom is not None:
                self._settle(batch, batch.doom)
            else:
                batch.encoded = None
                batch.base_sequence = -1
                kept.append(batch)
        self.pending.clear()
        self.unsent.extendleft(reversed(kept))
        self._is_rewinding = False
        self._is_numbering_lost = False
        self._raise_epoch()

    def _raise_epoch(self) -> None:
        self.next_sequence = 0
        self.producer_epoch += 1
        if self.producer_epoch > EPOCH_MAX:
            self.producer_id = self._new_producer_id()
            self.producer_epoch = 0


def _never_sent(batch: Batch) -> PacelineError:
    return NotMasterError(
        f"not stored: no master of broker group {batch.queue.group} was reachable in time",
        master=None,
    )


def _unknown(batch: Batch) -> PacelineError:
    """What the application is told at the end of R32; of the class of the last unknown answer."""
    last = batch.last_refusal
    why = "no answer in time" if last is None else f"the last attempt said: {last.message}"
    error_class = OutcomeUnknownError if last is None or last.is_definite else type(last)
    error = error_class(
        f"{len(batch.bodies)} message(s) for queue {batch.queue.group}/{batch.queue.queue} may or"
        f" may not be stored: {why}"
    )
    error.__cause__ = last
    return error
