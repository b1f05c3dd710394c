"""The real Clock and Random, and the only place that starts tasks or waits for time.

Everything goes through the running event loop, so the same helpers work on a virtual loop.
"""

import asyncio
import os
import random
import time
from collections.abc import Coroutine
from typing import Any


class SystemClock:
    """Clock of this machine."""

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000  # noqa: TID251 - this is the port itself

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000  # noqa: TID251 - this is the port itself


class SystemRandom:
    """Randomness of the operating system."""

    def __init__(self) -> None:
        self._generator = random.SystemRandom()

    def token(self, size_bytes: int) -> bytes:
        return os.urandom(size_bytes)

    def uniform(self, low: float, high: float) -> float:
        return self._generator.uniform(low, high)


class ManualClock:
    """In-memory twin: moves only when told."""

    def __init__(self, *, monotonic_ms: int = 0, unix_ms: int = 1_700_000_000_000) -> None:
        self._monotonic_ms = monotonic_ms
        self._unix_ms = unix_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def unix_ms(self) -> int:
        return self._unix_ms

    def advance(self, milliseconds: int) -> None:
        """Let both clocks run on."""
        assert milliseconds >= 0, milliseconds
        self._monotonic_ms += milliseconds
        self._unix_ms += milliseconds

    def step_wall(self, milliseconds: int) -> None:
        """Jump the wall clock only, either way."""
        self._unix_ms += milliseconds


class SeededRandom:
    """In-memory twin: the same seed gives the same values on every machine."""

    def __init__(self, seed: str) -> None:
        # A string seed goes through SHA-512, so PYTHONHASHSEED has no say.
        self._generator = random.Random(seed)

    def token(self, size_bytes: int) -> bytes:
        return self._generator.randbytes(size_bytes)

    def uniform(self, low: float, high: float) -> float:
        return self._generator.uniform(low, high)


_running: set[asyncio.Task[Any]] = set()  # the loop itself keeps only weak references


def spawn(work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
    """Start a named task that its owner cancels. What it raises reaches the loop's handler."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_finished)
    return task


def _finished(task: asyncio.Task[None]) -> None:
    _running.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        task.get_loop().call_exception_handler(
            {"message": f"task {task.get_name()} failed", "exception": error, "task": task}
        )


async def pause(milliseconds: float) -> None:
    """Wait for time to pass on the loop's clock. Not for tests: wait for a condition there."""
    await asyncio.sleep(milliseconds / 1000)  # noqa: TID251 - the one place


async def cancel_and_wait(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks and wait until they have ended; their own errors were reported by `spawn`."""
    waiting = [task for task in tasks if task is not None and not task.done()]
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting)
