"""What a bulk reader asks before it reads: where queues can be cut, and which offset a time is.

Both answers come from confirmed batches alone, so any readable replica may give them (R3): they
say nothing of the log's end that waiting could change.
"""

from itertools import accumulate
from typing import Any

from paceline.errors import NotYetAvailableError, OffsetOutOfRangeError
from paceline.records.header import HEADER_BYTES, parse_header
from paceline.types import PhysicalOffset
from paceline_broker.ports import Role
from paceline_broker.projections.consume_queues import ConsumeQueue

PLAN_BATCHES_MAX = 50_000
"""Batches looked at in one answer, some milliseconds of the loop; the rest by asking again."""
CUTS_MAX = 4096


class Planner:
    """Answers about confirmed batches of one broker."""

    def __init__(self, role: Role) -> None:
        self._role = role

    def cuts(self, key: int, low: int, high: int, piece_bytes: int) -> dict[str, Any]:
        """Offsets in [low, high) where pieces of about `piece_bytes` begin, with their sizes.

        `next` is `high`, or the offset to ask from for the rest. OffsetOutOfRangeError below the
        queue's start; NotYetAvailableError above what is confirmed here.
        """
        queue = self._queue(key)
        start, end = self._range(queue)
        if low < start:
            raise OffsetOutOfRangeError(
                f"the queue begins at {start}, asked was {low}", start=start, end=end
            )
        if high > end:
            raise NotYetAvailableError(f"offset {high} is above {end}, confirmed here")
        rows: list[list[int]] = []
        answer = {"start": start, "end": end, "cuts": rows, "next": high}
        if queue is None or low >= high:
            return answer
        first, last = queue.entries(low, high)
        last_asked = min(last, first + PLAN_BATCHES_MAX)
        sizes = list(accumulate(queue.sizes(first, last_asked), initial=0))
        at, begun = first, 0
        for entry in range(first + 1, last_asked + 1):
            is_end = entry == last_asked
            if sizes[entry - first] - begun < piece_bytes and not is_end:
                continue
            rows.append([max(low, queue.base(at)), sizes[entry - first] - begun])
            at, begun = entry, sizes[entry - first]
            if len(rows) == CUTS_MAX:
                break
        if at < last:
            answer["next"] = queue.base(at)
        return answer

    async def offset_at(self, key: int, unix_ms: int) -> dict[str, Any]:
        """The first confirmed offset whose batch was stored at or after `unix_ms`, else the end.

        Store times never go back within a log, so this is a search by halves over headers.
        """
        queue = self._queue(key)
        start, end = self._range(queue)
        answer = {"start": start, "end": end, "offset": end}
        if queue is None or start >= end:
            return answer
        low, high = queue.entries(start, end)
        bases, positions = queue.index(low, high)  # copies: what we wait for below may move it
        first, beyond = 0, len(positions)
        while first < beyond:
            middle = (first + beyond) // 2
            if await self._stored_ms(PhysicalOffset(positions[middle])) < unix_ms:
                first = middle + 1
            else:
                beyond = middle
        if first < len(bases):
            answer["offset"] = max(start, bases[first])
        return answer

    async def stored_at(self, key: int, offset: int) -> int | None:
        """When the first message at or after `offset` was stored; None if none is confirmed."""
        queue = self._queue(key)
        start, end = self._range(queue)
        if queue is None or max(start, offset) >= end:
            return None
        low, _ = queue.entries(max(start, offset), end)
        _, positions = queue.index(low, low + 1)
        stored_ms = await self._stored_ms(PhysicalOffset(positions[0]))
        return stored_ms if stored_ms >= 0 else None

    async def _stored_ms(self, position: PhysicalOffset) -> int:
        reader = self._role.reader
        if position < reader.start:
            return -1  # retention took it meanwhile: older than whatever is asked for
        view = reader.read(position, HEADER_BYTES)
        if reader.is_cold(view):
            await reader.warm(view)
        return parse_header(view, 0).store_unix_ms

    def _queue(self, key: int) -> ConsumeQueue | None:
        if not self._role.reader.is_readable:
            raise NotYetAvailableError("this broker does not know what is confirmed yet")
        return self._role.projections.consume_queues.get(key)

    def _range(self, queue: ConsumeQueue | None) -> tuple[int, int]:
        if queue is None:
            return 0, 0
        return queue.start, queue.confirmed_end(self._role.reader.confirm)
