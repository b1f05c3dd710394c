"""Delayed messages hold back retention: what waits in an old part of the log is stored again at its
end, with its due time, and the fold moves its entry there (R14, R26).

The cleaner says below which position; the delivery's turns work it off, a little at a time.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from paceline.errors import BadRequestError
from paceline.platform.ports import Clock
from paceline.records.encode import encode_batch
from paceline.records.header import SOURCE_INDEX_BITS, Cause, Kind, unpack_source
from paceline.types import GroupName, PhysicalOffset
from paceline.wire import properties as names
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.consume_queues import queue_of, topic_of
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.timers import Due
from paceline_broker.service.delays.sources import SourceBatch

TURN_BYTES = 256 * 1024


class _Kept(NamedTuple):
    entry: Due
    batch: SourceBatch
    number: int


class TimerRewriter:
    """`retention.Needs` of delayed messages. `poke` is called when there is work; `hold` with a
    source that cannot be stored again, and why."""

    def __init__(
        self,
        role: Role,
        clock: Clock,
        read: Callable[[Due], SourceBatch | None],
        *,
        poke: Callable[[], None],
        hold: Callable[[int, str], None],
    ) -> None:
        self._role = role
        self._clock = clock
        self._read = read
        self._poke = poke
        self._hold = hold
        self.below: PhysicalOffset | None = None
        """What waits below it is in the way; None: nothing is asked."""

    def oldest(self) -> PhysicalOffset | None:
        """Position of the oldest batch of which a message still waits."""
        source = self._role.projections.timers.oldest()
        return None if source is None else PhysicalOffset(source >> SOURCE_INDEX_BITS)

    def append_again(self, below: PhysicalOffset) -> None:
        """Begin to store again what waits below `below`; the turns do it."""
        self.below = below
        self._poke()

    def forget(self) -> None:
        """Another role: the next master's cleaner asks anew."""
        self.below = None

    @property
    def has_work(self) -> bool:
        return self.below is not None

    def turn(self, writer: LogWriter, projections: Projections, *, count_max: int) -> bool:
        """Store some again, one batch for each queue; whether anything was appended.

        One synchronous step. Raises what `ensure_can_append` raises, StorageError.
        """
        below = self.below
        if below is None:
            return False
        entries = projections.timers.below(below, count_max)
        if not entries:
            self.below = None
            return False
        writer.ensure_can_append(is_freeing=True)  # the old part goes after it
        by_queue: dict[int, list[_Kept]] = {}
        size = 0
        for entry in entries:
            batch = self._read(entry)
            if batch is None:
                continue
            _, number = unpack_source(entry.source)
            by_queue.setdefault(entry.key, []).append(_Kept(entry, batch, number))
            size += batch.message(number).size_bytes_max()
            if size >= TURN_BYTES:
                break
        end = writer.end
        for key, kept in by_queue.items():
            self._append(writer, projections, key, kept)
        return writer.end > end

    def _append(
        self, writer: LogWriter, projections: Projections, key: int, kept: Sequence[_Kept]
    ) -> None:
        try:
            encoded = _stored_again(key, kept, self._role.identity.group)
        except BadRequestError as error:  # of one of them, which holds back none of the others
            if len(kept) == 1:
                self._hold(kept[0].entry.source, error.message)
                return
            for one in kept:
                self._append(writer, projections, key, [one])
            return
        now_ms = writer.appender.log_time_ms()
        writer.appender.made(encoded, store_unix_ms=now_ms)


def _stored_again(key: int, kept: Sequence[_Kept], group: GroupName) -> bytes:
    """The batch of entries of one queue; their unique key is kept, as the header's is gone."""
    messages = [batch.message(number) for _, batch, number in kept]
    return encode_batch(
        [message.body for message in messages],
        keys=[message.key for message in messages],
        tags=[message.tag for message in messages],
        properties=[
            {names.UNIQ_KEY: batch.unique_key(number, group), **batch.message(number).properties}
            for _, batch, number in kept
        ],
        born_unix_ms=[message.born_unix_ms for message in messages],
        due_unix_ms=[entry.due_unix_ms for entry, _, _ in kept],
        sources=[entry.source for entry, _, _ in kept],
        topic_id=topic_of(key),
        queue_id=queue_of(key),
        kind=Kind.DELAY,
        flags=Cause.AGAIN,
    )
