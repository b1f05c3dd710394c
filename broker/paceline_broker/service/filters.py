"""Filters of fetches: registered once by a call, named by number in every fetch.

An expression is parsed once per broker, not once per fetch. A number means something only on the
broker that gave it and for as long as that runs: a client registers again on a new connection, and
when it is told UNKNOWN_FILTER, as the least used are forgotten.

What is passed over is passed over by whole batches: their bytes are the producer's, and the client
leaves out the single records by the same filter.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from paceline.errors import BadRequestError
from paceline.filters import Filter, make_filter
from paceline.ports import Buffer
from paceline.records.decode import BatchView, iter_batches
from paceline.wire.fields import Fields
from paceline.wire.stream import FetchCode, FetchPart, FetchQueue
from paceline_broker.service.gather import Fetched

FILTERS_MAX = 10_000
"""Expressions kept at one time; the one that was used longest ago goes first."""
EXPRESSION_LENGTH_MAX = 8_192
LOOK_BYTES_MAX = 256 * 1024
"""Looked at in one loop turn for one fetch with filters, or one queue of a pop (or one batch)."""


class FilterRegistry:
    """The filters of one broker."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[int, Filter] = OrderedDict()
        self._ids: dict[tuple[str, str], int] = {}
        self._last = 0

    async def register(self, fields: Fields) -> dict[str, Any]:
        """The call "filter": {"type", "expression"} -> {"filter_id"}. BadRequestError."""
        type_ = fields.text("type")
        expression = fields.text("expression", length_max=EXPRESSION_LENGTH_MAX)
        fields.done()
        return {"filter_id": self.add(type_, expression)}

    def add(self, type_: str, expression: str) -> int:
        """The number of a filter, the same for the same text. BadRequestError."""
        known = self._ids.get((type_, expression))
        if known is not None:
            self._by_id.move_to_end(known)
            return known
        found = make_filter(type_, expression)
        self._last += 1
        self._by_id[self._last] = found
        self._ids[type_, expression] = self._last
        if len(self._by_id) > FILTERS_MAX:
            number, _ = self._by_id.popitem(last=False)
            self._ids = {text: kept for text, kept in self._ids.items() if kept != number}
        return self._last

    def get(self, filter_id: int) -> Filter | None:
        found = self._by_id.get(filter_id)
        if found is not None:
            self._by_id.move_to_end(filter_id)
        return found


class Sifted(NamedTuple):
    """What is left of an answer."""

    queues: list[FetchQueue]
    """As asked, moved on past everything that was looked at."""
    counts: list[tuple[int, int, int]]
    """(topic id, messages, bytes) that stay."""


def check_filters(registry: FilterRegistry, queues: Sequence[FetchQueue]) -> bool:
    """Whether all filters of a fetch are known here. BadRequestError for a queue named twice."""
    if len({(queue.topic_id, queue.queue_id) for queue in queues}) < len(queues):
        raise BadRequestError("a fetch with filters names each queue once", field="queues")
    return all(registry.get(queue.filter_id) for queue in queues if queue.filter_id)


def sift(registry: FilterRegistry, queues: Sequence[FetchQueue], answer: Fetched) -> Sifted:
    """Leave out of an answer what its filters do not want.

    Raises CorruptLogError if a column of a batch is damaged.
    """
    counts: list[tuple[int, int, int]] = []
    asked = {(queue.topic_id, queue.queue_id): queue for queue in queues}
    ends: dict[tuple[int, int], int] = {}
    parts: list[FetchPart] = []
    kept: list[Buffer] = []
    at = 0
    for part in answer.parts:
        of_part, at = _buffers_of(answer.buffers, at, part.size)
        place = part.topic_id, part.queue_id
        filter_id = asked[place].filter_id
        wanted = registry.get(filter_id) if filter_id else None
        if filter_id and wanted is None:
            part, of_part = part._replace(code=FetchCode.UNKNOWN_FILTER, size=0), []
        elif wanted is not None and part.size:
            of_part, next_offset, messages = _wanted(wanted, of_part)
            part = part._replace(size=sum(map(len, of_part)), next_offset=next_offset)
            ends[place] = next_offset
            counts.append((part.topic_id, messages, part.size))
        elif part.size:
            *_, (_, last) = iter_batches(of_part[-1])
            messages = last.end_queue_offset - asked[place].offset
            counts.append((part.topic_id, messages, part.size))
        parts.append(part)
        kept.extend(of_part)
    answer.parts, answer.buffers = parts, kept
    answer.size_bytes = sum(map(len, kept))
    moved = [
        queue._replace(offset=ends.get((queue.topic_id, queue.queue_id), queue.offset))
        for queue in queues
    ]
    return Sifted(moved, counts)


def _buffers_of(buffers: Any, at: int, size: int) -> tuple[list[memoryview], int]:
    """The buffers from number `at` on that hold `size` bytes, and the number after them."""
    found: list[memoryview] = []
    while size > 0:
        found.append(memoryview(buffers[at]))
        size -= len(found[-1])
        at += 1
    assert size == 0, size
    return found, at


def _wanted(wanted: Filter, buffers: list[memoryview]) -> tuple[list[memoryview], int, int]:
    """Stretches of whole batches with something wanted, the queue offset after all, and how many
    messages the stretches have."""
    found: list[memoryview] = []
    next_offset = messages = 0
    for buffer in buffers:
        at = start = 0
        while at < len(buffer):
            view = BatchView(buffer, at)
            next_offset = view.header.end_queue_offset
            end = at + view.header.size_bytes
            if wanted.wants_any(view):
                messages += view.header.record_count
            else:
                if start < at:
                    found.append(buffer[start:at])
                start = end
            at = end
        if start < at:
            found.append(buffer[start:at])
    return found, next_offset, messages
