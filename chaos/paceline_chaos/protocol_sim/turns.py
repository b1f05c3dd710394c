"""An event loop without waiting: the turns and timers of all processes of a bed.

The product's shells ask asyncio for little: `call_soon`, `call_later`, futures, tasks. Here a turn
is one act of one process (a message arrives, a timer fires) and whatever that makes ready, run to
the end at once. Every callback belongs to the life of the process that asked for it, and a life
that is over runs nothing any more: no clean-up code of a killed process has any effect.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any, Protocol, cast

from paceline.platform import runtime


class Life(Protocol):
    """One run of one process."""

    is_over: bool


class Handle:
    """A callback that is due now or later."""

    __slots__ = ("args", "callback", "is_cancelled", "life")

    def __init__(self, life: Life | None, callback: Callable[..., Any], args: tuple[Any, ...]):
        self.life = life
        self.callback = callback
        self.args = args
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def is_live(self) -> bool:
        return not self.is_cancelled and not (self.life is not None and self.life.is_over)

    def run(self) -> None:
        self.callback(*self.args)


class TurnLoop:
    """Stands in for the running event loop; one for each bed."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self.life: Life | None = None
        """Whose turn it is."""
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[int, int, Handle]] = []
        self._timers_count = 0
        self._started: list[Coroutine[Any, Any, Any]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """As the thread's running loop: what the product calls `asyncio.get_running_loop()`."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", self))
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    # -- what the product calls

    def time(self) -> float:
        return self._now_us() / 1_000_000

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Handle:
        handle = Handle(self.life, callback, args)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> Handle:
        handle = Handle(self.life, callback, args)
        self.push_timer(self._now_us() + int(delay * 1_000_000), handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> Handle:
        return self.call_later(max(0.0, when - self.time()), callback, *args)

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=cast("asyncio.AbstractEventLoop", self))

    def create_task(
        self, work: Coroutine[Any, Any, Any], *, name: str | None = None
    ) -> "asyncio.Task[Any]":
        self._started.append(work)
        return asyncio.Task(work, loop=cast("asyncio.AbstractEventLoop", self), name=name)

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A task failed: so does the turn. Tasks that die with their process are no news."""
        error = context.get("exception")
        if error is not None and "task" in context:
            raise error

    # -- what the bed calls

    def run_ready(self) -> None:
        """Run the turn to its end."""
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if handle.is_live():
                self.life = handle.life
                handle.run()
        self._started.clear()

    def abandon_turn(self) -> None:
        """The process died in the middle of its turn."""
        self._ready.clear()
        for work in self._started:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()
        self._started.clear()

    def let_go(self) -> None:
        """The bed is over: what waits for ever ends here, unheard.

        `spawn` keeps a task alive until it has ended, and tasks of dead processes never do: each
        would keep its whole bed, and complain at the end of the interpreter.
        """
        self._ready.clear()
        self._timers.clear()
        with self.running():
            for task in asyncio.all_tasks(cast("asyncio.AbstractEventLoop", self)):
                runtime._running.discard(task)
                work = task.get_coro()
                if work is not None:
                    work.close()
        self._ready.clear()

    def push_timer(self, due_us: int, handle: Handle) -> None:
        self._timers_count += 1
        heappush(self._timers, (due_us, self._timers_count, handle))

    def pop_due(self) -> Handle | None:
        """The next timer that is due and live."""
        timers, now_us = self._timers, self._now_us()
        while timers and timers[0][0] <= now_us:
            handle = heappop(timers)[2]
            if handle.is_live():
                return handle
        return None


def finish_now(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that has nothing to wait for on a virtual disk; its result."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    work.close()
    raise AssertionError(f"{work} waits for something")
