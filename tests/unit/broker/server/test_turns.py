"""What many ask or wait for at one moment is answered over several turns of the loop (ADR 18)."""

import asyncio
from functools import partial

import orjson
import pytest
from aiohttp.web_protocol import RequestHandler
from tests.support.http.door import Door, a_batch, a_door
from tests.support.http.places import Connection, close, connect
from tests.support.http.stream import a_fetch
from tests.support.http.stream_client import RawStream
from tests.support.http.turns import per_turn, turn
from tests.support.service.fakes import a_view, until

from paceline.server import http_listener
from paceline.server.http_guard import GuardedHandler
from paceline.server.turns import Turns
from paceline.wire.stream import FETCH_QUEUE, FOLLOW_HEADER, Operation, encode_frame
from paceline_broker.server.stream import CALL_BYTES_OF_COST
from paceline_broker.server.stream_frames import TURN_REQUESTS_MAX
from paceline_broker.service.fetch import sessions

QUEUE = (1, 0, 0)
LIMIT = 16


async def ask_all(connections: list[Connection]) -> list[bytes]:
    """The heads of their answers to one question each, asked at one moment."""
    for _, writer in connections:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    return await heads(connections)


async def heads(connections: list[Connection]) -> list[bytes]:
    found = []
    async with asyncio.timeout(10):
        for reader, _ in connections:
            found.append(await reader.readuntil(b"\r\n\r\n"))
            size = int(found[-1].lower().split(b"content-length: ")[1].split()[0])
            await reader.readexactly(size)
    return found


@pytest.mark.parametrize("is_kept", [False, True], ids=["new", "kept"])
async def test_requests_of_many_connections_are_served_over_several_turns(
    monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    async with a_door() as door:
        connections = [await connect(door) for _ in range(100)]
        await until(lambda: door.http.connections_count == 100)
        if is_kept:
            await ask_all(connections)
        counts = per_turn(monkeypatch, RequestHandler, "data_received", until=100)

        answers = await ask_all(connections)

        assert {head.split()[1] for head in answers} == {b"200"}
        assert max(counts) <= http_listener.TURN_REQUESTS_MAX
        assert sum(counts) == 100
        close(*connections)


async def test_a_request_in_two_pieces_that_waits_for_its_turn_is_whole() -> None:
    async with a_door() as door:
        connections = [await connect(door) for _ in range(100)]
        await ask_all(connections)
        for _, writer in connections:
            writer.write(b"GET /healthz HTTP/1.1\r\nHo")
        for _, writer in connections:
            await writer.drain()
            writer.write(b"st: x\r\n\r\n")

        assert {head.split()[1] for head in await heads(connections)} == {b"200"}

        close(*connections)


async def test_many_requests_in_one_write_are_served_over_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)
        counts = per_turn(monkeypatch, door.service.fetcher, "fetch", until=1000)
        body = a_fetch(QUEUE)

        stream.writer.write(
            b"".join(encode_frame(number, Operation.FETCH, body) for number in range(1000))
        )
        answers = [await stream.answer() for _ in range(1000)]

        assert [number for number, *_ in answers] == list(range(1000))
        assert max(counts) <= TURN_REQUESTS_MAX
        stream.close()


async def test_calls_cost_by_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read a filter of 3 KB takes as long as to answer a dozen short requests."""
    async with a_door(turn_requests_max=LIMIT) as door:
        stream = await RawStream.open(door.port)
        expression = " OR ".join(f"b = '{number}'" for number in range(250))
        call = {"call": "filter", "type": "SQL92", "expression": expression}
        counts = per_turn(monkeypatch, door.service.calls, "call", until=40)

        body = orjson.dumps(call)
        stream.writer.write(
            b"".join(encode_frame(number, Operation.CALL, body) for number in range(40))
        )
        for _ in range(40):
            await stream.answer()

        assert max(counts) == 1 + LIMIT // (1 + len(body) // CALL_BYTES_OF_COST)
        stream.close()


@pytest.mark.parametrize("operation", [Operation.FETCH, Operation.PRODUCE])
async def test_requests_of_many_streams_are_served_over_several_turns(
    monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    async with a_door(turn_requests_max=LIMIT) as door:
        streams = [await RawStream.open(door.port) for _ in range(20)]
        owner = door.service.fetcher if operation is Operation.FETCH else door.service.sender
        name = "fetch" if operation is Operation.FETCH else "send"
        counts = per_turn(monkeypatch, owner, name, until=200)
        body = a_fetch(QUEUE) if operation is Operation.FETCH else a_batch()

        frames = b"".join(encode_frame(number, operation, body) for number in range(10))
        for stream in streams:
            stream.writer.write(frames)
        answers = [[await stream.answer() for _ in range(10)] for stream in streams]

        assert all([number for number, *_ in of_one] == list(range(10)) for of_one in answers)
        assert max(counts) <= LIMIT
        assert sum(counts) == 200
        for stream in streams:
            stream.close()


async def test_long_polls_that_one_message_ends_are_answered_over_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_door(turn_requests_max=LIMIT) as door:
        streams = await _waiting(door, Operation.FETCH, a_fetch(QUEUE, wait_ms=20_000), 50)
        await until(lambda: door.service.fetcher.waiting_count == 50)
        counts = per_turn(monkeypatch, door.service.fetcher, "_try_answer", until=50)

        await _one_message_ends(door, streams)

        assert max(counts) <= LIMIT
        assert sum(counts) == 50


async def test_fetch_sessions_look_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_door(turn_requests_max=LIMIT) as door:
        rows = FETCH_QUEUE.pack(1, 0, 0, 1 << 20, 0)
        body = FOLLOW_HEADER.pack(1, 20_000, 1 << 20, 1) + rows
        streams = await _waiting(door, Operation.FOLLOW, body, 50)
        await until(lambda: door.service.fetcher.sessions.queue_count == 50)
        counts = per_turn(monkeypatch, sessions._Session, "_harvest", until=50)

        await _one_message_ends(door, streams)

        assert max(counts) <= LIMIT


async def test_watches_of_the_routes_end_over_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_door() as door:
        question = f"GET /v1/watch?from={door.service.routes.version} HTTP/1.1\r\nHost: x\r\n\r\n"
        connections = [await connect(door, question.encode()) for _ in range(50)]
        await until(lambda: door.service.counters.http_requests == 50)
        counts = per_turn(monkeypatch, GuardedHandler, "finish_response", until=50)

        door.service.view_changed(a_view(version=2))

        assert {head.split()[1] for head in await heads(connections)} == {b"200"}
        assert max(counts) <= http_listener.TURN_REQUESTS_MAX
        assert sum(counts) == 50
        close(*connections)


async def test_nobody_waits_for_all_that_another_one_asks() -> None:
    turns, done = Turns(4), list[str]()
    for number in range(100):
        turns.add(partial(done.append, f"many {number}"), asker="many")
    turns.add(partial(done.append, "few"), asker="few")

    await until(lambda: len(done) == 101)

    assert done.index("few") < 8
    assert len(set(done)) == 101


async def test_of_one_asker_the_newest_and_the_oldest_come_by_turns() -> None:
    turns, done = Turns(1), list[int]()
    for number in range(7):
        turns.add(partial(done.append, number), asker="a")

    await until(lambda: len(done) == 7)

    assert done == [0, 6, 1, 5, 2, 4, 3]


async def test_nobody_starves_where_askers_ask_on_for_ever() -> None:
    turns, done = Turns(2), list[str]()
    for number in range(20):
        for asker in "ab":
            turns.add(partial(done.append, f"{asker}{number}"), asker)

    for _ in range(60):
        for asker in "ababab":  # more than there is room for
            turns.later(partial(done.append, f"{asker} more"), asker)
        await turn()

    assert {f"{asker}{number}" for asker in "ab" for number in range(20)} <= set(done)


async def _waiting(door: Door, operation: Operation, body: bytes, count: int) -> list[RawStream]:
    """Streams that have asked once, and wait."""
    streams = [await RawStream.open(door.port) for _ in range(count)]
    for stream in streams:
        stream.ask(1, operation, body)
    return streams


async def _one_message_ends(door: Door, waiting: list[RawStream]) -> None:
    """Send it; each stream that waits is answered, and closed."""
    sender = await RawStream.open(door.port)
    sender.ask(1, Operation.PRODUCE, a_batch())
    for stream in (*waiting, sender):
        assert (await stream.answer())[0] == 1
        stream.close()
