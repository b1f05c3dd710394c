"""Transactions over HTTP: halves as JSON, both ends, checks, and what is refused."""

import asyncio
from typing import Any

import orjson
import pytest
from tests.support.http.door import Door, a_batch, a_door
from tests.support.http.stream_client import RawStream
from tests.support.rights import SECRETS, a_security, bearer, entry

from paceline.records.header import Kind
from paceline.security.access import Asker
from paceline.wire import properties as names
from paceline.wire.message_ids import OffsetMessageId, make_handle
from paceline.wire.rights import PUB, SUB
from paceline.wire.stream import Operation
from paceline.wire.users import AccessKey, User, digest_of
from paceline_broker.server.http_messages import BATCH_TYPE


async def begin(door: Door, *bodies: str, **more: Any) -> list[str]:
    """Transaction ids of half messages that were sent as JSON."""
    status, answer = await door.ask(
        "POST",
        "/v1/topics/orders/messages",
        {
            "messages": [{"body": body} for body in bodies],
            "queue": 0,
            "transaction": True,
            "producer_group": "payers",
            **more,
        },
    )
    assert status == 200, answer
    assert [row["offset"] for row in answer["messages"]] == [None] * len(bodies)
    return [row["transaction_id"] for row in answer["messages"]]


async def visible(door: Door) -> list[str]:
    _, answer = await door.ask("GET", "/v1/topics/orders/queues/0/messages?offset=0")
    return [row["body"] for row in answer["messages"]]


async def end(door: Door, text: str, how: str, **more: Any) -> tuple[int, Any]:
    return await door.ask("POST", f"/v1/transactions/{text}/{how}", **more)


async def test_a_half_is_seen_when_it_is_committed_and_never_when_rolled_back() -> None:
    async with a_door() as door:
        first, second = await begin(door, "a", "b")
        assert await visible(door) == []
        _, listed = await door.ask("GET", "/v1/transactions?topic=orders&limit=5")
        assert (listed["open"], len(listed["transactions"])) == (2, 2)

        for _ in range(2):
            status, answer = await end(door, first, "commit")
            assert (status, answer["outcome"]) == (200, "COMMITTED")
            status, answer = await end(door, second, "rollback")
            assert (status, answer["outcome"]) == (200, "ROLLED_BACK")

        assert await visible(door) == ["a"]
        status, problem = await end(door, second, "commit")
        assert (status, problem["code"], problem["outcome"]) == (
            409,
            "TRANSACTION_ENDED",
            "ROLLED_BACK",
        )
        _, shown = await door.ask("GET", f"/v1/transactions/{first}")
        assert (shown["outcome"], shown["topic"]) == ("COMMITTED", "orders")
        assert await visible(door) == ["a"]


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("garbage", 400, "BAD_REQUEST"),
        ("tx.g1:60:0.00000000", 400, "BAD_REQUEST"),
        (make_handle("tx", OffsetMessageId("g1", 8, 0)), 404, "TRANSACTION_NOT_FOUND"),
        (make_handle("tx", OffsetMessageId("g9", 96, 0)), 404, "TRANSACTION_NOT_FOUND"),
    ],
)
@pytest.mark.parametrize("how", ["commit", "rollback"])
async def test_forged_and_unknown_ids(text: str, status: int, code: str, how: str) -> None:
    async with a_door() as door:
        await begin(door, "a")
        before = door.role.log.end

        got, problem = await end(door, text, how)

        assert (got, problem["code"]) == (status, code)
        assert door.role.log.end == before


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"transaction": False}, "producer_group"),
        ({"producer_group": None}, "producer_group"),
        ({"producer_group": "no spaces"}, "producer_group"),
        ({"transaction": "yes"}, "transaction"),
        ({"check_immunity_s": -1}, "check_immunity_s"),
        ({"messages": [{"body": "a", "delay_ms": 5}]}, "transaction"),
        ({"messages": [{"body": "a", "properties": {"x": "y" * 32_000}}]}, None),
    ],
)
async def test_what_is_no_transaction_is_refused(more: dict[str, Any], field: str | None) -> None:
    async with a_door() as door:
        body = {
            "messages": [{"body": "a"}],
            "transaction": True,
            "producer_group": "payers",
            **more,
        }
        status, problem = await door.ask("POST", "/v1/topics/orders/messages", body)

        assert status in (400, 413)
        assert problem.get("field") == field
        _, listed = await door.ask("GET", "/v1/transactions")
        assert listed["open"] == 0


async def test_checks_are_polled_over_http() -> None:
    async with a_door() as door:
        [text] = await begin(door, "a", check_immunity_s=0)
        path = "/v1/producers/payers/checks?client_id=p1&wait_ms=5000"
        polling = asyncio.gather(door.ask("GET", path))
        checks = door.service.transactions.checks
        while not polling.done():
            await checks.look()
            await asyncio.wait([polling], timeout=0.01)

        [(status, answer)] = await polling
        assert status == 200
        [question] = answer["checks"]
        assert (question["transaction_id"], question["body"]) == (text, "a")
        status, problem = await door.ask("GET", "/v1/producers/payers/checks?wait_ms=1")
        assert (status, problem["field"]) == (400, "client_id")


@pytest.mark.parametrize("other", ["a stranger", "a key that has expired"])
async def test_ends_of_others_do_not_fail_with_those_of(other: str) -> None:
    """They are decided in one step."""
    async with a_door() as door:
        access, call = door.service.access, door.service.calls.call
        mine, his = await begin(door, "mine", "his")
        soon = door.clock.unix_ms() + 5
        key = AccessKey(digest=digest_of(SECRETS["bob"]), created_unix_ms=0, expires_unix_ms=soon)
        rights = a_security(
            ana=(entry("Topic:orders", PUB),), anonymous=(entry("Topic:news", SUB),)
        )
        access.apply(rights.with_user("bob", User(keys={"key-bob": key})))
        shown = {"a stranger": None, "a key that has expired": bearer("bob")["Authorization"]}
        bob, ana = (
            Asker(access, access.authenticate(header, source="127.0.0.1"))
            for header in (shown[other], bearer("ana")["Authorization"])
        )
        door.clock.advance(5)

        of_bob, of_ana = await asyncio.gather(
            call({"call": "end_transactions", "commit": [his]}, asker=bob),
            call({"call": "end_transactions", "commit": [mine]}, asker=ana),
        )

        assert [row["code"] for row in of_bob["ends"]] == ["UNAUTHENTICATED"]
        assert [row["outcome"] for row in of_ana["ends"]] == ["COMMITTED"]


# -- whose producers are asked --------------------------------------------------------------------

A_HALF = a_batch(b"x", kind=Kind.HALF, properties=[{names.PRODUCER_GROUP: "shop%payers"}])
TYPES = {"json": "application/json", "batch": BATCH_TYPE}


async def send_half(door: Door, way: str) -> tuple[int, Any]:
    """What ana is answered who sends a half message of the producer group shop%payers."""
    if way == "stream":
        stream = await RawStream.open(door.port, bearer("ana"))
        stream.ask(1, Operation.PRODUCE, A_HALF)
        _, _, status, body = await stream.answer()
        stream.close()
        return (200, None) if status == 0 else (0, orjson.loads(body))
    headers = {**bearer("ana"), "Content-Type": TYPES[way]}
    if way == "batch":
        path = "/v1/topics/orders/queues/0/batches"
        return await door.ask("POST", path, data=A_HALF, headers=headers)
    document = {
        "messages": [{"body": "x"}],
        "queue": 0,
        "transaction": True,
        "producer_group": "shop%payers",
    }
    return await door.ask("POST", "/v1/topics/orders/messages", document, headers=headers)


@pytest.mark.parametrize("way", ["json", "batch", "stream"])
async def test_a_half_needs_a_right_on_the_producer_group_that_it_names(way: str) -> None:
    on_topic = entry("Topic:orders", PUB)
    async with a_door() as door:
        access = door.service.access
        access.apply(a_security(ana=(on_topic, entry("Group:payers", PUB))))
        end = door.log.end
        status, problem = await send_half(door, way)
        assert (problem["code"], problem["resource"]) == ("NOT_AUTHORIZED", "Group:shop%payers")
        assert status in (0, 403)
        assert door.log.end == end, "nothing was stored"

        for version, right in enumerate(("Group:shop%payers", "Namespace:shop"), start=2):
            access.apply(a_security(version=version, ana=(on_topic, entry(right, PUB))))
            assert (await send_half(door, way))[0] == 200, right


async def test_a_stream_asks_once_for_each_producer_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def check(self: Asker, group: str) -> None:
        asked.append(group)

    monkeypatch.setattr(Asker, "check_producer_group", check)
    rows = [{names.PRODUCER_GROUP: group} for group in ("a", "b", "a")]
    halves = a_batch(b"x", b"y", b"z", kind=Kind.HALF, properties=rows)
    async with a_door() as door:
        door.service.access.apply(a_security(ana=(entry("Topic:orders", PUB),)))
        stream = await RawStream.open(door.port, bearer("ana"))
        for number, batch in enumerate((halves, halves, a_batch(b"no half")), start=1):
            stream.ask(number, Operation.PRODUCE, batch)
            assert (await stream.answer())[2] == 0
        stream.close()

    assert sorted(asked) == ["a", "b"]


async def test_a_stream_ends_when_its_right_on_a_producer_group_is_gone() -> None:
    entries = (entry("Topic:orders", PUB), entry("Group:shop%payers", SUB))
    async with a_door() as door:
        door.service.access.apply(a_security(ana=entries))
        stream = await RawStream.open(door.port, bearer("ana"))
        stream.ask(1, Operation.PRODUCE, A_HALF)
        assert (await stream.answer())[2] == 0

        door.service.access.apply(a_security(version=2, ana=entries[:1]))

        assert await stream.ended() == b""
