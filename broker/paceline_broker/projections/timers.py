"""Pure: messages that wait for a due time: what is pending, where its record lies, where it goes.

An entry is a record of a DELAY batch: its source (`pack_source`), its due time, its target queue.
A DELAY batch adds entries; the batch that delivers them closes them (R34), a recall does, and a
batch that stores them anew at the log's end (R26) moves them. Nothing here knows a clock or a body.

A million entries take some 36 MB: they stand in *chunks*, arrays in order of source, as the log
gives them; a second index has the sources of each second of due time (*buckets*). Whatever is
closed stays as a gap until a chunk or a bucket is mostly gaps.

Deleting a topic closes nothing here: what is due for it becomes a dead letter (R35).
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, compress, groupby, repeat
from typing import NamedTuple

from sortedcontainers import SortedList

from paceline.records.decode import BatchView
from paceline.records.header import SOURCE_INDEX_BITS, BatchHeader, Cause, Kind
from paceline_broker.projections.consume_queues import queue_key, topic_of

CHUNK_ENTRIES = 4096
"""Closing a chunk's gaps takes some 100 us."""
BUCKET_MS = 1000
LOOKED_AT_MAX = 10_000
"""In one question, which then takes some 10 ms."""
RECALL_KNOWN_MS = 60_000
"""A client that repeats a recall without an answer gets it for so long, in log time."""
_GAPS_MIN = 256
"""Fewer gaps in a bucket are not worth closing before its second has come."""
_CLOSED = -1
_SOURCE_BITS = 64
_SOURCE_MASK = 2**_SOURCE_BITS - 1
_COUNTS = struct.Struct("<QQQ")
_NONE_SKIPPED: frozenset[int] = frozenset()


class Due(NamedTuple):
    """One pending entry."""

    source: int
    due_unix_ms: int
    key: int
    """Of the queue it goes to (`queue_key`)."""


class _Chunk:
    """Entries in order of source; a closed one has due time `_CLOSED`."""

    __slots__ = ("dues", "keys", "pending", "sources")

    def __init__(self) -> None:
        self.sources = array("Q")
        self.dues = array("q")
        self.keys = array("Q")
        self.pending = 0

    def close_gaps(self) -> None:
        if self.pending == len(self.dues):
            return
        kept = [due != _CLOSED for due in self.dues]
        self.sources = array("Q", compress(self.sources, kept))
        self.keys = array("Q", compress(self.keys, kept))
        self.dues = array("q", compress(self.dues, kept))

    def extend(self, other: "_Chunk") -> None:
        self.sources += other.sources
        self.dues += other.dues
        self.keys += other.keys
        self.pending += other.pending


class _Bucket:
    """Sources that are due within one second; some may be closed."""

    __slots__ = ("closed", "done", "order", "parts_ms", "passed", "sources")

    def __init__(self) -> None:
        self.sources = array("Q")
        self.parts_ms = array("H")
        """Beside `sources`: milliseconds within the second."""
        self.closed = 0
        self.order: list[int] | None = None
        """Once opened: milliseconds and source in one number, in order. Not state."""
        self.done = 0
        """Entries of `order` before this one are closed."""
        self.passed = 0
        """Those before this one are closed, or skipped by who asks what is due. Not state."""

    def open(self) -> list[int]:
        if self.order is None:
            pairs = zip(self.parts_ms, self.sources, strict=True)
            self.order = sorted(part << _SOURCE_BITS | source for part, source in pairs)
        return self.order

    def add(self, source: int, part_ms: int) -> None:
        self.sources.append(source)
        self.parts_ms.append(part_ms)
        if self.order is not None:
            at = bisect_left(self.order, part_ms << _SOURCE_BITS | source, lo=self.done)
            self.order.insert(at, part_ms << _SOURCE_BITS | source)
            self.passed = min(self.passed, at)


class Timers:
    """All messages of a broker's log that wait for their time."""

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._firsts: list[int] = []
        """First source of each chunk."""
        self._buckets: dict[int, _Bucket] = {}
        self._seconds: SortedList[int] = SortedList()
        self._origins: dict[int, int] = {}
        """Of entries that were moved: the source they were first stored as."""
        self._moved: dict[int, int] = {}
        """The other way round."""
        self._recalled: dict[int, tuple[int, int]] = {}
        """Taken back lately, by first source: (log time until which it is known, queue key)."""
        self.by_topic: dict[int, int] = {}
        """Pending entries of each target topic."""
        self.by_queue: dict[int, int] = {}
        """Pending entries of each target queue (`queue_key`)."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    # -- the fold ----------------------------------------------------------------------------------

    def fold(self, header: BatchHeader, batch: BatchView) -> None:
        """A batch of messages that wait, or a derived one; of any feature."""
        if header.kind == Kind.DELAY:
            if header.cause == Cause.AGAIN:
                self.move(header, batch.due(), batch.sources())
            else:
                self.add(header, batch.due())
        elif header.kind == Kind.NORMAL and self._count:
            self.close_all(batch.sources())

    def recall(self, sources: Iterable[int], *, now_unix_ms: int) -> None:
        """Entries are taken back; for a while it is known, for who repeats the request."""
        for source in sources:
            entry = self.find(source)
            if entry is not None:
                origin = self.origin(source)
                self.close(source)
                self._recalled[origin] = (now_unix_ms + RECALL_KNOWN_MS, entry.key)
        while self._recalled:
            oldest = next(iter(self._recalled))
            if self._recalled[oldest][0] > now_unix_ms:
                break
            del self._recalled[oldest]

    def close_all(self, sources: Iterable[int]) -> None:
        """Those of them that are pending; the others belong to other features, or are done."""
        for source in sources:
            self.close(source)

    def add(self, header: BatchHeader, dues: Sequence[int]) -> None:
        """Take in a DELAY batch."""
        key = queue_key(header.topic_id, header.queue_id)
        first = header.physical_offset << SOURCE_INDEX_BITS
        self._append(range(first, first + len(dues)), dues, repeat(key, len(dues)))
        self._counted(key, len(dues))

    def move(self, header: BatchHeader, dues: Sequence[int], sources: Sequence[int]) -> None:
        """Take in a DELAY batch that stores pending entries anew: `sources` are what they were.

        One that is not pending any more is not moved.
        """
        key = queue_key(header.topic_id, header.queue_id)
        first = header.physical_offset << SOURCE_INDEX_BITS
        for new, (due, old) in enumerate(zip(dues, sources, strict=True), start=first):
            origin = self._origins.get(old, old)
            if self.close(old):
                self._append((new,), (due,), (key,))
                self._origins[new] = origin
                self._moved[origin] = new
                self._counted(key, 1)

    def close(self, source: int) -> bool:
        """An entry was delivered or recalled; False if it was not pending."""
        at, index = self._place(source)
        if index < 0:
            return False
        chunk = self._chunks[at]
        due = chunk.dues[index]
        key = chunk.keys[index]
        chunk.dues[index] = _CLOSED
        chunk.pending -= 1
        self._counted(key, -1)
        if self._origins:
            self._moved.pop(self._origins.pop(source, source), None)
        self._tidy_chunk(at)
        self._close_in_bucket(due // BUCKET_MS)
        return True

    def _counted(self, key: int, more: int) -> None:
        self._count += more
        for counts, target in ((self.by_topic, topic_of(key)), (self.by_queue, key)):
            count = counts.get(target, 0) + more
            if count:
                counts[target] = count
            else:
                del counts[target]

    def _append(
        self, sources: Sequence[int], dues: Sequence[int], keys: Iterator[int] | Sequence[int]
    ) -> None:
        """Sources rise, and are above all that are here."""
        keys = array("Q", keys)
        at = 0
        while at < len(dues):
            if not self._chunks or len(self._chunks[-1].dues) >= CHUNK_ENTRIES:
                self._chunks.append(_Chunk())
                self._firsts.append(sources[at])
            chunk = self._chunks[-1]
            end = min(len(dues), at + CHUNK_ENTRIES - len(chunk.dues))
            chunk.sources.extend(sources[at:end])
            chunk.dues.extend(dues[at:end])
            chunk.keys.extend(keys[at:end])
            chunk.pending += end - at
            at = end
        self._append_to_buckets(sources, dues)

    def _append_to_buckets(self, sources: Sequence[int], dues: Sequence[int]) -> None:
        at = 0
        for second, group in groupby(dues, key=BUCKET_MS.__rfloordiv__):
            parts = [due % BUCKET_MS for due in group]
            bucket = self._buckets.get(second)
            if bucket is None:
                bucket = self._buckets[second] = _Bucket()
                self._seconds.add(second)
            if bucket.order is None:
                bucket.sources.extend(sources[at : at + len(parts)])
                bucket.parts_ms.extend(parts)
            else:
                for offset, part in enumerate(parts):
                    bucket.add(sources[at + offset], part)
            at += len(parts)

    def _tidy_chunk(self, at: int) -> None:
        """Give back the room of closed entries, once they are most of a chunk."""
        chunk = self._chunks[at]
        if chunk.pending == 0:
            del self._chunks[at], self._firsts[at]
        elif chunk.pending * 4 < len(chunk.dues):
            chunk.close_gaps()
            self._firsts[at] = chunk.sources[0]
            if at and len(self._chunks[at - 1].dues) + chunk.pending <= CHUNK_ENTRIES // 2:
                self._chunks[at - 1].extend(chunk)
                del self._chunks[at], self._firsts[at]

    def _close_in_bucket(self, second: int) -> None:
        bucket = self._buckets[second]
        bucket.closed += 1
        count = len(bucket.sources)
        if bucket.closed == count:
            del self._buckets[second]
            self._seconds.remove(second)
        elif bucket.closed * 2 > count and bucket.closed >= _GAPS_MIN and bucket.order is None:
            kept = [self.find(source) is not None for source in bucket.sources]
            bucket.sources = array("Q", compress(bucket.sources, kept))
            bucket.parts_ms = array("H", compress(bucket.parts_ms, kept))
            bucket.closed = 0

    # -- questions ---------------------------------------------------------------------------------

    def find(self, source: int) -> Due | None:
        """The pending entry of a source."""
        at, index = self._place(source)
        if index < 0:
            return None
        chunk = self._chunks[at]
        return Due(source, chunk.dues[index], chunk.keys[index])

    def _place(self, source: int) -> tuple[int, int]:
        """Chunk and index of a pending entry; (0, -1) if it is none."""
        at = bisect_right(self._firsts, source) - 1
        if at < 0:
            return 0, -1
        sources = self._chunks[at].sources
        index = bisect_left(sources, source)
        if index == len(sources) or sources[index] != source:
            return 0, -1
        return (0, -1) if self._chunks[at].dues[index] == _CLOSED else (at, index)

    def find_origin(self, origin: int) -> Due | None:
        """The pending entry that was first stored as `origin`, wherever it was moved since."""
        return self.find(self._moved.get(origin, origin))

    def recalled_key(self, origin: int, now_unix_ms: int) -> int | None:
        """Queue key of an entry that was taken back lately."""
        until_ms, key = self._recalled.get(origin, (0, 0))
        return key if until_ms > now_unix_ms else None

    def origin(self, source: int) -> int:
        """What a pending entry was first stored as."""
        return self._origins.get(source, source)

    def due(
        self,
        now_unix_ms: int,
        *,
        below: int,
        max_count: int,
        skip: Collection[int] = _NONE_SKIPPED,
    ) -> list[Due]:
        """Entries that are due, the earliest first, of batches below position `below`.

        What was skipped once is not looked at again before `look_again`, while `skip` only grows.
        """
        found: list[Due] = []
        limit = below << SOURCE_INDEX_BITS
        for second in self._seconds.irange(maximum=now_unix_ms // BUCKET_MS):
            bucket = self._buckets[second]
            order = bucket.open()
            last = ((now_unix_ms - second * BUCKET_MS + 1) << _SOURCE_BITS) - 1
            bucket.passed = max(bucket.done, bucket.passed)
            for at in range(bucket.passed, len(order)):
                if order[at] > last:
                    break
                source = order[at] & _SOURCE_MASK
                entry = self.find(source)
                if entry is None or source in skip:  # not looked at again
                    bucket.done += entry is None and at == bucket.done
                    bucket.passed += at == bucket.passed
                elif source < limit:
                    found.append(entry)
                    if len(found) == max_count:
                        return found
        return found

    def look_again(self) -> None:
        """The next question of what is due looks at all of it."""
        for bucket in self._buckets.values():
            bucket.passed = 0

    def due_after(self, last: tuple[int, int], until_ms: int, max_count: int) -> list[Due]:
        """Entries due up to then, the earliest first, that come after `last`: (due time, source).

        For who does not close what he has dealt with, and goes on where he stopped.
        """
        found: list[Due] = []
        for second in self._seconds.irange(last[0] // BUCKET_MS, until_ms // BUCKET_MS):
            start_ms: int = second * BUCKET_MS
            order = self._buckets[second].open()
            first = (max(last[0] - start_ms, 0) << _SOURCE_BITS) | last[1]
            at = bisect_right(order, first) if start_ms <= last[0] else 0
            while at < len(order) and len(found) < max_count:
                part_ms, source = order[at] >> _SOURCE_BITS, order[at] & _SOURCE_MASK
                at += 1
                if start_ms + part_ms > until_ms:
                    break
                entry = self.find(source)
                if entry is not None:
                    found.append(entry)
            if len(found) == max_count:
                break
        return found

    def next_due_ms(self) -> int | None:
        """No entry is due before this, but for those skipped; None: no other is pending."""
        for second in self._seconds:
            bucket = self._buckets[second]
            at = max(bucket.done, bucket.passed)
            start_ms: int = second * BUCKET_MS
            if bucket.order is None:
                return start_ms
            if at < len(bucket.order):  # else all of it is skipped for now
                return start_ms + (bucket.order[at] >> _SOURCE_BITS)
        return None

    def next_due_after(self, unix_ms: int) -> int | None:
        """No entry is due after that time and before this one; None: none is due after it."""
        for second in self._seconds.irange(minimum=unix_ms // BUCKET_MS):
            start_ms: int = second * BUCKET_MS
            if start_ms > unix_ms:
                return start_ms
            order = self._buckets[second].open()
            at = bisect_left(order, (unix_ms - start_ms + 1) << _SOURCE_BITS)
            if at < len(order):
                return start_ms + (order[at] >> _SOURCE_BITS)
        return None

    def count_in_second(self, due_unix_ms: int) -> int:
        """Entries in the same second as a due time."""
        bucket = self._buckets.get(due_unix_ms // BUCKET_MS)
        return 0 if bucket is None else len(bucket.sources) - bucket.closed

    def oldest(self) -> int | None:
        """Source of the pending entry that lies lowest in the log."""
        if not self._chunks:
            return None
        chunk = self._chunks[0]
        return next(compress(chunk.sources, (due != _CLOSED for due in chunk.dues)))

    def below(self, position: int, max_count: int) -> list[Due]:
        """Pending entries of batches below `position`, in order of source."""
        limit = position << SOURCE_INDEX_BITS
        found: list[Due] = []
        for chunk in self._chunks:
            for entry in map(Due, chunk.sources, chunk.dues, chunk.keys):
                if entry.source >= limit or len(found) == max_count:
                    return found
                if entry.due_unix_ms != _CLOSED:
                    found.append(entry)
        return found

    def first_due(self, max_count: int, topic_id: int | None = None) -> list[Due]:
        """Pending entries by due time, the next one first; of one topic, if it is given.

        At most `LOOKED_AT_MAX` entries are looked at, so of a rare topic not all may be found.
        """
        found: list[Due] = []
        looked_at = 0
        for second in self._seconds:
            bucket = self._buckets[second]
            order = bucket.open()
            for at in range(bucket.done, len(order)):
                if len(found) == max_count or looked_at == LOOKED_AT_MAX:
                    return found
                looked_at += 1
                entry = self.find(order[at] & _SOURCE_MASK)
                if entry is not None and topic_id in (None, topic_of(entry.key)):
                    found.append(entry)
        return found

    # -- checkpoints -------------------------------------------------------------------------------

    def snapshot(self, log_time_ms: int) -> list[bytes]:
        """In pieces, canonical at that log time: the pending entries in order of source, where
        moved ones came from, and what was taken back lately."""
        for chunk in self._chunks:
            chunk.close_gaps()
        for at, chunk in enumerate(self._chunks):
            self._firsts[at] = chunk.sources[0]
        origins = sorted(self._origins.items())
        recalled = [
            (origin, until_ms, key)
            for origin, (until_ms, key) in sorted(self._recalled.items())
            if until_ms > log_time_ms
        ]
        parts = [_COUNTS.pack(len(self), len(origins), len(recalled))]
        for name in ("sources", "dues", "keys"):
            parts.extend(getattr(chunk, name).tobytes() for chunk in self._chunks)
        parts.append(array("Q", chain.from_iterable(origins)).tobytes())
        parts.append(array("Q", chain.from_iterable(recalled)).tobytes())
        return parts

    @classmethod
    def restore(cls, snapshot: memoryview) -> "Timers":
        timers = cls()
        if not snapshot:
            return timers  # a checkpoint of before feature level 3
        count, moved, recalled = _COUNTS.unpack_from(snapshot)
        numbers = snapshot[_COUNTS.size :]
        sources, dues, keys = array("Q"), array("q"), array("Q")
        for column in (sources, dues, keys):
            column.frombytes(numbers[: 8 * count])
            numbers = numbers[8 * count :]
        timers._append(sources, dues, keys)
        timers.by_queue = dict(Counter(keys))
        timers.by_topic = dict(Counter(topic_of(key) for key in keys))
        timers._count = count
        pairs = numbers[: 16 * moved].cast("Q").tolist()
        timers._origins = dict(zip(pairs[::2], pairs[1::2], strict=True))
        timers._moved = dict(zip(pairs[1::2], pairs[::2], strict=True))
        rows = numbers[16 * moved : 16 * moved + 24 * recalled].cast("Q").tolist()
        known = sorted(zip(rows[1::3], rows[::3], rows[2::3], strict=True))
        timers._recalled = {origin: (until_ms, key) for until_ms, origin, key in known}
        return timers
