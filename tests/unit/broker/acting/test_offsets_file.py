"""Provisional offsets on disk: kept over crashes, refused when damaged, few writes."""

import asyncio

import pytest

from paceline.errors import StorageError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom
from paceline_broker.acting.offsets_file import FILE, OffsetsFile
from paceline_broker.projections.locks import Token
from paceline_broker.projections.offsets import CommitEntry

KEY = 1 << 16
FOLDER = "/data"


def a_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_folder(FOLDER)
    return disk


def commit(kept: OffsetsFile, offset: int) -> None:
    token = Token.from_json([3, 9])
    kept.offsets.commit("g", CommitEntry(KEY, offset, token, 2), None, now_unix_ms=5)


async def test_what_was_saved_is_there_after_a_power_loss() -> None:
    disk = a_disk()
    kept = OffsetsFile(disk, FOLDER)
    commit(kept, 7)
    await kept.save()

    disk.crash(SeededRandom("power"), keep_page_cache=False)

    again = OffsetsFile(disk, FOLDER)
    assert again.offsets.rows("g") == kept.offsets.rows("g")


async def test_a_damaged_file_is_put_aside_and_never_guessed() -> None:
    disk = a_disk()
    kept = OffsetsFile(disk, FOLDER)
    commit(kept, 7)
    await kept.save()
    file = disk.open(f"{FOLDER}/{FILE}")
    content = bytearray(disk.pread(file, disk.size(file), 0))
    content[content.index(b"7")] = ord("9")
    disk.writev(file, [bytes(content)], 0)

    again = OffsetsFile(disk, FOLDER)

    assert len(again.offsets) == 0
    assert disk.exists(f"{FOLDER}/{FILE}.damaged")
    assert not disk.exists(f"{FOLDER}/{FILE}")


async def test_saves_at_one_time_share_a_write_and_none_is_made_for_nothing() -> None:
    disk = a_disk()
    kept = OffsetsFile(disk, FOLDER)
    commit(kept, 7)
    await asyncio.gather(*(kept.save() for _ in range(5)))
    disk.fail_next("writev")

    commit(kept, 7)  # the same again
    await kept.save()
    commit(kept, 8)
    with pytest.raises(StorageError):
        await kept.save()

    await kept.save()  # what failed is not taken for saved
    assert OffsetsFile(disk, FOLDER).offsets.rows("g")[KEY].offset == 8
