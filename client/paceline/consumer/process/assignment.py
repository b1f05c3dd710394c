"""The queues a member of a group holds: taken, fetched, committed, given up (DESIGN 6).

A `Assignment` says which queues are ours and what was fetched of them; a `Processing` decides what
becomes of the messages. Offsets are committed up to what was processed without a gap. A queue is
given up only when its listeners have ended and its offset is committed: its next owner goes on.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from paceline.consumer.fetch.fetched import FetchedBatch, QueueFetch, Trouble
from paceline.consumer.fetch.fetcher import FetchSession
from paceline.consumer.fetch.gaps import Gap, OnGap
from paceline.consumer.fetch.replica_reads import ReplicaReads
from paceline.consumer.fetch.unreadable_topics import UnreadableTopics
from paceline.consumer.group.segment_member import GroupMember as GroupMember
from paceline.consumer.group.segment_member import Join as Join
from paceline.consumer.group.segment_member import SegmentMember
from paceline.consumer.not_started import NotStarted, OnError
from paceline.consumer.offsets.group_offsets import OffsetStore
from paceline.consumer.process.held_queue import HeldQueue as HeldQueue
from paceline.consumer.queues.process_queue import ProcessQueue
from paceline.consumer.queues.segments import SegmentBook
from paceline.consumer.settings.push import PushSettings
from paceline.errors import PacelineError
from paceline.filters import ALL, Filter
from paceline.message import ReceivedMessage, received_messages
from paceline.net.cluster import Cluster, Wakeup
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.queues import LOGICAL, QueueKey, QueueName
from paceline.records.header import Kind
from paceline.types import GroupName, TopicName
from paceline.wire.calls.offsets import Reset
from paceline.wire.cluster import ClusterView
from paceline.wire.stream import FetchPart

log = logging.getLogger("paceline.client")

OPENS_MAX = 128
"""Queues of one broker group that are opened at a time; brokers take 256 calls of a connection."""


class _Limits(NamedTuple):
    """How much of a queue may be fetched and not done."""

    messages: int
    size_bytes: int


class Processing(Protocol):
    """What becomes of fetched messages. Told on the event loop; returns at once."""

    def arrived(self, held: HeldQueue) -> None:
        """Messages wait in `held.queue`: take them, and `finish` or `fail` each."""
        ...

    def dropped(self, held: HeldQueue) -> None:
        """The queue is not ours any more, or begins again as another `HeldQueue`."""
        ...


class Assignment:
    """All queues of one member; `start`, and `close` when nothing more is to be processed."""

    def __init__(
        self,
        cluster: Cluster,
        links: GroupLinks,
        offsets: OffsetStore,
        *,
        group: str,
        settings: PushSettings,
        join: Join,
        processing: Processing,
        on_gap: OnGap | None,
        on_error: OnError | None = None,
        on_refused: Callable[[], None] = lambda: None,
        filters: Mapping[str, Filter] | None = None,
    ) -> None:
        """`on_error` is told of queues that could not be started. `on_refused` is called when there
        is something for `refusals.raise_fresh`, if anybody calls that."""
        self._cluster = cluster
        self._group = group
        self._settings = settings
        self._processing = processing
        self._filters = filters or {}
        """By topic; what has none is wanted whole."""
        self._on_gap = on_gap
        self.missed_count = 0
        """Messages that were deleted before this member could fetch them."""
        self._links = links
        self._offsets = offsets
        self._sessions: dict[GroupName, FetchSession] = {}
        self.held: dict[QueueKey, HeldQueue] = {}
        self._held_counts: Counter[TopicName] = Counter()
        self._paused: set[QueueKey] = set()
        self._is_suspended = False
        self._targets: set[QueueKey] = set()
        self._opening: dict[QueueKey, asyncio.Lock] = {}
        """A claim that was lost while its queue was opened is cleaned up before the next one."""
        self._opens: defaultdict[GroupName, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(OPENS_MAX)
        )
        self._loss_count = 0
        """How often all claims were lost: what was opened for an older one is not ours."""
        self._commit_task: asyncio.Task[None] | None = None
        self._changes: set[asyncio.Task[None]] = set()
        self._releases: set[asyncio.Task[None]] = set()
        """Those of them that give a queue up."""
        self._quiet = Wakeup()
        self._is_closing = False
        self.refusals = UnreadableTopics(cluster, self._reads, on_refused=on_refused)
        self._not_started = NotStarted(cluster.clock, cluster.random, on_error=on_error)
        self._book = SegmentBook(lambda: cluster.view)
        self._end_listening: Callable[[], None] = lambda: None
        self._membership = SegmentMember(
            cluster,
            offsets,
            self._book,
            join,
            on_targets=self._on_targets,
            on_owned=self._on_owned,
            on_lost=self._on_lost,
        )

    @property
    def queues(self) -> list[QueueKey]:
        """The queues this member consumes at the moment."""
        return sorted(key for key, held in self.held.items() if not held.is_releasing)

    def holding(self, key: QueueKey) -> HeldQueue | None:
        """What we have of a queue, or of a logical one."""
        if key.group != LOGICAL:
            return self.held.get(key)
        return next((h for k, h in self.held.items() if self._book.logical_key(k) == key), None)

    def start(self) -> None:
        """Join the group."""
        own = self._cluster.namespace.own_topic
        self._filters = {own(topic): wanted for topic, wanted in self._filters.items()}
        self._end_listening = self._cluster.watch.listen(self._on_view)
        self._membership.start()
        self._commit_task = spawn(self._commit_for_ever(), name="commit")

    async def release_all(self) -> None:
        """Stop taking messages, let running listeners end, commit."""
        self._is_closing = True
        self._membership.stop_claiming()
        await asyncio.gather(*(self._release(held) for held in list(self.held.values())))
        if self._releases:  # what had begun before, as of a segment that has been read
            await asyncio.wait(self._releases)

    async def leave(self) -> None:
        """Leave the group; after `release_all`."""
        await cancel_and_wait(self._commit_task, *self._changes)
        if self._commit_task is not None:
            await self._membership.close()

    async def close(self) -> None:
        """Close what was opened; also after a failure of the others."""
        self._end_listening()
        self.refusals.close()
        await self._membership.end()
        await cancel_and_wait(self._commit_task, *self._changes)
        for session in self._sessions.values():
            session.close()
        try:
            await self._offsets.close()
        finally:
            await self._links.close()

    def settled(self, held: HeldQueue) -> None:
        """A listener call of this queue has ended: there may be room, or no more to wait for."""
        if held.queue.is_dropped:
            self._quiet.set()
            return
        if not held.fetch.has_room:
            self._regulate(held)
        if held.place is not None:
            self._look_at_end(held)

    # -- moving -----------------------------------------------------------------------------------

    async def commit_now(self) -> None:
        """Commit what moved of all queues. Raises PacelineError."""
        await self._commit([held for held in self.held.values() if not held.is_releasing])

    async def seek(self, held: HeldQueue, target: Mapping[str, Any]) -> None:
        """Reset the group on a queue that is ours (R33): `to`, `offset` or `unix_ms` as of a reset.

        Returns when it goes on from there. Raises PacelineError.
        """
        key = held.queue.key
        request = Reset(group=self._group, topic=held.topic, queues=[key.queue_id], **target)
        timeout_ms = self._settings.close_timeout_ms
        answer, _ = await self._links.call(key.group, request, timeout_ms=timeout_ms)
        [row] = answer.queues
        now = self.held.get(key)
        if now is not None and row.offset is not None and row.generation > now.queue.generation:
            self._obey_reset(now.queue, row.offset, row.generation)

    # -- pausing ----------------------------------------------------------------------------------

    def pause(self, keys: Iterable[QueueKey] | None) -> None:
        """Hand out nothing more of these queues, or of all; also when they come back to us."""
        if keys is None:
            self._is_suspended = True
        else:
            self._paused.update(map(self._book.logical_key, keys))
        self._apply_pauses()

    def resume(self, keys: Iterable[QueueKey] | None) -> None:
        """Undo `pause`; of all: every pause."""
        if keys is None:
            self._is_suspended = False
            self._paused.clear()
        else:
            self._paused.difference_update(map(self._book.logical_key, keys))
        self._apply_pauses()

    def _apply_pauses(self) -> None:
        for key, held in self.held.items():
            is_paused = self._is_suspended or self._book.logical_key(key) in self._paused
            if is_paused != held.is_paused and not held.queue.is_dropped:
                held.is_paused = is_paused
                self._regulate(held)
                self._processing.arrived(held)

    # -- queues come and go -----------------------------------------------------------------------

    def _on_targets(self, targets: set[QueueKey]) -> None:
        self._targets = targets
        for key, held in list(self.held.items()):
            if key not in targets and not held.is_releasing:
                name = f"release-{key.group}-{key.queue_id}"
                task = self._background(self._release(held), name=name)
                self._releases.add(task)
                task.add_done_callback(self._releases.discard)

    def _on_owned(self, key: QueueKey) -> None:
        work = self._acquire(key, self._loss_count)
        self._background(work, name=f"acquire-{key.group}-{key.queue_id}")

    def _on_lost(self) -> None:
        """Nobody knows us any more: others may take our queues, so we must not go on."""
        self._loss_count += 1
        for held in list(self.held.values()):
            self._drop(held)

    def _background(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        task = spawn(work, name=name)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return task

    async def _acquire(self, key: QueueKey, loss_count: int) -> None:
        """Start a queue from the committed offset; `loss_count`: as of when it was claimed."""
        try:
            async with self._opening.setdefault(key, asyncio.Lock()), self._opens[key.group]:
                await self._open(key, loss_count)
        except PacelineError as error:
            await pause(self._not_started.failed(key, error))
            if loss_count == self._loss_count:
                self._membership.release(key)  # claimed again with the next answer

    async def _open(self, key: QueueKey, loss_count: int) -> None:
        if loss_count != self._loss_count:
            return
        topic = self._cluster.topic_name(key.topic_id)
        queue = await self._offsets.opened(key)
        self._not_started.started(key)
        if loss_count != self._loss_count:
            await self._close_offsets(queue)  # the claim that is there now is another one
            return
        if key not in self._targets or self._is_closing or topic is None:
            await self._close_offsets(queue)
            self._membership.release(key)
            return
        self._hold(queue, topic)
        log.info("queue_started", extra={"queue": str(key), "offset": queue.committed})

    def _hold(self, queue: ProcessQueue, topic: TopicName) -> None:
        held = HeldQueue(queue, topic, self._filters.get(topic, ALL))
        self._held_counts[topic] += queue.key not in self.held
        self.held[queue.key] = held
        held.is_paused = self._is_suspended or self._book.logical_key(queue.key) in self._paused
        held.place = self._book.place_of(queue.key)
        held.fetch.has_room = not held.is_paused
        self._session(queue.key.group).add(held.fetch)
        self._look_at_end(held)

    def _on_view(self, view: ClusterView) -> None:
        """Segments may have been sealed."""
        for held in tuple(self.held.values()):
            if held.place is None:
                continue
            place = self._book.place_of(held.queue.key)
            if place is None:  # its broker group was given up: what follows is all there is
                self._membership.reached_end(held.queue.key)
            else:
                held.place = place
                self._look_at_end(held)

    def _look_at_end(self, held: HeldQueue) -> None:
        """All of a sealed segment is processed: commit it, and go on with the next."""
        end = None if held.place is None else held.place.segment.sealed_end
        if end is not None and held.queue.commit_offset >= end and not held.is_releasing:
            self._membership.reached_end(held.queue.key)

    def _let_go(self, held: HeldQueue) -> None:
        if self._is_held(held):
            del self.held[held.queue.key]
            self._held_counts[held.topic] -= 1

    def _is_held(self, held: HeldQueue) -> bool:
        """Not so when it was dropped meanwhile: its key may be held anew, under another claim."""
        return self.held.get(held.queue.key) is held

    async def _release(self, held: HeldQueue) -> None:
        """Give a queue up: stop fetching, wait for its listeners, commit, let others have it."""
        if held.is_releasing:
            return
        held.is_releasing = True
        key = held.queue.key
        self._session(key.group).remove(key)
        held.queue.drop()
        self._processing.dropped(held)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.close_timeout_ms / 1000
        while held.queue.in_process_count and loop.time() < deadline and self._is_held(held):
            await self._quiet.wait(min(50, self._settings.close_timeout_ms))
        if not self._is_held(held):
            return
        try:
            await self._commit([held])
        except PacelineError as error:
            log.warning("commit_failed", extra={"queue": str(key), "error": error.message})
        await self._close_offsets(held.queue)
        if not self._is_held(held):
            return
        self._let_go(held)
        self._membership.release(key)
        log.info("queue_released", extra={"queue": str(key), "offset": held.queue.commit_offset})

    async def _close_offsets(self, queue: ProcessQueue) -> None:
        try:
            await self._offsets.closed(queue)
        except PacelineError as error:
            log.warning("offsets_not_closed", extra={"queue": str(queue.key), "why": error.message})

    def lose(self, key: QueueKey) -> None:
        """The queue is another's by now: leave it as it is, and ask for it anew."""
        held = self.held.get(key)
        if held is not None and not held.is_releasing:
            self._drop(held)

    def _drop(self, held: HeldQueue) -> None:
        held.queue.drop()
        self._processing.dropped(held)
        self._offsets.abandoned(held.queue)
        self._session(held.queue.key.group).remove(held.queue.key)
        self._let_go(held)
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
                replica_reads=partial(
                    ReplicaReads, self._cluster, group, consumer_group=self._group
                ),
            )
        return session

    def _on_batches(self, fetch: QueueFetch, batches: list[FetchedBatch], end: int) -> None:
        held = self.held.get(fetch.key)
        if held is None or held.fetch is not fetch or held.queue.is_dropped:
            return
        for batch in batches:
            header = batch.view.header
            messages: list[ReceivedMessage] = []
            if header.kind == Kind.NORMAL:
                messages = list(
                    received_messages(
                        batch.view,
                        topic=held.topic,
                        group=fetch.key.group,
                        skip=batch.skip,
                        lock_token=held.queue.lock_token,
                        wanted=fetch.wanted,
                        place=held.place,
                    )
                )
            held.queue.put(messages, header.end_queue_offset)
        held.queue.put((), end)
        self._regulate(held)
        self._processing.arrived(held)
        self._look_at_end(held)

    def _on_trouble(self, fetch: QueueFetch, trouble: Trouble, part: FetchPart | None) -> None:
        held = self.held.get(fetch.key)
        if held is None or held.fetch is not fetch or held.queue.is_dropped:
            return
        if trouble is Trouble.NO_PERMISSION:
            self.refusals.note(held.topic)
        if trouble is not Trouble.OUT_OF_RANGE:
            return  # damage and brokers that lag are asked again; deleted topics leave the targets
        assert part is not None
        position = min(max(fetch.position, part.start), part.end)
        fields = {"queue": str(fetch.key), "offset": fetch.position, "goes_on_at": position}
        log.warning("offset_out_of_range", extra=fields)
        if position > fetch.position:
            self._skip(held, position)
        else:  # an unclean election (R21) has cut what was here
            self._restart(held, position)

    def _reads(self, name: TopicName) -> bool:
        return any(held.topic == name and not held.is_paused for held in self.held.values())

    def _skip(self, held: HeldQueue, start: int) -> None:
        """Retention was faster (R26). What was fetched before it is processed all the same."""
        key = held.queue.key
        gap = Gap(QueueName(held.topic, key.group, key.queue_id), held.fetch.position, start)
        self.missed_count += gap.end - gap.start
        held.queue.put((), start)
        held.fetch.seek(start)
        self._regulate(held)
        self._session(key.group).wake()
        if self._on_gap is not None:
            self._on_gap(gap)
        self._look_at_end(held)

    def _restart(self, held: HeldQueue, position: int) -> None:
        """Go on from another offset with a fresh process queue; running listeners end unseen."""
        held.queue.drop()
        self._processing.dropped(held)
        self._session(held.queue.key.group).remove(held.queue.key)
        fresh = ProcessQueue(held.queue.key, position, generation=held.queue.generation)
        fresh.lock_token = held.queue.lock_token
        self._hold(fresh, held.topic)

    def _regulate(self, held: HeldQueue) -> None:
        """Flow control (RocketMQ's): fetch no more while too much of it is not done."""
        queue, limits = held.queue, self._limits(held.topic)
        has_room = (
            not held.is_paused
            and len(queue) < limits.messages
            and queue.bytes_held < limits.size_bytes
            and queue.span < self._settings.span_max
        )
        if has_room != held.fetch.has_room:
            held.fetch.has_room = has_room
            if has_room:
                self._session(queue.key.group).wake()

    def _limits(self, topic: TopicName) -> "_Limits":
        """Of one queue of a topic; thresholds of topics are shared by the queues held."""
        settings = self._settings
        messages, size_bytes = settings.messages_per_queue_max, settings.bytes_per_queue_max
        if settings.messages_per_topic_max < 0 and settings.bytes_per_topic_max < 0:
            return _Limits(messages, size_bytes)
        count = max(1, self._held_counts[topic])
        if settings.messages_per_topic_max > 0:
            messages = min(messages, max(1, settings.messages_per_topic_max // count))
        if settings.bytes_per_topic_max > 0:
            size_bytes = min(size_bytes, max(1, settings.bytes_per_topic_max // count))
        return _Limits(messages, size_bytes)

    # -- offsets ----------------------------------------------------------------------------------

    async def _commit_for_ever(self) -> None:
        while True:
            await pause(self._settings.commit_interval_ms)
            mine = [held for held in self.held.values() if not held.is_releasing]
            try:
                await self._commit(mine)
                await self._offsets.look_for_resets([held.queue for held in mine], self._obey_reset)
            except PacelineError as error:
                log.warning("commit_failed", extra={"group": self._group, "error": error.message})

    async def _commit(self, helds: list[HeldQueue]) -> None:
        """Commit what moved."""
        moved = [held.queue for held in helds if held.queue.commit_offset > held.queue.committed]
        await self._offsets.commit(moved, self._obey_reset)

    def _obey_reset(self, queue: ProcessQueue, offset: int, generation: int) -> None:
        """Somebody reset the group on this queue (R33): go on from where they said."""
        held = self.held.get(queue.key)
        if held is None or held.queue is not queue or queue.is_dropped:
            return
        log.info("offset_reset", extra={"queue": str(queue.key), "offset": offset})
        if self._membership.start_over(queue.key):
            return  # what is committed as it is released names the generation of before: no effect
        queue.generation = generation
        self._restart(held, offset)
