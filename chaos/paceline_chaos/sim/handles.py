"""Handles, timers, tasks and futures of the virtual loop: asyncio's, with an owner and a number.

Tasks and futures hash by their number. asyncio and aiohttp keep them in sets and go through those;
with the hashes of the base classes, addresses in memory would decide who is cancelled first.
"""

import asyncio
from asyncio import events
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from paceline_chaos.sim.process import PROCESS, Loop, Process


class SimHandle(events.Handle):
    """A callback with its owner and its number."""

    __slots__ = ("owner", "sequence")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: Loop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        loop.sequence = self.sequence = loop.sequence + 1
        self.owner = loop.current if context is None else context.get(PROCESS, loop.current)


class SimTimerHandle(events.TimerHandle):
    """A timer; `when()` is local time of its owner."""

    __slots__ = ("owner", "sequence")

    owner: Process
    sequence: int
    if TYPE_CHECKING:
        _scheduled: bool


class SimTask(asyncio.Task[Any]):
    """Hashes by number, knows its process."""

    def __init__(self, coro: Any, *, loop: Any, number: int, owner: Process, **more: Any) -> None:
        self.number = number
        self.owner = owner
        super().__init__(coro, loop=loop, **more)

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[Any]):
    """Hashes by a number that it gets when somebody asks."""

    _number: int

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            loop: Any = self.get_loop()
            loop.objects = self._number = loop.objects + 1
            return self._number
