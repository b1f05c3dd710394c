"""The disk of this machine, in a temporary folder."""

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from paceline.errors import StorageError
from paceline.platform.disk_real import RealDisk
from paceline.platform.ports import Buffer, Disk, write_durably


@pytest.fixture
def disk() -> Iterator[RealDisk]:
    found = RealDisk()
    yield found
    found.close()


def test_it_is_a_disk(disk: RealDisk, tmp_path: Path) -> None:
    port: Disk = disk
    write_durably(port, f"{tmp_path}/f", b"content")

    assert port.list(str(tmp_path)) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"content"


def test_more_buffers_than_one_writev_takes(disk: RealDisk, tmp_path: Path) -> None:
    buffers: list[Buffer] = [bytes([index % 251]) * (index % 7) for index in range(5000)]
    file = disk.open(f"{tmp_path}/f", create=True)

    written = disk.writev(file, buffers, 10)

    assert written == sum(map(len, buffers))
    assert disk.pread(file, written, 10) == b"".join(buffers)
    file.close()


def test_short_writes_are_completed(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.pwritev, []

    def short(descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        calls.append(offset)
        return real(descriptor, [b"".join(buffers)[:7]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    buffers = [b"abc", b"", b"defghijkl", b"m" * 20]
    file = disk.open(f"{tmp_path}/f", create=True)

    assert disk.writev(file, buffers, 3) == 32

    assert len(calls) == 5
    assert disk.pread(file, 100, 3) == b"".join(buffers)
    file.close()


def test_a_write_that_makes_no_progress_fails(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *arguments: 0)
    file = disk.open(f"{tmp_path}/f", create=True)

    with pytest.raises(StorageError, match="stopped at 0 of 3 bytes"):
        disk.writev(file, [b"abc"], 0)

    file.close()


def test_os_errors_leave_as_storage_errors_with_the_path(disk: RealDisk, tmp_path: Path) -> None:
    for call in (
        lambda: disk.open(f"{tmp_path}/none"),
        lambda: disk.unlink(f"{tmp_path}/none"),
        lambda: disk.rename(f"{tmp_path}/none", f"{tmp_path}/f"),
        lambda: disk.list(f"{tmp_path}/none"),
        lambda: disk.sync_folder(f"{tmp_path}/none"),
    ):
        with pytest.raises(StorageError, match="No such file"):
            call()


def test_folders_are_made_with_their_parents_and_listed_without_them(
    disk: RealDisk, tmp_path: Path
) -> None:
    disk.make_folder(f"{tmp_path}/a/b/c")
    disk.make_folder(f"{tmp_path}/a/b/c")
    disk.open(f"{tmp_path}/a/x", create=True).close()

    assert disk.list(f"{tmp_path}/a") == ["x"]


def test_a_locked_folder_refuses_a_second_owner(disk: RealDisk, tmp_path: Path) -> None:
    lock = disk.lock_folder(str(tmp_path))
    with pytest.raises(StorageError, match="in use by another process"):
        disk.lock_folder(str(tmp_path))
    lock.close()

    disk.lock_folder(str(tmp_path)).close()


def test_preallocated_bytes_are_zeros_and_no_data_extent(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)
    disk.preallocate(file, 1 << 22)
    disk.writev(file, [b"x" * 100], 0)
    disk.sync_now(file)

    extents = disk.data_extents(file, 0)

    assert disk.size(file) == 1 << 22
    assert extents[0][0] == 0
    assert disk.data_extents(file, 1 << 22) == []
    assert disk.pread(file, 8, 1 << 20) == bytes(8)
    file.close()


def test_a_mapping_sees_later_writes(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)
    disk.preallocate(file, 8192)
    view = disk.map(file, 8192)

    disk.writev(file, [b"hello"], 5000)
    file.close()

    assert bytes(view[5000:5005]) == b"hello"
    assert view.readonly


def test_what_was_read_of_a_mapping_can_be_given_back(disk: RealDisk, tmp_path: Path) -> None:
    size, process = 32 << 20, psutil.Process()
    file = disk.open(f"{tmp_path}/f", create=True)
    disk.writev(file, [bytes([7]) * size], 0)
    view = disk.map(file, size)
    before = process.memory_info().rss

    assert view[::4096].tolist().count(7) == size // 4096
    read = process.memory_info().rss
    disk.release(view)
    released = process.memory_info().rss

    assert read - before > size // 2
    assert released - before < size // 4
    assert view[-1] == 7
    disk.release(disk.map(file, 0))
    file.close()


def test_mapping_of_nothing_is_empty(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)

    assert bytes(disk.map(file, 0)) == b""
    file.close()


async def test_sync_runs_on_one_other_thread_in_order(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    running, most = 0, 0
    real = os.fdatasync

    def watched(descriptor: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        threads.add(threading.get_ident())
        real(descriptor)
        running -= 1

    monkeypatch.setattr(os, "fdatasync", watched)
    file = disk.open(f"{tmp_path}/f", create=True)
    disk.writev(file, [b"x"], 0)

    await asyncio.gather(*(disk.sync(file) for _ in range(20)))

    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert most == 1
    file.close()


async def test_a_failed_sync_reaches_its_waiter(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    file = disk.open(f"{tmp_path}/f", create=True)

    with pytest.raises(StorageError, match="fdatasync of .*/f failed: Input/output error"):
        await disk.sync(file)

    file.close()


async def test_a_file_closed_during_its_sync_keeps_its_number_until_then(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    real = os.fdatasync

    def slow(descriptor: int) -> None:
        gate.wait(10)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    file = disk.open(f"{tmp_path}/f", create=True)
    syncing = disk.sync(file)
    file.close()
    other = disk.open(f"{tmp_path}/g", create=True)

    gate.set()
    await syncing

    assert other.descriptor != file.descriptor
    with pytest.raises(StorageError, match="closed"):
        disk.sync(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file.descriptor)
    other.close()


async def test_a_file_made_ahead_has_its_size_and_is_zeros(disk: RealDisk, tmp_path: Path) -> None:
    file = await disk.create_ahead(f"{tmp_path}/spare", 1 << 20)
    await disk.sync_folder_later(str(tmp_path))

    assert disk.size(file) == 1 << 20
    assert disk.pread(file, 100, 0) == bytes(100)
    file.close()


async def test_a_full_or_missing_folder_reaches_the_waiter(disk: RealDisk, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        await disk.create_ahead(f"{tmp_path}/none/spare", 1 << 20)


def test_threads_end_with_the_disk(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.open(f"{tmp_path}/f", create=True)

    async def use() -> None:
        await disk.sync(file)
        await disk.sync_folder_later(str(tmp_path))

    asyncio.run(use())
    disk.close()

    assert not [t for t in threading.enumerate() if t.name.startswith("paceline-")]
    file.close()


async def test_space_and_unlinking_off_the_loop(disk: RealDisk, tmp_path: Path) -> None:
    write_durably(disk, f"{tmp_path}/f", b"content")
    found = disk.space(str(tmp_path))
    assert 0 < found.free_bytes <= found.total_bytes
    assert 0 <= found.used_ratio <= 100

    await disk.unlink_later(f"{tmp_path}/f")

    assert disk.list(str(tmp_path)) == []
    with pytest.raises(StorageError):
        await disk.unlink_later(f"{tmp_path}/f")
