"""The simulated disk must be as cruel as a real one, and never crueller."""

import pytest

from paceline.errors import StorageError
from paceline.platform.disk_memory import MemoryDisk, MemoryFile, PowerLost
from paceline.platform.ports import Disk, write_durably
from paceline.platform.runtime import SeededRandom

PATH = "/d/f"
RANDOM = SeededRandom("disk")


def a_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_folder("/d")
    return disk


def a_durable_file(disk: MemoryDisk, content: bytes) -> MemoryFile:
    file = disk.open(PATH, create=True)
    disk.writev(file, [content], 0)
    disk.sync_now(file)
    disk.sync_folder("/d")
    return file


def read(disk: MemoryDisk, path: str = PATH) -> bytes:
    file = disk.open(path)
    return disk.pread(file, disk.size(file), 0)


def lose_power(disk: MemoryDisk, *, survival: float = 0) -> None:
    disk.crash(RANDOM, keep_page_cache=False, survival=survival)


def test_it_is_a_disk() -> None:
    disk: Disk = a_disk()

    assert disk.list("/d") == []


def test_unsynced_bytes_are_lost_with_the_power_and_kept_by_kill_9() -> None:
    disk = a_disk()
    file = a_durable_file(disk, b"a" * 10_000)
    disk.writev(file, [b"bb", b"bb"], 5000)

    twin = disk.crash_image(RANDOM, keep_page_cache=True)
    lose_power(disk)

    assert read(disk) == b"a" * 10_000
    assert read(twin) == b"a" * 5000 + b"bbbb" + b"a" * 4996


def test_a_size_that_was_not_synced_is_lost() -> None:
    disk = a_disk()
    file = a_durable_file(disk, b"a")
    disk.preallocate(file, 9000)

    lose_power(disk)

    assert read(disk) == b"a"


def test_names_need_a_sync_of_their_folder() -> None:
    disk = a_disk()
    a_durable_file(disk, b"old")
    file = disk.open("/d/new", create=True)
    disk.sync_now(file)
    disk.rename("/d/f", "/d/g")

    lose_power(disk)

    assert disk.list("/d") == ["f"]


def test_an_unlinked_name_comes_back_unless_the_folder_was_synced() -> None:
    disk = a_disk()
    a_durable_file(disk, b"old")
    disk.unlink(PATH)
    twin = disk.crash_image(RANDOM, keep_page_cache=False, survival=0)
    disk.sync_folder("/d")

    lose_power(disk)

    assert read(twin) == b"old"
    assert disk.list("/d") == []


def test_name_changes_survive_as_a_prefix_of_their_order() -> None:
    disk = a_disk()
    for index in range(6):
        disk.open(f"/d/{index}", create=True)
    found = set()
    for _ in range(60):
        names = disk.crash_image(RANDOM, keep_page_cache=False).list("/d")
        assert names == [str(index) for index in range(len(names))]
        found.add(len(names))

    assert found == set(range(7))


def test_pages_survive_each_by_itself_and_some_are_torn() -> None:
    disk = a_disk()
    file = a_durable_file(disk, bytes(40 * 4096))
    disk.writev(file, [b"x" * (40 * 4096)], 0)
    lose_power(disk, survival=0.5)

    content = read(disk)

    pages = [content[at : at + 4096] for at in range(0, len(content), 4096)]
    assert pages.count(b"x" * 4096) > 3
    assert pages.count(bytes(4096)) > 3
    torn = [page for page in pages if 0 < page.count(b"x") < 4096]
    assert torn
    assert all(page.count(b"x") % 512 == 0 for page in torn)


def test_bytes_cut_off_and_grown_over_again_are_zeros_or_old_after_power_loss() -> None:
    disk = a_disk()
    file = a_durable_file(disk, b"a" * 8192)
    disk.truncate(file, 100)
    disk.preallocate(file, 8192)
    assert read(disk) == b"a" * 100 + bytes(8092)
    none = disk.crash_image(RANDOM, keep_page_cache=False, survival=0)
    disk.sync_now(file)

    lose_power(disk)

    assert read(none) == b"a" * 8192
    assert read(disk) == b"a" * 100 + bytes(8092)


def test_a_failed_sync_drops_the_pages_and_calls_them_clean() -> None:
    disk = a_disk()
    file = a_durable_file(disk, b"a" * 100)
    disk.writev(file, [b"b" * 100], 0)
    disk.fail_next("sync_now")
    with pytest.raises(StorageError):
        disk.sync_now(file)
    disk.sync_now(file)
    assert read(disk) == b"b" * 100

    disk.forget_clean(file)

    assert read(disk) == b"a" * 100


async def test_bytes_written_during_a_sync_are_not_covered_by_it() -> None:
    disk = a_disk()
    disk.sync_delay_ms = 1
    file = a_durable_file(disk, b"a" * 100)
    disk.writev(file, [b"b"], 0)
    syncing = disk.sync(file)
    syncing.send(None)  # begun, and waiting
    disk.writev(file, [b"c"], 50)
    syncing.close()

    lose_power(disk)

    assert read(disk) == b"a" * 100


def test_calls_that_block_tell_for_how_long() -> None:
    disk = a_disk()
    file = a_durable_file(disk, b"a" * 100)
    stood: list[float] = []
    disk.sync_delay_ms, disk.on_blocked = 7, stood.append

    disk.writev(file, [b"b"], 0)
    disk.sync_now(file)
    disk.sync_folder("/d")

    assert stood == [7, 7]


def test_a_sync_of_a_clean_file_takes_no_time() -> None:
    """A start syncs every file that may be dirty: of hundreds, most are not."""
    disk = a_disk()
    file = a_durable_file(disk, b"a" * 100)
    stood: list[float] = []
    disk.sync_delay_ms, disk.on_blocked = 7, stood.append

    disk.sync_now(file)
    disk.preallocate(file, 200)
    disk.sync_now(file)
    disk.sync_now(file)

    assert stood == [7]


async def test_an_awaited_sync_makes_durable() -> None:
    disk = a_disk()
    file = a_durable_file(disk, b"a" * 100)
    disk.writev(file, [b"b"], 0)

    await disk.sync(file)

    lose_power(disk)
    assert read(disk) == b"b" + b"a" * 99


def test_the_fuse_stops_the_machine_until_it_restarts() -> None:
    disk = a_disk()
    file = a_durable_file(disk, b"a")
    disk.fuse = 1
    disk.writev(file, [b"b"], 0)
    with pytest.raises(PowerLost):
        disk.writev(file, [b"c"], 0)
    with pytest.raises(PowerLost):
        disk.pread(file, 1, 0)

    disk.crash(RANDOM, keep_page_cache=True)

    assert read(disk) == b"b"
    with pytest.raises(StorageError, match="closed"):
        disk.pread(file, 1, 0)


def test_a_mapping_is_coherent_with_later_writes_and_read_only() -> None:
    disk = a_disk()
    file = a_durable_file(disk, b"a" * 100)
    view = disk.map(file, 100)

    disk.writev(file, [b"b"], 3)

    assert bytes(view[:5]) == b"aaaba"
    assert view.readonly
    with pytest.raises(AssertionError, match="under a mapped view"):
        disk.truncate(file, 50)


async def test_an_evicted_view_is_cold_until_it_is_warmed() -> None:
    disk = a_disk()
    view = disk.map(a_durable_file(disk, b"a" * 100), 100)
    assert disk.is_resident(view[3:5])
    disk.evict()
    assert not disk.is_resident(view[3:5])

    await disk.warm(view[3:5])

    assert disk.is_resident(view)


def test_a_folder_has_one_owner_until_it_closes_or_dies() -> None:
    disk = a_disk()
    lock = disk.lock_folder("/d")
    with pytest.raises(StorageError, match="in use by another process"):
        disk.lock_folder("/d")
    lock.close()
    disk.lock_folder("/d")
    disk.crash(RANDOM, keep_page_cache=True)

    disk.lock_folder("/d").close()


def test_a_full_disk_refuses_to_grow() -> None:
    disk = a_disk()
    disk.capacity_bytes = 1000
    file = a_durable_file(disk, b"a" * 900)

    with pytest.raises(StorageError, match="no space left"):
        disk.preallocate(file, 1001)
    with pytest.raises(StorageError, match="no space left"):
        disk.writev(file, [b"b" * 200], 900)
    disk.writev(file, [b"b" * 100], 0)

    assert disk.size(file) == 900


def test_a_flipped_bit_stays_flipped() -> None:
    disk = a_disk()
    a_durable_file(disk, b"a" * 10)

    disk.flip_bit(PATH, 3, 1)

    assert read(disk) == b"aaacaaaaaa"
    lose_power(disk)
    assert read(disk) == b"aaacaaaaaa"


def test_a_lost_file_stays_lost_and_who_has_it_open_goes_on() -> None:
    disk = a_disk()
    file = a_durable_file(disk, b"a" * 10)

    disk.lose(PATH)

    assert disk.pread(file, 10, 0) == b"a" * 10
    assert not disk.exists(PATH)
    lose_power(disk)
    assert not disk.exists(PATH)


@pytest.mark.parametrize("fuse", range(6))
def test_a_small_file_is_replaced_as_a_whole_or_not_at_all(fuse: int) -> None:
    disk = a_disk()
    write_durably(disk, PATH, b"old")
    disk.fuse = fuse
    try:
        write_durably(disk, PATH, b"new content")
    except PowerLost:
        done = False
    else:
        done = True
    lose_power(disk, survival=0.5)

    assert read(disk) == b"new content" if done else read(disk) in (b"old", b"new content")


def test_what_is_missing_is_a_storage_error() -> None:
    disk = a_disk()

    for call in (
        lambda: disk.open("/d/none"),
        lambda: disk.unlink("/d/none"),
        lambda: disk.rename("/d/none", "/d/some"),
        lambda: disk.list("/none"),
    ):
        with pytest.raises(StorageError, match="no such"):
            call()
    assert not disk.exists("/none/x")


async def test_space_shrinks_with_what_is_stored_and_grows_with_what_is_unlinked() -> None:
    disk = MemoryDisk(capacity_bytes=1000)
    disk.make_folder("/d")
    file = disk.open(PATH, create=True)
    disk.writev(file, [bytes(250)], 0)
    assert disk.space("/d") == (1000, 750)
    assert disk.space("/d").used_ratio == 25
    await disk.unlink_later(PATH)
    assert disk.space("/d").free_bytes == 1000
    assert a_disk().space("/d").used_ratio == 0, "no capacity: boundless"
