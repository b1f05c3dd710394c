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
from paceline.records.header import Kind
from paceline_broker.appender import Outcomes, log_time_ms
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.projections import Projections
from paceline_broker.service.settings import ServiceSettings

T = TypeVar("T")
Refusal = Callable[[Projections, LogWriter, int], Outcomes]
"""(projections, writer, log time) -> what a request gives; None: it has to be a record."""


class Ledger:
    """Appends request records and answers queries, on the master of the moment."""

    def __init__(self, role: Role, clock: Clock, settings: ServiceSettings) -> None:
        self._role = role
        self._clock = clock
        self._settings = settings

    def log_time_ms(self) -> int:
        """Log time for the next record: max(last store time, wall clock) (R29)."""
        return log_time_ms(self._role.projections, self._clock)

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
            outcomes = writer.appender.record(kind, document, store_unix_ms=now)
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
