"""What a broker tells in the audit, at both doors; and how it takes the audits of nodes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import orjson
from tests.support.askers import PROOFS, proof_of
from tests.support.audit import on_disk
from tests.support.http.door import Door, a_batch, a_door
from tests.support.http.stream import a_fetch
from tests.support.http.stream_client import RawStream
from tests.support.rights import SECRETS, a_security, bearer, entry
from tests.support.service.fakes import a_view
from tests.support.service.send import Answers

from paceline.security.audit_files import AuditFiles
from paceline.types import TopicName
from paceline.wire.calls.audit import AuditRecord, json_of, record_of
from paceline.wire.names import AUDIT_TOPIC
from paceline.wire.rights import PUB, SUB, UPDATE, Decision
from paceline.wire.stream import Operation
from paceline.wire.users import Mode, PolicyEntry

JSON_TYPE = {"Content-Type": "application/json"}
FOLDER = "/data/audit"
RECORD = AuditRecord(
    unix_ms=1,
    node="c1",
    sequence=7,
    user="root",
    door="http",
    call="put_user",
    decision=Decision.ALLOW,
    outcome="OK",
)


@asynccontextmanager
async def an_audited_door(
    *ana: PolicyEntry, sample_one_in: int = 0, mode: Mode = Mode.ON
) -> AsyncIterator[Door]:
    async with a_door() as door:
        access = door.service.access
        access.apply(a_security(ana=ana, mode=mode))
        files = AuditFiles(door.disk, FOLDER)
        access.audit.keep(files, node="b1", sample_one_in=sample_one_in, on_record=lambda: None)
        yield door


def told(door: Door) -> list[tuple[str, ...]]:
    rows = on_disk(door.disk, FOLDER)
    assert all(secret not in str(rows) for secret in SECRETS.values())
    return [
        (row.user, row.door, row.call, row.action, row.resource, row.decision, row.outcome)
        for row in rows
    ]


async def test_refusals_are_told_at_both_doors_with_the_name_that_the_error_says() -> None:
    async with an_audited_door(entry("Topic:orders", PUB)) as door:
        stream = await RawStream.open(door.port, {**bearer("ana"), "X-Request-Id": "s-1"})
        stream.ask(1, Operation.PRODUCE, a_batch(b"one"))
        assert (await stream.answer())[2] == 0
        stream.ask(2, Operation.FETCH, a_fetch((1, 0, 0)))
        fetch = orjson.loads((await stream.answer())[3])
        _, called = await stream.call("members", group="billing")
        stream.close()
        headers = {**bearer("bob"), "X-Request-Id": "h-1"}
        sent = {"messages": [{"body": "the body"}]}
        path = "/v1/topics/orders/messages"
        _, send = await door.ask("POST", path, sent, headers={**headers, **JSON_TYPE})
        _, status = await door.ask("GET", "/v1/status", headers=bearer("bob"))
        _, nobody = await door.ask("GET", "/v1/status")

    answers = (fetch, called, send, status, nobody)
    rows = on_disk(door.disk, FOLDER)
    assert [row.request_id for row in rows] == [row["request_id"] for row in answers]
    assert [row.request_id for row in rows][:3] == ["s-1/2", "s-1/77", "h-1"]
    denied, code = "Deny", "NOT_AUTHORIZED"
    assert told(door) == [
        ("ana", "stream", "fetch", "Sub", "Topic:orders", denied, code),
        ("ana", "stream", "members", "Sub or Get", "Group:billing", denied, code),
        ("bob", "http", f"POST {path[:11]}{{topic}}/messages", "Pub", "Topic:orders", denied, code),
        ("bob", "http", "GET /v1/status", "Get or List", "Cluster:paceline", denied, code),
        (
            *("anonymous", "http", "GET /v1/status", "Get or List", "Cluster:paceline"),
            *(denied, "UNAUTHENTICATED"),
        ),
    ]
    assert rows[0].rule == "the custom policy of ana allows only Pub on it"
    assert (rows[0].access_key, rows[0].source) == ("key-ana", "127.0.0.1")
    assert "the body" not in str(rows)


async def test_what_manages_is_told_and_data_calls_by_sample() -> None:
    rights = (entry("Topic:orders", PUB, SUB), entry("Group:billing", SUB, UPDATE))
    async with an_audited_door(*rights, sample_one_in=3) as door:
        stream = await RawStream.open(door.port, bearer("ana"))
        for number in range(6):
            stream.ask(number, Operation.PRODUCE, a_batch(b"one"))
            assert (await stream.answer())[2] == 0
        for number in range(3):
            stream.ask(number, Operation.FETCH, a_fetch((1, 0, 0)))
            await stream.answer()
        stream.close()
        reset = {"group": "billing", "topic": "orders", "to": "first", "new": True}
        headers = {**bearer("ana"), **JSON_TYPE}
        await door.ask("POST", "/v1/call", {"call": "reset", **reset}, headers=headers)
        await door.ask("PUT", "/v1/pins/billing", {"lease_ms": 1}, headers=headers)

    allowed = "Allow"
    assert [row[2:] for row in told(door)] == [
        ("produce", "Pub", "Topic:orders", allowed, "OK"),
        ("produce", "Pub", "Topic:orders", allowed, "OK"),
        ("fetch", "Sub", "Topic:orders", allowed, "OK"),
        ("reset", "Update", "Group:billing", allowed, "OK"),
        ("PUT /v1/pins/{owner}", "Sub or Update", "Group:billing", allowed, "BAD_REQUEST"),
    ]
    assert "NOT_AUTHORIZED" not in str(told(door))


async def test_in_a_dry_run_a_change_that_would_be_refused_says_so_and_is_done() -> None:
    async with an_audited_door(mode=Mode.DRY_RUN) as door:
        headers = {**bearer("bob"), **JSON_TYPE}
        await door.ask("DELETE", "/v1/pins/billing", headers=headers)

    assert [(row[0], row[-2], row[-1]) for row in told(door)] == [("bob", "Deny", "OK")]


# -- taking audits --------------------------------------------------------------------------------


async def take(door: Door, headers: dict[str, str], count: int = 1) -> tuple[int, dict[str, Any]]:
    rows = [
        msgspec.to_builtins(msgspec.structs.replace(RECORD, sequence=number))
        for number in range(count)
    ]
    body = orjson.dumps({"records": rows})
    proof = proof_of(PROOFS, "POST", "/v1/audit", body) if "Authorization" not in headers else {}
    return await door.ask("POST", "/v1/audit", data=body, headers={**JSON_TYPE, **headers, **proof})


def with_topic(door: Door) -> None:
    view = a_view(version=2, topics={"orders": 4, AUDIT_TOPIC: 1})
    name = TopicName(AUDIT_TOPIC)
    own = {**view.topics, name: replace(view.topics[name], is_system=True)}
    door.service.view_changed(replace(view, topics=own))


async def test_records_of_a_node_become_messages_with_the_user_as_key() -> None:
    async with an_audited_door() as door:
        with_topic(door)
        status, answer = await take(door, {}, 3)
        view = door.log.views()[-1]

    assert (status, answer["count"]) == (200, 3)
    assert [record_of(bytes(body)) for body in view.bodies()] == [
        msgspec.structs.replace(RECORD, sequence=number) for number in range(3)
    ]
    assert view.keys(0, 3) == ["root"] * 3
    assert json_of(RECORD).count(b"\n") == 0
    assert told(door) == [], "what nodes do is not told: it would never end"


async def test_nobody_but_nodes_writes_the_audit_not_even_a_super_user() -> None:
    async with an_audited_door() as door:
        with_topic(door)
        before = door.log.end
        forged = [await take(door, bearer(who)) for who in ("root", "bob")]
        topic_id = door.service.routes.topic_named(AUDIT_TOPIC).topic_id
        answers = Answers()
        door.service.sender.send(a_batch(b"forged", topic_id=topic_id), answers, 0)
        end = door.log.end

    assert [(status, problem["code"]) for status, problem in forged] == [
        (403, "FORBIDDEN"),
        (403, "NOT_AUTHORIZED"),
    ]
    assert end == before


async def test_a_broker_that_takes_nothing_or_knows_no_topic_says_so() -> None:
    async with an_audited_door() as door:
        assert (await take(door, {}))[1]["code"] == "TOPIC_NOT_FOUND"
        with_topic(door)
        door.role.become_replica()
        assert (await take(door, {}))[1]["code"] == "NOT_MASTER"
