"""What tests of mastership share with others."""

from tests.support.broker.brokers import Broker, a_group, eventually, tell

from paceline_broker.ports import RoleState


async def a_master_alone(broker: Broker) -> None:
    tell(a_group(broker, minimum=1, sync_state_set=frozenset({1})), 1, broker)
    await eventually(lambda: broker.role.state is RoleState.MASTER and broker.mastership.is_open)
