"""A remoting door in this process before a real cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from tests.support.gateway.authenticators import an_authenticator
from tests.support.gateway.remoting import RemotingClient

from paceline import AdminClient
from paceline.net.cluster import Cluster
from paceline.net.connect import Bootstrap
from paceline.platform.runtime import SystemClock
from paceline_gateway.clusters import UserClusters
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.server import RemotingDoor


@asynccontextmanager
async def a_client(bootstrap: Bootstrap, admin: AdminClient) -> AsyncIterator[RemotingClient]:
    """A client of broker group g1, through a door in this process, with a topic of one queue."""
    await admin.topics.create("orders", queues=1)
    users = UserClusters(lambda principal: Cluster(bootstrap))
    own = Cluster(bootstrap)
    clients = ConnectedClients(SystemClock())
    door = RemotingDoor(users, an_authenticator(), own, clients, host="127.0.0.1", port=0)
    own.start()
    await own.watch.wait_for(lambda view: bool(view.groups), timeout_ms=10_000)
    await door.start()
    naming = await RemotingClient.connect(f"127.0.0.1:{door.port}")
    route = await naming.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    brokers = orjson.loads(bytes(route.body))["brokerDatas"]
    address = next(each["brokerAddrs"]["0"] for each in brokers if each["brokerName"] == "g1")
    client = await RemotingClient.connect(address)
    try:
        yield client
    finally:
        await client.close()
        await naming.close()
        await door.close()
        await users.close()
        await own.close()


async def asked(client: RemotingClient, code: int, document: Any = None, **fields: Any) -> Command:
    """What it answers, which is no error."""
    body = b"" if document is None else orjson.dumps(document)
    answer = await client.ask(code, fields, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer
