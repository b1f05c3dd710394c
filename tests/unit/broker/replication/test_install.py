"""A replica below its master's log start: the master's checkpoint, then the log (R5, R14, R16)."""

from contextlib import suppress

import pytest
from tests.support.broker.brokers import DATA, Broker, a_group, eventually, tell
from tests.support.broker.cleaner import Bench
from tests.support.broker.install import (
    _content,
    _follow,
    _is_caught_up,
    _with_learner,
    a_master_above_0,
)

from paceline.errors import CorruptLogError
from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.runtime import SeededRandom
from paceline.types import PhysicalOffset
from paceline_broker.ports import RoleState
from paceline_broker.storage.checkpoints import CheckpointFolder


async def test_an_empty_replica_installs_the_checkpoint_and_replays() -> None:
    replica = Broker(2)
    async with a_master_above_0() as bench, replica.running():
        await _follow(bench, replica)
        await _is_caught_up(bench, replica)

        assert replica.store.log.start == bench.store.log.start
        assert _content(replica) == _content(bench.broker)
        assert replica.store.log.epochs == bench.store.log.epochs
        assert replica.store.projections.snapshot() == bench.store.projections.snapshot()
        end = bench.broker.send(b"after")
        await eventually(lambda: replica.store.projections.position == end)
        assert replica.role.is_healthy()


async def test_what_was_installed_outlives_a_restart_and_can_lead() -> None:
    replica = Broker(2)
    async with a_master_above_0() as bench, replica.running():
        await _follow(bench, replica)
        await _is_caught_up(bench, replica)
        state = bench.store.projections.snapshot()
        start, position = bench.store.log.start, bench.store.log.end
    replica.disk.crash(SeededRandom("kill"), keep_page_cache=True)

    again = Broker(2, disk=replica.disk)
    again.store.fold_to(position)

    assert again.store.log.start == start
    assert again.store.projections.snapshot() == state
    async with again.running():
        tell(a_group(again, epoch=9, master=2, minimum=1, sync_state_set=frozenset({2})), 9, again)
        await eventually(lambda: again.role.state is RoleState.MASTER and again.mastership.is_open)


async def test_a_replica_that_was_away_too_long_gives_up_what_it_has() -> None:
    replica = Broker(2)
    master = Broker(1)
    async with master.running(), replica.running():
        tell(_with_learner(master, replica), 1, master, replica)
        await eventually(
            lambda: master.role.state is RoleState.MASTER and master.mastership.is_open
        )
        bench = Bench(master, file_reserved_time_ms=1000)
        await bench.fill(3)
        await _is_caught_up(bench, replica)
        await replica.role.stop()  # it is away
        await bench.fill()
        await bench.checkpoint()
        await bench.clean()
        assert bench.store.log.start > replica.store.log.end

        replica.store.close(clean=True)
        again = Broker(2, disk=replica.disk)
        async with again.running():
            await _follow(bench, again)
            await _is_caught_up(bench, again)

            assert again.store.log.start == bench.store.log.start
            assert _content(again) == _content(master)
            assert again.store.projections.snapshot() == bench.store.projections.snapshot()


async def test_a_member_below_the_start_is_refused() -> None:
    """R5: a member in that state stops for the operator; nothing it holds is thrown away."""
    replica = Broker(2)
    async with a_master_above_0(replica) as bench, replica.running():
        both = frozenset({1, 2})
        group = a_group(bench.broker, replica, minimum=1, sync_state_set=both, set_epoch=9)
        tell(group, 2, bench.broker, replica)
        await eventually(lambda: bench.broker.mastership.term.sync_state_set == both)
        await eventually(lambda: replica.role.state is RoleState.REPLICA)
        assert replica.store.log.end == replica.store.log.start == 0


@pytest.mark.parametrize("survival", [0.0, 0.5, 1.0])
async def test_a_crash_at_any_point_leaves_the_old_store_or_the_new(survival: float) -> None:
    """R14: the own checkpoint is never dropped before the new one is durable."""
    async with a_master_above_0() as bench:
        found = bench.store.newest_checkpoint()
        assert found is not None
        position, content = found
        start, epochs = bench.store.log.start, bench.store.log.epochs
    seen = set()
    for fuse in range(60):
        disk = MemoryDisk()
        old = Broker(2, disk=disk)
        await _leave_checkpoint(old, position - 8)
        await _leave_checkpoint(old, position + 8)
        disk.fuse = fuse
        with suppress(PowerLost):
            received = old.store.begin_receiving(position)
            received.write(content)
            received.sync_now()
            old.store.install(received, start=start, epochs=epochs)
        disk.crash(SeededRandom(f"{fuse}"), keep_page_cache=False, survival=survival)

        again = Broker(2, disk=disk).store  # opens, whatever the crash left

        is_new = again.log.start > 0
        assert not is_new or _checkpoints(disk) == [f"{position:020d}.ckpt"], fuse
        seen.add(int(again.log.start))
        assert again.log.start in (0, start)
        assert again.projections.position == (position if again.log.start else 0), fuse
        assert again.report.damage is None
    assert seen == {0, int(start)}


async def test_no_checkpoint_of_what_was_given_up_comes_back_after_a_power_loss() -> None:
    """R14: the log has grown beyond it by then, and it would be loaded as the newest."""
    async with a_master_above_0() as bench:
        found = bench.store.newest_checkpoint()
        assert found is not None
        start, epochs = bench.store.log.start, bench.store.log.epochs
    replica = Broker(2)
    await _leave_checkpoint(replica, found[0] + 8)
    received = replica.store.begin_receiving(found[0])
    received.write(found[1])
    received.sync_now()

    replica.store.install(received, start=start, epochs=epochs)
    replica.disk.crash(SeededRandom("power"), keep_page_cache=False, survival=0.0)

    assert _checkpoints(replica.disk) == [f"{found[0]:020d}.ckpt"]


async def _leave_checkpoint(broker: Broker, position: int) -> None:
    folder = CheckpointFolder(broker.disk, f"{DATA}/projections")
    content = broker.store.projections.snapshot()
    assert await folder.write(PhysicalOffset(position), [content], is_current=lambda: True)


def _checkpoints(disk: MemoryDisk) -> list[str]:
    return disk.list(f"{DATA}/projections")


async def test_a_state_ahead_of_its_log_cannot_lead() -> None:
    """R14: elected unclean before the log has come as far as the checkpoint, it stays out."""
    async with a_master_above_0() as bench:
        found = bench.store.newest_checkpoint()
        assert found is not None
        start, epochs = bench.store.log.start, bench.store.log.epochs
    replica = Broker(2)
    received = replica.store.begin_receiving(found[0])
    received.write(found[1])
    received.sync_now()
    replica.store.install(received, start=start, epochs=epochs)
    async with replica.running():
        group = a_group(replica, epoch=9, master=2, minimum=1, sync_state_set=frozenset({2}))
        tell(group, 9, replica)
        await eventually(lambda: replica.role.state is RoleState.FENCED)
        assert not replica.role.is_healthy()


async def test_a_checkpoint_that_is_not_what_it_says_changes_nothing() -> None:
    async with a_master_above_0() as bench:
        found = bench.store.newest_checkpoint()
        assert found is not None
        start, epochs = bench.store.log.start, bench.store.log.epochs
    replica = Broker(2)
    before = replica.disk.list(f"{DATA}/log")
    damaged = found[1][:100] + bytes([found[1][100] ^ 1]) + found[1][101:]
    for position, content in ((found[0], damaged), (PhysicalOffset(found[0] + 8), found[1])):
        received = replica.store.begin_receiving(position)
        received.write(content)
        received.sync_now()
        with pytest.raises(CorruptLogError):
            replica.store.install(received, start=start, epochs=epochs)
    assert replica.disk.list(f"{DATA}/log") == before
    assert replica.store.log.start == replica.store.log.end == 0
