"""Tests that wait for time-outs, on the simulated world's loop: time passes when nothing else can
happen, so that how fast or how busy the machine is changes nothing, and each run is the same."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from paceline.platform.runtime import ManualClock
from paceline_chaos.sim import Simulation

_P = ParamSpec("_P")
LIMIT_S = 600
"""Of virtual time."""


def in_virtual_time(
    test: Callable[_P, Coroutine[Any, Any, None]],
) -> Callable[_P, None]:
    """Run an async test as the one process of a simulated machine, its sockets in memory."""

    @functools.wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        with Simulation(f"{test.__name__}{args}{kwargs}") as world:
            process = world.machine("m").start(lambda: test(*args, **kwargs))
            world.run(lambda: process.is_dead, limit_s=LIMIT_S)
            if process.error is not None:
                raise process.error
            assert not world.errors

    return run


class LoopClock(ManualClock):
    """A clock that goes on with the time of the running loop, and can be advanced beside that."""

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + int(asyncio.get_running_loop().time() * 1000)
