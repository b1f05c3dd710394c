"""Bad input to a running cluster: a clear refusal with its code, or a closed connection.

After every case the logs end where they ended, the controllers' state is what it was, and the
cluster takes and gives a message. (The numbers are those of reference reliability.md 5.4.)
"""

import asyncio
import contextlib
import os
import pickle
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import orjson
import pytest
from aiohttp import WSMsgType
from tests.process.harness import running_cluster
from tests.process.target import (
    PRODUCER_ID,
    Target,
    connected,
    session_of,
)

from paceline.records.header import Kind
from paceline.types import (
    ControllerId,
    GroupName,
    Incarnation,
    MasterEpoch,
    PhysicalOffset,
    ReplicaId,
)
from paceline.wire import session as wire
from paceline.wire.stream import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    STATUS_ERROR,
    Operation,
    encode_frame,
)
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication import handshake as replication
from paceline_controller.raft import hello as raft

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

MESSAGES = "/v1/topics/orders/messages"
QUEUE = "/v1/topics/orders/queues/0"
PULL = f"{QUEUE}/messages"
WRONG_SECRET = b"not the secret of this cluster"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running_cluster(tmp_path_factory.mktemp("cluster") / "data") as cluster:
        target = Target(cluster)
        with asyncio.Runner() as runner:
            runner.run(target.prepare())
        yield target


@pytest.fixture(autouse=True)
async def _nothing_changes(target: Target) -> AsyncIterator[None]:
    before = await target.state()
    yield
    assert await target.state() == before
    await target.send_and_pull()


def a_send(**message: Any) -> bytes:
    """A good message and then this one: all or none."""
    return orjson.dumps({"messages": [{"body": "x"}, message]})


# -- JSON -----------------------------------------------------------------------------------------

REQUESTS: dict[str, tuple[str, str, bytes | None, int, str]] = {
    "no json": ("POST", MESSAGES, b"hello", 400, "BAD_JSON"),
    "a list": ("POST", MESSAGES, b"[]", 400, "BAD_JSON"),
    "nan": ("POST", MESSAGES, b'{"messages": [{"body": "x"}], "queue": NaN}', 400, "BAD_JSON"),
    "duplicate key": (
        "POST",
        MESSAGES,
        b'{"messages": [{"body": "x"}], "messages": [{"body": "y"}]}',
        400,
        "BAD_JSON",
    ),
    "nested": ("POST", MESSAGES, b'{"messages": ' + b"[" * 100_000, 400, "BAD_JSON"),
    "bad utf-8": ("POST", MESSAGES, b'{"messages": [{"body": "\xff"}]}', 400, "BAD_JSON"),
    "wrong type of body": ("POST", MESSAGES, a_send(body=7), 400, "BAD_REQUEST"),
    "wrong type of messages": ("POST", MESSAGES, b'{"messages": "x"}', 400, "BAD_REQUEST"),
    "wrong type of queue": (
        "POST",
        MESSAGES,
        b'{"messages": [{"body": "x"}], "queue": "0"}',
        400,
        "BAD_REQUEST",
    ),
    "unknown field": ("POST", MESSAGES, a_send(body="x", colour="red"), 400, "BAD_REQUEST"),
    "bad base64": ("POST", MESSAGES, a_send(body_base64="a*b"), 400, "BAD_REQUEST"),
    "oversized json": ("POST", MESSAGES, a_send(body="x" * 1_100_000), 413, "TOO_LARGE"),
    "unknown topic": (
        "POST",
        "/v1/topics/nothing/messages",
        a_send(body="x"),
        404,
        "TOPIC_NOT_FOUND",
    ),
    "unknown queue": (
        "POST",
        MESSAGES,
        b'{"messages": [{"body": "x"}], "queue": 99}',
        404,
        "QUEUE_NOT_FOUND",
    ),
    "bad name": ("POST", "/v1/topics/a%20b/messages", a_send(body="x"), 400, "BAD_NAME"),
    "path in a name": (
        "GET",
        "/v1/topics/..%2f..%2fx/queues/0/messages?offset=0",
        None,
        400,
        "BAD_NAME",
    ),
    "system topic": (
        "POST",
        "/v1/topics/SCHEDULE_TOPIC_XXXX/messages",
        a_send(body="x"),
        403,
        "FORBIDDEN",
    ),
    "pull of an unknown topic": (
        "GET",
        "/v1/topics/nothing/queues/0/messages?offset=0",
        None,
        404,
        "TOPIC_NOT_FOUND",
    ),
    "pull of an unknown queue": (
        "GET",
        "/v1/topics/orders/queues/9/messages?offset=0",
        None,
        404,
        "QUEUE_NOT_FOUND",
    ),
    "negative offset": ("GET", f"{PULL}?offset=-1", None, 400, "BAD_REQUEST"),
    "offset beyond the end": ("GET", f"{PULL}?offset=999999", None, 416, "OFFSET_OUT_OF_RANGE"),
    "offset beyond numbers": ("GET", f"{PULL}?offset={2**63}", None, 400, "BAD_REQUEST"),
    "no offset": ("GET", PULL, None, 400, "BAD_REQUEST"),
    "commit beyond the end": (
        "PUT",
        "/v1/groups/g/offsets",
        b'{"offsets": [{"topic": "orders", "queue": 0, "offset": 999999}]}',
        416,
        "OFFSET_OUT_OF_RANGE",
    ),
    "unknown path": ("GET", "/v1/nothing", None, 404, "NOT_FOUND"),
    "stream without upgrade": ("GET", "/v1/stream", None, 426, "UPGRADE_REQUIRED"),
}


@pytest.mark.parametrize("case", REQUESTS.values(), ids=REQUESTS)
async def test_bad_request_to_the_master_is_refused(
    target: Target, case: tuple[str, str, bytes | None, int, str]
) -> None:
    method, path, content, status, code = case

    answered, problem = await target.ask(method, target.master, path, content)

    assert (answered, problem["code"]) == (status, code), problem
    assert problem["detail"]


CONTROLLER_REQUESTS: dict[str, tuple[str, str, bytes, int, str]] = {
    "no json": ("POST", "/v1/topics", b"hello", 400, "BAD_JSON"),
    "duplicate key": ("POST", "/v1/topics", b'{"topic": "a", "topic": "b"}', 400, "BAD_JSON"),
    "nan": ("POST", "/v1/topics", b'{"topic": "a", "queues": NaN}', 400, "BAD_JSON"),
    "bad name": ("POST", "/v1/topics", b'{"topic": "../a"}', 400, "BAD_NAME"),
    "system topic": ("POST", "/v1/topics", b'{"topic": "RMQ_SYS_A"}', 403, "FORBIDDEN"),
    "wrong type": ("POST", "/v1/topics", b'{"topic": "a", "queues": "8"}', 400, "BAD_REQUEST"),
    "too many queues": (
        "POST",
        "/v1/topics",
        b'{"topic": "a", "queues": 1000000000}',
        400,
        "BAD_REQUEST",
    ),
    "unknown field": ("POST", "/v1/topics", b'{"topic": "a", "colour": 1}', 400, "BAD_REQUEST"),
    "unknown group": (
        "POST",
        "/v1/topics",
        b'{"topic": "a", "queues": {"g9": 1}}',
        404,
        "GROUP_NOT_FOUND",
    ),
    "topic that exists": (
        "POST",
        "/v1/topics",
        b'{"topic": "orders", "queues": 7}',
        409,
        "TOPIC_EXISTS",
    ),
    "oversized": ("POST", "/v1/topics", b'{"topic": "' + b"a" * 300_000 + b'"}', 413, "TOO_LARGE"),
    "minimum above the total": (
        "PUT",
        "/v1/groups/g1/settings",
        b'{"min_in_sync_replicas": 9}',
        400,
        "BAD_REQUEST",
    ),
    "unknown setting": ("PUT", "/v1/groups/g1/settings", b'{"colour": 1}', 400, "BAD_REQUEST"),
    "election of nobody": ("POST", "/v1/elections", b'{"group": "g9"}', 404, "GROUP_NOT_FOUND"),
}


@pytest.mark.parametrize("case", CONTROLLER_REQUESTS.values(), ids=CONTROLLER_REQUESTS)
async def test_bad_request_to_the_leading_controller_is_refused(
    target: Target, case: tuple[str, str, bytes, int, str]
) -> None:
    method, path, content, status, code = case

    answered, problem = await target.ask(method, target.leader, path, content)

    assert (answered, problem["code"]) == (status, code), problem


async def test_write_to_another_controller_names_the_leader(target: Target) -> None:
    status, problem = await target.ask("POST", target.follower, "/v1/topics", b'{"topic": "a"}')

    assert (status, problem["code"]) == (421, "NOT_LEADER")
    assert problem["leader"] == target.leader


# -- batches --------------------------------------------------------------------------------------


def damaged(batch: bytes, how: str) -> bytes:
    changed = bytearray(batch)
    match how:
        case "payload":
            changed[-5] ^= 0x10
        case "payload crc":
            changed[16] ^= 1
        case "header":
            changed[70] ^= 1
        case "magic":
            changed[0] ^= 1
        case "cut":
            del changed[-8:]
        case "longer":
            changed += bytes(8)
    return bytes(changed)


DAMAGES = ["payload", "payload crc", "header", "magic", "cut", "longer"]


@pytest.mark.parametrize("how", DAMAGES)
async def test_damaged_batch_is_refused_by_both_doors(target: Target, how: str) -> None:
    batch = damaged(target.batch(b"hello", b"world"), how)

    status, problem = await target.post_batch(batch)
    assert status == 400, problem
    assert problem["code"] in {"CORRUPT_BATCH", "BAD_REQUEST"}
    assert problem["definite"]

    problem = await produced_by_stream(target.master, batch)
    assert problem["code"] == "CORRUPT_BATCH", problem


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind != Kind.NORMAL])
async def test_kind_that_clients_may_not_send_is_refused(target: Target, kind: Kind) -> None:
    batch = target.batch(b"{}", kind=kind)

    status, problem = await target.post_batch(batch)
    assert status == 400, problem
    problem = await produced_by_stream(target.master, batch)
    assert problem["status"] == 400, problem


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"producer_id": PRODUCER_ID, "producer_epoch": 3, "base_sequence": 5}, "OUT_OF_ORDER"),
        ({"producer_id": PRODUCER_ID, "producer_epoch": 2, "base_sequence": 1}, "FENCED"),
        ({"producer_id": PRODUCER_ID, "producer_epoch": 4, "base_sequence": 1}, "UNKNOWN"),
        ({"producer_id": 78, "producer_epoch": 0, "base_sequence": 9}, "UNKNOWN"),
    ],
)
async def test_wrong_sequence_is_a_conflict(
    target: Target, fields: dict[str, int], code: str
) -> None:
    batch = target.batch(b"x", **fields)
    codes = {
        "OUT_OF_ORDER": "OUT_OF_ORDER_SEQUENCE",
        "FENCED": "PRODUCER_FENCED",
        "UNKNOWN": "UNKNOWN_PRODUCER",
    }

    status, problem = await target.post_batch(batch)
    assert (status, problem["code"]) == (409, codes[code]), problem
    problem = await produced_by_stream(target.master, batch)
    assert problem["code"] == codes[code], problem


async def test_repeated_sequence_is_answered_with_the_original_and_not_stored(
    target: Target,
) -> None:
    batch = target.batch(producer_id=PRODUCER_ID, producer_epoch=3, base_sequence=0)

    status, answer = await target.post_batch(batch)

    assert (status, answer["duplicate"], answer["offset"]) == (200, True, 0), answer


async def test_batch_for_another_queue_or_topic_than_the_address_is_refused(
    target: Target,
) -> None:
    for batch in (target.batch(queue_id=1), target.batch(topic_id=999)):
        status, problem = await target.post_batch(batch)
        assert (status, problem["code"]) == (400, "BAD_REQUEST"), problem
    problem = await produced_by_stream(target.master, target.batch(topic_id=999))
    assert problem["code"] == "TOPIC_NOT_FOUND"
    problem = await produced_by_stream(target.master, target.batch(queue_id=99))
    assert problem["code"] == "QUEUE_NOT_FOUND"


async def test_batch_over_the_limit_is_refused_unread(target: Target) -> None:
    async with connected(target.master) as door:
        door.say(
            f"POST {QUEUE}/batches HTTP/1.1\r\nHost: x\r\nContent-Type: "
            f"application/vnd.paceline.batch\r\nContent-Length: {17 * 1024 * 1024}\r\n\r\n".encode()
        )
        answer = await door.rest()

    assert answer.startswith(b"HTTP/1.1 413 "), answer[:200]
    assert b"TOO_LARGE" in answer


# -- a replica ------------------------------------------------------------------------------------


async def test_send_to_a_replica_names_the_master(target: Target) -> None:
    problems = [
        await target.ask("POST", target.replica, MESSAGES, a_send(body="x")),
        await target.post_batch(target.batch(), address=target.replica),
    ]
    streamed = await produced_by_stream(target.replica, target.batch())

    for status, problem in [*problems, (streamed["status"], streamed)]:
        assert (status, problem["code"]) == (421, "NOT_MASTER"), problem
        assert problem["master"] == target.master
        assert problem["definite"]


# -- the stream -----------------------------------------------------------------------------------


async def produced_by_stream(address: str, batch: bytes) -> dict[str, Any]:
    """The problem that a batch gets; the stream lives on."""
    async with connected(address) as stream:
        await stream.upgrade()
        stream.say(encode_frame(1, Operation.PRODUCE, batch))
        request_id, status, body = await stream.frame()
        assert (request_id, status) == (1, STATUS_ERROR), body
        stream.say(encode_frame(2, Operation.CALL, b'{"call": "routes"}'))
        request_id, _, _ = await stream.frame()
        assert request_id == 2
    problem: dict[str, Any] = orjson.loads(body)
    return problem


def frame_of(size: int, *, operation: int = 1, status: int = 0, reserved: int = 0) -> bytes:
    return FRAME_HEADER.pack(size, 1, operation, status, reserved)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        os.urandom(4096),
        bytes(64),
        b"\xff" * 64,
        frame_of(FRAME_BYTES_MAX + 1),
        frame_of(3),
        frame_of(64, operation=99),
        frame_of(64, status=1),
        frame_of(64, reserved=7),
        encode_frame(1, Operation.HELLO, b"{}"),
    ],
    ids=lambda garbage: garbage[:12].hex(),
)
async def test_garbage_on_a_stream_closes_it(target: Target, garbage: bytes) -> None:
    async with connected(target.master) as stream:
        await stream.upgrade()
        stream.say(garbage)
        await stream.rest()


@pytest.mark.parametrize("body", [b"", b"hello", b"[]", b'{"call": "nothing"}', b'{"call": 7}'])
async def test_bad_call_on_a_stream_is_answered_and_the_stream_lives(
    target: Target, body: bytes
) -> None:
    async with connected(target.master) as stream:
        await stream.upgrade()
        for request_id, operation in ((1, Operation.CALL), (2, Operation.FETCH)):
            stream.say(encode_frame(request_id, operation, body))
            answered, status, problem = await stream.frame()
            assert (answered, status) == (request_id, STATUS_ERROR)
            assert 400 <= orjson.loads(problem)["status"] < 500, problem


# -- replication, raft, sessions ------------------------------------------------------------------

CANARY = "canary-of-the-pickle"
PICKLE = pickle.dumps((os.system, (f"touch {CANARY}",)))
GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "random": os.urandom(4096),
    "zeros": bytes(256),
    "large length": b"\xff\xff\xff\x7f" * 64,
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
    hello = replication.Hello(
        cluster_id=target.view.cluster_id,
        group=GroupName("g1"),
        replica_id=stranger.replica_id,
        incarnation=Incarnation(stranger.incarnation + 1),
        nonce=os.urandom(16),
    )
    async with connected(target.replica_view(target.master).replication_address) as port:
        port.say(replication.encode_hello(hello))
        size = replication.parse_prefix(await port.hear(8), size_bytes_max=4096)
        challenge = replication.parse_challenge(await port.hear(size))
        assert isinstance(challenge, replication.Challenge)
        port.say(
            replication.encode_introduction(
                an_introduction(stranger.replica_id, hello.incarnation, challenge.epoch),
                proof=replication.replica_proof(WRONG_SECRET, hello, challenge),
            )
        )
        answer = await port.rest()

    refused = replication.parse_welcome(answer[8:])
    assert isinstance(refused, replication.Refused)
    assert refused.code == "UNAUTHENTICATED"


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
        port.say(replication.encode_message(hello))
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
    for content in (os.urandom(100), bytes(5 * 1024 * 1024)):
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
            nonce=os.urandom(16),
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
