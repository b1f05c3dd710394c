"""A broker's link to one controller comes again after whatever ends it in the handshake."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import WSMsgType, web

from paceline.platform.runtime import SeededRandom
from paceline.platform.secret import ClusterSecrets
from paceline.security.node_tls import Dial
from paceline.types import ControllerId, GroupName, Incarnation
from paceline.wire import session as wire
from paceline.wire.messages import Nonce
from paceline.wire.proof import NONCE_BYTES
from paceline_broker.controllers import session as controller_link
from paceline_broker.controllers.session import ControllerLinks
from paceline_broker.storage.identity import Identity

DEADLINE_S = 10
Serve = Callable[[web.WebSocketResponse], Awaitable[None]]


class Controller:
    """Takes sessions, does with the first one what the test says, and counts them."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.sessions_count = 0
        self.came_again = asyncio.Event()

    async def session(self, request: web.Request) -> web.StreamResponse:
        self.sessions_count += 1
        if self.sessions_count > 1:
            self.came_again.set()
        else:
            await self._serve(await self._upgraded(request))
        return web.Response(status=503)

    async def _upgraded(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        return socket


@asynccontextmanager
async def linked_to(controller: Controller, *, dial: Dial | None = None) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_get(wire.PATH, controller.session)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    links = ControllerLinks(
        controllers=(f"127.0.0.1:{runner.addresses[0][1]}",),
        secrets=ClusterSecrets(b"secret"),
        identity=lambda: Identity(
            store_id="store",
            group=GroupName("g1"),
            incarnation=Incarnation(1),
            boot_id="boot",
            clean_shutdown=False,
        ),
        heartbeat=lambda: None,
        on_view=lambda view: None,
        on_security=lambda security: None,
        on_refused=lambda refused: None,
        on_time=lambda controller, unix_ms: None,
        on_hand_over=lambda order, reply: None,
        random=SeededRandom("links"),
        heartbeat_interval_ms=100,
        request_timeout_ms=1000,
        dial=dial,
    )
    await links.start()
    try:
        yield
    finally:
        await links.stop()
        await runner.cleanup()


async def close_at_once(socket: web.WebSocketResponse) -> None:
    await socket.close()


async def close_after_the_hello(socket: web.WebSocketResponse) -> None:
    """As a controller does that was paused until the broker gave the handshake up."""
    challenge = wire.Challenge(controller_id=ControllerId("c1"), nonce=Nonce(NONCE_BYTES))
    await socket.send_str(wire.encode(challenge))
    await socket.receive_str()
    await socket.close()


async def send_bytes(socket: web.WebSocketResponse) -> None:
    await socket.send_bytes(b"\x00")
    await socket.receive()


@pytest.mark.parametrize("serve", [close_at_once, close_after_the_hello, send_bytes])
async def test_link_comes_again_after_a_broken_handshake(serve: Serve) -> None:
    controller = Controller(serve)

    async with linked_to(controller), asyncio.timeout(DEADLINE_S):
        await controller.came_again.wait()


async def test_link_gives_up_a_controller_that_never_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that vanishes between connect and upgrade sends no reset, ever."""
    monkeypatch.setattr(controller_link, "HANDSHAKE_TIMEOUT_MS", 50)

    class Silent(Controller):
        async def _upgraded(self, request: web.Request) -> web.WebSocketResponse:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    controller = Silent(close_at_once)

    async with linked_to(controller), asyncio.timeout(DEADLINE_S):
        await controller.came_again.wait()


async def welcomed(socket: web.WebSocketResponse, secret: bytes = b"secret") -> None:
    """The handshake of a controller that does not lead."""
    challenge = wire.Challenge(controller_id=ControllerId("c1"), nonce=Nonce(NONCE_BYTES))
    await socket.send_str(wire.encode(challenge))
    hello = wire.parse_from_broker(await socket.receive_str())
    assert isinstance(hello, wire.Hello)
    welcome = wire.Welcome(
        cluster_id=None,
        controller_id=challenge.controller_id,
        is_leader=False,
        leader_address=None,
        session_timeout_ms=1_000,
        proof=wire.welcome_proof(challenge, hello, secret),
    )
    seals = hello.seals(secret, challenge, is_dialer=False)
    assert seals is not None
    await socket.send_bytes(seals.outgoing.message(wire.encode(welcome).encode()))


async def test_who_answers_in_place_of_a_controller_is_told_to_the_audit() -> None:
    """A controller with another secret, or a stranger."""

    async def unproven(socket: web.WebSocketResponse) -> None:
        await welcomed(socket, b"another")
        await socket.receive()

    told: list[tuple[str, str, str]] = []
    controller, dial = Controller(unproven), Dial()
    dial.on_refused = lambda door, host, error: told.append((door, host, error.code))

    async with linked_to(controller, dial=dial), asyncio.timeout(DEADLINE_S):
        await controller.came_again.wait()

    assert told == [("session", "127.0.0.1", "PEER")]


class Slow(Controller):
    """Answers the last ping before a broker gives up, so often."""

    def __init__(self, answers_count: int) -> None:
        super().__init__(self._stand)
        self.answers_left = answers_count
        self.pings_count = 0
        self.has_answered = asyncio.Event()

    async def _upgraded(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        return socket

    async def _stand(self, socket: web.WebSocketResponse) -> None:
        await welcomed(socket)
        async for message in socket:
            assert message.type is WSMsgType.PING
            self.pings_count += 1
            if self.pings_count % (controller_link.SILENT_ROUNDS_MAX - 1) == 0:
                if self.answers_left == 0:
                    self.has_answered.set()
                    continue
                self.answers_left -= 1
                await socket.pong(message.data)


async def test_a_controller_that_stands_for_a_moment_keeps_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_link, "SILENT_ROUND_MS", 100)
    controller = Slow(answers_count=3)

    async with linked_to(controller), asyncio.timeout(DEADLINE_S):
        await controller.has_answered.wait()
        assert controller.sessions_count == 1
        await controller.came_again.wait()  # silent for ever, it is given up

    assert controller.pings_count == 4 * (controller_link.SILENT_ROUNDS_MAX - 1) + 1
