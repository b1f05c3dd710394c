"""Read barriers: entries without a command, shared by the readers that wait.

Owner: the event loop of one `RaftQuorum`.
"""

import asyncio
from collections.abc import Callable

from paceline.errors import DeadlineError, NotLeaderError, OutcomeUnknownError


class Barriers:
    """At most one barrier is in flight; who comes meanwhile shares the next."""

    def __init__(self, propose: Callable[[], str | None]) -> None:
        """`propose` appends a barrier and names it; None if this node does not lead."""
        self._propose = propose
        self._current: _Barrier | None = None
        self._next: _Barrier | None = None

    async def wait(self, *, timeout_ms: int) -> None:
        """Until a barrier that began after this call is applied. DeadlineError, NotLeaderError."""
        if self._current is None:
            barrier = self._current = _Barrier()
            self._begin(barrier)
        else:
            # What is in flight may have been committed before this call, so it does not count.
            barrier = self._next = self._next or _Barrier()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.shield(barrier.done)
        except TimeoutError:
            raise DeadlineError(f"no majority answered within {timeout_ms} ms") from None

    def applied(self, proposal: str) -> None:
        """An entry without a command was applied."""
        barrier = self._current
        if barrier is None or barrier.proposal != proposal:
            return
        self._current, self._next = self._next, None
        barrier.done.set_result(None)
        if self._current is not None:
            # Not from inside the apply loop of the library.
            asyncio.get_running_loop().call_soon(self._begin, self._current)

    def fail(self, error: OutcomeUnknownError) -> None:
        """Leadership is over."""
        barriers = (self._current, self._next)
        self._current = self._next = None
        for barrier in barriers:
            if barrier is not None:
                barrier.fail(NotLeaderError(error.message, **error.details))

    def _begin(self, barrier: "_Barrier") -> None:
        if self._current is barrier:
            barrier.proposal = self._propose() or ""


class _Barrier:
    """Readers that share one no-op."""

    def __init__(self) -> None:
        self.proposal = ""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # read: nobody may be waiting any more
