"""R24: a damaged stretch is mended from a peer's bytes, or cut above confirm (R16, R23)."""

from collections.abc import Callable

import pytest
from tests.support.log.builders import (
    FOLDER,
    a_batch,
    a_log,
    append,
    begin_epoch,
    content,
    open_log,
    segment_path,
)

from paceline.errors import CorruptLogError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom
from paceline.types import PhysicalOffset
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.repair import RangeRepairer

ASIDE = "/broker/quarantine"
BATCH = 296


def _two_logs(batches: int = 30, size: int = 1000) -> tuple[MemoryDisk, CommitLog]:
    """The disk of a closed log, and a peer's open log of the same bytes; all is confirmed."""
    disk = MemoryDisk()
    log = a_log(disk, batches=batches, size=size)
    log.set_confirm(log.end)
    log.close()
    return disk, a_log(MemoryDisk(), batches=batches, size=size)


def _mend(mender: RangeRepairer, peer: CommitLog, *, bytes_max: int = 1) -> None:
    while not mender.is_done:
        if mender.scan(peer.epochs):
            mender.fill(bytes(peer.read_raw(mender.position, bytes_max)), peer.epochs)
    mender.finish()
    mender.close()


def _firsts(disk: MemoryDisk) -> list[int]:
    return [int(name[:20]) for name in disk.list(FOLDER) if name.endswith(".log")]


def _flip(disk: MemoryDisk) -> None:
    disk.flip_bit(segment_path(_firsts(disk)[1]), 2000)


def _flip_many(disk: MemoryDisk) -> None:
    for first in _firsts(disk):
        disk.flip_bit(segment_path(first), 10)
        disk.flip_bit(segment_path(first), 1100)


def _zero(disk: MemoryDisk) -> None:
    file = disk.open(segment_path(_firsts(disk)[0]))
    disk.writev(file, [bytes(3000)], 100)
    disk.sync_now(file)


def _cut_short(disk: MemoryDisk) -> None:
    disk.truncate(disk.open(segment_path(_firsts(disk)[1])), 1500)


def _lose_one(disk: MemoryDisk) -> None:
    disk.unlink(segment_path(_firsts(disk)[1]))


def _lose_first_and_last(disk: MemoryDisk) -> None:
    firsts = _firsts(disk)
    disk.unlink(segment_path(firsts[0]))
    disk.unlink(segment_path(firsts[-1]))


def _lose_all(disk: MemoryDisk) -> None:
    for first in _firsts(disk):
        disk.unlink(segment_path(first))


def _put_foreign(disk: MemoryDisk) -> None:
    disk.open(segment_path(_firsts(disk)[1] + 8), create=True)


DAMAGES: list[Callable[[MemoryDisk], None]] = [
    _flip,
    _flip_many,
    _zero,
    _cut_short,
    _lose_one,
    _lose_first_and_last,
    _lose_all,
    _put_foreign,
]


def _without_checkpoint_margin(disk: MemoryDisk) -> None:
    """Let the next start verify everything, as a scrubber's find makes it."""
    log, _ = open_log(disk)
    if log.damage is None:
        log.note_damage(PhysicalOffset(0), "found by a test")
    log.close(clean=False)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("bytes_max", [1, 100_000])
def test_whatever_is_damaged_becomes_the_same_log_again(
    damage: Callable[[MemoryDisk], None], bytes_max: int
) -> None:
    disk, peer = _two_logs()
    damage(disk)
    _without_checkpoint_margin(disk)
    log, report = open_log(disk)
    assert report.damage is not None

    _mend(log.begin_repair(ASIDE), peer, bytes_max=bytes_max)
    report = log.reopen()

    assert (report.damage, log.failure, log.damage) == (None, None, None)
    assert content(log) == content(peer)
    assert log.epochs == peer.epochs
    assert log.confirm == peer.end
    append(log)
    log.close()
    again, report = open_log(disk)
    assert report.damage is None
    assert content(again)[: peer.end] == content(peer)


def test_old_bytes_are_kept_aside_and_only_what_was_bad_is_replaced() -> None:
    disk, peer = _two_logs(batches=4, size=200)
    disk.flip_bit(segment_path(0), 96 + BATCH + 100)
    log, _ = open_log(disk)

    mender = log.begin_repair(ASIDE)
    _mend(mender, peer)

    assert mender.mended_bytes == BATCH
    (name,) = disk.list(ASIDE)
    image = disk.crash_image(SeededRandom("power"), keep_page_cache=False, survival=0.0)
    assert image.list(ASIDE) == [name]
    file = disk.open(f"{ASIDE}/{name}")
    kept, good = disk.pread(file, 1000, 0), bytes(peer.read_raw(PhysicalOffset(96 + BATCH), 1))
    assert len(kept) == BATCH
    assert sum(a != b for a, b in zip(kept, good, strict=True)) == 1


def test_what_an_attempt_wrote_that_was_given_up_is_durable_when_the_next_one_says_so() -> None:
    """R24: the second one finds it intact, but only in the page cache."""
    disk, peer = _two_logs()
    _flip(disk)
    _without_checkpoint_margin(disk)
    log, _ = open_log(disk)
    first = log.begin_repair(ASIDE)
    while not first.scan(peer.epochs):
        pass
    first.fill(bytes(peer.read_raw(first.position, 1)), peer.epochs)
    first.close()  # its connection broke

    second = log.begin_repair(ASIDE)
    _mend(second, peer)

    assert second.mended_bytes == 0
    disk.crash(SeededRandom("power"), keep_page_cache=False, survival=0.0)
    again, report = open_log(disk)
    assert report.damage is None
    assert content(again) == content(peer)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        bytes(BATCH),
        a_batch(96, 200),
        a_batch(96 + BATCH, 200)[:-8],
        a_batch(96 + BATCH, 200, epoch=2),
        a_batch(96 + BATCH, 200)[:-1] + b"x",
    ],
)
def test_bytes_that_are_not_the_right_ones_are_not_written(wrong: bytes) -> None:
    """R24: CRC, offset and epoch, before anything is touched."""
    disk, peer = _two_logs(batches=4, size=200)
    disk.flip_bit(segment_path(0), 96 + BATCH + 100)
    log, _ = open_log(disk)
    mender = log.begin_repair(ASIDE)
    mender.scan(peer.epochs)
    assert mender.position == 96 + BATCH
    before = disk.pread(disk.open(segment_path(0)), 8192, 0)

    with pytest.raises(CorruptLogError):
        mender.fill(wrong, peer.epochs)

    assert disk.pread(disk.open(segment_path(0)), 8192, 0) == before


def test_a_batch_of_another_history_is_bad_although_it_is_intact() -> None:
    disk, _ = _two_logs(batches=4, size=200)
    disk.flip_bit(segment_path(0), 96 + 100)
    log, _ = open_log(disk)
    other = CommitLog.open(MemoryDisk(), FOLDER, segment_size_bytes=8192)[0]
    begin_epoch(other, 1)
    append(other)
    begin_epoch(other, 3)
    append(other)
    other.flush_now()
    mender = log.begin_repair(ASIDE)
    assert mender.scan(other.epochs)
    mender.fill(bytes(other.read_raw(mender.position, 1)), other.epochs)

    assert mender.scan(other.epochs)

    assert mender.position == 96 + BATCH  # intact here, of epoch 1; the peer's is of epoch 3


def test_above_confirm_the_rest_is_cut_and_the_replica_is_suspect() -> None:
    """R24; R23: what is cut may have been acknowledged."""
    disk = MemoryDisk()
    log = a_log(disk, batches=30, size=1000)
    log.set_confirm(PhysicalOffset(96))
    log.close()
    _flip(disk)
    log, report = open_log(disk)
    assert report.damage is not None
    mender = log.begin_repair(ASIDE)
    assert mender.scan(log.epochs)

    mender.cut()
    mender.close()
    report = log.reopen()

    assert (report.damage, report.is_suspect) == (None, True)
    assert log.end == report.end == mender.position
    append(log)
    log.close()
    assert open_log(disk)[1].is_suspect


def test_nothing_below_confirm_is_ever_cut() -> None:
    """R16."""
    disk, peer = _two_logs()
    _flip(disk)
    log, _ = open_log(disk)
    mender = log.begin_repair(ASIDE)
    assert mender.scan(peer.epochs)

    with pytest.raises(CorruptLogError, match="R16"):
        mender.cut()


def test_damage_noted_by_a_running_log_is_found_again_by_every_start_until_it_is_mended() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=30, size=1000)
    log.save_checkpoint()
    append(log)
    log.flush_now()
    log.save_checkpoint()
    at = PhysicalOffset(96 + 2 * 1096)
    disk.flip_bit(segment_path(0), at + 500)
    peer = a_log(MemoryDisk(), batches=30, size=1000)
    append(peer)
    peer.flush_now()

    damage = log.note_damage(at, "a reader found it")

    assert (damage.position, damage.mark) == (at, at + 1096)
    assert log.failure is None
    append(log)
    log.flush_now()
    append(peer)
    peer.flush_now()
    log.save_checkpoint()
    disk.crash(SeededRandom("kill"), keep_page_cache=True)
    for _ in range(2):
        log, report = open_log(disk)
        assert report.damage is not None
        assert report.damage.position == at
        log.close()
    log, _ = open_log(disk)
    _mend(log.begin_repair(ASIDE), peer)
    log.reopen()
    assert content(log) == content(peer)


def test_a_running_log_goes_on_where_it_was_after_its_repair() -> None:
    disk = MemoryDisk()
    log, peer = a_log(disk, batches=30, size=1000), a_log(MemoryDisk(), batches=30, size=1000)
    log.set_confirm(log.end)
    at = PhysicalOffset(96 + 2 * 1096)
    disk.flip_bit(segment_path(0), at + 500)
    log.note_damage(at, "scrubbed")
    generation = log.generation

    _mend(log.begin_repair(ASIDE), peer)
    log.reopen()

    assert content(log) == content(peer)
    assert (log.confirm, log.flushed) == (log.end, log.end)
    assert log.generation > generation
    append(log)
    log.flush_now()


def test_a_header_whose_size_is_lost_is_bounded_by_the_next_intact_batch() -> None:
    disk = MemoryDisk()
    log = a_log(disk, batches=6)
    at = PhysicalOffset(96 + BATCH)
    disk.flip_bit(segment_path(0), at + 5)

    damage = log.note_damage(at, "its size changed")

    assert damage.mark == at + BATCH
    assert damage.covers(at, at + 8)
    assert not damage.covers(PhysicalOffset(0), at)
    assert not damage.covers(damage.mark, damage.mark + 8)


@pytest.mark.parametrize("seed", range(30))
def test_a_repair_may_die_anywhere_and_be_begun_again(seed: int) -> None:
    disk, peer = _two_logs()
    _flip_many(disk)
    _without_checkpoint_margin(disk)
    random = SeededRandom(f"repair-{seed}")
    for _ in range(3):
        log, report = open_log(disk)
        if report.damage is None:
            break
        mender = log.begin_repair(ASIDE)
        for _ in range(int(random.uniform(0, 20))):
            if mender.scan(peer.epochs):
                mender.fill(bytes(peer.read_raw(mender.position, 1)), peer.epochs)
            if mender.is_done:
                break
        disk.crash(random, keep_page_cache=False)

    log, report = open_log(disk)
    if report.damage is not None:
        _mend(log.begin_repair(ASIDE), peer)
        log.reopen()

    assert content(log) == content(peer), seed


def test_power_lost_at_any_operation_of_one_repair_of_many_files_costs_nothing() -> None:
    """R24: who is started later verifies only what follows the checkpoint's margin, so all files
    must be durable before it says that they are mended."""
    disk = MemoryDisk()
    log, peer = a_log(disk, batches=30, size=1000), a_log(MemoryDisk(), batches=30, size=1000)
    for grown in (log, peer):
        grown.set_confirm(grown.end)
        grown.save_checkpoint()
        append(grown)
        grown.flush_now()
        grown.save_checkpoint()
    assert log.checkpointed.verify_from > _firsts(disk)[2]
    for first in _firsts(disk)[:3]:
        boundary = next(
            h.physical_offset for h, _ in peer.batches(PhysicalOffset(first + 96 * (not first)))
        )
        disk.flip_bit(segment_path(first), boundary - first + 500)
        log.note_damage(PhysicalOffset(boundary), "scrubbed")
    random, states = SeededRandom("repair"), 0

    def die(operation: str, path: str) -> None:
        nonlocal states
        for survival in (0.0, 0.5, 0.5):
            image = disk.crash_image(random, keep_page_cache=False, survival=survival)
            again, report = open_log(image)
            is_known = report.damage is not None
            assert is_known or content(again) == content(peer), (operation, path, survival)
            states += 1

    disk.observer = die
    _mend(log.begin_repair(ASIDE), peer)
    log.reopen()
    disk.observer = None

    assert content(log) == content(peer)
    assert states > 60
