"""Pure: which messages were sent back, became dead letters or were resent (R28, R34).

A derived batch with such a cause names the records it was made from, and the fold notes the pair:
(topic it was made for, source) -> the record made. So a source is made into a record of a retry,
dead-letter or other topic once: who asks again, because the first answer was lost or the message
was handed out twice, is told of what there is. Only a reset of the group on the source's queue
allows it anew: then the message was meant to be consumed again.

A pair is kept until its source leaves the log: before, the message may be handed out again. It
costs 16 bytes, fewer than the consume queue's entry of the batch that was made, and lies in chunks
by the source's place, so that retention drops whole chunks.
"""

import struct
from array import array
from bisect import bisect_left
from typing import Any

from paceline.records.decode import BatchView
from paceline.records.header import (
    SOURCE_INDEX_BITS,
    BatchHeader,
    Cause,
    Kind,
    pack_source,
)
from paceline_broker.projections.consume_queues import topic_of

NOTED = frozenset(
    {(Kind.DELAY, Cause.RETRIED), (Kind.NORMAL, Cause.DEAD), (Kind.NORMAL, Cause.RESENT)}
)
"""(kind, cause) of the batches whose sources are noted here."""
_CHUNK_BITS = SOURCE_INDEX_BITS + 22
"""Sources of 4 MiB of log stand together, sorted: inserting one moves a few pages at most."""
_HEAD = struct.Struct("<QQ")  # topic id, count of pairs
_COUNT = struct.Struct("<Q")


class _Chunk:
    """Pairs in order of their sources."""

    __slots__ = ("made", "sources")

    def __init__(self) -> None:
        self.sources = array("Q")
        self.made = array("Q")

    def put(self, source: int, made: int) -> None:
        sources = self.sources
        if not sources or source > sources[-1]:
            sources.append(source)
            self.made.append(made)
            return
        at = bisect_left(sources, source)
        if sources[at] == source:  # made again after a reset: the newest counts
            self.made[at] = made
            return
        sources.insert(at, source)
        self.made.insert(at, made)

    def get(self, source: int) -> int | None:
        at = bisect_left(self.sources, source)
        if at < len(self.sources) and self.sources[at] == source:
            return self.made[at]
        return None


class SendBacks:
    """The pairs, by topic id of the record made and by chunk of the source; and resets."""

    def __init__(self) -> None:
        self._topics: dict[int, dict[int, _Chunk]] = {}
        self._resets: dict[tuple[str, int], int] = {}
        """(consumer group, queue key) -> position of the last reset record."""

    def made(self, topic_id: int, source: int) -> int | None:
        """What was made for that topic out of a source (both as `pack_source`); None: nothing."""
        chunk = self._topics.get(topic_id, {}).get(source >> _CHUNK_BITS)
        return None if chunk is None else chunk.get(source)

    def made_for(self, topic_id: int, source: int, *, group: str, key: int) -> int | None:
        """The same, unless the group was reset on the source's queue since."""
        made = self.made(topic_id, source)
        if made is None or made >> SOURCE_INDEX_BITS < self._resets.get((group, key), 0):
            return None
        return made

    def fold(self, header: BatchHeader, batch: BatchView) -> None:
        """Note the sources of a derived batch, if its cause is one of `NOTED`."""
        if (header.kind, header.cause) not in NOTED:
            return
        chunks = self._topics.setdefault(header.topic_id, {})
        for index, source in enumerate(batch.sources()):
            chunk = chunks.get(source >> _CHUNK_BITS)
            if chunk is None:
                chunk = chunks[source >> _CHUNK_BITS] = _Chunk()
            chunk.put(source, pack_source(header.physical_offset, index))

    def note_reset(self, group: str, key: int, position: int) -> None:
        """The group begins anew on a queue, by the record at `position`."""
        self._resets[(group, key)] = position

    def drop_below(self, log_start: int) -> None:
        """Forget sources that left the log: nobody is handed them any more."""
        least = pack_source(log_start, 0)
        for topic_id, chunks in list(self._topics.items()):
            for number in [number for number in chunks if number <= least >> _CHUNK_BITS]:
                chunk = chunks[number]
                gone = bisect_left(chunk.sources, least)
                del chunk.sources[:gone], chunk.made[:gone]
                if not chunk.sources:
                    del chunks[number]
            if not chunks:
                del self._topics[topic_id]
        # A reset concerns what was made before it, out of what came before that.
        for at in [at for at, position in self._resets.items() if position < log_start]:
            del self._resets[at]

    def drop_topic(self, topic_id: int) -> None:
        """Everything that was made for a deleted topic, and resets of its queues (R35)."""
        self._topics.pop(topic_id, None)
        for at in [at for at in self._resets if topic_of(at[1]) == topic_id]:
            del self._resets[at]

    def drop_group(self, group: str) -> None:
        """Its resets; what was made for it goes with its topics."""
        for at in [at for at in self._resets if at[0] == group]:
            del self._resets[at]

    def topic_ids(self) -> set[int]:
        return set(self._topics) | {topic_of(key) for _, key in self._resets}

    def __len__(self) -> int:
        return sum(
            len(chunk.sources) for chunks in self._topics.values() for chunk in chunks.values()
        )

    # -- checkpoints -------------------------------------------------------------------------------

    def resets_json(self, log_start: int = 0) -> list[list[Any]]:
        return [
            [group, key, at] for (group, key), at in sorted(self._resets.items()) if at >= log_start
        ]

    def snapshot(self, log_start: int = 0) -> bytes:
        """Canonical, as if what lies below `log_start` had been dropped already."""
        least = pack_source(log_start, 0)
        topics = []
        for topic_id in sorted(self._topics):
            sources, made = array("Q"), array("Q")
            for number in sorted(self._topics[topic_id]):
                chunk = self._topics[topic_id][number]
                keep = bisect_left(chunk.sources, least)
                sources.extend(chunk.sources[keep:])
                made.extend(chunk.made[keep:])
            if sources:
                head = _HEAD.pack(topic_id, len(sources))
                topics.append(head + sources.tobytes() + made.tobytes())
        return _COUNT.pack(len(topics)) + b"".join(topics)

    @classmethod
    def restore(cls, snapshot: memoryview, resets: list[list[Any]]) -> "SendBacks":
        send_backs = cls()
        send_backs._resets = {(group, key): at for group, key, at in resets}
        if not snapshot:
            return send_backs  # a checkpoint of before feature level 3
        (count,) = _COUNT.unpack_from(snapshot)
        at = _COUNT.size
        for _ in range(count):
            topic_id, pairs = _HEAD.unpack_from(snapshot, at)
            at += _HEAD.size
            columns = []
            for _ in range(2):
                column = array("Q")
                column.frombytes(snapshot[at : at + 8 * pairs])
                columns.append(column)
                at += 8 * pairs
            send_backs._topics[topic_id] = _chunked(*columns)
        return send_backs


def _chunked(sources: "array[int]", made: "array[int]") -> dict[int, _Chunk]:
    chunks: dict[int, _Chunk] = {}
    at = 0
    while at < len(sources):
        number = sources[at] >> _CHUNK_BITS
        beyond = bisect_left(sources, (number + 1) << _CHUNK_BITS, at)
        chunk = chunks[number] = _Chunk()
        chunk.sources, chunk.made = sources[at:beyond], made[at:beyond]
        at = beyond
    return chunks
