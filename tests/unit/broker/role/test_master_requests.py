"""What a master asks of the controllers, and what a refusal or a success means to it."""

from tests.support.broker.brokers import Broker, a_group, eventually, tell

from paceline.types import ReplicaId
from paceline.wire import session as wire
from paceline_broker.ports import RoleState
from paceline_broker.replication.master.events import AlterSyncStateSet
from paceline_broker.role.mastership import Mastership

ALONE = frozenset({1})


async def _open_master(broker: Broker) -> Mastership:
    tell(a_group(broker, sync_state_set=ALONE, minimum=1), 1, broker)
    await eventually(lambda: bool(broker.role.status()["is_open"]))
    await eventually(lambda: len(broker.controllers.requests) == 1)
    return broker.mastership


async def test_a_master_reports_its_epoch_open_once_confirmed() -> None:
    broker = Broker()
    async with broker.running():
        mastership = await _open_master(broker)

        (request,) = broker.controllers.requests
        assert isinstance(request, wire.OpenEpoch)
        assert (request.master_epoch, request.confirm) == (3, mastership.end)


async def test_a_floor_that_was_refused_is_told_again_and_one_that_is_known_is_not() -> None:
    broker = Broker()
    async with broker.running():
        mastership = await _open_master(broker)
        broker.controllers.result = {"ok": False, "reason": "DEADLINE_PASSED"}
        broker.role.tell_floor()
        await eventually(lambda: len(broker.controllers.requests) == 2)
        broker.controllers.result = {"ok": True}

        for _ in range(3):  # R16: each second
            broker.role.tell_floor()
            await eventually(lambda: len(broker.controllers.requests) == 3)

        last = broker.controllers.requests[-1]
        assert isinstance(last, wire.RaiseConfirmFloor)
        assert last.confirm == mastership.confirm


async def test_a_set_change_that_nobody_answered_stays_in_flight() -> None:
    broker = Broker()
    async with broker.running():
        tell(a_group(broker, sync_state_set=frozenset({1, 2, 3}), minimum=2), 1, broker)
        await eventually(lambda: broker.role.state is RoleState.MASTER)
        mastership = broker.mastership
        proposal = AlterSyncStateSet(
            sequence=1,
            master=ReplicaId(1),
            master_epoch=mastership.epoch,
            set_epoch=mastership.term.status()["set_epoch"],  # type: ignore[arg-type]
            sync_state_set=frozenset({ReplicaId(1), ReplicaId(2)}),
            incarnations={ReplicaId(1): mastership.term.incarnation},
            reason="lag",
            confirm=mastership.confirm,
        )

        broker.role.requests.propose(mastership, proposal)

        await eventually(lambda: len(broker.controllers.requests) == 1)
        assert isinstance(broker.controllers.requests[0], wire.AlterSyncStateSet)
