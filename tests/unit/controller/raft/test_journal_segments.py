"""The journal's segments follow one another; a node that lacks one of them does not start."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.runtime import SeededRandom
from paceline_controller.raft.log.journal import Journal
from paceline_controller.raft.log.journal_format import parse_header, parse_record, segment_name

FOLDER = "/raft"
SMALL = 400


def a_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_folder(FOLDER)
    Journal.create(disk, FOLDER, controller_id="c1")
    return disk


def opened(disk: MemoryDisk, segment_bytes: int = SMALL) -> Journal:
    return Journal(disk, FOLDER, controller_id="c1", segment_bytes=segment_bytes)


def write(journal: Journal, first: int, last: int, *, term: int = 1) -> None:
    """Each entry in a sync of its own, so that segments roll."""
    for index in range(first, last + 1):
        journal.add(b"\x00command %d of %d" % (index, term), index, term)
        journal.sync_now()


def filled(disk: MemoryDisk, count: int = 30) -> Journal:
    journal = opened(disk)
    journal.setCurrentTerm(1, "c2")
    write(journal, 1, count)
    return journal


def segments(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.list(FOLDER) if name.startswith("journal")]


def indexes(journal: Journal) -> list[int]:
    return [entry[1] for entry in journal[:]]


def content_of(disk: MemoryDisk, name: str) -> bytes:
    file = disk.open(f"{FOLDER}/{name}")
    return disk.pread(file, disk.size(file), 0)


def put(disk: MemoryDisk, name: str, content: bytes) -> None:
    if disk.exists(f"{FOLDER}/{name}"):
        disk.unlink(f"{FOLDER}/{name}")
    disk.writev(disk.open(f"{FOLDER}/{name}", create=True), [content], 0)


def test_a_journal_over_many_segments_reads_as_one() -> None:
    disk = a_disk()
    journal = filled(disk)
    journal.setCurrentTerm(2, None)
    journal.setRaftCommitIndex(17)
    journal.onOneSecondTimer()
    journal.sync_now()

    disk.crash(SeededRandom("1"), keep_page_cache=False, survival=0)
    found = opened(disk)

    assert found.segments_count == journal.segments_count > 4
    assert found[:] == journal[:]
    assert (found.getCurrentTerm(), found.getVotedForNodeId()) == (2, None)
    assert found.getRaftCommitIndex() == 17


def test_truncation_reaches_back_over_segments() -> None:
    disk = a_disk()
    journal = filled(disk)
    journal.deleteEntriesFrom(4)  # keeps 1 to 4
    write(journal, 5, 12, term=2)

    found = opened(disk)

    assert found[:] == journal[:]
    assert [entry[2] for entry in found[:]] == [1] * 4 + [2] * 8


def test_a_cut_drops_whole_segments_and_writes_nothing() -> None:
    disk = a_disk()
    journal = filled(disk)
    before = segments(disk)
    writes: list[str] = []
    disk.observer = lambda operation, _: writes.append(operation)

    journal.cut_before(20)

    assert set(writes) == {"unlink"}
    assert segments(disk) == before[-journal.segments_count :]
    assert len(segments(disk)) < len(before)
    assert indexes(journal) == list(range(20, 31))
    found = opened(disk)
    assert indexes(found)[-11:] == list(range(20, 31))
    write(found, 31, 40)
    assert indexes(opened(disk))[-1] == 40


@pytest.mark.parametrize("cut_at", [5, 9, 12, 13, 17, 20])
def test_a_cut_after_a_truncation_keeps_all_above_it(cut_at: int) -> None:
    disk = a_disk()
    journal = filled(disk, 20)
    journal.deleteEntriesFrom(8)  # keeps 1 to 8; the segments behind hold nothing that lives
    write(journal, 9, 20, term=2)

    journal.cut_before(cut_at)

    found = opened(disk)
    assert found.first_index <= cut_at
    assert found[cut_at - found.first_index :] == journal[:]


def test_cuts_and_truncations_of_many_seeds_read_as_they_were() -> None:
    for seed in range(60):
        random = SeededRandom(f"segments {seed}")
        disk = a_disk()
        journal = opened(disk)
        journal.setCurrentTerm(1, None)
        journal.add(b"\x01", 1, 1)
        for _ in range(60):
            _one_change(journal, random)
            if random.uniform(0, 1) < 0.6:
                journal.sync_now()
        journal.sync_now()
        disk.crash(random, keep_page_cache=False, survival=random.uniform(0, 1))

        found = opened(disk)

        assert found.first_index <= journal.first_index, seed
        assert found[journal.first_index - found.first_index :] == journal[:], seed
        assert found.getCurrentTerm() == journal.getCurrentTerm(), seed
        assert found.getVotedForNodeId() == journal.getVotedForNodeId(), seed


def _one_change(journal: Journal, random: SeededRandom) -> None:
    chance = random.uniform(0, 1)
    first, last, commit = journal.first_index, journal.last_index, journal.getRaftCommitIndex()
    if chance < 0.65:
        journal.add(b"\x00" + b"x" * int(random.uniform(0, 90)), last + 1, journal.getCurrentTerm())
    elif chance < 0.75:
        journal.setCurrentTerm(journal.getCurrentTerm() + 1, "c3" if chance < 0.7 else None)
    elif chance < 0.85:
        journal.setRaftCommitIndex(int(random.uniform(commit, last + 1)))
        journal.onOneSecondTimer()
    elif chance < 0.92 and last > commit:
        journal.deleteEntriesFrom(int(random.uniform(commit, last)) + 1 - first)
    elif chance < 0.97:
        journal.cut_before(int(random.uniform(first, commit + 1)))
    else:
        previous = (b"\x01", last + 7, journal.getCurrentTerm())
        newest = (b"\x00s", last + 8, journal.getCurrentTerm())
        journal.start_from([previous, newest], commit_index=last + 8)


@pytest.mark.parametrize("number", [2, 4])
def test_a_missing_middle_segment_refuses(number: int) -> None:
    """R18: whoever lost a part of what it promised does not vote."""
    disk = a_disk()
    filled(disk)
    disk.unlink(f"{FOLDER}/{segment_name(number)}")

    with pytest.raises(CorruptLogError, match=rf"{segment_name(number)} .*segment is missing"):
        opened(disk)


def test_a_missing_newest_segment_refuses() -> None:
    """R18: its predecessor says that it was there."""
    disk = a_disk()
    filled(disk)
    newest = segments(disk)[-1]
    disk.unlink(f"{FOLDER}/{newest}")

    with pytest.raises(CorruptLogError, match=f"the next segment, {newest}, is gone"):
        opened(disk)


def test_a_segment_beyond_the_newest_refuses() -> None:
    disk = a_disk()
    filled(disk)
    newest = segments(disk)[-1]
    put(disk, segment_name(int(newest[-10:]) + 2), content_of(disk, newest))

    with pytest.raises(CorruptLogError, match="is segment"):
        opened(disk)


def test_a_segment_of_another_time_refuses() -> None:
    """A copy of the folder's past put over its present, in part."""
    other = a_disk()
    filled(other, 40)
    third = content_of(other, segment_name(3))
    changed = a_disk()
    journal = opened(changed)
    journal.setCurrentTerm(5, "c3")
    write(journal, 1, 30, term=5)
    put(changed, segment_name(3), third)

    with pytest.raises(CorruptLogError, match="is from another time"):
        opened(changed)


@pytest.mark.parametrize("cut", [1, 8, 40])
def test_a_torn_segment_that_another_follows_refuses(cut: int) -> None:
    """R23: it was durable to its end before the next was made."""
    disk = a_disk()
    filled(disk)
    file = disk.open(f"{FOLDER}/{segment_name(2)}")
    disk.truncate(file, disk.size(file) - cut)

    with pytest.raises(CorruptLogError, match="is damaged"):
        opened(disk)


def test_every_flipped_byte_of_older_segments_refuses() -> None:
    """R23."""
    disk = a_disk()
    filled(disk, 12)
    for name in segments(disk)[:-1]:
        for byte in range(len(content_of(disk, name))):
            disk.flip_bit(f"{FOLDER}/{name}", byte, byte % 8)
            with pytest.raises(CorruptLogError):
                opened(disk)
            disk.flip_bit(f"{FOLDER}/{name}", byte, byte % 8)
    assert indexes(opened(disk))[-1] == 12


def test_what_an_interrupted_replacement_left_is_cleared_away() -> None:
    disk = a_disk()
    journal = filled(disk, 6)
    put(disk, ".journal-0000000009.new", b"half")
    journal.start_from(journal[3:], commit_index=6)
    put(disk, segment_name(1), b"came back after a power loss")

    assert indexes(opened(disk)) == [4, 5, 6]
    assert len(disk.list(FOLDER)) == 1


Act = Callable[[Journal], None]


def _writes(journal: Journal) -> None:
    write(journal, 13, 24)


def _cuts(journal: Journal) -> None:
    journal.cut_before(10)
    write(journal, 13, 40)


def _starts_from(journal: Journal) -> None:
    journal.start_from(journal[8:], commit_index=12)
    write(journal, 13, 16)


@pytest.mark.parametrize("keep_page_cache", [True, False])
@pytest.mark.parametrize("act", [_writes, _cuts, _starts_from])
def test_power_may_fail_at_every_operation(act: Act, *, keep_page_cache: bool) -> None:
    for fuse in range(300):
        disk = a_disk()
        journal = filled(disk, 12)
        disk.fuse = fuse
        with contextlib.suppress(PowerLost):
            act(journal)
        is_done = disk.fuse is not None and disk.fuse > 0
        promised = _durable_last(journal)
        disk.crash(SeededRandom(f"{fuse}"), keep_page_cache=keep_page_cache)

        found = opened(disk)
        assert indexes(found) == list(range(found.first_index, found.last_index + 1))
        assert promised <= found.last_index, fuse
        assert found.first_index in (1, 9) or found.first_index <= journal.first_index
        assert (found.getCurrentTerm(), found.getVotedForNodeId()) == (1, "c2")
        if is_done:
            return
    raise AssertionError("the fuse never sufficed")


def test_a_new_segment_never_waits_for_the_disk_on_the_loop() -> None:
    disk = a_disk()
    disk.sync_delay_ms = 500
    stood: list[float] = []
    disk.on_blocked = stood.append
    journal = opened(disk)
    stood.clear()
    disk.sync_delay_ms = 1.0

    asyncio.run(_goes_on(journal, last=20))

    assert journal.segments_count > 3
    assert stood == []
    assert indexes(opened(disk))[-1] == 20


async def _goes_on(journal: Journal, *, last: int) -> None:
    """As the host does it, and with an entry more during each sync."""
    journal.setCurrentTerm(1, None)
    while (ticket := journal.begin_sync()) is not None:
        if journal.last_index < last:
            index = journal.last_index + 1
            journal.add(b"\x00command %d, which is long" % index, index, 1)
        await journal.sync(ticket)
        journal.finish_sync(ticket)


@pytest.mark.parametrize("keep_page_cache", [True, False])
def test_power_may_fail_at_every_operation_off_the_loop(*, keep_page_cache: bool) -> None:
    for fuse in range(300):
        disk = a_disk()
        journal = opened(disk)
        disk.fuse = fuse
        with contextlib.suppress(PowerLost):
            asyncio.run(_goes_on(journal, last=30))
        is_done = disk.fuse is not None and disk.fuse > 0
        promised = journal.durable - 1  # the first is the term
        disk.crash(SeededRandom(f"{fuse}"), keep_page_cache=keep_page_cache)

        found = opened(disk)
        assert promised <= found.last_index, fuse
        write(found, found.last_index + 1, found.last_index + 10)
        assert opened(disk)[:] == found[:]
        if is_done:
            return
    raise AssertionError("the fuse never sufficed")


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("is_cut_short", [True, False])
def test_a_snapshot_may_come_at_every_step_of_a_new_segment(
    steps: int, *, is_cut_short: bool
) -> None:
    disk = a_disk()
    journal = opened(disk)
    journal.setCurrentTerm(1, "c2")
    while journal._segment.size_bytes < SMALL:
        write(journal, journal.last_index + 1, journal.last_index + 1)
    last = journal.last_index
    journal.add(b"\x00not written yet", last + 1, 1)
    ticket = None
    for step in range(1, steps + 1):
        ticket = journal.begin_sync()
        assert ticket is not None
        if step < steps:
            journal.sync_ticket_now(ticket)
            journal.finish_sync(ticket)
    assert ticket is not None

    journal.start_from([(b"\x01", 40, 1), (b"\x00s", 41, 1)], commit_index=41)
    if not is_cut_short:
        journal.sync_ticket_now(ticket)
        journal.finish_sync(ticket)
        write(journal, 42, 60)
    disk.crash(SeededRandom(f"{steps}"), keep_page_cache=False, survival=0)

    found = opened(disk)
    assert indexes(found) == list(range(40, 42 if is_cut_short else 61))
    assert (found.getCurrentTerm(), found.getVotedForNodeId()) == (1, "c2")


def _durable_last(journal: Journal) -> int:
    """The last entry that this process may have promised."""
    return journal.last_index - (journal.appended - journal.durable)


@pytest.mark.parametrize("act", [_writes, _cuts, _starts_from])
def test_a_disk_may_be_full_at_any_byte(act: Act) -> None:
    """R22: an error stops the node; with room the same journal goes on."""
    failures = 0
    for room in range(0, 2600, 37):
        disk = a_disk()
        journal = filled(disk, 12)
        used = sum(len(content_of(disk, name)) for name in disk.list(FOLDER))
        disk.capacity_bytes = used + room
        try:
            act(journal)
        except StorageError:
            failures += 1
        promised = _durable_last(journal)
        disk.capacity_bytes = None
        disk.crash(SeededRandom(f"{room}"), keep_page_cache=room % 2 == 0)

        found = opened(disk)
        assert promised <= found.last_index
        write(found, found.last_index + 1, found.last_index + 10)
        assert opened(disk)[:] == found[:]
    assert failures > 5


GOLDEN_HEADER = (
    b'{"content_bytes":216,"controller":"c1","format":2,"is_base":true,"number":1,'
    b'"position":{"commit_index":1,"last_index":0,"term":0,"voted_for":""},'
    b'"previous_bytes":0,"previous_crc":0}'
)


def test_the_format_is_what_the_documents_say() -> None:
    """docs/protocol/raft.md, "Files": bytes that every later version must read."""
    disk = a_disk()
    journal = opened(disk)
    journal.setCurrentTerm(7, "c2")
    journal.add(b"\x01", 1, 7)
    journal.sync_now()

    content = content_of(disk, "journal-0000000001")

    header = parse_record(content, 0)
    assert header is not None
    assert header.payload == GOLDEN_HEADER
    assert parse_header(header.payload).content_bytes == header.end
    assert content[header.end :].hex() == GOLDEN_RECORDS


GOLDEN_RECORDS = (
    "504c4a31bf21eb310a000000020000000100000000000000d800000000000000070000000000000063320000"
    "00000000504c4a31f8d59b7411000000010000000200000000000000d8000000000000000100000000000000"
    "07000000000000000100000000000000"
)


ONE_FILE = (
    "504c4a31dadebb993200000000000000000000000000000000000000000000007b22636f6e74656e745f6279"
    "746573223a3334342c22636f6e74726f6c6c6572223a226331222c22666f726d6174223a317d000000000000"
    "504c4a31cdac559d0a0000000200000001000000000000000000000000000000040000000000000063320000"
    "00000000504c4a31f943c4ab1300000001000000020000000000000000000000000000000300000000000000"
    "03000000000000000063330000000000504c4a31865950ef1300000001000000030000000000000000000000"
    "00000000040000000000000004000000000000000064340000000000504c4a318b7451411300000001000000"
    "04000000000000000000000000000000050000000000000004000000000000000064350000000000504c4a31"
    "08a070980800000004000000050000000000000000000000000000000400000000000000"
)


def test_the_one_file_of_before_is_taken_over_at_any_crash() -> None:
    for fuse in range(12):
        disk = MemoryDisk()
        disk.make_folder(FOLDER)
        put(disk, "journal", bytes.fromhex(ONE_FILE))
        disk.sync_folder(FOLDER)
        assert Journal.exists(disk, FOLDER)
        disk.fuse = fuse
        with contextlib.suppress(PowerLost):
            opened(disk)
        disk.crash(SeededRandom(f"{fuse}"), keep_page_cache=fuse % 2 == 0)

        journal = opened(disk)

        assert indexes(journal) == [3, 4, 5]
        assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (4, "c2")
        assert journal.getRaftCommitIndex() == 4
        assert segments(disk) == ["journal-0000000001"]


def test_a_damaged_one_file_is_refused() -> None:
    disk = MemoryDisk()
    disk.make_folder(FOLDER)
    put(disk, "journal", bytes.fromhex(ONE_FILE)[:-8])

    with pytest.raises(CorruptLogError, match="durable mark"):
        opened(disk)
