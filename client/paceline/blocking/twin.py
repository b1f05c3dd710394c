"""What makes a blocking twin of a client: the same client on an event loop of its own.

Each twin owns a thread with an event loop. Its methods are those of its client, made by `waits`
(what is awaited there) and `runs` (what returns at once), so they have the same arguments, results
and errors. They may be called from any thread, one at a time. Listeners and other functions of the
application are plain functions here; they run in threads, so they may block.
"""

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, get_args

from paceline.errors import ShuttingDownError
from paceline.net.client_base import FORKED, Client

ClientT = TypeVar("ClientT")
TwinT = TypeVar("TwinT", covariant=True)
ResultT = TypeVar("ResultT")
Arguments = ParamSpec("Arguments")


class LoopThread:
    """An event loop on a daemon thread."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def call(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Run `await work()` on the loop and wait for the result."""
        self._check_runs()

        async def run() -> ResultT:
            return await work()

        pending = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return pending.result()
        except BaseException:
            pending.cancel()  # Ctrl-C in the waiting thread ends the work as well
            raise

    def _check_runs(self) -> None:
        if not self._thread.is_alive():
            is_forked = os.getpid() != self._pid
            raise ShuttingDownError(FORKED if is_forked else "this client is closed")

    def soon(self, work: Callable[[], object]) -> None:
        """Have `work()` called on the loop, without waiting for it; ShuttingDownError."""
        self._check_runs()
        self._loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        """Stop the loop and wait for the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


class Twin(Generic[TwinT]):
    """A client, or a part of one, and the thread that it lives on."""

    _thread: LoopThread
    _client: TwinT


class Part(Twin[TwinT]):
    """The twin of a part of a client."""

    def __init__(self, thread: LoopThread, part: TwinT) -> None:
        self._thread = thread
        self._client = part


class Blocking(Twin[TwinT]):
    """A client on a thread of its own. `with`, or `close`."""

    _pool: ThreadPoolExecutor | None = None
    """The threads of the application's functions, where the client calls any."""

    def __init__(self, name: str, make: Callable[[], TwinT]) -> None:
        """`make` is called on the loop. Raises what the start of the client raises."""
        self._thread = LoopThread(f"paceline-{name}")
        self._is_closed = False
        try:
            self._client = self._thread.call(lambda: _started(make))
        except BaseException:
            self._thread.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is on its way, and end. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._thread.call(self._close)
        finally:
            self._thread.stop()

    async def _close(self) -> None:
        await cast(Client, self._client).close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


async def _started(make: Callable[[], ClientT]) -> ClientT:
    client = make()
    await cast(Any, client).__aenter__()
    return client


def waits(
    method: Callable[Concatenate[ClientT, Arguments], Awaitable[ResultT]],
) -> Callable[Concatenate[Twin[ClientT], Arguments], ResultT]:
    """A method whose result is awaited, as one that waits for it."""

    @wraps(method)
    def call(twin: Twin[ClientT], /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> ResultT:
        return twin._thread.call(lambda: method(twin._client, *args, **kwargs))

    told: Any = call
    told.__signature__ = _with_result(inspect.signature(method))
    return call


def _with_result(told: inspect.Signature) -> inspect.Signature:
    """Of what is awaited the result, where a method says only what it gives (`Producer.send`)."""
    wait = getattr(told.return_annotation, "__await__", None)
    if wait is None:
        return told
    *_, result = get_args(inspect.signature(wait).return_annotation)
    return told.replace(return_annotation=result)


def runs(
    method: Callable[Concatenate[ClientT, Arguments], ResultT],
) -> Callable[Concatenate[Twin[ClientT], Arguments], ResultT]:
    """A method that returns at once, carried out on the client's loop."""

    @wraps(method)
    def call(twin: Twin[ClientT], /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> ResultT:
        async def run() -> ResultT:
            return method(twin._client, *args, **kwargs)

        return twin._thread.call(run)

    return call


def in_thread(
    pool: ThreadPoolExecutor, function: Callable[[Any], ResultT] | None
) -> Callable[[Any], Awaitable[ResultT]] | None:
    """A plain function of the application as the async one that clients call."""
    if function is None:
        return None

    async def call(argument: Any) -> ResultT:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, function, argument)

    return call
