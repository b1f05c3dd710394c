"""The ordered consumer: a member of a group that processes each queue in order, under its lock.

A queue lock has a lease and a fencing token. Only who holds the lock is handed messages of the
queue, one call at a time; commits name the token, so what a member does that has lost its lock
without knowing changes nothing (R33, INV-11). A message that fails holds its queue until it
succeeds, or is made a dead letter.
"""

from collections.abc import Iterable, Sequence

from paceline.consumer.fetch.gaps import OnGap
from paceline.consumer.group.allocation import Allocation, allocate_averagely
from paceline.consumer.group.joining import clustering
from paceline.consumer.group.membership import MemberInfo
from paceline.consumer.hooks import ConsumeHooks
from paceline.consumer.locks.queue_locks import QueueLocks
from paceline.consumer.not_started import OnError as OnError
from paceline.consumer.offsets.locked_offsets import LockedOffsets
from paceline.consumer.offsets.start_positions import StartPosition
from paceline.consumer.opened import ReadingConsumer
from paceline.consumer.process.assignment import Assignment
from paceline.consumer.process.failure import SendBacker
from paceline.consumer.process.ordered_processing import OrderedProcessing
from paceline.consumer.push import runner
from paceline.consumer.settings.ordered import OnLate as OnLate
from paceline.consumer.settings.ordered import OrderedSettings as OrderedSettings
from paceline.consumer.settings.ordered import SuspendQueueError as SuspendQueueError
from paceline.consumer.settings.push import BatchListener, Listener, OnGivenUp
from paceline.filters import ALL, Subscription, subscriptions
from paceline.net.cluster import Cluster
from paceline.net.connect import Bootstrap
from paceline.queues import QueueKey
from paceline.wire.names import check_name, check_topic_name

_CALLS_MS = 10_000


class OrderedConsumer(ReadingConsumer):
    """A member of a consumer group on one event loop; `async with`, or `start` and `close`."""

    def __init__(
        self,
        bootstrap: Bootstrap | Cluster,
        *,
        group: str,
        topics: Sequence[str | Subscription],
        listener: Listener | None = None,
        batch_listener: BatchListener | None = None,
        settings: OrderedSettings | None = None,
        client_id: str | None = None,
        allocation: Allocation = allocate_averagely,
        on_given_up: OnGivenUp | None = None,
        on_gap: OnGap | None = None,
        on_error: OnError | None = None,
        on_late: OnLate | None = None,
    ) -> None:
        """Exactly one async function: `listener` for one message, `batch_listener` for several of
        one queue. `client_id` must be unique in the group (default: random). `on_error` is told of
        queues that the brokers refuse to let us read, and with None in place of the queue of rights
        and keys that we lack (it goes on trying all the same). BadNameError for names, ConfigError
        for settings."""
        self._settings = settings or OrderedSettings()
        self._settings.validate()
        self.group = check_name(group, "group")
        subscribed = subscriptions(topics)
        self._topics = [check_topic_name(topic) for topic, _ in subscribed]
        self._filters = {topic: wanted for topic, wanted in subscribed if wanted is not ALL}
        run, batch_max = runner(listener, batch_listener, self._settings.of_owner())
        self.hooks = ConsumeHooks(self._settings.consume_hooks, consumer_group=self.group)
        super().__init__(bootstrap)
        self._cluster.use(topics=self._topics, consumer_groups=[self.group])
        self.client_id = client_id or f"client-{self._cluster.random.token(8).hex()}"
        me = self._describe()
        self._links = self._make_links(me.introduction, on_error)
        self._join = clustering(self._cluster, self._links, me, allocation)
        self._locks = QueueLocks(
            self._links,
            self._cluster.clock,
            self._cluster.random,
            group=self.group,
            client_id=self.client_id,
            lease_ms=self._settings.rebalance_lock_max_live_time_ms,
            renew_ms=self._settings.rebalance_lock_interval_ms,
            on_lost=lambda key: self._owner.lose(key),
            on_regained=lambda keys: self._processing.regained(keys),
        )
        self._processing = OrderedProcessing(
            self.hooks.around(run),
            self._settings,
            self._locks,
            self._cluster.clock,
            batch_max=batch_max,
            send_backer=SendBacker(self._links, group=self.group),
            on_late=on_late,
            on_given_up=on_given_up,
            settled=lambda held: self._owner.settled(held),
        )
        self._owner = self._make_owner(on_gap, on_error)
        self._is_closing = False

    def _describe(self) -> MemberInfo:
        return MemberInfo(
            group=self.group,
            client_id=self.client_id,
            topics=self._topics,
            mode="ordered",
            filters=self._filters,
        )

    def _make_owner(self, on_gap: OnGap | None, on_error: OnError | None) -> Assignment:
        self._offsets = LockedOffsets(
            self._locks,
            self._cluster,
            self._links,
            group=self.group,
            start=StartPosition(self._settings.start, self._settings.consume_timestamp),
            timeout_ms=_CALLS_MS,
        )
        return Assignment(
            self._cluster,
            self._links,
            self._offsets,
            group=self.group,
            settings=self._settings.of_owner(),
            join=self._join,
            processing=self._processing,
            on_gap=on_gap,
            on_error=on_error,
            filters=self._filters,
        )

    @property
    def missed_count(self) -> int:
        """Messages that were deleted before this member could fetch them."""
        return self._owner.missed_count

    @property
    def late_count(self) -> int:
        """Messages whose listener call ended after the lease of their queue's lock."""
        return self._processing.late_count

    @property
    def queues(self) -> list[QueueKey]:
        """The queues this member has the locks of at the moment."""
        return self._owner.queues

    async def start(self, *, timeout_ms: int = 10_000) -> None:
        """Join the group. PeerError when no bootstrap address answers."""
        await super().start(timeout_ms=timeout_ms)
        await self._offsets.start()
        self._processing.start()
        self._owner.start()

    def pause(self, queues: Iterable[QueueKey] | None = None) -> None:
        """Hand out and fetch nothing more of `queues` (None = all), until `resume`.

        Listener calls that run go on. The locks stay ours; offsets are still committed.
        """
        self._owner.pause(queues)

    def resume(self, queues: Iterable[QueueKey] | None = None) -> None:
        """Undo `pause` for these queues; for None every pause."""
        self._owner.resume(queues)

    async def close(self) -> None:
        """Stop taking messages, let running listeners end, commit, unlock, leave the group."""
        if self._is_closing:
            return
        self._is_closing = True
        try:
            await self._owner.release_all()
            await self._processing.close()
            await self._locks.close()
            await self._owner.leave()
        finally:
            await self._processing.close()
            await self._locks.close()
            await self._owner.close()
            await self._leave_cluster()
