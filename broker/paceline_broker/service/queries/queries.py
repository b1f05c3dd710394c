"""Finding single messages: by id, by key, by unique key, by time of storing.

There is no index of keys to keep up on every send: a search walks the batches that the consume
queues name for the asked time, skips by header what cannot have it, and looks for the bytes of
the key in the key column before anything is decoded. It stops after `SEARCH_MS` and says where to
go on.

Only confirmed messages of queues are found (INV-8): half messages and those that wait for their
time are in none. Any readable replica may answer; what it has not got it does not deny (R3).
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

from paceline.errors import (
    BadRequestError,
    CorruptLogError,
    MessageNotFoundError,
    NoMasterError,
    NotMasterError,
    NotYetAvailableError,
)
from paceline.platform.runtime import pause
from paceline.records.decode import BatchView, Record
from paceline.records.header import (
    COLUMN_KEY,
    COLUMN_PROPERTY,
    HEADER_BYTES,
    SEQUENCE_MAX,
    BatchHeader,
    Section,
    parse_header,
)
from paceline.types import GroupName, PhysicalOffset
from paceline.wire import properties as names
from paceline.wire.http import message_to_json
from paceline.wire.message_ids import OffsetMessageId, UniqueKey, parse_unique_key, unique_key
from paceline_broker.ports import Role
from paceline_broker.projections.consume_queues import queue_key, queue_of
from paceline_broker.service.fetch.bulk_reads import Planner
from paceline_broker.service.long_work import LongWork
from paceline_broker.service.retry.source_messages import DAMAGED, read_batch, source_of

SEARCH_MS = 2_000
"""Of one request; the rest by asking again from where it stopped."""
TURN_BYTES = 256 * 1024
"""After so much was looked at, others have their turn on the loop."""
PIECE_RECORDS = 1024
"""Of one batch, looked at in one turn."""
RESULTS_DEFAULT = 32
RESULTS_MAX = 64
"""RocketMQ's defaultQueryMaxNum and maxMsgsNumBatch."""


def no_message(message_id: OffsetMessageId) -> MessageNotFoundError:
    """What is told of an id that no message has."""
    return MessageNotFoundError(f"no message {message_id}: it was deleted, or never was")


_PLAIN = re.compile(r"[A-Za-z0-9._:@-]+", re.ASCII).fullmatch
"""Text that JSON has as it is."""


class Range(NamedTuple):
    """What to look through: store times [begin, end], and from which (queue, offset) on."""

    begin_unix_ms: int
    end_unix_ms: int
    queues: Sequence[int]
    first_offset: int
    """In the first queue, where an earlier answer stopped."""


class Matches(NamedTuple):
    """What is looked for: whole batches are ruled out first, then records chosen."""

    maybe: Callable[[BatchHeader], bool]
    numbers: Callable[[BatchView, int, int], Sequence[int]]
    """Of the records from one number to before another."""


Row: TypeAlias = dict[str, Any]


class _Place(NamedTuple):
    key: int
    base: int
    position: int
    size: int


class Finder:
    """Searches of one broker."""

    def __init__(self, role: Role, work: LongWork) -> None:
        self._role = role
        self._work = work
        self._planner = Planner(role)

    async def by_id(self, message_id: OffsetMessageId) -> tuple[int, Row]:
        """Topic id and message of a place in the log.

        MessageNotFoundError: no queue has a message there (any more). NotYetAvailableError.
        """
        position, number = PhysicalOffset(message_id.position), message_id.number
        reader = self._role.reader
        gone = no_message(message_id)
        if position < reader.start:
            raise gone
        if position + HEADER_BYTES > reader.confirm:
            if self._is_beyond(position):
                raise gone
            raise NotYetAvailableError(f"position {position:x} is not confirmed here")
        head = reader.read(position, HEADER_BYTES)
        if reader.is_cold(head):
            await reader.warm(head)
        # Any bytes may stand there, a body as well: the index says what is a batch.
        try:
            header = parse_header(head)
        except CorruptLogError:
            if reader.is_damaged(position, PhysicalOffset(position + HEADER_BYTES)):
                raise NotYetAvailableError(DAMAGED) from None  # not denied (R3, R24)
            raise gone from None
        queue = self._role.projections.consume_queues.get(
            queue_key(header.topic_id, header.queue_id)
        )
        is_batch = queue is not None and queue.position_of(header.base_queue_offset) == position
        if queue is None or not is_batch or number >= header.record_count:
            raise gone
        if header.base_queue_offset + number < queue.start:
            raise gone
        view = await self._view(_Place(queue.key, 0, position, header.size_bytes))
        if view is None:
            raise gone
        [row] = _rows(view, [number], message_id.group)
        return header.topic_id, row

    def _is_beyond(self, position: int) -> bool:
        """Whether no log has come so far: an open master knows (R3)."""
        try:
            writer = self._role.writer()
        except (NotMasterError, NoMasterError):
            return False
        return writer.is_open and position >= writer.end

    async def search(
        self, topic_id: int, asked: Range, matches: Matches, *, count_max: int
    ) -> tuple[list[Row], tuple[int, int] | None]:
        """Messages in order of queues and offsets, and where to go on; None: all was looked at."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SEARCH_MS / 1000
        found: list[Row] = []
        looked = 0
        group = self._role.identity.group
        async for place in self._places(topic_id, asked):
            queue_id = queue_of(place.key)
            if len(found) >= count_max or loop.time() > deadline:
                return found, (queue_id, place.base)
            looked += place.size  # of those that are ruled out as well: their bytes are checked
            if looked > TURN_BYTES:
                looked = place.size
                await pause(0)
            view = await self._view(place)
            if view is None or not matches.maybe(view.header):
                continue
            room = count_max - len(found)
            numbers = await self._numbers(view, place, matches, room + 1)
            found += _rows(view, numbers[:room], group)
            if len(numbers) > room:
                return found, (queue_id, view.header.base_queue_offset + numbers[room])
        return found, None

    async def _numbers(
        self, view: BatchView, place: _Place, matches: Matches, count_max: int
    ) -> list[int]:
        """The first records of a batch that match; in steps where it is compressed, or long."""
        steps = _matching(view, place.base - view.header.base_queue_offset, matches, count_max)
        header = view.header
        if not header.codec and header.record_count <= PIECE_RECORDS:
            try:
                next(steps)
            except StopIteration as end:
                found: list[int] = end.value
                return found
        raw_bytes = header.payload_raw_bytes if header.codec else 0
        return await self._work.run(steps, asker=None, raw_bytes=raw_bytes)

    async def _places(self, topic_id: int, asked: Range) -> AsyncIterator[_Place]:
        """Batches of the queues that were stored in the asked time."""
        for index, queue_id in enumerate(asked.queues):
            key = queue_key(topic_id, queue_id)
            low = (await self._planner.offset_at(key, asked.begin_unix_ms))["offset"]
            high = (await self._planner.offset_at(key, asked.end_unix_ms + 1))["offset"]
            if index == 0:
                low = max(low, asked.first_offset)
            queue = self._role.projections.consume_queues.get(key)
            if queue is None or low >= high:
                continue
            first, beyond = queue.entries(low, high)
            bases, positions = queue.index(first, beyond)
            sizes = queue.sizes(first, beyond)
            for base, position, size in zip(bases, positions, sizes, strict=True):
                yield _Place(key, max(base, low), position, size)

    async def _view(self, place: _Place) -> BatchView | None:
        """The batch; None if retention has taken it meanwhile."""
        reader = self._role.reader
        if place.position < reader.start:
            return None
        return await read_batch(reader, PhysicalOffset(place.position), place.size)


def _matching(
    view: BatchView, first: int, matches: Matches, count_max: int
) -> Generator[None, None, list[int]]:
    if view.header.codec:
        view.payload()
        yield
    found: list[int] = []
    count = view.header.record_count
    while first < count and len(found) < count_max:
        end = min(count, first + PIECE_RECORDS)
        found += matches.numbers(view, first, end)
        first = end
        if first < count:
            yield
    return found


def everything() -> Matches:
    """All messages of a time."""
    return Matches(lambda header: True, lambda view, first, end: range(first, end))


def by_key(key: str) -> Matches:
    """Messages with that key, exactly: their only one, or one of several (`names.KEYS`)."""
    wanted = key.encode()

    def numbers(view: BatchView, first: int, end: int) -> Sequence[int]:
        is_whole = first == 0 and end == view.header.record_count
        if is_whole and wanted not in bytes(view.section(Section.KEY_BLOB)):
            return _one_of_several(view, key, first, end)
        found = [number for number, each in enumerate(view.keys(first, end), first) if each == key]
        return sorted({*found, *_one_of_several(view, key, first, end)})

    return Matches(lambda header: bool(header.columns & COLUMN_KEY), numbers)


def _one_of_several(view: BatchView, key: str, first: int, end: int) -> Sequence[int]:
    """Numbers of records that have several keys, of which this is one."""
    if not _may_say(view, key):
        return ()
    rows = enumerate(view.properties(first, end), first)
    return [number for number, row in rows if key in row.get(names.KEYS, "").split()]


def _may_say(view: BatchView, text: str) -> bool:
    """Whether a property of the batch may hold the text. Doors write it as it is, not in escapes,
    if it needs none."""
    if not view.header.columns & COLUMN_PROPERTY:
        return False
    return not _PLAIN(text) or text.encode() in bytes(view.section(Section.PROPERTY_BLOB))


def by_unique_key(text: str, group: GroupName) -> Matches:
    """The message that has this unique key, and all that brokers made of it. A text that is no name
    by a producer's sequence is one that a client has given its message."""
    try:
        wanted = parse_unique_key(text)
    except BadRequestError:
        return _by_client_key(text)

    def maybe(header: BatchHeader) -> bool:
        return header.is_of_broker or _number_of(header, wanted, group) is not None

    def numbers(view: BatchView, first: int, end: int) -> Sequence[int]:
        if not view.header.is_of_broker:
            number = _number_of(view.header, wanted, group)
            return () if number is None or not first <= number < end else [number]
        rows = enumerate(view.properties(first, end), first)
        return [number for number, row in rows if row.get(names.UNIQ_KEY) == text]

    return Matches(maybe, numbers)


def _by_client_key(text: str) -> Matches:
    def numbers(view: BatchView, first: int, end: int) -> Sequence[int]:
        if not _may_say(view, text):
            return ()
        rows = enumerate(view.properties(first, end), first)
        return [number for number, row in rows if row.get(names.UNIQ_KEY) == text]

    return Matches(lambda header: bool(header.columns & COLUMN_PROPERTY), numbers)


def born_between(matches: Matches, begin_unix_ms: int, end_unix_ms: int) -> Matches:
    """Those of the messages that were born then, both ends included. No batch is ruled out: its
    records come in the order of their offsets, and clocks may go back."""

    def numbers(view: BatchView, first: int, end: int) -> Sequence[int]:
        born = view.born(first, end)
        return [
            number
            for number in matches.numbers(view, first, end)
            if begin_unix_ms <= born[number - first] <= end_unix_ms
        ]

    return Matches(matches.maybe, numbers)


def _number_of(
    header: BatchHeader, wanted: UniqueKey | OffsetMessageId, group: GroupName
) -> int | None:
    """Which record of a client's batch has the unique key."""
    if isinstance(wanted, OffsetMessageId):
        is_there = wanted.group == group and wanted.position == header.physical_offset
        return wanted.number if is_there and not header.producer_id else None
    if (header.producer_id, header.producer_epoch, header.topic_id, header.queue_id) != wanted[:4]:
        return None
    number = (wanted.sequence - header.base_sequence) & SEQUENCE_MAX
    return number if number < header.record_count else None


def _rows(view: BatchView, numbers: Sequence[int], group: GroupName | str) -> list[Row]:
    return [_row(view, number, group) for number in numbers]


def _row(view: BatchView, number: int, group: str) -> Row:
    header = view.header
    found = source_of(view, header.base_queue_offset + number)
    record = Record(
        found.offset,
        found.body,
        found.message_key or None,
        found.tag,
        found.properties,
        found.born_unix_ms,
    )
    place = OffsetMessageId(group, header.physical_offset, number)
    unique = found.properties.get(names.UNIQ_KEY) or unique_key(header, number, group)
    return {
        **message_to_json(record._asdict(), header.store_unix_ms),
        "group": group,
        "queue": header.queue_id,
        "message_id": str(place),
        "unique_key": unique,
        "cause": header.cause,
    }


def check_range(name: str, begin_unix_ms: int, end_unix_ms: int) -> None:
    """BadRequestError unless the times are in order. `name`: of the field with the first."""
    if begin_unix_ms > end_unix_ms:
        end = name.replace("begin", "end")
        raise BadRequestError(f"{name} is after {end}", field=name)
