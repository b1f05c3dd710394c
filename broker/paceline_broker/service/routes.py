"""What this broker knows of the cluster: the newest view, with the lookups of the hot path.

Owned by the service; the role calls `apply` for each view it takes (versions only rise, R38).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from paceline.errors import (
    BadRequestError,
    ForbiddenError,
    GroupNotFoundError,
    MessageTypeError,
    NoPermissionError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from paceline.records.header import Kind
from paceline.sorted_map import shared
from paceline.types import ConsumerGroupName, GroupName, TopicId, TopicName
from paceline.wire.calls.offsets import QueueOf
from paceline.wire.cluster import ClusterView, TopicView
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView
from paceline.wire.names import check_readable_topic_name, dlq_topic, retry_topic
from paceline.wire.static_topics import Place, places
from paceline.wire.topics import DELAY, FIFO, MIXED, NORMAL, PRIORITY, TRANSACTION
from paceline_broker.projections.consume_queues import queue_key

_USUAL = ConsumerGroupSettings()
_NORMAL, _DELAY, _HALF = 1 << Kind.NORMAL, 1 << Kind.DELAY, 1 << Kind.HALF
_TAKES = {
    NORMAL: _NORMAL,
    FIFO: _NORMAL,
    DELAY: _DELAY,
    TRANSACTION: _HALF,
    PRIORITY: _NORMAL | _DELAY,
    MIXED: _NORMAL | _DELAY | _HALF,
}
"""Message type of a topic -> kinds of batches that clients may send to it, as bits."""
_TYPES = {int(Kind.NORMAL): NORMAL, int(Kind.DELAY): DELAY, int(Kind.HALF): TRANSACTION}
"""What users call messages of a kind."""


class Sendable(NamedTuple):
    """What clients may send to a topic here; one lookup of the hot path."""

    writes: int
    """Queues to send to; 0 without write permission, and of a system topic."""
    kinds: int
    """Bits by kind."""
    reads: int
    """All queues here."""


class Routes:
    """The cluster view, indexed for one broker group; a newer view changes what it changes."""

    def __init__(self, group: GroupName) -> None:
        self.group = group
        self.view: ClusterView | None = None
        self.queue_counts: dict[int, int] = {}
        """Topic id -> queues of this broker group: those that are read, written or not."""
        self.sendable: dict[int, Sendable] = {}
        """By topic id; the hot path reads it directly."""
        self.unreadable: set[int] = set()
        """Topics without read permission."""
        self.with_priorities: set[int] = set()
        """Topics of type PRIORITY."""
        self.places: dict[int, Place] = {}
        """Key of a queue here -> the segment that it is, of static topics."""
        self.closed: frozenset[int] = frozenset()
        """Keys of queues here whose logical queue has gone on in another segment."""
        self.static_topics: tuple[TopicView, ...] = ()
        self._static: dict[int, TopicView] = {}
        self.topics_by_id: dict[int, TopicView] = {}
        self.consumer_groups: Mapping[ConsumerGroupName, ConsumerGroupView] = {}
        self.topic_id_max = 0
        """Highest of all views so far; ids are given in rising order, so a higher one is newer."""
        self._listeners: list[Callable[[], None]] = []
        self._waiters: set[asyncio.Future[None]] = set()
        self.is_stopping = False
        """Nobody waits for a newer view any more."""

    @property
    def version(self) -> int:
        return 0 if self.view is None else self.view.version

    def apply(self, view: ClusterView) -> None:
        """Take a newer view (an older one is ignored) and wake whoever waits for one."""
        if self.view is not None and view.version <= self.view.version:
            return
        before = {} if self.view is None else self.view.topics
        self.view = view
        self.consumer_groups = view.consumer_groups
        changes = shared(view.topics).changes_since(before)
        gone = [before[name] for name in changes if name in before]
        for topic in gone:
            self._drop(topic.topic_id)
        fresh = [topic for topic in changes.values() if topic is not None]
        for topic in fresh:
            self._take(topic)
        if any(topic.is_static for topic in (*gone, *fresh)):
            self._place_static()
        self.topic_id_max = max(
            self.topic_id_max,
            view.topic_id_max,
            max((topic.topic_id for topic in fresh), default=0),
        )
        self._wake()
        for listener in self._listeners:
            listener()

    def _drop(self, topic_id: TopicId) -> None:
        for table in (self.topics_by_id, self.queue_counts, self.sendable, self._static):
            table.pop(topic_id, None)
        self.unreadable.discard(topic_id)
        self.with_priorities.discard(topic_id)

    def _take(self, topic: TopicView) -> None:
        topic_id = topic.topic_id
        self.topics_by_id[topic_id] = topic
        self.queue_counts[topic_id] = topic.queues.get(self.group, 0)
        self.sendable[topic_id] = _sendable(topic, self.group)
        if not topic.can_read:
            self.unreadable.add(topic_id)
        if topic.message_type == PRIORITY:
            self.with_priorities.add(topic_id)
        if topic.is_static:
            self._static[topic_id] = topic

    def _place_static(self) -> None:
        self.static_topics = tuple(self._static.values())
        self.places = {
            queue_key(topic.topic_id, queue): place
            for topic in self.static_topics
            for (group, queue), place in places(topic.logical_queues).items()
            if group == self.group
        }
        self.closed = frozenset(
            key for key, place in self.places.items() if not place.segment.is_open
        )

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after each newer view, for the life of this object."""
        self._listeners.append(listener)

    async def wait_newer(self, version: int, *, timeout_ms: int) -> None:
        """Return once the view is newer than `version`, or after `timeout_ms`."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while self.version <= version and not self.is_stopping:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return
            finally:
                self._waiters.discard(waiter)

    def stop_waiting(self) -> None:
        """Whoever waits for a newer view gets the present one, now and from now on."""
        self.is_stopping = True
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def find_topic(self, name: str) -> TopicView | None:
        """The topic, if the view has one of that name."""
        return None if self.view is None else self.view.topics.get(TopicName(name))

    def topic_named(self, name: str) -> TopicView:
        """The topic; TopicNotFoundError if the view has none of that name."""
        topic = self.find_topic(name)
        if topic is None:
            raise TopicNotFoundError(f"no topic {name!r}", topic=name, version=self.version)
        return topic

    def group_named(self, name: str) -> ConsumerGroupView:
        """The consumer group; GroupNotFoundError if the view has none of that name."""
        group = self.consumer_groups.get(ConsumerGroupName(name))
        if group is None:
            raise GroupNotFoundError(
                f"no consumer group {name!r}", group=name, version=self.version
            )
        return group

    def check_queue(self, topic_id: int, queue_id: int) -> None:
        """Raise TopicNotFoundError or QueueNotFoundError unless this group has the queue."""
        count = self.queue_counts.get(topic_id)
        if count is None:
            raise TopicNotFoundError(f"no topic with id {topic_id}", version=self.version)
        if queue_id >= count:
            name = self.topic_name(topic_id) or topic_id
            raise QueueNotFoundError(
                f"topic {name} has no queue {self.group}/{queue_id}: broker group {self.group} has"
                f" {count} of it",
                queues=count,
            )

    def key_of(self, row: QueueOf) -> int:
        """The key of the queue that a row of a call names: any that may be read, retries and dead
        letters too. Raises TopicNotFoundError, QueueNotFoundError."""
        topic_id = row.topic_id
        if row.topic is not None:
            topic_id = self.topic_named(check_readable_topic_name(row.topic)).topic_id
        elif topic_id is None:
            raise BadRequestError("topic_id is missing", field="topic_id")
        self.check_queue(topic_id, row.queue)
        return queue_key(topic_id, row.queue)

    def check_send(self, topic_id: int, queue_id: int, kind: int) -> None:
        """Raise unless clients may send batches of that kind to the queue (R35, a topic's perm).

        TopicNotFoundError, QueueNotFoundError, ForbiddenError, NoPermissionError, MessageTypeError.
        """
        self.check_queue(topic_id, queue_id)
        topic, here = self.topics_by_id[topic_id], self.sendable[topic_id]
        self.check_writable(topic)
        if queue_id >= here.writes:
            raise QueueNotFoundError(
                f"queue {queue_id} of topic {topic.topic} is read only: group {self.group} takes"
                f" messages in {here.writes} of {here.reads} queues",
                queues=here.writes,
            )
        if not here.kinds >> kind & 1:
            sent = _TYPES.get(kind, Kind(kind).name)
            raise MessageTypeError(
                f"topic {topic.topic} takes {topic.message_type} messages, not {sent} ones; for"
                f" those make a topic (paceline topic create NAME --message-type {sent}), or have"
                f" its operator change this one (paceline topic alter {topic.topic} --message-type"
                f" {sent})",
                topic=topic.topic,
                message_type=topic.message_type,
            )

    def check_writable(self, topic: TopicView) -> None:
        """Raise unless the topic takes messages in this group at all; as `check_send`."""
        if not topic.is_for_clients:
            raise ForbiddenError(
                f"topic {topic.topic} is the system's own: sending to it is forbidden",
                topic=topic.topic,
            )
        if not topic.can_write:
            raise NoPermissionError(
                f"topic {topic.topic} takes no messages: its permissions are {topic.perm_letters};"
                f" its operator can change that (paceline topic alter {topic.topic} --perm rw)",
                topic=topic.topic,
            )
        if not topic.write_queues.get(self.group):
            here = None if self.view is None else self.view.groups.get(self.group)
            why = f"topic {topic.topic} has no queue in group {self.group}"
            if here is not None and here.is_write_wiped:
                why = (
                    f"broker group {self.group} takes no messages: its write permission was wiped;"
                    f" nothing was stored (paceline cluster add-write-perm {self.group})"
                )
            raise QueueNotFoundError(why, queues=0)

    def check_consume(self, group: str, *, is_broadcasting: bool = False) -> None:
        """Raise NoPermissionError if the consumer group is switched off (`consume_enable`), or for
        broadcasting (`consume_broadcast_enable`)."""
        name = self.settings_of(group).forbidden_by(is_broadcasting=is_broadcasting)
        if name is None:
            return
        what = "is switched off" if name == "consume_enable" else "may not broadcast"
        raise NoPermissionError(
            f"consumer group {group} {what} ({name} is false); its operator can change that"
            f" (paceline group alter {group} --set {name}=true)",
            group=group,
        )

    def settings_of(self, group: str) -> ConsumerGroupSettings:
        """Of a consumer group; the usual ones while it is not on record."""
        found = self.consumer_groups.get(ConsumerGroupName(group))
        return _USUAL if found is None else found.settings

    def check_read(self, topic_id: int) -> None:
        """Raise NoPermissionError unless clients may read the topic."""
        if topic_id in self.unreadable:
            topic = self.topics_by_id[topic_id]
            raise NoPermissionError(
                f"topic {topic.topic} gives no messages: its permissions are {topic.perm_letters}",
                topic=topic.topic,
            )

    def is_deleted(self, topic_id: int) -> bool:
        """Whether there was such a topic, and is none any more (R35).

        One above `topic_id_max` may be newer than the view: of it nothing is known.
        """
        return topic_id <= self.topic_id_max and topic_id not in self.topics_by_id

    def dead_topic_id(self, group: str) -> int | None:
        """The topic of a consumer group's dead letters, if there is one."""
        found = self.find_topic(dlq_topic(group))
        return None if found is None else found.topic_id

    def group_id(self, group: str) -> int:
        """What tells a consumer group from an earlier one of its name: the id of the topic of its
        retries; 0 if there is none."""
        found = self.find_topic(retry_topic(group))
        return 0 if found is None else int(found.topic_id)

    def known_name(self, topic_id: int) -> str:
        """As `topic_name`; TopicNotFoundError for none."""
        name = self.topic_name(topic_id)
        if not name:
            raise TopicNotFoundError(f"no topic with id {topic_id}", version=self.version)
        return name

    def topic_name(self, topic_id: int) -> str:
        topic = self.topics_by_id.get(TopicId(topic_id))
        return "" if topic is None else topic.topic


def _sendable(topic: TopicView, group: GroupName) -> Sendable:
    is_open = topic.can_write and topic.is_for_clients
    writes = topic.write_queues.get(group, 0) if is_open else 0
    return Sendable(writes, _TAKES[topic.message_type], topic.queues.get(group, 0))
