"""Group commit: one flush at a time, everybody who came meanwhile in the next one."""

import asyncio
from pathlib import Path

import pytest
from tests.support.log.builders import FOLDER, a_log, append, begin_epoch, content, open_log

from paceline.errors import StorageError
from paceline.platform.disk_memory import MemoryDisk, MemoryFile
from paceline.platform.disk_real import RealDisk
from paceline.platform.ports import Disk, File
from paceline.platform.runtime import SeededRandom
from paceline.types import PhysicalOffset
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.flusher import Flusher


class Watched:
    """A flusher, what it reported, and a way to wait for it."""

    def __init__(
        self, disk: Disk, log: CommitLog, folder: str = FOLDER, *, checkpoint_bytes: int = 1 << 40
    ) -> None:
        self.flushed: list[int] = []
        self.failures: list[StorageError] = []
        self._changed = asyncio.Event()
        self.log = log
        self.flusher = Flusher(
            disk,
            log,
            folder,
            on_flushed=self._on_flushed,
            on_failed=self._on_failed,
            checkpoint_bytes=checkpoint_bytes,
        )
        self.flusher.start()

    def write(self) -> None:
        self.log.write_pending()
        self.flusher.poke()

    async def until_flushed(self, position: PhysicalOffset) -> None:
        while self.log.flushed < position and not self.failures:
            await self._wait()

    async def until_failed(self) -> None:
        while not self.failures:
            await self._wait()

    async def _wait(self) -> None:
        self._changed.clear()
        async with asyncio.timeout(10):
            await self._changed.wait()

    def _on_flushed(self, position: PhysicalOffset) -> None:
        self.flushed.append(position)
        self._changed.set()

    def _on_failed(self, error: StorageError) -> None:
        self.failures.append(error)
        self._changed.set()


class GatedDisk(MemoryDisk):
    """Syncs wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Semaphore(0)
        self.waiting = 0
        self.most = 0

    async def sync(self, file: File) -> None:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await self.gate.acquire()
        self.waiting -= 1
        await super().sync(file)


class FullDisk(MemoryDisk):
    """Has no room for another segment."""

    attempts = 0

    async def create_ahead(self, path: str, size: int) -> MemoryFile:
        self.attempts += 1
        raise StorageError("No space left on device")


async def _turns(count: int) -> None:
    for _ in range(count):
        ready = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(ready.set_result, None)
        await ready


async def test_what_is_written_during_a_flush_goes_to_the_next_one() -> None:
    disk = GatedDisk()
    watched = Watched(disk, a_log(disk))
    first = append(watched.log)
    watched.write()
    await _turns(5)
    for _ in range(10):
        last = append(watched.log)
        watched.write()
        await _turns(2)
    assert watched.flushed == []

    disk.gate.release()
    disk.gate.release()
    await watched.until_flushed(last)

    assert watched.flushed == [first, last]
    assert disk.most == 1
    await watched.flusher.stop()


async def test_a_roll_syncs_both_segments_and_their_folder_before_flushed_moves() -> None:
    disk = MemoryDisk()
    watched = Watched(disk, a_log(disk))
    end = append(watched.log, 5000)
    end = append(watched.log, 5000)
    watched.write()

    await watched.until_flushed(end)
    disk.crash(SeededRandom("power"), keep_page_cache=False, survival=0)

    assert open_log(disk)[1].end == end


async def test_a_failed_sync_poisons_and_is_reported_once() -> None:
    """R22."""
    disk = MemoryDisk()
    watched = Watched(disk, a_log(disk))
    disk.fail_next("sync")
    append(watched.log)
    watched.write()

    await watched.until_failed()

    assert len(watched.failures) == 1
    assert watched.flushed == []
    with pytest.raises(StorageError, match="accepts nothing"):
        append(watched.log)
    await watched.flusher.stop()


async def test_a_truncation_may_remove_a_segment_that_waits_for_its_sync() -> None:
    """R25: its file is closed; that is no fault of the disk, and the log lives."""
    disk = GatedDisk()
    log = a_log(disk)
    kept = append(log)
    log.flush_now()
    watched = Watched(disk, log)
    for _ in range(2):
        append(log, 5000)  # the second one rolls
    watched.write()
    await _turns(5)
    assert disk.waiting == 1

    log.truncate_to(kept)
    disk.gate.release()
    last = append(log)
    watched.write()
    disk.gate.release()
    await watched.until_flushed(last)

    assert watched.failures == []
    assert log.failure is None
    await watched.flusher.stop()


async def test_a_poisoned_log_ends_the_flusher_with_a_report() -> None:
    disk = MemoryDisk()
    watched = Watched(disk, a_log(disk))
    await _turns(3)
    watched.log.fail_flush(StorageError("somebody else saw it"))

    watched.flusher.poke()
    await watched.until_failed()

    await watched.flusher.stop()


async def test_stopping_waits_for_the_flush_in_progress_and_reports_no_more() -> None:
    disk = GatedDisk()
    watched = Watched(disk, a_log(disk))
    end = append(watched.log)
    watched.write()
    await _turns(3)
    asyncio.get_running_loop().call_later(0.01, disk.gate.release)

    await watched.flusher.stop()

    assert watched.log.flushed == end
    assert watched.flushed == []
    another = Watched(disk, watched.log)
    disk.gate.release()
    end = append(watched.log)
    another.write()
    await another.until_flushed(end)
    await another.flusher.stop()


async def test_the_next_segment_is_made_ahead_off_the_loop() -> None:
    disk = MemoryDisk()
    watched = Watched(disk, a_log(disk))
    end = append(watched.log, 5000)
    watched.write()
    await watched.until_flushed(end)
    await _turns(5)
    operations: list[str] = []
    disk.observer = lambda operation, path: operations.append(operation)

    append(watched.log, 5000)

    assert operations == ["rename"]
    await watched.flusher.stop()


async def test_a_full_disk_is_not_asked_for_a_spare_with_every_flush(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    watched = Watched(disk, a_log(disk))
    append(watched.log, 5000)
    for _ in range(5):
        end = append(watched.log)
        watched.write()
        await watched.until_flushed(end)
        await _turns(5)
    assert disk.attempts == 1
    assert [record.getMessage() for record in caplog.records] == ["log_upkeep_failed"]

    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 1e12)
    watched.flusher.keep_up()
    await _turns(5)
    monkeypatch.undo()

    assert disk.attempts == 2
    await watched.flusher.stop()


async def test_the_checkpoint_follows_so_that_a_restart_verifies_little() -> None:
    disk = MemoryDisk()
    watched = Watched(disk, a_log(disk), checkpoint_bytes=4096)
    for _ in range(50):
        end = append(watched.log, 1000)
        watched.write()
        await watched.until_flushed(end)
        await _turns(5)
    await watched.flusher.stop()
    disk.crash(SeededRandom("kill"), keep_page_cache=True)

    log, report = open_log(disk)

    assert log.end == end
    assert end - report.verified_from < 4 * 4096
    assert report.damage is None


async def test_a_checkpoint_made_before_a_truncation_is_not_written_after_it() -> None:
    """Its flushed mark would turn the truncation into damage at the next start (R25)."""
    disk = GatedDisk()
    log = a_log(disk, batches=20)
    watched = Watched(disk, log, checkpoint_bytes=1)
    await _turns(3)
    assert disk.waiting == 1

    log.truncate_to(PhysicalOffset(96))
    disk.gate.release()
    await _turns(10)
    await watched.flusher.stop()

    _, report = open_log(disk)
    assert report.damage is None
    assert report.end == 96


@pytest.mark.parametrize("seed", range(3))
async def test_everything_reported_as_flushed_survives_power_loss(seed: int) -> None:
    random = SeededRandom(f"flusher-{seed}")
    disk = MemoryDisk()
    disk.sync_delay_ms = 0.2
    watched = Watched(disk, a_log(disk), checkpoint_bytes=8192)
    for step in range(60):
        append(watched.log, int(random.uniform(0, 200)) * 8, fill=step)
        watched.write()
        await _turns(int(random.uniform(0, 4)))
        if random.uniform(0, 1) < 0.3:
            reported = max(watched.flushed, default=0)
            before = content(watched.log)
            image = disk.crash_image(random, keep_page_cache=False)
            log, report = open_log(image)
            assert report.damage is None, (seed, step)
            assert log.end >= reported, (seed, step)
            assert before.startswith(content(log)), (seed, step)
    await watched.flusher.stop()


async def test_a_spare_that_was_begun_before_the_log_was_opened_anew_is_not_used() -> None:
    """Recovery unlinks what it finds under the spare's name, also while it is being made (R25)."""
    disk = GatedDisk()
    log = a_log(disk)
    append(log, 5000)
    log.flush_now()
    watched = Watched(disk, log)
    await _turns(3)
    assert disk.waiting == 1

    log.reopen()
    disk.gate.release()
    await _turns(10)
    for _ in range(3):
        append(log, 5000)
        log.flush_now()

    assert watched.flusher.is_idle
    assert open_log(disk)[1].end == log.end
    await watched.flusher.stop()


async def test_a_real_disk_flushes_and_rolls(tmp_path: Path) -> None:
    disk = RealDisk()
    folder = f"{tmp_path}/log"
    log, _ = CommitLog.open(disk, folder, segment_size_bytes=65536)
    watched = Watched(disk, log, folder, checkpoint_bytes=65536)
    end = begin_epoch(log, 1)
    for fill in range(100):
        for _ in range(3):
            end = append(log, 4000, fill=fill)
        watched.write()
        await watched.until_flushed(end)
    await watched.flusher.stop()
    before = content(log)
    log.close(clean=False)

    again, report = CommitLog.open(disk, folder, segment_size_bytes=65536)

    assert content(again) == before
    assert (report.damage, report.is_suspect) == (None, False)
    assert report.verified_from > 0
    again.close()
    disk.close()
