"""Queues of sends that name none."""

from paceline.errors import QueueNotFoundError
from paceline.net.cluster import Cluster
from paceline.types import GroupName

_QUEUES_MAX = 2**16


class QueueOf:
    """Which queue of a broker group a client's queue id means: -1 is any, in turn."""

    def __init__(self, cluster: Cluster, group: GroupName) -> None:
        self._cluster = cluster
        self._group = group
        self._turn = 0

    def __call__(self, topic: str, queue_id: int) -> int:
        if queue_id >= 0:
            if queue_id >= _QUEUES_MAX:
                raise QueueNotFoundError(f"topic {topic} has no queue {queue_id}", queue=queue_id)
            return queue_id
        found = self._cluster.topic(topic)
        count = 0 if found is None else found.write_queues.get(self._group, 0)
        if not count:
            return 0  # whether there is such a topic, or will be, sending it says
        self._turn += 1
        return self._turn % count
