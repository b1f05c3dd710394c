"""Where a member begins on a queue of which nothing is remembered."""

from collections.abc import Mapping
from typing import NamedTuple

from paceline.consumer.group_settings import settings_of
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.queues import QueueKey
from paceline.types import GroupName, TopicId
from paceline.wire.calls import offsets as wire
from paceline.wire.calls.request import AnswerT, Reply, Request
from paceline.wire.names import RETRY_PREFIX

TIMESTAMP_AGO_MS = 30 * 60 * 1000
"""RocketMQ's default of consumeTimestamp."""


class StartPosition(NamedTuple):
    """What the application says of it."""

    where: str
    """One of `STARTS`."""
    unix_ms: int | None = None
    """With "timestamp": the store time to begin at; None = `TIMESTAMP_AGO_MS` ago."""


class StartPositions:
    """Owned by the `OffsetStore` of one member."""

    def __init__(
        self,
        cluster: Cluster,
        links: GroupLinks,
        *,
        group: str,
        start: StartPosition,
        timeout_ms: int,
    ) -> None:
        self._cluster = cluster
        self._links = links
        self._group = group
        self._start = start
        self._timeout_ms = timeout_ms
        self._older: dict[TopicId, Mapping[GroupName, int]] | None = None
        """How many queues the topics had when this member subscribed; None before that."""
        self._topic_id_max = 0
        """Topics of higher ids were made later."""
        self._continued: set[QueueKey] = set()

    def subscribed(self) -> None:
        """Queues that come from now on are younger than the subscription."""
        view = self._cluster.view
        topics = {} if view is None else view.topics
        self._older = {topic.topic_id: topic.queues for topic in topics.values()}
        self._topic_id_max = 0 if view is None else view.topic_id_max

    def goes_on_in(self, key: QueueKey) -> None:
        """The queue continues one that is done: it is read from its start."""
        self._continued.add(key)

    @property
    def is_from_min(self) -> bool:
        """Whether the group reads a queue that is younger than its subscription from the start."""
        return settings_of(self._cluster.view, self._group).consume_from_min_enable

    def on(self, key: QueueKey, *, came_later: bool = False) -> StartPosition:
        """Where to begin on a queue; on those of retry topics always at their start.

        Where the queue is younger than the subscription (or `came_later` says so) "last" means all
        of its messages: the end would skip those that were stored before the queue was opened. The
        group's `consume_from_min_enable` = false wants the end all the same.
        """
        topic = self._cluster.topic_name(key.topic_id) or ""
        is_first = key in self._continued or topic.startswith(RETRY_PREFIX)
        if self._start.where == "last" and self.is_from_min:
            is_first = is_first or came_later or self._is_younger(key)
        return StartPosition("first") if is_first else self._start

    def _is_younger(self, key: QueueKey) -> bool:
        if self._older is None:
            return False
        queues = self._older.get(key.topic_id)
        if queues is None:
            name = self._cluster.topic_name(key.topic_id)
            topic = None if name is None else self._cluster.topic(name)
            is_there = key.topic_id <= self._topic_id_max  # it was only not used by then
            queues = topic.queues if is_there and topic is not None else {}
            self._older[key.topic_id] = queues
        return key.queue_id >= queues.get(key.group, 0)

    async def offset_of(self, key: QueueKey, start: StartPosition) -> int:
        """The offset that a start means on a queue. Raises PacelineError."""
        if start.where == "timestamp":
            unix_ms = start.unix_ms
            if unix_ms is None:
                unix_ms = self._cluster.clock.unix_ms() - TIMESTAMP_AGO_MS
            return await self.offset_at(key, max(0, unix_ms))
        ends, _ = await self._call(key, wire.Ends(queues=[named(key)]))
        [row] = ends.queues
        return row.start if start.where == "first" else row.end

    async def offset_at(self, key: QueueKey, unix_ms: int) -> int:
        """The first offset of a queue that was stored at that time or later."""
        times, _ = await self._call(key, wire.Times(unix_ms=unix_ms, queues=[named(key)]))
        [row] = times.queues
        return row.offset

    async def _call(self, key: QueueKey, request: Request[AnswerT]) -> Reply[AnswerT]:
        return await self._links.call(
            key.group, request, timeout_ms=self._timeout_ms, attempt_ms=5_000
        )


def named(key: QueueKey) -> wire.QueueOf:
    """How calls name a queue."""
    return wire.QueueOf(topic_id=key.topic_id, queue=key.queue_id)
