"""The stream door over a real socket, on fakes of log and role."""

import asyncio
import struct

import orjson
import pytest
from tests.support.http.door import a_batch, a_door
from tests.support.http.stream import a_fetch
from tests.support.http.stream_client import RawStream
from tests.support.service.fakes import OTHER_MASTER, until

from paceline.records.decode import BatchView
from paceline.wire.stream import (
    FETCH_ANSWER,
    FETCH_HEADER,
    FETCH_PART,
    FETCH_QUEUE,
    FOLLOW_ANSWER,
    FOLLOW_HEADER,
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    PRODUCE_ANSWER,
    FetchCode,
    FetchPart,
    Operation,
    ProduceAnswer,
    encode_frame,
)


def parts_of(body: bytes) -> tuple[list[FetchPart], bytes]:
    _, count, _ = FETCH_ANSWER.unpack_from(body)
    at = FETCH_ANSWER.size
    parts = [
        FetchPart._make(FETCH_PART.unpack_from(body, at + index * FETCH_PART.size))
        for index in range(count)
    ]
    return parts, body[at + count * FETCH_PART.size :]


async def test_batch_is_stored_and_fetched_byte_for_byte() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)
        batch = a_batch(b"one", b"two")

        stream.ask(5, Operation.PRODUCE, batch)
        request_id, operation, status, body = await stream.answer()

        assert (request_id, operation, status) == (5, Operation.PRODUCE, 0)
        answer = ProduceAnswer.unpack(body)
        assert (answer.master_epoch, answer.record_count, answer.base_queue_offset) == (1, 2, 0)
        assert answer.confirm == door.log.end
        stream.ask(6, Operation.FETCH, a_fetch((1, 0, 0)))
        _, _, status, body = await stream.answer()
        parts, batches = parts_of(body)
        assert status == 0
        assert parts[0] == FetchPart(1, 0, FetchCode.OK, 0, 2, len(batch))
        assert batches[96:] == batch[96:]
        assert BatchView(batches).bodies() == [b"one", b"two"]
        stream.close()


async def test_hello_names_the_broker_and_its_credit() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)

        assert stream.hello["cluster_id"] == "cluster"
        assert stream.hello["replica_id"] == 1
        assert stream.hello["credit_bytes"] > 1 << 20
        stream.close()


@pytest.mark.parametrize("piece", [1, 11, 12, 13, 100, 70_000])
async def test_frames_may_arrive_in_any_pieces(piece: int) -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)
        size = 300_000 if piece > 1000 else 200
        frames = b"".join(
            encode_frame(number, Operation.PRODUCE, a_batch(bytes([number]) * size))
            for number in range(1, 4)
        )

        for at in range(0, len(frames), piece):
            stream.writer.write(frames[at : at + piece])
            await stream.writer.drain()
        answers = [await stream.answer() for _ in range(3)]

        assert [(answer[0], answer[2]) for answer in answers] == [(1, 0), (2, 0), (3, 0)]
        stored = [view.bodies()[0] for view in door.log.views() if view.header.topic_id]
        assert stored == [bytes([number]) * size for number in range(1, 4)]
        stream.close()


async def test_answers_of_one_turn_come_in_log_order() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)

        for number in range(100):
            stream.ask(number, Operation.PRODUCE, a_batch(b"x", queue_id=number % 4))
        answers = [await stream.answer() for _ in range(100)]

        assert [answer[0] for answer in answers] == list(range(100))
        stream.close()


async def test_damaged_batch_is_refused_and_the_stream_goes_on() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)
        damaged = bytearray(a_batch(b"hello"))
        damaged[-3] ^= 1

        stream.ask(1, Operation.PRODUCE, bytes(damaged))
        stream.ask(2, Operation.PRODUCE, a_batch(b"good"))
        first, second = await stream.answer(), await stream.answer()

        problem = orjson.loads(first[3])
        assert (first[0], first[2], problem["code"]) == (1, 1, "CORRUPT_BATCH")
        assert problem["definite"] is True
        assert (second[0], second[2]) == (2, 0)
        stream.close()


async def test_replica_answers_not_master_with_the_address() -> None:
    async with a_door() as door:
        door.role.become_replica()
        stream = await RawStream.open(door.port)

        stream.ask(1, Operation.PRODUCE, a_batch())
        _, _, status, body = await stream.answer()

        problem = orjson.loads(body)
        assert (status, problem["code"], problem["master"]) == (1, "NOT_MASTER", OTHER_MASTER)
        stream.close()


@pytest.mark.parametrize(
    "header",
    [
        FRAME_HEADER.pack(FRAME_BYTES_MAX + 1, 1, 1, 0, 0),
        FRAME_HEADER.pack(11, 1, 1, 0, 0),
        FRAME_HEADER.pack(100, 1, 9, 0, 0),
        FRAME_HEADER.pack(100, 1, 1, 1, 0),
        FRAME_HEADER.pack(100, 1, 1, 0, 7),
        FRAME_HEADER.pack(5_000_000, 1, Operation.CALL, 0, 0),
    ],
    ids=["too large", "too small", "operation", "status", "reserved", "large call"],
)
async def test_broken_framing_closes_the_connection(header: bytes) -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)

        stream.writer.write(header)

        assert await stream.ended() == b""
        assert door.log.views()[-1].header.topic_id == 0, "nothing was stored"
        await until(lambda: door.service.counters.streams_open == 0)


async def test_request_id_in_use_closes_the_connection() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)

        stream.ask(1, Operation.FETCH, a_fetch((1, 0, 0), wait_ms=5000))
        stream.ask(1, Operation.FETCH, a_fetch((1, 0, 0), wait_ms=5000))

        assert await stream.ended() == b""


async def test_fetch_waits_until_something_is_confirmed() -> None:
    async with a_door(is_automatic=False) as door:
        stream = await RawStream.open(door.port)
        stream.ask(1, Operation.FETCH, a_fetch((1, 0, 0), (1, 1, 0), wait_ms=10_000))
        stream.ask(2, Operation.PRODUCE, a_batch(queue_id=1))
        await until(lambda: len(door.log.batches) == 3)
        assert door.service.fetcher.waiting_count == 1

        door.writer.confirm_all()

        first, second = await stream.answer(), await stream.answer()
        assert [first[0], second[0]] == [2, 1]
        parts, _ = parts_of(second[3])
        assert [(part.queue_id, part.end) for part in parts] == [(0, 0), (1, 1)]
        assert door.service.fetcher.waiting_count == 0
        stream.close()


async def test_vanished_client_leaves_no_waiting_fetch() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)
        for number in range(10):
            stream.ask(number, Operation.FETCH, a_fetch((1, 0, 0), wait_ms=30_000))
        await until(lambda: door.service.fetcher.waiting_count == 10)

        stream.writer.transport.abort()
        stream.close()

        await until(lambda: door.service.fetcher.waiting_count == 0)
        await until(lambda: door.service.counters.streams_open == 0)


async def test_too_many_waiting_fetches_are_refused() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)

        for number in range(65):
            stream.ask(number, Operation.FETCH, a_fetch((1, 0, 0), wait_ms=30_000))
        request_id, _, status, body = await stream.answer()

        problem = orjson.loads(body)
        assert (request_id, status, problem["code"]) == (64, 1, "OVERLOADED")
        assert problem["retry_after_ms"] > 0
        stream.close()


async def test_malformed_fetch_and_call_are_refused_and_the_stream_goes_on() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)

        stream.ask(1, Operation.FETCH, b"xyz")
        stream.ask(2, Operation.FETCH, FETCH_HEADER.pack(0, 1, 1, 7))
        stream.ask(3, Operation.CALL, b"{")
        stream.ask(4, Operation.CALL, b'{"call": "nothing"}')
        stream.ask(5, Operation.PRODUCE, b"")
        answers = {answer[0]: answer for answer in [await stream.answer() for _ in range(5)]}

        assert [answers[number][2] for number in range(1, 6)] == [1] * 5
        codes = [orjson.loads(answers[number][3])["code"] for number in range(1, 6)]
        assert codes == ["BAD_REQUEST", "BAD_REQUEST", "BAD_JSON", "BAD_REQUEST", "CORRUPT_BATCH"]
        stream.close()


async def test_a_stream_has_a_fetch_session_and_it_goes_with_the_stream() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)
        rows = FETCH_QUEUE.pack(1, 0, 0, 1 << 20, 0) + FETCH_QUEUE.pack(1, 1, 0, 1 << 20, 0)
        stream.ask(1, Operation.FOLLOW, FOLLOW_HEADER.pack(1, 30_000, 1 << 20, 2) + rows)
        batch = a_batch(b"one")
        stream.ask(2, Operation.PRODUCE, batch)
        answers = {answer[0]: answer for answer in [await stream.answer() for _ in range(2)]}

        assert answers[1][1:3] == (Operation.FOLLOW, 0)
        assert FOLLOW_ANSWER.unpack_from(answers[1][3]) == (1,)
        parts, batches = parts_of(answers[1][3][FOLLOW_ANSWER.size :])
        assert parts == [FetchPart(1, 0, FetchCode.OK, 0, 1, len(batch))]
        assert batches[96:] == batch[96:]
        sessions = door.service.fetcher.sessions
        assert sessions.queue_count == 1
        stream.close()
        await until(lambda: sessions.queue_count == 0)


async def test_malformed_requests_to_follow_are_refused_and_the_stream_goes_on() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)
        stream.ask(1, Operation.FOLLOW, b"xyz")
        stream.ask(2, Operation.FOLLOW, FOLLOW_HEADER.pack(1, 0, 1, 1))
        stream.ask(3, Operation.FOLLOW, FOLLOW_HEADER.pack(2, 0, 1, 0))
        answers = [await stream.answer() for _ in range(3)]

        assert [answer[1:3] for answer in answers] == [(Operation.FOLLOW, 1)] * 3
        assert {orjson.loads(answer[3])["code"] for answer in answers} == {"BAD_REQUEST"}
        stream.ask(4, Operation.FOLLOW, FOLLOW_HEADER.pack(1, 0, 1, 0))
        assert (await stream.answer())[:3] == (4, Operation.FOLLOW, 0)
        stream.close()


async def test_calls_commit_and_query_offsets() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)
        stream.ask(1, Operation.PRODUCE, a_batch(b"a", b"b"))
        await stream.answer()
        queue = {"topic": "orders", "queue": 0}

        status, answer = await stream.call("commit", group="g", offsets=[{**queue, "offset": 2}])

        assert (status, answer["offsets"][0]["code"]) == (0, None)
        _, answer = await stream.call("offsets", group="g", queues=[queue])
        assert answer["offsets"][0]["offset"] == 2
        assert answer["epoch"] == 1
        assert answer["broker"] == {"group": "g1", "replica_id": 1}
        status, problem = await stream.call("commit", group="g", offsets=[{**queue, "offset": 1}])
        assert (status, problem["code"]) == (1, "OFFSET_MOVED_BACK")
        stream.close()


async def send_all(stream: RawStream, batch: bytes, count: int) -> None:
    """Without waiting for answers; the request ids are numbers from 0."""
    for number in range(count):
        stream.ask(number, Operation.PRODUCE, batch)
        await stream.writer.drain()


@pytest.mark.parametrize("turn_requests_max", [64, 1])
async def test_reading_pauses_when_the_credit_is_used_up(turn_requests_max: int) -> None:
    """Not before, also where a turn of the loop has room for one request and the next one waits."""
    async with a_door(is_automatic=False, turn_requests_max=turn_requests_max) as door:
        stream = await RawStream.open(door.port)
        body = a_batch(b"x" * 4_000_000)

        sending = asyncio.gather(send_all(stream, body, 24))
        await until(lambda: len(door.log.batches) >= 9)
        taken = len(door.log.batches)
        assert taken < 15
        door.log.is_automatic = True
        door.writer.confirm_all()
        answers = [await stream.answer() for _ in range(24)]

        await sending
        assert [answer[2] for answer in answers] == [0] * 24
        stream.close()


async def test_reading_pauses_while_the_window_has_no_room_for_a_connections_share() -> None:
    """R27: who floods waits in his own socket; who sends little is read from as ever."""
    async with a_door(is_automatic=False) as door:
        door.writer.window_bytes = 1_000_000
        flood, light = await RawStream.open(door.port), await RawStream.open(door.port)
        body = a_batch(b"x" * 200_000)

        sending = asyncio.gather(send_all(flood, body, 60))
        await until(lambda: len(door.log.batches) >= 5)
        light.ask(1, Operation.PRODUCE, a_batch(b"one"))
        await until(lambda: len(door.log.batches[-1]) < 1000)
        taken = len(door.log.batches)
        assert taken < 12
        door.log.is_automatic = True
        door.writer.confirm_all()
        answers = [await flood.answer() for _ in range(60)]

        await sending
        assert [answer[2] for answer in answers] == [0] * 60
        assert (await light.answer())[2] == 0
        flood.close()
        light.close()


async def test_closing_the_door_ends_streams() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)

        await door.http.close()

        assert await stream.ended() == b""


async def test_upgrade_with_another_token_is_told_the_right_one() -> None:
    async with a_door() as door:
        status, problem = await door.ask("GET", "/v1/stream")

        assert (status, problem["code"]) == (426, "UPGRADE_REQUIRED")


def test_produced_frame_has_the_documented_layout() -> None:
    assert struct.calcsize("<IIBBH" + "IIQQqQ") == 12 + PRODUCE_ANSWER.size
