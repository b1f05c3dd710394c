"""What tests of pins share with others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.support.client.fake_cluster import FakeCluster
from tests.support.http.door import Door, a_door

from paceline.admin.client import AdminClient
from paceline.types import GroupName, ReplicaId


def lead(cluster: FakeCluster, door: Door, group: str = "g1") -> None:
    """Let the real door of a broker be the master of a group of the fake cluster."""
    view = cluster.view.groups[GroupName(group)]
    master = replace(view.replicas[ReplicaId(1)], client_address=f"127.0.0.1:{door.port}")
    replicas = {**view.replicas, master.replica_id: master}
    cluster.publish(groups={**cluster.view.groups, view.group: replace(view, replicas=replicas)})


@asynccontextmanager
async def a_master(*, groups: int = 1) -> AsyncIterator[tuple[FakeCluster, Door, AdminClient]]:
    async with FakeCluster(groups=groups) as cluster, a_door() as door:
        cluster.add_topic("orders", 2)
        lead(cluster, door)
        async with AdminClient(cluster.controller, timeout_ms=3_000) as admin:
            yield cluster, door, admin
