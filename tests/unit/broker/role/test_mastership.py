"""What a mastership takes, and what it refuses before anything is appended (R6, R20, R27)."""

import pytest
from tests.support.broker.brokers import Broker, a_group, eventually, tell
from tests.support.broker.mastership import a_master_alone

from paceline.errors import (
    DiskFullError,
    InSyncReplicasNotEnoughError,
    NotMasterError,
    NotYetAvailableError,
    OverloadedError,
)
from paceline_broker.ports import RoleState
from paceline_broker.role.mastership import Mastership


async def a_master_with(broker: Broker, other: Broker) -> Mastership:
    """Of a set that needs both of them."""
    both = frozenset({1, 2})
    tell(a_group(broker, other, minimum=2, sync_state_set=both), 1, broker, other)
    await eventually(lambda: broker.role.state is RoleState.MASTER)
    mastership = broker.mastership
    await eventually(lambda: mastership.is_open and mastership.term.can_accept())
    return mastership


async def test_too_many_unconfirmed_bytes_are_refused_before_the_append() -> None:
    broker = Broker()
    async with broker.running():
        await a_master_alone(broker)
        mastership = broker.mastership
        mastership.term.window.size_bytes = 500
        mastership.ensure_can_append()

        end = broker.send(b"x" * 2000)
        with pytest.raises(OverloadedError, match="nothing was stored") as refused:
            mastership.ensure_can_append()

        assert refused.value.is_definite
        assert refused.value.details["retry_after_ms"]
        assert mastership.end == end
        await eventually(lambda: mastership.confirm == end)
        mastership.ensure_can_append()


async def test_members_that_are_needed_and_behind_are_no_lack_of_members() -> None:
    """They acknowledge, so whoever asks again soon is served (R27); that none are there (R8) would
    be told to operators in vain."""
    broker, other = Broker(1), Broker(2)
    async with broker.running(), other.running():
        mastership = await a_master_with(broker, other)

        other.disk.sync_delay_ms = 3_000
        broker.send(b"x")
        await eventually(lambda: not mastership.term.can_accept())
        with pytest.raises(OverloadedError, match="replicas 2 are behind") as refused:
            mastership.ensure_can_append()
        other.disk.sync_delay_ms = 0

        assert refused.value.is_definite


async def test_full_disks_of_members_are_named_where_too_few_acknowledge_for_that() -> None:
    """R26: not R8's refusal, which says nothing of disks; the own disk is looked at first."""
    broker, other = Broker(1), Broker(2)
    async with broker.running(), other.running():
        mastership = await a_master_with(broker, other)

        other.store.log.has_room = False
        await eventually(lambda: not mastership.term.can_accept())
        with pytest.raises(DiskFullError, match="the disks of replicas 2 are too full") as refused:
            mastership.ensure_can_append()
        broker.store.log.has_room = False
        with pytest.raises(DiskFullError, match="the master's disk is too full"):
            mastership.ensure_can_append()

        assert refused.value.is_definite
        assert refused.value.details["retry_after_ms"]
        broker.store.log.has_room = True
        await other.stop()
        with pytest.raises(DiskFullError, match="replicas 2"):
            mastership.ensure_can_append()


async def test_a_draining_master_takes_nothing_but_confirms_what_it_has() -> None:
    broker = Broker()
    async with broker.running():
        await a_master_alone(broker)

        end = broker.send()
        broker.mastership.drain()
        with pytest.raises(NotYetAvailableError):
            broker.mastership.ensure_can_append()

        await broker.mastership.all_confirmed()
        assert broker.mastership.confirm == end


async def test_a_broker_whose_log_failed_and_that_is_elected_again_stays_out() -> None:
    """R22: elected before the controllers heard of it, it does not even write the epoch's start."""
    broker = Broker()
    async with broker.running():
        await a_master_alone(broker)
        broker.disk.fail_next("writev")
        broker.send()
        await eventually(lambda: broker.role.state is RoleState.FENCED)

        again = a_group(broker, minimum=1, sync_state_set=frozenset({1}), epoch=4)
        tell(again, 2, broker)
        await eventually(lambda: broker.role.epoch == 4)
        await eventually(lambda: broker.role.status()["stopped"] is not None)

        assert broker.fatal is None
        assert broker.role.state is RoleState.FENCED
        assert broker.role.mastership is None


async def test_refused_sends_and_unconfirmed_bytes_are_work_that_waits() -> None:
    """R6: a master that reaches nobody is told of to the controllers though no send waits."""
    broker = Broker()
    async with broker.running():
        group = a_group(broker, minimum=2, sync_state_set=frozenset({1, 2}), master=1)
        tell(group, 1, broker)
        await eventually(lambda: broker.role.state is RoleState.MASTER)
        mastership = broker.mastership
        assert mastership.term.waiting_count == 0
        assert mastership.waiting_count == 1  # its start record, which nobody acknowledges

        for _ in range(3):
            with pytest.raises(InSyncReplicasNotEnoughError):
                mastership.ensure_can_append()

        heartbeat = broker.role.heartbeat()
        assert heartbeat is not None
        assert heartbeat.waiting == 4


async def test_an_abandoned_mastership_takes_nothing_from_that_step_on() -> None:
    """R28: the state is not what the log says, so it is made anew from the log."""
    broker = Broker()
    async with broker.running():
        await a_master_alone(broker)
        mastership, projections = broker.mastership, broker.role.projections

        mastership.abandon("for a test")

        with pytest.raises(NotMasterError):
            mastership.ensure_can_append()
        assert broker.role.state is RoleState.FENCED
        assert broker.role.projections is not projections
