"""Bad input over HTTP: a clear 4xx with its code, nothing stored (reference reliability.md 5.4)."""

import asyncio
import base64
from typing import Any

import orjson
import pytest
from tests.support.http.door import Door, a_batch, a_door

from paceline.server import http_guard

BATCH = "application/vnd.paceline.batch"
JSON = "application/json"
MESSAGES = "/v1/topics/orders/messages"
BATCHES = "/v1/topics/orders/queues/0/batches"
PULL = "/v1/topics/orders/queues/0/messages"
OFFSETS = "/v1/groups/g/offsets"


def a_send(**message: Any) -> bytes:
    return orjson.dumps({"messages": [{"body": "x"}, message]})


BODIES: dict[str, tuple[str, bytes, int, str]] = {
    "not json": (MESSAGES, b"hello", 400, "BAD_JSON"),
    "empty": (MESSAGES, b"", 400, "BAD_REQUEST"),
    "a list": (MESSAGES, b"[]", 400, "BAD_JSON"),
    "a number": (MESSAGES, b"7", 400, "BAD_JSON"),
    "null": (MESSAGES, b"null", 400, "BAD_JSON"),
    "utf-16": (MESSAGES, '{"messages": []}'.encode("utf-16"), 400, "BAD_JSON"),
    "bad utf-8": (MESSAGES, b'{"messages": [{"body": "\xff"}]}', 400, "BAD_JSON"),
    "lone surrogate": (MESSAGES, b'{"messages": [{"body": "\\ud800"}]}', 400, "BAD_JSON"),
    "nan": (MESSAGES, b'{"messages": [{"body": "x"}], "queue": NaN}', 400, "BAD_JSON"),
    "1e999": (MESSAGES, b'{"messages": [{"body": "x"}], "queue": 1e999}', 400, "BAD_JSON"),
    "duplicate key": (MESSAGES, b'{"messages": [], "messages": [{"body": "x"}]}', 400, "BAD_JSON"),
    "depth": (MESSAGES, b'{"messages": ' + b"[" * 100_000, 400, "BAD_JSON"),
    "5000 digits": (MESSAGES, b'{"queue": ' + b"9" * 5000 + b"}", 400, "BAD_JSON"),
    "unknown field": (MESSAGES, a_send(body="x", colour="red"), 400, "BAD_REQUEST"),
    "no messages": (MESSAGES, b"{}", 400, "BAD_REQUEST"),
    "no message": (MESSAGES, b'{"messages": []}', 400, "BAD_REQUEST"),
    "one bad message": (MESSAGES, a_send(body=7), 400, "BAD_REQUEST"),
    "bad base64": (MESSAGES, a_send(body_base64="a*b"), 400, "BAD_REQUEST"),
    "two bodies": (MESSAGES, a_send(body="x", body_base64="eA=="), 400, "BAD_REQUEST"),
    "huge key": (MESSAGES, a_send(body="x", key="k" * 70_000), 400, "BAD_REQUEST"),
    "huge properties": (
        MESSAGES,
        a_send(body="x", properties={f"p{n}": "v" for n in range(10_000)}),
        400,
        "BAD_REQUEST",
    ),
    "property that is no text": (
        MESSAGES,
        a_send(body="x", properties={"a": 1}),
        400,
        "BAD_REQUEST",
    ),
    "large json": (MESSAGES, a_send(body="x" * 1_100_000), 413, "TOO_LARGE"),
    "unknown topic": ("/v1/topics/nothing/messages", a_send(body="x"), 404, "TOPIC_NOT_FOUND"),
    "unknown queue": (
        MESSAGES,
        b'{"messages": [{"body": "x"}], "queue": 99}',
        404,
        "QUEUE_NOT_FOUND",
    ),
    "unknown parameter": (f"{MESSAGES}?now=1", a_send(body="x"), 400, "BAD_REQUEST"),
    "call without name": ("/v1/call", b"{}", 400, "BAD_REQUEST"),
    "client id": (
        "/v1/groups/g/locks",
        b'{"client_id": "a\\nb", "queues": [{"topic": "orders", "queue": 0}]}',
        400,
        "BAD_REQUEST",
    ),
    "queue twice": (
        "/v1/groups/g/locks",
        b'{"client_id": "a", "queues": [{"topic": "orders", "queue": 0},'
        b' {"topic_id": 1, "queue": 0}]}',
        400,
        "BAD_REQUEST",
    ),
    "old token": (
        "/v1/groups/g/unlock",
        b'{"client_id": "a", "queues": [{"topic": "orders", "queue": 0, "token": "x"}]}',
        400,
        "BAD_REQUEST",
    ),
}


async def post(door: Door, path: str, body: bytes, content_type: str) -> tuple[int, dict[str, Any]]:
    return await door.ask("POST", path, data=body, headers={"Content-Type": content_type})


@pytest.mark.parametrize(("path", "body", "status", "code"), BODIES.values(), ids=BODIES)
async def test_bad_body_is_refused_and_nothing_is_stored(
    path: str, body: bytes, status: int, code: str
) -> None:
    async with a_door() as door:
        before = door.log.end

        answered, problem = await post(door, path, body, JSON)

        assert (answered, problem["code"]) == (status, code), problem
        assert problem["definite"] is True
        assert door.log.end == before


@pytest.mark.parametrize("value", [2**63, -1, 1.5, True, "1", None, [1]])
@pytest.mark.parametrize("field", ["offset", "queue"])
async def test_number_of_a_wrong_kind_names_its_field(field: str, value: object) -> None:
    row = {"topic": "orders", "queue": 0, "offset": 0, field: value}
    async with a_door() as door:
        status, problem = await door.ask("PUT", OFFSETS, {"offsets": [row]})

        assert (status, problem["code"], problem["field"]) == (400, "BAD_REQUEST", field)


@pytest.mark.parametrize(
    ("content_type", "path"),
    [
        ("text/plain", MESSAGES),
        ("application/json; charset=utf-16", MESSAGES),
        ("multipart/form-data; boundary=x", MESSAGES),
        (JSON, BATCHES),
        ("text/plain", "/v1/fetch"),
        (BATCH, OFFSETS.replace("offsets", "locks")),
    ],
)
async def test_other_content_types_are_415(content_type: str, path: str) -> None:
    async with a_door() as door:
        status, problem = await post(door, path, a_send(body="x"), content_type)

        assert (status, problem["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
async def test_encoded_bodies_are_refused_unopened(encoding: str) -> None:
    async with a_door() as door:
        headers = {"Content-Type": JSON, "Content-Encoding": encoding}

        status, problem = await door.ask("POST", MESSAGES, data=b"x", headers=headers)

        assert (status, problem["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    "change",
    ["payload", "header", "magic", "cut", "longer", "empty", "kind", "other queue"],
)
async def test_damaged_batch_is_refused_and_nothing_is_stored(change: str) -> None:
    batch = bytearray(a_batch(b"hello", b"world"))
    match change:
        case "payload":
            batch[-5] ^= 0x10
        case "header":
            batch[70] ^= 1
        case "magic":
            batch[0] ^= 1
        case "cut":
            del batch[-8:]
        case "longer":
            batch += bytes(8)
        case "empty":
            batch = bytearray(b"{}")
        case "kind":
            batch = bytearray(a_batch(b"x", kind=5))
        case _:
            batch = bytearray(a_batch(b"x", queue_id=1))
    async with a_door() as door:
        before = door.log.end

        status, problem = await post(door, BATCHES, bytes(batch), BATCH)

        assert status == 400, problem
        assert problem["code"] in {"CORRUPT_BATCH", "BAD_REQUEST"}
        assert problem["definite"] is True
        assert door.log.end == before


@pytest.mark.parametrize(
    "name",
    [
        "..%2f..%2fx",
        "%2e%2e",
        "a%2Fb",
        "a%5Cb",
        ".hidden",
        "end.",
        "x" * 128,
        "a%00b",
        "a%0Ab",
        "%E2%80%AEabc",
        "a%E2%80%8Bb",
        "%EF%BC%A1",
        "a%20b",
    ],
)
async def test_bad_topic_name_is_refused(name: str) -> None:
    async with a_door() as door:
        lines = await raw(door, f"GET /v1/topics/{name}/queues/0/messages?offset=0 HTTP/1.1")

        assert lines[0].split()[1] == b"400", lines
        assert b"BAD_NAME" in lines[-1]


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "BenchmarkTest"])
async def test_system_topic_is_forbidden(name: str) -> None:
    async with a_door() as door:
        lines = await raw(door, f"GET /v1/topics/{name}/queues/0/messages?offset=0 HTTP/1.1")

        assert lines[0].split()[1] == b"403", lines


async def test_retries_and_dead_letters_may_be_read_but_not_sent_to() -> None:
    async with a_door() as door:
        path = "/v1/topics/%25RETRY%25g"
        read = await raw(door, f"GET {path}/queues/0/messages?offset=0 HTTP/1.1")
        status, _ = await post(door, f"{path}/messages", b'{"messages": [{"body": "x"}]}', JSON)

        assert (read[0].split()[1], status) == (b"404", 403), "there is no such group yet"


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 400, "BAD_REQUEST"),
        ("?offset=-1", 400, "BAD_REQUEST"),
        ("?offset=9223372036854775808", 400, "BAD_REQUEST"),
        ("?offset=1.0", 400, "BAD_REQUEST"),
        ("?offset=0&offset=1", 400, "BAD_REQUEST"),
        ("?offset=0&wait_ms=1000000000", 400, "BAD_REQUEST"),
        ("?offset=0&wait_ms=-1", 400, "BAD_REQUEST"),
        ("?offset=0&group=a%20b", 400, "BAD_NAME"),
        ("?offset=1000000000000", 416, "OFFSET_OUT_OF_RANGE"),
    ],
)
async def test_bad_pull_is_refused(query: str, status: int, code: str) -> None:
    async with a_door() as door:
        answered, problem = await door.ask("GET", f"{PULL}{query}")

        assert (answered, problem["code"]) == (status, code), problem
        if status == 416:
            assert (problem["start"], problem["end"]) == (0, 0)


async def test_commit_beyond_the_end_or_backwards_changes_nothing() -> None:
    async with a_door() as door:
        await post(door, BATCHES, a_batch(b"a", b"b", b"c"), BATCH)
        row = {"topic": "orders", "queue": 0}
        await door.ask("PUT", OFFSETS, {"offsets": [{**row, "offset": 2}]})
        before = door.log.end

        far = await door.ask("PUT", OFFSETS, {"offsets": [{**row, "offset": 4}]})
        back = await door.ask("PUT", OFFSETS, {"offsets": [{**row, "offset": 1}]})

        assert (far[0], far[1]["code"]) == (416, "OFFSET_OUT_OF_RANGE")
        assert (back[0], back[1]["code"]) == (409, "OFFSET_MOVED_BACK")
        assert door.log.end == before
        _, answer = await door.ask("GET", OFFSETS)
        assert answer["offsets"][0]["offset"] == 2


async def test_unknown_path_and_method_are_problems() -> None:
    async with a_door() as door:
        status, problem = await door.ask("GET", "/v1/nothing")
        assert (status, problem["code"]) == (404, "NOT_FOUND")
        status, problem = await door.ask("DELETE", MESSAGES)
        assert (status, problem["code"]) == (405, "METHOD_NOT_ALLOWED")
        lines = await raw(door, "TRACE /v1/status HTTP/1.1")
        assert lines[0].split()[1] in {b"400", b"405"}


async def raw(door: Door, request_line: str, *headers: str, body: bytes = b"") -> list[bytes]:
    """Lines of the answer to a request written by hand, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    lines = [request_line, *(headers or ("Host: x",)), "Connection: close", "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n")


SECRET = "SECRETBYTES"
MALFORMED = {
    "length and chunked": ["Host: x", "Content-Length: 3", "Transfer-Encoding: chunked"],
    "two lengths": ["Host: x", "Content-Length: 3", "Content-Length: 4"],
    "signed length": ["Host: x", "Content-Length: +4"],
    "negative length": ["Host: x", "Content-Length: -1"],
    "strange coding": ["Host: x", "Transfer-Encoding: xchunked"],
    "two codings": ["Host: x", "Transfer-Encoding: chunked, chunked"],
    "folded header": ["Host: x", "X-A: b", f" {SECRET}"],
    "space before colon": ["Host: x", f"X-A : {SECRET}"],
    "nul": ["Host: x", f"X-A: {SECRET}\0"],
    "no host": ["X-A: b"],
    "two hosts": ["Host: x", "Host: y"],
    "large header": ["Host: x", "X-A: " + SECRET * 1000],
    "many headers": ["Host: x", *(f"X-{n}: {SECRET}" for n in range(20_000))],
}


@pytest.mark.parametrize("headers", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_http_is_refused_and_not_repeated(headers: list[str]) -> None:
    async with a_door() as door:
        before = door.log.end

        lines = await raw(door, f"POST {MESSAGES} HTTP/1.1", *headers, body=b"abc")

        assert lines[0].split()[1] in {b"400", b"411", b"413", b"414", b"415", b"431"}, lines[0]
        assert SECRET.encode() not in b"".join(lines)
        assert door.log.end == before


async def test_absolute_target_of_another_host_is_refused() -> None:
    async with a_door() as door:
        lines = await raw(door, "GET http://elsewhere/v1/status HTTP/1.1")

        assert lines[0].split()[1] == b"400"


async def test_half_a_request_head_is_closed_after_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_guard, "HEADER_TIMEOUT_S", 0.05)
    async with a_door() as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Slow: ")

        async with asyncio.timeout(5):
            answer = await reader.read()

        writer.close()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"problem+json" in answer


async def test_connection_that_answers_in_time_outlives_the_header_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_guard, "HEADER_TIMEOUT_S", 0.05)
    async with a_door() as door:
        for _ in range(4):
            status, _ = await door.ask("GET", f"{PULL}?offset=0&wait_ms=60")
            assert status == 200


async def test_body_over_the_limit_is_413_without_reading_it() -> None:
    async with a_door() as door:
        head = [
            "Host: x",
            f"Content-Type: {BATCH}",
            f"Content-Length: {17 * 1024 * 1024}",
        ]
        lines = await raw(door, f"POST {BATCHES} HTTP/1.1", *head)

        assert lines[0].split()[1] == b"413"


async def test_chunked_body_over_the_limit_is_413() -> None:
    async with a_door() as door:
        chunk = b"%x\r\n" % 600_000 + b"x" * 600_000 + b"\r\n"
        head = ["Host: x", f"Content-Type: {JSON}", "Transfer-Encoding: chunked"]

        lines = await raw(door, f"POST {MESSAGES} HTTP/1.1", *head, body=chunk * 2 + b"0\r\n\r\n")

        assert lines[0].split()[1] == b"413"


async def test_base64_body_goes_through() -> None:
    async with a_door() as door:
        body = {"messages": [{"body_base64": base64.b64encode(bytes(range(256))).decode()}]}

        status, _ = await door.ask("POST", MESSAGES, body)

        assert status == 200
