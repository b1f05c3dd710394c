"""Small programs of asyncio and aiohttp that tell what they saw: for the stock loop and for ours.

Each is a coroutine function without arguments that returns its observations. They use one address,
127.0.0.1, and ports that the system chooses, and nothing that depends on speed.
"""

import asyncio
import hashlib
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, cast

import aiohttp
from aiohttp import WSMsgType, web

from paceline.platform.runtime import pause

HOST = "127.0.0.1"
Script = Callable[[], Coroutine[Any, Any, list[object]]]


class Recorder(asyncio.Protocol):
    """Keeps what a protocol is told."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.seen: list[object] = []
        self.received = bytearray()
        self.made = loop.create_future()
        self.lost = loop.create_future()
        self.paused = loop.create_future()
        self.keeps_open = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.seen.append("made")
        self.made.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.seen.append("eof")
        return self.keeps_open

    def pause_writing(self) -> None:
        self.seen.append("pause")
        if not self.paused.done():
            self.paused.set_result(None)

    def resume_writing(self) -> None:
        self.seen.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.seen.append(("lost", type(exc).__name__))
        self.lost.set_result(None)


async def until(condition: Callable[[], bool]) -> None:
    """Look each millisecond, on whichever loop runs."""
    while not condition():
        await pause(1)


async def pair(
    client: asyncio.BaseProtocol | None = None,
) -> tuple[Recorder, Recorder, asyncio.Server]:
    """(server's end, client's end) of one connection."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[Recorder] = loop.create_future()

    def accept() -> Recorder:
        made = Recorder()
        accepted.set_result(made)
        return made

    server = await loop.create_server(accept, HOST, 0)
    protocol = client or Recorder()
    await loop.create_connection(lambda: protocol, *server.sockets[0].getsockname())
    there = await accepted
    await there.made
    return there, cast(Recorder, protocol), server


async def echo_with_half_close() -> list[object]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.read()
        writer.write(b"you said " + question)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hel")
    writer.writelines([b"l", bytearray(b"o"), memoryview(b"!")])
    writer.write_eof()
    answered = await reader.read()
    is_at_eof = reader.at_eof()
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    return [answered, is_at_eof]


async def large_transfer_with_back_pressure() -> list[object]:
    there, here, server = await pair()
    there.transport.pause_reading()
    content = hashlib.shake_128(b"large").digest(8_000_000)
    here.transport.set_write_buffer_limits(high=100_000)
    here.transport.write(content)
    await here.paused
    held = len(there.received)
    there.transport.resume_reading()
    here.transport.close()
    await here.lost
    await there.lost
    server.close()
    return [held, there.received == content, here.seen, there.seen]


async def refused() -> list[object]:
    there, here, server = await pair()
    address = server.sockets[0].getsockname()
    server.close()
    here.transport.close()
    await there.lost
    try:
        await asyncio.open_connection(*address)
    except OSError as error:
        return [type(error).__name__, error.errno]
    return ["connected"]


async def closing_with_unread_bytes_resets() -> list[object]:
    there, here, server = await pair()
    there.transport.pause_reading()
    here.transport.write(b"never read")
    raw = there.transport.get_extra_info("socket")
    await until(lambda: _has_input(there, raw))
    there.transport.abort()
    await there.lost
    await here.lost
    server.close()
    return [there.seen, here.seen]


def _has_input(end: Recorder, raw: Any) -> bool:
    """Whether bytes wait in the kernel."""
    received = getattr(raw._sock, "received", None)
    if received is not None:
        return bool(received)
    try:
        return bool(raw._sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


async def abort_without_unread_bytes_is_an_end() -> list[object]:
    there, here, server = await pair()
    there.transport.abort()
    await there.lost
    await here.lost
    server.close()
    return [there.seen, here.seen]


async def linger_of_zero_resets() -> list[object]:
    there, here, server = await pair()
    there.transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    there.transport.close()
    await there.lost
    await here.lost
    server.close()
    return [there.seen, here.seen]


async def writing_to_a_closed_end_is_an_error() -> list[object]:
    there, here, server = await pair()
    here.keeps_open = True
    there.transport.close()
    await there.lost

    def ask() -> bool:
        here.transport.write(b"anybody there?")
        return here.lost.done()

    await until(ask)
    server.close()
    kind = cast("tuple[str, str]", here.seen[-1])[1]
    return [here.seen[:-1], kind in {"ConnectionResetError", "BrokenPipeError"}]


async def half_closed_end_still_writes() -> list[object]:
    there, here, server = await pair()
    here.keeps_open = there.keeps_open = True
    there.transport.write_eof()
    here.transport.write(b"after your end")
    here.transport.write_eof()
    await until(lambda: "eof" in there.seen)
    there.transport.close()
    here.transport.close()
    await there.lost
    await here.lost
    server.close()
    return [bytes(there.received), there.seen, here.seen]


async def closing_sends_what_was_written() -> list[object]:
    there, here, server = await pair()
    here.transport.write(b"x" * 3_000_000)
    here.transport.close()
    is_closing = here.transport.is_closing()
    await there.lost
    server.close()
    return [is_closing, len(there.received), there.seen, here.seen[-1]]


async def addresses() -> list[object]:
    loop = asyncio.get_running_loop()
    there, here, server = await pair()
    second = Recorder()
    port = server.sockets[0].getsockname()[1]
    seen: list[object] = [
        here.transport.get_extra_info("peername") == (HOST, port),
        here.transport.get_extra_info("sockname") == there.transport.get_extra_info("peername"),
        here.transport.get_extra_info("socket").family == socket.AF_INET,
        port > 0,
    ]
    try:
        await loop.create_server(Recorder, HOST, port)
    except OSError as error:
        seen.append(error.errno)
    try:
        await loop.create_server(Recorder, "192.0.2.1", 0)
    except OSError as error:
        seen.append(error.errno)
    here.transport.abort()
    await there.lost
    server.close()
    other = await loop.create_server(lambda: second, "0.0.0.0", 0)
    port = other.sockets[0].getsockname()[1]
    transport, _ = await loop.create_connection(Recorder, HOST, port, local_addr=("127.0.0.1", 0))
    await second.made
    seen.append(other.sockets[0].getsockname()[0])
    seen.append(second.transport.get_extra_info("peername")[0])
    transport.abort()
    await second.lost
    other.close()
    return seen


class Buffered(asyncio.BufferedProtocol):
    """Takes at most 1000 bytes at once."""

    def __init__(self) -> None:
        self.buffer = bytearray(1000)
        self.received = bytearray()
        self.largest = 0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.largest = max(self.largest, nbytes)
        self.received += self.buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


async def buffered_protocol() -> list[object]:
    client = Buffered()
    there, _, server = await pair(client)
    content = hashlib.shake_128(b"buffered").digest(300_000)
    there.transport.write(content)
    there.transport.close()
    await client.ended
    server.close()
    return [client.received == content, client.largest]


async def closed_listener_keeps_its_connections() -> list[object]:
    there, here, server = await pair()
    server.close()
    here.transport.write(b"still here")
    here.transport.close()
    await there.lost
    await server.wait_closed()  # since Python 3.12 it waits for connections too
    return [bytes(there.received), server.sockets]


async def _application() -> tuple[web.AppRunner, str, list[object]]:
    seen: list[object] = []

    async def echo(request: web.Request) -> web.Response:
        seen.append(request.transport.get_extra_info("peername") if request.transport else None)
        return web.Response(body=await request.read(), headers={"X-Path": request.path})

    async def chunked(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b"one", b"two", b"three" * 50_000):
            await response.write(part)
        return response

    async def talk(request: web.Request) -> web.WebSocketResponse:
        talking = web.WebSocketResponse()
        await talking.prepare(request)
        async for message in talking:
            if message.type is WSMsgType.TEXT:
                await talking.send_str(message.data[::-1])
            elif message.type is WSMsgType.BINARY:
                await talking.send_bytes(message.data * 2)
        seen.append(("closed with", talking.close_code))
        return talking

    async def upgrade(request: web.Request) -> web.Response:
        transport = request.transport
        assert transport is not None
        transport.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n")
        taken = Recorder()
        before = transport.get_protocol()
        transport.set_protocol(taken)
        taken.connection_made(transport)
        await taken.lost
        seen.append(bytes(taken.received))
        before.connection_lost(None)
        return web.Response()

    application = web.Application()
    application.router.add_post("/echo", echo)
    application.router.add_get("/chunked", chunked)
    application.router.add_get("/talk", talk)
    application.router.add_get("/upgrade", upgrade)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    return runner, f"http://{host}:{port}", seen


async def http_with_keep_alive() -> list[object]:
    runner, address, peers = await _application()
    seen: list[object] = []
    async with aiohttp.ClientSession() as session:
        for size in (0, 10, 100_000):
            async with session.post(f"{address}/echo", data=b"b" * size) as answer:
                seen.append((answer.status, len(await answer.read()), answer.headers["X-Path"]))
        async with session.get(f"{address}/chunked") as answer:
            seen.append(len(await answer.read()))
        async with session.get(f"{address}/nowhere") as answer:
            seen.append(answer.status)
    await runner.cleanup()
    return [*seen, "connections", len(set(map(str, peers)))]


async def web_socket() -> list[object]:
    runner, address, seen = await _application()
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{address}/talk") as talking:
            await talking.send_str("abc")
            seen.append(await talking.receive_str())
            await talking.send_bytes(b"z" * 200_000)
            seen.append(len(await talking.receive_bytes()))
            await talking.ping()
        seen.append(talking.close_code)
    await runner.cleanup()
    return sorted(seen, key=str)


async def http_upgrade() -> list[object]:
    runner, address, seen = await _application()
    port = int(address.rpartition(":")[2])
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"raw bytes")
    writer.close()
    await until(lambda: bool(seen))
    await runner.cleanup()
    return [head[:12], *seen]


async def client_leaves_a_long_poll() -> list[object]:
    seen: list[object] = []
    loop = asyncio.get_running_loop()
    left = loop.create_future()

    async def poll(request: web.Request) -> web.Response:
        try:
            await loop.create_future()
        except asyncio.CancelledError:
            left.set_result("cancelled")
            raise
        return web.Response()

    application = web.Application()
    application.router.add_get("/", poll)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.05)) as session:
        try:
            await session.get("http://{}:{}/".format(*runner.addresses[0][:2]))
        except TimeoutError:
            seen.append("timeout")
    seen.append(await left)
    await runner.cleanup()
    return seen


SCRIPTS: tuple[Script, ...] = (
    echo_with_half_close,
    large_transfer_with_back_pressure,
    refused,
    closing_with_unread_bytes_resets,
    abort_without_unread_bytes_is_an_end,
    linger_of_zero_resets,
    writing_to_a_closed_end_is_an_error,
    half_closed_end_still_writes,
    closing_sends_what_was_written,
    addresses,
    buffered_protocol,
    closed_listener_keeps_its_connections,
    http_with_keep_alive,
    web_socket,
    http_upgrade,
    client_leaves_a_long_poll,
)
