"""Where a group stands on its queues, kept by the brokers as records (R33)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from paceline.consumer.offsets.start_positions import StartPosition, StartPositions, named
from paceline.consumer.queues.process_queue import ProcessQueue
from paceline.consumer.queues.segments import GroupPosition
from paceline.errors import (
    LockFencedError,
    NotYetAvailableError,
    OffsetMovedBackError,
    OffsetOutOfRangeError,
    PacelineError,
)
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.queues import QueueKey
from paceline.types import GroupName
from paceline.wire.calls import offsets as wire
from paceline.wire.calls.request import AnswerT, Reply, Request, refused_rows

log = logging.getLogger("paceline.client")

_REFUSALS = (OffsetMovedBackError, OffsetOutOfRangeError, LockFencedError)

OTHERS_TIMEOUT_MS = 3_000
"""For each other broker group, when a queue is opened in which the group never stood."""

OnReset: TypeAlias = Callable[[ProcessQueue, int, int], None]
"""(queue, offset, generation): somebody has reset the group there."""
_Work: TypeAlias = Callable[[GroupName, list[ProcessQueue]], Awaitable[None]]


class OffsetStore(Protocol):
    """Remembers how far the queues of a group, or of one member, have been consumed."""

    async def start(self) -> None:
        """Called once the cluster is known, before anything else. Raises PacelineError."""
        ...

    async def opened(self, key: QueueKey) -> ProcessQueue:
        """The process queue from where the group stands; a first start is remembered at once."""
        ...

    async def standing(self, keys: Sequence[QueueKey]) -> list[GroupPosition]:
        """What is remembered of each queue. Raises PacelineError."""
        ...

    async def start_of(self, key: QueueKey) -> int:
        """Where we would begin on a queue of which nothing is remembered. Raises PacelineError."""
        ...

    def goes_on_in(self, key: QueueKey) -> None:
        """The queue continues one that is done: it is read from its start, whatever else is set."""
        ...

    async def commit(self, queues: Sequence[ProcessQueue], on_reset: OnReset) -> None:
        """Remember the commit offsets. Raises PacelineError; then the next call tells them."""
        ...

    async def look_for_resets(self, queues: Sequence[ProcessQueue], on_reset: OnReset) -> None:
        """Ask whether somebody has moved us; cheap while nobody has. Raises PacelineError."""
        ...

    async def closed(self, queue: ProcessQueue) -> None:
        """A queue is given up, and what could be committed of it is."""
        ...

    def abandoned(self, queue: ProcessQueue) -> None:
        """A queue is dropped in haste: others may have it, nothing of it is committed any more."""
        ...

    async def close(self) -> None:
        """Nothing is asked of it any more."""
        ...


class GroupOffsets:
    """The `OffsetStore` of a group whose members share the queues."""

    def __init__(
        self,
        cluster: Cluster,
        links: GroupLinks,
        *,
        group: str,
        start: StartPosition,
        timeout_ms: int,
    ) -> None:
        """`start`: where the group begins on a queue it has never committed."""
        self._cluster = cluster
        self._links = links
        self._group = group
        self._starts = StartPositions(
            cluster, links, group=group, start=start, timeout_ms=timeout_ms
        )
        self._timeout_ms = timeout_ms
        self._resets: dict[GroupName, int] = {}
        """Resets of our group that a broker group had seen when we last looked."""

    async def start(self) -> None:
        """Brokers are asked when queues come."""
        self._starts.subscribed()

    async def opened(self, key: QueueKey) -> ProcessQueue:
        committed = await self._committed(key)
        if committed.offset is not None:
            return ProcessQueue(key, committed.offset, generation=committed.generation)
        offset, generation = await self._first_offset(key, committed), committed.generation
        queue = ProcessQueue(key, offset, generation=generation)
        # Else a restart before the first commit would begin at another "last". It names the
        # generation: an operator may have reset the group since we asked where it stands.
        row = wire.CommitRow(
            topic_id=key.topic_id, queue=key.queue_id, offset=offset, generation=generation
        )
        [answer] = await self._commit_rows(key.group, [queue], [row])
        if answer.code is None or answer.offset is None:
            return queue
        return ProcessQueue(key, answer.offset, generation=answer.generation)

    async def standing(self, keys: Sequence[QueueKey]) -> list[GroupPosition]:
        found: dict[QueueKey, GroupPosition] = {}
        for group in sorted({key.group for key in keys}):
            mine = [key for key in keys if key.group == group]
            answer, envelope = await self._ask_offsets(group, mine)
            stood = [GroupPosition(row.offset, row.joined_offset) for row in answer.offsets]
            if envelope.acting and any(one.offset is None for one in stood):
                raise NotYetAvailableError(f"only a master of group {group} knows where we stand")
            found.update(zip(mine, stood, strict=True))
        return [found[key] for key in keys]

    async def start_of(self, key: QueueKey) -> int:
        return await self._first_offset(key, await self._committed(key))

    def goes_on_in(self, key: QueueKey) -> None:
        self._starts.goes_on_in(key)

    async def _committed(self, key: QueueKey) -> wire.StandingRow:
        [found] = (await self._ask_offsets(key.group, [key])).answer.offsets
        return found

    async def _first_offset(self, key: QueueKey, committed: wire.StandingRow) -> int:
        start = self._starts.on(key)
        offset = await self._starts.offset_of(key, start)
        if start.where == "first" or not self._starts.is_from_min:
            return offset
        joined_offset = committed.joined_offset
        if joined_offset is None:  # new to this broker group; perhaps it reads the topic elsewhere
            joined_ms = await self._joined_elsewhere(key)
            if joined_ms is None:
                return offset
            joined_offset = await self._starts.offset_at(key, joined_ms)
        return min(offset, joined_offset)

    async def _joined_elsewhere(self, key: QueueKey) -> int | None:
        """When the group began to read the topic in other broker groups.

        One that does not answer is passed over: a new group must not wait for it.
        """
        name = self._cluster.topic_name(key.topic_id)
        topic = None if name is None else self._cluster.topic(name)
        queues = {} if topic is None else topic.queues
        others = [group for group in sorted(queues) if queues[group] and group != key.group]
        asked = await asyncio.gather(
            *(self._joined_in(group, key.topic_id) for group in others), return_exceptions=True
        )
        found: list[int] = []
        for group, answer in zip(others, asked, strict=True):
            if isinstance(answer, PacelineError):
                fields = {"queue": str(key), "broker_group": group, "error": answer.message}
                log.warning("group_not_asked", extra=fields)
            elif isinstance(answer, BaseException):
                raise answer
            elif answer is not None:
                found.append(answer)
        return min(found, default=None)

    async def _joined_in(self, group: GroupName, topic_id: int) -> int | None:
        queue = wire.QueueOf(topic_id=topic_id, queue=0)
        ask = wire.Offsets(group=self._group, queues=[queue])
        answer, _ = await self._links.call(
            group,
            ask,
            timeout_ms=min(self._timeout_ms, OTHERS_TIMEOUT_MS),
            attempt_ms=1_000,
        )
        [row] = answer.offsets
        return row.joined_unix_ms

    async def commit(self, queues: Sequence[ProcessQueue], on_reset: OnReset) -> None:
        """One call per broker group, side by side: one without a master holds up no other."""
        await _each(queues, lambda group, moved: self._commit_group(group, moved, on_reset))

    async def _commit_group(
        self, group: GroupName, moved: Sequence[ProcessQueue], on_reset: OnReset
    ) -> None:
        rows = [
            wire.CommitRow(
                topic_id=queue.key.topic_id,
                queue=queue.key.queue_id,
                offset=queue.commit_offset,
                generation=queue.generation,
            )
            for queue in moved
        ]
        for queue, row in zip(moved, await self._commit_rows(group, moved, rows), strict=True):
            if row.generation == queue.generation or row.offset is None:
                continue
            if row.generation < queue.generation and row.code is None:
                queue.generation = row.generation  # the group was deleted: it begins with us
            else:
                on_reset(queue, row.offset, row.generation)

    async def look_for_resets(self, queues: Sequence[ProcessQueue], on_reset: OnReset) -> None:
        """One small call per broker group; the offsets are asked for when a reset has happened."""
        await _each(queues, lambda group, held: self._look(group, held, on_reset))

    async def _look(
        self, group: GroupName, held: Sequence[ProcessQueue], on_reset: OnReset
    ) -> None:
        resets = (await self._call(group, wire.Resets(group=self._group))).answer.resets
        if resets == self._resets.get(group):
            return
        answer, envelope = await self._ask_offsets(group, [queue.key for queue in held])
        for queue, row in zip(held, answer.offsets, strict=True):
            is_other = row.generation > queue.generation or (
                # Of a group that was deleted and is there again; an acting master may know less.
                row.generation < queue.generation and not envelope.acting
            )
            if row.offset is not None and is_other:
                on_reset(queue, row.offset, row.generation)
        self._resets[group] = resets

    async def closed(self, queue: ProcessQueue) -> None:
        """Nothing is held for a queue beside its offset."""

    def abandoned(self, queue: ProcessQueue) -> None:
        """Nothing is held for a queue beside its offset."""

    async def close(self) -> None:
        """Nothing is held at all."""

    async def _commit_rows(
        self, group: GroupName, queues: Sequence[ProcessQueue], rows: list[wire.CommitRow]
    ) -> list[wire.CommittedRow]:
        is_provisional = False
        try:
            answer, envelope = await self._call(group, wire.Commit(group=self._group, offsets=rows))
            is_provisional = envelope.acting
        except _REFUSALS as error:
            answer = refused_rows(wire.Committed, error)
        for queue, asked, row in zip(queues, rows, answer.offsets, strict=True):
            if row.code is None and not is_provisional:
                # What an acting master has taken is told to the next master as well: whichever of
                # the two is asked to remember it may be gone (R36).
                queue.committed = max(queue.committed, asked.offset)
            elif row.code is not None:
                log.info(
                    "offset_refused",
                    extra={"queue": str(queue.key), "offset": asked.offset, "code": row.code},
                )
        return answer.offsets

    async def _ask_offsets(
        self, group: GroupName, keys: Iterable[QueueKey]
    ) -> Reply[wire.Standings]:
        rows = [named(key) for key in keys]
        return await self._call(group, wire.Offsets(group=self._group, queues=rows))

    async def _call(self, group: GroupName, request: Request[AnswerT]) -> Reply[AnswerT]:
        return await self._links.call(group, request, timeout_ms=self._timeout_ms, attempt_ms=5_000)


async def _each(queues: Iterable[ProcessQueue], work: _Work) -> None:
    """The queues of each broker group, side by side; the first error after all have ended."""
    by_group: dict[GroupName, list[ProcessQueue]] = {}
    for queue in queues:
        by_group.setdefault(queue.key.group, []).append(queue)
    works = (work(group, mine) for group, mine in by_group.items())
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
