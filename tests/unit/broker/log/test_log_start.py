"""The log's start moves by whole segments, durably, and never beyond what was let go (R26, R14)."""

import asyncio
import contextlib

import pytest
from crc32c import crc32c
from tests.support.log.builders import FOLDER, SEGMENT_BYTES, a_log, append, content, open_log

from paceline.errors import StorageError
from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.runtime import SeededRandom, pause
from paceline.types import PhysicalOffset
from paceline_broker.log.checkpoint import decode_checkpoint
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.epochs import EpochTable
from paceline_broker.log.flusher import Flusher
from paceline_broker.log.layout import CHECKPOINT_NAME, segment_firsts


def _long_log(disk: MemoryDisk) -> CommitLog:
    log = a_log(disk, batches=100)  # four segments of 8 KiB
    log.set_confirm(log.end)
    assert log.segments_count >= 4
    return log


def _flush_once(disk: MemoryDisk, log: CommitLog) -> None:
    """Run the flusher until what was let go is gone."""

    async def run() -> None:
        flusher = Flusher(
            disk, log, FOLDER, on_flushed=lambda position: None, on_failed=lambda error: None
        )
        flusher.start()
        flusher.keep_up()
        async with asyncio.timeout(5):
            while log.drop_wanted is not None or not flusher.is_idle:
                disk.exists(FOLDER)  # PowerLost ends the wait
                await pause(0)
        await flusher.stop()

    asyncio.run(run())


def _firsts(disk: MemoryDisk) -> list[PhysicalOffset]:
    return segment_firsts(disk.list(FOLDER))


def test_only_segments_wholly_below_the_bound_go() -> None:
    disk = MemoryDisk()
    log = _long_log(disk)
    bounds = log.segment_bounds()
    whole = content(log)

    log.let_go_below(PhysicalOffset(bounds[1][1] + 200))  # inside the third segment
    _flush_once(disk, log)

    assert log.start == bounds[2][0] == _firsts(disk)[0]
    assert content(log) == whole[log.start :]
    log.let_go_below(log.end)
    _flush_once(disk, log)
    assert log.segments_count == 1, "the active segment stays"
    assert log.start <= log.end


def test_nothing_above_confirm_or_flushed_is_let_go() -> None:
    """R26: replicas delete up to the confirmed record, never beyond."""
    log = a_log(MemoryDisk(), batches=100)
    log.set_confirm(PhysicalOffset(log.segment_bounds()[0][1]))
    with pytest.raises(AssertionError):
        log.let_go_below(PhysicalOffset(log.confirm + 1))
    append(log)
    log.write_pending()
    log.set_confirm(log.end)
    with pytest.raises(AssertionError):
        log.let_go_below(log.end)  # not flushed yet


def test_a_restart_finds_the_log_where_it_begins_and_goes_on() -> None:
    disk = MemoryDisk()
    log = _long_log(disk)
    log.let_go_below(log.segment_bounds()[1][1])
    _flush_once(disk, log)
    start, epochs, before = log.start, log.epochs, content(log)
    log.close()

    again, report = open_log(disk)

    assert (report.start, report.damage, report.is_suspect) == (start, None, False)
    assert again.epochs == epochs, "the epoch began below the start, and is still known"
    assert content(again) == before
    append(again)
    assert again.flush_now() == again.end


def test_a_crash_at_any_point_of_a_deletion_leaves_a_whole_log() -> None:
    for survival in (0.0, 0.5, 1.0):
        for fuse in range(40):
            disk = MemoryDisk()
            log = _long_log(disk)
            whole, bound = content(log), log.segment_bounds()[1][1]
            log.let_go_below(bound)
            disk.fuse = fuse
            has_ended = False
            try:
                _flush_once(disk, log)
                has_ended = True
            except PowerLost:
                pass
            disk.crash(SeededRandom(f"{fuse}/{survival}"), keep_page_cache=False, survival=survival)

            again, report = open_log(disk)

            assert report.damage is None, (fuse, survival, report)
            assert again.start in (0, bound), (fuse, again.start)
            assert content(again) == whole[again.start :], fuse
            assert _firsts(disk)[0] == again.start, "no file is left below the start"
        assert has_ended, "the last fuses must outlive the deletion"


def test_a_missing_first_segment_is_damage_not_retention() -> None:
    """R26: only what a confirmed record let go may be absent."""
    disk = MemoryDisk()
    log = _long_log(disk)
    log.let_go_below(log.segment_bounds()[0][1])
    _flush_once(disk, log)
    log.close()
    disk.unlink(f"{FOLDER}/{log.start:020d}.log")

    _, report = open_log(disk)

    assert report.damage is not None


def test_without_its_checkpoint_a_log_that_begins_above_0_is_damaged_not_cut() -> None:
    """The epochs before its start stand nowhere else; cutting all of it would look like a tear."""
    disk = MemoryDisk()
    log = _long_log(disk)
    log.let_go_below(log.end)
    _flush_once(disk, log)
    log.close()
    file = disk.open(f"{FOLDER}/{CHECKPOINT_NAME}")
    disk.writev(file, [b"x"], 5)

    again, report = open_log(disk)

    assert report.damage is not None
    assert report.cut_bytes == 0
    assert again.failure is not None


def test_a_log_begins_anew_where_its_master_does() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=10)
    start, base = PhysicalOffset(10 * SEGMENT_BYTES), PhysicalOffset(12 * SEGMENT_BYTES)
    table = EpochTable.of([(1, 0), (3, 4096), (4, start + 500)])

    log.begin_anew_at(start, epochs=table, base=base)

    assert (log.start, log.end, log.flushed, log.confirm, log.base) == (start,) * 4 + (base,)
    assert log.epochs.entries == table.entries[:2], "the epochs before the start, no later one"
    append(log)
    log.flush_now()
    log.close()
    again, report = open_log(disk)
    assert (report.start, report.damage, again.base) == (start, None, base)
    assert again.end == start + 296


def test_a_crash_while_beginning_anew_leaves_the_old_log_or_the_new() -> None:
    start = PhysicalOffset(10 * SEGMENT_BYTES)
    seen = set()
    for survival in (0.0, 0.5, 1.0):
        for fuse in range(40):
            disk = MemoryDisk()
            log = a_log(disk, batches=100)
            log.set_confirm(log.end)
            log.save_checkpoint()
            old = content(log)
            disk.fuse = fuse
            with contextlib.suppress(PowerLost):
                log.begin_anew_at(start, epochs=EpochTable.of([(1, 0)]), base=start)
            disk.crash(SeededRandom(f"{fuse}/{survival}"), keep_page_cache=False, survival=survival)

            again, report = open_log(disk)

            assert report.damage is None, (fuse, survival)
            assert again.start in (0, start)
            seen.add(int(again.start))
            if again.start == 0:
                assert content(again) == old
            else:
                assert (again.end, again.last_epoch) == (start, 1)
    assert seen == {0, int(start)}


def test_a_failing_disk_while_beginning_anew_poisons_the_log() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=10)
    disk.fail_next("unlink")
    start = PhysicalOffset(80000)
    with pytest.raises(StorageError):
        log.begin_anew_at(start, epochs=EpochTable.of([(1, 0)]), base=start)
    assert log.failure is not None


def test_a_checkpoint_of_the_first_version_begins_at_0() -> None:
    body = (
        b'{"confirm":0,"crc32c":%d,"epochs":[],"flushed":0,"is_suspect":false,'
        b'"last_store_unix_ms":0,"segments":[],"truncate_to":null,"verify_from":0,"version":1}'
    )
    unsigned = body.replace(b'"crc32c":%d,', b"")
    found = decode_checkpoint(body % crc32c(unsigned))
    assert (found.start, found.base, found.is_beginning_anew) == (0, 0, False)
