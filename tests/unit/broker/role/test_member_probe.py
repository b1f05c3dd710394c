"""What proves that a start of a replica is gone (R12), and what does not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.support.app_server import AppServer
from tests.support.controller.harness import free_address

from paceline.security.node_tls import Dial
from paceline.types import Incarnation, ReplicaId
from paceline.wire.cluster import ReplicaView
from paceline_broker.role.member_probe import is_replica_gone

WELL = {"replica_id": 2, "incarnation": 5, "is_stopped": False}


def a_replica(address: str) -> ReplicaView:
    return ReplicaView(
        replica_id=ReplicaId(2),
        store_id="store",
        incarnation=Incarnation(5),
        client_address=address,
        replication_address=address,
    )


@asynccontextmanager
async def a_port(answer: Any, *, status: int = 200) -> AsyncIterator[str]:
    async def probe(_: web.Request) -> web.Response:
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_get("/v1/probe", probe)
    async with AppServer(app) as server:
        yield server.address


@pytest.mark.parametrize(
    ("answer", "status", "is_gone"),
    [
        (WELL, 200, False),
        ({**WELL, "incarnation": 6}, 200, True),
        ({**WELL, "replica_id": 3}, 200, True),
        ({**WELL, "is_stopped": True}, 200, True),
        ({"replica_id": 2, "incarnation": 5}, 200, False),
        ({**WELL, "is_stopped": True}, 503, False),
        ([], 200, False),
    ],
    ids=["well", "another-start", "another", "R22-stopped", "older", "busy", "no-answer"],
)
async def test_what_an_answer_proves(answer: Any, status: int, is_gone: bool) -> None:
    async with a_port(answer, status=status) as address, aiohttp.ClientSession() as http:
        assert await is_replica_gone(http, a_replica(address), Dial()) is is_gone


async def test_a_refused_connection_proves_it() -> None:
    async with aiohttp.ClientSession() as http:
        assert await is_replica_gone(http, a_replica(str(free_address())), Dial())
