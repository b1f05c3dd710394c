"""Fetching from the master of one broker group: long polls over many queues, batches out.

The master keeps what it was asked for (`Following`), so that only queues that changed are named. A
fetch from another replica, or over a connection without such sessions, names its queues: those that
want more and are in no other fetch. When either is answered, the positions move and the next
request goes out *before* the batches are handed over, so that the broker works while the
application decodes. Everything here runs in callbacks on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from paceline.consumer.fetch.fetched import (
    TROUBLES,
    Ask,
    FetchedBatch,
    Place,
    QueueFetch,
    Run,
    Trouble,
    Wanted,
    landed,
    place_of,
    wanted_of,
)
from paceline.consumer.fetch.registered_filters import RegisteredFilters
from paceline.consumer.fetch.replica_reads import ReplicaReads
from paceline.consumer.fetch.server_session import Following, UnderWay
from paceline.errors import OverloadedError, PacelineError, PeerError
from paceline.net.backoff import Backoff
from paceline.net.cluster import BrokerConnection
from paceline.net.master_link import MasterLink
from paceline.net.stream_connection import (
    StreamConnection,
    error_of,
    parse_fetch_answer,
    parse_follow_answer,
)
from paceline.platform.ports import Random
from paceline.queues import QueueKey
from paceline.types import ReplicaId
from paceline.wire.stream import (
    FETCH_SUGGESTION_SHIFT,
    FOLLOW_QUEUES_MAX,
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
FOLLOWS_MAX = 8
"""Unanswered requests of a fetch session; the broker lets no more than two wait for something."""
WAIT_MS_MAX = 5_000
WAIT_MS_CROWDED = 500
"""With many fetches under way each waits less, so that their queues come together again."""
_CROWD = 4
_REFUSED_PAUSE_S = 1.0
"""Without permission a queue is asked for again after so long."""
_SILENCE_MS = 5_000
"""A broker that answers this much later than it was asked to wait is given up."""


OnBatches = Callable[[QueueFetch, list[FetchedBatch], int], None]
OnTrouble = Callable[[QueueFetch, Trouble, FetchPart | None], None]


class FetchSession:
    """All fetches of one consumer from one broker group.

    `on_batches(queue, batches, end)`: whole batches in order, CRCs checked; nothing else is wanted
    below `end`. `on_trouble(queue, trouble, part)`: the owner seeks or removes the queue; until
    then it is asked for again with back-off.
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
        replica_reads: Callable[..., ReplicaReads] | None = None,
    ) -> None:
        """`replica_reads(on_ready=...)` makes that by which queues far behind are read; None: from
        the master all the same."""
        self._link = link
        self._replicas = None if replica_reads is None else replica_reads(on_ready=self.wake)
        self._fetch_bytes_max = fetch_bytes_max
        self._queue_bytes_max = queue_bytes_max
        self._on_batches = on_batches
        self._on_trouble = on_trouble
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(random, first_ms=10)
        self._queues: dict[QueueKey, QueueFetch] = {}
        self._due: dict[QueueKey, QueueFetch] = {}
        """All that may have to be asked for; some need not, or must wait a moment."""
        self._following: Following | None = None
        self._without_session: BrokerConnection | None = None
        """Its broker keeps no more sessions."""
        self._under_way: set[UnderWay] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._is_wake_due = False
        self._filters = RegisteredFilters(self._filters_changed)
        self._replica_filters: dict[ReplicaId, tuple[BrokerConnection, RegisteredFilters]] = {}
        link.on_up = self._on_up

    def add(self, queue: QueueFetch) -> None:
        """Begin to fetch a queue."""
        self.remove(queue.key)
        self._queues[queue.key] = queue
        queue.join(self._due)
        if not self._is_wake_due:  # many are added in a row: they are asked for together
            self._is_wake_due = True
            self._loop.call_soon(self._wake_added)

    def remove(self, key: QueueKey) -> None:
        """Stop fetching a queue; nothing of it is handed over any more."""
        queue = self._queues.pop(key, None)
        if queue is not None:
            queue.leave()
            self._due.pop(key, None)
            if self._following is not None:
                self._following.remove(key)

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

    def _wake_added(self) -> None:
        self._is_wake_due = False
        self.wake()

    def wake(self) -> None:
        """Something changed (room, a seek, a connection): ask for what can be asked."""
        if self._is_closed:
            return
        following = self._following
        # A session without a request hears of nothing, not even that its connection has gone.
        is_idle = following is not None and following.is_idle
        if len(self._under_way) >= self._fetches_max and not is_idle:
            return
        now = self._loop.time()
        by_replica: dict[ReplicaId | None, list[QueueFetch]] = {}
        for queue in self._take_due(now):
            by_replica.setdefault(self._asked_replica(queue), []).append(queue)
        for replica, queues in by_replica.items():
            connection = self._link.connection
            if replica is not None and self._replicas is not None:
                connection = self._replicas.connection(replica)
            if connection is None:
                continue
            queues = self._filters_at(replica, connection).ready(connection, queues)
            following = self._following_at(connection) if replica is None else None
            if following is not None:
                self._follow(following, queues, now)
            else:
                self._fetch(connection, queues, now, replica)
        following = self._following
        if following is not None and following.is_idle:
            self._request(following, [], now)

    def _take_due(self, now: float) -> list[QueueFetch]:
        """The queues to ask for now; what became of the others is forgotten."""
        found = []
        for key, queue in tuple(self._due.items()):
            if queue.is_in_flight or not queue.has_room:
                del self._due[key]
            elif queue.retry_at <= now:
                found.append(queue)
        return found

    def _following_at(self, connection: BrokerConnection) -> Following | None:
        """The fetch session to ask by; None: each fetch says all there."""
        following = self._following
        if following is not None and following.connection is connection and not following.is_over:
            return following
        is_possible = len(self._queues) <= connection.session_queues
        if not is_possible or connection is self._without_session:
            return None
        assert isinstance(connection, StreamConnection), connection
        self._following = Following(connection)
        return self._following

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

    def _follow(self, following: Following, due: list[QueueFetch], now: float) -> None:
        for start in range(0, len(due), FOLLOW_QUEUES_MAX):
            if following.under_way >= FOLLOWS_MAX:
                return  # one of them is answered at once
            self._request(following, due[start : start + FOLLOW_QUEUES_MAX], now)

    def _request(self, following: Following, due: list[QueueFetch], now: float) -> None:
        connection = following.connection
        silent_at = now + (WAIT_MS_MAX + _SILENCE_MS) / 1000
        fetch = UnderWay([], connection, silent_at, None, following)
        self._under_way.add(fetch)
        following.under_way += 1
        rows = following.ask(due, self._rows(due, self._filters))
        connection.follow(
            rows,
            sequence=following.sequence,
            wait_ms=WAIT_MS_MAX,
            max_bytes=self._fetch_bytes_max,
            on_answer=self._on_part_answer,
            on_lost=self._on_lost,
            context=fetch,
        )
        self._arm(WAIT_MS_MAX + _SILENCE_MS)

    def _rows(self, due: list[QueueFetch], filters: RegisteredFilters) -> list[FetchQueue]:
        """How queues are named; from now on they wait for an answer."""
        rows = []
        for queue in due:
            queue.is_in_flight = True
            self._due.pop(queue.key, None)
            key = queue.key
            filter_id = filters.id_of(queue.wanted)
            rows.append(
                FetchQueue(
                    key.topic_id, key.queue_id, queue.position, self._queue_bytes_max, filter_id
                )
            )
        return rows

    def _fetch(
        self,
        connection: BrokerConnection,
        queues: list[QueueFetch],
        now: float,
        replica: ReplicaId | None,
    ) -> None:
        """Fetches that name their queues."""
        size = max(QUEUES_EACH, -(-len(self._queues) // CHUNKS_MAX))
        for start in range(0, len(queues), size):
            if len(self._under_way) >= self._fetches_max:
                return
            self._ask(connection, queues[start : start + size], now, replica)

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
        fetch = UnderWay(asked, connection, now + (wait_ms + _SILENCE_MS) / 1000, replica)
        self._under_way.add(fetch)
        connection.begin_fetch(
            self._rows(due, self._filters_at(replica, connection)),
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

    def _pause(self, refused: list[QueueFetch]) -> None:
        retry_at = self._loop.time() + _REFUSED_PAUSE_S
        for queue in refused:
            queue.retry_at = retry_at
        if self._timer is not None and self._timer.when() > retry_at:
            self._timer.cancel()
            self._timer = None
        self._arm(_REFUSED_PAUSE_S * 1000 + 1)

    # -- answers ----------------------------------------------------------------------------------

    def _land(self, fetch: UnderWay) -> list[QueueFetch]:
        """The request stands no more, or its whole session: the queues that waited for it."""
        self._under_way.discard(fetch)
        queues = fetch.queues()
        if fetch.following is not None:
            fetch.following.under_way -= 1
            fetch.following.end()
        for queue in queues:
            queue.land()
        return queues

    def _on_lost(self, fetch: UnderWay) -> None:
        queues = self._land(fetch)
        self._give_up(fetch.replica, "lost")
        self._retry_later(queues)

    def _on_answer(self, fetch: UnderWay, status: int, body: memoryview) -> None:
        queues = self._land(fetch)
        try:
            if status != STATUS_OK:
                raise error_of(body)
            answer = parse_fetch_answer(body)
            self._check_epoch(answer.master_epoch)
            wanted = wanted_of({place_of(ask[0]): ask for ask in fetch.asked}, answer.parts)
        except PacelineError as error:
            self._fail(fetch, queues, error)
            return
        self._accept(wanted, fetch.replica)

    def _on_part_answer(self, fetch: UnderWay, status: int, body: memoryview) -> None:
        """An answer of the fetch session: what it has no part for goes on waiting."""
        following = fetch.following
        assert following is not None
        if following.is_over:
            self._land(fetch)
            self.wake()
            return
        asks: dict[Place, Ask] = {}
        try:
            if status != STATUS_OK:
                raise error_of(body)
            seen, answer = parse_follow_answer(body)
            self._check_epoch(answer.master_epoch)
            asks, parts = following.answered(answer.parts, seen)
            wanted = wanted_of(asks, parts)
        except PacelineError as error:
            if error.code == OverloadedError.code:  # no room for it, whoever asks
                self._without_session = fetch.connection
            self._fail(fetch, self._land(fetch) + landed(asks), error)
            return
        self._under_way.discard(fetch)
        following.under_way -= 1
        landed(asks)
        self._accept(wanted, None)

    def _check_epoch(self, epoch: int) -> None:
        if not self._link.saw_epoch(epoch):
            raise PeerError(f"an answer of epoch {epoch}, which has ended")

    def _fail(self, fetch: UnderWay, queues: list[QueueFetch], error: PacelineError) -> None:
        log.debug("fetch_failed", extra={"group": self._link.group, "error": error.message})
        self._link.refusals.heard(error)
        self._give_up(fetch.replica, error.message)
        self._retry_later(queues)

    def _accept(self, wanted: list[Wanted], asked: ReplicaId | None) -> None:
        taken = self._take(wanted, asked)
        self.wake()
        for queue, generation, run in taken:
            if queue.generation == generation:
                self._hand_over(queue, run, asked)

    def _take(
        self, wanted: list[Wanted], asked: ReplicaId | None
    ) -> list[tuple[QueueFetch, int, Run]]:
        """Move positions past what came; the batches by queue, payloads not yet looked at.

        Nothing here may fail half-way: what a position was moved past is handed over.
        """
        taken: list[tuple[QueueFetch, int, Run]] = []
        waiting: list[QueueFetch] = []
        refused: list[QueueFetch] = []
        for queue, part, run in wanted:
            if self._replicas is not None:
                suggested = part.flags >> FETCH_SUGGESTION_SHIFT
                queue.replica = self._replicas.chosen(suggested) if suggested else None
            if part.code != FetchCode.OK and asked is not None:
                self._replica_filters.pop(asked, None)  # perhaps it has forgotten them
                continue  # what a replica has not, the master is asked for
            if part.code != FetchCode.OK:
                (refused if part.code == FetchCode.NO_PERMISSION else waiting).append(queue)
                self._report(queue, part)
            elif part.size or part.next_offset > queue.position:
                queue.position = run.end
                taken.append((queue, queue.generation, run))
                if run.batches:
                    self._backoff.reset()
        if waiting:
            self._retry_later(waiting)
        if refused:
            self._pause(refused)
        return taken

    def _report(self, queue: QueueFetch, part: FetchPart) -> None:
        if part.code == FetchCode.UNKNOWN_FILTER:
            self._filters.forget()
        trouble = TROUBLES.get(part.code)
        if trouble is not None:
            self._loop.call_soon(self._on_trouble, queue, trouble, part)

    def _hand_over(self, queue: QueueFetch, run: Run, asked: ReplicaId | None) -> None:
        good, end, fault = run.verified()
        if fault is not None:
            # Damage on the way or on that broker: ask again, from a fresh connection.
            log.error(
                "batch_corrupt",
                extra={
                    "group": self._link.group,
                    "queue": queue.key.queue_id,
                    "error": fault.message,
                },
            )
            queue.seek(end)
            if asked is None:
                self._link.suspect()
            self._give_up(asked, "damaged bytes")
            self._on_trouble(queue, Trouble.CORRUPT, None)
        if good or fault is None:
            self._on_batches(queue, good, end)
