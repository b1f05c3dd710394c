"""Every route, call and frame of a broker for every kind of asker: who may do what."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from msgspec import structs
from tests.support.askers import PROOFS, proof_of
from tests.support.http.door import Door, a_batch, a_door
from tests.support.http.stream import a_fetch
from tests.support.http.stream_client import RawStream
from tests.support.requests import ask_least, least
from tests.support.rights import a_security, bearer, entry
from tests.support.service.fakes import until
from tests.support.service.send import Answers

from paceline.platform.runtime import SystemClock
from paceline.platform.telemetry import Metrics
from paceline.security.access import Access
from paceline.security.authority import Authority
from paceline.security.certificates import TlsFiles
from paceline.security.identity import Principal
from paceline.security.node_tls import NodeTls, TlsMode
from paceline.wire.calls.audit import TakeAudit
from paceline.wire.calls.request import Request
from paceline.wire.calls.table import CALLS
from paceline.wire.rights import ANYBODY, KNOWN_USER, PUB, SUB, Action, Needs, Resource
from paceline.wire.stream import (
    FETCH_QUEUE,
    FOLLOW_HEADER,
    FetchQueue,
    Operation,
)
from paceline.wire.users import Mode, PolicyEntry, User
from paceline_broker.server.http import BrokerHttp
from paceline_broker.server.openapi import OTHERS

ROUTES: list[tuple[str, str, Needs, type[Request[Any]] | None]] = [
    *((each.method, each.path, each.needs, None) for each in OTHERS),
    *(
        (route.method, route.path, call.needs or (), call)
        for call in CALLS.values()
        for route in call.routes
    ),
]
LET_IN_S = 0.6
"""A request that waits longer was let in, which is all that one wants to know of it."""
REFUSED_S = 20.0


@asynccontextmanager
async def a_secured_door(
    mode: Mode = Mode.ON, ana: tuple[PolicyEntry, ...] = ()
) -> AsyncIterator[Door]:
    async with a_door() as door:
        door.service.access.apply(a_security(mode=mode, ana=ana))
        yield door


async def asked(
    door: Door,
    method: str,
    path: str,
    call: type[Request[Any]] | None,
    headers: dict[str, str],
    *,
    is_refused: bool,
) -> tuple[int, str]:
    base = f"http://127.0.0.1:{door.port}"
    within_s = REFUSED_S if is_refused else LET_IN_S
    return await ask_least(
        door.session, method, base, path, call, headers=headers, within_s=within_s
    )


@pytest.mark.parametrize(
    ("method", "path", "needs", "call"), ROUTES, ids=[f"{each[0]} {each[1]}" for each in ROUTES]
)
async def test_each_route_is_for_whom_it_says(
    method: str, path: str, needs: Needs, call: type[Request[Any]] | None
) -> None:
    async with a_secured_door() as door:
        ask = partial(asked, door, method, path, call)
        nobody, _ = await ask({}, is_refused=needs != ANYBODY)
        unknown, _ = await ask({"Authorization": "Bearer a.b"}, is_refused=True)
        bob, code = await ask(bearer("bob"), is_refused=needs not in (ANYBODY, KNOWN_USER))
        root, _ = await ask(bearer("root"), is_refused=call is TakeAudit)

    assert unknown == 401
    assert (nobody == 401) is (needs != ANYBODY)
    if needs in (ANYBODY, KNOWN_USER):
        assert bob != 401
    else:
        assert (bob, code) == (403, "NOT_AUTHORIZED")
    assert root != 401
    assert (root == 403) is (call is TakeAudit), "which is for nodes only"


@pytest.mark.parametrize("name", CALLS)
async def test_each_call_is_for_whom_it_says_by_post_and_on_a_stream(name: str) -> None:
    call = CALLS[name]
    assert call.needs is not None, "a call that declares no rights"
    document = {"call": name, **least(call)}
    async with a_secured_door() as door:
        stream = await RawStream.open(door.port, bearer("bob"))
        stream.ask(1, Operation.CALL, orjson.dumps(document))
        if call.needs == KNOWN_USER:
            stream.close()
            return
        _, _, status, body = await stream.answer()
        stream.close()
        by_post = await door.ask(
            "POST", "/v1/call", document, headers={**bearer("bob"), **JSON_TYPE}
        )

    assert (status, orjson.loads(body)["code"]) == (1, "NOT_AUTHORIZED")
    assert by_post[1]["code"] == "NOT_AUTHORIZED"


JSON_TYPE = {"Content-Type": "application/json"}


async def test_a_route_that_declares_no_rights_is_refused() -> None:
    async with a_secured_door() as door:

        async def forgotten(request: web.Request) -> web.Response:
            return web.Response(text="secret")

        door.http.app.router._frozen = False
        door.http.app.router.add_get("/v1/forgotten", forgotten)

        answer = await door.ask("GET", "/v1/forgotten", headers=bearer("root"))

    assert answer[0] == 403


# -- what the content names -----------------------------------------------------------------------


async def test_a_fetch_is_for_whom_may_read_all_its_topics() -> None:
    fetch = {"queues": [{"topic": "orders", "queue": 0, "offset": 0}], "wait_ms": 0}
    async with a_secured_door(ana=(entry("Topic:orders", SUB),)) as door:
        door.service.sender.send(a_batch(b"x"), Answers(), 0)
        url = f"http://127.0.0.1:{door.port}/v1/fetch"
        async with door.session.post(url, json=fetch, headers=bearer("ana")) as answer:
            ana = answer.status
        bob, problem = await door.ask("POST", "/v1/fetch", fetch, headers=bearer("bob") | JSON_TYPE)

    assert ana == 200
    assert (bob, problem["code"]) == (403, "NOT_AUTHORIZED")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/topics/{}/messages", {"messages": [{"body": "x"}]}),
        ("GET", "/v1/topics/{}/queues/0/messages?offset=0", None),
        ("POST", "/v1/fetch", {"queues": [{"topic": "{}", "queue": 0, "offset": 0}]}),
        ("PUT", "/v1/groups/g/offsets", {"offsets": [{"topic": "{}", "queue": 0, "offset": 0}]}),
        ("POST", "/v1/groups/g/locks", {"client_id": "c", "queues": [{"topic": "{}", "queue": 0}]}),
        ("PUT", "/v1/pins/g", {"lease_ms": 60_000, "queues": [{"topic": "{}", "queue": 0}]}),
        ("GET", "/v1/topics/{}/search", None),
        ("GET", "/v1/topics/{}/track?queue=0&offset=0", None),
        ("POST", "/v1/topics/{}/recall", {"handle": "recall.g1:1ac0:0.73a2a967"}),
    ],
)
async def test_a_refusal_does_not_tell_whether_there_is_such_a_topic(
    method: str, path: str, body: dict[str, Any] | None
) -> None:
    told = []
    async with a_secured_door(ana=(entry("Group:g", SUB), entry("Topic:mine*", PUB, SUB))) as door:
        for topic in ("orders", "nosuch"):
            text = None if body is None else orjson.dumps(body).replace(b"{}", topic.encode())
            status, problem = await door.ask(
                method, path.format(topic), data=text, headers={**bearer("ana"), **JSON_TYPE}
            )
            detail = problem["detail"].replace(topic, "TOPIC")
            told.append((status, problem["code"], detail, problem["resource"].replace(topic, "")))

    assert told[0][:2] == (403, "NOT_AUTHORIZED")
    assert told[0] == told[1]


async def test_a_message_id_does_not_tell_what_stands_at_its_place() -> None:
    """Ids are places in the log, so they can be guessed."""
    async with a_secured_door(ana=(entry("Topic:mine*", SUB),)) as door:
        door.service.sender.send(a_batch(b"secret"), Answers(), 0)
        door.writer.confirm_all()
        group = door.role.identity.group
        told = []
        for position in ("190", "7"):
            path = f"/v1/messages/{group}:{position}:0"
            assert (await door.ask("GET", path, headers=bearer("root")))[0] in (200, 404)
            status, problem = await door.ask("GET", path, headers=bearer("ana"))
            told.append((status, problem["code"], problem["detail"].replace(f":{position}:", "")))
        there = await door.ask("GET", f"/v1/messages/{group}:190:0", headers=bearer("root"))

    assert there[0] == 200
    assert told[0][:2] == (404, "MESSAGE_NOT_FOUND")
    assert told[0] == told[1]


async def test_a_track_shows_the_groups_that_one_may_see() -> None:
    rights = (entry("Topic:orders", SUB), entry("Group:mine", SUB))
    async with a_secured_door(ana=rights) as door:
        door.service.sender.send(a_batch(b"one"), Answers(), 0)
        door.writer.confirm_all()
        for group in ("mine", "theirs"):
            body = {"offsets": [{"topic": "orders", "queue": 0, "offset": 1}]}
            path = f"/v1/groups/{group}/offsets"
            status, _ = await door.ask("PUT", path, body, headers={**bearer("root"), **JSON_TYPE})
            assert status == 200
        path = "/v1/topics/orders/track?queue=0&offset=0"
        ana = (await door.ask("GET", path, headers=bearer("ana")))[1]
        root = (await door.ask("GET", path, headers=bearer("root")))[1]

    assert [row["group"] for row in root["groups"]] == ["mine", "theirs"]
    assert [row["group"] for row in ana["groups"]] == ["mine"]


async def test_a_stream_sends_and_reads_what_its_user_may() -> None:
    async with a_secured_door(ana=(entry("Topic:orders", PUB),)) as door:
        stream = await RawStream.open(door.port, bearer("ana"))
        stream.ask(1, Operation.PRODUCE, a_batch(b"one"))
        assert (await stream.answer())[2] == 0
        end = door.log.end

        stream.ask(2, Operation.FETCH, a_fetch((1, 0, 0)))
        _, _, status, body = await stream.answer()
        assert (status, orjson.loads(body)["resource"]) == (1, "Topic:orders")
        queue = FETCH_QUEUE.pack(*FetchQueue(1, 0, 0, 1 << 20))
        stream.ask(3, Operation.FOLLOW, FOLLOW_HEADER.pack(0, 0, 1 << 20, 1) + queue)
        assert orjson.loads((await stream.answer())[3])["code"] == "NOT_AUTHORIZED"
        other = await RawStream.open(door.port, bearer("bob"))
        other.ask(1, Operation.PRODUCE, a_batch(b"two"))
        assert orjson.loads((await other.answer())[3])["code"] == "NOT_AUTHORIZED"
        assert door.log.end == end, "nothing was stored"
        stream.close()
        other.close()


@pytest.mark.parametrize("change", ["right", "key"])
async def test_a_stream_ends_when_what_it_does_is_forbidden(change: str) -> None:
    async with a_secured_door(ana=(entry("Topic:orders", SUB),)) as door:
        stream = await RawStream.open(door.port, bearer("ana"))
        idle = await RawStream.open(door.port, bearer("root"))
        stream.ask(2, Operation.FETCH, a_fetch((1, 0, 0), wait_ms=20_000))
        await until(lambda: door.service.fetcher.waiting_count > 0)

        later = a_security(version=2, ana=(entry("Topic:orders", SUB),))
        if change == "right":
            later = a_security(version=2)
        else:
            later = structs.replace(later, users={**later.users, "ana": User()})
        door.service.access.apply(later)

        assert await stream.ended() == b""
        assert (await idle.call("clients"))[0] == 0, "others are not disturbed"
        idle.close()


async def test_streams_from_before_rights_were_switched_on_come_again() -> None:
    async with a_door() as door:
        stream = await RawStream.open(door.port)

        door.service.access.apply(a_security())

        assert await stream.ended() == b""


async def test_a_change_of_rights_costs_no_more_with_many_streams_of_a_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[Resource] = []
    may = Access.may

    def counted(
        access: Access, who: Principal, resource: Resource, actions: tuple[Action, ...]
    ) -> bool:
        judged.append(resource)
        return may(access, who, resource, actions)

    monkeypatch.setattr(Access, "may", counted)
    async with a_secured_door(ana=(entry("Topic:mine*", SUB),)) as door:
        access = door.service.access
        streams = [await RawStream.open(door.port, bearer("ana")) for _ in range(8)]
        rows = [{"topic": f"mine.{number}", "queue": 0} for number in range(100)]
        for stream in streams:
            await stream.call("ends", queues=rows)
        judged.clear()
        access.apply(structs.replace(access.security, version=2))
        assert len(judged) == len(rows)
        for stream in streams:
            stream.ask(1, Operation.FETCH, a_fetch())
            assert (await stream.answer())[0] == 1, "nothing was taken away: it goes on"
        access.apply(a_security(version=3))
        for stream in streams:
            await stream.ended()
        again = await RawStream.open(door.port, bearer("ana"))
        access.apply(structs.replace(access.security, version=4))
        await again.call("whoami")
        again.writer.close()


async def test_a_stream_whose_key_expires_is_ended() -> None:
    async with a_secured_door() as door:
        access = door.service.access
        expires = door.clock.unix_ms() + 5
        keys = {
            name: structs.replace(key, expires_unix_ms=expires)
            for name, key in access.security.users["ana"].keys.items()
        }
        access.apply(access.security.with_user("ana", User(keys=keys)))
        stream = await RawStream.open(door.port, bearer("ana"))

        door.clock.advance(5)
        for connection in list(door.http._streams._connections):
            connection.check_stall()

        assert await stream.ended() == b""


async def test_the_view_and_lists_have_what_one_may_see() -> None:
    async with a_secured_door(ana=(entry("Topic:orders", PUB),)) as door:
        ana = (await door.ask("GET", "/v1/routes", headers=bearer("ana")))[1]
        bob = (await door.ask("GET", "/v1/routes", headers=bearer("bob")))[1]
        root = (await door.ask("GET", "/v1/routes", headers=bearer("root")))[1]
        stream = await RawStream.open(door.port, bearer("bob"))
        _, called = await stream.call("routes")
        stream.close()

    names = [[row["topic"] for row in each["topics"]] for each in (ana, bob, root)]
    assert names == [["orders"], [], ["orders"]]
    assert called["topics"] == []


async def test_a_request_that_waited_is_judged_by_the_rights_of_its_end() -> None:
    async with a_secured_door(ana=(entry("Topic:orders", SUB),)) as door:
        path = "/v1/topics/orders/queues/0/messages?offset=0&wait_ms=20000"
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(door.ask("GET", path, headers=bearer("ana")))
            await until(lambda: door.service.fetcher.waiting_count > 0)
            door.service.access.apply(a_security(version=2))
            door.service.sender.send(a_batch(b"secret"), Answers(), 0)
            door.writer.confirm_all()

    status, problem = asking.result()
    assert (status, problem["code"]) == (403, "NOT_AUTHORIZED")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/groups/billing/receive", {"client_id": "c", "topics": ["orders"]}),
        ("GET", "/v1/producers/billing/checks?client_id=c&wait_ms=100", None),
    ],
)
async def test_a_call_that_waited_is_judged_by_the_rights_of_its_end(
    method: str, path: str, body: dict[str, Any] | None
) -> None:
    rights = (entry("Topic:orders", PUB, SUB), entry("Group:billing", SUB))
    async with a_secured_door(ana=rights) as door:
        asked = body if body is None else {**body, "wait_ms": 5_000}
        async with asyncio.TaskGroup() as group:
            headers = {**bearer("ana"), "Content-Type": "application/json"}
            asking = group.create_task(door.ask(method, path, asked, headers=headers))
            await until(lambda: len(door.service.access._verdicts) > 0)
            door.service.access.apply(a_security(version=2))
            door.service.sender.send(a_batch(b"secret"), Answers(), 0)
            door.writer.confirm_all()

    status, problem = asking.result()
    assert (status, problem["code"]) == (403, "NOT_AUTHORIZED")


async def test_a_node_of_the_cluster_may_ask_with_its_proof_of_that_very_body() -> None:
    body = orjson.dumps({"call": "clients"})
    proof = proof_of(PROOFS, "POST", "/v1/call", body)
    async with a_secured_door() as door:
        good = await door.ask("POST", "/v1/call", data=body, headers={**proof, **JSON_TYPE})
        other = orjson.dumps({"call": "members", "group": "g"})
        bad = await door.ask("POST", "/v1/call", data=other, headers={**proof, **JSON_TYPE})
        elsewhere = await door.ask("GET", "/v1/status", headers=proof)

    assert good[0] == 200
    assert (bad[0], elsewhere[0]) == (401, 401)


async def test_in_a_dry_run_everything_goes_on_and_is_counted() -> None:
    async with a_secured_door(Mode.DRY_RUN) as door:
        stream = await RawStream.open(door.port)
        stream.ask(1, Operation.PRODUCE, a_batch(b"one"))
        assert (await stream.answer())[2] == 0
        assert (await door.ask("GET", "/v1/status"))[0] == 200
        stream.close()

    assert door.service.access.would_refuse_count >= 2


async def test_a_client_is_known_by_its_certificate(tmp_path: Path) -> None:
    authority, now_ms = Authority(tmp_path), SystemClock().unix_ms()
    authority.init(common_name="test", now_unix_ms=now_ms)
    for name, names in (
        ("node", ("127.0.0.1",)),
        ("ana", ("URI:paceline:client/ana",)),
        ("both", ("URI:paceline:client/ana", "URI:paceline:client/root")),
        ("other", ("ana", "URI:paceline:broker/ana")),
    ):
        authority.issue(name, names, now_unix_ms=now_ms)
    certificate, key = authority.paths("node")
    files = TlsFiles(str(certificate), str(key), str(authority.certificate))
    async with a_secured_door(ana=(entry("Topic:orders", SUB),)) as door:
        http = BrokerHttp(
            door.service,
            metrics=Metrics(cluster="c", node_type="broker", node_id="g1/2"),
            proofs=PROOFS,
        )
        port = await http.start("127.0.0.1", 0, tls=NodeTls(files, TlsMode.ENFORCING))
        statuses = {}
        for name in ("ana", "both", "other"):
            context = ssl.create_default_context(cafile=authority.certificate)
            context.load_cert_chain(*authority.paths(name))
            path = "/v1/topics/orders/queues/0/messages?offset=0"
            async with door.session.get(f"https://127.0.0.1:{port}{path}", ssl=context) as answer:
                statuses[name] = answer.status
        await http.close()

    assert statuses == {"ana": 200, "both": 401, "other": 401}


# -- who is on the list of clients ----------------------------------------------------------------

SAID = {"client_id": "c1", "version": "1", "language": "x"}


@pytest.mark.parametrize(
    ("kind", "group", "topics", "entries", "is_listed"),
    [
        ("consumer", "billing", ["orders"], (), False),
        ("consumer", "billing", [], (entry("Topic:orders", SUB),), False),
        ("consumer", "billing", ["orders"], (entry("Group:billing", SUB),), False),
        (
            "consumer",
            "billing",
            ["orders"],
            (entry("Group:billing", SUB), entry("Topic:orders", SUB)),
            True,
        ),
        ("producer", "anything", ["orders"], (entry("Topic:orders", SUB),), False),
        ("producer", "anything", ["orders"], (entry("Topic:orders", PUB),), True),
    ],
)
async def test_a_client_is_listed_for_what_it_may_do(
    kind: str, group: str, topics: list[str], entries: tuple[PolicyEntry, ...], is_listed: bool
) -> None:
    said = {"call": "client", "kind": kind, "group": group, "topics": topics, **SAID}
    async with a_secured_door(ana=entries) as door:
        told = await door.ask("POST", "/v1/call", said, headers=bearer("ana") | JSON_TYPE)
        listed = (await door.ask("GET", "/v1/clients", headers=bearer("root")))[1]["clients"]

    assert told[0] == (200 if is_listed else 403)
    assert [(row["group"], row["user"]) for row in listed] == [(group, "ana")] * is_listed


async def test_clients_of_two_users_are_two_whatever_they_call_themselves() -> None:
    said = {"call": "client", "kind": "producer", "group": "shop", "topics": [], **SAID}
    async with a_secured_door() as door:
        for user in ("bob", "ana"):
            headers = bearer(user) | JSON_TYPE
            assert (await door.ask("POST", "/v1/call", said, headers=headers))[0] == 200
        listed = (await door.ask("GET", "/v1/clients", headers=bearer("root")))[1]["clients"]
        nobody = await door.ask("POST", "/v1/call", said, headers=JSON_TYPE)

    assert [row["user"] for row in listed] == ["ana", "bob"]
    assert nobody[0] == 401
