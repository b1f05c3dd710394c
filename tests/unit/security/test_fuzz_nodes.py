"""Everything that is read on the ports between nodes before the cluster's secret is proven.

CVE-2022-34917 (Kafka), CVE-2026-27889 and CVE-2026-33218 (NATS). Sessions: test_fuzz_clients.py,
for they begin as a request.
"""

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from tests.support.fuzzing import (
    LENGTHS,
    Flood,
    Say,
    Sockets,
    bounded,
    eventually_served,
    no_error_of_its_own,
    saying,
)
from tests.support.replication.builders import a_view
from tests.support.replication.nodes import GROUP, MasterNode

from paceline.cli.local.free_ports import free_ports
from paceline.platform.address import Address
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SystemClock, SystemRandom
from paceline.platform.secret import ClusterSecrets
from paceline.types import ControllerId, Incarnation, ReplicaId
from paceline.wire.messages import Nonce
from paceline_broker.replication import handshake, messages
from paceline_controller.app import build_node
from paceline_controller.config import ControllerConfig
from paceline_controller.data_folder import FolderIdentity
from paceline_controller.raft.members import configured
from paceline_controller.raft.peers import hello as raft

C1, C2 = ControllerId("c1"), ControllerId("c2")
REPLICA_HELLO = messages.Hello(
    cluster_id="c",
    group=GROUP,
    replica_id=ReplicaId(2),
    incarnation=Incarnation(1),
    nonce=Nonce(bytes(16)),
    is_sealed=True,
)
RAFT_HELLO = raft.Hello(
    protocol=raft.PROTOCOL,
    cluster="paceline",
    sender=C2,
    receiver=C1,
    members=raft.members_digest([C1, C2]),
    nonce=Nonce(bytes(16)),
    store="0" * 32,
    is_founded=False,
    remembered_store="",
    known=configured([C1, C2]).to_json(),
)


def framed(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


def lying(rng: random.Random) -> Sequence[bytes]:
    """A length, and less than it says, or more."""
    length = struct.pack("<I", rng.choice(LENGTHS))
    magic = struct.pack("<I", messages.MAGIC) if rng.randrange(2) else b""
    return [magic + length, rng.randbytes(rng.choice((0, 10, 5000, 100_000)))]


def either(*says: Say) -> Say:
    return lambda rng: rng.choice(says)(rng)


REPLICATION = either(
    lying,
    saying(
        REPLICA_HELLO.encode(),
        messages.frame({"kind": "introduction", "replica_id": 2, "proof": "00" * 32}),
        messages.frame({"kind": "hello", "nonce": [[[[]]]], "cluster_id": {"a": "b" * 3000}}),
        messages.frame({"kind": "repair_hello", "nonce": "00" * 16, "group": "g1"}),
        bytes(40),
    ),
)
RAFT = either(
    lying,
    saying(
        framed(RAFT_HELLO.encode()),
        framed(orjson.dumps({"proof": "00" * 32})),
        framed(b'{"known":' + b"[" * 4000),
        framed(b'{"refused":"' + b"x" * 500 + b'"}'),
    ),
)


@asynccontextmanager
async def a_master() -> AsyncIterator[tuple[int, Callable[[], dict[str, int]]]]:
    """The replication port of a master, and what it holds."""
    master = MasterNode()
    await master.start()
    master.lead(a_view())
    server = master.server
    try:
        yield (
            master.port,
            lambda: {"links": len(server._links), "strangers": server.strangers.count},
        )
    finally:
        await server.stop()


async def challenged(port: int) -> None:
    """A replica is asked for its proof."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REPLICA_HELLO.encode())
    size = messages.parse_prefix(await reader.readexactly(8), size_bytes_max=4096)
    body = await reader.readexactly(size)
    writer.transport.abort()
    assert isinstance(messages.parse_answer(body, handshake.Challenge), handshake.Challenge)


@asynccontextmanager
async def a_controller() -> AsyncIterator[tuple[int, Callable[[], dict[str, int]]]]:
    """The Raft port of a controller whose peer is away, and what it holds."""
    own, other, client, away = free_ports(4, host="127.0.0.1")
    config = ControllerConfig(
        controller_id=C1,
        data_dir="/c1",
        secret_file="none",
        peers=(f"c1=127.0.0.1:{own}", f"c2=127.0.0.1:{other}"),
        controllers=(f"127.0.0.1:{client}", f"127.0.0.1:{away}"),
        listen=Address("127.0.0.1", client),
    )
    node = build_node(
        config,
        disk=MemoryDisk(),
        clock=SystemClock(),
        random=SystemRandom(),
        secrets=ClusterSecrets(b"s" * 32),
        identity=FolderIdentity(controller_id=C1, cluster_name="paceline", cluster_id=None),
    )
    await node.start()
    quorum: Any = node.quorum
    try:
        yield own, lambda: {"strangers": quorum._links._strangers.count}
    finally:
        await node.stop()


async def greeted(port: int) -> None:
    """A controller is answered with a hello."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(framed(RAFT_HELLO.encode()))
    size = int.from_bytes(await reader.readexactly(4), "little")
    body = await reader.readexactly(size)
    writer.transport.abort()
    assert raft.parse_hello(body).sender == C1


PORTS: dict[str, tuple[Any, Say, Callable[[int], Any], bytes]] = {
    "replication": (a_master, REPLICATION, challenged, REPLICA_HELLO.encode()),
    "raft": (a_controller, RAFT, greeted, framed(RAFT_HELLO.encode())),
}


@pytest.mark.parametrize("port", PORTS)
async def test_a_port_between_nodes_outlives_what_strangers_say(
    port: str, fuzz: tuple[float, int], caplog: pytest.LogCaptureFixture
) -> None:
    bed, say, ask, _ = PORTS[port]
    with no_error_of_its_own(caplog):
        async with bed() as (number, held), bounded(held):
            flood = Flood(number, seed=fuzz[1])
            await flood.run(say, seconds=fuzz[0])
            await eventually_served(lambda: ask(number))
            assert flood.count >= 20


@pytest.mark.parametrize("kind", ["silent", "half", "unproven"])
@pytest.mark.parametrize("port", PORTS)
async def test_500_strangers_keep_no_node_out(
    port: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    bed, _, ask, hello = PORTS[port]
    said = {"silent": b"", "half": hello[:20], "unproven": hello}[kind]
    with no_error_of_its_own(caplog):
        async with bed() as (number, held), bounded(held):
            strangers = Sockets(number)
            await strangers.say(said, 500)
            assert held()["strangers"] <= 64
            await eventually_served(lambda: ask(number))
            strangers.close()
