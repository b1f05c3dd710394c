"""What strangers make the HTTP door hold (ADR 18): slow bodies, unread answers."""

import asyncio

import pytest
from tests.support.http.door import Door, a_batch, a_door
from tests.support.service.fakes import until

from paceline.records.header import Codec
from paceline.server import http_bodies, http_guard
from paceline.server.byte_budget import MIB
from paceline.wire import http as wire_http

BATCHES = "/v1/topics/orders/queues/0/batches"
PULL = "/v1/topics/orders/queues/0/messages?offset=0&max_messages=10000&max_bytes=16777216"
PIECE = bytes(256 * 1024)
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def a_head(framing: str) -> bytes:
    return (
        f"POST {BATCHES} HTTP/1.1\r\nHost: x\r\nContent-Type: application/vnd.paceline.batch\r\n"
        f"{framing}\r\n\r\n"
    ).encode()


ANNOUNCED = a_head(f"Content-Length: {16 * MIB}")
CHUNKED = a_head("Transfer-Encoding: chunked")


async def connect(door: Door, data: bytes) -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    writer.write(data)
    return reader, writer


async def status(connection: Connection) -> int:
    """Of the answer, which must come and end the connection."""
    async with asyncio.timeout(20):
        answer = await connection[0].read()
    connection[1].transport.abort()
    return int(answer.split()[1])


async def test_an_announced_body_holds_nothing() -> None:
    async with a_door() as door:
        connections = [await connect(door, ANNOUNCED) for _ in range(20)]
        await until(lambda: door.service.counters.http_requests == 20)

        assert door.service.budget.used_bytes < 20 * 1024
        for _, writer in connections:
            writer.transport.abort()
        await until(lambda: door.service.budget.used_bytes == 0)


@pytest.mark.parametrize("framing", ["announced", "chunked"])
async def test_bodies_without_room_are_refused_at_once_and_the_others_go_on(framing: str) -> None:
    head, piece = ANNOUNCED, PIECE
    if framing == "chunked":
        head, piece = CHUNKED, b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
    async with a_door(request_bytes_max=16 * MIB) as door:
        budget, before = door.service.budget, door.log.end
        slow = [await connect(door, head) for _ in range(12)]

        for _ in range(15):
            for _, writer in slow:
                writer.write(piece)
        await until(lambda: budget.refused > 0)
        await until(lambda: budget.refused >= 4)

        assert budget.used_bytes <= budget.limit_bytes // 2
        assert (await door.ask("GET", "/v1/probe"))[0] == 200
        for _, writer in slow:
            writer.transport.abort()
        await until(lambda: budget.used_bytes == 0)
        assert door.log.end == before


async def test_a_body_without_room_is_answered_429_and_its_connection_ends() -> None:
    async with a_door(request_bytes_max=2 * MIB) as door:
        connection = await connect(door, ANNOUNCED + bytes(4 * MIB))

        assert await status(connection) == 429
        await until(lambda: door.service.budget.used_bytes == 0)
        assert (await door.ask("POST", BATCHES, data=a_batch(b"x"), headers=TYPE))[0] == 200


async def test_a_client_that_sends_all_of_a_refused_body_before_it_reads_sees_the_429() -> None:
    async with a_door(request_bytes_max=2 * MIB) as door:
        reader, writer = await connect(door, ANNOUNCED)

        for _ in range(64):
            writer.write(PIECE)
            await writer.drain()

        assert await status((reader, writer)) == 429
        await until(lambda: door.service.budget.used_bytes == 0)


TYPE = {"Content-Type": "application/vnd.paceline.batch"}


async def test_requests_behind_one_another_without_room_end_the_connection() -> None:
    async with a_door(request_bytes_max=2 * MIB) as door:
        waiting = b"GET /v1/topics/orders/queues/0/messages?offset=0&wait_ms=300 HTTP/1.1\r\n"
        ahead = b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + bytes(
            100_000
        )

        connection = await connect(door, waiting + b"Host: x\r\n\r\n" + ahead * 40)

        assert await status(connection) == 200
        await until(lambda: door.service.budget.used_bytes == 0)


@pytest.mark.parametrize("data", [ANNOUNCED + PIECE, CHUNKED + b"5\r\nhello"])
async def test_a_body_of_which_nothing_comes_is_ended(
    monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(http_bodies, "BODY_SILENCE_S", 0.05)
    monkeypatch.setattr(http_guard, "LINGERING_S", 0.05)
    async with a_door() as door:
        assert await status(await connect(door, data)) == 504
        await until(lambda: door.service.budget.used_bytes == 0)


@pytest.fixture
def _large_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of zeros is six times its size in JSON."""
    monkeypatch.setattr(wire_http, "CONTROLS_FROM_BYTES", 1 << 30)


async def compressed(door: Door) -> None:
    batch = a_batch(*[bytes(3 * MIB)] * 5, codec=Codec.ZSTD)
    assert (await door.ask("POST", BATCHES, data=batch, headers=TYPE))[0] == 200


async def unread(door: Door, request: bytes) -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(request)
    return reader, writer


@pytest.mark.usefixtures("_large_json")
async def test_answers_that_nobody_takes_are_bounded() -> None:
    async with a_door() as door:
        await compressed(door)
        budget = door.service.budget
        pull = f"GET {PULL} HTTP/1.1\r\nHost: x\r\n\r\n".encode()

        readers = [await unread(door, pull) for _ in range(8)]
        await until(lambda: budget.refused > 0)

        assert 16 * MIB < budget.used_bytes <= budget.limit_bytes // 2
        assert (await door.ask("GET", "/v1/status"))[0] == 200
        for _, writer in readers:
            writer.transport.abort()
        await until(lambda: budget.used_bytes == 0)


@pytest.mark.usefixtures("_large_json")
async def test_a_client_that_takes_nothing_of_its_answer_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_guard, "WRITE_TIMEOUT_S", 0.1)
    async with a_door() as door:
        await compressed(door)

        _, writer = await unread(door, f"GET {PULL} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

        await until(lambda: door.service.budget.peak_bytes > 16 * MIB)
        await until(lambda: door.service.budget.used_bytes == 0)
        writer.transport.abort()


async def test_what_was_stored_is_told_even_where_the_answer_has_no_room() -> None:
    async with a_door(request_bytes_max=2 * MIB) as door:
        messages = [{"body": ""}] * 2_000

        code, answer = await door.ask("POST", "/v1/topics/orders/messages", {"messages": messages})

        assert (code, len(answer["messages"])) == (200, 2_000)
        assert door.service.budget.used_bytes == 0


async def test_first_bytes_of_many_connections_at_once_are_bounded() -> None:
    async with a_door(request_bytes_max=8 * MIB) as door:
        budget = door.service.budget
        connections = [await connect(door, b"") for _ in range(60)]
        await until(lambda: door.http.connections_count == 60)

        for _, writer in connections:
            writer.write(b"GET /v1/status HTTP/1.1\r\nX: " + b"x" * 200_000)
        await until(lambda: door.http.connections_count == 0)

        for _, writer in connections:
            writer.transport.abort()
        assert 0 < budget.peak_bytes <= budget.limit_bytes // 2
        await until(lambda: budget.used_bytes == 0)


async def test_a_refused_body_is_no_late_head(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_guard, "HEADER_TIMEOUT_S", 0.02)
    async with a_door(request_bytes_max=2 * MIB) as door:
        connections = [await connect(door, ANNOUNCED) for _ in range(8)]
        for number in range(40):
            for _, writer in connections:
                writer.write(PIECE)
                if number > 20:
                    writer.write(b"\0")

        assert {await status(connection) for connection in connections} <= {408, 429}

        await until(lambda: door.http.connections_count == 0)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
