"""The push consumer: a member of a group whose listener is called with every message.

Clustering: the group's members share the queues; offsets are committed up to what was processed
without a gap, so a message is delivered at least once, and after a clean close or hand-over of a
queue exactly once. Listeners run concurrently (unordered); a failed message is tried again with
back-off and, after the last attempt, reported and counted as done. What retention deletes before it
was consumed is passed over, and reported.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

from paceline.allocation import Allocation, allocate_averagely
from paceline.consumer.fetch_session import FetchedBatch, FetchSession, QueueFetch, Trouble
from paceline.consumer.gaps import Gap, OnGap
from paceline.consumer.links import GroupLinks
from paceline.consumer.membership import Membership
from paceline.consumer.process_queue import ProcessQueue
from paceline.errors import (
    ConfigError,
    LockFencedError,
    OffsetMovedBackError,
    OffsetOutOfRangeError,
    PacelineError,
)
from paceline.message import ReceivedMessage, received_messages
from paceline.net.cluster import Cluster, Wakeup
from paceline.records.header import Kind
from paceline.routing import QueueKey, QueueName, acting_groups
from paceline.runtime import cancel_and_wait, pause, spawn
from paceline.types import GroupName, TopicName
from paceline.wire.names import check_name, check_topic_name
from paceline.wire.stream import FetchPart

log = logging.getLogger("paceline.client")

Listener: TypeAlias = Callable[[ReceivedMessage], Awaitable[None]]
"""Processes one message; an exception means that it is to be tried again."""
OnGivenUp: TypeAlias = Callable[[ReceivedMessage, Exception], None]
"""Told of a message whose last attempt failed; it is counted as done afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings:
    """How a push consumer works; names and defaults follow RocketMQ where it has them."""

    concurrency: int = 20
    """Listener calls at one time (consumeThreadMax)."""
    start: str = "last"
    """Where a group begins on a queue it has never committed: "first" or "last"."""
    messages_per_queue_max: int = 1_000
    """Fetched and not done, per queue (pullThresholdForQueue); above it the queue pauses."""
    bytes_per_queue_max: int = 16 * 1024 * 1024
    span_max: int = 2_000
    """From the oldest message that is not done to the newest (consumeConcurrentlyMaxSpan)."""
    attempts_max: int = 16
    """Calls of the listener for one message (maxReconsumeTimes)."""
    retry_first_ms: int = 100
    retry_max_ms: int = 10_000
    commit_interval_ms: int = 1_000
    close_timeout_ms: int = 10_000
    """How long giving up a queue, or `close`, waits for running listeners."""
    fetch_bytes_max: int = 4 * 1024 * 1024
    queue_bytes_max: int = 1024 * 1024

    def validate(self) -> None:
        """Raises ConfigError with the sentence for the user."""
        if self.start not in ("first", "last"):
            raise ConfigError(f'start must be "first" or "last", not {self.start!r}')
        for name in ("concurrency", "messages_per_queue_max", "attempts_max", "span_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")


_COMMIT_REFUSALS = (OffsetMovedBackError, OffsetOutOfRangeError, LockFencedError)


class _Held:
    """A queue that is ours: fetch and process state."""

    __slots__ = ("attempts", "fetch", "is_releasing", "queue", "topic")

    def __init__(self, queue: ProcessQueue, topic: TopicName) -> None:
        self.queue = queue
        self.topic = topic
        self.fetch = QueueFetch(queue.key, queue.committed)
        self.attempts: dict[int, int] = {}  # queue offset -> failed listener calls
        self.is_releasing = False


class PushConsumer:
    """A member of a consumer group on one event loop; `async with`, or `start` and `close`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str] | Cluster,
        *,
        group: str,
        topics: Sequence[str],
        listener: Listener,
        settings: PushSettings | None = None,
        client_id: str | None = None,
        allocation: Allocation = allocate_averagely,
        on_given_up: OnGivenUp | None = None,
        on_gap: OnGap | None = None,
    ) -> None:
        """`listener` is an async function. `client_id` must be unique in the group (default:
        random). BadNameError for names, ConfigError for settings."""
        self._settings = settings or PushSettings()
        self._settings.validate()
        self.group = check_name(group, "group")
        self._topics = [check_topic_name(topic) for topic in topics]
        self._listener = listener
        self._on_given_up = on_given_up
        self._on_gap = on_gap
        self.missed_count = 0
        """Messages that were deleted before this member could fetch them."""
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        self._cluster = bootstrap if isinstance(bootstrap, Cluster) else Cluster(bootstrap)
        self.client_id = client_id or f"client-{self._cluster.random.token(8).hex()}"
        self._links = GroupLinks(self._cluster)
        self._sessions: dict[GroupName, FetchSession] = {}
        self._held: dict[QueueKey, _Held] = {}
        self._targets: set[QueueKey] = set()
        self._ready: deque[_Held] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._changes: set[asyncio.Task[None]] = set()
        self._quiet = Wakeup()
        self._is_closing = False
        self._membership = Membership(
            self._cluster,
            self._links,
            group=self.group,
            client_id=self.client_id,
            topics=self._topics,
            allocation=allocation,
            on_targets=self._on_targets,
            on_owned=self._on_owned,
            on_lost=self._on_lost,
        )

    async def __aenter__(self) -> "PushConsumer":
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def acting_groups(self) -> frozenset[GroupName]:
        """Broker groups without a master now: an acting one is read, which may be behind (R36)."""
        view = self._cluster.view
        return frozenset() if view is None else acting_groups(view)

    @property
    def queues(self) -> list[QueueKey]:
        """The queues this member consumes at the moment."""
        return sorted(key for key, held in self._held.items() if not held.is_releasing)

    async def start(self, *, timeout_ms: int = 10_000) -> None:
        """Join the group. PeerError when no bootstrap address answers."""
        self._cluster.start()
        await self._cluster.watch.wait_for(lambda view: True, timeout_ms=timeout_ms)
        self._membership.start()
        self._tasks = [
            spawn(self._work(), name=f"listener-{number}")
            for number in range(self._settings.concurrency)
        ]
        self._tasks.append(spawn(self._commit_for_ever(), name="commit"))

    async def close(self) -> None:
        """Stop taking messages, let running listeners end, commit, leave the group."""
        if self._is_closing:
            return
        self._is_closing = True
        self._membership.stop_claiming()
        try:
            await asyncio.gather(*(self._release(held) for held in list(self._held.values())))
            await cancel_and_wait(*self._tasks, *self._changes)
            if self._tasks:
                await self._membership.close()
        finally:
            await cancel_and_wait(*self._tasks, *self._changes)
            for session in self._sessions.values():
                session.close()
            await self._links.close()
            if self._owns_cluster:
                await self._cluster.close()

    # -- queues come and go -----------------------------------------------------------------------

    def _on_targets(self, targets: set[QueueKey]) -> None:
        self._targets = targets
        for key, held in list(self._held.items()):
            if key not in targets and not held.is_releasing:
                self._background(self._release(held), name=f"release-{key.group}-{key.queue}")

    def _on_owned(self, key: QueueKey) -> None:
        self._background(self._acquire(key), name=f"acquire-{key.group}-{key.queue}")

    def _on_lost(self) -> None:
        """Nobody knows us any more: others may take our queues, so we must not go on."""
        for held in list(self._held.values()):
            self._drop(held)

    def _background(self, work: Any, *, name: str) -> None:
        task = spawn(work, name=name)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def _acquire(self, key: QueueKey) -> None:
        """Start a queue from the committed offset."""
        topic = self._cluster.topic_name(key.topic_id)
        try:
            queue = await self._opened(key)
        except PacelineError as error:
            log.warning(
                "queue_not_started",
                extra={"group": key.group, "queue": key.queue, "error": error.message},
            )
            self._membership.release(key)  # claimed again with the next answer
            return
        if key not in self._targets or self._is_closing or topic is None:
            self._membership.release(key)
            return
        held = self._held[key] = _Held(queue, topic)
        log.info("queue_started", extra={"queue": str(key), "offset": queue.committed})
        self._session(key.group).add(held.fetch)

    async def _opened(self, key: QueueKey) -> ProcessQueue:
        """The process queue from where the group stands; a first start is committed at once."""
        row: dict[str, Any] = {"topic_id": key.topic_id, "queue": key.queue}
        ask = {"call": "offsets", "group": self.group, "queues": [row]}
        answer = await self._call(key.group, ask)
        committed = answer["offsets"][0]
        if committed["offset"] is not None:
            return ProcessQueue(key, committed["offset"], generation=committed["generation"])
        ends = (await self._call(key.group, {"call": "ends", "queues": [row]}))["queues"][0]
        offset = ends["start"] if self._settings.start == "first" else ends["end"]
        queue = ProcessQueue(key, offset, generation=committed["generation"])
        # Else a restart before the first commit would begin at another "last".
        await self._commit_rows(key.group, [queue], [{**row, "offset": offset}])
        return queue

    async def _release(self, held: _Held) -> None:
        """Give a queue up: stop fetching, wait for its listeners, commit, let others have it."""
        if held.is_releasing:
            return
        held.is_releasing = True
        key = held.queue.key
        self._session(key.group).remove(key)
        held.queue.drop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.close_timeout_ms / 1000
        while held.queue.in_process_count and loop.time() < deadline:
            await self._quiet.wait(min(50, self._settings.close_timeout_ms))
        try:
            await self._commit([held])
        except PacelineError as error:
            log.warning("commit_failed", extra={"queue": str(key), "error": error.message})
        self._held.pop(key, None)
        self._membership.release(key)
        log.info("queue_released", extra={"queue": str(key), "offset": held.queue.commit_offset})

    def _drop(self, held: _Held) -> None:
        held.queue.drop()
        self._session(held.queue.key.group).remove(held.queue.key)
        self._held.pop(held.queue.key, None)
        self._membership.release(held.queue.key)

    # -- messages ---------------------------------------------------------------------------------

    def _session(self, group: GroupName) -> FetchSession:
        session = self._sessions.get(group)
        if session is None:
            session = self._sessions[group] = FetchSession(
                self._links.link(group),
                self._cluster.random,
                fetch_bytes_max=self._settings.fetch_bytes_max,
                queue_bytes_max=self._settings.queue_bytes_max,
                on_batches=self._on_batches,
                on_trouble=self._on_trouble,
            )
        return session

    def _on_batches(self, fetch: QueueFetch, batches: list[FetchedBatch]) -> None:
        held = self._held.get(fetch.key)
        if held is None or held.fetch is not fetch or held.queue.is_dropped:
            return
        for batch in batches:
            header = batch.view.header
            messages: list[ReceivedMessage] = []
            if header.kind == Kind.NORMAL:
                messages = list(
                    received_messages(
                        batch.view, topic=held.topic, group=fetch.key.group, skip=batch.skip
                    )
                )
            held.queue.put(messages, header.end_queue_offset)
        self._regulate(held)
        self._offer(held)

    def _on_trouble(self, fetch: QueueFetch, trouble: Trouble, part: FetchPart | None) -> None:
        held = self._held.get(fetch.key)
        is_ours = held is not None and held.fetch is fetch and not held.queue.is_dropped
        if held is None or not is_ours or trouble is not Trouble.OUT_OF_RANGE:
            return  # damage and brokers that lag are asked again; deleted topics leave the targets
        assert part is not None
        position = min(max(fetch.position, part.start), part.end)
        fields = {"queue": str(fetch.key), "offset": fetch.position, "goes_on_at": position}
        log.warning("offset_out_of_range", extra=fields)
        if position > fetch.position:
            self._skip(held, position)
        else:  # an unclean election (R21) has cut what was here
            self._restart(held, position)

    def _skip(self, held: _Held, start: int) -> None:
        """Retention was faster (R26). What was fetched before it is processed all the same."""
        key = held.queue.key
        gap = Gap(QueueName(held.topic, key.group, key.queue), held.fetch.position, start)
        self.missed_count += gap.end - gap.start
        held.queue.put((), start)
        held.fetch.seek(start)
        self._regulate(held)
        self._session(key.group).wake()
        if self._on_gap is not None:
            self._on_gap(gap)

    def _restart(self, held: _Held, position: int) -> None:
        """Go on from another offset with a fresh process queue; running listeners end unseen."""
        held.queue.drop()
        self._session(held.queue.key.group).remove(held.queue.key)
        fresh = ProcessQueue(held.queue.key, position, generation=held.queue.generation)
        replaced = self._held[held.queue.key] = _Held(fresh, held.topic)
        self._session(held.queue.key.group).add(replaced.fetch)

    def _regulate(self, held: _Held) -> None:
        queue, settings = held.queue, self._settings
        has_room = (
            len(queue) < settings.messages_per_queue_max
            and queue.bytes_held < settings.bytes_per_queue_max
            and queue.span < settings.span_max
        )
        if has_room != held.fetch.has_room:
            held.fetch.has_room = has_room
            if has_room:
                self._session(queue.key.group).wake()

    def _offer(self, held: _Held) -> None:
        """Let idle workers have what waits in a queue."""
        if held.queue.has_waiting and held not in self._ready:
            self._ready.append(held)
        for _ in range(min(len(self._idle), max(1, len(held.queue)))):
            if not self._idle:
                break
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def _work(self) -> None:
        """One listener: takes messages of the queues in turn."""
        while True:
            while not self._ready:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
            held = self._ready.popleft()
            if not held.queue.has_waiting:
                continue
            message = held.queue.take()
            if held.queue.has_waiting:
                self._ready.append(held)
            await self._process(held, message)

    async def _process(self, held: _Held, message: ReceivedMessage) -> None:
        try:
            await self._listener(message)
        except Exception as error:  # the application's code: what it raises is its answer
            if not self._is_given_up(held, message, error):
                return
        held.attempts.pop(message.queue_offset, None)
        held.queue.finish(message)
        if held.queue.is_dropped:
            self._quiet.set()
        else:
            self._regulate(held)

    def _is_given_up(self, held: _Held, message: ReceivedMessage, error: Exception) -> bool:
        """Note a failed call; False if the message is tried again, here or by the next owner."""
        attempts = held.attempts[message.queue_offset] = (
            held.attempts.get(message.queue_offset, 0) + 1
        )
        fields = {
            "queue": str(held.queue.key),
            "offset": message.queue_offset,
            "attempts": attempts,
            "error": repr(error),
        }
        if held.queue.is_dropped:
            held.queue.fail(message)
            self._quiet.set()
            return False
        if attempts < self._settings.attempts_max:
            log.info("message_failed", extra=fields)
            held.queue.fail(message)
            wait_ms = min(
                self._settings.retry_max_ms, self._settings.retry_first_ms * 2 ** (attempts - 1)
            )
            asyncio.get_running_loop().call_later(wait_ms / 1000, self._try_again, held, message)
            return False
        log.error("message_given_up", extra=fields)
        if self._on_given_up is not None:
            self._on_given_up(message, error)
        return True

    def _try_again(self, held: _Held, message: ReceivedMessage) -> None:
        if not held.queue.is_dropped:
            held.queue.put_back(message)
            self._offer(held)

    # -- offsets ----------------------------------------------------------------------------------

    async def _commit_for_ever(self) -> None:
        while True:
            await pause(self._settings.commit_interval_ms)
            try:
                await self._commit([held for held in self._held.values() if not held.is_releasing])
            except PacelineError as error:
                log.warning("commit_failed", extra={"group": self.group, "error": error.message})

    async def _commit(self, helds: list[_Held]) -> None:
        """Commit what moved, one call per broker group."""
        by_group: dict[GroupName, list[_Held]] = {}
        for held in helds:
            if held.queue.commit_offset > held.queue.committed:
                by_group.setdefault(held.queue.key.group, []).append(held)
        for group, moved in by_group.items():
            rows = [
                {
                    "topic_id": held.queue.key.topic_id,
                    "queue": held.queue.key.queue,
                    "offset": held.queue.commit_offset,
                    "generation": held.queue.generation,
                }
                for held in moved
            ]
            queues = [held.queue for held in moved]
            for held, row in zip(moved, await self._commit_rows(group, queues, rows), strict=True):
                self._obey_reset(held, row)

    def _obey_reset(self, held: _Held, row: dict[str, Any]) -> None:
        """Somebody reset the group on this queue (R33): go on from where they said."""
        if row["generation"] > held.queue.generation and not held.queue.is_dropped:
            log.info("offset_reset", extra={"queue": str(held.queue.key), "offset": row["offset"]})
            held.queue.generation = row["generation"]
            self._restart(held, row["offset"])

    async def _commit_rows(
        self, group: GroupName, queues: list[ProcessQueue], rows: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        document = {"call": "commit", "group": self.group, "offsets": rows}
        try:
            answer = await self._call(group, document)
        except _COMMIT_REFUSALS as error:
            if not isinstance(error.details.get("offsets"), list):
                raise
            answer = error.details  # each queue was refused for a reason of its own
        answered: list[dict[str, Any]] = answer["offsets"]
        for queue, asked, row in zip(queues, rows, answered, strict=True):
            if row["code"] is None and not answer.get("acting"):
                # What an acting master has taken is told to the next master as well: whichever of
                # the two is asked to remember it may be gone (R36).
                queue.committed = max(queue.committed, asked["offset"])
            elif row["code"] is not None:
                log.info(
                    "offset_refused",
                    extra={"queue": str(queue.key), "offset": asked["offset"], "code": row["code"]},
                )
        return answered

    async def _call(self, group: GroupName, document: dict[str, Any]) -> dict[str, Any]:
        return await self._links.call(
            group, document, timeout_ms=self._settings.close_timeout_ms, attempt_ms=5_000
        )
