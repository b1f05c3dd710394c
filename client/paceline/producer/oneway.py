"""One-way messages of a producer to one broker group: put on the wire once, and forgotten.

No retry, no order with other messages, and no outcome for the application: a one-way message may
be lost, or stored although nobody says so. A broker answers as to every batch; the answer only
gives the buffer's room back, so that what is under way stays bounded, and `flush` and `close` know
when all has arrived or is lost. Messages without a connection wait for one, as long as a request
may last.

A batch has no producer id: nothing sends it again, so nobody has to recognise it (R31).
"""

import asyncio
from collections.abc import Callable

from paceline.errors import PacelineError
from paceline.net.cluster import BrokerConnection
from paceline.net.stream_connection import error_of
from paceline.producer.batch import Batch, Compression
from paceline.producer.hooks import SendHooks
from paceline.producer.results import Sending
from paceline.queues import QueueKey
from paceline.records.header import Kind
from paceline.wire.stream import STATUS_OK


class Forgotten(Sending):
    """A one-way message that waits for room or a route: nobody is told when it is given up."""

    __slots__ = ("_counts",)

    def __init__(
        self, batch: Batch, loop: asyncio.AbstractEventLoop, counts: "OnewayCounts"
    ) -> None:
        super().__init__(batch, 0, loop)
        self._counts = counts

    def fail(self, error: PacelineError) -> None:
        self._counts.dropped += 1
        super().fail(error)


class OnewayCounts:
    """Messages that `send_oneway` took: what is known of them."""

    __slots__ = ("confirmed", "dropped", "unknown")

    def __init__(self) -> None:
        self.confirmed = 0
        """The broker said that they are stored."""
        self.dropped = 0
        """Certainly not stored: refused, or no master was reachable."""
        self.unknown = 0
        """The connection was lost before an answer came, or the answer was none."""


class OnewayQueue:
    """Owned by a `BrokerSender`; on the producer's event loop."""

    def __init__(
        self,
        counts: OnewayCounts,
        compression: Compression,
        *,
        batch_bytes_max: int,
        on_room: Callable[[int], None],
        hooks: SendHooks | None = None,
    ) -> None:
        """`on_room(bytes)`: so many bytes of the buffer are free again."""
        self._counts = counts
        self._compression = compression
        self._batch_bytes_max = batch_bytes_max
        self._on_room = on_room
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Batch] = []
        self._open: dict[tuple[QueueKey, Kind], Batch] = {}
        self._flying: dict[Batch, float] = {}  # when each left, oldest first

    @property
    def has_waiting(self) -> bool:
        """Whether something has yet to be put on the wire."""
        return bool(self._waiting)

    def open_batch(
        self,
        queue: QueueKey,
        cost: int,
        *,
        deadline: float,
        born_unix_ms: int,
        kind: Kind = Kind.NORMAL,
    ) -> Batch:
        """The batch that takes the next message for the queue. Add the message's cost to it."""
        if self.has_open(queue, cost, kind):
            return self._open[queue, kind]
        batch = Batch(queue, deadline=deadline, born_unix_ms=born_unix_ms, kind=kind)
        self._open[queue, kind] = batch
        self._waiting.append(batch)
        return batch

    def has_open(self, queue: QueueKey, cost: int, kind: Kind = Kind.NORMAL) -> bool:
        """Whether a batch that has not left takes another message for the queue."""
        batch = self._open.get((queue, kind))
        return (
            batch is not None
            and batch.cost_bytes + cost <= self._batch_bytes_max
            and len(batch.bodies) < batch.records_max
        )

    def put(self, connection: BrokerConnection) -> None:
        """Queue on the connection what it has credit for, in the order it came."""
        waiting, self._waiting = self._waiting, []
        self._open.clear()
        for number, batch in enumerate(waiting):
            if not connection.has_credit(batch.cost_bytes):
                self._waiting = waiting[number:]
                return
            try:
                encoded = batch.encode(
                    producer_id=0, producer_epoch=0, base_sequence=-1, compression=self._compression
                )
            except PacelineError:  # it does not fit one record batch: certainly not stored
                self._drop(batch)
                continue
            batch.encoded = None
            self._flying[batch] = self._loop.time()
            if self._hooks is not None:
                self._hooks.before(batch, is_oneway=True)
            connection.produce(encoded, self._on_answer, self._on_lost, batch)
            if self._hooks is not None:
                self._hooks.after(batch)

    def is_silent(self, since: float) -> bool:
        """Whether something left at `since` or before and has no answer."""
        return bool(self._flying) and next(iter(self._flying.values())) <= since

    def expire(self, now: float) -> None:
        """Drop what has waited for a connection for too long."""
        if not self._waiting or self._waiting[0].deadline > now:
            return
        overdue = [batch for batch in self._waiting if batch.deadline <= now]
        self._waiting = [batch for batch in self._waiting if batch.deadline > now]
        self._open.clear()
        for batch in overdue:
            self._drop(batch)

    def drop_all(self) -> None:
        """The producer closes: what is not on the wire is lost."""
        waiting, self._waiting = self._waiting, []
        self._open.clear()
        for batch in waiting:
            self._drop(batch)

    def _drop(self, batch: Batch) -> None:
        self._counts.dropped += len(batch.bodies)
        self._on_room(batch.cost_bytes)

    def _on_answer(self, batch: Batch, status: int, body: memoryview) -> None:
        self._flying.pop(batch, None)
        if status == STATUS_OK:
            self._counts.confirmed += len(batch.bodies)
        elif error_of(body).is_definite:
            self._counts.dropped += len(batch.bodies)
        else:
            self._counts.unknown += len(batch.bodies)
        self._on_room(batch.cost_bytes)

    def _on_lost(self, batch: Batch) -> None:
        self._flying.pop(batch, None)
        self._counts.unknown += len(batch.bodies)
        self._on_room(batch.cost_bytes)
