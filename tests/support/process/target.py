"""One running cluster that bad input is thrown at, and what must not change by it."""

import asyncio
import contextlib
import io
import tomllib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from tests.support.process.harness import RunningCluster, broker_statuses, http_session, the_master
from tests.support.process.load import controller_leader, settled

from paceline.admin.client import AdminClient
from paceline.platform.runtime import SeededRandom
from paceline.records.encode import encode_batch
from paceline.wire.cluster import ClusterView, ReplicaView
from paceline.wire.stream import FRAME_HEADER, FRAME_HEADER_BYTES

BATCH = "application/vnd.paceline.batch"
JSON = "application/json"
QUEUES = 2
PRODUCER_ID = 77
"""Has stored sequence 0 of epoch 3 in queue 0 of "orders"."""
Answer = tuple[int, dict[str, Any]]


@dataclass
class Target:
    """Addresses ("host:port") of the parts of a healthy cluster with the topic "orders"."""

    cluster: RunningCluster
    topic_id: int = 0
    master: str = ""
    replica: str = ""
    leader: str = ""
    follower: str = ""
    raft: str = ""
    """The Raft listener of the controller with the highest id: lower ids dial it."""
    view: ClusterView = field(init=False)

    async def prepare(self) -> None:
        """Make the topic, one message and one known producer; find out who is who."""
        cluster = self.cluster
        async with AdminClient(cluster.bootstrap) as admin:
            self.topic_id = (await admin.topics.create("orders", queues=QUEUES)).topic_id
            self.view = await admin.view()
        name = await the_master(cluster)
        self.master = cluster.node(name)["address"]
        self.replica = next(
            node["address"] for node in cluster.brokers() if node["address"] != self.master
        )
        self.leader = cluster.node(await controller_leader(cluster))["address"]
        self.follower = next(address for address in cluster.bootstrap if address != self.leader)
        config = tomllib.loads((cluster.data_dir / "c3.toml").read_text())
        self.raft = dict(peer.split("=") for peer in config["peers"])["c3"]
        batch = self.batch(producer_id=PRODUCER_ID, producer_epoch=3, base_sequence=0)
        status, answer = await self.post_batch(batch)
        assert status == 200, answer

    def replica_view(self, address: str) -> ReplicaView:
        """The broker at that client address, as the controllers publish it."""
        replicas = next(iter(self.view.groups.values())).replicas.values()
        return next(replica for replica in replicas if replica.client_address == address)

    def batch(self, *bodies: bytes, **arguments: Any) -> bytes:
        """A record batch for "orders"."""
        fixed: dict[str, Any] = {
            "born_unix_ms": 1_700_000_000_000,
            "topic_id": self.topic_id,
            "queue_id": 0,
        }
        return encode_batch(list(bodies) or [b"hello"], **{**fixed, **arguments})

    async def ask(
        self,
        method: str,
        address: str,
        path: str,
        content: bytes | None = None,
        *,
        content_type: str = JSON,
    ) -> Answer:
        """Status and JSON document of one request."""
        headers = {} if content is None else {"Content-Type": content_type}
        sent = None if content is None else io.BytesIO(content)  # aiohttp warns of large bytes
        async with (
            http_session(timeout_ms=10_000) as session,
            session.request(
                method, f"http://{address}{path}", data=sent, headers=headers
            ) as answer,
        ):
            return answer.status, orjson.loads(await answer.read())

    async def post_batch(self, batch: bytes, *, address: str | None = None) -> Answer:
        path = "/v1/topics/orders/queues/0/batches"
        return await self.ask("POST", address or self.master, path, batch, content_type=BATCH)

    async def state(self) -> dict[str, Any]:
        """All that bad input must leave as it is: every log's end, and the controllers' state."""
        positions = await settled(self.cluster)
        async with AdminClient(self.cluster.bootstrap) as admin:
            document = await admin.cluster_status()
        incarnations = {
            node["name"]: status["incarnation"]
            for node, status in await broker_statuses(self.cluster)
            if status is not None
        }
        kept = ("version", "leader", "term", "topics")
        groups = [
            {key: group[key] for key in ("master", "master_epoch", "sync_state_set")}
            for group in document["groups"]
        ]
        return {
            "positions": positions,
            "incarnations": incarnations,
            "groups": groups,
            **{key: document[key] for key in kept},
        }

    async def send_and_pull(self) -> None:
        """The cluster works: a message goes in, and comes out at its place."""
        path = "/v1/topics/orders/messages"
        content = orjson.dumps({"messages": [{"body": "still here"}], "queue": 1})
        status, answer = await self.ask("POST", self.master, path, content)
        assert status == 200, answer
        offset = answer["messages"][0]["offset"]
        path = f"/v1/topics/orders/queues/1/messages?offset={offset}"
        status, answer = await self.ask("GET", self.master, path)
        assert status == 200, answer
        assert [row["body"] for row in answer["messages"]] == ["still here"]


class Wire:
    """A TCP connection that says what no client would say."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, content: bytes) -> None:
        self.writer.write(content)

    async def hear(self, size: int) -> bytes:
        async with asyncio.timeout(10):
            return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """Everything until the other side closes, which it must within 10 s."""
        heard = bytearray()
        async with asyncio.timeout(10):
            try:
                while part := await self.reader.read(65536):
                    heard += part
            except ConnectionError:
                pass  # a reset is a closed connection, too
        return bytes(heard)

    async def upgrade(self) -> None:
        """Make it a stream; its hello frame is heard."""
        self.say(
            b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
            b"Upgrade: paceline-stream/1\r\n\r\n"
        )
        async with asyncio.timeout(10):
            head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head
        await self.frame()

    async def frame(self) -> tuple[int, int, bytes]:
        """(request id, status, body) of one frame of a stream."""
        head = await self.hear(FRAME_HEADER_BYTES)
        size, request_id, _, status, _ = FRAME_HEADER.unpack(head)
        return request_id, status, await self.hear(size - FRAME_HEADER_BYTES)


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[Wire]:
    """A connection to "host:port" for the block."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def session_of(address: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A broker's session with the controller at `address`; its challenge is still to be read."""
    async with (
        http_session(timeout_ms=10_000) as session,
        session.ws_connect(f"http://{address}/v1/session") as socket,
    ):
        yield socket


def random_bytes(size: int) -> bytes:
    """Garbage, always the same: a failure can be repeated."""
    return SeededRandom("garbage").token(size)
