"""A store that stood still comes back by itself, once nobody counts on it (R5, R14, R16)."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.support.broker.brokers import DATA, Broker, a_group, eventually, tell
from tests.support.broker.install import ALONE, _content, _follow, _is_caught_up, a_master_above_0

from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.runtime import SeededRandom, pause
from paceline.types import PhysicalOffset
from paceline.wire.cluster import GroupView
from paceline_broker.log.layout import segment_name
from paceline_broker.ports import RoleState
from paceline_broker.storage.store import Store

BODIES = [bytes([number + 1]) * 9000 for number in range(20)]


async def _lead_alone(broker: Broker, *, epoch: int, bodies: Iterable[bytes]) -> None:
    """A master of a set of its own: all that it sends is confirmed."""
    own = frozenset({int(broker.number)})
    tell(
        a_group(broker, epoch=epoch, master=broker.number, minimum=1, sync_state_set=own),
        epoch,
        broker,
    )
    await eventually(lambda: broker.role.state is RoleState.MASTER and broker.mastership.is_open)
    for body in bodies:
        broker.send(body)
    await eventually(lambda: broker.store.log.confirm == broker.store.log.end)


async def _with_a_past(*, epoch: int = 2, bodies: Iterable[bytes] = BODIES) -> Broker:
    """Replica 2, not running, with confirmed records that nobody else has."""
    old = Broker(2)
    async with old.running():
        await _lead_alone(old, epoch=epoch, bodies=bodies)
        old.store.begin_checkpoint()
        assert await old.store.finish_checkpoint()
    old.store.close(clean=True)
    return Broker(2, disk=old.disk)


def _a_pair(master: Broker, other: Broker, *, members: Iterable[int], set_epoch: int) -> GroupView:
    group = a_group(
        master,
        other,
        epoch=5,
        minimum=1,
        sync_state_set=frozenset(members),
        set_epoch=set_epoch,
    )
    known = {**group.replicas, other.number: replace(group.replicas[other.number], is_learner=True)}
    return replace(group, replicas=known)


def _aside(disk: MemoryDisk, folder: str = "log") -> bytes:
    """What was set aside, in order."""
    content = b""
    for name in disk.list(f"{DATA}/{folder}"):
        if name.endswith(".aside"):
            file = disk.open(f"{DATA}/{folder}/{name}")
            content += disk.pread(file, disk.size(file), 0)
    return content


async def test_who_confirmed_what_its_master_lacks_sets_it_aside_once_it_is_no_member() -> None:
    master, replica = Broker(1), await _with_a_past(bodies=BODIES[:2])
    old, end = _content(replica), replica.store.log.end
    async with master.running(), replica.running():
        await _lead_alone(master, epoch=1, bodies=BODIES)
        tell(_a_pair(master, replica, members={1, 2}, set_epoch=6), 6, master, replica)

        await eventually(lambda: replica.role.exclusion.reason is not None)
        await pause(50)
        assert not replica.role.is_healthy()
        assert _content(replica) == old, "R16: a member stands still"
        tell(_a_pair(master, replica, members={1}, set_epoch=7), 7, master, replica)

        await eventually(lambda: replica.store.log.confirm == master.store.log.end > end)
        assert _content(replica) == _content(master)
        assert replica.role.is_healthy()
        assert replica.store.projections.snapshot() == master.store.projections.snapshot()
        assert old in _aside(replica.disk), "the only copy is kept"
        assert _aside(replica.disk, "projections")
    replica.store.close(clean=True)
    again = Broker(2, disk=replica.disk)
    assert again.store.report.damage is None
    assert again.store.projections.position == again.store.log.confirm


async def test_who_becomes_a_member_again_while_it_leaves_its_role_sets_nothing_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R16: what the view says is asked after the wait."""
    master, replica = Broker(1), await _with_a_past(bodies=BODIES[:2])
    old, leave = _content(replica), replica.role._leave
    async with master.running(), replica.running():
        await _lead_alone(master, epoch=1, bodies=BODIES)
        tell(_a_pair(master, replica, members={1, 2}, set_epoch=6), 6, master, replica)
        await eventually(lambda: replica.role.exclusion.reason is not None)

        async def leave_slowly(reason: str) -> None:
            await leave(reason)
            if reason == "it comes back":
                tell(_a_pair(master, replica, members={1, 2}, set_epoch=8), 8, master, replica)

        monkeypatch.setattr(replica.role, "_leave", leave_slowly)
        tell(_a_pair(master, replica, members={1}, set_epoch=7), 7, master, replica)
        await eventually(lambda: replica.role.view is not None and replica.role.view.version == 8)
        await pause(50)

        assert _content(replica) == old
        assert replica.role.exclusion.reason is not None


async def test_a_master_that_was_a_stale_copy_follows_its_successor() -> None:
    """R16: LOSSY, and then a replica like any other."""
    stale, master = Broker(2), Broker(1)
    async with stale.running(), master.running():
        await _lead_alone(stale, epoch=1, bodies=BODIES[:1])
        stale.role.mastership_fenced(stale.mastership, "a stale copy", is_lossy=True)
        assert not stale.role.is_healthy()
        await _lead_alone(master, epoch=4, bodies=BODIES)
        tell(_a_pair(master, stale, members={1, 2}, set_epoch=6), 6, master, stale)
        await eventually(lambda: stale.role.epoch == 5)
        await pause(50)
        assert stale.role.state is RoleState.FENCED
        assert stale.role.exclusion.reason is not None, "a member: the operator decides"

        tell(_a_pair(master, stale, members={1}, set_epoch=7), 7, master, stale)

        await eventually(lambda: stale.store.log.confirm == master.store.log.end)
        assert _content(stale) == _content(master)
        assert stale.role.is_healthy()


async def test_a_failed_disk_never_comes_back_by_itself() -> None:
    """R22."""
    master, replica = Broker(1), Broker(2)
    async with master.running(), replica.running():
        await _lead_alone(master, epoch=1, bodies=[])
        tell(_a_pair(master, replica, members={1}, set_epoch=6), 6, master, replica)
        await eventually(lambda: bool(replica.role.status()["is_connected"]))
        replica.disk.fail_next("sync")
        master.send()
        await eventually(lambda: replica.role.exclusion.reason is not None)

        replica.role.replica_stopped("it also parted")
        tell(_a_pair(master, replica, members={1}, set_epoch=7), 7, master, replica)
        await pause(50)

        assert not replica.role.is_healthy()
        assert not replica.role.status()["is_connected"]


async def test_a_log_above_0_without_a_checkpoint_starts_does_not_lead_and_comes_back() -> None:
    """R14: as ADR 12's start: registered as suspect, no leader, whole from its master."""
    first = Broker(2)
    async with a_master_above_0() as bench:
        async with first.running():
            await _follow(bench, first)
            await _is_caught_up(bench, first)
        first.store.close(clean=True)
        for name in first.disk.list(f"{DATA}/projections"):
            first.disk.flip_bit(f"{DATA}/projections/{name}", 30)

        replica = Broker(2, disk=first.disk)

        assert replica.store.log.start > 0
        assert replica.store.is_suspect
        assert not replica.role.is_healthy()
        async with replica.running():
            lead = a_group(replica, epoch=4, master=2, minimum=1, sync_state_set=frozenset({2}))
            tell(lead, 2, replica)
            await eventually(lambda: replica.role.state is RoleState.FENCED)
            assert replica.role.mastership is None
            group = a_group(bench.broker, replica, epoch=5, minimum=1, sync_state_set=ALONE)
            known = replace(group.replicas[replica.number], is_learner=True)
            group = replace(group, replicas={**group.replicas, replica.number: known})
            tell(group, 3, bench.broker, replica)
            await _is_caught_up(bench, replica)

            assert _content(replica) == _content(bench.broker)
            assert replica.store.projections.snapshot() == bench.store.projections.snapshot()
            assert replica.role.is_healthy()
            assert not replica.store.is_suspect


async def test_a_log_without_a_common_epoch_is_set_aside_by_an_install() -> None:
    """R5: it is not part of the master's; one that only lags behind is, and is dropped."""
    replica = await _with_a_past(epoch=1, bodies=BODIES[:3])
    old = _content(replica)
    async with a_master_above_0() as bench, replica.running():
        assert not set(replica.store.log.epochs.entries) & set(bench.store.log.epochs.entries)
        await _follow(bench, replica)
        await _is_caught_up(bench, replica)

        assert _content(replica) == _content(bench.broker)
        assert old in _aside(replica.disk)


async def _with_its_first_segment_lost() -> Broker:
    """Replica 2, not running, damaged at 0: what follows is whole."""
    past = await _with_a_past(epoch=1)
    assert len(past.store.log.segment_bounds()) > 1
    past.store.close(clean=True)
    past.disk.lose(f"{DATA}/log/{segment_name(PhysicalOffset(0))}")
    damaged = Broker(2, disk=past.disk)
    assert damaged.store.log.damage is not None
    return damaged


async def test_damage_that_retention_has_taken_everywhere_else_is_set_aside() -> None:
    """R24, R26: nobody can mend it any more; it waited for ever, and its group lacked a member."""
    replica = await _with_its_first_segment_lost()
    async with a_master_above_0() as bench, replica.running():
        await _follow(bench, replica)
        await _is_caught_up(bench, replica)

        assert _content(replica) == _content(bench.broker)
        assert replica.role.is_healthy()
        assert replica.store.log.damage is None
        assert BODIES[-1] in _aside(replica.disk), "what was whole is kept"
    replica.store.close(clean=True)
    again = Broker(2, disk=replica.disk)
    assert again.store.report.damage is None
    assert again.store.projections.position == again.store.log.confirm


async def test_a_member_keeps_what_is_beyond_repair() -> None:
    """R16: the set may need what is whole of it; a master that can do without leaves it out."""
    replica = await _with_its_first_segment_lost()
    async with a_master_above_0() as bench, replica.running():
        group = a_group(bench.broker, replica, minimum=1, sync_state_set=frozenset({1, 2}))
        tell(group, 2, replica)
        await eventually(lambda: replica.role.exclusion.reason is not None)
        tell(group, 3, replica)
        await pause(50)

        assert replica.store.log.damage is not None
        assert not _aside(replica.disk)
        assert not replica.role.is_healthy()


@pytest.mark.parametrize("survival", [0.0, 1.0])
async def test_a_crash_at_any_point_of_setting_damage_aside_leaves_it_damaged_or_empty(
    survival: float,
) -> None:
    ends = set()
    for fuse in range(45):
        replica = await _with_its_first_segment_lost()
        replica.disk.fuse = fuse
        with suppress(PowerLost):
            replica.store.set_aside()
        replica.disk.crash(SeededRandom(f"{fuse}"), keep_page_cache=False, survival=survival)

        again = Broker(2, disk=replica.disk).store

        is_damaged = again.log.damage is not None
        assert is_damaged or again.log.end == 0, fuse
        assert again.projections.position == 0, fuse
        ends.add(is_damaged)
    assert ends == {False, True}


def _kept(store: Store, disk: MemoryDisk) -> bytes:
    return b"".join(bytes(batch) for _, batch in store.log.batches(store.log.start)) + _aside(disk)


@pytest.mark.parametrize("survival", [0.0, 0.5, 1.0])
async def test_a_crash_at_any_point_of_setting_aside_loses_nothing(survival: float) -> None:
    seen = set()
    for fuse in range(45):
        replica = await _with_a_past()
        old, end = _content(replica), replica.store.log.end
        replica.disk.fuse = fuse
        with suppress(PowerLost):
            replica.store.set_aside()
        replica.disk.crash(SeededRandom(f"{fuse}"), keep_page_cache=False, survival=survival)

        again = Broker(2, disk=replica.disk).store

        assert again.report.damage is None, fuse
        assert again.log.end in (0, end), fuse
        assert again.projections.position == again.log.confirm
        kept = _kept(again, replica.disk)
        assert all(body in kept for body in BODIES), fuse
        if again.log.end == end:
            assert _content_of(again) == old
        seen.add(int(again.log.end))
    assert seen == {0, int(end)}


def _content_of(store: Store) -> bytes:
    return b"".join(bytes(batch) for _, batch in store.log.batches(store.log.start))


async def test_one_copy_is_kept_and_an_empty_log_does_not_replace_it() -> None:
    replica = await _with_a_past(bodies=[b"first" * 1000])
    replica.store.set_aside()
    replica.store.set_aside()
    assert b"first" * 1000 in _aside(replica.disk)
    async with replica.running():
        await _lead_alone(replica, epoch=7, bodies=[b"second" * 1000])
    replica.store.set_aside()

    assert b"second" * 1000 in _aside(replica.disk)
    assert b"first" not in _aside(replica.disk)
    assert replica.store.log.end == PhysicalOffset(0)
