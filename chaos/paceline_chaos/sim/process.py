"""A process of the simulated world: one incarnation of a program on a machine.

Every handle of the loop belongs to one process. The owner travels in a context variable, so tasks,
timers, callbacks and connections inherit it and the product code knows nothing of it.

A killed process stops between two handles. Nothing of it may run afterwards, not even the `finally`
of a suspended coroutine, and that is what Python does when such a coroutine is freed. So the dead
are not freed: their tasks, handles and sockets lie in the graveyard until the simulation ends.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar
from enum import Enum
from typing import Any, Protocol

PROCESS: ContextVar["Process"] = ContextVar("paceline_chaos_process")
"""Whose code this is. For the simulator alone; the product never reads it."""


class State(Enum):
    RUNNING = "running"
    EXITED = "exited"
    """`main` has returned, and everything else was cancelled as `asyncio.run` does."""
    FAILED = "failed"
    """`main` has raised; `error` says what."""
    KILLED = "killed"


class Loop(Protocol):
    """What a process, and a handle of it, use of the loop."""

    now_ns: int
    sequence: int
    current: "Process"

    def acting_as(self, process: "Process", /) -> AbstractContextManager[None]: ...

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Any]: ...

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any: ...

    def kernel_at(
        self, when_ns: int, function: Callable[[Any], object], argument: Any, /
    ) -> None: ...

    def relist(self, owner: "Process", /) -> None: ...

    def note(self, text: str, /) -> None: ...


class Computer(Protocol):
    """The machine of a process: its clock."""

    name: str

    def local_ns(self) -> int: ...

    def global_ns(self, local_ns: int, /) -> int: ...

    def unix_ns(self) -> int: ...


class Socket(Protocol):
    """What a process leaves open."""

    def orphan(self, *, is_silent: bool) -> None: ...


class Process:
    """One incarnation. Made by `Machine.start`; the loop owns the queue, the network the sockets.

    `error` is what `main` raised. `on_end` is called once when it is over, however it ended.
    """

    def __init__(self, loop: Loop, number: int, name: str, machine: Computer | None = None) -> None:
        self.loop = loop
        self.number = number
        self.name = name
        self.machine = machine
        self.state = State.RUNNING
        self.is_dead = False
        self.is_paused = False
        self.is_blocked = False
        self.busy_until_ns = 0
        """While it is in a blocking call: its end."""
        self.error: BaseException | None = None
        self.on_end: list[Callable[[Process], None]] = []
        self.task: asyncio.Task[None] | None = None
        self.signal_handlers: dict[int, Callable[[], object]] = {}
        self.exception_handler: Callable[[Any, dict[str, Any]], object] | None = None
        self.sockets: dict[int, Socket] = {}
        """Open ones by number, in the order of their making."""
        self.ready: deque[Any] = deque()
        """What may run now, first in first out, as asyncio promises."""
        self.is_listed = False
        """Whether the loop has it among the processes to choose from."""
        self.graveyard: list[object] = []
        self.context = Context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"<Process {self.name}#{self.number} {self.state.value}>"

    def begin(self, main: Callable[[], Coroutine[Any, Any, object]]) -> None:
        with self.loop.acting_as(self):
            self.task = self.loop.create_task(
                self._live(main), name=f"main of {self.name}", context=self.context
            )

    async def _live(self, main: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """What `asyncio.run` does: `main`, then cancel what is left, then the end."""
        state = State.EXITED
        try:
            await main()
        except GeneratorExit:
            raise  # the simulation is over and this coroutine is freed
        except BaseException as error:  # the top frame of a process: its exit code
            state, self.error = State.FAILED, error
        current = asyncio.current_task()
        left = [task for task in self.tasks() if task is not current]
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
        self._end(state)

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Unfinished tasks in the order of their making."""
        loop: Any = self.loop
        mine: list[Any] = [
            task for task in asyncio.all_tasks(loop) if getattr(task, "owner", None) is self
        ]
        return sorted(mine, key=lambda task: task.number)

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more; the kernel ends its connections (FIN or RST)."""
        if not self.is_dead:
            self._end(State.KILLED)

    def exit(self, error: BaseException) -> None:
        """It asked for its end in the middle of something (SystemExit)."""
        if not self.is_dead:
            self.error = error
            self._end(State.FAILED)

    def vanish(self) -> None:
        """The power has gone: as `kill`, but nobody is told anything."""
        if not self.is_dead:
            self._end(State.KILLED, is_silent=True)

    def pause(self) -> None:
        """SIGSTOP: its handles wait; the kernel goes on taking what peers send, into the window."""
        if not self.is_dead and not self.is_paused:
            self.is_paused = True
            self.loop.note(f"{self.name} is stopped")
            self.loop.relist(self)

    def resume(self) -> None:
        """SIGCONT."""
        if not self.is_dead and self.is_paused:
            self.is_paused = False
            self.loop.note(f"{self.name} goes on")
            self.loop.relist(self)

    def block(self, milliseconds: float) -> None:
        """Its thread stands in a system call (an fsync) for so long.

        Called from the handle that makes the call: what that handle sends afterwards leaves, and
        the clocks that it reads stand, at the end of the call.
        """
        loop = self.loop
        self.busy_until_ns = max(self.busy_until_ns, loop.now_ns) + int(milliseconds * 1_000_000)
        self.is_blocked = True
        loop.relist(self)
        loop.kernel_at(self.busy_until_ns, self._unblock, None)

    def unblock(self) -> None:
        """The calls that it stands in return now: the disk is fast again."""
        if self.is_blocked:
            self.busy_until_ns = self.loop.now_ns
            self._unblock(None)

    def _unblock(self, _: None) -> None:
        if self.is_blocked and self.loop.now_ns >= self.busy_until_ns:
            self.is_blocked = False
            self.loop.relist(self)

    def signal(self, number: int) -> None:
        """Call what `loop.add_signal_handler` registered; kills where nothing is registered."""
        handler = self.signal_handlers.get(int(number))
        if handler is None:
            self.kill()
        else:
            self.loop.call_soon(handler, context=self.context.copy())

    def _end(self, state: State, *, is_silent: bool = False) -> None:
        self.state = state
        self.loop.note(f"{self.name}#{self.number} has {state.value} {self.error or ''}")
        self.graveyard.extend(self.tasks())
        self.is_dead = True
        self.loop.relist(self)
        self.graveyard.extend(self.ready)
        self.ready.clear()
        for socket in list(self.sockets.values()):
            self.graveyard.append(socket)
            socket.orphan(is_silent=is_silent)
        for listener in list(self.on_end):
            listener(self)

    def forget(self) -> None:
        """The simulation is over: let go of everything."""
        self.is_dead = True
        self.task = None
        self.ready.clear()
        self.sockets.clear()
        self.graveyard.clear()
        self.on_end.clear()
        self.signal_handlers.clear()
        self.exception_handler = None
        self.context = Context()
