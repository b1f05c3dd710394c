"""Where a group stands on its queues, kept by the brokers as records (R33)."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from paceline.consumer.links import GroupLinks
from paceline.consumer.process_queue import ProcessQueue
from paceline.errors import LockFencedError, OffsetMovedBackError, OffsetOutOfRangeError
from paceline.routing import QueueKey
from paceline.types import GroupName

log = logging.getLogger("paceline.client")

_REFUSALS = (OffsetMovedBackError, OffsetOutOfRangeError, LockFencedError)

OnReset: TypeAlias = Callable[[ProcessQueue, int, int], None]
"""(queue, offset, generation): somebody has reset the group there."""


class OffsetStore(Protocol):
    """Remembers how far the queues of a group, or of one member, have been consumed."""

    async def opened(self, key: QueueKey) -> ProcessQueue:
        """The process queue from where the group stands; a first start is remembered at once."""
        ...

    async def commit(self, queues: Sequence[ProcessQueue], on_reset: OnReset) -> None:
        """Remember the commit offsets. Raises PacelineError; then the next call tells them."""
        ...

    async def closed(self, queue: ProcessQueue) -> None:
        """A queue is given up, and what could be committed of it is."""
        ...


class GroupOffsets:
    """The `OffsetStore` of a group whose members share the queues."""

    def __init__(self, links: GroupLinks, *, group: str, start: str, timeout_ms: int) -> None:
        """`start`: where the group begins on a queue it has never committed."""
        self._links = links
        self._group = group
        self._start = start
        self._timeout_ms = timeout_ms

    async def opened(self, key: QueueKey) -> ProcessQueue:
        row: dict[str, Any] = {"topic_id": key.topic_id, "queue": key.queue}
        ask = {"call": "offsets", "group": self._group, "queues": [row]}
        answer = await self._call(key.group, ask)
        committed = answer["offsets"][0]
        if committed["offset"] is not None:
            return ProcessQueue(key, committed["offset"], generation=committed["generation"])
        ends = (await self._call(key.group, {"call": "ends", "queues": [row]}))["queues"][0]
        offset = ends["start"] if self._start == "first" else ends["end"]
        queue = ProcessQueue(key, offset, generation=committed["generation"])
        # Else a restart before the first commit would begin at another "last".
        await self._commit_rows(key.group, [queue], [{**row, "offset": offset}])
        return queue

    async def commit(self, queues: Sequence[ProcessQueue], on_reset: OnReset) -> None:
        """One call per broker group."""
        by_group: dict[GroupName, list[ProcessQueue]] = {}
        for queue in queues:
            by_group.setdefault(queue.key.group, []).append(queue)
        for group, moved in by_group.items():
            rows = [
                {
                    "topic_id": queue.key.topic_id,
                    "queue": queue.key.queue,
                    "offset": queue.commit_offset,
                    "generation": queue.generation,
                }
                for queue in moved
            ]
            for queue, row in zip(moved, await self._commit_rows(group, moved, rows), strict=True):
                if row["generation"] > queue.generation:
                    on_reset(queue, row["offset"], row["generation"])

    async def closed(self, queue: ProcessQueue) -> None:
        """Nothing is held for a queue beside its offset."""

    async def _commit_rows(
        self, group: GroupName, queues: Sequence[ProcessQueue], rows: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        document = {"call": "commit", "group": self._group, "offsets": rows}
        try:
            answer = await self._call(group, document)
        except _REFUSALS as error:
            if not isinstance(error.details.get("offsets"), list):
                raise
            answer = error.details  # each queue was refused for a reason of its own
        answered: list[dict[str, Any]] = answer["offsets"]
        for queue, asked, row in zip(queues, rows, answered, strict=True):
            if row["code"] is None and not answer.get("acting"):
                # What an acting master has taken is told to the next master as well: whichever of
                # the two is asked to remember it may be gone (R36).
                queue.committed = max(queue.committed, asked["offset"])
            elif row["code"] is not None:
                log.info(
                    "offset_refused",
                    extra={"queue": str(queue.key), "offset": asked["offset"], "code": row["code"]},
                )
        return answered

    async def _call(self, group: GroupName, document: dict[str, Any]) -> dict[str, Any]:
        return await self._links.call(
            group, document, timeout_ms=self._timeout_ms, attempt_ms=5_000
        )
