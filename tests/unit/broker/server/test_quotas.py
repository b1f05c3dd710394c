"""Quotas at both endpoints of a broker: who waits, who is refused, and whom it counts for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest
from tests.support.client.virtual_time import LoopClock, in_virtual_time
from tests.support.http.door import Door, a_batch, a_door
from tests.support.http.stream_client import RawStream
from tests.support.rights import a_security, bearer, entry
from tests.support.service.fakes import a_view, until

from paceline.wire.rights import PUB, SUB, Action
from paceline.wire.session_commands import BrokerCommand
from paceline.wire.stream import FETCH_HEADER, FETCH_QUEUE, UPGRADE_TOKEN, FetchQueue, Operation
from paceline.wire.topic_commands import EnsureTopic
from paceline.wire.users import Mode, Quota

JSON_TYPE = {"Content-Type": "application/json"}
TOPICS = {"orders": 4, "shop%a": 4, "shop%b": 4, "other%a": 4}


@asynccontextmanager
async def a_limited_door(quotas: dict[str, Quota], mode: Mode = Mode.ON) -> AsyncIterator[Door]:
    async with a_door(clock=LoopClock()) as door:
        door.service.view_changed(a_view(version=2, topics=TOPICS))
        ana = (entry("Topic:*", PUB, SUB), entry("Group:*", PUB, SUB))
        security = a_security(mode=mode, ana=ana)
        door.service.access.apply(security.changed(quotas=quotas))
        yield door


async def test_a_user_has_as_many_connections_as_its_quota_allows() -> None:
    path = "/v1/topics/orders/queues/0/messages?offset=0"
    async with a_limited_door({"User:ana": Quota(connections=2)}) as door:
        access = door.service.access
        first = await RawStream.open(door.port, bearer("ana"))
        second = await RawStream.open(door.port, bearer("ana"))

        status, problem = await door.ask("GET", path, headers=bearer("ana"))
        upgrade = {"Connection": "Upgrade", "Upgrade": UPGRADE_TOKEN}
        stream, _ = await door.ask("GET", "/v1/stream", headers={**bearer("ana"), **upgrade})
        others, _ = await door.ask("GET", "/v1/status", headers=bearer("root"))
        claims = {**bearer("ana"), "Paceline-Node": "b1 there - 00 00"}
        claimed, _ = await door.ask("GET", path, headers=claims)
        first.close()
        await until(lambda: access.quotas.connections().get(("ana",)) == 1)
        again, _ = await door.ask("GET", path, headers=bearer("ana"))
        second.close()
        told = access.quotas.throttled()

    assert (status, problem["code"], stream) == (429, "QUOTA_EXCEEDED", 429)
    assert (others, again) == (200, 200)
    assert claimed == 429, "whoever says that he is a node"
    assert told == {("ana", "connections"): 3}


async def test_a_batch_beyond_a_storage_quota_is_refused_and_the_stream_goes_on() -> None:
    async with a_limited_door({"Topic:orders": Quota(storage_bytes=600)}) as door:
        access = door.service.access
        stream = await RawStream.open(door.port, bearer("ana"))
        for number, body in enumerate((b"x" * 300, b"x" * 400, b"small")):
            stream.ask(number, Operation.PRODUCE, a_batch(body))
        answers = sorted([await stream.answer() for _ in range(3)])
        document = {"messages": [{"body": "x" * 500}]}
        url = "/v1/topics/orders/messages"
        headers = {**bearer("ana"), **JSON_TYPE}
        status, problem = await door.ask("POST", url, document, headers=headers)
        told = access.quotas.throttled()
        stream.close()

    assert [answer[2] for answer in answers] == [0, 1, 0]
    assert orjson.loads(answers[1][3])["code"] == "STORAGE_QUOTA_EXCEEDED"
    assert (status, problem["code"]) == (507, "STORAGE_QUOTA_EXCEEDED")
    assert told == {("ana", "storage"): 2}


async def test_a_body_of_unknown_length_counts_for_the_quota() -> None:
    async with a_limited_door({"User:ana": Quota(bytes_in_per_s=1000)}) as door:

        async def chunks() -> AsyncIterator[bytes]:
            yield b" " * 50_000

        url = f"http://127.0.0.1:{door.port}/v1/topics/orders/messages"
        headers = {**bearer("ana"), "Content-Type": "application/json"}
        async with door.session.post(url, data=chunks(), headers=headers) as answer:
            assert answer.status == 400
        status, problem = await door.ask("GET", "/v1/routes", headers=bearer("ana"))
        assert (status, problem["code"]) == (429, "QUOTA_EXCEEDED")


@in_virtual_time
async def test_an_answer_of_a_call_on_a_stream_counts_for_the_quota() -> None:
    async with a_limited_door({"User:ana": Quota(bytes_out_per_s=1)}) as door:
        access = door.service.access
        stream = await RawStream.open(door.port, bearer("ana"))

        await stream.call("routes")
        assert access.quotas.throttled() == {("ana", "bytes_out"): 1}
        await stream.call("routes")  # it rests, and goes on
        stream.close()


@in_virtual_time
async def test_who_takes_more_than_a_quota_waits_and_loses_nothing() -> None:
    async with a_limited_door({"User:ana": Quota(requests_per_s=2)}) as door:
        access = door.service.access
        stream = await RawStream.open(door.port, bearer("ana"))
        for number in range(6):
            stream.ask(number, Operation.PRODUCE, a_batch(b"%d" % number))
        answers = [await stream.answer() for _ in range(6)]

        assert [answer[0] for answer in answers] == list(range(6)), "in order"
        assert {answer[2] for answer in answers} == {0}, "back-pressure, no error"
        assert access.quotas.throttled()["ana", "requests"] >= 3
        asked = [await door.ask("GET", "/v1/routes", headers=bearer("ana")) for _ in range(2)]
        assert [status for status, _ in asked] == [200, 429], "one of a second"
        assert asked[1][1]["code"] == "QUOTA_EXCEEDED"
        door.clock.advance(10_000)
        assert (await door.ask("GET", "/v1/routes", headers=bearer("ana")))[0] == 200
        assert (await door.ask("GET", "/v1/routes", headers=bearer("bob")))[0] == 200
        stream.close()


@in_virtual_time
async def test_each_client_of_a_user_has_its_own_quota_once_it_has_said_who_it_is() -> None:
    quotas = {
        "User:ana": Quota(requests_per_s=1000),
        "User:ana/Client:greedy": Quota(requests_per_s=1),
    }
    async with a_limited_door(quotas) as door:
        access = door.service.access
        streams = {name: await RawStream.open(door.port, bearer("ana")) for name in ("greedy", "b")}
        for name, stream in streams.items():
            who = {"kind": "producer", "group": "g", "client_id": name, "topics": ["orders"]}
            status, told = await stream.call("client", **who, version="1", language="PYTHON")
            assert status == 0, told
        for name in ("b", "greedy"):
            before = access.quotas.throttled().get(("ana", "requests"), 0)
            for number in range(5):
                streams[name].ask(number, Operation.PRODUCE, a_batch(b"x"))
            answers = [await streams[name].answer() for _ in range(5)]
            assert {answer[2] for answer in answers} == {0}, name
            is_throttled = access.quotas.throttled().get(("ana", "requests"), 0) > before
            assert is_throttled is (name == "greedy")
        # Another quota counts at once, also for a client that is known already.
        access.apply(access.security.changed(quotas={}))
        connections = door.http._streams._connections
        assert [connection._quota.quota for connection in connections] == [None, None]
        for stream in streams.values():
            stream.close()


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.ON])
@in_virtual_time
async def test_all_who_use_a_namespace_share_its_quota(mode: Mode) -> None:
    shop = Quota(bytes_in_per_s=1500, bytes_out_per_s=900)
    async with a_limited_door({"Namespace:shop": shop}, mode) as door:
        access = door.service.access
        stream = await RawStream.open(door.port, bearer("ana"))
        user = "ana" if mode is Mode.ON else "anonymous"
        for number, topic_id in enumerate((1, 4, 2, 3)):
            stream.ask(number, Operation.PRODUCE, a_batch(b"x" * 900, topic_id=topic_id))
            assert (await stream.answer())[2] == 0
            is_throttled = access.quotas.throttled().get((user, "bytes_in"), 0) > 0
            assert is_throttled is (topic_id == 3), "both topics of the namespace together"

        path = "/v1/topics/{}%25a/queues/0/messages?offset=0"
        waits = [
            (await door.ask("GET", path.format(name), headers=bearer("root")))[0] == 429
            for name in ("shop", "shop", "other")
        ]
        door.clock.advance(60_000)
        url = f"http://127.0.0.1:{door.port}/v1/fetch"
        headers, statuses = {**bearer("root"), **JSON_TYPE}, []
        for topic_id in (2, 3, 4):
            asked = {"queues": [{"topic_id": topic_id, "queue": 0, "offset": 0}]}
            async with door.session.post(url, json=asked, headers=headers) as answer:
                statuses.append(answer.status)
        ask = FETCH_HEADER.pack(0, 100_000, 0, 1) + FETCH_QUEUE.pack(*FetchQueue(2, 0, 0, 100_000))
        stream.ask(9, Operation.FETCH, ask)
        assert (await stream.answer())[2] == 0
        told = access.quotas.throttled()
        stream.close()

    assert waits == [False, True, False], "one request a second is served in any case"
    assert statuses == [200, 429, 200]
    assert told[user, "bytes_out"] >= 1


ASKED = {"client_id": "c", "topics": ["shop%a"], "invisible_ms": 60_000}
MEMBER = {"group": "shop%g", "client_id": "c", "topics": ["shop%a"]}
BEAT = {**MEMBER, "owned": [], "generation": 0}


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("GET", "/v1/topics/shop%25a/queues/0/messages?offset=0", None),
        ("POST", "/v1/groups/g/receive", ASKED),
        ("POST", "/v1/groups/shop%25g/receive", {**ASKED, "topics": ["other%a"]}),
        ("GET", "/v1/topics/shop%25a/search", None),
        ("POST", "/v1/call", {"call": "search", "topic": "shop%a"}),
        ("POST", "/v1/call", {"call": "heartbeat", **BEAT}),
        ("POST", "/v1/topics/shop%25a/messages", {"messages": [{"body": "x"}]}),
    ],
)
async def test_what_is_answered_over_http_counts_for_the_namespace(
    method: str, path: str, document: object
) -> None:
    async with a_limited_door({"Namespace:shop": Quota(bytes_out_per_s=1)}) as door:
        await door.service.messages.send_batch(a_batch(b"x" * 900, topic_id=2), asker=None)
        headers = {**bearer("root"), **JSON_TYPE}

        asked = [await door.ask(method, path, document, headers=headers) for _ in range(2)]
        door.clock.advance(60_000)
        path = path.replace("shop", "other")
        other = orjson.loads(orjson.dumps(document).replace(b"shop", b"other"))
        others = [await door.ask(method, path, other, headers=headers) for _ in range(2)]
        told = door.service.access.quotas.throttled()

    assert [status for status, _ in asked] == [200, 429], asked
    assert [status for status, _ in others] == [200, 200], others
    assert set(told) == {("root", "bytes_out")}


@pytest.mark.parametrize(
    "document",
    [
        {"call": "receive", "group": "g", **ASKED},
        {"call": "receive", "group": "shop%g", **ASKED, "topics": ["other%a"]},
        {"call": "search", "topic": "shop%a"},
        {"call": "heartbeat", **BEAT},
    ],
)
async def test_what_is_answered_to_a_call_over_a_stream_counts_for_the_namespace(
    document: dict[str, object],
) -> None:
    async with a_limited_door({"Namespace:shop": Quota(bytes_out_per_s=1)}) as door:
        await door.service.messages.send_batch(a_batch(b"x" * 900, topic_id=2), asker=None)
        stream = await RawStream.open(door.port, bearer("root"))
        other = orjson.loads(orjson.dumps(document).replace(b"shop", b"other"))
        access = door.service.access

        for asked, expected in ((other, {}), (document, {("root", "bytes_out"): 1})):
            stream.ask(1, Operation.CALL, orjson.dumps(asked))
            _, _, status, told = await stream.answer()
            assert status == 0, told
            assert access.quotas.throttled() == expected
        stream.close()


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("POST", "/v1/topics/shop%25a/messages", {"messages": [{"body": "x" * 900}]}),
        ("POST", "/v1/topics/shop%25a/queues/0/batches", None),
    ],
)
async def test_what_is_sent_over_http_counts_for_the_namespace(
    method: str, path: str, document: object
) -> None:
    async with a_limited_door({"Namespace:shop": Quota(bytes_in_per_s=900)}) as door:
        data = orjson.dumps(document) if document else a_batch(b"x" * 900, topic_id=2)
        kind = "application/json" if document else "application/vnd.paceline.batch"
        headers = {**bearer("root"), "Content-Type": kind}

        asked = [await door.ask(method, path, data=data, headers=headers) for _ in range(2)]

    assert [status for status, _ in asked] == [200, 429], asked


async def test_a_fetch_of_two_topics_of_a_namespace_counts_both_and_is_one_request() -> None:
    async with a_limited_door({"Namespace:shop": Quota(bytes_out_per_s=2_000)}) as door:
        for topic_id in (2, 3):
            batch = a_batch(b"x" * 900, topic_id=topic_id)
            await door.service.messages.send_batch(batch, asker=None)
        quota = door.service.access.quotas.of_namespace("shop", "root")
        assert quota is not None
        quota.spend(bytes_out=4_000)
        queues = [{"topic_id": topic_id, "queue": 0, "offset": 0} for topic_id in (2, 3)]
        url, headers = f"http://127.0.0.1:{door.port}/v1/fetch", {**bearer("root"), **JSON_TYPE}

        async with door.session.post(url, json={"queues": queues}, headers=headers) as answer:
            assert answer.status == 200, "the one that is served in any case"
        owed_ms = quota.spend()

    assert owed_ms >= 1_700, "both"
    assert owed_ms <= 2_100, "each once"


@pytest.mark.parametrize("door_name", ["http", "http batch", "stream"])
async def test_a_topic_that_a_send_makes_counts_for_whoever_has_sent(
    door_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[BrokerCommand] = []

    async def refuse(_: Door, command: BrokerCommand) -> dict[str, object]:
        asked.append(command)
        return {"ok": False, "reason": "TOO_MANY_TOPICS", "detail": "there are many"}

    monkeypatch.setattr(Door, "_make_group", refuse)
    async with a_door(auto_create_topic_enable=True) as door:
        ana = (entry("Topic:*", PUB, Action.CREATE),)
        door.service.access.apply(a_security(ana=ana))
        if door_name == "stream":
            stream = await RawStream.open(door.port, bearer("ana"))
            status, told = await stream.call("ensure_topic", topic="new")
            stream.close()
            assert status != 0, told
        else:
            is_batch = door_name == "http batch"
            path = "/v1/topics/new/" + ("queues/0/batches" if is_batch else "messages")
            data = a_batch(b"x") if is_batch else b'{"messages":[{"body":"x"}]}'
            kind = "application/vnd.paceline.batch" if is_batch else "application/json"
            headers = {**bearer("ana"), "Content-Type": kind}
            status, told = await door.ask("POST", path, data=data, headers=headers)
            assert told["reason"] == "TOO_MANY_TOPICS", told

    assert [command.by for command in asked if isinstance(command, EnsureTopic)] == ["ana"]
