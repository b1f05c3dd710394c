"""R9, R16, R21, R24: what a lone damaged broker cannot show any more is given up by an operator."""

import pytest
from tests.support.broker.brokers import DATA, GROUP, Broker, a_group, eventually, tell
from tests.support.replication.builders import a_view as a_group_view

from paceline.errors import ConfigError, CorruptLogError, StorageError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom, pause
from paceline.types import PhysicalOffset
from paceline_broker.integrity.salvage import StoppedStore
from paceline_broker.ports import RoleState
from paceline_broker.storage.identity import StoreIdentity

ALONE = frozenset({1})


async def _a_damaged_disk(*, at: int, batches: int = 20) -> tuple[MemoryDisk, PhysicalOffset, str]:
    """Of a broker that was master alone: where batch `at` began, and the store id it had."""
    broker = Broker(1)
    async with broker.running():
        tell(a_group(broker, sync_state_set=ALONE, minimum=1), 1, broker)
        await eventually(lambda: bool(broker.role.status()["is_open"]))
        for number in range(batches):
            broker.send(bytes([number + 1]) * 3000)
            await pause(0)
        await eventually(lambda: broker.store.log.confirm == broker.store.log.end)
        headers = [header for header, _ in broker.store.log.batches(PhysicalOffset(0))]
        position = PhysicalOffset(headers[at].physical_offset)
        segment = broker.store.log._segments.locate(position)
        broker.disk.flip_bit(segment.path, position - segment.first + 100)
        broker.store.log.note_damage(position, "a test says so")
        store_id = broker.identity.identity.store_id
    broker.store.close(clean=False)
    return broker.disk, position, store_id


async def test_the_log_is_cut_where_the_damage_begins_and_the_store_is_another_one() -> None:
    disk, position, store_id = await _a_damaged_disk(at=7)

    store = StoppedStore(disk, DATA)
    state = store.state
    store.give_up(SeededRandom("operator"))
    store.close()

    assert (state.end, state.group, state.replica_id) == (position, GROUP, 1)
    assert state.durable >= state.confirm > position
    assert state.damage is not None
    again = Broker(1, disk=disk)
    assert again.identity.identity.store_id != store_id
    assert again.identity.identity.replica_id == 1
    assert again.store.log.damage is None
    assert again.store.log.end == again.store.log.confirm == position
    assert again.store.projections.position == position


async def test_it_leads_again_in_an_unclean_epoch_only() -> None:
    disk, position, _ = await _a_damaged_disk(at=7)
    damaged = Broker(1, disk=disk)
    async with damaged.running():
        tell(a_group(damaged, sync_state_set=ALONE, minimum=1, epoch=50), 9, damaged)
        await eventually(lambda: damaged.role.state is RoleState.FENCED)
        assert not damaged.role.is_healthy(), "so no election takes it, not even an unclean one"
    damaged.store.close(clean=False)
    store = StoppedStore(disk, DATA)
    store.give_up(SeededRandom("operator"))
    store.close()
    broker = Broker(1, disk=disk)
    async with broker.running():
        group = a_group(broker, sync_state_set=ALONE, minimum=1, epoch=51, is_unclean=True)

        tell(group, 10, broker)

        await eventually(lambda: bool(broker.role.status()["is_open"]))
        assert broker.role.is_healthy()
        assert broker.store.log.epochs.start_of(broker.role.epoch) == position
        end = broker.send(b"after")
        await eventually(lambda: broker.store.log.confirm == end)


async def test_a_view_of_before_its_registration_names_the_old_store_and_stops_nobody() -> None:
    """It was taken for another process with the same folder."""
    disk, _, store_id = await _a_damaged_disk(at=7)
    store = StoppedStore(disk, DATA)
    store.give_up(SeededRandom("operator"))
    store.close()
    broker = Broker(1, disk=disk)
    async with broker.running():
        tell(a_group_view(sync_state_set=ALONE, minimum=1), 9, broker)
        for _ in range(5):
            await pause(0)

        assert broker.fatal is None


@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_a_crash_on_the_way_leaves_a_store_that_nobody_takes_for_whole(steps: int) -> None:
    disk, position, store_id = await _a_damaged_disk(at=7)
    store = StoppedStore(disk, DATA)
    names = ("replace_store_id", "drop_beyond", "truncate_to")
    owners = (store._identity, store._checkpoints, store._log)

    def crash(*_: object, **__: object) -> None:
        raise StorageError("the machine dies")

    if steps < len(names):
        setattr(owners[steps], names[steps], crash)
        with pytest.raises(StorageError):
            store.give_up(SeededRandom("operator"))
    else:
        store.give_up(SeededRandom("operator"))
    disk.crash(SeededRandom("power"), keep_page_cache=False)

    again = Broker(1, disk=disk)

    assert again.identity.identity.store_id != store_id
    assert (again.store.log.damage is None) == (steps == len(names))
    assert again.store.log.end == position


async def test_a_whole_log_gives_nothing_up() -> None:
    broker = Broker(1)
    broker.store.close(clean=False)
    store = StoppedStore(broker.disk, DATA)

    with pytest.raises(CorruptLogError, match="nothing to give up"):
        store.give_up(SeededRandom("operator"))

    store.close()
    identity = StoreIdentity(broker.disk, DATA).load()
    assert identity is not None
    assert identity.store_id == broker.identity.identity.store_id


async def test_a_folder_in_use_or_without_a_store_is_refused() -> None:
    broker = Broker(1)
    with pytest.raises(StorageError, match="in use"):
        StoppedStore(broker.disk, DATA)
    empty = MemoryDisk()
    empty.make_folder(DATA)
    with pytest.raises(ConfigError, match="holds no store"):
        StoppedStore(empty, DATA)
    with pytest.raises(ConfigError, match="holds no store"):  # the lock was let go
        StoppedStore(empty, DATA)
