"""Frames in any pieces, the handshake, and what a lost connection tells."""

import asyncio
import gc
from typing import Any

import orjson
import pytest

from paceline.errors import NotMasterError, OutcomeUnknownError, PeerError, to_problem
from paceline.net.stream_connection import (
    StreamConnection,
    UpgradeRefusedError,
    parse_fetch_answer,
)
from paceline.platform.runtime import SeededRandom
from paceline.wire.calls.offsets import Ends
from paceline.wire.stream import (
    FETCH_ANSWER,
    FETCH_PART,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    STATUS_ERROR,
    FetchPart,
    FetchQueue,
    Operation,
    encode_frame,
)

SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: paceline-stream/1\r\n\r\n"
HELLO = encode_frame(
    0,
    Operation.HELLO,
    orjson.dumps({"cluster_id": "c", "group": "g1", "replica_id": 1, "credit_bytes": 1000}),
)


class FakeTransport:
    """Notes what is written."""

    def __init__(self, connection: StreamConnection) -> None:
        self.written: list[bytes] = []
        self.is_aborted = False
        self._connection = connection

    def write(self, content: bytes) -> None:
        self.written.append(bytes(content))

    def abort(self) -> None:
        if not self.is_aborted:
            self.is_aborted = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def requests(self) -> list[tuple[int, int, bytes]]:
        """(request id, operation, body) of the frames after the upgrade request."""
        data = b"".join(self.written[1:])
        found = []
        while data:
            size, request_id, operation, _, _ = FRAME_HEADER.unpack_from(data)
            found.append((request_id, operation, data[FRAME_HEADER_BYTES:size]))
            data = data[size:]
        return found


def feed(connection: StreamConnection, data: bytes, sizes: SeededRandom | None = None) -> None:
    """Hand bytes over as a transport does, in pieces."""
    at = 0
    while at < len(data):
        buffer = connection.get_buffer(-1)
        want = len(data) - at if sizes is None else 1 + int(sizes.uniform(0, 3000) ** 1.5)
        count = min(len(buffer), want, len(data) - at)
        buffer[:count] = data[at : at + count]
        connection.buffer_updated(count)
        at += count


def an_open_connection() -> tuple[StreamConnection, FakeTransport]:
    connection = StreamConnection("127.0.0.1:1")
    transport = FakeTransport(connection)
    connection.connection_made(transport)  # type: ignore[arg-type]
    feed(connection, SWITCHING + HELLO)
    assert connection.is_open
    return connection, transport


async def test_the_upgrade_is_asked_for_and_hello_opens_the_stream() -> None:
    connection, transport = an_open_connection()

    await connection.wait_ready()

    assert transport.written[0].startswith(b"GET /v1/stream HTTP/1.1\r\n")
    assert (connection.group, connection.replica_id, connection.credit_bytes) == ("g1", 1, 1000)


@pytest.mark.parametrize("seed", range(8))
async def test_answers_are_found_in_any_pieces(seed: int) -> None:
    random = SeededRandom(f"pieces-{seed}")
    connection, _ = an_open_connection()
    answers: dict[int, bytes] = {}
    frames = b""
    expected = {}
    for number in range(60):
        size = int(random.uniform(0, 300_000 if number % 9 == 0 else 500))
        body = random.token(size)
        expected[number] = body

        def on_answer(context: int, status: int, answer: memoryview) -> None:
            answers[context] = bytes(answer)

        connection.produce(b"x", on_answer, lambda _: None, number)
        frames += encode_frame(number + 1, Operation.PRODUCE, body)

    feed(connection, frames, random)

    assert answers == expected, f"seed {seed}"
    assert connection.unanswered_bytes == 0


async def test_requests_of_one_turn_leave_in_one_write() -> None:
    connection, transport = an_open_connection()

    for number in range(3):
        connection.produce(b"batch%d" % number, lambda *_: None, lambda _: None, number)
    before = len(transport.written)
    connection.flush()

    assert before == 1
    assert len(transport.written) == 2
    assert [body for _, _, body in transport.requests()] == [b"batch0", b"batch1", b"batch2"]


async def test_an_error_answer_becomes_its_exception() -> None:
    connection, _ = an_open_connection()
    calling = asyncio.get_running_loop().create_task(
        connection.call(Ends(queues=[]), timeout_ms=1000)
    )
    await asyncio.wait([calling], timeout=0)
    problem = orjson.dumps(to_problem(NotMasterError("no", master="127.0.0.1:9")))

    feed(connection, encode_frame(1, Operation.CALL, problem, status=STATUS_ERROR))

    with pytest.raises(NotMasterError) as caught:
        await calling
    assert caught.value.details == {"master": "127.0.0.1:9"}


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"queues": 1, "epoch": 1, "confirm": 1}'])
async def test_an_answer_that_cannot_be_read_is_an_unknown_outcome(body: bytes) -> None:
    connection, _ = an_open_connection()
    calling = asyncio.get_running_loop().create_task(
        connection.call(Ends(queues=[]), timeout_ms=1000)
    )
    await asyncio.wait([calling], timeout=0)

    feed(connection, encode_frame(1, Operation.CALL, body))

    with pytest.raises(OutcomeUnknownError):
        await calling


async def test_a_lost_connection_tells_everybody_once() -> None:
    connection, transport = an_open_connection()
    lost: list[Any] = []
    closed: list[bool] = []
    connection.on_closed = lambda: closed.append(True)
    connection.produce(b"x", lambda *_: None, lost.append, "batch")
    calling = asyncio.get_running_loop().create_task(
        connection.call(Ends(queues=[]), timeout_ms=1000)
    )
    await asyncio.wait([calling], timeout=0)

    transport.abort()

    with pytest.raises(OutcomeUnknownError, match="was lost"):
        await calling
    assert (lost, closed) == (["batch"], [True])
    assert not connection.is_open


@pytest.mark.parametrize(
    ("received", "error"),
    [
        (b"HTTP/1.1 426 Upgrade Required\r\n\r\n", UpgradeRefusedError),
        (b"x" * 20_000, PeerError),
        (SWITCHING + FRAME_HEADER.pack(3, 0, 0, 0, 0), PeerError),
        (SWITCHING + FRAME_HEADER.pack(1 << 30, 0, 0, 0, 0), PeerError),
        (SWITCHING + encode_frame(0, Operation.HELLO, b"[]"), PeerError),
        (SWITCHING + encode_frame(0, Operation.CALL, HELLO[FRAME_HEADER_BYTES:]), PeerError),
    ],
)
async def test_a_peer_that_is_no_broker_is_refused(received: bytes, error: type[PeerError]) -> None:
    connection = StreamConnection("127.0.0.1:1")
    transport = FakeTransport(connection)
    connection.connection_made(transport)  # type: ignore[arg-type]

    feed(connection, received)

    with pytest.raises(error):
        await connection.wait_ready()
    assert transport.is_aborted


async def test_a_fetch_goes_out_at_once_and_its_answer_is_split() -> None:
    connection, transport = an_open_connection()
    bodies: list[memoryview] = []
    connection.begin_fetch(
        [FetchQueue(1, 0, 5, 100)],
        wait_ms=10,
        max_bytes=100,
        on_answer=lambda context, status, body: bodies.append(body),
        on_lost=lambda _: None,
        context=None,
    )
    part = FetchPart(1, 0, 0, 0, 9, 4)
    answer = FETCH_ANSWER.pack(3, 1, 77) + FETCH_PART.pack(*part) + b"data"

    feed(connection, encode_frame(1, Operation.FETCH, answer))
    feed(connection, encode_frame(9, Operation.FETCH, b"other"))  # overwrites the scratch buffer

    parsed = parse_fetch_answer(bodies[0])
    assert transport.requests()[0][1] == Operation.FETCH
    assert (parsed.master_epoch, parsed.confirm) == (3, 77)
    assert [(item, bytes(data)) for item, data in parsed.parts] == [(part, b"data")]
    with pytest.raises(PeerError):
        parse_fetch_answer(bodies[0][:-1])


async def test_connection_lost_before_anybody_waits_for_it_is_no_forgotten_error() -> None:
    """A connect that was cancelled leaves a connection whose end nobody asks about."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    connection = StreamConnection("127.0.0.1:1")
    connection.connection_made(FakeTransport(connection))  # type: ignore[arg-type]

    connection.connection_lost(None)
    del connection
    gc.collect()

    assert told == []
