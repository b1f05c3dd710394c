"""What a message costs the client, counted in instructions of Python's interpreter.

Counts do not depend on the machine or on what else runs there, so they show a cost that comes back
long before a benchmark does. Limits are a twentieth above the largest count of Python 3.11 to 3.13:
whoever exceeds one for a good reason raises it.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.support.client.fake_cluster import FakeCluster
from tests.support.http.turns import turn

import paceline
from paceline.errors import PacelineError
from paceline.message import Message, received_messages
from paceline.net.stream_connection import OnAnswer, OnLost, parse_fetch_answer
from paceline.producer.producer import Producer
from paceline.producer.results import SendResult
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch
from paceline.records.header import parse_header
from paceline.wire.stream import FETCH_ANSWER, FETCH_PART, PRODUCE_ANSWER, STATUS_OK, ProduceAnswer

PACKAGE = str(Path(paceline.__file__).parent)
COUNT = 64
"""Messages in a batch."""


class Instructions:
    """`with Instructions() as counted`: of the modules of paceline, in this thread."""

    def __init__(self) -> None:
        self.count = 0
        self._before: Any = None

    def __enter__(self) -> "Instructions":
        self._before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # or Python 3.12 counts nothing the first time
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _entered(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace = self._ran  # before the next line, or Python 3.13 counts less
        frame.f_trace_opcodes = True
        return self._ran

    def _ran(self, frame: FrameType, event: str, argument: object) -> Any:
        self.count += event == "opcode"
        return self._ran

    @property
    def each(self) -> float:
        return self.count / COUNT


class MemoryConnection:
    """Answers what is produced at the next turn of the loop."""

    in_flight_per_queue_max = 2
    address = ""
    on_read: Callable[[], None] | None = None
    on_closed: Callable[[], None] | None = None

    def __init__(self) -> None:
        self._queued: list[tuple[OnAnswer, Any, int]] = []

    def has_credit(self, size_bytes: int) -> bool:
        return True

    def produce(self, batch: bytes, on_answer: OnAnswer, on_lost: OnLost, context: Any) -> None:
        self._queued.append((on_answer, context, parse_header(batch).record_count))

    def flush(self) -> None:
        asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        queued, self._queued = self._queued, []
        for on_answer, context, count in queued:
            body = PRODUCE_ANSWER.pack(*ProduceAnswer(1, count, 0, 1, 1, 0, 1).packed())
            on_answer(context, STATUS_OK, memoryview(body))

    def close(self) -> None:
        pass


@asynccontextmanager
async def producing() -> AsyncIterator[Producer]:
    """A producer whose master answers from memory, with a topic of four queues."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 4)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"first"))
            (lane,) = producer._dispatch._lanes.values()
            real, lane.link.connection = lane.link.connection, MemoryConnection()  # type: ignore[assignment]
            yield producer
            lane.link.connection = real


@pytest.mark.parametrize(("key", "most"), [(None, 460), ("k", 590)])
async def test_what_an_awaited_send_costs(key: str | None, most: int) -> None:
    message = Message("orders", bytes(1024), key)
    async with producing() as producer:
        with Instructions() as counted:
            waits = [producer.send(message).__await__() for _ in range(COUNT)]
            waiters = [next(wait) for wait in waits]
            while not waiters[-1].done():
                await turn()
            results = [waiter.result() for waiter in waiters]

    assert {result.queue_offset for result in results} == set(range(COUNT))
    assert counted.each < most


async def test_what_a_send_with_a_callback_costs() -> None:
    message = Message("orders", bytes(1024))
    told: list[SendResult | PacelineError | None] = []
    async with producing() as producer:
        with Instructions() as counted:
            for _ in range(COUNT):
                producer.send_nowait(message, lambda result, error: told.append(error or result))
            while len(told) < COUNT:
                await turn()

    assert not any(isinstance(each, PacelineError) for each in told)
    assert counted.each < 435


def batch_of(count: int) -> bytes:
    bodies = [bytes(1024) for _ in range(count)]
    return encode_batch(bodies, born_unix_ms=1, topic_id=1, queue_id=0)


def test_what_encoding_costs() -> None:
    with Instructions() as counted:
        batch_of(COUNT)

    assert counted.each < 9


def test_what_fetched_messages_cost() -> None:
    batch = batch_of(COUNT)
    part = FETCH_PART.pack(1, 0, 0, 0, COUNT, len(batch), 0, 0)
    answer = memoryview(FETCH_ANSWER.pack(1, 1, 0) + part + batch)
    with Instructions() as counted:
        ((_, data),) = parse_fetch_answer(answer).parts
        view = BatchView(data)
        view.verify()
        messages = list(received_messages(view, topic="orders", group="g1"))

    assert [message.queue_offset for message in messages] == list(range(COUNT))
    assert counted.each < 31
