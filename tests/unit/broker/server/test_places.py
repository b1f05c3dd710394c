"""Connections that only stand there shut nobody out (ADR 18)."""

import asyncio
import gc
from typing import Any

import pytest
from tests.support.http.door import Door, a_batch, a_door
from tests.support.http.places import close, connect
from tests.support.http.stream import a_fetch
from tests.support.http.stream_client import UPGRADE, RawStream
from tests.support.http.turns import turn
from tests.support.service.fakes import until

from paceline.server import connections as places
from paceline.server import http_guard
from paceline.server.http_guard import GuardedHandler
from paceline.server.http_listener import Arrival
from paceline.wire.stream import Operation
from paceline_broker.server import stream_stillness
from paceline_broker.server.stream import StreamConnection

BATCHES = "/v1/topics/orders/queues/0/batches"
TYPE = {"Content-Type": "application/vnd.paceline.batch"}
WAIT = b"GET /v1/topics/orders/queues/0/messages?offset=0&wait_ms=20000 HTTP/1.1\r\nHost: x\r\n\r\n"
OF_A_CONNECTION = (places.Connection, Arrival, GuardedHandler, StreamConnection)


async def asked(door: Door, path: str) -> int:
    """The status of one request on a connection of its own."""
    reader, writer = await connect(door, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1])


def of_connections() -> list[Any]:
    """Objects of connections that are there, garbage or not."""
    return [each for each in gc.get_objects() if isinstance(each, OF_A_CONNECTION)]


@pytest.mark.parametrize("data", [b"", b"GET /v1/status HTTP/1.1\r\nX: "], ids=["none", "half"])
async def test_connections_without_a_request_shut_nobody_out(data: bytes) -> None:
    async with a_door(connections_max=16) as door:
        silent = [await connect(door, data) for _ in range(40)]

        assert (await door.ask("GET", "/v1/status"))[0] == 200
        assert (await door.ask("POST", BATCHES, data=a_batch(), headers=TYPE))[0] == 200

        await until(lambda: door.http.connections_count <= 16)
        async with asyncio.timeout(10):
            assert await silent[0][0].read() == b""
        close(*silent)


async def test_streams_that_ask_nothing_shut_nobody_out() -> None:
    async with a_door(connections_max=16) as door:
        streams = [await RawStream.open(door.port) for _ in range(40)]
        stream = await RawStream.open(door.port)

        stream.ask(1, Operation.PRODUCE, a_batch())

        assert (await stream.answer())[2] == 0
        assert (await door.ask("GET", "/v1/status"))[0] == 200
        await until(lambda: door.service.counters.streams_open <= 8)
        for each in (*streams, stream):
            each.close()


async def test_a_stream_at_work_keeps_its_place() -> None:
    async with a_door(connections_max=16) as door:
        working = await RawStream.open(door.port)
        working.ask(1, Operation.FETCH, a_fetch((1, 0, 0), wait_ms=20_000))
        await until(lambda: door.service.counters.stream_requests == 1)

        others = [await RawStream.open(door.port) for _ in range(40)]
        assert (await door.ask("POST", BATCHES, data=a_batch(), headers=TYPE))[0] == 200

        assert (await working.answer())[0] == 1
        for each in (*others, working):
            each.close()


async def test_where_all_connections_are_at_work_health_is_still_told() -> None:
    async with a_door(connections_max=8) as door:
        waiting = [await connect(door, WAIT) for _ in range(4)]
        await until(lambda: door.service.counters.http_requests == 4)
        silent = [await connect(door) for _ in range(100)]

        assert [await asked(door, path) for path in ("/v1/status", "/metrics")] == [200, 200]
        assert await asked(door, "/v1/topics/orders/queues/0/messages?offset=0") == 429

        close(waiting[0])
        await until(lambda: door.http.places.common.count == 3)
        assert await asked(door, "/v1/topics/orders/queues/0/messages?offset=0") == 200
        close(*waiting[1:], *silent)


@pytest.mark.parametrize(
    "data",
    [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", UPGRADE],
    ids=["silent", "kept", "stream"],
)
async def test_a_connection_that_has_ended_needs_no_collection_of_garbage(data: bytes) -> None:
    """A full collection stops the loop, for 250 ms after some thousand connections with cycles."""
    async with a_door() as door:
        gc.collect()
        gc.disable()
        before = {id(each) for each in of_connections()}  # what other tests have left
        try:
            connections = [await connect(door, data) for _ in range(10)]
            await until(lambda: door.http.connections_count == 10)
            if data:
                for reader, _ in connections:
                    await reader.readuntil(b"\r\n\r\n")
            close(*connections)
            await until(lambda: door.http.connections_count == 0)
            for _ in range(5):  # what the loop has to do when they end
                await turn()
            left = [each for each in of_connections() if id(each) not in before]
        finally:
            gc.enable()

        assert not left


async def test_a_connection_that_sends_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_guard, "HEADER_TIMEOUT_S", 0.05)
    async with a_door() as door:
        silent = await connect(door)

        async with asyncio.timeout(10):
            assert await silent[0].read() == b""

        close(silent)
        await until(lambda: door.http.connections_count == 0)


@pytest.mark.parametrize("asks", [False, True])
async def test_a_stream_that_asks_nothing_more_ends(
    monkeypatch: pytest.MonkeyPatch, *, asks: bool
) -> None:
    monkeypatch.setattr(stream_stillness, "STALL_SWEEP_S", 0.01)
    monkeypatch.setattr(stream_stillness, "IDLE_SWEEPS" if not asks else "UNUSED_SWEEPS", 1_000_000)
    async with a_door() as door:
        stream = await RawStream.open(door.port)
        if asks:
            stream.ask(1, Operation.PRODUCE, a_batch())
            assert (await stream.answer())[2] == 0

        assert await stream.ended() == b""
        await until(lambda: door.http.connections_count == 0)


async def test_a_stream_that_waits_for_messages_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_stillness, "STALL_SWEEP_S", 0.001)
    monkeypatch.setattr(stream_stillness, "IDLE_SWEEPS", 2)
    async with a_door() as door:
        stream = await RawStream.open(door.port)

        stream.ask(1, Operation.FETCH, a_fetch((1, 0, 0), wait_ms=300))

        assert (await stream.answer())[0] == 1
        stream.close()
