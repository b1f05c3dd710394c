"""Where a group stands on its queues, each under its lock (R33).

A queue is opened by taking its lock and reading the offset after that: whoever had the lock before
has committed by then, or is fenced. Commits name the token, so one that comes late changes nothing.
"""

from collections.abc import Sequence

from paceline.consumer.locks.queue_locks import QueueLocks
from paceline.consumer.offsets.group_offsets import GroupOffsets
from paceline.consumer.offsets.start_positions import StartPosition
from paceline.consumer.queues.process_queue import ProcessQueue
from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.queues import QueueKey
from paceline.types import GroupName
from paceline.wire.calls.offsets import CommitRow, CommittedRow


class LockedOffsets(GroupOffsets):
    """The `OffsetStore` of an ordered consumer."""

    def __init__(
        self,
        locks: QueueLocks,
        cluster: Cluster,
        links: GroupLinks,
        *,
        group: str,
        start: StartPosition,
        timeout_ms: int,
    ) -> None:
        """See `GroupOffsets`."""
        super().__init__(cluster, links, group=group, start=start, timeout_ms=timeout_ms)
        self._locks = locks

    async def opened(self, key: QueueKey) -> ProcessQueue:
        """Takes the lock; LockHeldError if another has it for long. Whoever cancels it closes the
        locks afterwards, which gives back what was taken."""
        token = await self._locks.acquire(key)
        try:
            queue = await super().opened(key)
        except PacelineError:
            await self._locks.give_back([(key, token)])
            raise
        queue.lock_token = token
        return queue

    async def closed(self, queue: ProcessQueue) -> None:
        """Gives the lock back, unless a listener still runs: then the lease has to run out."""
        token = queue.lock_token
        assert token is not None, queue.key
        if queue.in_process_count:
            self._locks.forget(queue.key, token)
        else:
            await self._locks.give_back([(queue.key, token)])

    def abandoned(self, queue: ProcessQueue) -> None:
        assert queue.lock_token is not None, queue.key
        self._locks.forget(queue.key, queue.lock_token)

    async def _commit_rows(
        self, group: GroupName, queues: Sequence[ProcessQueue], rows: list[CommitRow]
    ) -> list[CommittedRow]:
        for queue, row in zip(queues, rows, strict=True):
            # While it is opened the queue has no token yet.
            token = queue.lock_token or self._locks.token_of(queue.key)
            if token is not None:
                row.token = (token.epoch, token.position)
        return await super()._commit_rows(group, queues, rows)
