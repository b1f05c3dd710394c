"""The public port of the gRPC door: TLS and plain connections, told apart by the first byte.

gRPC's own server listens on a loopback port and cannot be handed a connection, so the bytes of each
connection are relayed to it, decrypted. By the relay's own port the server knows who a connection
is from; whoever reaches its loopback port otherwise is in no table, and is refused.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import NamedTuple, cast

from paceline.errors import BadRequestError, PacelineError
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.security.certificates import CLIENT_URI, uris_of
from paceline.security.listening import Listening, listen
from paceline.security.node_tls import NodeTls
from paceline.server.byte_budget import source_of
from paceline.server.connections import Connection, Connections, ConnectionState
from paceline.server.http_guard import refusal
from paceline_gateway.slow_readers import Taking

log = logging.getLogger("paceline.gateway")

_LOOPBACK = "127.0.0.1"
_WAITING_BYTES_MAX = 64 * 1024
"""That a side has not taken yet; then the other one is not read."""
_DIAL_TIMEOUT_S = 3.0
_HTTP_1 = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) /")
_NO_HTTP_1 = (
    "this port takes gRPC clients of RocketMQ, and no HTTP/1: brokers and controllers have"
    " paceline's HTTP API at their addresses (paceline cluster status)"
)


class Peer(NamedTuple):
    """The other end of a relayed connection."""

    source: str
    """Its address."""
    is_encrypted: bool
    certified: frozenset[str]
    """The users that its certificate is for."""


class Relay:
    """Relays connections to the server at a loopback port. Owner: the gateway's event loop."""

    def __init__(self, port: int, *, connections_max: int) -> None:
        self._port = port
        self._places = Connections(connections_max)
        self._peers: dict[int, tuple[Peer, _Outer]] = {}
        """By the relay's port of the connection to the server."""
        self._open: set[_Outer] = set()
        self._listening: Listening | None = None

    @property
    def count(self) -> int:
        """Connections that are open."""
        return len(self._open)

    async def listen(
        self,
        host: str,
        port: int,
        tls: NodeTls | None,
        *,
        on_refused: Callable[[str, PacelineError], None] = lambda source, error: None,
    ) -> int:
        """Take connections; the port. OSError: it is in use."""
        self._listening = await listen(
            lambda: _Outer(self), host, port, tls=tls, is_for_grpc=True, on_refused=on_refused
        )
        return self._listening.port

    def peer(self, port: int) -> Peer | None:
        """Whose connection comes to the server from that loopback port; None: no relayed one."""
        found = self._peers.get(port)
        return None if found is None else found[0]

    def cut(self, port: int) -> None:
        """End the connection that comes to the server from there: its client does not read."""
        found = self._peers.get(port)
        if found is not None:
            found[1].slow()

    def stop_listening(self) -> None:
        """Take no more connections. Idempotent."""
        if self._listening is not None:
            self._listening.close()

    async def close(self) -> None:
        """Take no more, and end what is open."""
        self.stop_listening()
        for outer in tuple(self._open):
            outer.abort()
        await cancel_and_wait(*(outer.dialling for outer in self._open))

    # -- of its connections -----------------------------------------------------------------------

    def opened(self, outer: "_Outer", source: str) -> Connection | None:
        """A place for it; None: there is none."""
        place, other = self._places.open(source)
        if other is not None:
            other.close()
        if place is not None:
            place.close = outer.abort
            self._open.add(outer)
        return place

    async def dial(self, outer: "_Outer", peer: Peer) -> None:
        """Connect a connection to the server."""
        loop = asyncio.get_running_loop()
        inner = _Inner(self, outer)
        try:
            async with asyncio.timeout(_DIAL_TIMEOUT_S):
                transport, _ = await loop.create_connection(lambda: inner, _LOOPBACK, self._port)
        except (OSError, TimeoutError):
            outer.abort()
            return
        if outer.transport is None or inner.transport is None:  # one of them has gone
            transport.close()
            return
        inner.port = transport.get_extra_info("sockname")[1]
        self._peers[inner.port] = peer, outer
        outer.joined(transport)

    def closed(self, outer: "_Outer") -> None:
        """The client's connection has ended."""
        self._open.discard(outer)

    def left(self, port: int) -> None:
        """A connection to the server has ended: whoever has its port next is somebody else."""
        del self._peers[port]


class _Side(asyncio.Protocol):
    """One of the two connections of a relayed one; what it receives, the other one sends."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WAITING_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.write(data)

    def write(self, data: bytes) -> None:
        """Send what the other side has received; it is open."""
        assert self.transport is not None
        self.transport.write(data)

    def eof_received(self) -> bool:
        return False  # gRPC has no half-closed connections

    def pause_writing(self) -> None:
        if (source := self._source) is not None:
            source.pause_reading()

    def resume_writing(self) -> None:
        if (source := self._source) is not None:
            source.resume_reading()

    @property
    def _source(self) -> asyncio.Transport | None:
        """Where what is written comes from, if that is open."""
        transport = None if self.other is None else self.other.transport
        return None if transport is None or transport.is_closing() else transport

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Outer(_Side):
    """The client's connection."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay
        self._place: Connection | None = None
        self._early: list[bytes] | None = []
        """What came before there was somebody to pass it on to; None: there is."""
        self._has_begun = False
        """Something has come."""
        self.dialling: asyncio.Task[None] | None = None
        self._taking: Taking | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self._taking = Taking(self.transport, self.slow)
        source = source_of(self.transport.get_extra_info("peername")[0])
        self._place = self._relay.opened(self, source)
        if self._place is None:
            self.transport.abort()
            return
        peer = _peer(self.transport, source)
        self.dialling = spawn(self._relay.dial(self, peer), name="grpc-relay")

    def joined(self, inner: asyncio.Transport) -> None:
        """The server's side is there, and knows who this is."""
        early, self._early = self._early, None
        if early:
            assert self.transport is not None
            inner.write(b"".join(early))
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._place is not None:
            self._place.is_now(ConnectionState.BUSY)
        if not self._has_begun and _HTTP_1.match(data):
            assert self.transport is not None
            self.transport.write(refusal(BadRequestError(_NO_HTTP_1)))
            self.transport.close()
            return
        self._has_begun = True
        if self._early is None:
            super().data_received(data)
            return
        # No earlier than now: uvloop reads on after a pause in `connection_made`.
        self._early.append(data)
        assert self.transport is not None
        self.transport.pause_reading()

    def write(self, data: bytes) -> None:
        assert self._taking is not None
        self._taking.wrote(len(data))
        super().write(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        assert self._taking is not None
        self._taking.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        assert self._taking is not None
        self._taking.end()

    def slow(self) -> None:
        """Its client does not read."""
        source = None if self._place is None else self._place.address
        log.info("slow_reader", extra={"source": source})
        self.abort()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._taking is not None:
            self._taking.end()
        self._relay.closed(self)
        if self._place is not None:
            self._place.ended()
            self._place.gone()


class _Inner(_Side):
    """The connection to the server."""

    def __init__(self, relay: Relay, outer: _Outer) -> None:
        super().__init__()
        self._relay = relay
        self.port: int | None = None
        """The relay's, once the server may know whose connection it is."""
        self.other = outer
        outer.other = self

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self.port is not None:
            self._relay.left(self.port)


def _peer(transport: asyncio.Transport, source: str) -> Peer:
    certificate = transport.get_extra_info("peercert")
    return Peer(
        source,
        transport.get_extra_info("ssl_object") is not None,
        uris_of(certificate, CLIENT_URI) if certificate else frozenset(),
    )
