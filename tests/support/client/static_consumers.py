"""What tests of static consumers share with others."""

from tests.support.client.fake_cluster import FakeCluster

from paceline.types import GroupName, QueueId
from paceline.wire.static_topics import Segment


def segments(*ends: int) -> list[Segment]:
    """Sealed after so many messages each, and an open one."""
    found, start = [], 0
    for generation, count in enumerate((*ends, None)):
        end = None if count is None else start + count
        found.append(
            Segment(
                generation=generation,
                group=GroupName("g1"),
                queue_id=QueueId(generation),
                start=start,
                end=end,
            )
        )
        start = end or 0
    return found


def stands(cluster: FakeCluster, group: str, queue: int) -> int | None:
    offset: int | None = cluster.logs[group].offsets.get(("audit", 1, queue), (None, 0))[0]
    return offset


def queue(group: str, number: int) -> tuple[GroupName, QueueId]:
    return GroupName(group), QueueId(number)
