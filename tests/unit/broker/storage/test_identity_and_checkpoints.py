"""The small durable files of a broker: what a start counts, refuses and remembers."""

from collections.abc import Sequence
from contextlib import suppress

import pytest

from paceline.errors import ConfigError, StorageError
from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.ports import Buffer, File
from paceline.platform.runtime import SeededRandom, cancel_and_wait, pause, spawn
from paceline.types import GroupName, MasterEpoch, PhysicalOffset, ReplicaId
from paceline_broker.storage.checkpoints import SLICE_BYTES, CheckpointFolder
from paceline_broker.storage.identity import StoreIdentity

GROUP = GroupName("g1")


def a_start(disk: MemoryDisk, *, group: str = "g1", boot_id: str = "boot-1") -> StoreIdentity:
    disk.make_folder("/data")
    identity = StoreIdentity(disk, "/data")
    identity.begin_incarnation(
        group=GroupName(group), boot_id=boot_id, random=SeededRandom("identity")
    )
    return identity


def test_every_start_counts_one_incarnation_of_the_same_store() -> None:
    disk = MemoryDisk()

    first, second = a_start(disk).identity, a_start(disk).identity

    assert (first.incarnation, second.incarnation) == (1, 2)
    assert first.store_id == second.store_id


def test_the_incarnation_survives_a_power_loss_right_after_the_start() -> None:
    disk = MemoryDisk()
    a_start(disk)

    disk.crash(SeededRandom("power"), keep_page_cache=False)

    assert a_start(disk).identity.incarnation == 2


def test_a_folder_of_another_group_is_refused() -> None:
    disk = MemoryDisk()
    a_start(disk)

    with pytest.raises(ConfigError, match="'g1'.*'g2'"):
        a_start(disk, group="g2")


def test_a_cluster_is_joined_once_and_for_all() -> None:
    identity = a_start(MemoryDisk())
    identity.join_cluster(cluster_id="one", replica_id=ReplicaId(1))

    with pytest.raises(ConfigError, match="another cluster's data"):
        identity.join_cluster(cluster_id="two", replica_id=ReplicaId(1))
    with pytest.raises(ConfigError, match="another identity"):
        identity.join_cluster(cluster_id="one", replica_id=ReplicaId(2))


async def test_an_adopted_epoch_is_durable_and_never_falls() -> None:
    disk = MemoryDisk()
    identity = a_start(disk)
    await identity.adopt_epoch(MasterEpoch(7))

    disk.crash(SeededRandom("power"), keep_page_cache=False)
    again = a_start(disk)

    assert again.epoch == 7
    with pytest.raises(AssertionError):
        await again.adopt_epoch(MasterEpoch(6))


@pytest.mark.parametrize("is_disk_slow", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("operations", range(12))
async def test_a_power_loss_while_an_epoch_is_adopted_leaves_the_twin_ahead_or_equal(
    operations: int, seed: int, is_disk_slow: bool
) -> None:
    """R2, R24: whichever of the two files is damaged later, the epoch that was read stays known."""
    disk = MemoryDisk()
    identity = a_start(disk)
    await identity.adopt_epoch(MasterEpoch(7))

    disk.fuse = operations
    with suppress(PowerLost):
        await identity.adopt_epoch(MasterEpoch(8), is_disk_slow=is_disk_slow)
    disk.crash(SeededRandom(f"power-{seed}"), keep_page_cache=False)

    read = a_start(disk).epoch
    disk.unlink("/data/epoch.json")
    assert read in (7, 8)
    assert a_start(disk).epoch >= read
    if identity.epoch == 8:
        assert read == 8, "it was said to be durable"


async def test_the_scrubber_does_not_undo_an_epoch_that_is_being_adopted() -> None:
    """R2, R24: what it takes for damage is ahead of what is known, until all of it is synced."""
    disk = MemoryDisk()
    identity = a_start(disk)
    await identity.adopt_epoch(MasterEpoch(7))
    disk.sync_delay_ms = 1
    adopting = spawn(identity.adopt_epoch(MasterEpoch(8), is_disk_slow=True), name="adopt")
    looks = 0
    while not adopting.done():
        assert identity.replace_bad() == []
        looks += 1
        await pause(0)
    await adopting

    assert looks > 4
    assert identity.replace_bad() == []
    assert a_start(disk).epoch == 8


def test_a_kernel_restart_without_a_clean_shutdown_is_unclean() -> None:
    disk = MemoryDisk()
    a_start(disk)

    assert a_start(disk, boot_id="boot-2").identity.is_unclean


def test_a_kernel_restart_after_a_clean_shutdown_is_clean() -> None:
    disk = MemoryDisk()
    a_start(disk).mark_clean_shutdown()

    assert not a_start(disk, boot_id="boot-2").identity.is_unclean


def test_a_store_stays_unclean_until_a_registration_has_told_it() -> None:
    disk = MemoryDisk()
    a_start(disk)
    a_start(disk, boot_id="boot-2").mark_clean_shutdown()  # no controller was reached

    again = a_start(disk, boot_id="boot-2")

    assert again.identity.is_unclean  # R13: what the power loss took is still missing
    again.join_cluster(cluster_id="one", replica_id=ReplicaId(1))
    assert not a_start(disk, boot_id="boot-2").identity.is_unclean


def test_raising_a_stale_incarnation_does_not_wash_off_a_power_loss() -> None:
    disk = MemoryDisk()
    a_start(disk)
    identity = a_start(disk, boot_id="boot-2")

    identity.begin_incarnation(group=GROUP, boot_id="boot-2", random=SeededRandom("again"))

    assert identity.identity.is_unclean


def test_a_damaged_identity_is_read_from_its_twin_and_never_guessed() -> None:
    disk = MemoryDisk()
    first = a_start(disk).identity
    file = disk.open("/data/identity.json")
    disk.writev(file, [b"\x00\x00"], 0)

    again = a_start(disk).identity

    assert (again.store_id, again.incarnation) == (first.store_id, first.incarnation + 1)
    for name in ("identity.json", "identity.json.copy"):
        disk.writev(disk.open(f"/data/{name}"), [b"\x00\x00"], 0)
    with pytest.raises(StorageError, match="damaged"):
        a_start(disk)


@pytest.mark.parametrize("name", ["epoch.json", "epoch.json.copy"])
async def test_the_epoch_is_known_as_long_as_one_of_its_files_is(name: str) -> None:
    """R2: never lower than what was adopted."""
    disk = MemoryDisk()
    await a_start(disk).adopt_epoch(MasterEpoch(7))
    disk.unlink(f"/data/{name}")
    assert a_start(disk).epoch == 7

    again = a_start(disk)
    assert len(again.replace_bad()) == 1
    assert again.replace_bad() == []


async def test_the_newest_intact_checkpoint_below_the_limit_is_taken() -> None:
    disk = MemoryDisk()
    folder = CheckpointFolder(disk, "/data/projections")
    await folder.write(PhysicalOffset(100), [b"one"], is_current=lambda: True)
    await folder.write(PhysicalOffset(200), [b"two"], is_current=lambda: True)

    assert _snapshot(folder, 1000) == b"two"
    assert _snapshot(folder, 199) == b"one"
    assert folder.newest(limit=PhysicalOffset(99)) is None

    file = disk.open("/data/projections/00000000000000000200.ckpt")
    disk.writev(file, [b"X"], 17)
    assert _snapshot(folder, 1000) == b"one"


async def test_checkpoints_beyond_the_recovered_end_are_dropped() -> None:
    folder = CheckpointFolder(MemoryDisk(), "/data/projections")
    await folder.write(PhysicalOffset(100), [b"one"], is_current=lambda: True)
    await folder.write(PhysicalOffset(200), [b"two"], is_current=lambda: True)

    folder.drop_beyond(PhysicalOffset(150))

    assert _snapshot(folder, 1000) == b"one"


async def test_a_checkpoint_of_a_log_that_was_cut_meanwhile_is_not_kept() -> None:
    disk = MemoryDisk()
    folder = CheckpointFolder(disk, "/data/projections")

    is_written = await folder.write(PhysicalOffset(100), [b"one"], is_current=lambda: False)

    assert not is_written
    assert disk.list("/data/projections") == []


async def test_a_checkpoint_keeps_the_loop_waiting_for_no_sync() -> None:
    """On a slow disk that would be a second in which the controllers hear no heartbeat."""
    disk, stood = MemoryDisk(), list[float]()
    folder = CheckpointFolder(disk, "/data/projections")
    disk.sync_delay_ms, disk.on_blocked = 7, stood.append

    assert await folder.write(PhysicalOffset(100), [b"one"], is_current=lambda: True)

    assert stood == []


async def test_a_log_that_was_cut_while_the_folder_was_synced_has_no_new_checkpoint() -> None:
    """Older ones, from which it can be folded, are kept."""
    disk, asked = MemoryDisk(), iter([True, False])
    folder = CheckpointFolder(disk, "/data/projections")
    for position in (100, 200):
        await folder.write(PhysicalOffset(position), [b"one"], is_current=lambda: True)

    is_written = await folder.write(PhysicalOffset(300), [b"x"], is_current=lambda: next(asked))

    assert not is_written
    assert _snapshot(folder, 150) == b"one"


class _SlicesDisk(MemoryDisk):
    """Notes how much each write has."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []

    def writev(self, file: File, buffers: Sequence[Buffer], at: int) -> int:
        self.written.append(super().writev(file, buffers, at))
        return self.written[-1]


async def test_a_large_checkpoint_is_written_while_others_have_their_turn() -> None:
    """Written at once it would stop the loop, and all deliveries, for a tenth of a second."""
    disk = _SlicesDisk()
    folder = CheckpointFolder(disk, "/data/projections")
    pieces = [bytes([at % 251]) * size for at, size in enumerate((1, 5000, 700_000, 0, 300_000))]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await pause(0)
            turns += bool(disk.written)

    other = spawn(others(), name="others")
    await folder.write(PhysicalOffset(100), pieces, is_current=lambda: True)
    await cancel_and_wait(other)

    assert _snapshot(folder, 1000) == b"".join(pieces)
    assert max(disk.written) < 2 * SLICE_BYTES
    assert len(disk.written) >= 7
    assert turns >= len(disk.written) - 1


async def test_a_checkpoint_that_finds_no_room_leaves_none_taken() -> None:
    """Each further one would leave another such file: the room is the log's."""
    disk = MemoryDisk()
    folder = CheckpointFolder(disk, "/data/projections")
    await folder.write(PhysicalOffset(100), [b"one"], is_current=lambda: True)
    before = disk.list("/data/projections")
    disk.capacity_bytes = 3 * SLICE_BYTES

    with pytest.raises(StorageError, match="no space left"):
        await folder.write(PhysicalOffset(200), [bytes(5 * SLICE_BYTES)], is_current=lambda: True)
    assert disk.list("/data/projections") == before

    disk.capacity_bytes = None
    disk.fail_next("sync")
    with pytest.raises(StorageError, match="input/output"):
        await folder.write(PhysicalOffset(200), [b"two"], is_current=lambda: True)
    assert disk.list("/data/projections") == before
    assert await folder.write(PhysicalOffset(200), [b"two"], is_current=lambda: True)


def _snapshot(folder: CheckpointFolder, limit: int) -> bytes:
    found = folder.newest(limit=PhysicalOffset(limit))
    assert found is not None
    return found.snapshot


@pytest.mark.parametrize("name", ["identity.json", "epoch.json"])
async def test_no_flipped_bit_of_the_small_files_is_believed(name: str) -> None:
    """R2, R9: a digit of an epoch or incarnation that became another one is still a number."""
    disk = MemoryDisk()
    await a_start(disk).adopt_epoch(MasterEpoch(7))
    disk.unlink(f"/data/{name}.copy")  # it would stand in (R24)
    file = disk.open(f"/data/{name}")
    size = disk.size(file)

    for byte in range(size):
        disk.flip_bit(f"/data/{name}", byte, 0)
        with pytest.raises(StorageError, match="damaged"):
            a_start(disk)
        disk.flip_bit(f"/data/{name}", byte, 0)
