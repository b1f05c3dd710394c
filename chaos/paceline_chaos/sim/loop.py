"""The virtual event loop: asyncio as it is, on simulated time and simulated sockets.

Everything above the system calls is asyncio's own code: transports, streams, servers, timeouts.
Below, `sockets.SimSocket` stands for the kernel, and this loop for selector and clock. Rules:

- Time is an integer of nanoseconds. It moves when a handle runs (`handle_cost_ns`, so that a loop
  of `sleep(0)` cannot hold it) and jumps to the next timer when nothing is ready.
- Handles of one process run first in, first out, as asyncio promises; which process comes next is
  drawn from the seed. Nothing else is shuffled: it would find errors that cannot happen.
- Timers lie in a heap by (time, number), so ties have an order.
- Tasks and futures are numbered and hash by their number: asyncio and aiohttp keep them in sets,
  whose order would else be that of their addresses.
- A process's clock is its machine's (offset and rate): `time()` and `call_at` are local.
"""

import asyncio
import contextlib
import errno
import heapq
import random
import socket as _socket
import sys
from asyncio import events, selector_events
from collections.abc import Callable, Generator, Iterator
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

from paceline.platform.runtime import pause
from paceline_chaos.sim.handles import SimFuture, SimHandle, SimTask, SimTimerHandle
from paceline_chaos.sim.process import PROCESS, Process
from paceline_chaos.sim.trace import Trace
from paceline_chaos.verdict import CODE, code_or_harness

NS_PER_S = 1_000_000_000
HANDLE_COST_NS = 1_000
HOUSEKEEPING_HANDLES = 100_000
SPIN_SHARE, SPINS_MAX = 1.02, 3
"""Time that moves by the cost of handles only, for so many housekeepings: nobody waits any more."""
COMPACT_TIMERS = 200
"""Cancelled timers are swept out of the heap from so many on, if they are half of it."""
DNS_MS = 0.2
"""A look-up of a name, at most."""


class SimDeadlock(RuntimeError):  # noqa: N818 - an event of the simulation
    """Nothing is ready and no timer runs: what is waited for can never happen."""


class SimStuck(RuntimeError):  # noqa: N818 - an event of the simulation
    """A limit was reached before what was waited for happened."""


def _types(error: BaseException | None) -> Iterator[type[BaseException]]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _types(inner)
    elif error is not None:
        yield type(error)


class Network(Protocol):
    """What the loop asks of the network."""

    def resolve(self, host: str | bytes | None, *, is_passive: bool) -> str: ...

    def forget(self) -> None: ...


class Watched(Protocol):
    """A socket as the loop watches it."""

    def watch_reading(self, handle: SimHandle, /) -> SimHandle: ...

    def unwatch_reading(self) -> bool: ...

    def watch_writing(self, handle: SimHandle, /) -> SimHandle: ...

    def unwatch_writing(self) -> bool: ...


class _NoSelector:
    """What asyncio's selector loop wants to hold; nothing is ever registered here."""

    def close(self) -> None: ...

    def get_key(self, fd: int) -> None:
        raise KeyError(fd)  # asks a transport's repr


class SimLoop(selector_events.BaseSelectorEventLoop):
    """The loop of one simulation; see the module. Owner: `Simulation`."""

    if TYPE_CHECKING:  # asyncio's own, which typeshed does not tell of
        _stopping: bool
        _closed: bool
        _thread_id: int | None
        _asyncgen_firstiter_hook: Any
        _asyncgen_finalizer_hook: Any

    def __init__(
        self, seed: str, *, trace: Trace | None = None, handle_cost_ns: int = HANDLE_COST_NS
    ) -> None:
        super().__init__(_NoSelector())  # type: ignore[arg-type]
        self.set_debug(False)
        self.now_ns = 0
        self.sequence = 0
        self.objects = 0
        self.handles_count = 0
        self.acts_count = 0
        """Of the world: `kernel_at`."""
        self.trace = trace or Trace()
        self.network: Network | None = None
        self.sockets: dict[int, Watched] = {}
        self.errors: list[str] = []
        """What no task and no callback caught, one sentence each."""
        self.error_types: list[frozenset[type[BaseException]]] = []
        """Of each error what was raised; of a group what is in it. Empty: only a message."""
        self.error_kinds: list[str] = []
        """Of each error, whether the product or the harness raised it (`verdict.CODE`)."""
        self.housekeeping: Callable[[], object] = lambda: None
        """Called after so many handles, and at no other moment."""
        self.housekeeping_handles = HOUSEKEEPING_HANDLES
        self._housekeeping_at = HOUSEKEEPING_HANDLES
        self._housekept_ns = 0
        self._spins_count = 0
        self._handle_cost_ns = handle_cost_ns
        self._draw = random.Random(f"{seed}/schedule").random
        self._heap: list[tuple[int, int, SimTimerHandle | None, Any, Any]] = []
        self._cancelled_count = 0
        self._choices: list[Process] = []
        self._tasks_count = 0
        self.root = self.current = Process(self, 0, "root")
        self._is_over = False

    # -- time --------------------------------------------------------------------------------------

    def time(self) -> float:
        machine = self.current.machine
        return (self.now_ns if machine is None else machine.local_ns()) / NS_PER_S

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        handle = SimHandle(callback, args, self, context)
        self.push(handle.owner, handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> SimTimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> SimTimerHandle:
        handle = SimTimerHandle(when, callback, args, self, context)
        owner = self.current if context is None else context.get(PROCESS, self.current)
        handle.owner = owner
        self.sequence = handle.sequence = self.sequence + 1
        handle._scheduled = True
        heapq.heappush(self._heap, (self._due_ns(handle), handle.sequence, handle, None, None))
        return handle

    def _due_ns(self, handle: SimTimerHandle) -> int:
        """When a timer is due, in global time: never early, at once if it is late."""
        machine = handle.owner.machine
        local_ns = int(handle.when() * NS_PER_S) + 1
        due = local_ns if machine is None else machine.global_ns(local_ns)
        return max(due, self.now_ns)

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        if not handle._scheduled:  # type: ignore[attr-defined]
            return
        self._cancelled_count += 1
        if self._cancelled_count > COMPACT_TIMERS and self._cancelled_count * 2 > len(self._heap):
            # In place: the run loop holds the list.
            self._heap[:] = [e for e in self._heap if e[2] is None or not e[2]._cancelled]
            heapq.heapify(self._heap)
            self._cancelled_count = 0

    def retime(self, machine: object) -> None:
        """A machine's clock runs at another rate: its timers are due at other moments."""
        self._heap[:] = [
            (self._due_ns(entry[2]), *entry[1:])
            if entry[2] is not None and entry[2].owner.machine is machine
            else entry
            for entry in self._heap
        ]
        heapq.heapify(self._heap)

    def kernel_at(self, when_ns: int, function: Callable[[Any], object], argument: Any) -> None:
        """The world acts at a moment; costs no time and belongs to no process."""
        self.sequence += 1
        heapq.heappush(self._heap, (when_ns, self.sequence, None, function, argument))

    # -- running -----------------------------------------------------------------------------------

    def push(self, owner: Process, handle: Any) -> None:
        """A handle is ready. That of a dead process is buried: it keeps its coroutine alive."""
        if owner.is_dead or self._is_over:
            owner.graveyard.append(handle)
            return
        owner.ready.append(handle)
        if not owner.is_listed and not owner.is_paused and not owner.is_blocked:
            owner.is_listed = True
            self._choices.append(owner)

    def relist(self, owner: Process) -> None:
        """It was stopped, or goes on: whether its handles may run has changed."""
        may_run = not (owner.is_dead or owner.is_paused or owner.is_blocked)
        if owner.is_listed and not may_run:
            owner.is_listed = False
            self._choices.remove(owner)
        elif not owner.is_listed and may_run and owner.ready:
            owner.is_listed = True
            self._choices.append(owner)

    def advance(self, until_ns: int, *, condition: Callable[[], bool] | None = None) -> bool:
        """Run until a moment of virtual time or until the condition holds; says whether it does.

        Raises SimDeadlock if nothing can happen and there is no end of time.
        """
        heap, choices, trace = self._heap, self._choices, self.trace.handle
        cost_ns, draw = self._handle_cost_ns, self._draw
        while True:
            if condition is not None and condition():
                return True
            while heap and heap[0][0] <= self.now_ns:
                _, _, timer, function, argument = heapq.heappop(heap)
                if timer is None:
                    self.acts_count += 1
                    function(argument)
                else:
                    self._fire(timer)
            if not choices:
                if not heap and (condition is not None or until_ns == sys.maxsize):
                    raise SimDeadlock(self._deadlock())
                if not heap or heap[0][0] > until_ns:
                    self.now_ns = max(self.now_ns, until_ns)
                    return False
                self.now_ns = heap[0][0]
                continue
            if self.now_ns >= until_ns:
                return False
            count = len(choices)
            index = int(draw() * count) if count > 1 else 0
            owner = choices[index]
            queue = owner.ready
            handle = queue.popleft()
            if not queue:
                owner.is_listed = False
                del choices[index]
            if handle._cancelled:
                continue
            trace(self.now_ns, owner.number, handle.sequence)
            if self.trace.log is not None:
                self._log(owner, handle)
            self.handles_count += 1
            self.now_ns += cost_ns
            self.current = owner
            try:
                handle._run()
            except SystemExit as error:
                owner.exit(error)
            finally:
                self.current = self.root
            if self.handles_count >= self._housekeeping_at:
                self._keep_house()

    def drain(self) -> None:
        """Run until nothing can happen any more."""
        with contextlib.suppress(SimDeadlock):
            self.advance(sys.maxsize)

    def _fire(self, timer: SimTimerHandle) -> None:
        if timer._cancelled:
            self._cancelled_count -= 1
            return
        timer._scheduled = False
        self.push(timer.owner, timer)

    def _deadlock(self) -> str:
        tasks = [task for task in asyncio.all_tasks(self) if not task.done()]
        waiting = sorted({f"{getattr(t, 'owner', None)}: {t.get_name()}" for t in tasks})
        return (
            f"nothing can happen any more at {self.now_ns / NS_PER_S:.6f} s: no handle is ready, "
            f"no timer runs and no byte is on its way; waiting for ever: "
            f"{'; '.join(waiting) or 'nobody'}"
        )

    def _keep_house(self) -> None:
        busy_ns = self.housekeeping_handles * self._handle_cost_ns
        is_spinning = self.now_ns - self._housekept_ns < busy_ns * SPIN_SHARE
        self._spins_count = self._spins_count + 1 if is_spinning else 0
        self._housekept_ns = self.now_ns
        self._housekeeping_at = self.handles_count + self.housekeeping_handles
        self.housekeeping()
        if self._spins_count >= SPINS_MAX:
            names = ", ".join(sorted(process.name for process in self._choices))
            raise SimStuck(
                f"{SPINS_MAX * self.housekeeping_handles} handles ran without a pause, up to "
                f"{self.now_ns / NS_PER_S:.6f} s: something spins; ready now: {names or 'nobody'}"
            )

    def _run_once(self) -> None:
        """For `run_forever` and `run_until_complete`: on to the next change of `_stopping`."""
        self.advance(sys.maxsize, condition=lambda: self._stopping)

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        """asyncio takes this loop for the running one, and its generators are known to it."""
        before = sys.get_asyncgen_hooks()
        self._thread_id = 1
        sys.set_asyncgen_hooks(
            firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook
        )
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*before)
            self._thread_id = None

    @contextlib.contextmanager
    def acting_as(self, process: Process) -> Iterator[None]:
        """What is scheduled inside belongs to a process."""
        before, self.current = self.current, process
        try:
            yield
        finally:
            self.current = before

    def _log(self, owner: Process, handle: Any) -> None:
        callback = getattr(handle, "_callback", handle)
        target = getattr(callback, "__self__", None)
        name = getattr(callback, "__qualname__", type(callback).__name__)
        if isinstance(target, asyncio.Task):
            name = f"{target.get_name()} {name}"
        assert self.trace.log is not None
        self.trace.log.append(
            f"{self.now_ns / 1000:.3f} {owner.name}#{owner.number} {handle.sequence} {name}"
        )

    def note(self, text: str) -> None:
        self.trace.note(self.now_ns, text)

    # -- tasks, futures, executors, names ----------------------------------------------------------

    def create_future(self) -> SimFuture:
        return SimFuture(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: Context | None = None,
        eager_start: bool | None = None,
    ) -> SimTask:
        assert not eager_start, "no task of a simulation begins before its turn"
        if self._is_over:
            coro.close()
            raise RuntimeError("the simulation is over")
        self._tasks_count = number = self._tasks_count + 1
        owner = self.current if context is None else context.get(PROCESS, self.current)
        if name is None:
            name = f"Task-{number}"
        return SimTask(coro, loop=self, number=number, owner=owner, name=name, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> SimFuture:
        """The function runs on the loop at a random later moment; there is no thread."""
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # the top frame of the "thread": the waiter gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._draw() * 0.001, work)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None: ...

    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[tuple[Any, ...]]:
        assert self.network is not None, "the loop has no network"
        ip = self.network.resolve(host, is_passive=bool(flags & _socket.AI_PASSIVE))
        await pause(self._draw() * DNS_MS)
        kind = _socket.SOCK_STREAM
        return [(_socket.AF_INET, kind, _socket.IPPROTO_TCP, "", (ip, int(port or 0)))]

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        return str(sockaddr[0]), str(sockaddr[1])

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        self.current.signal_handlers[int(sig)] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self.current.signal_handlers.pop(int(sig), None) is not None

    # -- errors ------------------------------------------------------------------------------------

    def set_exception_handler(self, handler: Any) -> None:
        self.current.exception_handler = handler

    def get_exception_handler(self) -> Any:
        return self.current.exception_handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        handler = self.current.exception_handler
        if handler is None:
            self.default_exception_handler(context)
        else:
            handler(self, context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Recorded, in the trace too; nothing is printed."""
        if self._is_over:
            return
        error = context.get("exception")
        text = f"{self.current.name}: {context.get('message')}: {error!r}"
        self.errors.append(f"{self.now_ns / NS_PER_S:.6f} s {text}")
        self.error_types.append(frozenset(_types(error)))
        self.error_kinds.append(CODE if error is None else code_or_harness(error).property)
        self.note(text if " at 0x" not in text else text.split(" at 0x", 1)[0])

    # -- readiness of sockets ----------------------------------------------------------------------

    def _socket(self, fd: int) -> Watched:
        socket = self.sockets.get(fd)
        if socket is None:
            raise OSError(errno.EBADF, "the socket is closed, or its process dead")
        return socket

    def _add_reader(self, fd: int, callback: Any, *args: Any) -> SimHandle:
        return self._socket(fd).watch_reading(SimHandle(callback, args, self, None))

    def _remove_reader(self, fd: int) -> bool:
        socket = self.sockets.get(fd)
        return socket is not None and socket.unwatch_reading()

    def _add_writer(self, fd: int, callback: Any, *args: Any) -> SimHandle:
        return self._socket(fd).watch_writing(SimHandle(callback, args, self, None))

    def _remove_writer(self, fd: int) -> bool:
        socket = self.sockets.get(fd)
        return socket is not None and socket.unwatch_writing()

    def _make_self_pipe(self) -> None: ...

    def _close_self_pipe(self) -> None: ...

    def _write_to_self(self) -> None: ...

    def close(self) -> None:
        """Nothing is freed yet: see `forget`."""
        self._is_over = True
        self._closed = True

    def forget(self) -> None:
        """Drop what is held alive. What is scheduled from now on is dropped as well."""
        self._heap.clear()
        for process in [self.root, *self._choices]:
            process.forget()
        self._choices.clear()
        self.sockets.clear()
        self.sockets.clear()
        if self.network is not None:
            self.network.forget()
