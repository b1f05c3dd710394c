"""The journal keeps what it promised over kill and power loss, and refuses what was damaged."""

import contextlib

import pytest

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.runtime import SeededRandom
from paceline_controller.raft.log.journal import Journal

FOLDER = "/raft"
PATH = "/raft/journal-0000000001"


def a_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_folder("/raft")
    Journal.create(disk, FOLDER, controller_id="c1")
    return disk


def opened(disk: MemoryDisk) -> Journal:
    return Journal(disk, FOLDER, controller_id="c1")


def filled(disk: MemoryDisk, count: int, *, term: int = 1) -> Journal:
    journal = opened(disk)
    journal.setCurrentTerm(term, "c2")
    for index in range(1, count + 1):
        journal.add(b"\x00command %d" % index, index, term)
    journal.sync_now()
    return journal


def indexes(journal: Journal) -> list[int]:
    return [entry[1] for entry in journal[:]]


def test_entries_term_and_vote_survive_power_loss_after_a_sync() -> None:
    disk = a_disk()
    filled(disk, 5, term=3)

    disk.crash(SeededRandom("1"), keep_page_cache=False, survival=0)

    journal = opened(disk)
    assert indexes(journal) == [1, 2, 3, 4, 5]
    assert journal[-1] == (b"\x00command 5", 5, 3)
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (3, "c2")


def test_nothing_is_durable_before_its_sync() -> None:
    disk = a_disk()
    journal = filled(disk, 2)

    journal.add(b"\x00late", 3, 1)
    assert not journal.is_durable
    ticket = journal.begin_sync()
    assert ticket is not None
    assert journal.begin_sync() is None  # one at a time
    disk.crash(SeededRandom("1"), keep_page_cache=False, survival=0)

    assert indexes(opened(disk)) == [1, 2]


def test_a_sync_covers_what_was_written_before_it_only() -> None:
    disk = a_disk()
    journal = filled(disk, 1)
    journal.add(b"\x00two", 2, 1)
    ticket = journal.begin_sync()
    assert ticket is not None
    disk.sync_now(disk.open(PATH))

    journal.add(b"\x00three", 3, 1)
    journal.finish_sync(ticket)

    assert journal.appended - journal.durable == 1


def test_truncation_is_a_record_and_survives() -> None:
    disk = a_disk()
    journal = filled(disk, 5)

    journal.deleteEntriesFrom(2)
    journal.add(b"\x00other", 3, 2)
    journal.sync_now()

    assert opened(disk)[:] == journal[:]
    assert indexes(journal) == [1, 2, 3]


def test_a_restart_makes_durable_what_only_the_page_cache_held() -> None:
    disk = a_disk()
    journal = filled(disk, 1)
    journal.add(b"\x00two", 2, 1)
    assert journal.begin_sync() is not None  # written, the process dies before the fsync
    disk.crash(SeededRandom("1"), keep_page_cache=True)

    assert indexes(opened(disk)) == [1, 2]
    disk.crash(SeededRandom("1"), keep_page_cache=False, survival=0)

    assert indexes(opened(disk)) == [1, 2]


@pytest.mark.parametrize("seed", range(30))
def test_any_power_loss_leaves_a_prefix_above_the_synced_part(seed: int) -> None:
    disk = a_disk()
    journal = filled(disk, 3)
    for index in range(4, 60):
        journal.add(b"\x00" + bytes([index]) * 300, index, 2)
    assert journal.begin_sync() is not None

    disk.crash(SeededRandom(f"power {seed}"), keep_page_cache=False)

    found = indexes(opened(disk))
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= 3


@pytest.mark.parametrize("cut", [1, 7, 8, 31, 40])
def test_a_torn_tail_is_cut_and_the_journal_goes_on(cut: int) -> None:
    disk = a_disk()
    journal = filled(disk, 2)
    journal.add(b"\x00three", 3, 1)
    assert journal.begin_sync() is not None
    file = disk.open(PATH)
    disk.truncate(file, disk.size(file) - cut)

    journal = opened(disk)
    assert indexes(journal) == [1, 2]
    journal.add(b"\x00again", 3, 2)
    journal.sync_now()

    assert opened(disk)[-1] == (b"\x00again", 3, 2)


def test_every_flipped_bit_below_a_later_sync_refuses_to_start() -> None:
    """R23."""
    disk = a_disk()
    journal = filled(disk, 3)
    file = disk.open(PATH)
    synced_bytes = disk.size(file)
    journal.add(b"\x00four", 4, 1)  # carries the mark of the first sync
    journal.sync_now()

    for byte in range(synced_bytes):
        disk.flip_bit(PATH, byte, byte % 8)
        with pytest.raises(CorruptLogError):
            opened(disk)
        disk.flip_bit(PATH, byte, byte % 8)

    assert indexes(opened(disk)) == [1, 2, 3, 4]


def test_a_file_shorter_than_its_header_says_is_refused() -> None:
    disk = a_disk()
    journal = filled(disk, 6)
    journal.start_from(journal[-2:], commit_index=6)
    file = disk.open("/raft/journal-0000000002")
    disk.truncate(file, disk.size(file) - 8)

    with pytest.raises(CorruptLogError, match="durable mark"):
        opened(disk)


def test_a_journal_of_another_controller_is_refused() -> None:
    disk = a_disk()

    with pytest.raises(CorruptLogError, match="journal of controller 'c1', not 'c2'"):
        Journal(disk, FOLDER, controller_id="c2")


def test_cutting_the_front_keeps_the_rest_and_what_was_not_yet_written() -> None:
    disk = a_disk()
    journal = filled(disk, 10)
    journal.setRaftCommitIndex(9)
    journal.setCurrentTerm(2, None)
    journal.add(b"\x00eleven", 11, 2)

    journal.cut_before(7)

    assert indexes(journal) == [7, 8, 9, 10, 11]
    journal.onOneSecondTimer()
    journal.sync_now()
    disk.crash(SeededRandom("1"), keep_page_cache=False, survival=0)
    journal = opened(disk)
    assert indexes(journal)[-5:] == [7, 8, 9, 10, 11]
    assert (journal.getCurrentTerm(), journal.getRaftCommitIndex()) == (2, 9)


@pytest.mark.parametrize("keep_page_cache", [True, False])
def test_power_may_fail_at_every_operation_of_a_new_base(keep_page_cache: bool) -> None:  # noqa: FBT001
    for fuse in range(12):
        disk = a_disk()
        journal = filled(disk, 10)
        disk.fuse = fuse
        with contextlib.suppress(PowerLost):
            journal.start_from(journal[6:], commit_index=10)
        disk.crash(SeededRandom(f"base {fuse}"), keep_page_cache=keep_page_cache)

        assert indexes(opened(disk)) in ([7, 8, 9, 10], list(range(1, 11)))


def test_a_sync_that_began_before_a_cut_may_end_after_it() -> None:
    disk = a_disk()
    journal = filled(disk, 4)
    journal.add(b"\x00five", 5, 1)
    ticket = journal.begin_sync()
    assert ticket is not None

    journal.cut_before(3)
    journal.add(b"\x00six", 6, 1)
    journal.finish_sync(ticket)

    assert not journal.is_durable
    journal.sync_now()
    assert indexes(journal) == [3, 4, 5, 6]
    assert indexes(opened(disk)) == [1, 2, 3, 4, 5, 6]  # one segment: nothing to drop


def test_a_failed_write_is_reported() -> None:
    disk = a_disk()
    journal = filled(disk, 1)
    journal.add(b"\x00two", 2, 1)
    disk.fail_next("writev")

    with pytest.raises(StorageError):
        journal.begin_sync()


def test_a_restart_does_not_trust_what_a_failed_sync_left_in_the_page_cache() -> None:
    """The kernel calls such pages clean: a sync after the restart succeeds and writes nothing."""
    disk = a_disk()
    journal = filled(disk, 1)
    journal.add(b"\x00two", 2, 1)
    disk.fail_next("sync_now")
    with pytest.raises(StorageError):
        journal.sync_now()
    disk.crash(SeededRandom("1"), keep_page_cache=True)

    restarted = opened(disk)
    assert indexes(restarted) == [1]

    restarted.add(b"\x00other", 2, 1)
    restarted.add(b"\x00three" * 2000, 3, 1)
    restarted.sync_now()
    restarted.setCurrentTerm(2, None)  # names the durable mark
    restarted.sync_now()
    disk.crash(SeededRandom("1"), keep_page_cache=False, survival=0)
    assert indexes(opened(disk)) == [1, 2, 3]


def test_a_second_vote_in_one_term_is_a_broken_invariant() -> None:
    journal = filled(a_disk(), 1, term=4)  # voted for c2

    with pytest.raises(AssertionError, match="one vote per term"):
        journal.setCurrentTerm(4, "c3")
