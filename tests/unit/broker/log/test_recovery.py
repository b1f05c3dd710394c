"""What a restart makes of torn, damaged, missing and foreign bytes (R13, R22, R23, R25)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.log.builders import (
    FOLDER,
    SEGMENT_BYTES,
    a_batch,
    a_log,
    append,
    begin_epoch,
    content,
    open_log,
    segment_path,
)

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.disk_real import RealDisk
from paceline.platform.ports import write_durably
from paceline.platform.runtime import SeededRandom
from paceline.records.header import Kind
from paceline.types import PhysicalOffset
from paceline_broker.log.commit_log import CommitLog

BATCH = 296  # bytes of a batch with 200 bytes of payload


def _kill(disk: MemoryDisk) -> None:
    disk.crash(SeededRandom("kill"), keep_page_cache=True)


def _overwrite(disk: MemoryDisk, at: int, content: bytes, *, first: int = 0) -> None:
    file = disk.open(segment_path(first))
    disk.writev(file, [content], at)
    disk.sync_now(file)
    file.close()


def test_a_clean_restart_finds_everything_and_suspects_nothing() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=30)
    log.set_confirm(log.end)
    before = content(log)
    log.close()

    again, report = open_log(disk)

    assert content(again) == before
    assert (report.cut_bytes, report.is_suspect, report.damage) == (0, False, None)
    assert again.confirm == again.flushed == again.end == len(before)


def test_confirm_of_the_checkpoint_is_never_above_what_was_flushed() -> None:
    """R13: with memory durability confirm may pass flushed; the durable bound must not."""
    disk = MemoryDisk()
    log = a_log(disk)
    append(log)
    log.write_pending()
    log.set_confirm(log.end)

    log.save_checkpoint()

    assert log.checkpointed.confirm == log.flushed < log.confirm


def test_what_kill_9_left_in_the_page_cache_is_kept_and_made_durable() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=2)
    append(log)
    log.write_pending()
    _kill(disk)

    again, report = open_log(disk)

    assert again.end == again.flushed == log.end
    assert not report.is_suspect
    disk.crash(SeededRandom("power"), keep_page_cache=False, survival=0)
    assert open_log(disk)[1].end == log.end


@pytest.mark.parametrize("begins_at", [0, 32_136])
def test_a_first_file_that_is_lost_before_anything_was_noted_as_durable_is_a_tear(
    begins_at: int,
) -> None:
    """R23: of what the checkpoint does not name nothing is known; the broker could not start."""
    disk = MemoryDisk()
    log = a_log(disk, batches=2)
    start = PhysicalOffset(begins_at)
    if begins_at:
        log.write_pending()
        log.begin_anew_at(start, epochs=log.epochs, base=start)
    while len(log.segment_bounds()) < 2:
        append(log)
    log.write_pending()
    log.flush_now()
    assert log.checkpointed.flushed == start
    _kill(disk)
    disk.lose(segment_path(begins_at))

    again, report = open_log(disk)

    assert (again.start, again.end, report.damage) == (start, start, None)
    assert report.is_suspect
    assert report.cut_bytes > 0
    if not begins_at:
        begin_epoch(again, 2)
    append(again)
    again.write_pending()
    again.close()
    assert open_log(disk)[0].end == again.end


def test_an_only_file_that_is_lost_before_anything_was_noted_as_durable_is_a_tear() -> None:
    """R23: the log is as empty as after its install; who had acknowledged more is suspect."""
    disk, start = MemoryDisk(), PhysicalOffset(32_136)
    log = a_log(disk, batches=2)
    log.write_pending()
    log.begin_anew_at(start, epochs=log.epochs, base=start)
    append(log)
    log.write_pending()
    log.flush_now()
    _kill(disk)
    disk.lose(segment_path(start))

    again, report = open_log(disk)

    assert (again.start, again.end, report.damage, report.is_suspect) == (start, start, None, True)
    append(again)
    again.write_pending()
    again.close()
    log, report = open_log(disk)
    assert (log.end, report.is_suspect) == (again.end, True)


def test_a_torn_tail_is_cut_and_makes_the_replica_suspect_until_settled() -> None:
    """R23."""
    disk = MemoryDisk()
    log = a_log(disk, batches=2)
    end = log.end
    _kill(disk)
    _overwrite(disk, end, a_batch(end)[:100])

    log, report = open_log(disk)

    assert (report.end, report.cut_bytes, report.damage) == (end, 100, None)
    assert report.is_suspect
    log.close()
    log, report = open_log(disk)
    assert (report.cut_bytes, report.is_suspect) == (0, True)
    log.clear_suspicion()
    log.close()
    assert not open_log(disk)[1].is_suspect


def test_a_flip_in_an_unmarked_batch_looks_like_a_tear_so_it_is_cut_with_suspicion() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=3)
    _kill(disk)
    disk.flip_bit(segment_path(0), 96 + BATCH + 150)

    _, report = open_log(disk)

    assert (report.end, report.cut_bytes) == (96 + BATCH, 2 * BATCH)
    assert report.is_suspect
    assert report.damage is None
    assert log.end == 96 + 3 * BATCH


@pytest.mark.parametrize("byte", [4, 16, 64, 95, 96, 200, BATCH - 1])
def test_a_flip_below_the_flushed_mark_is_damage_and_nothing_is_touched(byte: int) -> None:
    """R23, R24."""
    disk = MemoryDisk()
    log = a_log(disk, batches=4)
    log.close()
    disk.flip_bit(segment_path(0), 96 + BATCH + byte)
    changes: list[str] = []
    disk.observer = lambda operation, path: changes.append(operation)

    again, report = open_log(disk)

    assert report.damage is not None
    assert report.damage.position == again.end == 96 + BATCH
    assert report.damage.mark == log.end
    assert report.confirm_mark == log.confirm
    assert changes == ["sync_now"]
    assert again.begin_flush() is None
    for call in (lambda: append(again), again.write_pending):
        with pytest.raises(CorruptLogError, match="damaged at 392"):
            call()


def test_damage_does_not_go_away_by_restarting() -> None:
    disk = MemoryDisk()
    a_log(disk, batches=4).close()
    disk.flip_bit(segment_path(0), 96 + BATCH + 100)
    for _ in range(3):
        log, report = open_log(disk)
        log.close()

        assert report.damage is not None


def test_damage_is_given_up_only_by_an_explicit_truncation() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=4)
    log.set_confirm(log.end)
    log.close()
    disk.flip_bit(segment_path(0), 96 + BATCH + 100)
    log, _ = open_log(disk)

    log.truncate_to(log.end, allow_below_confirm=True)
    append(log)
    log.close()

    again, report = open_log(disk)
    assert report.damage is None
    assert again.end == 96 + 2 * BATCH


def test_zeros_below_the_mark_are_damage_too() -> None:
    disk = MemoryDisk()
    a_log(disk, batches=4).close()
    _overwrite(disk, 96 + BATCH, bytes(BATCH))

    _, report = open_log(disk)

    assert report.damage is not None
    assert report.damage.position == 96 + BATCH


def test_a_missing_segment_is_damage() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=30, size=1000)
    log.close()
    firsts = [int(name[:20]) for name in disk.list(FOLDER) if name.endswith(".log")]
    disk.unlink(segment_path(firsts[1]))

    _, report = open_log(disk)

    assert report.damage is not None
    assert report.damage.position == firsts[1]


def test_all_segments_missing_is_damage_and_can_be_given_up() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=30, size=1000)
    log.close()
    for name in disk.list(FOLDER):
        if name.endswith(".log"):
            disk.unlink(f"{FOLDER}/{name}")

    again, report = open_log(disk)

    assert report.damage is not None
    assert report.damage.position == again.end == 0
    again.truncate_to(PhysicalOffset(0), allow_below_confirm=True)
    begin_epoch(again, 2)
    again.close()
    assert open_log(disk)[1].damage is None


def test_a_segment_cut_short_is_damage() -> None:
    disk = MemoryDisk()
    a_log(disk, batches=4).close()
    _kill(disk)
    file = disk.open(segment_path(0))
    disk.truncate(file, 96 + 3 * BATCH + 8)

    _, report = open_log(disk)

    assert report.damage is not None
    assert report.damage.position == 0  # the file's first offset: where it ends is no boundary


def test_a_lost_middle_segment_above_the_mark_is_a_tear() -> None:
    """Power may persist a later segment and lose an earlier one: none of it was acknowledged."""
    disk = MemoryDisk()
    log = a_log(disk)
    for _ in range(20):
        append(log, 1000)
    log.write_pending()
    _kill(disk)
    firsts = [int(name[:20]) for name in disk.list(FOLDER) if name.endswith(".log")]
    disk.unlink(segment_path(firsts[1]))

    again, report = open_log(disk)

    assert report.damage is None
    assert report.is_suspect
    assert again.end == firsts[1]
    append(again, 1000)
    again.close()
    assert open_log(disk)[1].damage is None


def test_middle_segment_whose_size_the_power_took_is_a_tear(tmp_path: Path) -> None:
    """Its name and the next segment survived. On real files, which cannot map what is empty."""
    disk, folder = RealDisk(), f"{tmp_path}/log"
    disk.make_folder(folder)
    log, _ = CommitLog.open(disk, folder, segment_size_bytes=SEGMENT_BYTES)
    begin_epoch(log, 1)
    log.flush_now()
    for _ in range(20):
        append(log, 1000)
    log.write_pending()
    log.close(clean=False)
    firsts = [int(name[:20]) for name in disk.list(folder) if name.endswith(".log")]
    os.truncate(f"{folder}/{firsts[1]:020d}.log", 0)

    again, report = CommitLog.open(disk, folder, segment_size_bytes=SEGMENT_BYTES)

    assert report.damage is None
    assert report.is_suspect
    assert again.end == firsts[1]
    append(again, 1000)
    again.close()
    disk.close()


def test_without_a_checkpoint_the_whole_log_is_verified_and_suspect() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=30, size=1000)
    log.close()
    disk.unlink(f"{FOLDER}/checkpoint.json")

    again, report = open_log(disk)

    assert (again.end, again.epochs) == (log.end, log.epochs)
    assert (report.verified_from, report.batches_count) == (0, 31)
    assert report.is_suspect
    assert report.damage is None


def test_without_a_checkpoint_a_bad_batch_in_a_sealed_segment_is_damage() -> None:
    disk = MemoryDisk()
    a_log(disk, batches=30, size=1000).close()
    disk.unlink(f"{FOLDER}/checkpoint.json")
    disk.flip_bit(segment_path(0), 500)

    assert open_log(disk)[1].damage is not None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version":1}', b"\xff" * 9, b"null"])
def test_a_broken_checkpoint_is_as_good_as_none(content: bytes) -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=5)
    log.close()
    write_durably(disk, f"{FOLDER}/checkpoint.json", content)

    _, report = open_log(disk)

    assert report.end == log.end
    assert report.is_suspect


def test_recovery_stops_where_an_offset_disagrees_or_an_epoch_falls() -> None:
    """R25."""
    makers: list[Callable[[int], bytes]] = [
        lambda end: a_batch(end + 8, epoch=2),
        lambda end: a_batch(end, epoch=1),
        lambda end: a_batch(end, epoch=3),
        lambda end: a_batch(end, epoch=1, kind=Kind.EPOCH_START),
    ]
    for make in makers:
        disk = MemoryDisk()
        log = a_log(disk)
        begin_epoch(log, 2)
        log.close()
        end = log.end
        _overwrite(disk, end, make(end))

        _, report = open_log(disk)

        assert report.end == end
        assert report.cut_bytes > 0


def test_pages_that_a_failed_fsync_lost_are_not_believed_after_a_restart() -> None:
    """R22: the page cache still shows them, and calls them clean."""
    disk = MemoryDisk()
    log = a_log(disk, batches=2)
    flushed = log.flushed
    append(log)
    disk.fail_next("sync_now")
    with pytest.raises(StorageError):
        log.flush_now()
    _kill(disk)

    again, _ = open_log(disk)

    assert again.end == flushed


def test_a_disk_that_fails_while_recovering_stops_the_start() -> None:
    disk = MemoryDisk()
    a_log(disk, batches=2).close()
    disk.fail_next("sync_now")

    with pytest.raises(StorageError):
        open_log(disk)


def test_a_stale_spare_is_removed() -> None:
    disk = MemoryDisk()
    a_log(disk).close()
    disk.open(f"{FOLDER}/spare.segment", create=True)

    open_log(disk)

    assert not disk.exists(f"{FOLDER}/spare.segment")


def test_only_the_end_of_a_long_log_is_verified() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=100)
    log.save_checkpoint()
    for _ in range(10):
        append(log)
    log.flush_now()
    log.save_checkpoint()
    for _ in range(5):
        append(log)
    log.flush_now()
    _kill(disk)

    _, report = open_log(disk)

    assert report.batches_count == 15
    assert report.end == log.end


@pytest.mark.parametrize("seed", range(20))
def test_whatever_bytes_are_flipped_recovery_reports_and_never_raises(seed: int) -> None:
    random = SeededRandom(f"flip-{seed}")
    disk = MemoryDisk()
    log = a_log(disk, batches=20, size=1000)
    log.save_checkpoint()
    for _ in range(5):
        append(log)
    log.flush_now()
    before = content(log)
    _kill(disk)
    names = [name for name in disk.list(FOLDER) if name.endswith(".log")]
    for _ in range(4):
        path = f"{FOLDER}/{names[int(random.uniform(0, len(names)))]}"
        disk.flip_bit(path, int(random.uniform(0, 8192)), int(random.uniform(0, 8)))

    again, report = open_log(disk)

    assert before.startswith(content(again)), seed
    assert report.damage is not None or report.is_suspect or again.end == len(before), seed
    assert report.damage is not None or again.end >= report.flushed_mark, seed


def test_two_logs_opened_from_one_crash_are_equal() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=10)
    append(log)
    log.write_pending()
    image = disk.crash_image(SeededRandom("x"), keep_page_cache=False)
    twin = disk.crash_image(SeededRandom("x"), keep_page_cache=False)

    logs: list[CommitLog] = [open_log(found)[0] for found in (image, twin)]

    assert content(logs[0]) == content(logs[1])
