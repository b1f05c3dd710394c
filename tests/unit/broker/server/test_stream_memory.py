"""What strangers make the stream door hold (ADR 18): announced frames, unread answers, floods."""

import asyncio
import tracemalloc

import orjson
import pytest
from tests.support.http.door import a_batch, a_door
from tests.support.http.stream import a_fetch
from tests.support.http.stream_client import RawStream
from tests.support.http.turns import per_turn
from tests.support.service.fakes import until

from paceline.records.header import Codec
from paceline.server.byte_budget import MIB
from paceline.wire.stream import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    Operation,
    ProduceAnswer,
    encode_frame,
)
from paceline_broker.server import stream_stillness

HEAD = FRAME_HEADER.pack(FRAME_BYTES_MAX, 1, Operation.PRODUCE, 0, 0)


async def test_a_head_that_announces_a_large_frame_allocates_next_to_nothing() -> None:
    async with a_door() as door:
        streams = [await RawStream.open(door.port) for _ in range(20)]
        taken = door.service.counters.http_requests
        tracemalloc.start()
        try:
            for stream in streams:
                stream.writer.write(HEAD)
            await door.ask("GET", "/v1/probe")
            await until(lambda: door.service.counters.http_requests > taken)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert peak < 8 * MIB
        assert door.service.budget.used_bytes <= 20 * 64 * 1024
        for stream in streams:
            stream.close()
        await until(lambda: door.service.counters.streams_open == 0)
        assert door.service.budget.used_bytes == 0


@pytest.mark.parametrize("piece", [777, 100_000, 1 << 24])
async def test_a_frame_without_room_is_refused_and_the_stream_goes_on(piece: int) -> None:
    async with a_door(request_bytes_max=4 * MIB) as door:
        stream = await RawStream.open(door.port)
        frames = encode_frame(1, Operation.PRODUCE, a_batch(b"x" * 3_000_000))
        frames += encode_frame(2, Operation.PRODUCE, a_batch(b"small"))

        for at in range(0, len(frames), piece):
            stream.writer.write(frames[at : at + piece])
            await stream.writer.drain()

        answers = [await stream.answer() for _ in range(2)]
        assert [(number, status) for number, _, status, _ in answers] == [(1, 1), (2, 0)]
        assert orjson.loads(answers[0][3])["code"] == "OVERLOADED"
        assert sum(map(len, door.log.batches)) < 3_000_000
        assert door.service.budget.refused > 0
        stream.close()


async def test_frames_of_one_connection_grow_again_after_another_has_gone() -> None:
    async with a_door(request_bytes_max=16 * MIB) as door:
        greedy = [await RawStream.open(door.port) for _ in range(12)]
        for each in greedy:
            each.writer.write(encode_frame(1, Operation.PRODUCE, a_batch(b"x" * 3_000_000))[:-1])
        await until(lambda: door.service.budget.refused > 0)
        stream = await RawStream.open(door.port)
        batch = a_batch(b"y" * 1_500_000)

        for each in greedy:
            each.writer.transport.abort()
        await until(lambda: door.service.counters.streams_open == 1)
        stream.ask(2, Operation.PRODUCE, batch)

        assert (await stream.answer())[2] == 0
        stream.close()


async def test_answers_that_nobody_reads_stop_the_serving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)
        stream.ask(1, Operation.PRODUCE, a_batch(b"x" * 2_000_000))
        await stream.answer()
        turns = per_turn(monkeypatch, door.service.fetcher, "fetch", until=400)
        body = a_fetch((1, 0, 0), max_bytes=16 * MIB)
        transport: asyncio.Transport = stream.writer.transport  # type: ignore[assignment]
        transport.pause_reading()

        stream.writer.write(
            b"".join(encode_frame(number, Operation.FETCH, body) for number in range(400))
        )
        await until(lambda: sum(turns) > 1)
        for _ in range(100):
            await door.ask("GET", "/v1/probe")

        assert sum(turns) < 20
        assert door.service.budget.used_bytes < 16 * MIB
        transport.resume_reading()
        for number in range(400):
            assert (await stream.answer())[0] == number
        stream.close()


async def test_a_frame_of_which_nothing_comes_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_stillness, "STALL_SWEEP_S", 0.05)
    async with a_door() as door:
        stream = await RawStream.open(door.port)

        stream.writer.write(HEAD + bytes(FRAME_HEADER_BYTES))

        assert await stream.ended() == b""
        await until(lambda: door.service.budget.used_bytes == 0)


async def test_what_is_held_goes_back_when_a_connection_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_stillness, "STALL_SWEEP_S", 0.05)
    async with a_door() as door:
        stream = await RawStream.open(door.port)
        stream.ask(1, Operation.PRODUCE, a_batch(b"x" * 2_000_000))
        await stream.answer()

        await until(lambda: door.service.budget.used_bytes == 0)

        stream.ask(2, Operation.PRODUCE, a_batch(b"x" * 2_000_000))
        assert (await stream.answer())[2] == 0
        stream.close()


@pytest.mark.parametrize("piece", [777, 1 << 24])
async def test_what_comes_behind_a_long_check_waits_for_it(piece: int) -> None:
    """The order of one connection's sends holds, whatever their checks cost."""
    async with a_door() as door:
        stream = await RawStream.open(door.port)
        count = 20_000
        long = a_batch(*[b""] * count, properties=[{"a": "1"}] * count, codec=Codec.ZSTD)
        frames = encode_frame(1, Operation.PRODUCE, long)
        frames += encode_frame(2, Operation.PRODUCE, a_batch(b"small"))
        frames += encode_frame(3, Operation.CALL, orjson.dumps({"call": "nothing"}))
        frames += encode_frame(4, Operation.PRODUCE, long)
        frames += encode_frame(5, Operation.PRODUCE, a_batch(b"last"))
        for at in range(0, len(frames), piece):
            stream.writer.write(frames[at : at + piece])
            await stream.writer.drain()

        answers = [await stream.answer() for _ in range(5)]

        assert sorted(answer[0] for answer in answers) == [1, 2, 3, 4, 5]
        offsets = {
            request_id: ProduceAnswer.unpack(body).base_queue_offset
            for request_id, operation, _, body in answers
            if operation == Operation.PRODUCE
        }
        assert offsets == {1: 0, 2: count, 4: count + 1, 5: 2 * count + 1}
        stream.close()


async def test_a_stream_that_ends_leaves_no_check_behind() -> None:
    async with a_door() as door:
        stored = door.log.end
        stream = await RawStream.open(door.port)
        rows = [{f"p{number}": "" for number in range(60)}] * 25_000
        long = a_batch(*[b""] * len(rows), properties=rows, codec=Codec.ZSTD)
        stream.ask(1, Operation.PRODUCE, long)
        await until(lambda: not door.service.work.is_idle)
        [connection] = door.http._streams._connections
        assert connection._transport is not None
        connection._transport.abort()

        await until(lambda: door.service.work.is_idle)
        stream.close()

        assert door.log.end == stored
        assert door.service.budget.used_bytes == 0
