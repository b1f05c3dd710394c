import pytest
from tests.support.log.builders import FOLDER, a_log, append, begin_epoch, content, open_log

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom
from paceline.types import PhysicalOffset

BATCH = 296


def test_truncation_is_durable_on_return() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=30)
    before = content(log)

    dropped = log.truncate_to(PhysicalOffset(96 + 3 * BATCH))

    assert dropped == 27 * BATCH
    disk.crash(SeededRandom("power"), keep_page_cache=False, survival=0)
    again, report = open_log(disk)
    assert content(again) == before[: 96 + 3 * BATCH]
    assert (report.cut_bytes, report.is_suspect, report.damage) == (0, False, None)


def test_truncation_goes_from_the_highest_segment_down() -> None:
    """R25."""
    disk = MemoryDisk()
    log = a_log(disk, batches=30, size=1000)
    operations: list[tuple[str, str]] = []
    disk.observer = lambda operation, path: operations.append((operation, path))

    log.truncate_to(PhysicalOffset(96))

    unlinks = [path for name, path in operations if name == "unlink" and path.endswith(".log")]
    assert unlinks == sorted(unlinks, reverse=True)
    assert len(unlinks) > 2
    for index, (operation, path) in enumerate(operations):
        if operation == "unlink" and path.endswith(".log"):
            assert operations[index + 1][0] == "sync_folder"


def test_epochs_and_positions_fall_with_the_log() -> None:
    log = a_log(MemoryDisk(), batches=2)
    cut = log.end
    begin_epoch(log, 2)
    append(log)
    log.flush_now()

    log.truncate_to(cut)

    assert log.epochs.to_json() == [[1, 0]]
    assert log.last_epoch == 1
    assert log.end == log.written == log.flushed == cut
    begin_epoch(log, 3)
    log.flush_now()
    assert log.epochs.to_json() == [[1, 0], [3, cut]]


def test_a_truncated_log_is_appended_to_in_the_same_segment() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=10, size=1000)
    log.truncate_to(PhysicalOffset(96 + 1096))

    append(log, 1000, fill=200)
    log.flush_now()

    assert log.segments_count == 1
    assert len(content(log)) == log.end
    assert open_log(disk)[1].end == log.end


def test_a_truncation_at_a_segments_first_offset_removes_that_segment() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=10, size=1000)
    first = max(int(name[:20]) for name in disk.list(FOLDER) if name.endswith(".log"))

    log.truncate_to(PhysicalOffset(first))

    assert log.segments_count == 1
    assert log.end == first
    append(log, 1000)
    log.close()
    assert open_log(disk)[1].damage is None


@pytest.mark.parametrize("offset", [1, 8, 95, 96 + 8, 96 + BATCH - 8, 5000, -8])
def test_an_offset_inside_a_batch_or_outside_the_log_is_refused(offset: int) -> None:
    log = a_log(MemoryDisk(), batches=3)
    end = log.end

    with pytest.raises(CorruptLogError):
        log.truncate_to(PhysicalOffset(offset))

    assert (log.end, log.failure) == (end, None)


def test_a_replica_never_truncates_below_its_confirm_unless_told() -> None:
    """R16."""
    disk = MemoryDisk()
    log = a_log(disk, batches=3)
    log.set_confirm(log.end)
    with pytest.raises(CorruptLogError, match="R16"):
        log.truncate_to(PhysicalOffset(96))

    log.truncate_to(PhysicalOffset(96), allow_below_confirm=True)

    assert log.confirm == log.end == 96
    assert open_log(disk)[1].damage is None


def test_truncating_to_the_end_does_nothing() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=3)
    operations = disk.operations_count

    assert log.truncate_to(log.end) == 0

    assert disk.operations_count == operations


def test_a_view_below_the_cut_stays_as_it_was() -> None:
    log = a_log(MemoryDisk(), batches=30, size=1000)
    log.set_confirm(PhysicalOffset(96 + 1096))
    view = log.read(log.start, 10_000)
    before = bytes(view)

    log.truncate_to(log.confirm)
    append(log, 2000)
    log.flush_now()

    assert bytes(view) == before


def test_a_flush_from_before_the_truncation_proves_nothing() -> None:
    log = a_log(MemoryDisk())
    append(log)
    log.write_pending()
    ticket = log.begin_flush()
    assert ticket is not None
    log.truncate_to(PhysicalOffset(96))
    append(log, 80)
    log.write_pending()

    assert log.finish_flush(ticket) == 96

    assert log.flush_now() == log.end


def test_a_failed_truncation_poisons_and_is_finished_by_the_next_start() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=30, size=1000)
    before = content(log)
    disk.fail_next("unlink")
    with pytest.raises(StorageError):
        log.truncate_to(PhysicalOffset(96 + 1096))
    with pytest.raises(StorageError, match="accepts nothing"):
        append(log)

    again, report = open_log(disk)

    assert report.damage is None
    assert content(again) == before[: 96 + 1096]
