"""Controllers around a shared in-memory log, and brokers that only talk: on free ports."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from tests.support.app_server import AppServer

from paceline.cli.local.free_ports import free_ports
from paceline.platform.address import Address
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SystemClock, SystemRandom, cancel_and_wait, spawn
from paceline.platform.secret import ClusterSecrets
from paceline.types import ControllerId, GroupName, Incarnation, MasterEpoch, ReplicaId
from paceline.wire import session as wire
from paceline.wire.cluster import ClusterView
from paceline.wire.messages import Nonce
from paceline.wire.seal import Seals
from paceline.wire.views.changes import ViewChanges
from paceline_controller.config import ControllerConfig
from paceline_controller.node import ControllerNode
from paceline_controller.quorum_memory import MemoryLog, MemoryQuorum
from paceline_controller.state import Machine

SECRET = b"a secret of the cluster in tests"
DEADLINE_S = 10.0


async def eventually(condition: Callable[[], object], what: str) -> None:
    """Let the loop turn until the condition holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < deadline, what
        turned = loop.create_future()
        loop.call_later(0.001, turned.set_result, None)
        await turned


def free_address() -> Address:
    """A port of the moment; the node under test binds it right away."""
    [port] = free_ports(1, host="127.0.0.1")
    return Address("127.0.0.1", port)


class Controllers:
    """`count` nodes; the first leads from the start."""

    def __init__(
        self, count: int = 1, *, secrets: ClusterSecrets | None = None, **changes: Any
    ) -> None:
        self._secrets = secrets or ClusterSecrets(SECRET)
        self.log = MemoryLog()
        self.ids = [ControllerId(f"c{number + 1}") for number in range(count)]
        self.disks = {controller_id: MemoryDisk() for controller_id in self.ids}
        self.addresses = [free_address() for _ in self.ids]
        self.nodes: dict[ControllerId, ControllerNode] = {}
        self.quorums: dict[ControllerId, MemoryQuorum] = {}
        self.http: aiohttp.ClientSession
        self._changes = changes

    async def start(self) -> None:
        self.http = aiohttp.ClientSession()
        for controller_id, address in zip(self.ids, self.addresses, strict=True):
            machine = Machine()
            quorum = MemoryQuorum(machine, controller_id=controller_id, log=self.log)
            node = ControllerNode(
                self._config(controller_id, address),
                machine=machine,
                quorum=quorum,
                clock=SystemClock(),
                random=SystemRandom(),
                secrets=self._secrets,
                disk=self.disks[controller_id],
            )
            self.nodes[controller_id], self.quorums[controller_id] = node, quorum
            await node.start()
        self.log.elect(self.ids[0])
        await eventually(lambda: self.leader.supervisor.is_leading, "the first leads")

    def _config(self, controller_id: ControllerId, address: Address) -> ControllerConfig:
        arguments = {
            "controller_id": controller_id,
            "data_dir": "unused",
            "secret_file": "unused",
            "peers": tuple(f"{name}=127.0.0.1:{index + 1}" for index, name in enumerate(self.ids)),
            "controllers": tuple(str(address) for address in self.addresses),
            "listen": address,
            **self._changes,
        }
        return ControllerConfig(**arguments)

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()
        await self.http.close()

    @property
    def leader(self) -> ControllerNode:
        assert self.log.leader is not None
        return self.nodes[self.log.leader]

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        node: int = 0,
        data: bytes | None = None,
        headers: Mapping[str, str] = {},
    ) -> tuple[int, Any]:
        """Status and JSON of one request."""
        url = f"http://{self.addresses[node]}{path}"
        if data is not None:
            headers = {**headers, "Content-Type": "application/json"}
        async with self.http.request(
            method, url, json=body, data=data, headers=headers
        ) as response:
            is_problem = response.content_type == "application/problem+json"
            assert is_problem == (response.status >= 400), response.content_type
            return response.status, await response.json(content_type=None)


@asynccontextmanager
async def controllers(count: int = 1, **changes: Any) -> AsyncIterator[Controllers]:
    cluster = Controllers(count, **changes)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


class TalkingBroker:
    """A broker without a log: a probe port, and one session per controller."""

    def __init__(self, cluster: Controllers, number: int, group: str = "g1") -> None:
        self.cluster = cluster
        self.group = GroupName(group)
        self.store_id = f"store-{group}-{number}"
        self.replica_id: ReplicaId | None = None
        self.cluster_id: str | None = None
        """What its hello says that the store belongs to."""
        self.incarnation = Incarnation(1)
        self.view: ClusterView | None = None
        self.end = 0
        self.is_silent = False
        self.leaderships: list[wire.Leadership] = []
        self.orders: list[wire.TransferOrder] = []
        self.answers_orders = True
        self.sockets: list[aiohttp.ClientWebSocketResponse] = []
        self._seals: dict[aiohttp.ClientWebSocketResponse, Seals] = {}
        self.answers: dict[int, asyncio.Future[wire.Answer]] = {}
        self.changes_seen = 0
        self.views_seen = 0
        self._ids = 0
        self._sequence = -1
        self._tasks: list[asyncio.Task[None]] = []
        self._server: AppServer
        self.address = ""

    async def start(self, *, secret: bytes = SECRET, is_sealed: bool = True) -> None:
        app = web.Application()
        app.router.add_get("/v1/probe", self._probe)
        self._server = AppServer(app)
        await self._server.start()
        self.address = self._server.address
        for address in self.cluster.addresses:
            await self.connect(str(address), secret=secret, is_sealed=is_sealed)

    async def join(self) -> None:
        """Start, open a session, register, send a first heartbeat."""
        await self.start()
        assert (await self.command(wire.OpenSession()))["ok"]
        result = await self.register()
        self.replica_id = ReplicaId(result["replica_id"])
        await self.beat()

    async def register(self, **changes: Any) -> dict[str, Any]:
        arguments = {
            "group": self.group,
            "store_id": self.store_id,
            "replica_id": self.replica_id,
            "incarnation": self.incarnation,
            "client_address": self.address,
            "replication_address": self.address,
            "end": self.end,
            "confirm": 0,
            "last_epoch": MasterEpoch(0),
            "is_empty": self.end == 0,
            "is_learner": False,
            "is_unclean": False,
            "is_suspect": False,
            **changes,
        }
        return await self.command(wire.RegisterReplica(**arguments))

    async def connect(
        self,
        address: str,
        *,
        secret: bytes = SECRET,
        is_sealed: bool = True,
        takes_changes: bool = True,
    ) -> None:
        url = f"http://{address}{wire.PATH}"
        socket = await self.cluster.http.ws_connect(url + "?changes=true" * takes_changes)
        challenge = wire.parse_from_controller(await socket.receive_str())
        assert isinstance(challenge, wire.Challenge)
        hello = wire.make_hello(
            challenge,
            secret,
            cluster_id=self.cluster_id,
            group=self.group,
            store_id=self.store_id,
            replica_id=self.replica_id,
            nonce=Nonce(b"n" * 16),
            is_sealed=is_sealed,
        )
        await socket.send_str(wire.encode(hello))
        seals = hello.seals(secret, challenge, is_dialer=True)
        answer = await socket.receive()
        if seals is not None and answer.type is aiohttp.WSMsgType.BINARY:
            welcome = wire.parse_from_controller(seals.incoming.open_message(answer.data))
        else:
            welcome = wire.parse_from_controller(answer.data)
        if isinstance(welcome, wire.Refused):
            await socket.close()
            raise PermissionError(welcome.code)
        assert isinstance(welcome, wire.Welcome)
        wire.check_welcome(welcome, challenge, hello, secret)
        assert seals is not None
        self.sockets.append(socket)
        self._seals[socket] = seals
        self._tasks.append(spawn(self._read(socket), name=f"broker_read:{self.store_id}"))

    async def command(self, command: wire.BrokerCommand, *, node: int = 0) -> dict[str, Any]:
        self._sequence += 1
        answer = await self.request(command, sequence=self._sequence, node=node)
        assert answer.result is not None, answer.problem
        return dict(answer.result)

    async def request(
        self, command: wire.BrokerCommand, *, sequence: int, node: int = 0
    ) -> wire.Answer:
        self._ids += 1
        waiting: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
        self.answers[self._ids] = waiting
        request = wire.Request(
            id=self._ids,
            session=f"session-{self.store_id}",
            sequence=sequence,
            command=command.to_json(),
        )
        await self._send(self.sockets[node], request)
        async with asyncio.timeout(DEADLINE_S):
            return await waiting

    async def beat(self, **changes: Any) -> None:
        assert self.replica_id is not None
        group = None if self.view is None else self.view.groups.get(self.group)
        is_master = group is not None and group.master == self.replica_id
        arguments = {
            "replica_id": self.replica_id,
            "incarnation": self.incarnation,
            "role": wire.Role.MASTER if is_master else wire.Role.REPLICA,
            "epoch": MasterEpoch(0) if group is None else group.master_epoch,
            "end": self.end,
            "flushed": self.end,
            "confirm": 0,
            "is_healthy": True,
            "waiting": 0,
            "view_version": 0 if self.view is None else self.view.version,
            **changes,
        }
        for session in self.sockets:
            if not session.closed:
                await self._send(session, wire.Heartbeat(**arguments))

    async def _step_down(self, order: wire.TransferOrder) -> None:
        assert self.replica_id is not None
        await self.command(
            wire.StepDown(
                group=self.group,
                master=self.replica_id,
                master_incarnation=self.incarnation,
                master_epoch=order.master_epoch,
                confirm=0,
                preferred=order.preferred,
            )
        )

    async def say(self, message: wire.FromBroker, *, node: int = 0) -> None:
        await self._send(self.sockets[node], message)

    async def _send(
        self, socket: aiohttp.ClientWebSocketResponse, message: wire.FromBroker
    ) -> None:
        seal = self._seals[socket].outgoing
        await socket.send_bytes(seal.message(wire.encode(message).encode()))

    async def kill(self) -> None:
        """As kill -9: the ports close, the connections break."""
        await self._server.stop()
        self.abort()

    def abort(self) -> None:
        """The sessions break, the port lives."""
        for session in self.sockets:
            transport = session._response.connection.transport  # type: ignore[union-attr]
            assert isinstance(transport, asyncio.Transport)
            transport.abort()

    async def stop(self) -> None:
        await cancel_and_wait(*self._tasks)
        for session in self.sockets:
            await session.close()
        await self._server.stop()

    async def _probe(self, request: web.Request) -> web.Response:
        group = None if self.view is None else self.view.groups.get(self.group)
        is_master = group is not None and group.master == self.replica_id
        return web.json_response(
            {
                "cluster_id": "x",
                "group": self.group,
                "replica_id": self.replica_id,
                "incarnation": self.incarnation,
                "role": "master" if is_master else "replica",
                "epoch": 0 if group is None else group.master_epoch,
            }
        )

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            said = self._seals[socket].incoming.open_message(message.data)
            match wire.parse_from_controller(said):
                case wire.View() as news:
                    self.views_seen += 1
                    view = ClusterView.from_json(news.view)
                    if self.view is None or view.version > self.view.version:
                        self.view = view
                case wire.ViewChanged() as news:
                    self.changes_seen += 1
                    changes = ViewChanges.from_json(news.changes)
                    if self.view is not None and changes.follows(self.view):
                        self.view = changes.applied_to(self.view)
                case wire.Answer() as answer:
                    self.answers.pop(answer.id).set_result(answer)
                case wire.Leadership() as leadership:
                    self.leaderships.append(leadership)
                case wire.TransferOrder() as order:
                    self.orders.append(order)
                    if self.answers_orders:
                        self._tasks.append(spawn(self._step_down(order), name="step_down"))
                case wire.ReportWanted() if not self.is_silent:
                    await self.beat()
