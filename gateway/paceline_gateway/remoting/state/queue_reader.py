"""Messages of queues by offset, for consumers that keep their offsets themselves.

All that one user waits for of a broker group is one fetch session over one connection, however many
clients wait. A broker answers with whole batches, of which a client takes a few messages: what came
last of a queue is kept decoded, for a short time and up to a bound.
"""

import asyncio
from collections import OrderedDict
from typing import NamedTuple

from paceline.consumer.fetch.batch_reader import ANSWER_BYTES, QUEUE_BYTES, fetched_once
from paceline.consumer.fetch.fetched import TROUBLES, FetchedBatch, QueueFetch, Trouble
from paceline.consumer.fetch.fetcher import FetchSession
from paceline.errors import CorruptLogError
from paceline.net.cluster import Cluster
from paceline.net.master_link import MasterLink
from paceline.platform.runtime import pause
from paceline.queues import QueueKey
from paceline.records.decode import BatchView
from paceline.types import GroupName
from paceline.wire.stream import FetchCode, FetchPart, FetchQueue
from paceline_gateway.remoting.codec.store_format import StoredBatch

KEPT_S = 5.0
"""Whoever has lost a right is not served from what is kept for longer."""
_ELSEWHERE_MS = 20
_ONCE_TIMEOUT_MS = 5_000
_TAILS_MAX = 4_096


class Read(NamedTuple):
    """What came of a queue: batches in order, or why none came."""

    batches: list[StoredBatch]
    end: int
    """Offset behind the last one; without any, where the reader stands."""
    trouble: Trouble | None = None
    range: tuple[int, int] | None = None
    """First and next offset of the queue, if they were told."""


class _Kept(NamedTuple):
    read: Read
    size_bytes: int
    good_until: float


class _Tail:
    """A queue that is followed: fetched while somebody waits for more of it."""

    __slots__ = ("fetch", "topic", "waiters")

    def __init__(self, fetch: QueueFetch, topic: str) -> None:
        self.fetch = fetch
        self.topic = topic
        self.waiters: dict[asyncio.Future[Read], None] = {}

    def wake(self, read: Read) -> None:
        self.fetch.has_room = False
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(read)


class QueueReader:
    """Owned by one user; all calls on the event loop."""

    def __init__(self, cluster: Cluster, *, kept_bytes_max: int) -> None:
        self._cluster = cluster
        self._kept_bytes_max = kept_bytes_max
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[GroupName, tuple[MasterLink, FetchSession]] = {}
        self._tails: OrderedDict[QueueKey, _Tail] = OrderedDict()
        self._kept: OrderedDict[tuple[QueueKey, int], _Kept] = OrderedDict()
        """By queue and first offset."""
        self._starts: dict[QueueKey, list[int]] = {}
        """First offsets of what is kept of a queue."""
        self._kept_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for link, session in self._sessions.values():
            session.close()
            await link.close()

    async def read(self, key: QueueKey, offset: int, *, topic: str, wait_ms: float) -> Read:
        """What is in the queue from `offset` on; nothing after `wait_ms`. PacelineError."""
        deadline = self._loop.time() + wait_ms / 1000
        while True:
            kept = self._find(key, offset)
            if kept is not None:
                return kept
            left = deadline - self._loop.time()
            tail = self._tail(key, topic, offset) if left > 0 else None
            if tail is not None:
                return await self._more_of(tail, offset, left)
            read = await self._once(key, topic, offset)
            if read.batches or read.trouble is not None or left <= 0:
                return read
            await pause(_ELSEWHERE_MS)  # the other one is about to get what we wait for

    async def _more_of(self, tail: _Tail, offset: int, left_s: float) -> Read:
        waiter: asyncio.Future[Read] = self._loop.create_future()
        tail.waiters[waiter] = None
        tail.fetch.has_room = True
        self._session(tail.fetch.key.group)[1].wake()
        try:
            async with asyncio.timeout(left_s):
                return await waiter
        except TimeoutError:
            return Read([], offset)
        finally:
            tail.waiters.pop(waiter, None)

    def _tail(self, key: QueueKey, topic: str, offset: int) -> _Tail | None:
        """The tail of the queue at `offset`; None: others wait elsewhere."""
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = _Tail(QueueFetch(key, offset), topic)
            self._session(key.group)[1].add(tail.fetch)
            self._forget_idle()
        elif tail.fetch.position != offset:
            if tail.waiters:
                return None
            tail.fetch.seek(offset)
        self._tails.move_to_end(key)
        return tail

    def _forget_idle(self) -> None:
        for key in list(self._tails)[: max(0, len(self._tails) - _TAILS_MAX)]:
            if not self._tails[key].waiters:
                self._drop(key)

    def _drop(self, key: QueueKey) -> None:
        del self._tails[key]
        self._session(key.group)[1].remove(key)

    def _session(self, group: GroupName) -> tuple[MasterLink, FetchSession]:
        found = self._sessions.get(group)
        if found is None:
            link = MasterLink(self._cluster, group, is_for_reading=True)
            session = FetchSession(
                link,
                self._cluster.random,
                fetch_bytes_max=ANSWER_BYTES,
                queue_bytes_max=QUEUE_BYTES,
                on_batches=self._on_batches,
                on_trouble=self._on_trouble,
            )
            link.start()
            found = self._sessions[group] = link, session
        return found

    # -- what comes -------------------------------------------------------------------------------

    def _on_batches(self, queue: QueueFetch, batches: list[FetchedBatch], end: int) -> None:
        tail = self._tails.get(queue.key)
        if tail is None or tail.fetch is not queue:
            return
        read = self._keep(queue.key, tail.topic, [batch.view for batch in batches], end)
        if read.trouble is not None:
            self._drop(queue.key)
        tail.wake(read)

    def _on_trouble(self, queue: QueueFetch, trouble: Trouble, part: FetchPart | None) -> None:
        tail = self._tails.get(queue.key)
        if tail is None or tail.fetch is not queue or trouble is Trouble.CORRUPT:
            return  # a damaged answer is fetched again
        self._drop(queue.key)
        found = None if part is None else (part.start, part.end)
        tail.wake(Read([], queue.position, trouble, found))

    async def _once(self, key: QueueKey, topic: str, offset: int) -> Read:
        """What is there now, from another offset than the one that is followed."""
        link, _ = self._session(key.group)
        connection = await link.wait_up(timeout_ms=_ONCE_TIMEOUT_MS)
        asked = [FetchQueue(key.topic_id, key.queue_id, offset, QUEUE_BYTES)]
        answer = await fetched_once(connection, asked, _ONCE_TIMEOUT_MS)
        for part, data in answer.parts:
            trouble = TROUBLES.get(part.code)
            if trouble is not None:
                return Read([], offset, trouble, (part.start, part.end))
            if part.code == FetchCode.OK and part.size:
                views = _views(data)
                return self._keep(key, topic, views, views[-1].header.end_queue_offset)
        return Read([], offset)

    # -- what is kept -----------------------------------------------------------------------------

    def _keep(self, key: QueueKey, topic: str, views: list[BatchView], end: int) -> Read:
        try:
            batches = [StoredBatch(view, topic=topic, group=key.group) for view in views]
        except CorruptLogError:
            return Read([], end, Trouble.CORRUPT)
        read = Read(batches, end)
        if batches:
            start = views[0].header.base_queue_offset
            self._forget((key, start))
            size = sum(view.header.size_bytes for view in views)
            self._kept[key, start] = _Kept(read, size, self._loop.time() + KEPT_S)
            self._starts.setdefault(key, []).append(start)
            self._kept_bytes += size
            while self._kept_bytes > self._kept_bytes_max and len(self._kept) > 1:
                self._forget(next(iter(self._kept)))
            if self._timer is None:
                self._timer = self._loop.call_later(KEPT_S, self._forget_old)
        return read

    def _forget_old(self) -> None:
        """Also where nobody asks again."""
        self._timer, now = None, self._loop.time()
        while self._kept:
            place, kept = next(iter(self._kept.items()))
            if kept.good_until > now:
                self._timer = self._loop.call_at(kept.good_until, self._forget_old)
                return
            self._forget(place)

    def _find(self, key: QueueKey, offset: int) -> Read | None:
        for start in self._starts.get(key, ()):
            kept = self._kept[key, start]
            if start <= offset < kept.read.end:
                if kept.good_until <= self._loop.time():
                    self._forget((key, start))
                    return None
                return kept.read
        return None

    def _forget(self, place: tuple[QueueKey, int]) -> None:
        kept = self._kept.pop(place, None)
        if kept is not None:
            self._kept_bytes -= kept.size_bytes
            key, start = place
            self._starts[key].remove(start)
            if not self._starts[key]:
                del self._starts[key]


def _views(data: memoryview) -> list[BatchView]:
    found: list[BatchView] = []
    at = 0
    while at < len(data):
        view = BatchView(data, at)
        view.verify()
        found.append(view)
        at += view.header.size_bytes
    return found
