"""The notes on disk, when the disk fails: nothing that was noted is lost by it."""

import asyncio
import contextlib

import pytest

from paceline.errors import StorageError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import pause
from paceline_broker.escape import notes_file
from paceline_broker.escape.notes_file import FILE, NotesFile
from paceline_broker.service.escape.notes import SentNote


def a_note(number: int) -> SentNote:
    return SentNote(number << 16, 1_000 + number, 1 << 16, 7)


def a_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_folder("/data")
    return disk


def after_a_restart(disk: MemoryDisk) -> list[SentNote]:
    return NotesFile(disk, "/data").notes.first(1 << 20)


async def test_a_note_after_a_clearing_that_failed_is_on_disk() -> None:
    """R22, R36: behind a hole where the cleared notes were it would be cut off at the next start,
    and its message sent once more."""
    disk = a_disk()
    kept = NotesFile(disk, "/data")
    kept.add([a_note(1)])
    await kept.save()
    disk.fail_next("sync")
    with pytest.raises(StorageError):
        await kept.settle(1)

    kept.add([a_note(2)])
    await kept.save()

    assert after_a_restart(disk) == [a_note(2)]


@pytest.mark.parametrize("operation", ["sync", "writev", "truncate"])
async def test_what_could_not_be_saved_is_saved_with_the_next_or_without_one(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes_file, "_PART_NOTES", 2)
    disk = a_disk()
    kept = NotesFile(disk, "/data")
    kept.add([a_note(0), a_note(1), a_note(2)])
    await kept.save()
    kept.add([a_note(3)])
    disk.fail_next(operation, count=2)
    for _ in range(2):
        with pytest.raises(StorageError):
            await kept.save()

    await kept.save()

    assert after_a_restart(disk) == [a_note(number) for number in range(4)]
    kept.add([a_note(4)])
    await kept.save()
    assert len(after_a_restart(disk)) == 5
    await kept.settle(5)
    assert after_a_restart(disk) == []


async def test_a_file_whose_fsync_failed_is_never_synced_again() -> None:
    """R22: a second fsync succeeds without the pages that the first one gave up."""
    disk = a_disk()
    kept = NotesFile(disk, "/data")
    kept.add([a_note(1)])
    disk.fail_next("sync")
    with pytest.raises(StorageError):
        await kept.save()
    changed: list[tuple[str, str]] = []
    disk.observer = lambda operation, path: changed.append((operation, path))

    await kept.save()

    path = f"/data/{FILE}"
    assert [row for row in changed if row[1] == path and row[0] != "rename"] == []
    assert after_a_restart(disk) == [a_note(1)]


async def test_many_notes_are_not_written_anew_for_each_that_comes_to_a_full_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them would be packed again and again; and what was written takes the last room."""
    monkeypatch.setattr(notes_file, "MANY_NOTES", 10)
    monkeypatch.setattr(notes_file, "AGAIN_S", 0.5)
    disk = a_disk()
    kept = NotesFile(disk, "/data")
    kept.add([a_note(number) for number in range(11)])
    await kept.save()
    disk.capacity_bytes = disk.space("/data").total_bytes - disk.space("/data").free_bytes
    made = 0

    def observe(operation: str, path: str) -> None:
        nonlocal made
        made += operation == "create"

    disk.observer = observe
    for number in range(11, 100):
        kept.add([a_note(number)])
        with pytest.raises(StorageError):
            await kept.save()
    assert 1 <= made < 20
    assert disk.list("/data") == [FILE]

    disk.capacity_bytes = None
    async with asyncio.timeout(10):
        while len(after_a_restart(disk)) < 100:
            await pause(5)
            with contextlib.suppress(StorageError):
                await kept.save()
    assert after_a_restart(disk) == [a_note(number) for number in range(100)]
