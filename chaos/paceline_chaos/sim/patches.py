"""What a simulation replaces in the Python process around it, and puts back afterwards.

Only names through which nondeterminism or the real system gets in: clocks, entropy, sockets,
threads, processes, the moments of garbage collection, and a few private spots of aiohttp that keep
objects in sets or took a clock by name. The product's code is not touched.
"""

import asyncio
import gc
import inspect
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from asyncio import selector_events
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import aiohttp.connector
import aiohttp.helpers
import aiohttp.resolver
from aiohttp import web_app
from aiohttp._websocket.writer import WebSocketWriter

from paceline.platform import runtime
from paceline_chaos.sim.loop import SimLoop
from paceline_chaos.sim.machine import UNIX_START_NS
from paceline_chaos.sim.process import Process
from paceline_chaos.sim.sockets import SimSocket

log = logging.getLogger("paceline.simulation")


@contextmanager
def patched(loop: SimLoop, seed: str) -> Iterator[None]:
    """While a simulation runs in this Python process. One at a time."""
    present: object = socket.socket
    assert present is not SimSocket, "another simulation runs in this Python process"
    with ExitStack() as stack:
        stack.enter_context(_collected_at_known_moments(loop))
        stack.enter_context(_seeded(seed))
        for target, name, value in [*_clocks(loop), *_guards(), *_aiohttp()]:
            stack.enter_context(patch.object(target, name, value))
        aiohttp.helpers._cached_current_datetime = None
        stack.callback(setattr, aiohttp.helpers, "_cached_current_datetime", None)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def _clocks(loop: SimLoop) -> Iterator[tuple[Any, str, Any]]:
    def monotonic_ns() -> int:
        machine = loop.current.machine
        return loop.now_ns if machine is None else machine.local_ns()

    def unix_ns() -> int:
        machine = loop.current.machine
        return UNIX_START_NS + loop.now_ns if machine is None else machine.unix_ns()

    def monotonic() -> float:
        return monotonic_ns() / 1_000_000_000

    def unix() -> float:
        return unix_ns() / 1_000_000_000

    yield time, "monotonic_ns", monotonic_ns
    yield time, "perf_counter_ns", monotonic_ns
    yield time, "time_ns", unix_ns
    yield time, "monotonic", monotonic
    yield time, "perf_counter", monotonic
    yield time, "time", unix
    yield aiohttp.connector, "monotonic", monotonic


def _refusing(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise RuntimeError(f"{what} in a simulation: it would leave virtual time")

    return refuse


def _guards() -> Iterator[tuple[Any, str, Any]]:
    yield socket, "socket", SimSocket
    yield socket, "socketpair", _refusing("a real socket")
    yield socket, "create_connection", _refusing("a real socket")
    yield threading.Thread, "start", _refusing("a thread")
    yield subprocess, "Popen", _refusing("a process of the system")
    yield time, "sleep", _refusing("a blocking sleep")


class _OrderedSet(dict[Any, None]):
    """The calls of `set` that aiohttp's connector makes, in the order of insertion."""

    def add(self, item: object) -> None:
        self[item] = None

    def discard(self, item: object) -> None:
        self.pop(item, None)

    def remove(self, item: object) -> None:
        del self[item]


def _aiohttp() -> Iterator[tuple[Any, str, Any]]:
    connector = aiohttp.connector.BaseConnector
    make = connector.__init__

    def ordered(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        self._acquired = _OrderedSet()
        self._acquired_per_host.default_factory = _OrderedSet

    yield connector, "__init__", ordered
    yield aiohttp.connector, "DefaultResolver", aiohttp.resolver.ThreadedResolver


@contextmanager
def _seeded(seed: str) -> Iterator[None]:
    """Entropy of the operating system and the module's own generator come from the seed."""
    entropy = random.Random(f"{seed}/entropy")
    before = [(generator, generator.getstate()) for generator in _shared_generators()]
    for number, (generator, _) in enumerate(before):
        generator.seed(f"{seed}/shared/{number}")
    try:
        with (
            patch.object(os, "urandom", entropy.randbytes),
            patch.object(random, "_urandom", entropy.randbytes),
            patch.object(uuid, "uuid4", lambda: uuid.UUID(bytes=entropy.randbytes(16), version=4)),
        ):
            yield
    finally:
        for generator, state in before:
            generator.setstate(state)


def _shared_generators() -> list[random.Random]:
    """Those that live as long as the Python process: the module's own, aiohttp's for masks."""
    shared: Any = random
    parameters = inspect.signature(WebSocketWriter.__init__).parameters.values()
    masks = [each.default for each in parameters if isinstance(each.default, random.Random)]
    assert masks, "aiohttp draws the masks of its WebSockets from somewhere else now"
    return [shared._inst, *masks]


@contextmanager
def _collected_at_known_moments(loop: SimLoop) -> Iterator[None]:
    """Finalizers run by reference count or at the loop's housekeeping, never between."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    loop.housekeeping = gc.collect
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def bury(loop: SimLoop, processes: Iterable[Process]) -> None:
    """Let go of everything a loop has held alive. Whoever outlives it is made to die in silence.

    Coroutines are closed here, so their `finally` blocks run now, where nobody listens: take what
    is of interest out of a simulation before it ends.
    """
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tasks = sorted(_tasks(loop), key=lambda task: getattr(task, "number", 0))
            runtime._running.difference_update(tasks)
            for task in tasks:
                _close(task)
            for thing in gc.get_objects():
                _silence(thing)
            for process in processes:
                process.forget()
            loop.forget()
            tasks.clear()
            # It keeps the last thousand handlers and all that they know.
            web_app._cached_build_middleware.cache_clear()
            gc.collect()
    finally:
        sys.unraisablehook = hook


def _tasks(loop: SimLoop) -> set[asyncio.Task[Any]]:
    finished = {task for task in runtime._running if task.get_loop() is loop}
    return finished | asyncio.all_tasks(loop)


def _close(task: asyncio.Task[Any]) -> None:
    coroutine = task.get_coro()
    try:
        if coroutine is not None:
            coroutine.close()
    except BaseException as error:  # a dead program's last complaint
        log.debug("buried", extra={"error": repr(error)})


def _silence(thing: object) -> None:
    """What would complain in its `__del__` that it was not closed."""
    kind = type(thing)
    if kind is selector_events._SelectorSocketTransport:  # type: ignore[attr-defined]
        thing._sock = None  # type: ignore[attr-defined]
    elif kind is aiohttp.ClientSession:
        thing._connector = None  # type: ignore[attr-defined]
    elif kind is aiohttp.TCPConnector:
        thing._closed = True  # type: ignore[attr-defined]
        thing._conns.clear()  # type: ignore[attr-defined]
    elif kind is aiohttp.connector.Connection:
        thing._protocol = None  # type: ignore[attr-defined]
    elif kind is aiohttp.ClientResponse:
        thing._connection = None  # type: ignore[attr-defined]
    elif kind is asyncio.StreamWriter:
        thing._transport = _CLOSED  # type: ignore[attr-defined]


class _Closed:
    def is_closing(self) -> bool:
        return True


_CLOSED = _Closed()
