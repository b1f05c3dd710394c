"""Bad input at the doors for clients: a clear refusal with its code, or a closed connection.

After every case the logs end where they ended, the controllers' state is what it was, and the
cluster takes and gives a message. (The numbers are those of reference reliability.md 5.4.)
"""

from typing import Any

import orjson
import pytest
from tests.support.process.target import (
    PRODUCER_ID,
    Target,
    connected,
    random_bytes,
)

from paceline.records.header import Kind
from paceline.wire.stream import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    STATUS_ERROR,
    Operation,
    encode_frame,
)

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("nothing_changes"),
    pytest.mark.xdist_group("bad_input"),
]

MESSAGES = "/v1/topics/orders/messages"
QUEUE = "/v1/topics/orders/queues/0"
PULL = f"{QUEUE}/messages"


def a_send(**message: Any) -> bytes:
    """A good message and then this one: all or none."""
    return orjson.dumps({"messages": [{"body": "x"}, message]})


# -- JSON -----------------------------------------------------------------------------------------

REQUESTS: dict[str, tuple[str, str, bytes | None, int, str]] = {
    "no json": ("POST", MESSAGES, b"hello", 400, "BAD_JSON"),
    "empty": ("POST", MESSAGES, b"", 400, "BAD_REQUEST"),
    "a list": ("POST", MESSAGES, b"[]", 400, "BAD_JSON"),
    "null": ("POST", MESSAGES, b"null", 400, "BAD_JSON"),
    "lone surrogate": ("POST", MESSAGES, b'{"messages": [{"body": "\\ud800"}]}', 400, "BAD_JSON"),
    "5000 digits": ("POST", MESSAGES, b'{"queue": ' + b"9" * 5000 + b"}", 400, "BAD_JSON"),
    "1e999": ("POST", MESSAGES, b'{"messages": [{"body": "x"}], "queue": 1e999}', 400, "BAD_JSON"),
    "no messages": ("POST", MESSAGES, b"{}", 400, "BAD_REQUEST"),
    "key of 64 KiB": ("POST", MESSAGES, a_send(body="x", key="k" * 65_536), 400, "BAD_REQUEST"),
    "negative delay": ("POST", MESSAGES, a_send(body="x", delay_ms=-1), 400, "BAD_REQUEST"),
    "delay of ages": ("POST", MESSAGES, a_send(body="x", delay_ms=10**18), 400, "BAD_REQUEST"),
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
    "property of the system": (
        "POST",
        MESSAGES,
        a_send(body="x", properties={"RECONSUME_TIME": "1"}),
        400,
        "BAD_REQUEST",
    ),
    "bad base64": ("POST", MESSAGES, a_send(body_base64="a*b"), 400, "BAD_REQUEST"),
    "oversized json": ("POST", MESSAGES, a_send(body="x" * 1_100_000), 413, "TOO_LARGE"),
    "too many delayed messages": (
        "POST",
        MESSAGES,
        orjson.dumps({"queue": 0, "messages": [{"body": "", "delay_ms": 9}] * 4097}),
        413,
        "TOO_LARGE",
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


async def test_bad_write_to_another_controller_is_refused_by_the_leader(target: Target) -> None:
    body = b'{"topic": "a", "color": "red"}'

    answers = [
        await target.ask("POST", address, "/v1/topics", body)
        for address in (target.leader, target.follower)
    ]

    assert answers[0][0] == 400
    assert answers[1] == answers[0]


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
        random_bytes(4096),
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
