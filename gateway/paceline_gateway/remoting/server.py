"""The sockets of the remoting door: one listener for the name server, two for each broker group.

Requests are pipelined and answered in any order; the answers of one turn of the loop leave in one
write. A connection is not read from while too much of it waits to be answered or to be taken.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import cast

from paceline.errors import ConfigError, PacelineError
from paceline.net.cluster import Cluster
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.security.audit_peers import OnRefused
from paceline.security.listening import Listening, listen
from paceline.security.node_tls import NodeTls
from paceline.server.byte_budget import ByteBudget, no_room, source_of
from paceline.server.connections import CONNECTIONS_MAX, Connections, ConnectionState
from paceline.server.connections import Connection as PlaceHeld
from paceline.types import GroupName
from paceline.wire.cluster import ClusterView
from paceline_gateway.clusters import UserClusters
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.identity import Authenticator
from paceline_gateway.remoting.codec.codes import RequestCode
from paceline_gateway.remoting.codec.frames import FRAME_BYTES_MAX, Command, encode, take_frames
from paceline_gateway.remoting.codec.routes import PORT_STEP, VIP_BELOW, group_numbers
from paceline_gateway.remoting.dispatch import Dispatcher
from paceline_gateway.remoting.state.peers import Peer, Place
from paceline_gateway.slow_readers import Taking

log = logging.getLogger("paceline.gateway")

IDLE_S = 120.0
"""RocketMQ's serverChannelMaxIdleTimeSeconds."""
TASKS_MAX = 512
"""Requests of one connection under way, polls apart; more are not read."""
WAITING_BYTES_MAX = 64 * 1024
"""That the client has not taken yet; while more waits for it, it is not read from."""
LINGERING_S = 5.0
"""What a client asked for before it went is carried out: its last sends and commits want no answer,
and it closes behind them. After that time it is cancelled."""
LINGERING_MAX = 4 * TASKS_MAX
"""Such requests of all connections; beyond, those of the next one are cancelled at once."""
COMMAND_BYTES = 1024
"""What a request or an answer takes beside its body, roughly."""
_POLLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE)


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, door: "RemotingDoor", group: GroupName | None, places: Connections) -> None:
        self._door = door
        self._group = group
        self._places = places
        """Of the listener."""
        self._place: PlaceHeld | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._peer: Peer | None = None
        self._received = bytearray()
        self._outgoing: list[bytes] = []
        self._polls: set[asyncio.Task[None]] = set()
        self._requests: set[asyncio.Task[None]] = set()
        """Under way, polls apart."""
        self._is_lost = False
        self._is_lingering = False
        """The client has gone, and its requests are carried out."""
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stuck = False
        """The client has not taken yet what is written."""
        self._is_paused = False
        self._holder = door.budget.holder("")
        """Of what is received, requests under way, and answers that wait."""
        self._received_bytes = 0
        """Held for what is received."""
        self._under_way_bytes = 0
        """Held for requests."""
        self._is_crowded = False
        """They leave no room for what is received."""
        self._waiting_bytes = 0
        """Held for answers."""
        self._taking: Taking | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WAITING_BYTES_MAX)
        self._taking = Taking(self._transport, self._slow)
        host, port = transport.get_extra_info("sockname")[:2]
        peername = transport.get_extra_info("peername")
        source = source_of(peername[0]) if peername else ""
        if not self._has_place(source):
            self._transport.abort()
            return
        self._holder.close()
        self._holder = self._door.budget.holder(source)
        place = Place(self._group, self._door.advertised_host or host, port)
        self._peer = Peer(place, source, self._write, self._transport.abort)
        self._peer.on_answer = self._answered
        if peername:
            self._peer.address = f"{source}:{peername[1]}"
        if self._door.describe_tls is not None:
            self._peer.is_encrypted, self._peer.certified = self._door.describe_tls(transport)
        self._door.connected(self, self._peer)
        self._timer = self._loop.call_later(IDLE_S, self._look_whether_idle)

    def _has_place(self, source: str) -> bool:
        """Perhaps one that another connection from there has lost for it."""
        self._place, other = self._places.open(source)
        if other is not None:
            other.close()
        if self._place is not None:
            self._place.close = self.close
        return self._place is not None

    def connection_lost(self, error: Exception | None) -> None:
        if self._taking is not None:
            self._taking.end()
        if self._timer is not None:
            self._timer.cancel()
        self._is_lost = True
        for task in self._polls:
            task.cancel()
        if self._place is not None:
            self._place.ended()
            self._place.gone()
        if self._peer is None:
            self._holder.close()
        else:
            self._holder.give(self._holder.held_bytes - self._under_way_bytes)
            self._peer.gone()
            self._is_lingering = self._door.may_linger(len(self._requests))
            if self._requests and self._is_lingering:
                self._timer = self._loop.call_later(LINGERING_S, self._cancel_requests)
            else:
                self._cancel_requests()

    def _cancel_requests(self) -> None:
        """Of a client that has gone."""
        for task in self._requests:
            task.cancel()
        if not self._requests:
            self._end()

    def _end(self) -> None:
        assert self._peer is not None
        if self._timer is not None:
            self._timer.cancel()
        self._holder.close()
        self._door.disconnected(self, self._peer)

    def data_received(self, data: bytes) -> None:
        if self._peer is None:
            return
        self._heard_at = self._loop.time()
        received = self._received
        received += data
        if self._hold():
            self._take()

    def eof_received(self) -> bool:
        return False

    def close(self) -> None:
        if self._is_lost:
            self._cancel_requests()
        elif self._transport is not None:
            self._transport.abort()

    # -- requests ---------------------------------------------------------------------------------

    def _take(self) -> None:
        assert self._peer is not None
        assert self._place is not None
        taken = take_frames(self._received, frame_bytes_max=self._door.frame_bytes_max)
        del self._received[: taken.size_bytes]
        self._hold()
        if taken.commands:
            self._place.is_now(ConnectionState.BUSY)
        for command in taken.commands:
            self._begin(command)
        if taken.fault is not None:
            log.info(
                "frame_refused",
                extra={"source": self._peer.source, "error": taken.fault.message},
            )
            self._flush()
            self.close()
        self._regulate()

    def _hold(self) -> bool:
        """Bytes that are received and not taken. If there is no room for them, the connection is
        not read from until a request has been answered; without any it ends: False."""
        change = len(self._received) - self._received_bytes
        if change < 0:
            self._holder.give(-change)
        elif change > 0 and not self._holder.take(change):
            if not self._under_way_bytes:
                log.warning("no_room", extra={"bytes": len(self._received)})
                self.close()
                return False
            self._holder.hold(change)
            self._is_crowded = True
        self._received_bytes += change
        return True

    def _begin(self, command: Command) -> None:
        assert self._peer is not None
        if not command.is_answer and not self._has_room(command):
            self._peer.fail(command, no_room("this request"))
            return
        task = self._door.dispatcher.received(self._peer, command)
        if task is None:
            return
        if command.code in _POLLS:
            self._polls.add(task)
            task.add_done_callback(self._polls.discard)
        else:
            self._requests.add(task)
            task.add_done_callback(self._done)

    def _has_room(self, command: Command) -> bool:
        """For a request; it is held until it is answered, which it is in any case."""
        size = _size(command)
        has_room = self._holder.take(size)
        if not has_room:
            self._holder.hold(size)
        self._under_way_bytes += size
        return has_room

    def _answered(self, request: Command) -> None:
        """It is under way no more."""
        if self._peer is None or not self._peer.is_open:
            return
        self._under_way_bytes -= _size(request)
        self._holder.give(_size(request))
        if self._is_crowded:
            self._is_crowded = False
            self._loop.call_soon(self._regulate)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._requests.discard(task)
        if not self._is_lost:
            self._regulate()
            return
        if self._is_lingering:
            self._door.lingered()
        if not self._requests:
            self._end()

    def _regulate(self) -> None:
        """Read on, or not for now."""
        if self._transport is None or self._transport.is_closing():
            return
        is_full = len(self._requests) >= TASKS_MAX or self._is_stuck or self._is_crowded
        if is_full and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        elif not is_full and self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    # -- answers ----------------------------------------------------------------------------------

    def _write(self, command: Command) -> None:
        """OverloadedError: no room for its body."""
        pieces = encode(command)
        size = sum(map(len, pieces))
        if not command.body:
            self._holder.hold(size)
        elif not self._holder.take(size):
            raise no_room("this answer")
        self._waiting_bytes += size
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing += pieces

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        transport, taking = self._transport, self._taking
        if not outgoing or transport is None or taking is None or transport.is_closing():
            return
        content = b"".join(outgoing)
        taking.wrote(len(content))
        transport.write(content)
        self._waits()

    def _waits(self) -> None:
        """What the client has not taken counts, if it is much: less than that is not told of."""
        if self._transport is None or self._peer is None or not self._peer.is_open:
            return
        left = self._transport.get_write_buffer_size() if self._is_stuck else 0
        change = left + sum(map(len, self._outgoing)) - self._waiting_bytes
        self._waiting_bytes += change
        if change < 0:
            self._holder.give(-change)
        else:
            self._holder.hold(change)

    def pause_writing(self) -> None:
        assert self._taking is not None
        self._is_stuck = True
        self._taking.paused()
        self._waits()
        self._regulate()

    def resume_writing(self) -> None:
        assert self._taking is not None
        self._is_stuck = False
        self._taking.end()
        self._waits()
        self._regulate()

    def _slow(self) -> None:
        log.info("slow_reader", extra={"source": self._peer.source if self._peer else ""})
        self.close()

    def _look_whether_idle(self) -> None:
        left = self._heard_at + IDLE_S - self._loop.time()
        if left <= 0 and not self._requests and not self._polls:
            self.close()
            return
        self._timer = self._loop.call_later(max(1.0, left), self._look_whether_idle)


def _size(command: Command) -> int:
    return len(command.body) + COMMAND_BYTES


DescribeTls = Callable[[asyncio.BaseTransport], tuple[bool, Collection[str]]]
"""Of a connection: whether it is encrypted, and the users that its certificate is for."""


class RemotingDoor:
    """The listeners and what is behind them. `start`, `close`."""

    def __init__(
        self,
        users: UserClusters,
        authenticator: Authenticator,
        cluster: Cluster,
        clients: ConnectedClients,
        *,
        host: str,
        port: int,
        tls: NodeTls | None = None,
        advertised_host: str = "",
        budget: ByteBudget | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        describe_tls: DescribeTls | None = None,
        connections_max: int = CONNECTIONS_MAX,
        on_refused: OnRefused = lambda door, source, error: None,
    ) -> None:
        """`cluster`: as the gateway itself sees it, to know the broker groups. `port`: of the name
        server; the listener of broker group number n is at port + 10 n, and at two below; 0: every
        listener at a free port. `advertised_host`: what clients are told to connect to; empty: the
        address that they have come to. `connections_max`: of each listener."""
        self.advertised_host = advertised_host
        self.frame_bytes_max = frame_bytes_max
        self.describe_tls = describe_tls
        self._connections_max = connections_max
        self._on_refused = partial(on_refused, "remoting")
        self.budget = budget or ByteBudget()
        self.dispatcher = Dispatcher(users, authenticator, self, clients)
        self._cluster = cluster
        self._host = host
        self._port = port
        self._tls = tls
        self._name_server: Listening | None = None
        self._listening: dict[GroupName, list[Listening]] = {}
        self._connections: set[Connection] = set()
        self._opening: asyncio.Task[None] | None = None
        self._is_due = False
        self._is_closing = False
        self._lingering = 0
        """Requests under way of clients that have gone."""
        self._end_listening: Callable[[], None] = lambda: None
        users.traffic.listeners.append(lambda: len(self._connections))

    @property
    def port(self) -> int:
        """Of the name server."""
        assert self._name_server is not None
        return self._name_server.port

    async def start(self) -> None:
        """Listen as the name server; the listeners of broker groups follow as they are known, those
        that are known now before this returns. ConfigError: a port is in use."""
        self._name_server = await self._listen(None, self._port)
        if self._cluster.view is not None:
            await self._open(self._cluster.view)
        self._end_listening = self._cluster.watch.listen(self._on_view)

    async def close(self) -> None:
        self._is_closing = True
        self._end_listening()
        await cancel_and_wait(*([] if self._opening is None else [self._opening]))
        for listening in [self._name_server, *sum(self._listening.values(), [])]:
            if listening is not None:
                listening.close()
        for connection in list(self._connections):
            connection.close()
        await self.dispatcher.close()

    def of(self, place: Place) -> Mapping[GroupName, str]:
        """Where a client at that place reaches the broker groups."""
        host = f"[{place.host}]" if ":" in place.host else place.host
        return {group: f"{host}:{each[0].port}" for group, each in self._listening.items()}

    def connected(self, connection: Connection, peer: Peer) -> None:
        """A client has come."""
        self._connections.add(connection)
        self.dispatcher.clients.come(peer)

    def may_linger(self, count: int) -> bool:
        """Whether that many more requests of a client that has gone are carried out."""
        may = not self._is_closing and self._lingering + count <= LINGERING_MAX
        self._lingering += count if may else 0
        return may

    def lingered(self) -> None:
        """One of them has ended."""
        self._lingering -= 1

    def disconnected(self, connection: Connection, peer: Peer) -> None:
        """It has gone, and nothing of it is under way."""
        self._connections.discard(connection)
        self.dispatcher.gone(peer)

    def _on_view(self, view: ClusterView) -> None:
        if set(view.groups) != set(self._listening) and self._opening is None:
            self._opening = spawn(self._follow(view), name="remoting-listeners")
            self._opening.add_done_callback(self._opened)

    def _opened(self, _: object) -> None:
        self._opening = None

    async def _follow(self, view: ClusterView) -> None:
        while True:
            try:
                await self._open(view)
            except PacelineError as error:
                log.error("group_not_served", extra={"error": error.message})
            now = self._cluster.view
            if now is None or set(now.groups) == set(view.groups):
                return
            view = now

    async def _open(self, view: ClusterView) -> None:
        for group in [group for group in self._listening if group not in view.groups]:
            for listening in self._listening.pop(group):
                listening.close()
        for group, number in group_numbers(view).items():
            if group in self._listening:
                continue
            port = self._port + PORT_STEP * number if self._port else 0
            found: list[Listening] = []
            try:
                for each in (port, port - VIP_BELOW) if port else (0,):
                    found.append(await self._listen(group, each))
            except ConfigError:
                for listening in found:
                    listening.close()
                raise
            self._listening[group] = found

    async def _listen(self, group: GroupName | None, port: int) -> Listening:
        places = Connections(self._connections_max)
        try:
            return await listen(
                lambda: Connection(self, group, places),
                self._host,
                port,
                tls=self._tls,
                on_refused=self._on_refused,
            )
        except OSError as error:
            what = "the name server" if group is None else f"broker group {group}"
            raise ConfigError(f"port {port} for {what} cannot be opened: {error}") from error
