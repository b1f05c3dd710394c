"""The disk of a node under test: what was not synced is lost in a power cut, what was is kept."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.errors import StorageError
from paceline.platform.disk_real import RealDisk
from paceline.platform.memory_images import PAGE_BYTES as PAGE
from paceline.platform.ports import write_durably
from paceline.platform.runtime import SeededRandom
from paceline_chaos.processes.node import power
from paceline_chaos.processes.node.control import Control
from paceline_chaos.processes.node.faulty_disk import FaultyDisk
from paceline_chaos.processes.node.shadow import Shadow

pytestmark = pytest.mark.process


class Machine:
    """A folder on a faulty disk; `restarted` is a new process on it, `power_cut` a new machine."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "live")
        self.control = Control(folder / "control")
        self._shadow_folder = folder / "shadow"
        self._real = RealDisk()
        self.disk = self._opened()
        self.disk.make_folder(self.path)

    def _opened(self) -> FaultyDisk:
        self._shadow = Shadow(self._shadow_folder)
        return FaultyDisk(self._real, self.control, self._shadow)

    def restarted(self) -> FaultyDisk:
        self._shadow.close()
        self.disk = self._opened()
        return self.disk

    def power_cut(self, *, survival: float = 0.0, seed: str = "1") -> FaultyDisk:
        self._shadow.close()
        power.cut(self._shadow_folder, SeededRandom(seed), survival=survival)
        self.disk = self._opened()
        return self.disk

    def read(self, name: str) -> bytes:
        return Path(self.path, name).read_bytes()

    def names(self) -> list[str]:
        return self.disk.list(self.path)

    def close(self) -> None:
        self._shadow.close()
        self._real.close()
        self.control.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    found.close()


def written(machine: Machine, name: str, content: bytes, *, at: int = 0) -> None:
    """Write, and sync nothing."""
    file = machine.disk.open(f"{machine.path}/{name}", create=True)
    machine.disk.writev(file, [content], at)
    file.close()


async def synced(machine: Machine, name: str, content: bytes, *, at: int = 0) -> None:
    """Write and sync the bytes and the name."""
    file = machine.disk.open(f"{machine.path}/{name}", create=True)
    machine.disk.writev(file, [content], at)
    await machine.disk.sync(file)
    machine.disk.sync_folder(machine.path)
    file.close()


async def test_power_cut_keeps_what_was_synced_and_loses_the_rest(machine: Machine) -> None:
    await synced(machine, "log", b"a" * 6000)
    written(machine, "log", b"b" * 6000, at=6000)

    machine.power_cut()

    assert machine.read("log") == b"a" * 6000


async def test_kill_loses_nothing_and_the_next_process_may_make_it_durable(
    machine: Machine,
) -> None:
    await synced(machine, "log", b"a" * PAGE)
    written(machine, "log", b"b" * PAGE, at=PAGE)

    machine.restarted()
    assert machine.read("log") == b"a" * PAGE + b"b" * PAGE
    await synced(machine, "log", b"", at=0)
    machine.power_cut()

    assert machine.read("log") == b"a" * PAGE + b"b" * PAGE


async def test_write_after_a_kill_is_lost_unless_it_was_synced(machine: Machine) -> None:
    await synced(machine, "log", b"a" * PAGE)
    written(machine, "log", b"b" * PAGE, at=PAGE)
    machine.restarted()

    machine.power_cut()

    assert machine.read("log") == b"a" * PAGE


def test_file_whose_folder_was_never_synced_is_gone(machine: Machine) -> None:
    file = machine.disk.open(f"{machine.path}/new", create=True)
    machine.disk.writev(file, [b"content"], 0)
    machine.disk.sync_now(file)
    file.close()

    machine.power_cut()

    assert machine.names() == []


async def test_rename_and_unlink_come_back_unless_the_folder_was_synced(machine: Machine) -> None:
    await synced(machine, "one", b"1")
    await synced(machine, "two", b"2")
    machine.disk.rename(f"{machine.path}/one", f"{machine.path}/two")

    machine.power_cut()
    assert (machine.read("one"), machine.read("two")) == (b"1", b"2")

    machine.disk.rename(f"{machine.path}/one", f"{machine.path}/two")
    machine.disk.sync_folder(machine.path)
    machine.disk.unlink(f"{machine.path}/two")
    machine.power_cut()
    assert machine.names() == ["two"]
    assert machine.read("two") == b"1"


def test_file_replaced_durably_is_the_old_or_the_new_one(machine: Machine) -> None:
    write_durably(machine.disk, f"{machine.path}/state", b"old")
    write_durably(machine.disk, f"{machine.path}/state", b"new and longer")

    machine.power_cut()

    assert machine.read("state") == b"new and longer"


async def test_each_unsynced_page_survives_by_chance_and_some_are_torn(machine: Machine) -> None:
    pages = 64
    await synced(machine, "log", b"a" * PAGE * pages)
    written(machine, "log", b"b" * PAGE * pages)

    machine.power_cut(survival=0.5)

    content = machine.read("log")
    found = [content[at : at + PAGE] for at in range(0, len(content), PAGE)]
    whole = [page for page in found if page in (b"a" * PAGE, b"b" * PAGE)]
    assert {page[:1] for page in whole} == {b"a", b"b"}
    assert 0 < len(found) - len(whole) < pages / 2
    assert set(content) == set(b"ab")


async def test_file_made_ahead_is_zeros_and_its_preallocation_is_durable(machine: Machine) -> None:
    file = await machine.disk.create_ahead(f"{machine.path}/spare", 2 * PAGE)
    machine.disk.rename(f"{machine.path}/spare", f"{machine.path}/log")
    machine.disk.writev(file, [b"x"], 0)
    machine.disk.sync_folder(machine.path)
    file.close()

    machine.power_cut()

    assert machine.read("log") == bytes(2 * PAGE)


async def test_failed_sync_drops_the_pages_and_a_later_one_does_not_bring_them_back(
    machine: Machine,
) -> None:
    """R22: what the next process finds after `forget_clean` is the disk."""
    await synced(machine, "log", b"a" * PAGE)
    file = machine.disk.open(f"{machine.path}/log")
    machine.disk.writev(file, [b"b" * PAGE], 0)
    machine.control.set("sync_failures", 1)
    with pytest.raises(StorageError):
        await machine.disk.sync(file)
    await machine.disk.sync(file)
    file.close()

    again = machine.restarted().open(f"{machine.path}/log")
    machine.disk.sync_now(again)
    machine.disk.forget_clean(again)
    again.close()

    assert machine.read("log") == b"a" * PAGE


@pytest.mark.parametrize(
    "grow",
    [
        lambda disk, file, path: disk.preallocate(file, 3 * PAGE),
        lambda disk, file, path: disk.writev(file, [b"x"], PAGE),
        lambda disk, file, path: disk.open(f"{path}/new", create=True),
    ],
)
async def test_full_disk_refuses_what_needs_room(
    machine: Machine, grow: Callable[[FaultyDisk, object, str], object]
) -> None:
    await synced(machine, "log", b"a" * PAGE)
    file = machine.disk.open(f"{machine.path}/log")
    machine.control.set("is_full", 1)

    with pytest.raises(StorageError, match="No space left"):
        grow(machine.disk, file, machine.path)
    machine.disk.writev(file, [b"b"], 0)
    file.close()


async def test_stalled_sync_ends_when_the_stall_does(machine: Machine) -> None:
    file = machine.disk.open(f"{machine.path}/log", create=True)
    machine.control.set("sync_delay_ms", 60_000)
    loop = asyncio.get_running_loop()
    loop.call_later(0.1, machine.control.set, "sync_delay_ms", 0)
    began = loop.time()

    await machine.disk.sync(file)
    file.close()

    assert 0.09 < loop.time() - began < 5
