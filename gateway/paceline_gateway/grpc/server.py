"""The gRPC server: who calls, and the way of each call into the service.

The status of gRPC itself is always OK, but for what is no message of the protocol; clients read the
status inside the answers.
"""

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from paceline.errors import PacelineError, UnauthenticatedError
from paceline.security.audit_peers import OnRefused
from paceline.security.node_tls import NodeTls
from paceline.server.connections import CONNECTIONS_MAX
from paceline_gateway import slow_readers
from paceline_gateway.clusters import UserClusters
from paceline_gateway.grpc.codec.limits import BODY_BYTES_MAX
from paceline_gateway.grpc.codec.statuses import status_of
from paceline_gateway.grpc.service.call import Call, call_of
from paceline_gateway.grpc.service.service import METHODS, GrpcService, failed
from paceline_gateway.grpc.sniff import Relay
from paceline_gateway.grpc.stubs.resources_pb2 import Address as WireAddress
from paceline_gateway.grpc.stubs.resources_pb2 import AddressScheme, Endpoints
from paceline_gateway.identity import Authenticator

log = logging.getLogger("paceline.gateway")

STREAMS_OF_CONNECTION_MAX = 1_000
"""Calls under way at a time. A push consumer has one for each queue, and Telemetry."""
REQUEST_BYTES_MAX = BODY_BYTES_MAX + 1024 * 1024
"""A message of the largest size, and what is said of it."""
PENDING_MAX = 8_000
"""Calls that Python has not taken up yet; beyond it gRPC refuses them by chance. With its own
default, 1,000, some hundreds of 5,000 clients that came at once were refused."""
PINGS_MS_MIN = 10_000
"""Clients that ping more often are disconnected; Java's do every 300 s, also without calls."""
_STOP_S = 5.0
_HEADERS_BYTES_MAX = 16 * 1024
_LOOPBACK = "127.0.0.1:0"


class GrpcServer:
    """The public port, the relay behind it, and gRPC's own server behind that."""

    def __init__(
        self,
        service: GrpcService,
        *,
        clusters: UserClusters,
        authenticator: Authenticator,
        tls: NodeTls | None,
        connections_max: int = CONNECTIONS_MAX,
        on_refused: OnRefused = lambda door, source, error: None,
    ) -> None:
        self._service = service
        self._clusters = clusters
        self._authenticator = authenticator
        self._tls = tls
        self._connections_max = connections_max
        self._on_refused = partial(on_refused, "grpc")
        self._endpoints = Endpoints()
        self._relay: Relay | None = None
        self._server: Any = None
        clusters.traffic.listeners.append(lambda: 0 if self._relay is None else self._relay.count)

    async def start(self, host: str, port: int) -> int:
        """Listen; the port. OSError: it is in use."""
        self._server = server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
                ("grpc.max_metadata_size", _HEADERS_BYTES_MAX),
                ("grpc.max_concurrent_streams", STREAMS_OF_CONNECTION_MAX),
                ("grpc.server.max_pending_requests", PENDING_MAX),
                ("grpc.server.max_pending_requests_hard_limit", 2 * PENDING_MAX),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", PINGS_MS_MIN),
                ("grpc.so_reuseport", 0),
            )
        )
        server.add_generic_rpc_handlers((_Handlers(self),))
        inner = server.add_insecure_port(_LOOPBACK)
        await server.start()
        self._relay = Relay(inner, connections_max=self._connections_max)
        found = await self._relay.listen(host, port, self._tls, on_refused=self._on_refused)
        self._endpoints = endpoints_at(host, found)
        return found

    async def close(self) -> None:
        """Take no more, let calls under way end, end all connections. Idempotent."""
        if self._server is None:
            return
        server, self._server = self._server, None
        if self._relay is not None:
            self._relay.stop_listening()
        await self._service.leave()
        await server.stop(_STOP_S)
        await self._service.close()
        if self._relay is not None:
            await self._relay.close()

    # -- calls ------------------------------------------------------------------------------------

    def call(self, context: Any) -> Call:
        """Who calls; PacelineError."""
        headers = {key.lower(): value for key, value in context.invocation_metadata() or ()}
        peer = None if self._relay is None else self._relay.peer(_port_of(context.peer()))
        if peer is None:
            raise UnauthenticatedError("connect to the public port of the gateway")
        principal = self._authenticator.grpc(
            headers.get("authorization"),
            headers.get("x-mq-date-time"),
            peer.source,
            is_encrypted=peer.is_encrypted,
            certified=peer.certified,
        )
        left_s = context.time_remaining()
        return call_of(
            headers,
            principal,
            self._clusters,
            deadline_ms=None if left_s is None else max(0, int(left_s * 1000)),
            endpoints=self._endpoints,
        )

    def cut(self, context: Any) -> None:
        """The client of a call does not read its answers."""
        if self._relay is not None:
            self._relay.cut(_port_of(context.peer()))

    async def unary(self, name: str, request: Any, context: Any) -> Any:
        """One answer."""
        try:
            call = self.call(context)
        except PacelineError as error:
            return failed(name, status_of(error))
        return await self._service.answer(name, request, call)

    async def stream(self, name: str, request: Any, context: Any) -> AsyncIterator[Any]:
        """Many answers."""
        try:
            call = self.call(context)
        except PacelineError as error:
            yield failed(name, status_of(error))
            return
        async for answer in self._service.answers(name, request, call):
            yield answer

    async def both_ways(self, name: str, requests: Any, context: Any) -> AsyncIterator[Any]:
        """Telemetry."""
        try:
            call = self.call(context)
        except PacelineError as error:
            yield failed(name, status_of(error))
            return
        async for command in self._service.telemetry(requests, call):
            yield command


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """From the name of a call to its way."""

    def __init__(self, server: GrpcServer) -> None:
        self._of = {
            f"/{method.containing_service.full_name}/{name}": _handler(server, name, method)
            for name, method in METHODS.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        """None: there is no such call, which gRPC answers itself."""
        return self._of.get(handler_call_details.method)


def _handler(server: GrpcServer, name: str, method: Any) -> Any:
    codecs = {
        "request_deserializer": GetMessageClass(method.input_type).FromString,
        "response_serializer": GetMessageClass(method.output_type).SerializeToString,
    }
    if method.client_streaming:
        both_ways = _bound(server, server.both_ways, name)
        return grpc.stream_stream_rpc_method_handler(both_ways, **codecs)
    if method.server_streaming:
        stream = _bound(server, server.stream, name)
        return grpc.unary_stream_rpc_method_handler(stream, **codecs)

    async def unary(request: Any, context: Any) -> Any:
        return await server.unary(name, request, context)

    return grpc.unary_unary_rpc_method_handler(unary, **codecs)


_Streaming = Callable[[str, Any, Any], AsyncIterator[Any]]


def _bound(
    server: GrpcServer, stream: _Streaming, name: str
) -> Callable[[Any, Any], AsyncIterator[Any]]:
    """gRPC looks at what kind of function a handler is. It asks for the next answer when the client
    has let it send the one before."""

    async def bound(request: Any, context: Any) -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        async for answer in stream(name, request, context):
            late = loop.call_later(slow_readers.TAKING_S, server.cut, context)
            try:
                yield answer
            finally:
                late.cancel()

    return bound


def _port_of(peer: str) -> int:
    """Of "ipv4:127.0.0.1:4711"; 0 for anything else."""
    text = peer.rpartition(":")[2]
    return int(text) if text.isascii() and text.isdecimal() else 0


def endpoints_at(host: str, port: int) -> Endpoints:
    """An address as clients are told it."""
    scheme = AddressScheme.DOMAIN_NAME
    try:
        version = ipaddress.ip_address(host).version
        scheme = AddressScheme.IPv4 if version == 4 else AddressScheme.IPv6
    except ValueError:
        pass  # a name
    return Endpoints(scheme=scheme, addresses=[WireAddress(host=host, port=port)])
