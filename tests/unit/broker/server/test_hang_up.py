"""Clients that leave before their answer, as one does whose broker was stopped for a while."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from tests.support.http.door import Door, a_door

from paceline.wire.stream import UPGRADE_TOKEN

BATCH = "application/vnd.paceline.batch"
PULL = "/v1/topics/orders/queues/0/messages?offset=0"


@web.middleware
async def hang_up(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The connection is gone when the handler begins, and nobody was told."""
    assert request.transport is not None
    request.transport.abort()
    return await handler(request)


async def leave_at_once(door: Door, head: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    writer.write(f"{head}Host: x\r\n\r\n".encode())
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(
    "head",
    [
        f"GET {PULL} HTTP/1.1\r\nAccept: {BATCH}\r\n",
        f"GET {PULL} HTTP/1.1\r\n",
        f"GET /v1/stream HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE_TOKEN}\r\n",
    ],
)
async def test_a_client_that_left_is_no_error(head: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with a_door(middleware=hang_up) as door:
        await leave_at_once(door, head)

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
