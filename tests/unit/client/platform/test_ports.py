"""`write_durably`: whenever the power fails, the file holds the old content or the new."""

from pathlib import Path

import pytest

from paceline.errors import StorageError
from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.disk_real import RealDisk
from paceline.platform.ports import Disk, write_durably
from paceline.platform.runtime import SeededRandom

OLD, NEW = b"old" * 3000, b"new" * 4000
PATH = "store/identity.json"
OPERATIONS = 5
"""create, writev, sync_now, rename, sync_folder: each is a moment at which the power may fail."""


def content(disk: Disk, path: str = PATH) -> bytes:
    file = disk.open(path)
    try:
        return disk.pread(file, disk.size(file), 0)
    finally:
        file.close()


def a_disk_with_the_old_content() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_folder("store")
    write_durably(disk, PATH, OLD)
    return disk


def test_written_content_survives_a_power_loss() -> None:
    disk = a_disk_with_the_old_content()
    write_durably(disk, PATH, NEW)

    disk.crash(SeededRandom("durable"), keep_page_cache=False, survival=0.0)

    assert content(disk) == NEW


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fuse", range(OPERATIONS))
def test_power_loss_at_any_operation_leaves_the_old_or_the_new(fuse: int, seed: int) -> None:
    disk = a_disk_with_the_old_content()
    disk.fuse = fuse
    with pytest.raises(PowerLost):
        write_durably(disk, PATH, NEW)

    disk.crash(SeededRandom(f"{fuse}/{seed}"), keep_page_cache=False)

    assert content(disk) in (OLD, NEW)


def test_rest_of_an_interrupted_write_does_not_disturb_the_next() -> None:
    disk = a_disk_with_the_old_content()
    disk.fuse = 2  # the longer temporary file is written and stays
    with pytest.raises(PowerLost):
        write_durably(disk, PATH, NEW * 2)
    disk.crash(SeededRandom("rest"), keep_page_cache=True)

    write_durably(disk, PATH, NEW)

    assert content(disk) == NEW


@pytest.mark.parametrize("operation", ["writev", "sync_now", "rename"])
def test_failed_write_leaves_the_old_content_in_place(operation: str) -> None:
    disk = a_disk_with_the_old_content()
    disk.fail_next(operation)

    with pytest.raises(StorageError):
        write_durably(disk, PATH, NEW)

    assert content(disk) == OLD


def test_power_fails_at_every_operation_there_is() -> None:
    disk = a_disk_with_the_old_content()
    before = disk.operations_count

    write_durably(disk, PATH, NEW)

    assert disk.operations_count - before == OPERATIONS


def test_disk_of_this_machine_does_the_same(tmp_path: Path) -> None:
    disk, path = RealDisk(), f"{tmp_path}/identity.json"

    write_durably(disk, path, OLD)
    write_durably(disk, path, NEW)

    assert content(disk, path) == NEW
    assert disk.list(str(tmp_path)) == ["identity.json"]
    disk.close()
