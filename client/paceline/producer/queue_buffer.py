"""Pure: the batches of one kind and producer for a queue, in order, from message to outcome.

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
from collections.abc import Callable

from paceline.errors import (
    NotMasterError,
    OutcomeUnknownError,
    PacelineError,
    QueueNotFoundError,
    QueueSealedError,
)
from paceline.net.backoff import Verdict, judge
from paceline.producer.batch import NO_COMPRESSION, Batch, Compression
from paceline.queues import QueueKey
from paceline.records.header import SEQUENCE_MAX, Kind
from paceline.wire.static_topics import Place
from paceline.wire.stream import ProduceAnswer

EPOCH_MAX = 65_535
WINDOW_BATCHES = 5
"""Brokers know the offsets of so many last batches (R31): nothing may get further behind."""
JOIN_WINDOW_S = 0.5
"""How much earlier than its own deadline a message may be given up by joining an older batch."""


class QueueBuffer:
    """All unsettled batches of one producer for one queue. See the module's text for the rules."""

    __slots__ = (
        "_compression",
        "_encoded_count",
        "_in_flight_count",
        "_is_numbering_lost",
        "_is_rewinding",
        "_new_producer_id",
        "_settled",
        "is_behind",
        "is_closed",
        "is_retired",
        "kind",
        "next_sequence",
        "pending",
        "place",
        "producer_epoch",
        "producer_id",
        "queue",
        "successor",
        "topic",
        "unsent",
    )

    def __init__(
        self,
        queue: QueueKey,
        new_producer_id: Callable[[], int],
        *,
        topic: str = "",
        kind: Kind = Kind.NORMAL,
        compression: Compression = NO_COMPRESSION,
    ) -> None:
        """`new_producer_id` gives 64 random bits, not 0."""
        self.is_retired = False
        """The topic takes no more messages in this queue: what is left goes to the others."""
        self.is_closed = False
        """Only what is pending is sent: the rest goes on elsewhere, or must not overtake."""
        self.successor: QueueBuffer | None = None
        """Of the next segment of the logical queue, once there is one (`remapping`)."""
        self.is_behind = False
        """Another one, of the segment before, has yet to hand on what it has."""
        self.queue = queue
        self.topic = topic
        self.kind = kind
        """What waits for its time has no order with what does not, and may be refused for longer
        (full timers): with a numbering of its own (R31) that is no gap before the others."""
        self.place: Place | None = None
        """Which segment of a logical queue it is, if the topic is static."""
        self._new_producer_id = new_producer_id
        self.producer_id = new_producer_id()
        self.producer_epoch = 0
        self.next_sequence = 0
        self._compression = compression
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
        return (
            bool(self.unsent)
            and not self.is_closed
            and (not self.pending or self._encoded_count - self.pending[0].number < WINDOW_BATCHES)
        )

    def open_batch(
        self, size_bytes: int, batch_bytes_max: int, *, deadline: float, born_unix_ms: int
    ) -> Batch:
        """The batch that takes the next message: the last unsent one, or a new one."""
        if self.unsent:
            last = self.unsent[-1]
            if (
                last.cost_bytes + size_bytes <= batch_bytes_max
                and len(last.bodies) < last.records_max
                and deadline - last.deadline <= JOIN_WINDOW_S
            ):
                return last
        batch = Batch(
            self.queue,
            topic=self.topic,
            deadline=deadline,
            born_unix_ms=born_unix_ms,
            kind=self.kind,
        )
        self.unsent.append(batch)
        return batch

    def take_unsent(self) -> list[Batch]:
        """Remove everything that certainly is not stored and not under way (R32)."""
        taken = list(self.unsent)
        self.unsent.clear()
        return taken

    def fail(self, batch: Batch, error: PacelineError) -> None:
        """Settle a batch that was taken out."""
        self._settle(batch, error)

    def adopt(self, batch: Batch) -> None:
        """Take over a batch that another queue's outbox gave away (`give_away`)."""
        assert batch.encoded is None
        assert not batch.is_unknown  # R32
        batch.queue = self.queue
        self.unsent.append(batch)

    def take_over(self, batches: list[Batch]) -> None:
        """Put batches before all others: they were accepted earlier for the logical queue."""
        assert not self.pending
        for batch in batches:
            assert batch.encoded is None
            assert not batch.is_unknown  # R32
            batch.queue = self.queue
        self.unsent.extendleft(reversed(batches))

    def give_away(self, moves_max: int) -> list[Batch]:
        """Remove the unsent batches that may go to any queue: keyless, no attempt unknown (R32).

        A batch that was refused goes elsewhere `moves_max` times at most, then it stays here; one
        that was never sent goes freely.
        """
        kept: deque[Batch] = deque()
        given: list[Batch] = []
        for batch in self.unsent:
            is_retry = batch.last_refusal is not None
            if batch.is_movable and (not is_retry or batch.moves < moves_max):
                batch.moves += is_retry
                given.append(batch)
            else:
                kept.append(batch)
        self.unsent = kept
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
                compression=self._compression,
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
        batch.place = self.place
        self._settled.append(batch)
        self._resolve_when_quiet()

    def refused(self, batch: Batch, error: PacelineError) -> Verdict:
        """The attempt on the wire was answered with `error`; returns what that means for it."""
        self._landed(batch)
        verdict = judge(error)
        batch.last_refusal = error
        self._is_rewinding = True
        if isinstance(error, QueueSealedError):
            # Decided behind duplicates, in a queue that takes nothing any more (R31): whatever
            # became of earlier attempts, nothing of it is there or ever will be (R32).
            if not error.details.get("is_earlier_unknown"):
                batch.is_unknown = False
            elif batch.is_unknown:  # whose batches are there the group knows no more (R21)
                batch.doom = error
        elif verdict is Verdict.UNKNOWN:
            batch.is_unknown = True
        elif verdict is Verdict.FATAL:
            batch.doom = error
        elif self.is_retired and batch.is_unknown and isinstance(error, QueueNotFoundError):
            batch.doom = error  # the queue takes no more: an earlier attempt stored it, or none did
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

    def expire(self, now: float) -> bool:
        """Give up every batch whose deadline has passed; one on the wire counts as unknown.

        Whether an encoded one was: others that were behind it may go again then.
        """
        if self.unsent and any(batch.deadline <= now for batch in self.unsent):
            kept: deque[Batch] = deque()
            for batch in self.unsent:
                if batch.deadline <= now:
                    self._settle(batch, batch.last_refusal or self.never_sent())
                else:
                    kept.append(batch)
            self.unsent = kept
        overdue = [batch for batch in self.pending if batch.deadline <= now and not batch.doom]
        if not overdue:
            return False
        if any(batch.is_unknown or batch.is_in_flight for batch in overdue):
            self._abandon()
            return True
        for batch in overdue:
            batch.doom = batch.last_refusal or self.never_sent()
        self._is_rewinding = True
        self._resolve_when_quiet()
        return True

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

    def never_sent(self) -> PacelineError:
        """Why a batch that no attempt was made for is given up."""
        return NotMasterError(
            f"not stored: no master of broker group {self.queue.group} was reachable in time",
            master=None,
        )

    # -- inside -----------------------------------------------------------------------------------

    def _landed(self, batch: Batch) -> None:
        assert batch.is_in_flight, batch.base_sequence
        batch.is_in_flight = False
        self._in_flight_count -= 1

    def _settle(self, batch: Batch, error: PacelineError) -> None:
        """A refusal may say "not stored" only if every attempt was definitely refused (R32)."""
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


def _unknown(batch: Batch) -> PacelineError:
    """What the application is told at the end of R32; of the class of the last unknown answer."""
    last = batch.last_refusal
    why = "no answer in time" if last is None else f"the last attempt said: {last.message}"
    error_class = OutcomeUnknownError if last is None or last.is_definite else type(last)
    error = error_class(
        f"{len(batch.bodies)} message(s) for queue {batch.queue.group}/{batch.queue.queue_id}"
        f" may or may not be stored: {why}"
    )
    error.__cause__ = last
    return error
