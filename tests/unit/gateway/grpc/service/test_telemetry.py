"""Telemetry streams, without gRPC."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.controller.harness import eventually
from tests.support.gateway.grpc_client import producer_settings, within

from paceline.errors import OverloadedError, PeerError
from paceline.net.cluster import Cluster
from paceline.platform.runtime import SystemClock
from paceline.security.identity import Principal
from paceline.server.byte_budget import ByteBudget
from paceline_gateway.clusters import UserClusters
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.grpc.service import telemetry
from paceline_gateway.grpc.service.call import Call, call_of
from paceline_gateway.grpc.service.telemetry import TelemetryCalls
from paceline_gateway.grpc.service.transactions import Transactions
from paceline_gateway.grpc.stubs.resources_pb2 import Endpoints


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
