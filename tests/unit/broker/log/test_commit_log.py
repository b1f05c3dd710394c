import pytest
from tests.support.log.builders import (
    FOLDER,
    SEGMENT_BYTES,
    a_batch,
    a_header,
    a_log,
    append,
    begin_epoch,
    content,
    open_log,
    segment_path,
)

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.disk_memory import MemoryDisk
from paceline.records.header import HEADER, HEADER_BYTES, Kind, parse_header
from paceline.types import PhysicalOffset
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.walk import STAMP


def test_append_moves_end_at_once_and_written_and_flushed_later() -> None:
    log = a_log(MemoryDisk())
    before = log.end

    end = append(log, 200)

    assert (end, log.end) == (before + 296, before + 296)
    assert (log.written, log.flushed) == (before, before)
    log.write_pending()
    assert (log.written, log.flushed) == (end, before)
    log.flush_now()
    assert log.flushed == end


def test_the_appends_of_one_turn_are_one_gathered_write() -> None:
    disk = MemoryDisk()
    log = a_log(disk)
    position = log.end
    operations: list[str] = []
    disk.observer = lambda operation, path: operations.append(operation)

    for fill in range(3):
        append(log, 80, fill=fill)
    written = log.write_pending()

    assert operations == ["writev"]
    assert [(run.position, len(run.buffers)) for run in written] == [(position, 6)]
    assert b"".join(written[0].buffers) == content(log)[position:]
    assert log.write_pending() == []


def test_a_batch_never_spans_two_segments_and_offsets_have_no_gap() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=20, size=1000)

    firsts = [int(name[:20]) for name in disk.list(FOLDER) if name.endswith(".log")]
    positions = [header.physical_offset for header, _ in log.batches(log.start)]

    assert len(firsts) > 2
    assert set(firsts) <= set(positions)
    assert positions[-1] + 1096 == log.end == len(content(log))


def test_logs_with_other_segment_sizes_hold_the_same_bytes() -> None:
    small = a_log(MemoryDisk(), batches=30, size=1000)
    large, _ = open_log(MemoryDisk(), segment_size_bytes=65536)

    for header, batch in small.batches(small.start):
        large.append_raw(PhysicalOffset(header.physical_offset), batch)
    large.write_pending()

    assert content(large) == content(small)
    assert large.epochs == small.epochs
    assert large.segments_count < small.segments_count


def test_a_batch_larger_than_a_segment_gets_one_of_its_own() -> None:
    disk = MemoryDisk()
    log, _ = open_log(disk)
    begin_epoch(log, 1)
    append(log, 3 * SEGMENT_BYTES)
    append(log, 80)
    log.flush_now()
    log.close()

    again, report = open_log(disk)

    assert report.damage is None
    assert again.end == 96 + 96 + 3 * SEGMENT_BYTES + 176


def test_the_first_batch_may_be_larger_than_the_empty_first_segment() -> None:
    disk = MemoryDisk()
    log, _ = open_log(disk, segment_size_bytes=64)
    begin_epoch(log, 1)
    log.flush_now()

    _, report = open_log(disk, segment_size_bytes=64)

    assert (report.end, report.damage) == (96, None)


def test_a_wrong_stamp_is_a_bug_of_the_caller() -> None:
    log = a_log(MemoryDisk())

    with pytest.raises(AssertionError):
        log.append(a_header(b"", position=log.end + 8), b"")
    with pytest.raises(AssertionError):
        log.append(a_header(b"", position=log.end), b"12345678")
    with pytest.raises(AssertionError, match="without an epoch-start record"):
        log.append(a_header(b"", position=log.end, epoch=2), b"")
    with pytest.raises(AssertionError):  # INV-4
        log.append(a_header(b"", position=log.end, epoch=1, kind=Kind.EPOCH_START), b"")
    with pytest.raises(AssertionError):
        log.append(a_header(b"", position=log.end, store_unix_ms=1), b"")


def test_nothing_comes_before_the_first_epoch_start() -> None:
    log, _ = open_log(MemoryDisk())

    with pytest.raises(AssertionError, match="without an epoch-start record"):
        log.append(a_header(b"", position=0, epoch=0), b"")
    with pytest.raises(CorruptLogError, match="is of no epoch"):
        log.append_raw(log.end, a_batch(0, epoch=0))


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda end: a_batch(end)[:-8], "bytes, 288 are here"),
        (lambda end: a_batch(end)[:90], "no batch"),
        (lambda end: a_batch(end + 8), "stands at"),
        (lambda end: a_batch(end, epoch=2), "without an epoch-start record"),
        (lambda end: a_batch(end, kind=Kind.EPOCH_START), "starts at .* after epoch 1"),
        (lambda end: bytes(296), "magic"),
        (lambda end: a_batch(end)[:-1] + b"\0", "payload CRC"),
    ],
)
def test_raw_bytes_are_checked_before_anything_is_appended(make, fault: str) -> None:  # type: ignore[no-untyped-def]
    log = a_log(MemoryDisk())
    end = log.end
    good = a_batch(end)

    with pytest.raises(CorruptLogError, match=fault):
        log.append_raw(end, good + make(end + len(good)))

    assert (log.end, log.failure) == (end, None)
    assert log.append_raw(end, good) == end + len(good)


def test_raw_bytes_must_begin_at_the_end() -> None:
    log = a_log(MemoryDisk())

    with pytest.raises(CorruptLogError, match="at end 96"):
        log.append_raw(PhysicalOffset(0), a_batch(0))


def test_raw_bytes_bring_epochs_and_split_at_segments() -> None:
    log = a_log(MemoryDisk())
    position, frame = int(log.end), b""
    for index in range(12):
        frame += a_batch(position + len(frame), 1000, fill=index)
    frame += a_batch(position + len(frame), 0, epoch=7, kind=Kind.EPOCH_START)

    log.append_raw(log.end, frame)
    written = log.write_pending()

    assert len(written) == 2
    assert content(log)[position:] == frame
    assert log.epochs.to_json() == [[1, 0], [7, log.end - 96]]
    assert log.last_epoch == 7


def test_readers_see_nothing_above_confirm() -> None:
    log = a_log(MemoryDisk(), batches=3)
    assert len(log.read(log.start, 10_000)) == 0

    log.set_confirm(PhysicalOffset(96 + 296))

    assert bytes(log.read(log.start, 10_000)) == content(log)[: 96 + 296]
    assert len(log.read(log.confirm, 10_000)) == 0
    assert len(log.read(log.end, 10_000)) == 0


def test_confirm_never_decreases_and_never_passes_what_is_written() -> None:
    log = a_log(MemoryDisk(), batches=3)
    log.set_confirm(log.end)

    log.set_confirm(PhysicalOffset(96))

    assert log.confirm == log.end
    append(log)
    with pytest.raises(AssertionError):  # INV-2
        log.set_confirm(log.end)


def test_a_view_sees_what_was_read_even_when_the_log_goes_on() -> None:
    log = a_log(MemoryDisk(), batches=2)
    log.set_confirm(log.end)
    view = log.read(log.start, 10_000)
    before = bytes(view)

    for _ in range(30):
        append(log, 1000)
    log.flush_now()

    assert bytes(view) == before


def test_read_raw_gives_whole_batches_and_at_least_one() -> None:
    log = a_log(MemoryDisk(), batches=5)

    assert len(log.read_raw(log.start, 96 + 296 + 295)) == 96 + 296
    assert len(log.read_raw(PhysicalOffset(96), 10)) == 296
    assert len(log.read_raw(PhysicalOffset(96), 100)) == 296
    assert len(log.read_raw(log.end, 1000)) == 0
    assert len(log.read_raw(log.start, 10_000, PhysicalOffset(96))) == 96


def test_read_raw_is_a_copy_above_confirm_and_a_view_below() -> None:
    log = a_log(MemoryDisk(), batches=4)
    above = log.read_raw(log.start, 10_000)
    log.set_confirm(log.end)

    below = log.read_raw(log.start, 10_000)

    assert isinstance(above.obj, bytes)
    assert not isinstance(below.obj, bytes)
    assert above == below


def test_read_raw_shows_nothing_that_is_not_in_the_files() -> None:
    log = a_log(MemoryDisk())
    append(log)

    assert len(log.read_raw(PhysicalOffset(96), 1000)) == 0
    log.write_pending()
    assert len(log.read_raw(PhysicalOffset(96), 1000)) == 296


def test_after_a_failed_write_the_log_accepts_nothing_any_more() -> None:
    """R22."""
    disk = MemoryDisk()
    log = a_log(disk)
    append(log)
    disk.fail_next("writev")

    with pytest.raises(StorageError, match="input/output error"):
        log.write_pending()

    for call in (lambda: append(log), log.write_pending, log.begin_flush, log.save_checkpoint):
        with pytest.raises(StorageError, match="accepts nothing"):
            call()
    with pytest.raises(StorageError, match="accepts nothing"):
        log.truncate_to(PhysicalOffset(0))
    assert log.failure is not None


def test_after_a_failed_sync_flushed_stands_still_for_ever() -> None:
    """R22."""
    disk = MemoryDisk()
    log = a_log(disk)
    flushed = log.flushed
    append(log)
    disk.fail_next("sync_now")

    with pytest.raises(StorageError):
        log.flush_now()

    with pytest.raises(StorageError):
        log.flush_now()
    assert log.flushed == flushed


def test_a_full_disk_at_a_roll_poisons_the_log_and_loses_nothing_flushed() -> None:
    disk = MemoryDisk(capacity_bytes=SEGMENT_BYTES + 2000)
    log = a_log(disk, batches=5, size=1000)
    flushed = log.flushed

    append(log, 1000)
    append(log, 1000)

    with pytest.raises(StorageError, match="no space left"):
        append(log, 1000)

    with pytest.raises(StorageError, match="accepts nothing"):
        log.write_pending()
    disk.capacity_bytes = None
    again, report = open_log(disk)
    assert (again.end, report.damage) == (flushed, None)


def test_only_one_flush_is_outstanding() -> None:
    log = a_log(MemoryDisk())
    append(log)
    log.write_pending()
    first = log.begin_flush()
    append(log)
    log.write_pending()

    assert log.begin_flush() is None

    assert first is not None
    assert log.finish_flush(first) == first.position
    second = log.begin_flush()
    assert second is not None
    assert second.position == log.written


def test_a_flush_over_a_roll_syncs_both_segments_and_the_folder() -> None:
    log = a_log(MemoryDisk())
    append(log, 4000)
    append(log, 4000)
    log.write_pending()

    ticket = log.begin_flush()

    assert ticket is not None
    assert [file.path for file in ticket.files] == [segment_path(0), segment_path(96 + 4096)]
    assert ticket.folder == FOLDER


def test_flush_now_finishes_a_flush_whose_runner_has_gone() -> None:
    log = a_log(MemoryDisk())
    append(log)
    log.write_pending()
    log.begin_flush()

    log.close()

    assert log.flushed == log.end


def test_a_spare_is_wanted_when_the_segment_is_half_full_and_becomes_the_next() -> None:
    disk = MemoryDisk()
    log = a_log(disk)
    assert log.spare_wanted is None
    append(log, 5000)
    assert log.spare_wanted is not None
    wanted = log.spare_wanted
    spare = disk.open(wanted.path, create=True)
    disk.preallocate(spare, wanted.size_bytes)
    disk.sync_now(spare)
    log.give_spare(wanted, spare)
    assert log.spare_wanted is None
    operations: list[str] = []
    disk.observer = lambda operation, path: operations.append(operation)

    append(log, 5000)

    assert operations == ["rename"]
    log.flush_now()
    assert open_log(disk)[1].end == log.end


def test_the_stamp_struct_reads_the_same_fields_as_the_header() -> None:
    header = a_header(b"", position=123456, epoch=9, kind=Kind.LOCK, store_unix_ms=77)
    parsed = parse_header(header)

    assert HEADER.size == HEADER_BYTES
    assert STAMP.unpack_from(header) == (
        parsed.size_bytes,
        parsed.physical_offset,
        parsed.store_unix_ms,
        parsed.master_epoch,
        parsed.kind,
    )


def test_store_time_and_epochs_survive_a_restart() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=3)
    begin_epoch(log, 4)
    log.close()

    again, _ = open_log(disk)

    assert isinstance(again, CommitLog)
    assert again.last_store_unix_ms == log.last_store_unix_ms
    assert again.epochs == log.epochs
    assert again.last_epoch == 4


def test_a_closed_log_refuses() -> None:
    log = a_log(MemoryDisk())
    log.close()

    with pytest.raises(StorageError, match="closed"):
        append(log)
