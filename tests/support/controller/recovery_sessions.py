"""What tests of recovery sessions share with others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.controller.harness import Controllers, TalkingBroker, controllers

from paceline.types import Incarnation, MasterEpoch, ReplicaId
from paceline.wire import session as wire
from paceline.wire.session_commands import PresentedTopic

OLD = "old"


class OldBroker(TalkingBroker):
    """A store with records of a cluster that is gone."""

    def __init__(self, cluster: Controllers, number: int) -> None:
        super().__init__(cluster, number)
        self.cluster_id = OLD
        self.replica_id = ReplicaId(number)
        self.incarnation = Incarnation(3)
        self.end = 500

    async def come(self) -> None:
        await self.start()
        assert (await self.command(wire.OpenSession()))["ok"]

    def shown(self, **changes: Any) -> wire.PresentStore:
        arguments = {
            "group": self.group,
            "cluster_id": OLD,
            "store_id": self.store_id,
            "replica_id": self.replica_id,
            "incarnation": self.incarnation,
            "client_address": self.address,
            "replication_address": self.address,
            "epoch": MasterEpoch(7),
            "last_epoch": MasterEpoch(7),
            "start": 0,
            "end": self.end,
            "confirm": self.end,
            "topics": (PresentedTopic(topic="orders", topic_id=5, queues=4),),
            "topic_id_max": 5,
            "is_learner": False,
            "is_unclean": False,
            "is_suspect": False,
            "is_damaged": False,
            "leases_ms": 1,
            **changes,
        }
        return wire.PresentStore(**arguments)


@asynccontextmanager
async def old_brokers() -> AsyncIterator[tuple[Controllers, list[OldBroker]]]:
    """New controllers, and three stores that have presented themselves to them."""
    async with controllers() as cluster:
        brokers = [OldBroker(cluster, number) for number in (1, 2, 3)]
        try:
            for broker in brokers:
                await broker.come()
                refused = await broker.register(last_epoch=MasterEpoch(7))
                assert refused["reason"] == "RECOVERY_NEEDED"
                shown = await broker.command(broker.shown())
                assert (shown["ok"], shown["reason"]) == (False, "RECOVERY_NEEDED")
            yield cluster, brokers
        finally:
            for broker in brokers:
                await broker.stop()
