"""Work that is longer than one turn of the loop may be: a step of it each turn (ADR 18).

All of a broker has one line of such work, so that it costs each turn one step, whoever asked and
however many did. Jobs of one asker come one after another, those of several askers in turn. A job
that has begun goes on to its end: each is bounded, and one payload at a time is unpacked.

What is short is done at once, as long as the turn has something left for it (`has_turn_for`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from functools import partial
from typing import TypeAlias, TypeVar

from paceline.errors import OverloadedError, PacelineError, StorageError
from paceline.server.byte_budget import ByteBudget

log = logging.getLogger("paceline.service")

TURN_BYTES = 512 * 1024
"""Unpacked at once in one turn, in small batches; what is more waits in line."""
JOBS_MAX = 10_000
RETRY_AFTER_MS = 100

Done: TypeAlias = Callable[[PacelineError | None], None]
T = TypeVar("T")


class Job:
    """A piece of work in line. `then` is called once it has ended, unless it was cancelled."""

    __slots__ = ("_done", "_steps", "asker", "raw_bytes", "then")

    def __init__(self, steps: Iterator[None], done: Done, asker: Hashable, raw_bytes: int) -> None:
        self._steps: Iterator[None] | None = steps
        self._done = done
        self.asker = asker
        self.raw_bytes = raw_bytes
        self.then: Callable[[], None] = _nothing

    @property
    def is_over(self) -> bool:
        return self._steps is None

    def cancel(self) -> None:
        """Nobody waits for it any more; what it holds goes at once."""
        self._steps, self._done, self.then = None, _unheard, _nothing

    def step(self) -> None:
        """One step, or the end of it; never raises."""
        if self._steps is None:
            return
        try:
            next(self._steps)
        except StopIteration:
            self.end(None)
        except PacelineError as error:
            self.end(error)
        except Exception:  # a fault of this program: whoever asked must not wait for it
            log.exception("long_work_failed")
            self.end(StorageError("this broker failed at it; its operator's log says why"))

    def end(self, error: PacelineError | None) -> None:
        """It is over."""
        self._steps = None
        self._done(error)
        self.then()


class LongWork:
    """The line of one broker. Owner: its event loop."""

    def __init__(self, budget: ByteBudget) -> None:
        self._holder = budget.holder(None)
        self._lines: dict[Hashable, deque[Job]] = {}
        self._job: Job | None = None
        self._is_due = False
        self._turn_bytes = 0
        self.turn_bytes_max = 0
        """The most that was unpacked at once in one turn."""
        self.waiting_count = 0
        self.steps = 0
        self.refused = 0

    def has_turn_for(self, raw_bytes: int) -> bool:
        """Whether so much may be unpacked at once; it counts as done then."""
        if self._turn_bytes + raw_bytes > TURN_BYTES:
            return False
        if not self._turn_bytes:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._turn_bytes += raw_bytes
        self.turn_bytes_max = max(self.turn_bytes_max, self._turn_bytes)
        return True

    def start(
        self, steps: Iterator[None], done: Done, *, asker: Hashable, raw_bytes: int = 0
    ) -> Job:
        """Put work in line; `done` hears of its end, or of what it raised, in a later turn.

        `raw_bytes` are held in the budget from its first step to its end. OverloadedError.
        """
        if self.waiting_count >= JOBS_MAX:
            self.refused += 1
            raise OverloadedError(
                f"{JOBS_MAX} requests with much work wait here", retry_after_ms=RETRY_AFTER_MS
            )
        job = Job(steps, done, asker, raw_bytes)
        self._lines.setdefault(asker, deque()).append(job)
        self.waiting_count += 1
        self._step_later()
        return job

    async def run(
        self, steps: Generator[None, None, T], *, asker: Hashable, raw_bytes: int = 0
    ) -> T:
        """The same, awaited: what the steps return. Raises what they raise; OverloadedError."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        found: list[T] = []

        def collected() -> Iterator[None]:
            found.append((yield from steps))

        done = partial(_settle, future, found)
        job = self.start(collected(), done, asker=asker, raw_bytes=raw_bytes)
        try:
            return await future
        finally:
            job.cancel()
            # It holds what was raised, which holds this frame: a cycle that only a full garbage
            # collection would find, and many of those stop the loop.
            del future, done

    def _next_turn(self) -> None:
        self._turn_bytes = 0

    def _step_later(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.turn)

    @property
    def is_idle(self) -> bool:
        return self._job is None and not self._lines

    def turn(self) -> None:
        """One step, of whose turn it is."""
        self._is_due = False
        job = self._job
        if job is None:
            job = self._job = self._begin()
        if job is not None:
            self.steps += 1
            job.step()
            if job.is_over:
                self._holder.give(job.raw_bytes)
                self._job = None
        if not self.is_idle:
            self._step_later()

    def _begin(self) -> Job | None:
        """The next job of the next asker, whose bytes are held from now on."""
        while self._lines:
            asker = next(iter(self._lines))
            line = self._lines.pop(asker)
            job = line.popleft()
            if line:
                self._lines[asker] = line
            self.waiting_count -= 1
            if job.is_over:
                continue
            if self._holder.take(job.raw_bytes):
                return job
            self.refused += 1
            what = f"no memory for {job.raw_bytes} bytes of unpacked messages"
            job.end(OverloadedError(what, retry_after_ms=RETRY_AFTER_MS))
        return None


def _settle(future: "asyncio.Future[T]", found: list[T], error: PacelineError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(found[0])
    else:
        future.set_exception(error)


def _nothing() -> None:
    return None


def _unheard(error: PacelineError | None) -> None:
    return None
