"""The push consumer: a member of a group whose listener is called with every message.

Clustering: the group's members share the queues; offsets are committed up to what was processed
without a gap, so a message is delivered at least once, and after a clean close or hand-over of a
queue exactly once. Listeners run concurrently (unordered); a failed message is tried again with
back-off and, after the last attempt, reported and counted as done. What retention deletes before it
was consumed is passed over, and reported.
"""

from collections.abc import Iterable, Sequence
from types import TracebackType

from paceline.allocation import Allocation, allocate_averagely
from paceline.consumer.concurrent import ConcurrentProcessing, Run
from paceline.consumer.gaps import OnGap
from paceline.consumer.group_offsets import GroupOffsets, Start
from paceline.consumer.links import GroupLinks
from paceline.consumer.push_settings import BatchListener as BatchListener
from paceline.consumer.push_settings import Listener as Listener
from paceline.consumer.push_settings import OnGivenUp as OnGivenUp
from paceline.consumer.push_settings import PushSettings as PushSettings
from paceline.consumer.queue_owner import QueueOwner
from paceline.errors import ConfigError
from paceline.message import ReceivedMessage
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
        listener: Listener | None = None,
        batch_listener: BatchListener | None = None,
        settings: PushSettings | None = None,
        client_id: str | None = None,
        allocation: Allocation = allocate_averagely,
        on_given_up: OnGivenUp | None = None,
        on_gap: OnGap | None = None,
    ) -> None:
        """Exactly one async function: `listener` for one message, `batch_listener` for several of
        one queue. `client_id` must be unique in the group (default: random). BadNameError for
        names, ConfigError for settings."""
        self._settings = settings or PushSettings()
        self._settings.validate()
        self.group = check_name(group, "group")
        self._topics = [check_topic_name(topic) for topic in topics]
        run, batch_max = _runner(listener, batch_listener, self._settings)
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        self._cluster = bootstrap if isinstance(bootstrap, Cluster) else Cluster(bootstrap)
        self.client_id = client_id or f"client-{self._cluster.random.token(8).hex()}"
        self._processing = ConcurrentProcessing(
            run, self._settings, on_given_up, batch_max=batch_max
        )
        self._links = GroupLinks(self._cluster)
        self._owner = QueueOwner(
            self._cluster,
            self._links,
            GroupOffsets(
                self._cluster,
                self._links,
                group=self.group,
                start=Start(self._settings.start, self._settings.consume_timestamp),
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

    def pause(self, queues: Iterable[QueueKey] | None = None) -> None:
        """Hand out and fetch nothing more of `queues` (None = all), until `resume`.

        Listener calls that run go on. The queues stay ours; their offsets are still committed.
        """
        self._owner.pause(None if queues is None else set(queues))

    def resume(self, queues: Iterable[QueueKey] | None = None) -> None:
        """Undo `pause` for these queues; for None every pause."""
        self._owner.resume(None if queues is None else set(queues))

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


def _runner(
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
        await one(messages[0])

    return run, 1
