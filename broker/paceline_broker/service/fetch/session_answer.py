"""What a fetch session would answer now: parts of the queues that have something.

A part belongs to a row, which is what was asked of one queue; both are settled together when the
answer leaves, and nothing has happened before.
"""

import asyncio
from collections.abc import Iterator

from paceline.wire.stream import (
    FETCH_ANSWER,
    FETCH_PART,
    FOLLOW_ANSWER,
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    FetchCode,
    FetchPart,
    FetchQueue,
)
from paceline_broker.ports import LogReader
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.service.fetch.filters import (
    TURN_BYTES_OF_COST,
    FilterRegistry,
    short_look,
    sift,
    unpacked_bytes,
)
from paceline_broker.service.fetch.read import Fetched, Gathering
from paceline_broker.service.long_work import LongWork

PARTS_MAX = 1024
"""Parts with something to deliver in one answer, and as many with other news."""
_HEADS_BYTES = (
    FRAME_HEADER_BYTES + FOLLOW_ANSWER.size + FETCH_ANSWER.size + 2 * PARTS_MAX * FETCH_PART.size
)
ROOM_MAX = FRAME_BYTES_MAX - _HEADS_BYTES
"""For the batches of one answer."""


FINAL_CODES = frozenset(
    (
        FetchCode.OFFSET_OUT_OF_RANGE,
        FetchCode.UNKNOWN_QUEUE,
        FetchCode.NO_PERMISSION,
        FetchCode.UNKNOWN_FILTER,
    )
)
"""What waiting does not change."""


class Request:
    """One answer that may be given."""

    __slots__ = ("is_over", "max_bytes", "request_id", "timer")

    def __init__(self, request_id: int, max_bytes: int) -> None:
        self.request_id = request_id
        self.max_bytes = max_bytes
        self.is_over = False
        self.timer: asyncio.TimerHandle | None = None


class Row:
    """What is asked of one queue."""

    __slots__ = ("asked", "is_round_done", "is_round_failed", "key", "next_offset")

    def __init__(self, asked: FetchQueue) -> None:
        self.key = queue_key(asked.topic_id, asked.queue_id)
        self.asked = asked
        self.next_offset = 0
        """Up to where a filter has passed over everything."""
        self.is_round_done = False
        self.is_round_failed = False


class Harvest:
    """An answer in the making: until it is sifted, a part, its views and its row have one place."""

    def __init__(self, gathering: Gathering, seen: int) -> None:
        self.gathering = gathering
        self.seen = seen
        self.rows: list[Row] = []
        self.parts: list[FetchPart] = []
        self.views: list[list[memoryview]] = []
        self.counts: list[tuple[int, int, int]] = []
        self.passed: list[Row] = []
        """Rows of which a filter wanted nothing."""

    def add(self, row: Row, part: FetchPart, views: list[memoryview]) -> None:
        self.rows.append(row)
        self.parts.append(part._replace(next_offset=row.next_offset) if row.next_offset else part)
        self.views.append(views)
        if part.size and not row.asked.filter_id:
            self.counts.append(self.gathering.found.counts[-1])

    def without_large_company(self) -> None:
        """A first batch near the frame limit is sent alone."""
        if self.gathering.found.answer.size_bytes <= ROOM_MAX:
            return
        kept = [place for place, part in enumerate(self.parts) if part.size]
        self.rows = [self.rows[place] for place in kept]
        self.views = [self.views[place] for place in kept]
        self.parts = [self.parts[place] for place in kept]

    def _filtered(self) -> tuple[list[int], list[FetchQueue], Fetched]:
        """Places of the rows with filters, what they ask, and what there is of them."""
        places = [place for place, row in enumerate(self.rows) if row.asked.filter_id]
        answer = Fetched(0, 0, [self.parts[place] for place in places])
        answer.buffers = [view for place in places for view in self.views[place]]
        return places, [self.rows[place].asked for place in places], answer

    def look(self, registry: FilterRegistry, work: LongWork) -> tuple[bool, int]:
        """Whether filters are so short that `sift` may run at once; else what it unpacks."""
        places, asked, answer = self._filtered()
        if not any(self.parts[place].size for place in places):
            return True, 0
        cost = short_look(registry, asked, answer)
        if cost and work.has_turn_for(cost * TURN_BYTES_OF_COST):
            return True, 0
        return False, unpacked_bytes(answer.buffers)

    def sift(self, registry: FilterRegistry) -> Iterator[None]:
        """Leave out what filters do not want, in steps; rows with nothing left have moved on."""
        places, queues, answer = self._filtered()
        if not any(self.parts[place].size for place in places):
            return
        moved, counts = yield from sift(registry, queues, answer)
        self.counts += counts
        left = set(range(len(self.rows))) - set(places)
        rows, before, views = self.rows, self.parts, self.views
        self.rows = [rows[place] for place in sorted(left)]
        self.parts = [before[place] for place in sorted(left)]
        self.views = [views[place] for place in sorted(left)]
        for place, asked, part in zip(places, moved, answer.parts, strict=True):
            row = rows[place]
            if asked.offset != row.asked.offset:
                row.asked, row.next_offset = asked, asked.offset
            if part.size or part.code != FetchCode.OK or not before[place].size:
                self.rows.append(row)
                self.parts.append(part._replace(next_offset=row.next_offset))
            else:
                self.passed.append(row)
        self.views.append([memoryview(buffer) for buffer in answer.buffers])

    def is_sound(self, reader: LogReader) -> bool:
        """Batches that were read from the disk are verified before they leave (R24)."""
        unsure = self.gathering.found.unsure
        return all(reader.is_sound(view, position) for position, view in unsure)
