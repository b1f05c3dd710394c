"""Telemetry streams, without gRPC."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.controller.harness import eventually
from tests.support.gateway.grpc_client import producer_settings, within

from paceline.errors import DeadlineError, OverloadedError, PacelineError, PeerError
from paceline.net.cluster import Cluster
from paceline.platform.runtime import SystemClock, spawn
from paceline.security.identity import Principal
from paceline.server.byte_budget import ByteBudget
from paceline_gateway.clusters import UserClusters
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.grpc.service import telemetry
from paceline_gateway.grpc.service.call import Call, call_of
from paceline_gateway.grpc.service.telemetry import COMMANDS_MAX, Stream, TelemetryCalls
from paceline_gateway.grpc.service.transactions import Transactions
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code, Endpoints, Status


def nowhere(principal: Principal) -> Cluster:
    raise PeerError("no node answers")


def a_call(user: str, client_id: str) -> Call:
    return call_of(
        {"x-mq-client-id": client_id},
        Principal(user, "10.0.0.1"),
        UserClusters(nowhere),
        deadline_ms=None,
        endpoints=Endpoints(),
    )


async def settings() -> AsyncIterator[Any]:
    """A client that tells its settings, and nothing after that."""
    yield producer_settings("orders")
    await asyncio.Event().wait()


async def test_a_client_whose_next_stream_finds_no_place_is_asked_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telemetry, "STREAMS_MAX", 8)
    clients = ConnectedClients(SystemClock())
    left: list[str] = []
    transactions = Transactions(clients)
    monkeypatch.setattr(transactions, "left", lambda client: left.append(client.key.client_id))
    calls = TelemetryCalls(clients, transactions, ByteBudget())
    streams = []
    for user, count in (("anna", 4), ("ben", 2), ("carl", 2)):
        for number in range(count):
            stream = calls.telemetry(settings(), a_call(user, f"{user}{number}"))
            await within(anext(stream))
            streams.append(stream)

    with pytest.raises(OverloadedError):
        await anext(calls.telemetry(settings(), a_call("anna", "anna0")))

    assert [answer async for answer in streams[0]] == []
    assert left == ["anna0"]
    assert len(calls._streams) == 7
    await calls.close()
    for stream in streams:
        assert [answer async for answer in stream] == []
    await eventually(lambda: not calls._streams, "they have ended")


def told(nonce: str, text: str = "main: at work", *, code: Code = Code.OK) -> wire.TelemetryCommand:
    return wire.TelemetryCommand(
        status=Status(code=code, message="as it is"),
        thread_stack_trace=wire.ThreadStackTrace(nonce=nonce, thread_stack_trace=text),
    )


class Asking:
    """A question to a client, which has read it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.answer = ""
        self.error: PacelineError | None = None
        self.task = spawn(self._ask(), name="asking")

    async def _ask(self) -> None:
        try:
            self.answer = await self._stream.stacks()
        except PacelineError as error:
            self.error = error

    async def nonce(self) -> str:
        """Of the question, as the client reads it."""
        command = await within(anext(self._stream.commands()))
        return str(command.print_thread_stack_trace_command.nonce)


async def test_an_answer_to_another_question_is_none() -> None:
    stream = Stream(ByteBudget().holder("10.0.0.1"))
    first, second = Asking(stream), Asking(stream)
    nonces = await first.nonce(), await second.nonce()

    stream.answered(told("made up"))
    stream.answered(told(nonces[1], "the second"))
    stream.answered(told(nonces[1], "once more"))
    stream.answered(told(nonces[0], "the first"))
    await within(asyncio.gather(first.task, second.task))

    assert (first.answer, second.answer) == ("the first", "the second")
    assert stream._asked == {}


async def test_a_client_that_cannot_answer_says_why() -> None:
    stream = Stream(ByteBudget().holder("10.0.0.1"))
    asking = Asking(stream)

    stream.answered(told(await asking.nonce(), "", code=Code.UNSUPPORTED))
    await within(asking.task)

    assert isinstance(asking.error, PeerError)
    assert "50500: as it is" in asking.error.message


async def test_a_silent_client_is_waited_for_no_longer_than_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telemetry, "ASK_MS", 20)
    stream = Stream(ByteBudget().holder("10.0.0.1"))

    with pytest.raises(DeadlineError):
        await stream.stacks()

    assert stream._asked == {}


async def test_a_client_that_goes_is_waited_for_no_more() -> None:
    stream = Stream(ByteBudget().holder("10.0.0.1"))
    asking, given_up = Asking(stream), Asking(stream)
    await asking.nonce()
    given_up.task.cancel()

    stream.end()
    await within(asking.task)

    assert isinstance(asking.error, PeerError)
    assert stream._asked == {}
    with pytest.raises(PeerError):
        await stream.stacks()


async def test_a_client_that_does_not_read_is_not_asked() -> None:
    stream = Stream(ByteBudget().holder("10.0.0.1"))
    for _ in range(COMMANDS_MAX):
        assert stream.put(wire.TelemetryCommand())

    with pytest.raises(OverloadedError):
        await stream.stacks()

    assert stream._asked == {}
