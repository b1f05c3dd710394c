"""Brokers and clients that leave before their answer, as one does whose controller was stopped."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from paceline_controller.server.http_errors import problem_middleware


@web.middleware
async def hang_up(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The connection is gone when the handler begins, and nobody was told."""
    assert request.transport is not None
    request.transport.abort()
    return await handler(request)


async def open_session(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    return socket


async def test_a_broker_that_left_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    app = web.Application(middlewares=[problem_middleware, hang_up])
    app.router.add_get("/v1/session", open_session)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"GET /v1/session HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    finally:
        await runner.cleanup()

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
