"""A master hands over because it was ordered to, or stops (R20)."""

import pytest
from tests.support.broker.brokers import Broker, a_group, eventually, tell

from paceline.errors import NotYetAvailableError
from paceline.types import MasterEpoch, ReplicaId
from paceline.wire import session as wire
from paceline_broker.ports import RoleState
from paceline_broker.role import handover


class Ordered:
    """A broker and the answers of its hand-overs."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.handover = broker.role.handover
        self.replies: list[wire.FromBroker] = []

    def order(self, epoch: int, *, preferred: int | None = None) -> None:
        to = None if preferred is None else ReplicaId(preferred)
        message = wire.TransferOrder(master_epoch=MasterEpoch(epoch), preferred=to)
        self.handover.ordered(message, lambda text: self.replies.append(read(text)))

    @property
    def asked(self) -> list[wire.StepDown]:
        requests = self.broker.controllers.requests
        return [request for request in requests if isinstance(request, wire.StepDown)]

    @property
    def is_taking(self) -> bool:
        try:
            self.broker.mastership.ensure_can_append()
        except NotYetAvailableError:
            return False
        return True


def read(text: str) -> wire.FromBroker:
    return wire.parse_from_broker(text)


async def a_master_alone(broker: Broker) -> Ordered:
    tell(a_group(broker, minimum=1, sync_state_set=frozenset({1})), 1, broker)
    await eventually(lambda: broker.role.state is RoleState.MASTER and broker.mastership.is_open)
    return Ordered(broker)


async def test_an_ordered_master_drains_and_asks_for_the_member_that_is_named() -> None:
    broker = Broker()
    async with broker.running():
        master = await a_master_alone(broker)
        broker.send()

        master.order(broker.role.epoch, preferred=2)

        assert not master.is_taking
        await eventually(lambda: bool(master.asked))
        assert master.asked[0].preferred == 2
        assert master.asked[0].confirm == broker.mastership.end
        assert not master.is_taking  # until it learns of its successor
        assert master.replies == []
        await master.handover.stop()


async def test_a_definite_refusal_resumes_intake_and_is_told() -> None:
    broker = Broker()
    async with broker.running():
        master = await a_master_alone(broker)
        broker.controllers.result = {"ok": False, "reason": "NO_ELECTION", "detail": "nobody"}

        master.order(broker.role.epoch)
        await eventually(lambda: bool(master.replies))

        assert master.replies == [
            wire.HandOverRefused(master_epoch=broker.role.epoch, reason="nobody")
        ]
        assert master.is_taking


async def test_who_leads_no_such_epoch_says_so_at_once() -> None:
    broker = Broker()
    async with broker.running():
        master = await a_master_alone(broker)

        master.order(broker.role.epoch + 1)

        [reply] = master.replies
        assert isinstance(reply, wire.HandOverRefused)
        assert "does not lead" in reply.reason
        assert master.is_taking


async def test_a_master_that_cannot_drain_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody was asked to replace it yet, so it may (R20)."""
    monkeypatch.setattr(handover, "DRAIN_MS_MAX", 20)
    broker = Broker()
    async with broker.running():
        master = await a_master_alone(broker)
        stuck = a_group(broker, minimum=1, sync_state_set=frozenset({1, 2}), set_epoch=9)
        tell(stuck, 2, broker)
        await eventually(lambda: len(broker.mastership.term.sync_state_set) == 2)
        broker.send()

        master.order(broker.role.epoch)
        await eventually(lambda: bool(master.replies))

        [reply] = master.replies
        assert isinstance(reply, wire.HandOverRefused)
        assert "is not confirmed" in reply.reason
        assert master.asked == []
        assert master.is_taking


async def test_a_stop_asks_once_more_and_never_resumes() -> None:
    broker = Broker()
    async with broker.running():
        master = await a_master_alone(broker)
        both = a_group(broker, minimum=1, sync_state_set=frozenset({1, 2}), set_epoch=9)
        tell(both, 2, broker)
        await eventually(lambda: len(broker.mastership.term.sync_state_set) == 2)
        broker.controllers.result = {"ok": False, "reason": "NO_ELECTION", "detail": "nobody"}

        await master.handover.before_stop(timeout_ms=1000)

        assert len(master.asked) == 1
        assert not master.is_taking
