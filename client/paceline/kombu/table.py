"""Results by key, on a topic: each write is a message with that key, and the last one counts.

A cluster has no table to look a key up in, and no index of keys. A key's messages are all in one of
the topic's queues, though, so:

- Who asks for a key follows its queue from then on, and keeps what comes by key: later questions
  are answered here, and who waits for a key hears of it as it is stored.
- What was stored before is looked for once, in that queue alone: from the time at which this
  process said that the key is new (`is_new`), else from the first message that has not expired.

What is kept has a bound (`kept_max`), oldest first out; a key that was thrown out is looked for
again. Reading is at the end of the queue as of the question (R4), so an answer has whatever was
stored before. All on the session's loop.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from paceline.consumer.pull import PullConsumer
from paceline.errors import DeadlineError, OffsetOutOfRangeError, PacelineError, TopicExistsError
from paceline.kombu.session import Clients
from paceline.message import Message, ReceivedMessage
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.queues import QueueName, index_of_key, write_queues_of
from paceline.types import TopicName
from paceline.wire.calls.offsets import QueueOf, Times

log = logging.getLogger("paceline.client")

KEPT_MAX = 10_000
QUEUES_DEFAULT = 16
"""The more, the less of the topic has to be read for one key."""
FORGOTTEN = "FORGOTTEN"
"""The tag of a message that takes a key away."""
_FINAL = frozenset({"SUCCESS", "CLAIMED"})
"""Tags of messages that later ones do not replace: a task that ran twice keeps its first result."""
_SKEW_MS = 60_000
_CALL_TIMEOUT_MS = 10_000
_SCAN_TIMEOUT_MS = 60_000
_PAUSE_MS = 1_000
_SCAN_POLL = 5_000

Listener = Callable[[str, bytes], None]
"""(key, value), of what is stored from now on."""


class Entry(NamedTuple):
    """What was stored last for a key."""

    value: bytes
    tag: str
    stored_unix_ms: int
    offset: int


class ResultTable:
    """Owned by a process's backend."""

    def __init__(
        self,
        clients: Clients,
        topic: str,
        *,
        expires_ms: int | None,
        on_stored: Listener,
        queues: int = QUEUES_DEFAULT,
        kept_max: int = KEPT_MAX,
    ) -> None:
        """`expires_ms`: older values are none; None: never."""
        self._clients = clients
        self._topic = topic
        self._expires_ms = expires_ms
        self._on_stored = on_stored
        self._count = queues
        self._kept_max = kept_max
        self._kept: OrderedDict[str, Entry | None] = OrderedDict()
        """None: nothing had been stored when it was looked for."""
        self._new: OrderedDict[str, int] = OrderedDict()
        """Keys of which nothing is stored before a time, unix ms."""
        self._reader = PullConsumer(clients.cluster)
        self._followed: dict[QueueName, int] = {}
        """Queues that are followed, and the next offset of each."""
        self._moved = asyncio.Event()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        await cancel_and_wait(self._task)
        await self._reader.close()

    # -- writing ----------------------------------------------------------------------------------

    async def put(self, key: str, value: bytes, tag: str) -> None:
        """Returns when it is on the disk of every in-sync replica."""
        await self._declare()
        await self._clients.producer.send(Message(self._topic, value, key=key, tag=tag))

    async def _declare(self) -> None:
        if self._clients.cluster.topic(self._topic) is None:
            try:
                await self._clients.admin.topics.create(self._topic, queues=self._count)
            except TopicExistsError:
                await self._clients.cluster.wait_topic(self._topic, timeout_ms=_CALL_TIMEOUT_MS)

    def is_new(self, key: str) -> None:
        """Nothing has been stored for that key before now."""
        self._new[key] = self._clients.cluster.clock.unix_ms()
        if len(self._new) > self._kept_max:
            self._new.popitem(last=False)

    # -- reading ----------------------------------------------------------------------------------

    async def follow(self, key: str) -> None:
        """What is stored for the key from now on is told."""
        await self._declare()
        name = await self._queue_of(key)
        if name not in self._followed:
            async with self._lock:
                await self._follow([name])

    async def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        """What was stored for the keys and has not expired; keys that have nothing are left out."""
        await self._declare()
        by_queue: dict[QueueName, list[str]] = {}
        for key in keys:
            by_queue.setdefault(await self._queue_of(key), []).append(key)
        async with self._lock:
            ends = await self._follow(by_queue)
            for queue, asked in by_queue.items():
                missing = [key for key in asked if key not in self._kept]
                if missing:
                    await self._look_for(queue, missing, ends[queue])
            await self._wait_for(ends)
        now = self._clients.cluster.clock.unix_ms()
        found: dict[str, bytes] = {}
        for key in (key for asked in by_queue.values() for key in asked):
            entry = self._kept.get(key)
            if entry is not None and entry.tag != FORGOTTEN and not self._is_over(entry, now):
                found[key] = entry.value
        return found

    def _is_over(self, entry: Entry, now_unix_ms: int) -> bool:
        expires_ms = self._expires_ms
        return expires_ms is not None and entry.stored_unix_ms + expires_ms < now_unix_ms

    async def _queue_of(self, key: str) -> QueueName:
        """TopicNotFoundError; NotAuthorizedError: the user may not see the topic."""
        cluster = self._clients.cluster
        topic = await cluster.wait_topic(self._topic, timeout_ms=_CALL_TIMEOUT_MS)
        queues = write_queues_of(topic)
        found = queues[index_of_key(key.encode(), len(queues))]
        return QueueName(TopicName(self._topic), found.group, found.queue_id)

    async def _follow(self, queues: Iterable[QueueName]) -> dict[QueueName, int]:
        """Follow these queues too; where each ends now."""
        wanted = list(queues)
        ranges = await self._reader.ranges(wanted)
        ends: dict[QueueName, int] = {name: found.end for name, found in ranges.items()}
        added = {name: end for name, end in ends.items() if name not in self._followed}
        if added:
            self._followed |= added
            await self._reader.assign(dict(self._followed))
        if self._task is None:
            self._task = spawn(self._run(), name="kombu-results")
        return ends

    async def _wait_for(self, ends: dict[QueueName, int]) -> None:
        """Until what is followed has come as far."""
        try:
            async with asyncio.timeout(_SCAN_TIMEOUT_MS / 1000):
                while any(self._followed[name] < end for name, end in ends.items()):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise DeadlineError(
                f"results of {self._topic} were not read up to now in time"
            ) from None

    async def _run(self) -> None:
        while True:
            try:
                messages = await self._reader.poll(timeout_ms=20_000)
            except OffsetOutOfRangeError as error:
                log.warning("kombu_results_deleted", extra={"error": error.message})
                continue
            except PacelineError as error:
                log.warning("kombu_results_failed", extra={"error": error.message})
                await pause(_PAUSE_MS)
                continue
            for message in messages:
                self._stored(message)
            self._moved.set()

    def _stored(self, message: ReceivedMessage) -> None:
        name = QueueName(TopicName(message.topic), message.group, message.queue_id)  # type: ignore[arg-type]
        if message.queue_offset < self._followed[name]:
            return  # it was assigned anew in between
        self._followed[name] = message.queue_offset + 1
        if message.key is not None:
            self._keep(message.key, _later(self._kept.get(message.key), _entry(message)))
            self._on_stored(message.key, message.body)

    def _keep(self, key: str, entry: Entry | None) -> None:
        self._kept[key] = entry
        self._kept.move_to_end(key)
        if len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)

    async def _look_for(self, queue: QueueName, keys: list[str], end: int) -> None:
        """What was stored for the keys in a queue before `end`."""
        wanted = set(keys)
        found: dict[str, Entry | None] = dict.fromkeys(keys)
        begin = await self._begin(queue, keys)
        async with PullConsumer(self._clients.cluster) as reader:
            await reader.assign({queue: begin})
            at, deadline = begin, asyncio.get_running_loop().time() + _SCAN_TIMEOUT_MS / 1000
            while at < end:
                if asyncio.get_running_loop().time() > deadline:
                    raise DeadlineError(f"queue {queue} was not read up to {end} in time")
                try:
                    messages = await reader.poll(max_messages=_SCAN_POLL)
                except OffsetOutOfRangeError as error:
                    log.debug("kombu_results_deleted", extra={"error": error.message})
                    continue
                for message in messages:
                    if message.key in wanted:
                        found[message.key] = _later(found[message.key], _entry(message))
                at = reader.position(queue)
        for key, entry in found.items():
            seen = self._kept.get(key)  # meanwhile
            self._keep(key, entry if seen is None else _later(entry, seen))

    async def _begin(self, queue: QueueName, keys: list[str]) -> int:
        """The offset from which on all is that was stored for these keys and has not expired."""
        now = self._clients.cluster.clock.unix_ms()
        oldest = 0 if self._expires_ms is None else now - self._expires_ms
        since = max(oldest, min(self._new.get(key, 0) for key in keys))
        request = Times(
            unix_ms=max(0, since - _SKEW_MS),
            queues=[QueueOf(topic=queue.topic, queue=queue.queue_id)],
        )
        answer, _ = await self._clients.links.call(
            queue.group, request, timeout_ms=_CALL_TIMEOUT_MS
        )
        return answer.queues[0].offset


def _entry(message: ReceivedMessage) -> Entry:
    return Entry(message.body, message.tag, message.store_unix_ms, message.queue_offset)


def _later(before: Entry | None, after: Entry) -> Entry:
    """Which of two counts."""
    if before is None or after.tag == FORGOTTEN:
        return after
    return before if before.tag in _FINAL else after
