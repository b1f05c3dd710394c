"""The link to a group's master owns each connection from the moment it is made."""

import asyncio

import pytest
from tests.support.client.fake_cluster import FakeCluster

from paceline.net.cluster import BrokerConnection, Cluster
from paceline.net.master_link import MasterLink
from paceline.platform.runtime import spawn
from paceline.types import GroupName


async def test_a_link_that_is_closed_as_it_connects_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closing: list[asyncio.Task[None]] = []
    is_closed = asyncio.Event()

    async def connect_and_close(address: str, group: GroupName) -> BrokerConnection:
        connection = await connect(address, group)
        connection.on_closed = is_closed.set
        closing.append(spawn(link.close(), name="closing"))
        return connection

    async with FakeCluster() as fake:
        cluster = Cluster(fake.controller)
        connect = cluster.connect
        monkeypatch.setattr(cluster, "connect", connect_and_close)
        cluster.start()
        link = MasterLink(cluster, GroupName("g1"))
        link.start()
        async with asyncio.timeout(5):
            await is_closed.wait()
            await closing[0]
        await cluster.close()

    assert link.connection is None
