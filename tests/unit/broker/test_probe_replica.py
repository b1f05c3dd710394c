"""What a probe of a lost member proves (R12, R19, R22)."""

import socket
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from paceline.types import Incarnation, ReplicaId
from paceline.wire.cluster import ReplicaView
from paceline_broker.probe_replica import is_replica_gone

HIMSELF = {"replica_id": 2, "incarnation": 5}


def at(port: int) -> ReplicaView:
    return ReplicaView(
        replica_id=ReplicaId(2),
        store_id="store",
        incarnation=Incarnation(5),
        client_address=f"127.0.0.1:{port}",
        replication_address="127.0.0.1:1",
    )


async def is_gone_by(answer: Any, *, status: int = 200) -> bool:
    async def probe(request: web.Request) -> web.Response:
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_get("/v1/probe", probe)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as http:
            return await is_replica_gone(http, at(runner.addresses[0][1]))
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("answer", "is_gone"),
    [
        ({**HIMSELF, "healthy": True}, False),
        (HIMSELF, False),
        ({**HIMSELF, "healthy": False}, True),
        ({**HIMSELF, "incarnation": 6, "healthy": True}, True),
        ({**HIMSELF, "replica_id": None}, True),
        (["something else"], False),
    ],
)
async def test_an_answer_proves_that_a_start_is_gone_or_does_not(
    answer: Any, is_gone: bool
) -> None:
    """R22: a failed disk waits for no time limit, it leaves the set at once."""
    assert await is_gone_by(answer) is is_gone


async def test_an_error_status_proves_nothing() -> None:
    assert not await is_gone_by({}, status=503)


async def test_a_refused_connection_proves_it() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with aiohttp.ClientSession() as http:
        assert await is_replica_gone(http, at(port))
