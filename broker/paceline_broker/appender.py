"""Pure: what a master appends, it stamps, appends and folds in one synchronous step (R28).

The log of a mastership and its projections must stand at the same position: what a request is
decided on is what the log says. So nothing else appends: this class alone knows where the log ends,
and `LogWriter` gives it to whoever has something to append. It also has log time, by which all that
expires is judged (R29).
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from paceline.platform.ports import Buffer, Clock
from paceline.records.decode import BatchView
from paceline.records.encode import encode_internal
from paceline.records.header import (
    HEADER_BYTES,
    BatchHeader,
    Cause,
    Kind,
    parse_header,
    stamp,
)
from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.projections.locks import LockOutcome
from paceline_broker.projections.offsets import CommitOutcome
from paceline_broker.projections.projections import Projections

Outcomes: TypeAlias = list[LockOutcome] | list[CommitOutcome] | None
"""What a record decided, row by row; None: it asked for nothing."""


class Log(Protocol):
    """The log under one mastership."""

    @property
    def epoch(self) -> MasterEpoch: ...

    @property
    def end(self) -> PhysicalOffset:
        """Where the next batch begins."""
        ...

    def append(self, header: bytes, payload: Buffer) -> PhysicalOffset:
        """Append one batch: its stamped 96-byte header and the rest; return the new `end`.

        `end` moves at once; the bytes are written and pushed at the end of the loop turn, so
        `payload` must not change any more. Raises StorageError, and appended nothing then (R22).
        """
        ...


def log_time_ms(projections: Projections, clock: Clock) -> int:
    """Log time now: the wall clock, but never below what the log says (R29)."""
    return max(projections.log_time_ms, clock.unix_ms())


class Appender:
    """Appends of one mastership. The caller has asked `LogWriter.ensure_can_append` in this step.

    `store_unix_ms` is log time, as `log_time_ms` gave it in the same step. All raise StorageError
    if the log takes nothing more: then nothing was appended or folded (R22).
    """

    __slots__ = ("_clock", "_log", "_projections")

    def __init__(self, log: Log, projections: Projections, clock: Clock) -> None:
        self._log = log
        self._projections = projections
        self._clock = clock

    def log_time_ms(self) -> int:
        """Log time for what is appended in this step."""
        return log_time_ms(self._projections, self._clock)

    def record(self, kind: Kind, document: Mapping[str, Any], *, store_unix_ms: int) -> Outcomes:
        """Append an internal record; returns what it decided."""
        return self._append_and_fold(
            encode_internal(kind, document, store_unix_ms=store_unix_ms), store_unix_ms
        )

    def decided(self, document: Mapping[str, Any], *, store_unix_ms: int) -> None:
        """Append a POP record whose items were folded one by one in this same step."""
        batch = encode_internal(Kind.POP, document, store_unix_ms=store_unix_ms)
        stamped = self._append(batch, 0, store_unix_ms)
        self._projections.fold_decided(parse_header(stamped))

    def made(self, batch: bytes, *, store_unix_ms: int) -> PhysicalOffset:
        """Append messages that this master made (R34); returns their physical offset.

        `batch` is from `encode_batch`, for one queue, with a `Cause`, and with sources unless it
        comes from another group (R36).
        """
        header, position = parse_header(batch), self._log.end
        assert header.is_derived or header.cause == Cause.ESCAPED, header
        assert not header.producer_id, header
        base = 0
        if header.kind == Kind.NORMAL:
            key = queue_key(header.topic_id, header.queue_id)
            assert key not in self._projections.seals.by_key, header
            base = self._projections.consume_queues.get_or_make(key).end
        self._append_and_fold(batch, store_unix_ms, base)
        return position

    def messages(self, batch: Buffer, header: BatchHeader, *, store_unix_ms: int) -> int:
        """Append a producer's batch to its queue; returns the queue offset of its first message."""
        key = queue_key(header.topic_id, header.queue_id)
        queue = self._projections.consume_queues.get_or_make(key)
        base = queue.end
        self._append(batch, base, store_unix_ms)
        self._projections.fold_messages(header, queue, base, store_unix_ms)
        return base

    def pending(self, batch: Buffer, *, store_unix_ms: int) -> PhysicalOffset:
        """Append a producer's messages that wait, for their time or for the end of their
        transaction (R34); returns the physical offset that names them until then."""
        position = self._log.end
        self._append_and_fold(batch, store_unix_ms)
        return position

    def _append_and_fold(self, batch: Buffer, store_unix_ms: int, base: int = 0) -> Outcomes:
        stamped = self._append(batch, base, store_unix_ms)
        view = BatchView.stamped(batch, stamped)
        return self._projections.apply(view.header, view)

    def _append(self, batch: Buffer, base_queue_offset: int, store_unix_ms: int) -> bytes:
        """Stamp and append; the caller folds it in the same step."""
        position, projections = self._log.end, self._projections
        assert store_unix_ms >= projections.log_time_ms, (store_unix_ms, projections.log_time_ms)
        assert position == projections.position, (position, projections.position)  # R28
        stamped = stamp(
            batch,
            physical_offset=position,
            base_queue_offset=base_queue_offset,
            store_unix_ms=store_unix_ms,
            master_epoch=self._log.epoch,
        )
        self._log.append(stamped, memoryview(batch)[HEADER_BYTES:])
        return stamped
