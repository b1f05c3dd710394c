"""A producer's traffic with the master of one broker group: flights, answers, retries.

A *flight* is what leaves in one write: at most one batch of every queue that has something to
send. At most two flights are in the air per broker; what arrives meanwhile is the next one, so
coalescing needs no timer. The rules of order and sequence are the outboxes'
(`paceline.producer.queue_buffer`); this module owns connection, credit, back-off and time limits.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from paceline.errors import (
    NotMasterError,
    OutcomeUnknownError,
    OverloadedError,
    PacelineError,
    QueueNotFoundError,
    QueueSealedError,
    TopicNotFoundError,
)
from paceline.net.backoff import Backoff, Verdict
from paceline.net.cluster import BrokerConnection, Cluster
from paceline.net.introduction import Who
from paceline.net.master_link import MasterLink
from paceline.net.stream_connection import error_of
from paceline.producer.batch import Batch, Compression
from paceline.producer.hooks import SendHooks
from paceline.producer.latency import LatencyTable
from paceline.producer.oneway import OnewayQueue
from paceline.producer.queue_buffer import QueueBuffer
from paceline.queues import QueueKey
from paceline.records.header import Kind
from paceline.types import GroupName
from paceline.wire.stream import PRODUCE_ANSWER, STATUS_OK, ProduceAnswer

log = logging.getLogger("paceline.client")


class QueueOutbox(QueueBuffer):
    """An outbox with its place in the shell."""

    __slots__ = ("lane",)

    def __init__(
        self,
        queue: QueueKey,
        new_producer_id: Callable[[], int],
        *,
        topic: str,
        kind: Kind,
        lane: "BrokerSender",
        compression: Compression,
    ) -> None:
        super().__init__(queue, new_producer_id, topic=topic, kind=kind, compression=compression)
        self.lane = lane

    def never_sent(self) -> PacelineError:
        """What the master says, if it lets this client in no more."""
        return self.lane.link.why_refused or super().never_sent()


class _Flight:
    """Batches that left in one write and are not all answered."""

    __slots__ = ("left_at", "unanswered")

    def __init__(self, left_at: float) -> None:
        self.left_at = left_at
        self.unanswered = 0


class _Attempt(NamedTuple):
    """One sending of one batch: an answer counts only for the attempt it belongs to."""

    outbox: QueueOutbox
    batch: Batch
    number: int
    flight: _Flight


class BrokerSender:
    """Owned by one `Producer`; everything runs on its event loop.

    `on_progress(outbox)` is called after outcomes of the outbox may have become known.
    `on_stuck(lane, outboxes)` is called when it cannot serve these for now (down or backing off).
    """

    def __init__(
        self,
        cluster: Cluster,
        group: GroupName,
        *,
        flights_max: int,
        on_progress: Callable[[QueueOutbox], None],
        on_stuck: Callable[["BrokerSender", Sequence[QueueOutbox]], None],
        schedule_pump: Callable[[], None],
        oneway: OnewayQueue,
        latency: LatencyTable | None,
        hooks: SendHooks | None,
        who: Who | None = None,
    ) -> None:
        self.group = group
        self.oneway = oneway
        self.ready: dict[QueueOutbox, None] = {}  # an ordered set: queues with something to send
        self.outboxes: list[QueueOutbox] = []
        self.link = MasterLink(cluster, group, on_up=self._on_up, on_down=self._on_down, who=who)
        self._loop = asyncio.get_running_loop()
        self._latency = latency
        self._hooks = hooks
        self._flights: set[_Flight] = set()
        self._flights_max = flights_max
        self._backoff = Backoff(cluster.random)
        self._blocked: asyncio.TimerHandle | None = None
        self._held: dict[QueueOutbox, asyncio.TimerHandle] = {}
        """They back off alone."""
        self._on_progress = on_progress
        self._on_stuck = on_stuck
        self._schedule_pump = schedule_pump

    @property
    def is_up(self) -> bool:
        """Whether new keyless messages may go here: nothing says that the master does not serve."""
        return self._blocked is None and not self.link.has_failed

    @property
    def takes_delayed(self) -> bool:
        """As `is_up`, for delayed messages: nothing says either that the timers are full."""
        return self.is_up and not any(outbox.kind == Kind.DELAY for outbox in self._held)

    async def close(self) -> None:
        self.unblock()
        for timer in self._held.values():
            timer.cancel()
        self.oneway.drop_all()
        await self.link.close()

    def pump(self) -> None:
        """Put on the wire what may go now."""
        connection = self.link.connection
        if connection is None:
            return
        if self.oneway.has_waiting:
            self.oneway.put(connection)
        if self._blocked is not None:
            connection.flush()
            return
        while self.ready and len(self._flights) < self._flights_max:
            if not self._launch(connection):
                break
        connection.flush()

    def expire(self, now: float, request_timeout_s: float) -> None:
        """Give up a connection whose oldest flight got no answer in time: outcome unknown."""
        self.oneway.expire(now)
        if self.oneway.is_silent(now - request_timeout_s) or any(
            flight.left_at + request_timeout_s <= now for flight in self._flights
        ):
            log.warning("master_silent", extra={"group": self.group})
            self.link.suspect()

    def unblock(self) -> None:
        """End a back-off early: there is news."""
        if self._blocked is not None:
            self._blocked.cancel()
            self._blocked = None
            self._schedule_pump()

    # -- inside -----------------------------------------------------------------------------------

    def _launch(self, connection: BrokerConnection) -> bool:
        """Make one flight; False when nothing can go now."""
        flight = _Flight(self._loop.time())
        per_queue_max = connection.in_flight_per_queue_max
        for outbox in tuple(self.ready):
            if outbox in self._held or not outbox.can_take(per_queue_max):
                # An answer or `_release` brings it back; until then it has nothing to say here.
                del self.ready[outbox]
                continue
            if not connection.has_credit(outbox.next_cost_bytes):
                break
            batch = outbox.take(per_queue_max)
            if batch is None:  # it could not be encoded
                self._on_progress(outbox)
                continue
            assert batch.encoded is not None
            if self._hooks is not None:
                self._hooks.before(batch)
            attempt = _Attempt(outbox, batch, batch.attempt, flight)
            connection.produce(batch.encoded, self._on_answer, self._on_lost, attempt)
            flight.unanswered += 1
            if not outbox.unsent and outbox.in_flight_count == len(outbox.pending):
                del self.ready[outbox]
        if flight.unanswered:
            self._flights.add(flight)
        return flight.unanswered > 0

    def _land(self, attempt: _Attempt) -> bool:
        """Count an answer; whether it still counts for its batch."""
        flight = attempt.flight
        flight.unanswered -= 1
        if flight.unanswered == 0:
            self._flights.discard(flight)
        return attempt.batch.is_in_flight and attempt.batch.attempt == attempt.number

    def _on_answer(self, attempt: _Attempt, status: int, body: memoryview) -> None:
        if not self._land(attempt):
            return
        outbox, batch = attempt.outbox, attempt.batch
        if status != STATUS_OK:
            self._refused(outbox, batch, error_of(body))
        elif len(body) != PRODUCE_ANSWER.size:
            self._refused(outbox, batch, OutcomeUnknownError(f"an answer of {len(body)} bytes"))
        else:
            answer = ProduceAnswer.unpack(body)
            if self.link.saw_epoch(answer.master_epoch):
                self._backoff.reset()
                if self._latency is not None:
                    now = self._loop.time()
                    took_ms = (now - attempt.flight.left_at) * 1000
                    self._latency.answered(self.group, took_ms, now_ms=now * 1000)
                outbox.acknowledged(batch, answer)
            else:
                stale = OutcomeUnknownError(
                    f"an answer of epoch {answer.master_epoch}, group {self.group} is at epoch"
                    f" {self.link.epoch_seen}"
                )
                self._refused(outbox, batch, stale)
        self.ready_again(outbox)
        self._on_progress(outbox)

    def _on_lost(self, attempt: _Attempt) -> None:
        if self._land(attempt):
            error = OutcomeUnknownError(f"the connection to group {self.group} was lost")
            attempt.outbox.refused(attempt.batch, error)
            self.ready_again(attempt.outbox)
            self._on_progress(attempt.outbox)

    def ready_again(self, outbox: QueueOutbox) -> None:
        """Look at an outbox at the next pump, if it has something to send."""
        if outbox.unsent or outbox.in_flight_count < len(outbox.pending):
            self.ready[outbox] = None

    def _refused(self, outbox: QueueOutbox, batch: Batch, error: PacelineError) -> None:
        verdict = outbox.refused(batch, error)
        log.debug(
            "batch_refused",
            extra={"group": self.group, "code": error.code, "verdict": verdict.value},
        )
        if outbox.is_retired and isinstance(error, QueueNotFoundError):
            return  # no fault of the group's
        if isinstance(error, QueueSealedError):
            if outbox.successor is None:  # the view that shows where it goes on is on its way
                self._hold(outbox, 0)
                self._on_stuck(self, (outbox,))
            return
        if verdict in (Verdict.RETRY, Verdict.UNKNOWN):
            asked = error.details.get("retry_after_ms")
            asked_ms = asked if isinstance(asked, int | float) else 0
            if outbox.kind == Kind.DELAY and isinstance(error, OverloadedError):
                # Full timers are no reason for what needs none to wait.
                self._hold(outbox, asked_ms)
                self._on_stuck(self, (outbox,))
                return
            self._note_failure()
            self._block(asked_ms)
            if isinstance(error, NotMasterError):
                self.link.doubt()
            if not isinstance(error, TopicNotFoundError | QueueNotFoundError):
                self._on_stuck(self, self.outboxes)

    def _hold(self, outbox: QueueOutbox, at_least_ms: float) -> None:
        if outbox not in self._held:
            wait_ms = max(at_least_ms, self._backoff.next_ms())
            self._held[outbox] = self._loop.call_later(wait_ms / 1000, self._release, outbox)

    def _release(self, outbox: QueueOutbox) -> None:
        del self._held[outbox]
        self.ready_again(outbox)
        self._schedule_pump()

    def _block(self, at_least_ms: float) -> None:
        if self._blocked is None:
            wait_ms = max(at_least_ms, self._backoff.next_ms())
            self._blocked = self._loop.call_later(wait_ms / 1000, self.unblock)

    def _on_up(self) -> None:
        assert self.link.connection is not None
        # After the waiters of one read were woken: what they send then leaves in one flight.
        self.link.connection.on_read = self._schedule_pump
        self._schedule_pump()
        # What another master refused, as it handed over, is no reason to wait long for this one.
        self._backoff.reset()
        self.unblock()

    def _note_failure(self) -> None:
        if self._latency is not None:
            self._latency.failed(self.group, now_ms=self._loop.time() * 1000)

    def _on_down(self) -> None:
        self._note_failure()
        self._flights.clear()
        self.unblock()
        for outbox in self.outboxes:
            if not outbox.is_idle:
                outbox.lost()
                self.ready_again(outbox)
                self._on_progress(outbox)
        self._on_stuck(self, self.outboxes)
