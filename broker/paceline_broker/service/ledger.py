"""Requests as records, and queries behind the barrier: how anything but messages gets an answer.

A change (lock, commit, reset) is appended as a record that holds the request; the fold decides it
in log order, and the answer leaves when confirm has passed (R28). A query is evaluated on arrival
on the state at `end`, and leaves when confirm has passed that `end` and a read round begun after
arrival is done (R4); while the epoch is not open it is refused (R3).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from paceline.errors import NotYetAvailableError, PacelineError
from paceline.platform.ports import Clock
from paceline.records.decode import BatchView
from paceline.records.encode import encode_internal
from paceline.records.header import HEADER_BYTES, Cause, Kind, parse_header, stamp
from paceline.types import PhysicalOffset
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.projections.locks import LockOutcome
from paceline_broker.projections.offsets import CommitOutcome
from paceline_broker.projections.projections import Projections
from paceline_broker.service.settings import ServiceSettings

T = TypeVar("T")
Outcomes = list[LockOutcome] | list[CommitOutcome] | None
Refusal = Callable[[Projections, LogWriter, int], Outcomes]
"""(projections, writer, log time) -> what a request gives; None: it has to be a record."""


def append_internal(
    writer: LogWriter,
    projections: Projections,
    kind: Kind,
    document: Mapping[str, Any],
    *,
    store_unix_ms: int,
) -> Outcomes:
    """Append one internal record and fold it; what it decided. One synchronous step.

    The caller has asked `writer.ensure_can_append` (or is the role that begins an epoch), and
    `store_unix_ms` is log time: never below `projections.log_time_ms`.
    """
    assert store_unix_ms >= projections.log_time_ms, (store_unix_ms, projections.log_time_ms)
    assert writer.end == projections.position, (writer.end, projections.position)  # R28
    batch = encode_internal(kind, document, store_unix_ms=store_unix_ms)
    header = stamp(
        batch,
        physical_offset=writer.end,
        base_queue_offset=0,
        store_unix_ms=store_unix_ms,
        master_epoch=writer.epoch,
    )
    whole = header + batch[HEADER_BYTES:]
    writer.append(header, memoryview(whole)[HEADER_BYTES:])
    view = BatchView(whole)
    return projections.apply(view.header, view)


def append_decided(
    writer: LogWriter,
    projections: Projections,
    document: Mapping[str, Any],
    *,
    store_unix_ms: int,
) -> None:
    """Append a POP record whose items were folded one by one in this same synchronous step."""
    assert store_unix_ms >= projections.log_time_ms, (store_unix_ms, projections.log_time_ms)
    assert writer.end == projections.position, (writer.end, projections.position)  # R28
    batch = encode_internal(Kind.POP, document, store_unix_ms=store_unix_ms)
    header = stamp(
        batch,
        physical_offset=writer.end,
        base_queue_offset=0,
        store_unix_ms=store_unix_ms,
        master_epoch=writer.epoch,
    )
    writer.append(header, memoryview(batch)[HEADER_BYTES:])
    projections.fold_decided(parse_header(header))


def append_messages(
    writer: LogWriter, projections: Projections, batch: bytes, *, store_unix_ms: int
) -> PhysicalOffset:
    """Append a batch of messages that this master made (R34) and fold it; its physical offset.

    `batch` is from `encode_batch`, for one queue, with a `Cause`, and with sources unless it comes
    from another group (R36). One synchronous step,
    like `append_internal`; confirmed once confirm passes `writer.end` of the moment after it.
    """
    assert store_unix_ms >= projections.log_time_ms, (store_unix_ms, projections.log_time_ms)
    assert writer.end == projections.position, (writer.end, projections.position)  # R28
    header = parse_header(batch)
    assert header.is_derived or header.cause == Cause.ESCAPED, header
    assert not header.producer_id, header
    position = writer.end
    base = 0
    if header.kind == Kind.NORMAL:
        key = queue_key(header.topic_id, header.queue_id)
        assert key not in projections.seals.by_key, header
        base = projections.consume_queues.get_or_make(key).end
    stamped = stamp(
        batch,
        physical_offset=position,
        base_queue_offset=base,
        store_unix_ms=store_unix_ms,
        master_epoch=writer.epoch,
    )
    writer.append(stamped, memoryview(batch)[HEADER_BYTES:])
    view = BatchView.stamped(batch, stamped)
    projections.apply(view.header, view)
    return position


class Ledger:
    """Appends request records and answers queries, on the master of the moment."""

    def __init__(self, role: Role, clock: Clock, settings: ServiceSettings) -> None:
        self._role = role
        self._clock = clock
        self._settings = settings

    def log_time_ms(self) -> int:
        """Log time for the next record: max(last store time, wall clock) (R29)."""
        return max(self._role.projections.log_time_ms, self._clock.unix_ms())

    async def request(
        self,
        kind: Kind,
        document: Mapping[str, Any],
        *,
        refusal: Refusal,
    ) -> Outcomes:
        """Have a request decided; returns when confirm has passed the decision.

        `refusal(projections, writer, log_time_ms)` gives the outcomes if nothing would change: then
        nothing is appended, but the answer waits all the same, as it tells of unconfirmed state.
        Raises what `LogWriter` raises, OutcomeUnknownError included.
        """
        writer = self._role.writer()
        writer.ensure_can_append()
        projections = self._role.projections
        now = self.log_time_ms()
        outcomes = refusal(projections, writer, now)
        if outcomes is None:
            outcomes = append_internal(writer, projections, kind, document, store_unix_ms=now)
        await self.confirmed(writer)
        return outcomes

    async def query(self, ask: Callable[[Projections], T]) -> T:
        """The answer of `ask` on the state at arrival, once nobody can contradict it any more.

        `ask` must return values, nothing that goes on changing. Raises NotMasterError,
        NotYetAvailableError (R3), and what the wait for confirm raises. On an acting master it is
        the state at its own confirm, at once: its answers say that they may be stale (R36).
        """
        if self._role.acting is not None:
            return ask(self._role.projections)
        writer = self._role.writer()
        if not writer.is_open:
            raise NotYetAvailableError(f"epoch {writer.epoch} is not open yet")
        answer = ask(self._role.projections)
        confirmed = self.confirmed(writer)
        try:
            await writer.read_round()
        except BaseException:
            confirmed.cancel()
            raise
        await confirmed
        return answer

    def confirmed(self, writer: LogWriter) -> "asyncio.Future[None]":
        """Done when confirm has passed what is appended now; raises what `wait_confirmed` says."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def completed(error: PacelineError | None) -> None:
            if future.done():
                return  # the asker has gone
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        writer.wait_confirmed(writer.end, completed, timeout_ms=self._settings.send_timeout_ms)
        return future
