"""Pure: transactions: which half messages are open, and how the finished ones ended (R34).

A half is named for ever by its *source*: the physical offset of the batch in which it was first
stored, and its number in it. Each HALF batch is one entry in parallel arrays, with one byte of
outcome per record, so a finished transaction costs a byte until its batch leaves the log; only what
is open, checked or written again has entries of its own.

What changes a half is a record: the derived batch that put it into its queue (delivery and end are
one record), an OPERATION record (rollbacks, checks), a HALF batch with sources, which is old halves
written again at the log's end so that retention may go on (R14, R26), or a topic's deletion (R35).
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from paceline.records.decode import BatchView
from paceline.records.header import BatchHeader, Cause, Kind, pack_source, unpack_source
from paceline.types import PhysicalOffset
from paceline_broker.projections.consume_queues import queue_key, topic_of


class Ended(IntEnum):
    """What has become of a half; one byte each in the state."""

    OPEN = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    CHECKED_OUT = 3
    """Nobody decided it in time: it lies in the check-max topic."""
    DROPPED = 4
    """Its topic was deleted (R35)."""
    MOVED = 5
    """Not an end: the record was written again, and counts there."""


ENDED_BY = {Cause.COMMITTED: Ended.COMMITTED, Cause.CHECKED_OUT: Ended.CHECKED_OUT}
"""What a derived batch of that cause says of the halves it was made of."""


class Half(NamedTuple):
    """One half message as the log has it."""

    source: int
    """`pack_source` of where it was first stored: its name."""
    position: PhysicalOffset
    """Where its batch lies now."""
    number: int
    """Its number in that batch."""
    size_bytes: int
    """Of that batch."""
    key: int
    """Queue key of its target."""
    stored_unix_ms: int
    """When it was first stored, also if it was written again since."""
    ended: Ended


class Checked(NamedTuple):
    """How often producers were asked about an open half, and when last, in log time."""

    times: int
    last_unix_ms: int


class _Moved(NamedTuple):
    current: int
    stored_unix_ms: int


_HEAD = struct.Struct("<QQQQ")  # batches, records, moved, checked
_MOVED = struct.Struct("<QQq")
_CHECKED = struct.Struct("<QqI4x")
_OPEN_BYTE = bytes([Ended.OPEN])


class Transactions:
    """All transactions of a broker's log. Part of the one fold; see the module's text."""

    def __init__(self) -> None:
        self._positions = array("Q")
        self._keys = array("Q")
        self._stored = array("q")
        self._firsts = array("Q")
        """Number of each batch's first record since the log began; `_ended` begins at the first."""
        self._sizes = array("I")
        self._is_again = bytearray()
        """1: the batch holds halves written again, whose names are in `_source_of`."""
        self._ended = bytearray()
        self._open: dict[int, int] = {}
        """Position of each batch with open halves -> how many; in order of position."""
        self.open_count = 0
        self._moved: dict[int, _Moved] = {}
        self._source_of: dict[int, int] = {}
        """Where a half lies that was written again -> its name; the inverse of `_moved`."""
        self._checked: dict[int, Checked] = {}

    # -- the fold ----------------------------------------------------------------------------------

    def fold(self, header: BatchHeader, batch: BatchView) -> None:
        """A batch of messages that wait, or a derived one; of any feature."""
        if header.kind == Kind.HALF:
            self._add(header, batch.sources() if header.is_derived else ())
        elif header.kind == Kind.NORMAL and header.cause in ENDED_BY:
            self.close(batch.sources(), ENDED_BY[Cause(header.cause)])

    def _add(self, header: BatchHeader, sources: Sequence[int]) -> None:
        """`sources` names the halves if they are old ones written again."""
        position, count = int(header.physical_offset), header.record_count
        self._firsts.append(self._firsts[-1] + self._last_count() if self._firsts else 0)
        self._positions.append(position)
        self._keys.append(queue_key(header.topic_id, header.queue_id))
        self._stored.append(header.store_unix_ms)
        self._sizes.append(header.size_bytes)
        self._is_again.append(bool(sources))
        self._ended.extend(_OPEN_BYTE * count)
        self._open[position] = count
        self.open_count += count
        for index, source in enumerate(sources):
            self._move(source, pack_source(position, index))

    def _move(self, source: int, current: int) -> None:
        half = self.find(source)
        if half is None or half.ended is not Ended.OPEN:
            self._set(current, Ended.MOVED)  # the master writes again only what is open
            return
        before = self._moved.get(source)
        self._set(source if before is None else before.current, Ended.MOVED)
        if before is not None:
            del self._source_of[before.current]
        self._moved[source] = _Moved(current, half.stored_unix_ms)
        self._source_of[current] = source

    def close(self, sources: Sequence[int], ended: Ended) -> None:
        """Fold the end of halves; one that is not open stays as it is (R34)."""
        for source in sources:
            half = self.find(source)
            if half is not None and half.ended is Ended.OPEN:
                self._set(pack_source(half.position, half.number), ended)
                self._checked.pop(source, None)

    def apply(self, document: dict[str, Any], *, now_unix_ms: int) -> None:
        """Fold the transactions of an OPERATION record: see `operation_document`."""
        self.close(document.get("rolled_back", ()), Ended.ROLLED_BACK)
        for source in document.get("checked", ()):
            half = self.find(source)
            if half is not None and half.ended is Ended.OPEN:
                before = self._checked.get(source)
                count = 1 if before is None else before.times + 1
                self._checked[source] = Checked(count, now_unix_ms)

    def drop_topic(self, topic_id: int) -> None:
        """Open halves for a deleted topic can never be committed (R35)."""
        for position in list(self._open):
            at = self._at(position)
            if topic_of(self._keys[at]) != topic_id:
                continue
            for index in self._open_indexes(at):
                current = pack_source(position, index)
                self._checked.pop(self._source_of.get(current, current), None)
                self._set(current, Ended.DROPPED)

    def drop_below(self, log_start: int) -> None:
        """Fold a retention record: what is below is forgotten, open or not (R34)."""
        keep = bisect_left(self._positions, log_start)
        if keep == 0:
            return
        for position in [position for position in self._open if position < log_start]:
            self.open_count -= self._open.pop(position)
        beyond = self._firsts[keep] if keep < len(self._firsts) else None
        del self._ended[: len(self._ended) if beyond is None else beyond - self._firsts[0]]
        for column in (self._positions, self._keys, self._stored, self._firsts, self._sizes):
            del column[:keep]
        del self._is_again[:keep]
        gone = [
            source
            for source, moved in self._moved.items()
            if unpack_source(moved.current)[0] < log_start
        ]
        for source in gone:
            del self._source_of[self._moved.pop(source).current]
        for source in [source for source in self._checked if self.find(source) is None]:
            del self._checked[source]

    # -- inside ------------------------------------------------------------------------------------

    def _last_count(self) -> int:
        return len(self._ended) - (self._firsts[-1] - self._firsts[0])

    def _at(self, position: int) -> int:
        at = bisect_left(self._positions, position)
        assert self._positions[at] == position, position
        return at

    def _records(self, at: int) -> tuple[int, int]:
        """Where in `_ended` the records of batch number `at` are."""
        zero = self._firsts[0]
        end = self._firsts[at + 1] - zero if at + 1 < len(self._firsts) else len(self._ended)
        return self._firsts[at] - zero, end

    def _set(self, current: int, ended: Ended) -> None:
        """An open record ends, or goes elsewhere."""
        position, index = unpack_source(current)
        first, _ = self._records(self._at(position))
        assert self._ended[first + index] == Ended.OPEN, current
        self._ended[first + index] = ended
        self.open_count -= 1
        left = self._open[position] - 1
        if left:
            self._open[position] = left
        else:
            del self._open[position]

    def _open_indexes(self, at: int) -> list[int]:
        first, end = self._records(at)
        return [index for index, ended in enumerate(self._ended[first:end]) if not ended]

    # -- questions ---------------------------------------------------------------------------------

    def find(self, source: int) -> Half | None:
        """The half of that name; None if there is none, or it is forgotten (R34)."""
        moved = self._moved.get(source)
        position, index = unpack_source(source if moved is None else moved.current)
        at = bisect_left(self._positions, position)
        if at == len(self._positions) or self._positions[at] != position:
            return None
        first, end = self._records(at)
        if index >= end - first or bool(self._is_again[at]) != (moved is not None):
            return None  # a record of a batch written again has another name
        return Half(
            source,
            PhysicalOffset(position),
            index,
            self._sizes[at],
            self._keys[at],
            self._stored[at] if moved is None else moved.stored_unix_ms,
            Ended(self._ended[first + index]),
        )

    def checked(self, source: int) -> Checked:
        """What was asked so far of an open half."""
        return self._checked.get(source, Checked(0, 0))

    def oldest_open(self) -> PhysicalOffset | None:
        """Position of the oldest batch with an open half."""
        return PhysicalOffset(next(iter(self._open))) if self._open else None

    def open_batches(self, *, above: int = -1) -> list[PhysicalOffset]:
        """Positions of the batches with open halves, above a position; rising."""
        if not self._open or next(reversed(self._open)) <= above:
            return []
        positions = list(self._open)
        return [PhysicalOffset(found) for found in positions[bisect_right(positions, above) :]]

    def open_halves(self, position: int, *, limit: int | None = None) -> list[Half]:
        """The open halves of the batch at `position`, or the first `limit` of them."""
        if position not in self._open:
            return []
        found = []
        for index in self._open_indexes(self._at(position))[:limit]:
            current = pack_source(position, index)
            half = self.find(self._source_of.get(current, current))
            assert half is not None, current
            found.append(half)
        return found

    def open_by_topic(self) -> dict[int, int]:
        """How many halves are open for each target topic."""
        counts: dict[int, int] = {}
        for key, count in self.open_by_queue().items():
            counts[topic_of(key)] = counts.get(topic_of(key), 0) + count
        return counts

    def open_by_queue(self) -> dict[int, int]:
        """How many halves are open for each target queue (`queue_key`)."""
        counts: dict[int, int] = {}
        for position, count in self._open.items():
            key = self._keys[self._at(position)]
            counts[key] = counts.get(key, 0) + count
        return counts

    def all_open(self) -> Iterator[Half]:
        """Every open half, the oldest batch first."""
        for position in list(self._open):
            yield from self.open_halves(position)

    # -- checkpoints -------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Canonical bytes: equal states give equal bytes (INV-9)."""
        zero = self._firsts[0] if self._firsts else 0
        firsts = array("Q", (first - zero for first in self._firsts))
        columns = (self._positions, self._keys, self._stored, firsts, self._sizes)
        head = _HEAD.pack(
            len(self._positions), len(self._ended), len(self._moved), len(self._checked)
        )
        moved = (_MOVED.pack(source, *self._moved[source]) for source in sorted(self._moved))
        checked = (
            _CHECKED.pack(source, self._checked[source].last_unix_ms, self._checked[source].times)
            for source in sorted(self._checked)
        )
        parts = [head, *moved, *checked, *(column.tobytes() for column in columns)]
        return b"".join([*parts, bytes(self._is_again), bytes(self._ended)])

    @classmethod
    def restore(cls, snapshot: memoryview) -> "Transactions":
        """The state that `snapshot` was taken of."""
        found = cls()
        if not snapshot:  # of before feature level 3
            return found
        batches, records, moved_count, checked_count = _HEAD.unpack_from(snapshot)
        at = _HEAD.size
        for _ in range(moved_count):
            source, current, stored = _MOVED.unpack_from(snapshot, at)
            found._moved[source] = _Moved(current, stored)
            found._source_of[current] = source
            at += _MOVED.size
        for _ in range(checked_count):
            source, last, count = _CHECKED.unpack_from(snapshot, at)
            found._checked[source] = Checked(count, last)
            at += _CHECKED.size
        columns = (found._positions, found._keys, found._stored, found._firsts, found._sizes)
        for column in columns:
            size = batches * column.itemsize
            column.frombytes(snapshot[at : at + size])
            at += size
        found._is_again = bytearray(snapshot[at : at + batches])
        found._ended = bytearray(snapshot[at + batches : at + batches + records])
        for number, position in enumerate(found._positions):
            first, end = found._records(number)
            count = found._ended.count(_OPEN_BYTE, first, end)
            if count:
                found._open[position] = count
                found.open_count += count
        return found


def operation_document(
    *, rolled_back: Sequence[int] = (), checked: Sequence[int] = ()
) -> dict[str, Any]:
    """The document of an OPERATION record about transactions: sources of halves."""
    return {"transactions": {"checked": list(checked), "rolled_back": list(rolled_back)}}
