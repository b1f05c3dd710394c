"""Pure: the queues of a topic in their stable order, and which one a message goes to.

A key always goes to `crc32c(key) mod queues` over all queues that the topic takes messages in, in
order of (group, queue id), so every producer of every process agrees while these do not change.
Keyless messages go round robin by batch: what is sent in one loop turn rides together, and the
next batch takes the next queue of a group that answers.

Of a static topic the queues are the logical ones, in order of their numbers: a remap changes where
one is, and never which one a key means.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from crc32c import crc32c

from paceline.types import GroupName, QueueId, TopicId, TopicName
from paceline.wire.cluster import ClusterView, TopicView

LOGICAL = GroupName("__syslo__")
"""Stands for the broker group where a logical queue is named, wherever it is at the moment
(RocketMQ's prefix of such broker names)."""


class QueueKey(NamedTuple):
    """One queue of the cluster. Orders by topic id, group, queue id."""

    topic_id: TopicId
    group: GroupName
    queue_id: QueueId

    @property
    def queue(self) -> QueueId:
        """Former name of `queue_id`, for one version."""
        return self.queue_id


class QueueName(NamedTuple):
    """One queue as people name it: topic name, broker group, queue id."""

    topic: TopicName
    group: GroupName
    queue_id: QueueId

    @property
    def queue(self) -> QueueId:
        """Former name of `queue_id`, for one version."""
        return self.queue_id


def queues_of(topic: TopicView) -> tuple[QueueKey, ...]:
    """All queues of a topic in their stable order, by (group, queue id); of a static one all
    segments."""
    return tuple(
        QueueKey(topic.topic_id, group, QueueId(queue))
        for group in sorted(topic.queues)
        for queue in range(topic.queues[group])
    )


def shared_queues_of(topic: TopicView) -> tuple[QueueKey, ...]:
    """What the members of a consumer group share: the queues, or the logical ones (`LOGICAL`)."""
    if not topic.is_static:
        return queues_of(topic)
    return tuple(
        QueueKey(topic.topic_id, LOGICAL, QueueId(number))
        for number in range(len(topic.logical_queues))
    )


def has_queue(topic: TopicView, name: QueueName) -> bool:
    """Whether there is a queue of that name, or a logical one (`LOGICAL`)."""
    if name.group == LOGICAL:
        return name.queue_id < len(topic.logical_queues)
    return name.queue_id < topic.queues.get(name.group, 0)


def write_queues_of(topic: TopicView) -> tuple[QueueKey, ...]:
    """The queues that messages are sent to: while a topic shrinks, not all that are read.

    Of a static topic the last segment of each logical queue, also where its broker group takes no
    messages for now, or keys would change their queues; none if no group does.
    """
    if topic.is_static:
        if not any(topic.write_queues.values()):
            return ()
        return tuple(
            QueueKey(topic.topic_id, queue.last.group, queue.last.queue_id)
            for queue in topic.logical_queues
        )
    return tuple(
        QueueKey(topic.topic_id, group, QueueId(queue))
        for group in sorted(topic.write_queues)
        for queue in range(topic.write_queues[group])
    )


def index_of_key(key: bytes, count: int) -> int:
    """Index of the queue, of `count` in stable order, that messages with `key` go to."""
    assert count > 0
    index: int = crc32c(key) % count
    return index


def next_index(
    after: int,
    queues: Sequence[QueueKey],
    is_up: Callable[[GroupName], bool],
    is_quick: Callable[[GroupName], bool] | None = None,
) -> int:
    """The next queue round robin whose group answers; plainly the next one if none does.

    `is_quick`: of several groups that answer, one that is not to be avoided (`latency`).
    """
    count = len(queues)
    up = -1
    for step in range(1, count + 1):
        index = (after + step) % count
        group = queues[index].group
        if is_up(group):
            if is_quick is None or is_quick(group):
                return index
            up = index if up < 0 else up
    return up if up >= 0 else (after + 1) % count


def master_address(view: ClusterView, group: GroupName) -> str | None:
    """Client address ("host:port") of the group's master, or None while nobody is elected."""
    group_view = view.groups.get(group)
    master = None if group_view is None else group_view.master_view()
    return None if master is None else master.client_address


def reading_address(view: ClusterView, group: GroupName) -> str | None:
    """Client address of whom readers ask: the master, or the acting one instead (R36)."""
    group_view = view.groups.get(group)
    serving = None if group_view is None else group_view.serving_view()
    return None if serving is None else serving.client_address


def acting_groups(view: ClusterView) -> frozenset[GroupName]:
    """Broker groups that have an acting master only: what they answer may be stale (R36)."""
    return frozenset(
        name
        for name, group in view.groups.items()
        if group.master is None and group.acting is not None
    )


def broker_addresses(view: ClusterView) -> list[str]:
    """Client addresses of all brokers, in a stable order."""
    return [
        replica.client_address
        for name in sorted(view.groups)
        for _, replica in sorted(view.groups[name].replicas.items())
    ]
