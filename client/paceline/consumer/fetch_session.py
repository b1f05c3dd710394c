"""Fetching from the master of one broker group: long polls over many queues, batches out.

Each fetch covers the queues that want more and are in no other fetch. When one is answered, the
positions move and the next fetch goes out *before* the batches are handed over, so that the broker
works while the application decodes. Everything here runs in callbacks on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import NamedTuple

from paceline.consumer.registered_filters import RegisteredFilters
from paceline.consumer.replica_reads import ReplicaReads
from paceline.errors import CorruptLogError, PacelineError, PeerError
from paceline.filters import ALL, Filter
from paceline.net.cluster import BrokerConnection
from paceline.net.master_link import MasterLink
from paceline.net.stream_connection import error_of, parse_fetch_answer
from paceline.ports import Random
from paceline.records.decode import BatchView
from paceline.retry import Backoff
from paceline.routing import QueueKey
from paceline.types import ReplicaId
from paceline.wire.stream import (
    FETCH_SUGGESTION_SHIFT,
    STATUS_OK,
    FetchCode,
    FetchPart,
    FetchQueue,
)

log = logging.getLogger("paceline.client")

FETCHES_MAX = 16
"""Fetches under way, beside what many queues need; brokers take 64 of one connection."""
QUEUES_EACH = 256
"""Queues of one fetch: all of them are asked for anew when there is something in one."""
CHUNKS_MAX = 40
"""Above so many fetches of that size they become larger; brokers take 1024 queues in one."""
WAIT_MS_MAX = 5_000
WAIT_MS_CROWDED = 500
"""With many fetches under way each waits less, so that their queues come together again."""
_CROWD = 4
_SILENCE_MS = 5_000
"""A broker that answers this much later than it was asked to wait is given up."""


class FetchedBatch:
    """A batch of a queue; records before number `skip` were delivered before."""

    __slots__ = ("skip", "view")

    def __init__(self, view: BatchView, skip: int) -> None:
        self.view = view
        self.skip = skip


class Trouble(Enum):
    """Why a queue cannot be fetched from where it stands."""

    OUT_OF_RANGE = "out_of_range"
    UNKNOWN_QUEUE = "unknown_queue"
    CORRUPT = "corrupt"


class QueueFetch:
    """One queue that is fetched. `position` is the next offset to ask for."""

    __slots__ = (
        "generation",
        "has_room",
        "is_in_flight",
        "key",
        "position",
        "replica",
        "retry_at",
        "wanted",
    )

    def __init__(self, key: QueueKey, position: int, wanted: Filter = ALL) -> None:
        self.key = key
        self.position = position
        self.wanted = wanted
        """The broker passes over batches without anything wanted; single records are left in."""
        self.generation = 0
        """Raised by a seek: what was fetched before is not wanted any more."""
        self.has_room = True
        self.is_in_flight = False
        self.retry_at = 0.0
        self.replica: ReplicaId | None = None
        """Far behind: the replica that is read; None = the master."""

    def seek(self, position: int) -> None:
        """Go on from another offset."""
        self.position = position
        self.generation += 1
        self.is_in_flight = False  # whatever is under way asks for something else
        self.replica = None
        self.retry_at = 0.0


class _Fetch:
    """One request under way."""

    __slots__ = ("asked", "connection", "replica", "silent_at")

    def __init__(
        self,
        asked: list[tuple[QueueFetch, int, int]],
        connection: BrokerConnection,
        silent_at: float,
        replica: ReplicaId | None,
    ) -> None:
        self.replica = replica
        self.asked = asked  # (queue, its position, its generation)
        self.connection = connection
        self.silent_at = silent_at

    def queues(self) -> list[QueueFetch]:
        """The queues that still wait for this answer: a seek goes its own way."""
        return [queue for queue, _, generation in self.asked if queue.generation == generation]


OnBatches = Callable[[QueueFetch, list[FetchedBatch], int], None]
OnTrouble = Callable[[QueueFetch, Trouble, FetchPart | None], None]


class FetchSession:
    """All fetches of one consumer from one broker group.

    `on_batches(queue, batches, end)`: whole batches in order, CRCs checked; nothing else is wanted
    below `end`. `on_trouble(queue, trouble,
    part)`: the owner seeks or removes the queue; until then it is asked for again with back-off.
    """

    def __init__(
        self,
        link: MasterLink,
        random: Random,
        *,
        fetch_bytes_max: int,
        queue_bytes_max: int,
        on_batches: OnBatches,
        on_trouble: OnTrouble,
        replicas: ReplicaReads | None = None,
    ) -> None:
        """`replicas`: where queues far behind are read; None: from the master all the same."""
        self._link = link
        self._replicas = replicas
        if replicas is not None:
            replicas.on_ready = self.wake
        self._fetch_bytes_max = fetch_bytes_max
        self._queue_bytes_max = queue_bytes_max
        self._on_batches = on_batches
        self._on_trouble = on_trouble
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(random, first_ms=10)
        self._queues: dict[QueueKey, QueueFetch] = {}
        self._under_way: set[_Fetch] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._filters = RegisteredFilters(self._filters_changed)
        self._replica_filters: dict[ReplicaId, tuple[BrokerConnection, RegisteredFilters]] = {}
        link.on_up = self._on_up

    def add(self, queue: QueueFetch) -> None:
        """Begin to fetch a queue."""
        self._queues[queue.key] = queue
        self.wake()

    def remove(self, key: QueueKey) -> None:
        """Stop fetching a queue; nothing of it is handed over any more."""
        queue = self._queues.pop(key, None)
        if queue is not None:
            queue.generation += 1

    def close(self) -> None:
        self._is_closed = True
        self._filters.close()
        for key in tuple(self._queues):
            self.remove(key)
        if self._timer is not None:
            self._timer.cancel()
        for _, filters in self._replica_filters.values():
            filters.close()
        if self._replicas is not None:
            self._replicas.close()

    def wake(self) -> None:
        """Something changed (room, a seek, a connection): ask for what can be asked."""
        if self._is_closed or len(self._under_way) >= self._fetches_max:
            return
        now = self._loop.time()
        due = [
            queue
            for queue in self._queues.values()
            if queue.has_room and not queue.is_in_flight and queue.retry_at <= now
        ]
        by_replica: dict[ReplicaId | None, list[QueueFetch]] = {}
        for queue in due:
            by_replica.setdefault(self._asked_replica(queue), []).append(queue)
        for replica, queues in by_replica.items():
            connection = self._link.connection
            if replica is not None and self._replicas is not None:
                connection = self._replicas.connection(replica)
            if connection is not None:
                queues = self._filters_at(replica, connection).ready(connection, queues)
            if connection is None:
                continue
            size = max(QUEUES_EACH, -(-len(self._queues) // CHUNKS_MAX))
            for start in range(0, len(queues), size):
                if len(self._under_way) >= self._fetches_max:
                    return
                self._ask(connection, queues[start : start + size], now, replica)

    @property
    def _chunks(self) -> int:
        """Fetches that all queues need."""
        return min(CHUNKS_MAX, -(-len(self._queues) // QUEUES_EACH))

    @property
    def _fetches_max(self) -> int:
        return FETCHES_MAX + self._chunks - 1

    def _asked_replica(self, queue: QueueFetch) -> ReplicaId | None:
        """The replica that is to be asked and can be, now; None = the master."""
        if queue.replica is None or self._replicas is None:
            return None
        return queue.replica if self._replicas.connection(queue.replica) is not None else None

    def _filters_at(
        self, replica: ReplicaId | None, connection: BrokerConnection
    ) -> RegisteredFilters:
        """What is registered there; each connection to a replica begins with nothing."""
        if replica is None:
            return self._filters
        known = self._replica_filters.get(replica)
        if known is None or known[0] is not connection:
            if known is not None:
                known[1].close()
            known = (connection, RegisteredFilters(partial(self._replica_filters_changed, replica)))
            self._replica_filters[replica] = known
        return known[1]

    def _replica_filters_changed(self, replica: ReplicaId, failed: bool) -> None:
        if failed:
            self._give_up(replica, "filter not registered")
        self.wake()

    def _filters_changed(self, failed: bool) -> None:
        """A registration has ended."""
        if failed:
            self._retry_later(
                queue for queue in self._queues.values() if self._filters.is_missing(queue.wanted)
            )
        self.wake()

    def _on_up(self) -> None:
        self._filters.forget()
        for queue in self._queues.values():
            queue.retry_at = 0.0
        self.wake()

    # -- asking -----------------------------------------------------------------------------------

    def _ask(
        self,
        connection: BrokerConnection,
        due: list[QueueFetch],
        now: float,
        replica: ReplicaId | None,
    ) -> None:
        is_crowd = len(self._under_way) >= _CROWD + self._chunks - 1 or replica is not None
        wait_ms = WAIT_MS_CROWDED if is_crowd else WAIT_MS_MAX
        asked = [(queue, queue.position, queue.generation) for queue in due]
        fetch = _Fetch(asked, connection, now + (wait_ms + _SILENCE_MS) / 1000, replica)
        for queue in due:
            queue.is_in_flight = True
        self._under_way.add(fetch)
        filters = self._filters_at(replica, connection)
        rows = [
            FetchQueue(
                queue.key.topic_id,
                queue.key.queue,
                queue.position,
                self._queue_bytes_max,
                filters.id_of(queue.wanted),
            )
            for queue in due
        ]
        connection.begin_fetch(
            rows,
            wait_ms=wait_ms,
            max_bytes=self._fetch_bytes_max,
            on_answer=self._on_answer,
            on_lost=self._on_lost,
            context=fetch,
        )
        self._arm(wait_ms + _SILENCE_MS)

    def _arm(self, wait_ms: float) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(wait_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        silent = {fetch.replica for fetch in self._under_way if fetch.silent_at <= now}
        if None in silent and self._link.connection is not None:
            log.warning("master_silent", extra={"group": self._link.group})
            self._link.suspect()
        for replica in silent - {None}:
            self._give_up(replica, "silent")
        self.wake()
        waits = [fetch.silent_at for fetch in self._under_way]
        waits += [queue.retry_at for queue in self._queues.values() if queue.retry_at > now]
        if waits:
            self._arm(max(1.0, (min(waits) - now) * 1000))

    def _give_up(self, replica: ReplicaId | None, why: str) -> None:
        """A replica did not do: its queues go back to the master."""
        if replica is not None and self._replicas is not None:
            self._replicas.avoid(replica, why)

    def _retry_later(self, queues: Iterable[QueueFetch]) -> None:
        wait_ms = self._backoff.next_ms()
        retry_at = self._loop.time() + wait_ms / 1000
        for queue in queues:
            queue.retry_at = retry_at
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._arm(wait_ms + 1)

    # -- answers ----------------------------------------------------------------------------------

    def _land(self, fetch: _Fetch) -> None:
        self._under_way.discard(fetch)
        for queue in fetch.queues():
            queue.is_in_flight = False

    def _on_lost(self, fetch: _Fetch) -> None:
        self._land(fetch)
        self._give_up(fetch.replica, "lost")
        self._retry_later(fetch.queues())

    def _on_answer(self, fetch: _Fetch, status: int, body: memoryview) -> None:
        self._land(fetch)
        try:
            if status != STATUS_OK:
                raise error_of(body)
            answer = parse_fetch_answer(body)
            if not self._link.saw_epoch(answer.master_epoch):
                raise PeerError(f"an answer of epoch {answer.master_epoch}, which has ended")
            wanted = _wanted(fetch, answer.parts)
        except PacelineError as error:
            log.debug("fetch_failed", extra={"group": self._link.group, "error": error.message})
            self._give_up(fetch.replica, error.message)
            self._retry_later(fetch.queues())
            return
        taken = self._take(wanted, fetch.replica)
        self.wake()
        for queue, generation, run in taken:
            if queue.generation == generation:
                self._hand_over(queue, run, fetch.replica)

    def _take(
        self, wanted: "list[_Wanted]", asked: ReplicaId | None
    ) -> "list[tuple[QueueFetch, int, _Run]]":
        """Move positions past what came; the batches by queue, payloads not yet looked at.

        Nothing here may fail half-way: what a position was moved past is handed over.
        """
        taken: list[tuple[QueueFetch, int, _Run]] = []
        waiting: list[QueueFetch] = []
        for queue, part, run in wanted:
            if self._replicas is not None:
                suggested = part.flags >> FETCH_SUGGESTION_SHIFT
                queue.replica = self._replicas.chosen(suggested) if suggested else None
            if part.code != FetchCode.OK and asked is not None:
                self._replica_filters.pop(asked, None)  # perhaps it has forgotten them
                continue  # what a replica has not, the master is asked for
            if part.code != FetchCode.OK:
                waiting.append(queue)
                self._report(queue, part)
            elif part.size or part.next_offset > queue.position:
                queue.position = run.end
                taken.append((queue, queue.generation, run))
                if run.batches:
                    self._backoff.reset()
        if waiting:
            self._retry_later(waiting)
        return taken

    def _report(self, queue: QueueFetch, part: FetchPart) -> None:
        if part.code == FetchCode.OFFSET_OUT_OF_RANGE:
            self._loop.call_soon(self._on_trouble, queue, Trouble.OUT_OF_RANGE, part)
        elif part.code == FetchCode.UNKNOWN_FILTER:
            self._filters.forget()
        elif part.code == FetchCode.UNKNOWN_QUEUE:
            self._loop.call_soon(self._on_trouble, queue, Trouble.UNKNOWN_QUEUE, part)

    def _hand_over(self, queue: QueueFetch, run: "_Run", asked: ReplicaId | None) -> None:
        good, end, fault = run.batches, run.end, run.fault
        for number, batch in enumerate(run.batches):
            try:
                batch.view.verify()
            except CorruptLogError as error:
                good, fault = run.batches[:number], error
                end = batch.view.header.base_queue_offset + batch.skip
                break
        if fault is not None:
            # Damage on the way or on that broker: ask again, from a fresh connection.
            log.error(
                "batch_corrupt",
                extra={"group": self._link.group, "queue": queue.key.queue, "error": fault.message},
            )
            queue.seek(end)
            if asked is None:
                self._link.suspect()
            self._give_up(asked, "damaged bytes")
            self._on_trouble(queue, Trouble.CORRUPT, None)
        if good or fault is None:
            self._on_batches(queue, good, end)


class _Run(NamedTuple):
    """What came of one queue: whole batches in order, up to `end`, and why there are no more."""

    batches: list[FetchedBatch]
    end: int
    fault: CorruptLogError | None


class _Wanted(NamedTuple):
    """One part of an answer, of a queue that still waits for it."""

    queue: QueueFetch
    part: FetchPart
    run: _Run


def _wanted(fetch: _Fetch, parts: list[tuple[FetchPart, memoryview]]) -> list[_Wanted]:
    """The answer by queue; nothing has moved yet. PeerError if it is not what was asked for."""
    asked: dict[tuple[int, int], tuple[QueueFetch, int, int]] = {
        (queue.key.topic_id, queue.key.queue): (queue, position, generation)
        for queue, position, generation in fetch.asked
    }
    wanted: list[_Wanted] = []
    for part, data in parts:
        known = asked.get((part.topic_id, part.queue_id))
        if known is None:
            raise PeerError(f"a part for queue {part.queue_id} that was not asked for")
        queue, position, generation = known
        if queue.generation == generation:
            held = data if part.code == FetchCode.OK else data[:0]
            run = _run(queue.key, held, position, has_gaps=queue.wanted is not ALL)
            if run.fault is None and part.code == FetchCode.OK:
                run = run._replace(end=max(run.end, part.next_offset))
            wanted.append(_Wanted(queue, part, run))
    return wanted


def _run(key: QueueKey, data: memoryview, position: int, *, has_gaps: bool) -> _Run:
    """The batches of one part, which must continue the queue at `position`; with a filter batches
    may be missing. PeerError if they do not."""
    found: list[FetchedBatch] = []
    at = 0
    while at < len(data):
        try:
            view = BatchView(data, at)
        except CorruptLogError as error:
            return _Run(found, position, error)
        header = view.header
        skip = position - header.base_queue_offset
        if has_gaps:
            skip = max(0, skip)
        if (
            header.topic_id != key.topic_id
            or header.queue_id != key.queue
            or not 0 <= skip < header.record_count
        ):
            raise PeerError(
                f"a batch of topic {header.topic_id} queue {header.queue_id} from offset"
                f" {header.base_queue_offset}, asked was {key} from {position}"
            )
        found.append(FetchedBatch(view, skip))
        position = header.end_queue_offset
        at += header.size_bytes
    return _Run(found, position, None)
