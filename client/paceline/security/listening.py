"""A listening port: plain, TLS, or both on one port, told apart by the first byte.

A TLS record begins with the byte 22, and no other protocol here does. The byte is looked at before
anything is read, so the connection is handed to the event loop whole. Half-open handshakes are
bounded: so many of one address, and so many in all, each for 5 s.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from paceline.errors import BadRequestError, PacelineError, PeerError
from paceline.platform.runtime import spawn
from paceline.platform.telemetry import strangers
from paceline.security.certificates import handshake_sentence
from paceline.security.node_tls import NodeTls
from paceline.server.byte_budget import source_of
from paceline.server.http_guard import refusal

BACKLOG = 1024
TURN_ACCEPTS_MAX = 64
HANDSHAKE_TIMEOUT_S = 5.0
"""From the accepted connection to the end of the handshake."""
RETRY_S = 1.0
"""Where a connection cannot be accepted: the port stays readable, and asking again at once would
keep the loop busy."""
HANDSHAKES_MAX = 512
HANDSHAKES_OF_ADDRESS_MAX = 128
_HANDSHAKE = 22
_TLS_ONLY = BadRequestError(
    "this port takes TLS only: name the authority of the cluster's certificates (PACELINE_TLS_CA)"
)

ProtocolFactory = Callable[[], asyncio.Protocol]


class Listening:
    """An open port."""

    def __init__(self, port: int, close: Callable[[], None]) -> None:
        self.port = port
        self.close = close
        """Take no connection more; what is connected stays."""


async def listen(
    factory: ProtocolFactory,
    host: str,
    port: int,
    *,
    tls: NodeTls | None = None,
    is_for_nodes: bool = False,
    is_for_grpc: bool = False,
    on_refused: Callable[[str, PacelineError], None] = lambda source, error: None,
) -> Listening:
    """Serve a protocol for each connection. OSError: the port is in use.

    `is_for_nodes`: whoever comes by TLS must show a certificate. `is_for_grpc`: whoever comes asks
    for HTTP/2. `on_refused` is told the address
    and why of whoever comes without TLS where it is demanded, or fails to agree on it.
    """
    loop = asyncio.get_running_loop()
    if tls is None:
        server = await loop.create_server(factory, host, port, backlog=BACKLOG)
        return Listening(server.sockets[0].getsockname()[1], server.close)
    sockets = [
        _bound(info, port)
        for info in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    ]

    def context() -> ssl.SSLContext:
        if is_for_grpc:
            return tls.grpc_server
        return tls.node_server if is_for_nodes else tls.server

    door = _Door(factory, tls, sockets, context=context, on_refused=on_refused)
    return Listening(sockets[0].getsockname()[1], door.close)


def _bound(info: Any, port: int) -> socket.socket:
    family, kind, protocol, _, address = info
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


class _Door:
    """Accepts, and looks at the first byte."""

    def __init__(
        self,
        factory: ProtocolFactory,
        tls: NodeTls,
        sockets: list[socket.socket],
        *,
        context: Callable[[], ssl.SSLContext],
        on_refused: Callable[[str, PacelineError], None],
    ) -> None:
        self._on_refused = on_refused
        self._context = context
        """Of now: certificates change."""
        self._factory = factory
        self._tls = tls
        self._sockets = sockets
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[socket.socket, tuple[str, asyncio.TimerHandle]] = {}
        """Have said nothing yet."""
        self._shaking: dict[asyncio.Task[None], str] = {}
        """Handshakes under way, with their addresses."""
        for each in sockets:
            self._loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """Idempotent."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            self._loop.remove_reader(each)
            each.close()
        for connection in list(self._waiting):
            self._drop(connection)
        for task in list(self._shaking):
            task.cancel()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(TURN_ACCEPTS_MAX):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # too many open files, above all
                strangers.warning("not_accepted", extra={"why": str(error)})
                self._loop.remove_reader(listener)
                self._loop.call_later(RETRY_S, self._accept_again, listener)
                return
            connection.setblocking(False)
            self._arrived(connection, source_of(address[0]))

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._sockets:
            self._loop.add_reader(listener, self._accept, listener)

    def _arrived(self, connection: socket.socket, source: str) -> None:
        of_source = [each for each, (whose, _) in self._waiting.items() if whose == source]
        if len(of_source) >= HANDSHAKES_OF_ADDRESS_MAX:
            self._drop(of_source[0])
        elif len(self._waiting) >= HANDSHAKES_MAX:
            self._drop(next(iter(self._waiting)))
        late = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self._drop, connection)
        self._waiting[connection] = source, late
        self._loop.add_reader(connection, self._look, connection)

    def _drop(self, connection: socket.socket) -> None:
        self._take(connection)
        connection.close()

    def _take(self, connection: socket.socket) -> str:
        source, late = self._waiting.pop(connection)
        late.cancel()
        self._loop.remove_reader(connection)
        return source

    def _look(self, connection: socket.socket) -> None:
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._drop(connection)
            return
        source = self._take(connection)
        if first[0] != _HANDSHAKE:
            self._plain(connection, source)
            return
        self._make_room(source)
        self._serve(connection, source, self._context())

    def _make_room(self, source: str) -> None:
        """The oldest handshake goes for a new one: else those that never end kept others out."""
        of_source = [task for task, whose in self._shaking.items() if whose == source]
        if len(of_source) >= HANDSHAKES_OF_ADDRESS_MAX:
            oldest = of_source[0]
        elif len(self._shaking) >= HANDSHAKES_MAX:
            oldest = next(iter(self._shaking))
        else:
            return
        del self._shaking[oldest]
        oldest.cancel()
        self._tls.failed_count += 1

    def _plain(self, connection: socket.socket, source: str) -> None:
        self._tls.plain_count += 1
        if self._tls.takes_plain:
            self._serve(connection, source, None)
            return
        strangers.warning("plain_refused", extra={"source": source})
        self._on_refused(source, _TLS_ONLY)
        try:
            connection.send(refusal(_TLS_ONLY))
        except OSError:
            pass  # it has gone: nobody is there to be told
        finally:
            connection.close()

    def _serve(
        self, connection: socket.socket, source: str, context: ssl.SSLContext | None
    ) -> None:
        task = spawn(self._connect(connection, source, context), name="accepted")
        self._shaking[task] = source

        def done(_: object) -> None:
            self._shaking.pop(task, None)
            if task.cancelled():  # perhaps before it had begun
                connection.close()

        task.add_done_callback(done)

    async def _connect(
        self, connection: socket.socket, source: str, context: ssl.SSLContext | None
    ) -> None:
        timeout_s = None if context is None else HANDSHAKE_TIMEOUT_S
        try:
            await self._loop.connect_accepted_socket(
                self._factory, connection, ssl=context, ssl_handshake_timeout=timeout_s
            )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            self._tls.failed_count += 1
            why = handshake_sentence(error) if isinstance(error, ssl.SSLError) else repr(error)
            strangers.warning("tls_handshake_failed", extra={"source": source, "why": why})
            is_said = isinstance(error, ssl.SSLError)  # else the connection ended
            self._on_refused(source, PeerError(why if is_said else f"TLS failed: {why}"))
            connection.close()
        else:
            self._tls.tls_count += context is not None
