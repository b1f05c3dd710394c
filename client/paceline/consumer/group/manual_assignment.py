"""Manual assignment: the application names the queues, and nothing is rebalanced."""

import asyncio
from collections.abc import Callable, Sequence

from paceline.consumer.group_settings import Permission
from paceline.net.cluster import Cluster
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.queues import QueueKey, QueueName, has_queue
from paceline.wire.cluster import ClusterView

_LOOK_MS = 1_000
"""A queue that could not be started is tried again after so long."""


class AssignedMember:
    """What `Membership` is to a group that shares its queues; the same callbacks."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        group: str,
        on_targets: Callable[[set[QueueKey]], None],
        on_owned: Callable[[QueueKey], None],
    ) -> None:
        self._cluster = cluster
        self._permission = Permission(group)
        self._on_targets = on_targets
        self._on_owned = on_owned
        self._assigned: list[QueueName] = []
        self._owned: set[QueueKey] = set()
        self._is_leaving = False
        self._task: asyncio.Task[None] | None = None
        self._end_listening: Callable[[], None] = lambda: None

    def assign(self, queues: Sequence[QueueName]) -> None:
        """Have exactly these, as far as they are there."""
        self._assigned = list(queues)
        self._cluster.use(topics=[queue.topic for queue in queues])
        if self._task is not None and self._cluster.view is not None:
            self._aim(self._cluster.view)

    def start(self) -> None:
        self._end_listening = self._cluster.watch.listen(self._aim)
        self._task = spawn(self._run(), name="assigned")

    async def close(self) -> None:
        self._end_listening()
        await cancel_and_wait(self._task)

    def stop_claiming(self) -> None:
        self._is_leaving = True

    def release(self, key: QueueKey) -> None:
        """Given up, or not started."""
        self._owned.discard(key)

    async def _run(self) -> None:
        while True:
            if self._cluster.view is not None:
                self._aim(self._cluster.view)
            await pause(_LOOK_MS)

    def _aim(self, view: ClusterView) -> None:
        targets = set()
        for name in self._assigned if self._permission.is_given(view) else ():
            topic = view.topics.get(name.topic)
            if topic is not None and has_queue(topic, name):
                targets.add(QueueKey(topic.topic_id, name.group, name.queue_id))
        self._on_targets(targets)
        if self._is_leaving:
            return
        for key in sorted(targets - self._owned):
            self._owned.add(key)
            self._on_owned(key)
