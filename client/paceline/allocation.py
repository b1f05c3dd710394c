"""Pure: how the members of a consumer group share the queues; every member computes the same."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from paceline.routing import QueueKey, queues_of
from paceline.wire.cluster import ClusterView

Allocation = Callable[[Sequence[QueueKey], Sequence[str], str], list[QueueKey]]
"""(queues in order, client ids in order, own client id) -> the queues of that client."""


def allocate_averagely(
    queues: Sequence[QueueKey], client_ids: Sequence[str], client_id: str
) -> list[QueueKey]:
    """RocketMQ's AllocateMessageQueueAveragely: contiguous shares, the first ones by one larger.

    >>> allocate_averagely([1, 2, 3, 4, 5], ["a", "b"], "a")
    [1, 2, 3]
    """
    index = client_ids.index(client_id)
    share, rest = divmod(len(queues), len(client_ids))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def queues_for(
    view: ClusterView,
    members: Iterable[Mapping[str, object]],
    client_id: str,
    allocation: Allocation = allocate_averagely,
) -> set[QueueKey]:
    """The queues `client_id` is to consume: per topic, shared among the members that want it.

    `members` as the coordinator answers them: {client_id, topics, ...}.
    """
    wanted: dict[str, list[str]] = {}
    for member in members:
        topics = member["topics"]
        assert isinstance(topics, list)
        for topic in topics:
            wanted.setdefault(topic, []).append(str(member["client_id"]))
    found: set[QueueKey] = set()
    for topic, client_ids in sorted(wanted.items()):
        topic_view = view.topics.get(topic)  # type: ignore[call-overload]  # a name from the wire
        if topic_view is not None and client_id in client_ids:
            found.update(allocation(queues_of(topic_view), sorted(client_ids), client_id))
    return found
