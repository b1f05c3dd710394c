"""Connections that arrive while a test's server ends: none is left open.

Asyncio's servers forget those that they have accepted and not yet shown to their protocol. The
warning of one that is collected later fails whatever test runs then.
"""

import asyncio
import gc
import socket
from collections.abc import Callable

import pytest
from aiohttp import web
from tests.support.app_server import AppServer
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.fake_cluster import FakeCluster
from tests.support.http.turns import turn

Served = AppServer | FakeBroker


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize(
    "make", [lambda: AppServer(web.Application()), lambda: FakeBroker(FakeCluster(), "g1", 1)]
)
def test_what_comes_while_it_ends_is_closed(make: Callable[[], Served], turns: int) -> None:
    client = asyncio.run(_come_while_it_ends(make(), turns))

    with client:
        gc.collect()  # the warning of an open connection fails this test


async def _come_while_it_ends(server: Served, turns: int) -> socket.socket:
    await server.start()
    host, port = server.address.split(":")
    client = socket.create_connection((host, int(port)), timeout=5)
    for _ in range(turns):
        await turn()
    await server.stop()
    return client
