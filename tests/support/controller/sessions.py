"""What tests of sessions share with others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.controller.harness import (
    Controllers,
    TalkingBroker,
    controllers,
    eventually,
)

from paceline.types import ReplicaId
from paceline.wire.cluster import GroupView


@asynccontextmanager
async def a_cluster(count: int = 1) -> AsyncIterator[tuple[Controllers, list[TalkingBroker]]]:
    """Controllers and three brokers whose group has its first master."""
    async with controllers(count) as cluster:
        brokers = [TalkingBroker(cluster, number) for number in (1, 2, 3)]
        try:
            for broker in brokers:
                await broker.join()
            await eventually(
                lambda: all(master_of(broker) is not None for broker in brokers), "a first master"
            )
            for broker in brokers:
                await broker.beat()  # it has taken up its role, or another one is elected
            yield cluster, brokers
        finally:
            for broker in brokers:
                await broker.stop()


def group_of(broker: TalkingBroker) -> GroupView | None:
    return None if broker.view is None else broker.view.groups.get(broker.group)


def master_of(broker: TalkingBroker) -> ReplicaId | None:
    group = group_of(broker)
    return None if group is None else group.master
