"""Pages that are not in memory: seen before they are touched, and read in off the event loop."""

import asyncio
import os
import threading
from pathlib import Path

import psutil
import pytest
from tests.support.log.builders import a_header, append

from paceline.platform import disk_real
from paceline.platform.disk_real import RealDisk
from paceline.records.header import Kind
from paceline.types import PhysicalOffset
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.segment import SHOWN_BYTES_MAX

COLD_BYTES = 4 << 20


def a_log_with_evicted_pages(disk: RealDisk, folder: Path) -> CommitLog:
    """A log whose first 4 MiB are on the disk only; skips where that cannot be had."""
    size = 16 << 20
    log, _ = CommitLog.open(disk, f"{folder}/log", segment_size_bytes=size)
    log.append(a_header(b"", position=0, kind=Kind.EPOCH_START), b"")
    for fill in range(96):
        append(log, 65536 - 96, fill=fill)
        if fill % 32 == 31:
            log.flush_now()
            log.save_checkpoint()  # twice: the next start verifies nothing of the first 4 MiB
    log.close()
    log, report = CommitLog.open(disk, f"{folder}/log", segment_size_bytes=size)
    assert report.verified_from > COLD_BYTES
    log.set_confirm(log.end)
    descriptor = os.open(f"{folder}/log/{0:020d}.log", os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    view = log.read(PhysicalOffset(0), COLD_BYTES)
    if disk.is_resident(view):
        pytest.skip("this file system keeps everything in memory")
    return log


async def test_an_evicted_view_is_cold_and_warming_it_lets_the_loop_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    log = a_log_with_evicted_pages(disk, tmp_path)
    view = log.read(PhysicalOffset(0), COLD_BYTES)
    loop_turned = threading.Event()
    threads: list[int] = []
    real = disk_real._populate

    def gated(cold: memoryview) -> None:
        threads.append(threading.get_ident())
        assert loop_turned.wait(10), "the loop stood still"
        real(cold)

    monkeypatch.setattr(disk_real, "_populate", gated)
    assert log.is_cold(view)

    warming = log.warm(view)
    asyncio.get_running_loop().call_soon(loop_turned.set)
    await warming

    assert not log.is_cold(view)
    assert threads != [threading.get_ident()]
    disk.close()


async def test_an_old_kernel_warms_by_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    log = a_log_with_evicted_pages(disk, tmp_path)
    monkeypatch.setattr(disk_real, "_MADV_POPULATE_READ", 9999)
    view = log.read(PhysicalOffset(0), COLD_BYTES)
    assert log.is_cold(view)

    await log.warm(view)

    assert not log.is_cold(view)
    disk.close()


def test_residency_is_told_for_any_slice(tmp_path: Path) -> None:
    disk = RealDisk()
    log = a_log_with_evicted_pages(disk, tmp_path)
    odd = log.read(PhysicalOffset(0), COLD_BYTES)[1_000_001:1_009_000]
    assert log.is_cold(odd)
    assert not log.is_cold(odd[5:5])

    bytes(odd)

    assert not log.is_cold(odd)


def test_reading_a_log_through_does_not_make_the_process_as_large(tmp_path: Path) -> None:
    disk = RealDisk()
    log, _ = CommitLog.open(disk, f"{tmp_path}/log", segment_size_bytes=8 << 20)
    log.append(a_header(b"", position=0, kind=Kind.EPOCH_START), b"")
    for fill in range(60 * 16):
        append(log, 65536 - 96, fill=fill % 251)
    log.flush_now()
    log.set_confirm(log.end)
    process = psutil.Process()
    before = largest = process.memory_info().rss

    position, total = 0, 0
    while view := log.read(PhysicalOffset(position), 1 << 20):
        total += sum(view[::4096])
        position += len(view)
        largest = max(largest, process.memory_info().rss)

    assert position == log.end > 7 * SHOWN_BYTES_MAX
    assert total > 0
    assert largest - before < 2 * SHOWN_BYTES_MAX
    log.close()
    disk.close()
