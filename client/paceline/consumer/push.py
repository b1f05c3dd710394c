"""The push consumer: a member of a group whose listener is called with every message.

Clustering: the group's members share the queues; offsets are committed up to what was processed
without a gap, so a message is delivered at least once, and after a clean close or hand-over of a
queue exactly once. Listeners run concurrently (unordered); a failed message is sent back, so that
the group gets it again later, and is a dead letter after its last attempt (`failure.py`). What
retention deletes before it was consumed is passed over, and reported.
"""

import os
from collections.abc import Iterable, Sequence

from paceline.consumer.fetch.gaps import OnGap
from paceline.consumer.group.allocation import Allocation, allocate_averagely
from paceline.consumer.group.joining import broadcasting, clustering
from paceline.consumer.group.membership import MemberInfo
from paceline.consumer.group_settings import consume_timeout_s
from paceline.consumer.hooks import ConsumeHooks, Run
from paceline.consumer.not_started import OnError as OnError
from paceline.consumer.offsets.group_offsets import GroupOffsets, OffsetStore
from paceline.consumer.offsets.local_offsets import LocalOffsets
from paceline.consumer.offsets.start_positions import StartPosition
from paceline.consumer.opened import ReadingConsumer
from paceline.consumer.process.assignment import Assignment, Join
from paceline.consumer.process.concurrent import ConcurrentProcessing
from paceline.consumer.process.failure import FailurePolicy, SendBack, SendBacker, TryHere
from paceline.consumer.settings.push import BatchListener as BatchListener
from paceline.consumer.settings.push import Listener as Listener
from paceline.consumer.settings.push import OnGivenUp as OnGivenUp
from paceline.consumer.settings.push import PushSettings as PushSettings
from paceline.errors import ConfigError, QueueNotFoundError
from paceline.filters import ALL, Subscription, subscriptions
from paceline.message import ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.net.connect import Bootstrap
from paceline.net.group_links import GroupLinks
from paceline.platform.disk_real import RealDisk
from paceline.platform.ports import Disk
from paceline.queues import QueueKey
from paceline.wire.names import (
    check_client_id,
    check_name,
    check_topic_name,
    group_of_retries,
    retry_topic,
)


class PushConsumer(ReadingConsumer):
    """A member of a consumer group on one event loop; `async with`, or `start` and `close`."""

    _own_disk: RealDisk | None = None
    _is_closing = False

    def __init__(
        self,
        bootstrap: Bootstrap | Cluster,
        *,
        group: str,
        topics: Sequence[str | Subscription],
        listener: Listener | None = None,
        batch_listener: BatchListener | None = None,
        settings: PushSettings | None = None,
        client_id: str | None = None,
        allocation: Allocation = allocate_averagely,
        on_given_up: OnGivenUp | None = None,
        on_gap: OnGap | None = None,
        on_error: OnError | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Exactly one async function: `listener` for one message, `batch_listener` for several of
        one queue. A topic may come with a filter (`Subscription`). `client_id` must be unique in
        the group (default: random); for broadcasting "default", it names the file of offsets (on
        `disk`: the machine's own). `on_error` is told of queues that the brokers refuse to let us
        read, and with None of rights that we lack. BadNameError; ConfigError for settings."""
        self._settings = settings or PushSettings()
        self._settings.validate()
        self.group = check_name(group, "group")
        subscribed = subscriptions(topics)
        self._topics = [check_topic_name(topic) for topic, _ in subscribed]
        if self._settings.sends_back:
            self._topics.append(retry_topic(self.group))
        self._filters = {topic: wanted for topic, wanted in subscribed if wanted is not ALL}
        run, batch_max = runner(listener, batch_listener, self._settings)
        self.hooks = ConsumeHooks(self._settings.consume_hooks, consumer_group=self.group)
        super().__init__(bootstrap)
        self._cluster.use(topics=self._topics, consumer_groups=[self.group])
        self.client_id = check_client_id(client_id or self._some_client_id())
        self._me = self._describe()
        self._links = self._make_links(self._me.introduction, on_error)
        self._processing = ConcurrentProcessing(
            self.hooks.around(run),
            self._settings,
            on_given_up,
            batch_max=batch_max,
            cluster=self._cluster,
            consume_timeout_s=self._consume_timeout_s,
            policy=_policy(self._settings),
            send_backer=_send_backer(self._links, self.group, self._settings),
            settled=lambda held: self._owner.settled(held),
        )
        self._offsets = self._offset_store(disk)
        self._owner = Assignment(
            self._cluster,
            self._links,
            self._offsets,
            group=self.group,
            settings=self._settings,
            join=self._join_with(allocation),
            processing=self._processing,
            on_gap=on_gap,
            on_error=on_error,
            filters=self._filters,
        )

    @property
    def _is_broadcasting(self) -> bool:
        return self._settings.message_model == "broadcasting"

    @property
    def missed_count(self) -> int:
        """Messages that were deleted before this member could fetch them."""
        return self._owner.missed_count

    @property
    def queues(self) -> list[QueueKey]:
        """The queues of its topics that this member consumes at the moment.

        Those of the group's retry topic, which it reads as well, are the system's and not named.
        """
        held = self._owner.held
        return [key for key in self._owner.queues if group_of_retries(held[key].topic) is None]

    async def start(self, *, timeout_ms: int = 10_000) -> None:
        """Join the group. PeerError when no bootstrap address answers; for broadcasting also what
        is wrong with the file of offsets: ConfigError, CorruptLogError, StorageError."""
        await super().start(timeout_ms=timeout_ms)
        await self._offsets.start()
        self._processing.start()
        self._owner.start()

    def pause(self, queues: Iterable[QueueKey] | None = None) -> None:
        """Hand out and fetch nothing more of `queues` (None = all, retries too), until `resume`.

        Listener calls that run go on. The queues stay ours; their offsets are still committed.
        """
        self._owner.pause(queues)

    def resume(self, queues: Iterable[QueueKey] | None = None) -> None:
        """Undo `pause` for these queues; for None every pause."""
        self._owner.resume(queues)

    async def seek(self, queue: QueueKey, position: int | str) -> None:
        """Go on from an offset (moved into the queue's range), "first" or "last" in one of our
        `queues`. It is a reset of the group there (R33). ConfigError for broadcasting,
        QueueNotFoundError when the queue is not ours."""
        if self._is_broadcasting:
            raise ConfigError("a broadcasting member has no offsets at the brokers to seek in")
        held = self._owner.held.get(queue)
        if held is None or held.is_releasing:
            raise QueueNotFoundError(
                f"queue {queue.group}/{queue.queue_id} is not ours at the moment"
            )
        target = {"to": position} if isinstance(position, str) else {"offset": position}
        await self._owner.seek(held, target)

    async def close(self) -> None:
        """Stop taking messages, let running listeners end, commit, leave the group."""
        if self._is_closing:
            return
        self._is_closing = True
        try:
            await self._owner.release_all()
            await self._processing.close()
            await self._owner.leave()
        finally:
            await self._processing.close()
            try:
                await self._owner.close()
            finally:
                if self._own_disk is not None:
                    self._own_disk.close()
            await self._leave_cluster()

    # -- inside -----------------------------------------------------------------------------------

    def _some_client_id(self) -> str:
        if self._is_broadcasting:
            return "default"
        return f"client-{self._cluster.random.token(8).hex()}"

    def _offset_store(self, disk: Disk | None) -> OffsetStore:
        settings = self._settings
        start = StartPosition(settings.start, settings.consume_timestamp)
        if not self._is_broadcasting:
            return GroupOffsets(
                self._cluster,
                self._links,
                group=self.group,
                start=start,
                timeout_ms=settings.close_timeout_ms,
            )
        if disk is None:
            disk = self._own_disk = RealDisk()
        return LocalOffsets(
            self._cluster,
            self._links,
            disk,
            folder=os.path.expanduser(settings.offsets_folder),
            client_id=self.client_id,
            group=self.group,
            start=start,
            timeout_ms=settings.close_timeout_ms,
            persist_interval_ms=settings.persist_interval_ms,
        )

    def _consume_timeout_s(self) -> float:
        return consume_timeout_s(self._cluster, self.group, self._settings.consume_timeout_ms)

    def _describe(self) -> MemberInfo:
        return MemberInfo(
            group=self.group,
            client_id=self.client_id,
            topics=self._topics,
            mode="concurrent",
            filters=self._filters,
            message_model=self._settings.message_model,
        )

    def _join_with(self, allocation: Allocation) -> Join:
        if self._is_broadcasting:
            return broadcasting(self._cluster, self._links, self._me)
        return clustering(self._cluster, self._links, self._me, allocation)


def runner(
    listener: Listener | None, batch_listener: BatchListener | None, settings: PushSettings
) -> tuple[Run, int]:
    """How the application's listener is called, and with how many messages."""
    if (listener is None) == (batch_listener is None):
        raise ConfigError("give either listener or batch_listener")
    if batch_listener is not None:
        return batch_listener, settings.consume_message_batch_max_size
    assert listener is not None
    one = listener

    async def run(messages: Sequence[ReceivedMessage]) -> None:
        answer = await one(messages[0])
        if answer is not None:
            raise answer

    return run, 1


def _policy(settings: PushSettings) -> FailurePolicy:
    if settings.sends_back:
        return SendBack()
    return TryHere(
        attempts_max=settings.attempts_max,
        first_ms=settings.retry_first_ms,
        max_ms=settings.retry_max_ms,
    )


def _send_backer(links: GroupLinks, group: str, settings: PushSettings) -> SendBacker:
    times_max = settings.max_reconsume_times
    return SendBacker(links, group=group, max_reconsume_times=None if times_max < 0 else times_max)
