"""R24: damage is found, kept from readers, mended by peers; nobody leads with it."""

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.broker.brokers import DATA, Broker, a_group, eventually, tell

from paceline.errors import CorruptLogError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom, pause
from paceline.platform.telemetry import Metrics
from paceline.records.header import HEADER_BYTES
from paceline.types import PhysicalOffset
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.layout import segment_name
from paceline_broker.metrics.integrity import register_repairs
from paceline_broker.ports import RoleState
from paceline_broker.projections.projections import Projections, needs_payload

LOG = f"{DATA}/log"
BOTH = frozenset({1, 2})


def _content(log: CommitLog) -> bytes:
    return b"".join(bytes(batch) for _, batch in log.batches(log.start))


def _positions(log: CommitLog) -> list[PhysicalOffset]:
    return [PhysicalOffset(header.physical_offset) for header, _ in log.batches(log.start)]


def _path(first: int) -> str:
    return f"{LOG}/{segment_name(PhysicalOffset(first))}"


def _flip(broker: Broker, position: int, byte: int = 100) -> None:
    """Change one bit of the batch at `position`, in the cache and on the disk."""
    segment = broker.store.log._segments.locate(PhysicalOffset(position))
    broker.disk.flip_bit(segment.path, position - segment.first + byte)


async def _fill(master: Broker, replica: Broker, *, batches: int = 60) -> None:
    pair = a_group(master, replica, sync_state_set=BOTH)
    tell(pair, 1, master, replica)
    await eventually(lambda: bool(master.role.status()["is_open"]))
    for number in range(batches):
        master.send(bytes([number + 1]) * 3000)
        await pause(0)
    await eventually(lambda: replica.store.log.confirm == master.store.log.end)


async def test_a_flip_found_by_the_scrubber_of_a_replica_is_mended_from_its_master() -> None:
    master, replica = Broker(1), Broker(2)
    async with master.running(), replica.running():
        await _fill(master, replica)
        log = replica.store.log
        good, position = _content(log), _positions(log)[5]
        _flip(replica, position)

        replica.role.repairer.scrubber.look_at(position)

        await eventually(lambda: replica.role.repairer.repaired_count == 1)
        assert _content(log) == good
        await eventually(lambda: bool(replica.role.status()["is_connected"]))
        assert replica.role.is_healthy()
        end = master.send(b"after")
        await eventually(lambda: replica.store.log.confirm == end == master.store.log.confirm)
        (kept,) = replica.disk.list(f"{DATA}/quarantine")
        figures = _figures(replica)
        assert figures["paceline_log_is_damaged"] == 0
        assert figures["paceline_log_damages_total"] == 1
        assert figures["paceline_log_repairs_total"] == 1
        assert figures["paceline_log_quarantine_files_count"] == 1
        file = replica.disk.open(f"{DATA}/quarantine/{kept}")
        assert figures["paceline_log_quarantine_bytes"] == replica.disk.size(file)
        assert figures["paceline_log_repaired_bytes_total"] == replica.disk.size(file)
        assert replica.role.status()["care"]["quarantine_files"] == 1


def _figures(broker: Broker) -> dict[str, float]:
    metrics = Metrics(cluster="c", node_type="broker", node_id="b")
    register_repairs(metrics, broker.role.repairer)
    families = text_string_to_metric_families(metrics.exposition()[0].decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


async def test_a_damaged_replica_acknowledges_nothing_and_is_read_by_nobody_there() -> None:
    master, replica = Broker(1), Broker(2)
    async with master.running(), replica.running():
        await _fill(master, replica)
        position = _positions(replica.store.log)[5]
        _flip(replica, position)
        await master.server.stop()  # nobody mends it

        replica.role.repairer.damaged(position, "a test says so")
        replica.role.repairer.damaged(position, "and another reader")

        figures = _figures(replica)
        assert figures["paceline_log_is_damaged"] == 1
        assert figures["paceline_log_damages_total"] == 1, "it is one place"

        assert not replica.role.is_healthy()
        assert replica.role.reader.is_damaged(position, PhysicalOffset(position + 1))
        assert not replica.role.reader.is_damaged(PhysicalOffset(0), position)
        await eventually(lambda: not replica.role.status()["is_connected"])
        heartbeat = replica.role.heartbeat()
        assert heartbeat is not None
        assert not heartbeat.is_healthy
        before = master.store.log.confirm
        end = master.send(b"after")
        await pause(20)
        assert before == master.store.log.confirm < end


async def test_a_member_that_is_mended_after_all_goes_on() -> None:
    """A master's log begins above the damage, and another member has the bytes still."""
    master, replica = Broker(1), Broker(2)
    async with master.running(), replica.running():
        await _fill(master, replica)
        position = _positions(replica.store.log)[5]
        _flip(replica, position)

        replica.role.repairer.damaged(position, "a test says so")
        replica.role.log_beyond_repair("its master says that it is deleted")
        assert not replica.role.is_healthy()

        await eventually(lambda: replica.role.repairer.repaired_count == 1)
        await eventually(lambda: bool(replica.role.status()["is_connected"]))
        assert replica.role.is_healthy()
        assert replica.role.exclusion.reason is None
        end = master.send(b"after")
        await eventually(lambda: replica.store.log.confirm == end)


async def test_a_damaged_replica_that_is_elected_does_not_lead() -> None:
    """R24: the controllers may have decided before they heard."""
    master, replica = Broker(1), Broker(2)
    async with master.running(), replica.running():
        await _fill(master, replica)
        position = _positions(replica.store.log)[5]
        _flip(replica, position)
        await master.server.stop()
        replica.role.repairer.damaged(position, "a test says so")

        tell(a_group(master, replica, epoch=4, master=2, sync_state_set=BOTH), 2, replica)

        await eventually(lambda: replica.role.epoch == 4)
        await eventually(lambda: replica.role.state is RoleState.FENCED)
        assert replica.role.mastership is None


async def test_a_master_that_finds_damage_steps_down_and_is_mended_by_its_successor() -> None:
    master, replica = Broker(1), Broker(2)
    async with master.running(), replica.running():
        await _fill(master, replica)
        good, position = _content(master.store.log), _positions(master.store.log)[5]
        _flip(master, position)

        master.role.repairer.scrubber.look_at(position)

        await eventually(lambda: any(r.kind == "step_down" for r in master.controllers.requests))
        assert not master.role.is_healthy()
        pair = a_group(master, replica, epoch=4, master=2, sync_state_set=BOTH)
        tell(pair, 2, replica, master)
        await eventually(lambda: master.role.repairer.repaired_count == 1)
        await eventually(lambda: master.role.state is RoleState.REPLICA)
        assert _content(master.store.log)[: len(good)] == good
        await eventually(lambda: master.store.log.confirm == replica.store.log.end)


async def test_a_master_whom_nobody_replaces_fences_itself_with_its_damage() -> None:
    master, replica = Broker(1), Broker(2)
    async with master.running(), replica.running():
        await _fill(master, replica)
        position = _positions(master.store.log)[5]
        _flip(master, position)
        master.controllers.result = {"ok": False, "reason": "NO_CANDIDATE"}

        master.role.repairer.scrubber.look_at(position)

        await eventually(lambda: master.role.state is RoleState.FENCED)
        assert master.role.mastership is None


async def test_two_damaged_members_without_a_master_mend_each_other() -> None:
    one, two = Broker(1), Broker(2)
    async with one.running(), two.running():
        await _fill(one, two)
        good = _content(one.store.log)
        positions = _positions(one.store.log)
        for broker in (one, two):
            broker.store.log.flush_now()
            broker.store.log.save_checkpoint()
        _flip(one, positions[5])
        _flip(two, positions[20])
        vacant = a_group(one, two, epoch=3, master=None, sync_state_set=BOTH)
        tell(vacant, 2, one, two)
        await eventually(lambda: one.role.mastership is None)

        one.role.repairer.scrubber.look_at(positions[5])
        two.role.repairer.scrubber.look_at(positions[20])

        await eventually(
            lambda: one.role.repairer.repaired_count + two.role.repairer.repaired_count == 2
        )
        assert _content(one.store.log) == _content(two.store.log) == good
        assert one.role.is_healthy()
        assert two.role.is_healthy()


async def test_what_is_damaged_on_both_sides_is_never_served_and_stays_damaged() -> None:
    master, replica = Broker(1), Broker(2)
    async with master.running(), replica.running():
        await _fill(master, replica)
        position = _positions(master.store.log)[5]
        _flip(master, position, byte=100)
        _flip(replica, position, byte=120)

        replica.role.repairer.scrubber.look_at(position)

        # Asked for its bytes, the master finds its own damage.
        await eventually(lambda: master.store.log.damage is not None)
        await eventually(lambda: master.role.mastership is None)
        for broker in (master, replica):
            assert broker.role.repairer.repaired_count == 0
            assert not broker.role.is_healthy()
            assert broker.role.reader.is_damaged(position, PhysicalOffset(position + 1))
            status = broker.role.status()["care"]["damage"]
            assert status["position"] == position


def _lose_a_segment(disk: MemoryDisk, firsts: list[int]) -> None:
    disk.unlink(_path(firsts[1]))


def _lose_all_segments(disk: MemoryDisk, firsts: list[int]) -> None:
    for first in firsts:
        disk.unlink(_path(first))


def _zero_a_stretch(disk: MemoryDisk, firsts: list[int]) -> None:
    file = disk.open(_path(firsts[-1]))
    disk.writev(file, [bytes(4000)], 0)
    disk.sync_now(file)


def _cut_a_file_short(disk: MemoryDisk, firsts: list[int]) -> None:
    disk.truncate(disk.open(_path(firsts[0])), 5000)


def _damage_side_files(disk: MemoryDisk, firsts: list[int]) -> None:
    for path in (f"{LOG}/checkpoint.json", f"{DATA}/identity.json", f"{DATA}/epoch.json"):
        disk.flip_bit(path, 12)


def _wipe_the_log(disk: MemoryDisk, firsts: list[int]) -> None:
    _lose_all_segments(disk, firsts)
    disk.unlink(f"{LOG}/checkpoint.json")


@pytest.mark.parametrize(
    "damage",
    [
        _lose_a_segment,
        _lose_all_segments,
        _zero_a_stretch,
        _cut_a_file_short,
        _damage_side_files,
        _wipe_the_log,
    ],
)
async def test_a_replica_that_starts_damaged_is_mended_and_follows(
    damage: Callable[[MemoryDisk, list[int]], None],
) -> None:
    master, replica = Broker(1), Broker(2)
    async with master.running():
        async with replica.running():
            await _fill(master, replica)
            firsts = [int(first) for first in replica.store.log._segments.firsts]
            assert len(firsts) > 2
        replica.store.close(clean=True)
        replica.disk.crash(SeededRandom("down"), keep_page_cache=True)
        damage(replica.disk, firsts)

        again = Broker(2, disk=replica.disk)
        async with again.running():
            is_hurt = again.store.log.damage is not None
            assert again.role.is_healthy() is not is_hurt
            assert not again.role.reader.is_readable
            tell(a_group(master, again, sync_state_set=BOTH), 2, master, again)

            await eventually(lambda: again.store.log.confirm == master.store.log.end)
            assert again.role.is_healthy()
            assert again.role.repairer.repaired_count == (1 if is_hurt else 0)
            assert _content(again.store.log) == _content(master.store.log)
            assert again.role.projections.snapshot() == master.role.projections.snapshot()
            await eventually(lambda: again.role.reader.is_readable)


@pytest.mark.parametrize("place", ["header of messages", "payload that the fold reads"])
async def test_damage_that_only_the_fold_comes_across_at_a_start_is_mended(place: str) -> None:
    """Below what recovery verifies, above the newest projection checkpoint: not a start's end."""
    master, replica = Broker(1), Broker(2)
    async with master.running():
        async with replica.running():
            await _fill(master, replica, batches=3)
            log = replica.store.log
            headers = [header for header, _ in log.batches(log.start)]
            for _ in range(2):  # the second one's margin begins where the first one ended
                log.save_checkpoint()
                end = master.send(b"more")
                await eventually(lambda: log.confirm == end)  # noqa: B023
                log.flush_now()
            log.save_checkpoint()
        replica.store.close(clean=True)
        read = headers[0]  # the start of the epoch
        assert needs_payload(read)
        at = headers[1].physical_offset + 8 if "header" in place else HEADER_BYTES + 3
        assert at < replica.store.log.checkpointed.verify_from
        replica.disk.flip_bit(_path(0), at)

        again = Broker(2, disk=replica.disk)
        async with again.running():
            damage = again.store.log.damage
            assert damage is not None
            assert damage.position <= at
            assert again.store.is_suspect
            tell(a_group(master, again, sync_state_set=BOTH), 2, master, again)

            await eventually(lambda: again.role.repairer.repaired_count == 1)
            await eventually(lambda: again.store.log.confirm == master.store.log.end)
            assert _content(again.store.log) == _content(master.store.log)
            assert again.role.projections.snapshot() == master.role.projections.snapshot()


async def test_a_record_of_a_later_version_is_no_damage_and_stops_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker(1)
    async with broker.running():
        tell(a_group(broker, sync_state_set=frozenset({1}), minimum=1), 2, broker)
        await eventually(lambda: bool(broker.role.status()["is_open"]))
        broker.send(b"x")
    broker.store.close(clean=True)

    def refuse(*_: object) -> None:
        raise CorruptLogError("an operation that is not known to this version")

    monkeypatch.setattr(Projections, "apply", refuse)

    with pytest.raises(CorruptLogError, match="not known to this version"):
        Broker(1, disk=broker.disk)


async def test_the_scrubber_finds_damage_by_itself_and_replaces_small_files() -> None:
    master, replica = Broker(1), Broker(2)
    replica.role.repairer.scrubber._interval_ms = 50
    async with master.running(), replica.running():
        await _fill(master, replica)
        replica.store.log.save_checkpoint()
        for path in (f"{LOG}/checkpoint.json", f"{DATA}/identity.json", f"{DATA}/epoch.json.copy"):
            replica.disk.flip_bit(path, 12)
        log = replica.store.log
        _flip(replica, _positions(log)[3])
        replica.disk.unlink(log._segments._segments[1].path)

        await eventually(lambda: replica.role.repairer.repaired_count >= 1)
        await eventually(lambda: replica.role.is_healthy())
        assert _content(log) == _content(master.store.log)
        await eventually(lambda: replica.role.repairer.scrubber.counts.side_files >= 3)
        counts = replica.role.repairer.scrubber.counts
        passes = counts.passes
        await eventually(lambda: counts.passes > passes)
    replica.store.close(clean=True)
    again = Broker(2, disk=replica.disk)
    assert again.store.report.damage is None
    assert again.identity.identity.incarnation == 2


def _end_all(master: Broker, replica: Broker) -> None:
    """Both die; what their page caches hold is there at their next start."""
    for broker in (master, replica):
        broker.store.close(clean=False)
        broker.disk.crash(SeededRandom("down"), keep_page_cache=True)


async def test_a_tail_lost_above_confirm_is_cut_for_a_master_that_opens_only_with_this_member() -> (
    None
):
    """R8, R24: without it the set is below min, so the cut must not wait for an open master."""
    master, replica = Broker(1), Broker(2)
    async with master.running():
        async with replica.running():
            await _fill(master, replica)
        end = replica.store.log.end
        last = _positions(replica.store.log)[-1]
        replica.store.log.save_checkpoint()
        assert replica.store.log.checkpointed.confirm == end
        master.send(b"its own")  # durable on the master only, and then its disk loses it
        await eventually(lambda: master.store.log.flushed == master.store.log.end > end)
    master.store.log.save_checkpoint()
    assert last < end == master.store.log.confirm
    _end_all(master, replica)
    segment = master.store.log._segments.locate(end)
    file = master.disk.open(segment.path)
    master.disk.writev(file, [bytes(400)], end - segment.first)
    master.disk.sync_now(file)

    damaged, elected = Broker(1, disk=master.disk), Broker(2, disk=replica.disk)
    assert damaged.store.log.damage is not None
    assert damaged.store.log.damage.position == end
    async with damaged.running(), elected.running():
        pair = a_group(damaged, elected, epoch=4, master=2, sync_state_set=BOTH)
        tell(pair, 2, elected, damaged)

        await eventually(lambda: bool(elected.role.status()["is_open"]))
        assert damaged.role.is_healthy()
        assert _content(damaged.store.log) == _content(elected.store.log)


async def test_what_this_member_knows_as_confirmed_comes_from_a_master_that_does_not_yet() -> None:
    """R16, R24: its own confirm forbids the cut; the master opens only once this one is whole."""
    master, replica = Broker(1), Broker(2)
    async with master.running(), replica.running():
        await _fill(master, replica)
        positions = _positions(replica.store.log)
        replica.store.log.flush_now()
        replica.store.log.save_checkpoint()
        assert master.store.log.checkpointed.confirm < positions[20]
    _end_all(master, replica)
    first = replica.store.log._segments.locate(positions[30])
    replica.disk.flip_bit(first.path, positions[30] - first.first + 100)

    elected, damaged = Broker(1, disk=master.disk), Broker(2, disk=replica.disk)
    damaged.role.repairer.scrubber.look_at(positions[30])
    assert elected.store.log.confirm < positions[30] < damaged.store.log.checkpointed.confirm
    async with elected.running(), damaged.running():
        await eventually(lambda: damaged.store.log.damage is not None)
        tell(a_group(elected, damaged, epoch=4, sync_state_set=BOTH), 2, elected, damaged)

        await eventually(lambda: bool(elected.role.status()["is_open"]))
        assert damaged.role.is_healthy()
        assert _content(damaged.store.log) == _content(elected.store.log)
