"""Whoever reaches the Raft port without the cluster secret gets nothing and moves nothing."""

import asyncio
import os
import pickle
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from tests.sim.raft.cluster import NAMES, SECRET, Cluster, eventually

from paceline.platform.runtime import SystemClock, SystemRandom
from paceline.platform.secret import ClusterSecrets
from paceline.types import ControllerId
from paceline.wire.messages import Nonce
from paceline.wire.seal import DIALER, Seal
from paceline_controller.raft.host import RaftQuorum
from paceline_controller.raft.members import configured
from paceline_controller.raft.peers.frames import encode_message
from paceline_controller.raft.peers.hello import (
    PROTOCOL,
    PURPOSE,
    Hello,
    make_proof,
    members_digest,
    parse_hello,
)
from paceline_controller.raft.settings import RaftSettings

pytestmark = pytest.mark.real_time

C1, C2, C3 = NAMES
PATIENT = RaftSettings(election_min_ms=3_000, election_max_ms=6_000, leader_fallback_ms=6_000)
"""The term must stay what it is, however busy the machine that tests."""


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(str(tmp_path), settings=PATIENT)
    await made.start()
    try:
        await made.write("first")
        before = max(node.status().term for node in made.nodes.values())
        yield made
        await made.write("still works")
        assert max(node.status().term for node in made.nodes.values()) == before
        assert made.failures == {}
    finally:
        await made.stop()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def closed(self) -> bytes:
        """What came until the other side closed."""
        async with asyncio.timeout(5):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""
            finally:
                self.writer.close()

    def write_document(self, content: bytes) -> None:
        self.writer.write(len(content).to_bytes(4, "little") + content)

    async def read_document(self) -> bytes:
        length = int.from_bytes(await self.reader.readexactly(4), "little")
        return await self.reader.readexactly(length)


async def connect(cluster: Cluster, name: ControllerId = C3) -> _Connection:
    return _Connection(*await asyncio.open_connection(*cluster.addresses[name]))


def hello(**changes: Any) -> Hello:
    fields: dict[str, Any] = {
        "protocol": PROTOCOL,
        "cluster": "test",
        "sender": "c1",
        "receiver": "c3",
        "members": members_digest(NAMES),
        "nonce": Nonce(os.urandom(16)),
        "store": "00" * 16,
        "is_founded": True,
        "remembered_store": "",
        "known": configured(NAMES).to_json(),
    }
    return Hello(**(fields | changes))


class _Exploit:
    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self._canary}",)


async def test_a_frame_of_the_library_with_an_exploit_does_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    content = zlib.compress(pickle.dumps(_Exploit(canary)))
    connection = await connect(cluster)

    connection.writer.write(struct.pack("i", len(content)) + content)

    assert await connection.closed() is not None
    assert not canary.exists()


@pytest.mark.parametrize("length", [0x7FFFFFFF, 0xFFFFFFFF, 8193, 0])
async def test_a_length_out_of_bounds_closes_the_connection(cluster: Cluster, length: int) -> None:
    connection = await connect(cluster)

    connection.writer.write(length.to_bytes(4, "little"))

    assert b"refused" in await connection.closed()


@pytest.mark.parametrize(
    "content",
    [
        os.urandom(300),
        b"[]",
        b'{"protocol": 1}',
        pickle.dumps(["remove", "c1"]),
        orjson.dumps("readonly"),
        orjson.dumps(["transfer"]),
    ],
    ids=["garbage", "list", "short", "remove", "readonly", "transfer"],
)
async def test_anything_but_a_hello_is_refused(cluster: Cluster, content: bytes) -> None:
    connection = await connect(cluster)

    connection.write_document(content)

    assert b"refused" in await connection.closed()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cluster": "other"}, "cluster is 'test' here and 'other' there"),
        ({"protocol": 2}, "raft protocol 2"),
        ({"receiver": "c2"}, "this is controller 'c3'"),
        ({"sender": "c9"}, "'c9' does not dial"),
        ({"sender": "c3"}, "'c3' does not dial"),
        ({"members": "x"}, "configured with different controllers"),
        ({"nonce": Nonce(b"short")}, "nonce"),
    ],
)
async def test_a_hello_that_does_not_belong_here_is_refused_with_a_sentence(
    cluster: Cluster, changes: dict[str, Any], reason: str
) -> None:
    connection = await connect(cluster)

    connection.write_document(hello(**changes).encode())

    assert reason in (await connection.closed()).decode()


async def prove(connection: _Connection, ours: Hello, secret: bytes) -> Hello:
    """As a dialer; returns the listener's hello."""
    connection.write_document(ours.encode())
    theirs = parse_hello(await connection.read_document())
    await connection.read_document()
    connection.write_document(make_proof(secret, role="dialer", own=ours, peer=theirs))
    return theirs


async def test_a_wrong_secret_is_refused_and_the_old_link_stays(cluster: Cluster) -> None:
    connection = await connect(cluster)

    await prove(connection, hello(), b"wrong")

    assert b"another cluster secret" in await connection.closed()


async def test_a_proof_cannot_be_used_again(cluster: Cluster) -> None:
    recorded = hello()
    first = await connect(cluster)
    first.write_document(recorded.encode())
    theirs = parse_hello(await first.read_document())
    proof = make_proof(SECRET, role="dialer", own=recorded, peer=theirs)
    first.writer.close()

    second = await connect(cluster)
    second.write_document(recorded.encode())
    second.write_document(proof)

    assert b"another cluster secret" in await second.closed()


async def test_a_controller_that_lost_its_disk_is_refused_although_it_has_the_secret(
    cluster: Cluster,
) -> None:
    connection = await connect(cluster)

    await prove(connection, hello(), SECRET)

    assert b"must be replaced under a new id" in await connection.closed()


async def test_a_silent_connection_is_closed_in_time(cluster: Cluster) -> None:
    connection = await connect(cluster)

    assert await connection.closed() == b""


async def test_a_flood_of_connections_does_not_keep_the_quorum_from_working(
    cluster: Cluster,
) -> None:
    connections = [await connect(cluster) for _ in range(100)]

    await cluster.write("during the flood")

    await asyncio.gather(*(connection.closed() for connection in connections))


@pytest.mark.parametrize("damage", ["altered", "unsealed", "repeated"])
async def test_a_proven_link_breaks_at_the_first_bad_frame(cluster: Cluster, damage: str) -> None:
    """The test knows the secret and the store of c1; its frames still must be in order."""
    store = cluster.nodes[C1]._links._identity.store  # type: ignore[union-attr]
    ours = hello(store=store)
    connection = await connect(cluster)
    theirs = await prove(connection, ours, SECRET)
    await connection.read_document()
    seal = Seal(
        SECRET,
        purpose=PURPOSE,
        sender=DIALER,
        dialer_nonce=ours.nonce,
        listener_nonce=theirs.nonce,
    )
    message = {"type": "newer_term", "term": 1_000_000_000}
    frame = seal.record((b"\x00",))  # a ping

    if damage == "altered":
        frame[-1] ^= 9
    elif damage == "repeated":
        frame += bytes(frame)
    else:
        content = encode_message(message)
        frame += struct.pack("<I16s", len(content), bytes(16)) + content
    connection.writer.write(frame)

    await connection.closed()
    await eventually(lambda: C1 in cluster.nodes[C3]._links._links)  # type: ignore[union-attr]


async def test_a_wiped_controller_does_not_come_back(cluster: Cluster) -> None:
    """Its peers remember its store; the rest of the quorum goes on."""
    leader = cluster.name_of(await cluster.leader())
    wiped = next(name for name in NAMES if name != leader)
    await cluster.nodes.pop(wiped).stop()
    new = RaftQuorum(
        cluster.machines[wiped],
        controller_id=wiped,
        listen=cluster.addresses[wiped],
        peers=cluster.addresses,
        data_folder=f"{cluster.folder}/elsewhere",
        disk=cluster.nodes[leader]._disk,
        clock=SystemClock(),
        random=SystemRandom(),
        secrets=ClusterSecrets(SECRET),
        cluster_name="test",
    )

    await new.start()
    await cluster.write("without it")

    assert new.status().leader is None
    assert new.status().commit_index == 1
    await new.stop()
