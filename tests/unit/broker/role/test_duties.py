"""The periodic work: a disk that stalls is noticed although a checkpoint waits for it."""

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.broker.brokers import DATA, Broker, a_group, eventually, registered, tell
from tests.support.http.turns import turn

from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import ManualClock, cancel_and_wait, spawn
from paceline.types import PhysicalOffset
from paceline.wire.session_commands import RegisterReplica
from paceline_broker.log.layout import segment_name
from paceline_broker.role.duties import TICK_MS, Duties
from paceline_broker.storage.disk_health import DiskPace


async def test_a_log_that_recovery_cut_to_nothing_is_suspect_not_new() -> None:
    """A flip in its first batch: all of it may have been confirmed, it must not lead with it."""
    disk = MemoryDisk()
    broker = Broker(disk=disk)
    async with broker.running():
        tell(a_group(broker, sync_state_set=frozenset({1}), minimum=1, epoch=1), 1, broker)
        await eventually(lambda: broker.role.mastership is not None)
        await eventually(lambda: broker.mastership.is_open)
    broker.store.close(clean=False)
    disk.flip_bit(f"{DATA}/log/{segment_name(PhysicalOffset(0))}", 40)

    again = Broker(disk=disk)
    await registered(again)

    [command] = again.controllers.requests
    assert isinstance(command, RegisterReplica)
    assert (command.end, command.is_empty, command.is_suspect) == (0, True, True)


DISK_STALL_MS = 500


class StuckStore:
    """A store whose disk finishes nothing: bytes wait to be flushed, so does the checkpoint."""

    def __init__(self) -> None:
        self.log = SimpleNamespace(flushed=0, written=100)
        self.is_checkpoint_pending = True
        self.is_waiting = asyncio.Event()

    def prepare_checkpoint(self) -> bool:
        return False

    def begin_checkpoint(self) -> None: ...

    def finish_checkpoint(self) -> Awaitable[bool]:
        self.is_waiting.set()
        return asyncio.get_running_loop().create_future()


async def _nothing_to_do() -> None: ...


class WatchedRole:
    """What the duties tell the role."""

    def __init__(self) -> None:
        self.disk = DiskPace()
        self.flusher = SimpleNamespace(syncs_finished=0)
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

    monkeypatch.setattr("paceline_broker.role.duties.pause", tick)
    duties = Duties(
        role=cast(Any, role),
        store=cast(Any, store),
        config=cast(
            Any, SimpleNamespace(checkpoint_interval_ms=TICK_MS, disk_stall_ms=DISK_STALL_MS)
        ),
        clock=clock,
        clean=_nothing_to_do,
        deliver=_nothing_to_do,
        seal=_nothing_to_do,
    )

    running = spawn(duties.run(), name="duties")
    async with asyncio.timeout(10):
        await role.was_told.wait()

    assert role.disk.is_stalled
    assert store.is_waiting.is_set()
    assert clock.monotonic_ms() > DISK_STALL_MS
    await cancel_and_wait(running)
