"""An aiohttp application on a free port, ended so that no connection outlives its event loop."""

import asyncio
import socket
from collections.abc import Iterable

from aiohttp import web
from tests.support.http.turns import turn

_ACCEPT_TURNS = 3
"""From a socket that is accepted to a connection that its server knows."""


async def stop_accepting(sockets: Iterable[socket.socket]) -> None:
    """Take no more connections, and wait until the server knows those that it has accepted.

    A server that is closed before forgets them. They stay open until they are collected, and their
    warnings fail whatever test runs then.
    """
    loop = asyncio.get_running_loop()
    for listener in sockets:
        loop.remove_reader(listener.fileno())
    for _ in range(_ACCEPT_TURNS):
        await turn()


class AppServer:
    """`async with AppServer(app) as server`, or `start` and `stop`."""

    def __init__(self, app: web.Application) -> None:
        self.address = ""
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        self._listener = socket.socket()

    async def start(self) -> None:
        self._listener.bind(("127.0.0.1", 0))
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener).start()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    async def stop(self) -> None:
        if self._listener.fileno() >= 0:
            await stop_accepting([self._listener])
        await self._runner.cleanup()
        self._listener.close()

    async def __aenter__(self) -> "AppServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
