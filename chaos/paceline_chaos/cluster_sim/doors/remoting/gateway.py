"""A gateway's remoting door without sockets: connections are `Way`s of bytes."""

import asyncio
from collections.abc import Callable, Mapping

from paceline.errors import PeerError
from paceline.types import GroupName
from paceline_chaos.cluster_sim.doors.gateways import Gateway
from paceline_chaos.cluster_sim.doors.remoting.wire import Way
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_gateway.remoting.codec.frames import Command, encode, take_frames
from paceline_gateway.remoting.codec.routes import PORT_STEP, group_numbers
from paceline_gateway.remoting.dispatch import Dispatcher
from paceline_gateway.remoting.state.peers import Peer, Place

NAME_SERVER = "127.0.0.1:9876"
_HOST, _PORT = "127.0.0.1", 9876


class NotConnectedError(PeerError):
    """Nobody listens there: nothing was asked."""

    is_definite = True


class RemotingGateway(Gateway):
    """One life of one gateway."""

    def __init__(self, around: Around, number: int) -> None:
        super().__init__(around, number)
        self._dispatcher = Dispatcher(self.clusters, self.who.authenticator, self, self.clients)
        self._connections: dict[Connection, None] = {}

    def of(self, place: Place) -> Mapping[GroupName, str]:
        """Where clients reach the broker groups."""
        return {group: f"{_HOST}:{port}" for group, port in self._ports().items()}

    def _ports(self) -> Mapping[GroupName, int]:
        numbers = {} if self.view is None else group_numbers(self.view)
        return {group: _PORT + PORT_STEP * number for group, number in numbers.items()}

    def connect(
        self, address: str, source: str, arrived: Callable[[bytes], None], ended: Callable[[], None]
    ) -> "Connection":
        """A connection of a client at `source`, who is handed what comes. NotConnectedError:
        nobody listens at that address."""
        port = int(address.rpartition(":")[2])
        groups: dict[int, GroupName | None] = {_PORT: None}
        groups |= {each: group for group, each in self._ports().items()}
        if self.is_gone or port not in groups:
            raise NotConnectedError(f"nobody listens at {address}")
        place = Place(groups[port], _HOST, port)
        connection = Connection(self, place, source, Way(self._around, arrived), ended)
        self._connections[connection] = None
        self._dispatcher.clients.come(connection.peer)
        return connection

    def received(self, connection: "Connection", command: Command) -> None:
        """A client asks, or has answered."""
        task = self._dispatcher.received(connection.peer, command)
        if task is not None:
            connection.hold(self.hold(task))

    def disconnected(self, connection: "Connection") -> None:
        """It has ended, by whomever."""
        del self._connections[connection]
        self._dispatcher.gone(connection.peer)

    def lock_token(
        self, connection: "Connection", client_id: str, group: str, topic: str, queue_id: int
    ) -> tuple[int, int] | None:
        """The token of a lock that the gateway has for a client, who is never told it."""
        user, of = self._dispatcher.clients.user_of(connection.peer), connection.peer.place.group
        if user is None or of is None:
            return None
        return user.locks.token_of(group, client_id, topic, of, queue_id)

    def _hang_up(self) -> None:
        for connection in list(self._connections):
            connection.close()

    async def _leave(self) -> None:
        """As the door does: answers that are under way do not arrive, and polls end."""
        self.is_gone = True
        self._hang_up()

    async def _close_service(self) -> None:
        await self._dispatcher.close()


class Connection:
    """One client's, with the ways of its bytes. Ends with whoever closes it first."""

    def __init__(
        self,
        gateway: RemotingGateway,
        place: Place,
        source: str,
        to_client: Way,
        ended: Callable[[], None],
    ) -> None:
        self._gateway = gateway
        self._to_client = to_client
        self._ended = ended
        self._received = b""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.is_open = True
        self.peer = Peer(place, source, self._write, self.close)

    def take(self, data: bytes) -> None:
        """Bytes of the client have arrived."""
        if not self.is_open:
            return
        self._received += data
        taken = take_frames(self._received)
        assert taken.fault is None, taken.fault
        self._received = self._received[taken.size_bytes :]
        for command in taken.commands:
            self._gateway.received(self, command)

    def hold(self, task: "asyncio.Task[None]") -> None:
        """It ends with the connection."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def close(self) -> None:
        """Nothing arrives any more."""
        if not self.is_open:
            return
        self.is_open = False
        self._to_client.cut()
        for task in list(self._tasks):
            task.cancel()
        self._gateway.disconnected(self)
        self._ended()

    def _write(self, command: Command) -> None:
        self._to_client.send(b"".join(encode(command)))
