"""The public port of the gRPC door, without a cluster behind it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from tests.support.certificates import Authority
from tests.support.controller.harness import eventually
from tests.support.gateway.authenticators import an_authenticator
from tests.support.gateway.grpc_client import (
    RawClient,
    a_door,
    consumer_settings,
    producer_settings,
    within,
)

from paceline.errors import PacelineError, UnauthenticatedError
from paceline.net.cluster import Cluster
from paceline.platform.address import Address
from paceline.platform.runtime import SystemClock
from paceline.platform.telemetry import Metrics
from paceline.security.certificates import TlsFiles
from paceline.security.identity import Principal
from paceline.security.node_tls import NodeTls, TlsMode
from paceline.server.byte_budget import ByteBudget
from paceline_gateway import slow_readers
from paceline_gateway.clusters import UserClusters
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.doors import DoorContext
from paceline_gateway.grpc.door import open_door
from paceline_gateway.grpc.server import REQUEST_BYTES_MAX, GrpcServer
from paceline_gateway.grpc.service import telemetry
from paceline_gateway.grpc.service.service import METHODS, SERVICE
from paceline_gateway.grpc.service.telemetry import COMMANDS_MAX, Stream
from paceline_gateway.grpc.sniff import Relay
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code
from paceline_gateway.identity import Authenticator

NOBODY = "127.0.0.1:1"
"""No node of a cluster answers there."""


@contextlib.asynccontextmanager
async def door(**options: Any) -> AsyncIterator[int]:
    async with a_door(NOBODY, **options) as port:
        yield port


async def test_settings_are_answered_while_no_node_of_the_cluster_answers() -> None:
    async with door() as port, RawClient(port) as client:
        stream = client.telemetry()
        for settings in (producer_settings("orders"), consumer_settings("work", "orders")):
            await stream.write(settings)
            answer = await within(stream.read())
            assert answer.status.code == Code.OK
            assert answer.settings.HasField("backoff_policy")
        stream.cancel()


async def test_settings_that_are_wrong_are_refused_and_the_stream_goes_on() -> None:
    async with door() as port, RawClient(port) as client:
        stream = client.telemetry()
        await stream.write(wire.TelemetryCommand(settings={}))
        refused = await within(stream.read())
        await stream.write(producer_settings("orders"))
        answer = await within(stream.read())

        assert refused.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        assert answer.status.code == Code.OK
        stream.cancel()


async def test_a_client_that_opens_another_stream_is_told_there() -> None:
    async with door() as port, RawClient(port) as client:
        first = client.telemetry()
        await first.write(producer_settings("orders"))
        await within(first.read())
        second = client.telemetry()
        await second.write(producer_settings("orders"))

        assert (await within(second.read())).status.code == Code.OK
        assert await within(first.read()) is grpc.aio.EOF
        second.cancel()


async def test_one_port_takes_tls_and_plain(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("localhost")
    tls = NodeTls(TlsFiles(files.certificate, files.key, files.authority), TlsMode.PREFERRED)
    trust = grpc.ssl_channel_credentials(Path(files.authority).read_bytes())
    async with (
        door(tls=tls) as port,
        RawClient(port) as plain,
        RawClient(port, credentials=trust) as encrypted,
    ):
        for client in (plain, encrypted):
            answer = await client.call("Heartbeat", wire.HeartbeatRequest())
            assert answer.status.code == Code.OK
    assert (tls.plain_count, tls.tls_count) == (1, 1)


async def test_whoever_dials_the_port_behind_the_relay_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner: list[int] = []
    made = GrpcServer.start

    async def start(server: GrpcServer, host: str, port: int) -> int:
        found = await made(server, host, port)
        assert server._relay is not None
        inner.append(server._relay._port)
        return found

    monkeypatch.setattr(GrpcServer, "start", start)
    async with door() as port, RawClient(inner[0]) as intruder, RawClient(port) as client:
        refused = await intruder.call("Heartbeat", wire.HeartbeatRequest())
        answer = await client.call("Heartbeat", wire.HeartbeatRequest())

    assert refused.status.code == Code.UNAUTHORIZED
    assert answer.status.code == Code.OK


async def test_a_port_is_nobodys_once_the_server_has_ended_its_connection() -> None:
    """Also while the client has not read all of it."""
    dialled: list[tuple[int, asyncio.StreamWriter]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.append((writer.get_extra_info("peername")[1], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay = Relay(server.sockets[0].getsockname()[1], connections_max=64)
    port = await relay.listen("127.0.0.1", 0, None)
    raw = socket.create_connection(("127.0.0.1", port))
    try:
        await eventually(lambda: dialled and relay.peer(dialled[0][0]), "it is relayed")
        inner, writer = dialled[0]
        (outer,) = relay._open
        await eventually(lambda: _is_unread(outer, writer), "the client takes no more")
        writer.close()

        await eventually(lambda: relay.peer(inner) is None, "its port is nobody's")
        assert relay._open == {outer}
    finally:
        raw.close()
        await relay.close()
        server.close()


def _is_unread(outer: Any, writer: asyncio.StreamWriter) -> bool:
    """Write some more; whether the relay has bytes that the client does not take."""
    waiting: int = outer.transport.get_write_buffer_size()
    if not waiting:
        writer.write(b"x" * 32 * 1024)
    return waiting > 0


async def test_a_user_that_is_not_known_is_told_so_by_each_call() -> None:
    class Nobody(Authenticator):
        def grpc(self, *_: object, **__: object) -> Principal:
            raise UnauthenticatedError("who are you?")

    async with door(authenticator=an_authenticator(Nobody)) as port, RawClient(port) as client:
        for name, method in METHODS.items():
            if not method.client_streaming:
                request = GetMessageClass(method.input_type)()
                found = await client.call(name, request)
                answer = found[0] if isinstance(found, list) else found
                assert answer.status.code == Code.UNAUTHORIZED, name
        stream = client.telemetry()
        assert (await within(stream.read())).status.code == Code.UNAUTHORIZED


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\xff\xff" + b"x" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, b"PRI * HTTP"],
)
async def test_garbage_ends_its_own_connection_only(garbage: bytes) -> None:
    async with door() as port, RawClient(port) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(garbage)
        writer.write_eof()
        await within(reader.read())
        writer.close()

        answer = await client.call("Heartbeat", wire.HeartbeatRequest())
    assert answer.status.code == Code.OK


@pytest.mark.parametrize("request_line", [b"GET / HTTP/1.1", b"POST /v1/topics HTTP/1.1"])
async def test_who_speaks_http_1_is_told_what_port_this_is(request_line: bytes) -> None:
    async with door() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_line + b"\r\nHost: localhost\r\n\r\n")

        answer = await within(reader.read())

        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"takes gRPC clients of RocketMQ, and no HTTP/1" in body
        writer.close()


async def test_content_that_is_no_protobuf_is_grpcs_own_error() -> None:
    async with door() as port, RawClient(port) as client:
        call = client._channel.unary_unary(f"/{SERVICE.full_name}/SendMessage")
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"\xff\xff\xff", metadata=client.metadata)
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await client._channel.unary_unary("/apache.rocketmq.v2.MessagingService/No")(b"")
        answer = await client.call("Heartbeat", wire.HeartbeatRequest())

    assert unknown.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert answer.status.code == Code.OK


async def test_an_address_beyond_its_connections_loses_its_oldest() -> None:
    async with door(connections_max=4) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        ended = [asyncio.ensure_future(reader.read()) for reader, _ in idle]  # noqa: TID251
        async with RawClient(port) as client:
            answer = await client.call("Heartbeat", wire.HeartbeatRequest())
        for _, writer in idle:
            writer.close()
        await asyncio.gather(*ended, return_exceptions=True)

    assert answer.status.code == Code.OK


async def test_a_gateway_opens_and_closes_the_door() -> None:
    clusters = UserClusters(lambda principal: Cluster(NOBODY))
    config = SimpleNamespace(
        grpc_listen=Address("127.0.0.1", 0), connections_max=100, node_id=lambda: "gateway@here"
    )
    parts = SimpleNamespace(
        config=config,
        clusters=clusters,
        clients=ConnectedClients(SystemClock()),
        authenticator=an_authenticator(),
        on_refused=lambda *_: None,
        tls=None,
        budget=ByteBudget(),
        metrics=Metrics(cluster="c", node_type="gateway", node_id="g"),
    )
    opened = open_door(cast(DoorContext, parts))

    await opened.start()
    await opened.close()
    await opened.close()


async def test_a_client_that_reads_nothing_is_asked_no_more() -> None:
    stream = Stream(ByteBudget().holder(""))
    command = producer_settings("orders")

    told = [stream.put(command) for _ in range(COMMANDS_MAX + 1)]
    stream.end()

    assert told == [True] * COMMANDS_MAX + [False]
    assert len([each async for each in stream.commands()]) == COMMANDS_MAX
    assert not stream.put(command)


class ByName(Authenticator):
    """Whoever shows a name is that user."""

    def grpc(self, authorization: str | None, *_: object, **__: object) -> Principal:
        return Principal(authorization or "", "10.0.0.1", door="grpc")


async def test_an_id_of_another_users_client_is_another_client() -> None:
    async with (
        door(authenticator=an_authenticator(ByName)) as port,
        RawClient(port, authorization="anna") as anna,
        RawClient(port, authorization="ben") as ben,
    ):
        stream = anna.telemetry()
        await stream.write(producer_settings("orders"))
        await within(stream.read())
        others = ben.telemetry()
        await others.write(producer_settings("orders"))
        await within(others.read())
        await ben.call("NotifyClientTermination", wire.NotifyClientTerminationRequest())
        assert await within(others.read()) is grpc.aio.EOF

        await stream.write(producer_settings("orders"))

        assert (await within(stream.read())).status.code == Code.OK
        stream.cancel()


async def test_a_client_that_writes_without_end_and_reads_nothing_keeps_nobody_out() -> None:
    async with door() as port, RawClient(port) as client, RawClient(port, "another") as other:
        endless = client.telemetry()
        many = consumer_settings("work", "orders")
        many.settings.subscription.subscriptions.extend(
            many.settings.subscription.subscriptions[0:1] * 200
        )
        for _ in range(500):
            await endless.write(many)

        answer = await within(other.call("Heartbeat", wire.HeartbeatRequest()))

        assert answer.status.code == Code.OK
        endless.cancel()


async def test_a_request_that_is_too_large_is_refused_and_the_connection_goes_on() -> None:
    async with door() as port, RawClient(port) as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.send(client.message("orders", bytes(REQUEST_BYTES_MAX)))
        answer = await client.call("Heartbeat", wire.HeartbeatRequest())

    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert answer.status.code == Code.OK


async def test_calls_are_counted_with_their_statuses() -> None:
    metrics = Metrics(cluster="c", node_type="gateway", node_id="g")
    async with door(metrics=metrics) as port, RawClient(port) as client:
        await client.call("Heartbeat", wire.HeartbeatRequest())
        await client.call("PullMessage", wire.PullMessageRequest())
        stream = client.telemetry()
        await stream.write(producer_settings("orders"))
        await within(stream.read())
        await client.call("NotifyClientTermination", wire.NotifyClientTerminationRequest())
        assert await within(stream.read()) is grpc.aio.EOF
        text = metrics.exposition()[0].decode()

    for line in (
        'paceline_gateway_grpc_calls_total{call="Heartbeat"} 1.0',
        'paceline_gateway_grpc_calls_total{call="Telemetry"} 1.0',
        'paceline_gateway_grpc_call_errors_total{call="PullMessage",status="NOT_IMPLEMENTED"} 1.0',
    ):
        assert line in text
    assert 'paceline_gateway_grpc_call_errors_total{call="Heartbeat"' not in text


@pytest.fixture
def _cut_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_readers, "TAKING_S", 0.2)


@pytest.mark.usefixtures("_cut_soon")
async def test_a_client_that_does_not_read_its_stream_is_cut_and_nobody_else() -> None:
    budget = ByteBudget()
    async with (
        door(budget=budget) as port,
        RawClient(port) as client,
        RawClient(port, "another") as other,
    ):
        well = other.telemetry()
        await well.write(producer_settings("orders"))
        await within(well.read())
        slow = client.telemetry()
        many = consumer_settings("work", "orders")
        many.settings.subscription.subscriptions.extend(
            many.settings.subscription.subscriptions[0:1] * 500
        )

        async def write_on() -> None:
            while True:
                await slow.write(many)

        with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
            await within(write_on())

        assert await slow.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
        await well.write(producer_settings("orders"))
        assert (await within(well.read())).status.code == Code.OK
        await eventually(lambda: budget.used_bytes == 0, "nothing is kept of it")
        well.cancel()


@pytest.mark.usefixtures("_cut_soon")
async def test_a_connection_that_does_not_read_is_cut() -> None:
    """Whatever it says of its windows."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(64 * 1024))
                await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay = Relay(server.sockets[0].getsockname()[1], connections_max=64)
    port = await relay.listen("127.0.0.1", 0, None)
    raw = socket.create_connection(("127.0.0.1", port))
    try:
        await eventually(lambda: relay._open, "it is relayed")
        await eventually(lambda: not relay._open, "it is cut")
    finally:
        raw.close()
        await relay.close()
        server.close()


async def test_one_user_has_a_share_of_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "STREAMS_MAX", 8)
    async with (
        door(authenticator=an_authenticator(ByName)) as port,
        RawClient(port, authorization="anna") as anna,
        RawClient(port, authorization="ben") as ben,
    ):
        held = [anna.telemetry(f"a{number}") for number in range(4)]
        for stream in held:
            await stream.write(producer_settings("orders"))
            assert (await within(stream.read())).status.code == Code.OK

        refused = anna.telemetry("a4")
        again, other = anna.telemetry("a0"), ben.telemetry("b")

        assert (await within(refused.read())).status.code == Code.TOO_MANY_REQUESTS
        for stream in (again, other):
            await stream.write(producer_settings("orders"))
            assert (await within(stream.read())).status.code == Code.OK


async def test_who_comes_without_tls_where_it_is_demanded_is_told_of(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("localhost")
    tls = NodeTls(TlsFiles(files.certificate, files.key, files.authority), TlsMode.ENFORCING)
    told: list[tuple[str, str, str]] = []

    def refused(door: str, source: str, error: PacelineError) -> None:
        told.append((door, source, error.code))

    async with door(tls=tls, on_refused=refused) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\n")
        await eventually(lambda: told, "it is told")
        writer.close()

    assert told == [("grpc", "127.0.0.1", "BAD_REQUEST")]
