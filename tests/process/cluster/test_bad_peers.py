"""Bad input at the ports between nodes: closed or refused, nothing executed, nothing learned.

After every case the logs end where they ended, the controllers' state is what it was, and the
cluster takes and gives a message. (The numbers are those of reference reliability.md 5.4.)
"""

import asyncio
import contextlib
import os
import pickle
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from aiohttp import WSMsgType
from msgspec.structs import asdict
from tests.support.process.target import Target, connected, random_bytes, session_of

from paceline.types import (
    ControllerId,
    GroupName,
    Incarnation,
    MasterEpoch,
    PhysicalOffset,
    ReplicaId,
)
from paceline.wire import session as wire
from paceline.wire.messages import Nonce
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication import handshake as replication
from paceline_broker.replication import messages
from paceline_controller.raft.members import configured
from paceline_controller.raft.peers import hello as raft

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("nothing_changes"),
    pytest.mark.xdist_group("bad_peers"),
]

WRONG_SECRET = b"not the secret of this cluster"

# -- garbage on any of them ------------------------------------------------------------------

CANARY = "canary-of-the-pickle"
PICKLE = pickle.dumps((os.system, (f"touch {CANARY}",)))
BOMB = zlib.compress(bytes(64 * 1024 * 1024))
"""64 KiB of it."""
GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "random": random_bytes(4096),
    "zeros": bytes(256),
    "large length": b"\xff\xff\xff\x7f" * 64,
    "negative length": b"\xff\xff\xff\xff" * 64,
    "zlib bomb": len(BOMB).to_bytes(4, "little") + BOMB,
    "pickle": len(PICKLE).to_bytes(4, "little") + PICKLE,
    "zlib pickle": len(zlib.compress(PICKLE)).to_bytes(4, "little") + zlib.compress(PICKLE),
    "json": (2).to_bytes(4, "little") + b"{}" + bytes(64),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_on_the_ports_between_nodes_closes_the_connection(
    target: Target, garbage: bytes
) -> None:
    ports = [
        target.raft,
        target.replica_view(target.master).replication_address,
        target.replica_view(target.replica).replication_address,
    ]
    for address in ports:
        async with connected(address) as port:
            port.say(garbage)
            await port.rest()
    found = [path for path in target.cluster.data_dir.rglob(CANARY)]
    assert not found
    assert not os.path.exists(CANARY)


async def test_replica_with_another_secret_is_refused_before_it_learns_of_the_log(
    target: Target,
) -> None:
    stranger = target.replica_view(target.replica)
    hello = messages.Hello(
        cluster_id=target.view.cluster_id,
        group=GroupName("g1"),
        replica_id=stranger.replica_id,
        incarnation=Incarnation(stranger.incarnation + 1),
        nonce=Nonce(os.urandom(16)),
        is_sealed=True,
    )
    async with connected(target.replica_view(target.master).replication_address) as port:
        port.say(hello.encode())
        size = messages.parse_prefix(await port.hear(8), size_bytes_max=4096)
        challenge = messages.parse_answer(await port.hear(size), replication.Challenge)
        introduction = an_introduction(stranger.replica_id, hello.incarnation, challenge.epoch)
        proof = hello.proof(WRONG_SECRET, challenge)
        said = replication.ProvenIntroduction(**asdict(introduction), proof=proof).encode()
        seals = hello.seals(WRONG_SECRET, peer_nonce=challenge.nonce, is_dialer=True)
        assert seals is not None
        port.say(bytes(seals.outgoing.record([said])))
        answer = await port.rest()

    assert target.view.cluster_id.encode() not in answer
    assert len(answer) < 1000, "a refusal, which it cannot check"


def an_introduction(
    replica_id: ReplicaId, incarnation: Incarnation, epoch: MasterEpoch
) -> replication.Introduction:
    return replication.Introduction(
        replica_id=replica_id,
        store_id="0" * 32,
        incarnation=incarnation,
        epoch=epoch,
        start=PhysicalOffset(0),
        end=PhysicalOffset(0),
        confirm=PhysicalOffset(0),
        epochs=EpochTable(),
    )


@pytest.mark.parametrize(
    "change", [{"cluster_id": "another"}, {"group": "g9"}, {"replica_id": -1}, {"nonce": "00"}]
)
async def test_replication_hello_that_is_wrong_is_refused(
    target: Target, change: dict[str, Any]
) -> None:
    hello = {
        "kind": "hello",
        "cluster_id": target.view.cluster_id,
        "group": "g1",
        "replica_id": 1,
        "incarnation": 9,
        "nonce": "00" * 16,
        **change,
    }
    async with connected(target.replica_view(target.master).replication_address) as port:
        port.say(messages.frame(hello))
        answer = await port.rest()

    assert orjson.loads(answer[8:])["kind"] == "refused", answer


def a_raft_hello(**changes: Any) -> bytes:
    """Of controller c1 to c3, as anybody who knows the configuration could write it."""
    names = [ControllerId(name) for name in ("c1", "c2", "c3")]
    hello = {
        "protocol": raft.PROTOCOL,
        "cluster": "paceline",
        "sender": "c1",
        "receiver": "c3",
        "members": raft.members_digest(names),
        "nonce": "11" * 16,
        "store": "22" * 16,
        "is_founded": True,
        "remembered_store": "",
        "known": configured(names).to_json(),
        **changes,
    }
    content = orjson.dumps(hello)
    return len(content).to_bytes(4, "little") + content


async def test_controller_with_another_secret_is_refused(target: Target) -> None:
    async with connected(target.raft) as port:
        port.say(a_raft_hello())
        theirs = raft.parse_hello(await document(port.hear))
        await document(port.hear)  # its proof
        ours = raft.parse_hello(a_raft_hello()[4:])
        proof = raft.make_proof(WRONG_SECRET, role="dialer", own=ours, peer=theirs)
        port.say(len(proof).to_bytes(4, "little") + proof)
        answer = await port.rest()

    assert b"refused" in answer
    assert b"secret" in answer


async def document(hear: Callable[[int], Awaitable[bytes]]) -> bytes:
    return await hear(int.from_bytes(await hear(4), "little"))


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": 99},
        {"cluster": "another"},
        {"cluster": "\x80" * 1500},
        {"sender": "c9"},
        {"sender": "\x80" * 1500},
        {"receiver": "c2"},
        {"members": "0" * 32},
        {"nonce": "zz"},
        {"nonce": 7},
        {"is_founded": "yes"},
        {"more": 1},
    ],
    ids=lambda change: "-".join(f"{key}={value!r:.10}" for key, value in change.items()),
)
async def test_raft_hello_that_is_wrong_is_refused(target: Target, change: dict[str, Any]) -> None:
    async with connected(target.raft) as port:
        port.say(a_raft_hello(**change))
        answer = await port.rest()

    assert b"refused" in answer, answer


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "[]",
        "{}",
        '{"type": "hello"}',
        '{"type": "nothing"}',
        '{"type": "hello", "type": "hello"}',
        '{"type": "heartbeat", "replica_id": 1}',
    ],
)
async def test_garbage_on_a_session_is_refused(target: Target, text: str) -> None:
    for address in (target.leader, target.follower):
        async with session_of(address) as session:
            await session.receive()  # the challenge
            await session.send_str(text)
            refused = orjson.loads((await session.receive()).data)
            assert refused["type"] == "refused", refused
            assert (await session.receive()).type is WSMsgType.CLOSE


async def test_binary_or_large_message_closes_a_session(target: Target) -> None:
    for content in (random_bytes(100), bytes(5 * 1024 * 1024)):
        async with session_of(target.leader) as session:
            await session.receive()
            with contextlib.suppress(ConnectionError):  # it is closed before all is sent
                await session.send_bytes(content)
            while (message := await session.receive()).type is WSMsgType.TEXT:
                assert orjson.loads(message.data)["type"] == "refused"
            assert message.type in {WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.ERROR}


async def test_session_of_a_broker_with_another_secret_is_refused(target: Target) -> None:
    known = target.replica_view(target.replica)
    async with session_of(target.leader) as session:
        challenge = wire.parse_from_controller((await session.receive()).data)
        assert isinstance(challenge, wire.Challenge)
        hello = wire.make_hello(
            challenge,
            WRONG_SECRET,
            cluster_id=target.view.cluster_id,
            group=GroupName("g1"),
            store_id=known.store_id,
            replica_id=known.replica_id,
            nonce=Nonce(os.urandom(16)),
            is_sealed=True,
        )
        await session.send_str(wire.encode(hello))
        refused = orjson.loads((await session.receive()).data)

    assert (refused["type"], refused["code"]) == ("refused", "UNAUTHENTICATED")


# -- slowness -------------------------------------------------------------------------------------


async def test_whoever_says_half_a_word_to_a_broker_is_disconnected(target: Target) -> None:
    """35, 50: each deadline is 5 s or less; all at once, so that the test takes no longer."""
    master = target.replica_view(target.master)

    answers = await asyncio.gather(
        rest_after(target.master, HALF_A_HEAD),
        rest_after(target.master, b""),
        rest_after(master.replication_address, b"PL"),
        rest_after(master.replication_address, b""),
    )

    assert answers[0].startswith(b"HTTP/1.1 408 "), answers[0]


async def test_whoever_says_half_a_word_to_a_controller_is_disconnected(target: Target) -> None:
    await asyncio.gather(
        rest_after(target.leader, HALF_A_HEAD),
        rest_after(target.leader, b""),
        rest_after(target.raft, b"\x10"),
        rest_after(target.raft, b""),
        silent_session(target.leader),
    )


HALF_A_HEAD = b"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Slow: "


async def rest_after(address: str, content: bytes) -> bytes:
    """What comes until the other side closes, after it heard that much and no more."""
    async with connected(address) as port:
        port.say(content)
        return await port.rest()


async def silent_session(address: str) -> None:
    async with session_of(address) as session:
        await session.receive()
        message = await session.receive()
        assert message.type in {WSMsgType.CLOSE, WSMsgType.CLOSED}
