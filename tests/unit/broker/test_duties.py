"""The periodic work: a disk that stalls is noticed although a checkpoint waits for it."""

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.service.fakes import turn

from paceline.runtime import ManualClock, cancel_and_wait, spawn
from paceline_broker.duties import DISK_STALL_MS, TICK_MS, Duties


class StuckStore:
    """A store whose disk finishes nothing: bytes wait to be flushed, so does the checkpoint."""

    def __init__(self) -> None:
        self.log = SimpleNamespace(flushed=0, written=100)
        self.is_waiting = asyncio.Event()

    def begin_checkpoint(self) -> None: ...

    def finish_checkpoint(self) -> Awaitable[bool]:
        self.is_waiting.set()
        return asyncio.get_running_loop().create_future()


class WatchedRole:
    """What the duties tell the role."""

    def __init__(self) -> None:
        self.is_stalled = False
        self.was_told = asyncio.Event()

    def tell_health(self) -> None:
        self.was_told.set()

    def tell_floor(self) -> None: ...


async def test_a_stalled_disk_is_noticed_while_a_checkpoint_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, store, role = ManualClock(), StuckStore(), WatchedRole()

    async def tick(milliseconds: float) -> None:
        clock.advance(int(milliseconds))
        await turn()

    monkeypatch.setattr("paceline_broker.duties.pause", tick)
    duties = Duties(
        role=cast(Any, role),
        store=cast(Any, store),
        config=cast(Any, SimpleNamespace(checkpoint_interval_ms=TICK_MS)),
        clock=clock,
        forget_silent_producers=lambda: False,
    )

    running = spawn(duties.run(), name="duties")
    async with asyncio.timeout(10):
        await role.was_told.wait()

    assert role.is_stalled
    assert store.is_waiting.is_set()
    assert clock.monotonic_ms() > DISK_STALL_MS
    await cancel_and_wait(running)
