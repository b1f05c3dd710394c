"""Pure: how the members of a consumer group share the queues; every member computes the same.

RocketMQ's strategies, by its names. All members of a group must use the same one: where two
disagree, a queue waits until only one of them claims it, and one that nobody claims stands still.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import sha256

from paceline.errors import ConfigError
from paceline.queues import QueueKey, shared_queues_of
from paceline.types import GroupName, TopicName
from paceline.wire.calls.groups import MemberRow
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


def allocate_averagely_by_circle(
    queues: Sequence[QueueKey], client_ids: Sequence[str], client_id: str
) -> list[QueueKey]:
    """RocketMQ's AllocateMessageQueueAveragelyByCircle: queue by queue, one member after another.

    >>> allocate_averagely_by_circle([1, 2, 3, 4, 5], ["a", "b"], "a")
    [1, 3, 5]
    """
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


class AllocateConsistentHash:
    """RocketMQ's AllocateMessageQueueConsistentHash: a member that comes or goes moves only the
    queues that it takes or leaves; shares are less even."""

    def __init__(self, *, virtual_nodes: int = 10) -> None:
        """`virtual_nodes`: points of each member on the ring; more are more even."""
        if virtual_nodes < 1:
            raise ConfigError(f"virtual_nodes must be at least 1, not {virtual_nodes}")
        self._virtual_nodes = virtual_nodes

    def __call__(
        self, queues: Sequence[QueueKey], client_ids: Sequence[str], client_id: str
    ) -> list[QueueKey]:
        ring = sorted(
            (_point(f"{member}-{node}"), member)
            for member in client_ids
            for node in range(self._virtual_nodes)
        )
        points = [point for point, _ in ring]

        def owner(queue: QueueKey) -> str:
            at = bisect_left(points, _point(f"{queue.topic_id}/{queue.group}/{queue.queue_id}"))
            return ring[at % len(ring)][1]

        return [queue for queue in queues if owner(queue) == client_id]


class AllocateByMachineRoom:
    """RocketMQ's AllocateMessageQueueByMachineRoom: only the queues of some rooms, averagely.

    Queues of other rooms are consumed by nobody of this group.
    """

    def __init__(
        self, rooms: Collection[str], *, room_of_group: Callable[[GroupName], str] | None = None
    ) -> None:
        """`room_of_group`: the room of a broker group; default: what its name has before "@"."""
        self._rooms = frozenset(rooms)
        self._room_of_group = room_of_group or room_in_name

    def __call__(
        self, queues: Sequence[QueueKey], client_ids: Sequence[str], client_id: str
    ) -> list[QueueKey]:
        ours = [queue for queue in queues if self._room_of_group(queue.group) in self._rooms]
        return allocate_averagely(ours, client_ids, client_id)


class AllocateMachineRoomNearby:
    """RocketMQ's AllocateMachineRoomNearby: queues go to members of their own room, and those of a
    room without members are shared by all."""

    def __init__(
        self,
        room_of_client: Callable[[str], str],
        *,
        room_of_group: Callable[[GroupName], str] | None = None,
        within: Allocation = allocate_averagely,
    ) -> None:
        """`within` shares the queues of a room; `room_of_group` as in `AllocateByMachineRoom`."""
        self._room_of_client = room_of_client
        self._room_of_group = room_of_group or room_in_name
        self._within = within

    def __call__(
        self, queues: Sequence[QueueKey], client_ids: Sequence[str], client_id: str
    ) -> list[QueueKey]:
        members: dict[str, list[str]] = {}
        for member in client_ids:
            members.setdefault(self._room_of_client(member), []).append(member)
        mine = self._room_of_client(client_id)
        near = [queue for queue in queues if self._room_of_group(queue.group) == mine]
        lonely = [queue for queue in queues if self._room_of_group(queue.group) not in members]
        found = self._within(near, members[mine], client_id)
        return found + self._within(lonely, client_ids, client_id)


class AllocateByConfig:
    """RocketMQ's AllocateMessageQueueByConfig: exactly the queues that the application names."""

    def __init__(self, queues: Iterable[tuple[str, int]]) -> None:
        """(broker group, queue id) of each, in every topic that is subscribed to."""
        self._queues = frozenset(queues)

    def __call__(
        self, queues: Sequence[QueueKey], client_ids: Sequence[str], client_id: str
    ) -> list[QueueKey]:
        return [queue for queue in queues if (queue.group, queue.queue_id) in self._queues]


def room_in_name(name: str) -> str:
    """RocketMQ's convention: "room@name"; "" for a name without a room."""
    room, at, _ = name.partition("@")
    return room if at else ""


def _point(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:8])


def queues_for(
    view: ClusterView,
    members: Iterable[MemberRow],
    client_id: str,
    allocation: Allocation = allocate_averagely,
) -> set[QueueKey]:
    """The queues `client_id` is to consume: per topic, shared among the members that want it.

    Members that consume by broadcasting under the same group name take no share.
    """
    wanted: dict[str, list[str]] = {}
    for member in members:
        if member.message_model == "broadcasting":
            continue
        for topic in member.topics:
            wanted.setdefault(topic, []).append(member.client_id)
    found: set[QueueKey] = set()
    for topic, client_ids in sorted(wanted.items()):
        topic_view = view.topics.get(TopicName(topic))
        if topic_view is not None and client_id in client_ids:
            found.update(allocation(shared_queues_of(topic_view), sorted(client_ids), client_id))
    return found
