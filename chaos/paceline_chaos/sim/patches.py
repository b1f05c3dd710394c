"""What a simulation replaces in the Python process around it, and puts back afterwards.

Only names through which nondeterminism or the real system gets in: clocks, entropy, sockets,
threads, processes, the moments of garbage collection, and a few private spots of aiohttp that keep
objects in sets or took a clock by name. The product's code is not touched.
"""

import gc
import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import aiohttp.connector
import aiohttp.helpers
import aiohttp.resolver

from paceline import runtime
from paceline_chaos.sim.loop import SimLoop
from paceline_chaos.sim.machine import UNIX_START_NS
from paceline_chaos.sim.sockets import SimSocket

COLLECT_EVERY = 100_000
"""Handles between two garbage collections; there is no other moment for one."""


@contextmanager
def patched(loop: SimLoop, seed: str) -> Iterator[None]:
    """While a simulation runs in this Python process. One at a time."""
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
    before = random.getstate()
    random.seed(f"{seed}/module")
    try:
        with (
            patch.object(os, "urandom", entropy.randbytes),
            patch.object(random, "_urandom", entropy.randbytes),
            patch.object(uuid, "uuid4", lambda: uuid.UUID(bytes=entropy.randbytes(16), version=4)),
        ):
            yield
    finally:
        random.setstate(before)


@contextmanager
def _collected_at_known_moments(loop: SimLoop) -> Iterator[None]:
    """Finalizers run by reference count or at every `COLLECT_EVERY`th handle, never between."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    loop.step_hooks.append((COLLECT_EVERY, gc.collect))
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def bury(loop: SimLoop) -> None:
    """Let go of everything a loop has held alive: coroutines are closed, and nobody listens.

    Freed coroutines run their `finally` blocks now; what they complain about means nothing.
    """
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for task in [task for task in runtime._running if task.get_loop() is loop]:
                runtime._running.discard(task)
            loop.forget()
            gc.collect()
    finally:
        sys.unraisablehook = hook
