"""A remoting door before a broker on fakes, and a client of the protocol on a bare socket."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from tests.support.client.simple import lead
from tests.support.gateway.authenticators import an_authenticator
from tests.support.http.door import Door, a_door

from paceline.net.cluster import Cluster
from paceline.platform.runtime import SystemClock, cancel_and_wait, spawn
from paceline_gateway.clusters import UserClusters
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.remoting.codec.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import (
    JSON,
    Command,
    encode,
    take_frames,
)
from paceline_gateway.remoting.codec.properties import properties_text
from paceline_gateway.remoting.codec.store_format import Stored, decode_messages
from paceline_gateway.remoting.server import RemotingDoor

WITHIN_S = 10


class RemotingClient:
    """One connection. What the server asks by itself is in `told`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.told: list[Command] = []
        self.serialization = JSON
        self.address = ""
        self._reader = reader
        self._writer = writer
        self._opaque = 0
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._arrived = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._task = spawn(self._read(), name="remoting-client")

    @classmethod
    async def connect(cls, address: str) -> "RemotingClient":
        host, _, port = address.rpartition(":")
        client = cls(*await asyncio.open_connection(host, int(port)))
        client.address = address
        return client

    async def close(self) -> None:
        self._writer.close()
        await cancel_and_wait(self._task)

    def begin(
        self, code: int, fields: dict[str, Any], body: bytes = b"", *, flag: int = 0
    ) -> "asyncio.Future[Command]":
        """Send a request; its answer."""
        self._opaque += 1
        texts = {name: str(value) for name, value in fields.items()}
        command = Command(
            code,
            texts,
            body,
            opaque=self._opaque,
            flag=flag,
            language="JAVA",
            serialization=self.serialization,
        )
        waiter: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[self._opaque] = waiter
        self._writer.write(b"".join(encode(command)))
        return waiter

    async def ask(self, code: int, fields: dict[str, Any], body: bytes = b"") -> Command:
        """Send a request and wait for its answer."""
        async with asyncio.timeout(WITHIN_S):
            return await self.begin(code, fields, body)

    async def told_of(self, code: int) -> Command:
        """Wait for a request of the server."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                for command in self.told:
                    if command.code == code:
                        self.told.remove(command)
                        return command
                self._arrived.clear()
                await self._arrived.wait()

    def answer(self, request: Command, body: bytes = b"") -> None:
        """Answer a request of the server."""
        self._writer.write(b"".join(encode(request.answer(0, {}, body))))

    async def ended(self) -> None:
        """Wait until the server has closed the connection."""
        async with asyncio.timeout(WITHIN_S):
            await asyncio.wait([self._task])

    def write(self, content: bytes) -> None:
        self._writer.write(content)

    def stop_reading(self) -> None:
        """After the next read, until `read_on`."""
        self._may_read.clear()

    def read_on(self) -> None:
        self._may_read.set()

    async def _read(self) -> None:
        try:
            await self._read_all()
        finally:
            for waiter in self._waiting.values():
                if not waiter.done():
                    waiter.set_exception(ConnectionError("the server has closed"))

    async def _read_all(self) -> None:
        received = b""
        while True:
            try:
                await self._may_read.wait()
                data = await self._reader.read(1 << 16)
            except ConnectionError:
                return
            if not data:
                return
            received += data
            taken = take_frames(received)
            assert taken.fault is None
            received = received[taken.size_bytes :]
            for command in taken.commands:
                if command.is_answer:
                    waiter = self._waiting.pop(command.opaque)
                    if not waiter.done():
                        waiter.set_result(command)
                else:
                    self.told.append(command)
                    self._arrived.set()

    # -- requests as RocketMQ's clients make them -------------------------------------------------

    async def send(self, body: bytes, topic: str = "orders", **more: Any) -> Command:
        """A message, by version 2 of the request."""
        return await self.begin_send(body, topic, **more)

    def begin_send(
        self,
        body: bytes,
        topic: str = "orders",
        *,
        queue_id: int = 0,
        properties: Mapping[str, str] | None = None,
        sys_flag: int = 0,
        is_oneway: bool = False,
        **more: Any,
    ) -> "asyncio.Future[Command]":
        flag = FLAG_ONEWAY if is_oneway else 0
        text = properties_text(properties or {}).decode()
        fields = {"a": "producers", "b": topic, "e": queue_id, "f": sys_flag, "i": text, **more}
        return self.begin(RequestCode.SEND_MESSAGE_V2, fields, body, flag=flag)

    async def pull(
        self,
        offset: int,
        topic: str = "orders",
        *,
        queue_id: int = 0,
        group: str = "g",
        wait_ms: int = 0,
        **more: Any,
    ) -> tuple[Command, list[Stored]]:
        """A pull; the answer and the messages in it."""
        more = {"topic": topic, "queueId": queue_id, "consumerGroup": group, **more}
        async with asyncio.timeout(WITHIN_S):
            answer = await self.begin_pull(offset, wait_ms=wait_ms, **more)
        if answer.code != ResponseCode.SUCCESS:
            return answer, []
        return answer, [message for message, _ in decode_messages(bytes(answer.body))]

    def begin_pull(
        self, offset: int, *, wait_ms: int = 0, **more: Any
    ) -> "asyncio.Future[Command]":
        fields = {
            "consumerGroup": "g",
            "topic": "orders",
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 6 if wait_ms else 4,
            "suspendTimeoutMillis": wait_ms,
            "subscription": "*",
            **more,
        }
        return self.begin(RequestCode.PULL_MESSAGE, fields)

    async def heartbeat(
        self,
        client_id: str,
        *,
        consumers: Sequence[str] = (),
        producers: Sequence[str] = (),
        wanted: tuple[str, str] = ("TAG", "*"),
    ) -> Command:
        """Member of groups, of topic orders."""
        document = {
            "clientID": client_id,
            "producerDataSet": [{"groupName": name} for name in producers],
            "consumerDataSet": [
                {
                    "groupName": name,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                    "subscriptionDataSet": [
                        {"topic": "orders", "expressionType": wanted[0], "subString": wanted[1]}
                    ],
                }
                for name in consumers
            ],
        }
        return await self.ask(RequestCode.HEART_BEAT, {}, orjson.dumps(document))


class Gateway:
    """The door, the broker behind it, and clients."""

    def __init__(self, broker: Door, door: RemotingDoor, connected: ConnectedClients) -> None:
        self.broker = broker
        self.door = door
        self.connected = connected
        self._clients: list[RemotingClient] = []

    async def name_server(self) -> RemotingClient:
        """A connection to the name server."""
        return await self._connect(f"127.0.0.1:{self.door.port}")

    async def client(self) -> RemotingClient:
        """A connection to the broker group that a route names."""
        naming = await self.name_server()
        route = await naming.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        [broker] = orjson.loads(bytes(route.body))["brokerDatas"]
        return await self._connect(broker["brokerAddrs"]["0"])

    async def _connect(self, address: str) -> RemotingClient:
        client = await RemotingClient.connect(address)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def a_gateway(**options: Any) -> AsyncIterator[Gateway]:
    """A door before one broker, which leads group g1 with topic orders."""
    async with a_door() as broker:
        bootstrap = lead(broker)
        users = UserClusters(lambda principal: Cluster(bootstrap))
        own = Cluster(bootstrap)
        clients = options.pop("clients", ConnectedClients(SystemClock()))
        door = RemotingDoor(
            users, an_authenticator(), own, clients, host="127.0.0.1", port=0, **options
        )
        own.start()
        await own.watch.wait_for(lambda view: bool(view.groups), timeout_ms=10_000)
        await door.start()
        gateway = Gateway(broker, door, clients)
        try:
            yield gateway
        finally:
            await gateway.close()
            await door.close()
            await users.close()
            await own.close()
