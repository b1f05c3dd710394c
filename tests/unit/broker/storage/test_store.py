"""The store: checkpoints and projections stay those of the log that is there."""

import asyncio

from tests.support.broker.brokers import Broker, a_group, eventually, tell

from paceline.platform.disk_memory import MemoryDisk
from paceline.types import PhysicalOffset
from paceline_broker.ports import RoleState

ALONE = frozenset({1})
FOLDER = "/data/projections"


async def _lead_and_send(broker: Broker, *, epoch: int, bodies: int) -> PhysicalOffset:
    tell(a_group(broker, sync_state_set=ALONE, minimum=1, epoch=epoch), epoch, broker)
    await eventually(lambda: broker.role.state is RoleState.MASTER)
    await eventually(lambda: broker.mastership.is_open)
    start = broker.store.log.end
    for _ in range(bodies):
        broker.send(b"epoch %d" % epoch)
    end = broker.store.log.end
    await eventually(lambda: broker.store.log.confirm == end)
    return start


def _checkpoints(disk: MemoryDisk) -> list[int]:
    return [int(name[:20]) for name in disk.list(FOLDER)]


async def test_a_checkpoint_of_cut_records_is_never_loaded_over_others_at_its_position() -> None:
    disk = MemoryDisk()
    broker = Broker(disk=disk)
    async with broker.running():
        start = await _lead_and_send(broker, epoch=1, bodies=4)
        broker.store.begin_checkpoint()
        assert await broker.store.finish_checkpoint()
        tell(a_group(broker, master=2, epoch=2), 2, broker)  # an unclean election of another
        await eventually(lambda: broker.role.epoch == 2)
        broker.role.replica_truncating(start)
        broker.store.log.truncate_to(start, allow_below_confirm=True)  # R16, R21

        await _lead_and_send(broker, epoch=3, bodies=6)  # other records, beyond that position
        expected = broker.store.projections.snapshot()
    broker.store.close(clean=True)
    again = Broker(disk=disk)

    assert again.store.projections.snapshot() == expected  # INV-9


async def test_a_checkpoint_being_written_does_not_outlive_a_truncation() -> None:
    disk = MemoryDisk()
    broker = Broker(disk=disk)
    async with broker.running():
        start = await _lead_and_send(broker, epoch=1, bodies=4)
        tell(a_group(broker, master=2, epoch=2), 2, broker)
        await eventually(lambda: broker.role.epoch == 2)
        broker.store.begin_checkpoint()
        disk.sync_delay_ms = 20

        async def cut() -> None:
            await eventually(lambda: any(name.endswith(".new") for name in disk.list(FOLDER)))
            broker.role.replica_truncating(start)
            broker.store.log.truncate_to(start, allow_below_confirm=True)

        is_written, _ = await asyncio.gather(broker.store.finish_checkpoint(), cut())

        assert not is_written
        assert _checkpoints(disk) == []
        assert broker.store.checkpointed == 0
