"""R36, the role: an appointment begins with its epoch, serves what was confirmed, and ends."""

from dataclasses import replace

import pytest
from tests.support.broker.brokers import Broker, a_group, eventually, tell

from paceline.errors import NoMasterError, PacelineError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom, pause
from paceline.types import Incarnation, ReplicaId
from paceline.wire.cluster import GroupView
from paceline_broker.ports import RoleState

ALONE = frozenset({1})
MEMBERS = frozenset({2, 3})


def appointed(broker: Broker, epoch: int, *, incarnation: int | None = None) -> GroupView:
    """Broker 1 acts for a group whose members 2 and 3 are gone."""
    known = broker.identity.identity.incarnation if incarnation is None else incarnation
    view = a_group(broker, master=None, epoch=epoch, sync_state_set=MEMBERS)
    return replace(view, acting=ReplicaId(1), acting_incarnation=Incarnation(known))


async def with_messages(disk: MemoryDisk) -> int:
    """A log of which some is confirmed, in epoch 3, and a power loss; its confirm."""
    broker = Broker(disk=disk)
    async with broker.running():
        tell(a_group(broker, sync_state_set=ALONE, minimum=1), 1, broker)
        await eventually(lambda: broker.role.state is RoleState.MASTER)
        await eventually(lambda: broker.mastership.is_open)
        end = broker.send()
        await eventually(lambda: broker.store.log.confirm >= end)
        confirm = int(broker.store.log.confirm)
    broker.store.close(clean=True)
    disk.crash(SeededRandom("power"), keep_page_cache=False)
    return confirm


async def test_an_appointment_serves_the_durable_confirm_and_takes_nothing() -> None:
    disk = MemoryDisk()
    confirm = await with_messages(disk)
    broker = Broker(disk=disk)
    async with broker.running():
        assert not broker.role.reader.is_readable  # nobody has told this start of any confirm

        tell(appointed(broker, 9), 2, broker)
        await eventually(lambda: broker.role.state is RoleState.ACTING_MASTER)

        assert broker.identity.epoch == 9  # R2
        assert broker.role.reader.is_readable
        assert broker.role.reader.confirm == confirm
        assert broker.role.projections.position == confirm
        end = broker.store.log.end
        assert isinstance(refusal_of(broker), NoMasterError)
        await pause(1)
        assert broker.store.log.end == end  # no epoch-start record
        heartbeat = broker.role.heartbeat()
        assert heartbeat is not None
        assert heartbeat.role.value == "ACTING_MASTER"


async def test_any_higher_epoch_ends_it_and_reads_wait_for_the_master() -> None:
    disk = MemoryDisk()
    await with_messages(disk)
    broker = Broker(disk=disk)
    async with broker.running():
        tell(appointed(broker, 9), 2, broker)
        await eventually(lambda: broker.role.state is RoleState.ACTING_MASTER)
        acting = broker.role.acting
        assert acting is not None

        tell(a_group(broker, master=2, epoch=10, sync_state_set=MEMBERS), 3, broker)
        await eventually(lambda: broker.role.state is RoleState.REPLICA)

        assert acting.has_ended
        assert broker.role.acting is None
        assert not broker.role.reader.is_readable  # R3


async def test_the_appointment_of_another_start_is_not_taken_up() -> None:
    """R1: mastership of any kind belongs to one start of a process."""
    broker = Broker()
    async with broker.running():
        tell(appointed(broker, 9, incarnation=7), 2, broker)
        await eventually(lambda: broker.role.epoch == 9)
        await pause(1)

        assert broker.role.acting is None
        assert broker.role.state is not RoleState.ACTING_MASTER


async def test_a_later_view_of_the_same_appointment_changes_nothing() -> None:
    broker = Broker()
    async with broker.running():
        tell(appointed(broker, 9), 2, broker)
        await eventually(lambda: broker.role.state is RoleState.ACTING_MASTER)
        acting = broker.role.acting

        tell(appointed(broker, 9), 3, broker)
        await pause(1)

        assert broker.role.acting is acting


async def test_a_replica_that_is_forgotten_acts_no_more() -> None:
    broker = Broker()
    async with broker.running():
        tell(appointed(broker, 9), 2, broker)
        await eventually(lambda: broker.role.state is RoleState.ACTING_MASTER)
        view = appointed(broker, 9)
        others = {key: value for key, value in view.replicas.items() if key != 1}

        tell(replace(view, acting=None, acting_incarnation=None, replicas=others), 3, broker)

        await eventually(lambda: broker.role.state is RoleState.FENCED)
        assert broker.role.acting is None


async def test_a_master_begins_by_withholding_locks_that_an_acting_one_may_have_granted() -> None:
    broker = Broker()
    async with broker.running():
        view = a_group(broker, sync_state_set=ALONE, minimum=1)
        tell(replace(view, acting_leases_ms=70_000), 1, broker)
        await eventually(lambda: broker.role.state is RoleState.MASTER)

        withheld = broker.role.projections.locks.withheld

        assert withheld.leases_ms == 70_000
        assert withheld.until_unix_ms == broker.role.projections.log_time_ms + 70_000


@pytest.mark.parametrize("is_master_first", [True, False])
async def test_the_next_epoch_withholds_the_rest_that_this_process_knows_of(
    is_master_first: bool,
) -> None:
    """Who led or followed in the first epoch after the acting one counts from its record on."""
    first, second = Broker(1), Broker(2)
    leader, follower = (first, second) if is_master_first else (second, first)
    async with first.running(), second.running():
        members = frozenset({1, 2})
        view = a_group(first, second, master=leader.number, sync_state_set=members)
        tell(replace(view, acting_leases_ms=70_000), 1, first, second)
        await eventually(lambda: follower.role.projections.locks.withheld.leases_ms == 70_000)
        await pause(50)

        tell(
            a_group(first, second, master=1, epoch=view.master_epoch + 1, sync_state_set=members),
            2,
            first,
            second,
        )
        await eventually(lambda: first.role.state is RoleState.MASTER)
        await eventually(lambda: first.role.epoch == view.master_epoch + 1)

        projections = first.role.projections
        left_ms = projections.locks.withheld.until_unix_ms - projections.log_time_ms
        assert 60_000 < left_ms <= 69_950


def refusal_of(broker: Broker) -> PacelineError:
    try:
        broker.role.writer()
    except PacelineError as error:
        return error
    raise AssertionError("an acting master gave a writer")
