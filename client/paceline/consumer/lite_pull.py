"""The lite pull consumer: a member of a group that asks for its messages (RocketMQ's LitePull).

As with the push consumer the group's queues are shared, its offsets are committed, and a queue
changes hands without a gap; but nothing is called: `poll` returns messages. What a poll returned is
counted as processed when the next poll begins (or at `commit`, or a clean close), so a crash
repeats the last poll and skips nothing. Instead of sharing, `assign` takes exactly some queues.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from paceline.consumer.fetch.gaps import OnGap
from paceline.consumer.group.allocation import Allocation, allocate_averagely
from paceline.consumer.group.joining import clustering
from paceline.consumer.group.manual_assignment import AssignedMember
from paceline.consumer.group.membership import MemberInfo
from paceline.consumer.hooks import ConsumeHooks, ConsumeMessageHook
from paceline.consumer.offsets.group_offsets import GroupOffsets
from paceline.consumer.offsets.start_positions import StartPosition
from paceline.consumer.process.assignment import Assignment, GroupMember, HeldQueue
from paceline.consumer.settings.push import PushSettings
from paceline.errors import ConfigError, PacelineError, QueueNotFoundError
from paceline.filters import ALL, Subscription, subscriptions
from paceline.message import ReceivedMessage
from paceline.net.client_base import Client
from paceline.net.cluster import Cluster
from paceline.net.connect import Bootstrap
from paceline.net.group_links import GroupLinks
from paceline.queues import QueueKey, QueueName, has_queue
from paceline.types import QueueOffset
from paceline.wire.calls.offsets import QueueOf, Times
from paceline.wire.names import check_name, check_topic_name


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullSettings:
    """How a lite pull consumer works; names and defaults follow RocketMQ where it has them."""

    auto_commit: bool = True
    """False: only `commit` counts messages as processed, and commits them."""
    auto_commit_interval_ms: int = 5_000
    """At least 1000."""
    start: str = "last"
    """As `PushSettings.start` (consumeFromWhere)."""
    consume_timestamp: int | None = None
    messages_per_queue_max: int = 1_000
    """Fetched ahead and not processed, per queue (pullThresholdForQueue)."""
    bytes_per_queue_max: int = 100 * 1024 * 1024
    span_max: int = 2_000
    """(consumeMaxSpan)"""
    close_timeout_ms: int = 10_000
    consume_hooks: tuple[ConsumeMessageHook, ...] = ()
    """Called around the handing out of messages."""

    def as_push(self) -> PushSettings:
        """What the queues are held by. ConfigError with the sentence for the user."""
        if self.auto_commit_interval_ms < 1_000:
            given = self.auto_commit_interval_ms
            raise ConfigError(f"auto_commit_interval_ms must be at least 1000, not {given}")
        settings = PushSettings(
            start=self.start,
            consume_timestamp=self.consume_timestamp,
            messages_per_queue_max=self.messages_per_queue_max,
            bytes_per_queue_max=self.bytes_per_queue_max,
            span_max=self.span_max,
            close_timeout_ms=self.close_timeout_ms,
            commit_interval_ms=self.auto_commit_interval_ms,
        )
        settings.validate()
        return settings


class LitePullConsumer(Client):
    """A member of a group on one event loop; `async with`, or `start` and `close`."""

    def __init__(
        self,
        bootstrap: Bootstrap | Cluster,
        *,
        group: str,
        topics: Sequence[str | Subscription] = (),
        settings: LitePullSettings | None = None,
        client_id: str | None = None,
        allocation: Allocation = allocate_averagely,
        on_gap: OnGap | None = None,
    ) -> None:
        """With `topics` it shares their queues with the other members; without, `assign` says which
        queues it reads. `client_id`: unique in the group, random by default. BadNameError for
        names, ConfigError for settings."""
        self._settings = settings or LitePullSettings()
        push = self._settings.as_push()
        self.group = check_name(group, "group")
        self.hooks = ConsumeHooks(self._settings.consume_hooks, consumer_group=self.group)
        subscribed = subscriptions(topics)
        self._topics = [check_topic_name(topic) for topic, _ in subscribed]
        self._filters = {topic: wanted for topic, wanted in subscribed if wanted is not ALL}
        super().__init__(bootstrap)
        self._cluster.use(topics=self._topics, consumer_groups=[self.group])
        self.client_id = client_id or f"client-{self._cluster.random.token(8).hex()}"
        me = MemberInfo(
            group=self.group,
            client_id=self.client_id,
            topics=self._topics,
            mode="pull",
            filters=self._filters,
        )
        self._links = GroupLinks(self._cluster, me.introduction)
        self._share = clustering(self._cluster, self._links, me, allocation)
        self._offsets = GroupOffsets(
            self._cluster,
            self._links,
            group=self.group,
            start=StartPosition(push.start, push.consume_timestamp),
            timeout_ms=push.close_timeout_ms,
        )
        self._assigned: AssignedMember | None = None
        self._ready: deque[HeldQueue] = deque()
        self._polled: list[tuple[HeldQueue, ReceivedMessage]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._errors: deque[PacelineError] = deque()
        """Why queues could not be started, for the next polls."""
        self._is_closing = False
        self._owner = Assignment(
            self._cluster,
            self._links,
            self._offsets,
            group=self.group,
            settings=push,
            join=self._join,
            processing=self,
            on_gap=on_gap,
            on_error=self._not_started,
            on_refused=self._wake,
            filters=self._filters,
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(is_processed=error is None)

    async def start(self, *, timeout_ms: int = 10_000) -> None:
        """Join the group. PeerError when no bootstrap address answers."""
        await super().start(timeout_ms=timeout_ms)
        await self._offsets.start()
        self._owner.start()

    async def close(self, *, is_processed: bool = True) -> None:
        """Commit and leave the group. `is_processed` False: the last poll counts for nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        if is_processed and self._settings.auto_commit:
            self._finish()
        else:
            for held, message in self._polled:
                held.queue.fail(message)
            self._polled.clear()
        try:
            await self._owner.release_all()
            await self._owner.leave()
        finally:
            await self._owner.close()
            await self._leave_cluster()

    # -- queues and positions ---------------------------------------------------------------------

    @property
    def queues(self) -> list[QueueName]:
        """The queues that are ours at the moment."""
        return [self._name(self._owner.held[key]) for key in self._owner.queues]

    def assign(self, queues: Iterable[QueueName]) -> None:
        """Read exactly these queues, from where the group stands. ConfigError with `topics`."""
        if self._assigned is None:
            raise ConfigError("it subscribes to topics: either share queues or assign them")
        self._assigned.assign(list(queues))

    def position(self, queue: QueueName) -> QueueOffset:
        """The next offset to be committed of a queue that is ours."""
        return QueueOffset(self._held(queue).queue.commit_offset)

    async def seek(self, queue: QueueName, position: int | str) -> None:
        """Go on from an offset (moved into the queue's range), "first" or "last" in a queue that is
        ours. It is a reset of the group there (R33), so it also goes back."""
        target = {"to": position} if isinstance(position, str) else {"offset": position}
        await self._owner.seek(self._held(queue), target)

    async def seek_to_time(self, queue: QueueName, unix_ms: int) -> None:
        """Go on from the first message stored at or after a moment."""
        await self._owner.seek(self._held(queue), {"unix_ms": unix_ms})

    async def offset_for_timestamp(self, queue: QueueName, unix_ms: int) -> QueueOffset:
        """The offset of the first message stored at or after a moment, else the queue's end."""
        row = QueueOf(topic=queue.topic, queue=queue.queue_id)
        request = Times(unix_ms=unix_ms, queues=[row])
        answer, _ = await self._links.call(
            queue.group, request, timeout_ms=self._settings.close_timeout_ms
        )
        [found] = answer.queues
        return QueueOffset(found.offset)

    def pause(self, queues: Collection[QueueName] | None = None) -> None:
        """Return and fetch nothing more of these queues (None = all) until `resume`."""
        self._owner.pause(None if queues is None else [self._key(name) for name in queues])

    def resume(self, queues: Collection[QueueName] | None = None) -> None:
        """Undo `pause`; for None every pause."""
        self._owner.resume(None if queues is None else [self._key(name) for name in queues])

    # -- messages ---------------------------------------------------------------------------------

    async def poll(
        self,
        *,
        max_messages: int = 500,
        timeout_ms: int = 5_000,
        messages_max: int | None = None,
    ) -> list[ReceivedMessage]:
        """At least one message, or none after `timeout_ms`; in order within each queue.

        `messages_max` is the former name of `max_messages`.

        With `auto_commit` the messages of the poll before are counted as processed now.
        NoPermissionError while a topic gives no messages: later polls go on when it does again.
        What the brokers refuse for good when a queue is started is raised once for each.
        NotAuthorizedError and UnauthenticatedError if nothing came and the cluster refuses to let
        it read: later polls go on when the right is given.
        """
        if self._settings.auto_commit:
            self._finish()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                self._raise_refusals()
                while not (found := self._take(messages_max or max_messages)):
                    self._waiter = asyncio.get_running_loop().create_future()
                    await self._waiter
                    self._raise_refusals()
        except TimeoutError:
            self._owner.refusals.raise_standing()
            self._links.refusals.raise_heard()
            return []
        self._links.refusals.passed()
        self.hooks.hand_out(found)
        return found

    async def commit(self) -> None:
        """Count what was polled as processed, and commit it; returns when it is kept.

        Raises PacelineError: it is told again with the next commit.
        """
        self._finish()
        await self._owner.commit_now()

    async def commit_sync(self) -> None:
        """The former name of `commit`."""
        await self.commit()

    # -- Processing -------------------------------------------------------------------------------

    def arrived(self, held: HeldQueue) -> None:
        """See `Processing`; not for applications."""
        if held.queue.has_waiting and not held.is_paused and not held.is_ready:
            held.is_ready = True
            self._ready.append(held)
            self._wake()

    def dropped(self, held: HeldQueue) -> None:
        """What was polled of it is still counted when it is finished."""

    # -- inside -----------------------------------------------------------------------------------

    def _raise_refusals(self) -> None:
        if self._errors:
            raise self._errors.popleft()
        self._owner.refusals.raise_fresh()

    def _not_started(self, key: QueueKey | None, error: PacelineError) -> None:
        self._errors.append(error)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self, max_messages: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        while self._ready and len(found) < max_messages:
            held = self._ready.popleft()
            held.is_ready = False
            if not held.queue.has_waiting or held.is_paused:
                continue
            taken = held.queue.take_many(max_messages - len(found))
            self._polled += [(held, message) for message in taken]
            found += taken
            self.arrived(held)
        return found

    def _finish(self) -> None:
        polled, self._polled = self._polled, []
        touched: dict[int, HeldQueue] = {}
        for held, message in polled:
            held.queue.finish(message)
            touched[id(held)] = held
        for held in touched.values():
            self._owner.settled(held)

    def _join(self, on_targets: Any, on_owned: Any, on_lost: Any) -> GroupMember:
        if self._topics:
            return self._share(on_targets, on_owned, on_lost)
        self._assigned = AssignedMember(
            self._cluster, group=self.group, on_targets=on_targets, on_owned=on_owned
        )
        return self._assigned

    def _key(self, name: QueueName) -> QueueKey:
        topic = self._cluster.topic(name.topic)
        if topic is None or not has_queue(topic, name):
            raise QueueNotFoundError(
                f"topic {name.topic} has no queue {name.group}/{name.queue_id}"
            )
        return QueueKey(topic.topic_id, name.group, name.queue_id)

    def _held(self, name: QueueName) -> HeldQueue:
        held = self._owner.holding(self._key(name))
        if held is None or held.is_releasing:
            raise QueueNotFoundError(
                f"queue {name.group}/{name.queue_id} of {name.topic} is not ours at the moment"
            )
        return held

    def _name(self, held: HeldQueue) -> QueueName:
        key = held.queue.key
        return QueueName(held.topic, key.group, key.queue_id)
