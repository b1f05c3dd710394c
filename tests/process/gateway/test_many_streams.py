"""Clients by the thousand, each with a Telemetry stream, at a real gateway."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.fuzzing import resident_bytes
from tests.support.gateway.grpc_client import RawClient, consumer_settings
from tests.support.process.harness import running_cluster

from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

STREAMS = 5_000
CONNECTIONS = 100
STREAM_BYTES_MAX = 64 * 1024
"""Of a stream and its client; 40 kB were measured."""
WITHIN_S = 120


async def test_5000_clients_that_come_at_once_are_answered_and_cost_a_bounded_memory(
    tmp_path: Path,
) -> None:
    """gRPC refused some of them by chance: more than 1,000 were not yet taken up by Python."""
    small = ("--controllers", "1", "--brokers", "1", "--doors", "grpc")
    with running_cluster(tmp_path / "data", *small) as cluster:
        gateway = next(node for node in cluster.nodes() if node.get("doors"))
        port = int(gateway["doors"]["grpc"].rpartition(":")[2])
        await _is_served(port)
        before = resident_bytes(gateway["pid"])
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(RawClient(port)) for _ in range(CONNECTIONS)]
            streams = await _all_answered(clients)
            grown = resident_bytes(gateway["pid"]) - before
            await _is_served(port)
            assert not any(stream.done() for stream in streams)

    assert grown < STREAMS * STREAM_BYTES_MAX, f"{grown // STREAMS} bytes for each"


async def _all_answered(clients: list[RawClient]) -> list[Any]:
    streams = []

    async def answered(number: int) -> int:
        stream = clients[number % CONNECTIONS].telemetry(f"host@{number}@0@a")
        streams.append(stream)
        await stream.write(consumer_settings("idle", "orders"))
        answer = await stream.read()
        return int(answer.status.code)

    async with asyncio.timeout(WITHIN_S):
        codes = await asyncio.gather(*(answered(number) for number in range(STREAMS)))
    assert set(codes) == {int(Code.OK)}
    return streams


async def _is_served(port: int) -> None:
    """Another client is, in time."""
    async with RawClient(port, "another") as client:
        answer = await client.call("Heartbeat", wire.HeartbeatRequest())
        assert answer.status.code == Code.OK
