"""The push consumer: a member of a group whose listener is called with every message.

Clustering: the group's members share the queues; offsets are committed up to what was processed
without a gap, so a message is delivered at least once, and after a clean close or hand-over of a
queue exactly once. Listeners run concurrently (unordered); a failed message is tried again with
back-off and, after the last attempt, reported and counted as done. What retention deletes before it
was consumed is passed over, and reported.
"""

from collections.abc import Sequence
from types import TracebackType

from paceline.allocation import Allocation, allocate_averagely
from paceline.consumer.concurrent import ConcurrentProcessing
from paceline.consumer.gaps import OnGap
from paceline.consumer.group_offsets import GroupOffsets
from paceline.consumer.links import GroupLinks
from paceline.consumer.push_settings import Listener as Listener
from paceline.consumer.push_settings import OnGivenUp as OnGivenUp
from paceline.consumer.push_settings import PushSettings as PushSettings
from paceline.consumer.queue_owner import QueueOwner
from paceline.net.cluster import Cluster
from paceline.routing import QueueKey, acting_groups
from paceline.types import GroupName
from paceline.wire.names import check_name, check_topic_name


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
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        self._cluster = bootstrap if isinstance(bootstrap, Cluster) else Cluster(bootstrap)
        self.client_id = client_id or f"client-{self._cluster.random.token(8).hex()}"
        self._processing = ConcurrentProcessing(listener, self._settings, on_given_up)
        links = GroupLinks(self._cluster)
        self._owner = QueueOwner(
            self._cluster,
            links,
            GroupOffsets(
                links,
                group=self.group,
                start=self._settings.start,
                timeout_ms=self._settings.close_timeout_ms,
            ),
            group=self.group,
            client_id=self.client_id,
            topics=self._topics,
            settings=self._settings,
            allocation=allocation,
            processing=self._processing,
            on_gap=on_gap,
        )
        self._processing.settled = self._owner.settled
        self._is_closing = False

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
    def missed_count(self) -> int:
        """Messages that were deleted before this member could fetch them."""
        return self._owner.missed_count

    @property
    def queues(self) -> list[QueueKey]:
        """The queues this member consumes at the moment."""
        return self._owner.queues

    async def start(self, *, timeout_ms: int = 10_000) -> None:
        """Join the group. PeerError when no bootstrap address answers."""
        self._cluster.start()
        await self._cluster.watch.wait_for(lambda view: True, timeout_ms=timeout_ms)
        self._processing.start()
        self._owner.start()

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
            await self._owner.close()
            if self._owns_cluster:
                await self._cluster.close()
