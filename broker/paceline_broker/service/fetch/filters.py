"""Filters of fetches: registered once by a call, named by number in every fetch.

An expression is parsed once per broker, not once per fetch. A number means something only on the
broker that gave it and for as long as that runs: a client registers again on a new connection, and
when it is told UNKNOWN_FILTER, as the least used are forgotten.

What is passed over is passed over by whole batches: their bytes are the producer's, and the client
leaves out the single records by the same filter.
"""

from collections import OrderedDict
from collections.abc import Generator, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from paceline.errors import BadRequestError
from paceline.filters import Filter, make_filter
from paceline.platform.ports import Buffer
from paceline.records.decode import BatchView, iter_batches
from paceline.wire.calls import pop as wire
from paceline.wire.stream import FetchCode, FetchPart, FetchQueue
from paceline_broker.service.fetch.read import Fetched
from paceline_broker.service.long_work import LongWork
from paceline_broker.service.rpc import CallerHandlers

FILTERS_MAX = 10_000
"""Expressions kept at one time; the one that was used longest ago goes first."""
TERMS_KEPT_MAX = 50_000
"""Tests of all that are kept: some KiB of memory each."""
LOOK_BYTES_MAX = 256 * 1024
"""Looked at for one fetch with filters, or one queue of a pop, before others have their turn (or
one batch)."""
LOOK_COST_MAX = 100_000
"""Of one look, where a test of a record is 1: then the asker is told how far it got, also in the
middle of a batch. Some 100 ms in steps."""
STEP_COST = 2_048
BATCH_COST = 16
"""Of a batch, beside its tests."""
RAW_BYTES_OF_COST = 1_024
"""So much is unpacked in the time of one test."""
TURN_BYTES_OF_COST = 128
"""What a test costs of that which may be done at once in a turn (`LongWork.has_turn_for`)."""
TURN_BYTES_OF_CHARACTER = 1_024
"""The same of a character that is parsed, up to 1.7 us: 512 characters may be parsed in a turn, a
longer expression waits in line."""
_RECORDS_OF_COST = 64
"""Of tags, which are looked at by the batch."""


class Look:
    """What one look may still cost."""

    __slots__ = ("_step", "left")

    def __init__(self, left: int = LOOK_COST_MAX) -> None:
        self.left = left
        self._step = 0

    def spend(self, cost: int) -> bool:
        """Whether the step has had its part."""
        self.left -= cost
        self._step += cost
        if self._step < STEP_COST:
            return False
        self._step = 0
        return True

    def search(
        self, wanted: Filter, view: BatchView, first: int
    ) -> Generator[None, None, tuple[bool, int]]:
        """Whether a record from number `first` on is wanted, and up to where was looked."""
        header, terms = view.header, wanted.terms
        if header.codec and self.spend(header.payload_raw_bytes // RAW_BYTES_OF_COST):
            view.payload()
            yield
        count = header.record_count
        piece = max(1, STEP_COST // terms) if terms else count
        while first < count:
            end = min(count, first + piece)
            if wanted.wants_any(view, first, end):
                return True, count
            cost = (end - first) * terms or (end - first) // _RECORDS_OF_COST
            first = end
            if self.spend(BATCH_COST + cost):
                yield
            if self.left <= 0:
                break
        return False, first


def cost_of(wanted: Filter, buffers: Iterable[Buffer], *, enough: int) -> int:
    """What a look at these batches costs at most; no more is counted once that is `enough`."""
    cost = 0
    for buffer in buffers:
        for _, header in iter_batches(buffer):
            raw_bytes = header.payload_raw_bytes if header.codec else 0
            records = header.record_count
            cost += BATCH_COST + (records * wanted.terms or records // _RECORDS_OF_COST)
            cost += raw_bytes // RAW_BYTES_OF_COST
            if cost >= enough:
                return cost
    return cost


class FilterRegistry:
    """The filters of one broker."""

    def __init__(self, work: LongWork) -> None:
        self._work = work
        self._by_id: OrderedDict[int, Filter] = OrderedDict()
        self._ids: dict[tuple[str, str], int] = {}
        self._texts: dict[int, tuple[str, str]] = {}
        self._terms = 0
        self._last = 0

    def handlers_of_callers(self) -> CallerHandlers:
        return {wire.Filter: self.register}

    async def register(self, asked: wire.Filter, caller: Hashable) -> wire.FilterNumber:
        """BadRequestError, OverloadedError."""
        number, _ = await self.ensure(asked.type, asked.expression, asker=caller)
        return wire.FilterNumber(number)

    async def ensure(self, type_: str, expression: str, *, asker: Hashable) -> tuple[int, Filter]:
        """As `add`, and the filter; what is long to parse waits in line.

        BadRequestError, OverloadedError.
        """

        def parsed() -> Generator[None, None, tuple[int, Filter]]:
            """One step."""
            yield from ()
            return self._found(type_, expression)

        is_known = (type_, expression) in self._ids
        if is_known or self._work.has_turn_for(len(expression) * TURN_BYTES_OF_CHARACTER):
            return self._found(type_, expression)
        return await self._work.run(parsed(), asker=asker)

    def _found(self, type_: str, expression: str) -> tuple[int, Filter]:
        number = self.add(type_, expression)
        return number, self._by_id[number]

    def add(self, type_: str, expression: str) -> int:
        """The number of a filter, the same for the same text; parsed now. BadRequestError."""
        known = self._ids.get((type_, expression))
        if known is not None:
            self._by_id.move_to_end(known)
            return known
        found = make_filter(type_, expression)
        number = self._last = self._last + 1
        self._by_id[number] = found
        self._ids[type_, expression] = number
        self._texts[number] = (type_, expression)
        self._terms += found.terms
        while len(self._by_id) > FILTERS_MAX or self._terms > TERMS_KEPT_MAX:
            oldest, forgotten = self._by_id.popitem(last=False)
            self._terms -= forgotten.terms
            del self._ids[self._texts.pop(oldest)]
        return number

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


def short_look(registry: FilterRegistry, queues: Sequence[FetchQueue], answer: Fetched) -> int:
    """What it costs to sift an answer, if that is no more than a step; else 0."""
    asked = {(queue.topic_id, queue.queue_id): queue.filter_id for queue in queues}
    at = cost = 0
    for part in answer.parts:
        of_part, at = _buffers_of(answer.buffers, at, part.size)
        wanted = registry.get(asked[part.topic_id, part.queue_id])
        if wanted is not None:
            cost += cost_of(wanted, of_part, enough=STEP_COST - cost)
            if cost >= STEP_COST:
                return 0
    return max(1, cost)


def sift(
    registry: FilterRegistry, queues: Sequence[FetchQueue], answer: Fetched
) -> Generator[None, None, Sifted]:
    """Leave out of an answer what its filters do not want, in steps.

    Raises CorruptLogError if a column of a batch is damaged.
    """
    counts: list[tuple[int, int, int]] = []
    asked = {(queue.topic_id, queue.queue_id): queue for queue in queues}
    ends: dict[tuple[int, int], int] = {}
    parts: list[FetchPart] = []
    kept: list[Buffer] = []
    at = 0
    look = Look()
    for part in answer.parts:
        of_part, at = _buffers_of(answer.buffers, at, part.size)
        place = part.topic_id, part.queue_id
        filter_id = asked[place].filter_id
        wanted = registry.get(filter_id) if filter_id else None
        if filter_id and wanted is None:
            part, of_part = part._replace(code=FetchCode.UNKNOWN_FILTER, size=0), []
        elif wanted is not None and part.size:
            offset = asked[place].offset
            of_part, next_offset, messages = yield from _wanted(wanted, of_part, offset, look)
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


def unpacked_bytes(buffers: Iterable[Buffer]) -> int:
    """What a look at these batches holds: one compressed payload at a time, the largest."""
    headers = (header for buffer in buffers for _, header in iter_batches(buffer))
    return max((header.payload_raw_bytes for header in headers if header.codec), default=0)


def _buffers_of(buffers: Any, at: int, size: int) -> tuple[list[memoryview], int]:
    """The buffers from number `at` on that hold `size` bytes, and the number after them."""
    found: list[memoryview] = []
    while size > 0:
        found.append(memoryview(buffers[at]))
        size -= len(found[-1])
        at += 1
    assert size == 0, size
    return found, at


def _wanted(
    wanted: Filter, buffers: list[memoryview], offset: int, look: Look
) -> Generator[None, None, tuple[list[memoryview], int, int]]:
    """Stretches of whole batches with something wanted from `offset` on, the queue offset up to
    which was looked, and how many messages the stretches have."""
    found: list[memoryview] = []
    messages, next_offset = 0, offset
    for buffer in buffers:
        at = start = 0
        while at < len(buffer) and look.left > 0:
            view = BatchView(buffer, at)
            header = view.header
            first = max(0, offset - header.base_queue_offset)
            is_wanted, looked = yield from look.search(wanted, view, first)
            next_offset = header.base_queue_offset + looked
            end = at + header.size_bytes
            if is_wanted:
                messages += header.record_count
            else:
                if start < at:
                    found.append(buffer[start:at])
                start = end
            at = end
        if start < at:
            found.append(buffer[start:at])
    return found, next_offset, messages
