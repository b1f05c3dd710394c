"""Resources of the HTTP door, on fakes of log and role."""

import asyncio
import base64
from typing import NoReturn

import aiohttp
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.http.door import a_batch, a_door
from tests.support.http.http import MESSAGES, send
from tests.support.service.fakes import OTHER_MASTER, a_view, until

from paceline.errors import InSyncReplicasNotEnoughError, OverloadedError
from paceline.queues import index_of_key
from paceline.records.decode import BatchView
from paceline.wire.stream import FETCH_ANSWER, FETCH_HEADER, FETCH_PART, FETCH_QUEUE

BATCH = "application/vnd.paceline.batch"
QUEUE = "/v1/topics/orders/queues/0/messages"


async def test_json_messages_come_back_as_they_were_sent() -> None:
    message = {"body": "héllo", "key": "k", "tag": "t", "properties": {"a": "1"}}
    raw = {"body_base64": base64.b64encode(b"\xff\x00").decode()}
    async with a_door() as door:
        status, answer = await door.ask("POST", MESSAGES, {"messages": [message, raw], "queue": 2})

        assert (status, answer["status"]) == (200, "SEND_OK")
        assert [(row["queue"], row["offset"]) for row in answer["messages"]] == [(2, 0), (2, 1)]
        status, pulled = await door.ask("GET", "/v1/topics/orders/queues/2/messages?offset=0")
        first, second = pulled["messages"]
        assert {key: first[key] for key in message} == message
        assert second["body_base64"] == raw["body_base64"]
        assert (pulled["next_offset"], pulled["start"], pulled["end"]) == (2, 0, 2)
        assert (pulled["epoch"], pulled["broker"]["group"]) == (1, "g1")


async def test_messages_of_one_key_go_to_one_queue() -> None:
    async with a_door() as door:
        messages = [{"body": "x", "key": f"k{number % 7}"} for number in range(50)]

        _, answer = await door.ask("POST", MESSAGES, {"messages": messages})

        queues: dict[str, set[int]] = {}
        for message, row in zip(messages, answer["messages"], strict=True):
            queues.setdefault(message["key"], set()).add(row["queue"])
        assert all(len(found) == 1 for found in queues.values())
        assert len(set.union(*queues.values())) > 1


async def test_a_sharding_key_chooses_the_queue_that_the_client_would_choose() -> None:
    async with a_door() as door:
        messages = [
            {"body": "a", "key": f"k{number}", "sharding_key": f"s{number % 5}"}
            for number in range(20)
        ]

        _, answer = await door.ask("POST", MESSAGES, {"messages": messages})

        queues = [row["queue"] for row in answer["messages"]]
        assert queues == [index_of_key(b"s%d" % (number % 5), 4) for number in range(20)]
        at = f"/v1/topics/orders/queues/{queues[0]}/messages?offset=0"
        _, pulled = await door.ask("GET", at)
        first = pulled["messages"][0]
        assert (first["key"], first["properties"]) == ("k0", {"__SHARDINGKEY": "s0"})


async def test_json_send_with_producer_fields_is_stored_once() -> None:
    async with a_door() as door:
        producer = {"id": 77, "epoch": 0, "sequence": 0}

        first = await send(door, "a", "b", producer=producer)
        second = await send(door, "a", "b", producer=producer)

        assert [row["duplicate"] for row in first["messages"]] == [False, False]  # type: ignore[attr-defined]
        assert [row["duplicate"] for row in second["messages"]] == [True, True]  # type: ignore[attr-defined]
        assert [row["offset"] for row in second["messages"]] == [0, 1]  # type: ignore[attr-defined]


async def test_pull_by_tags_passes_over_the_rest() -> None:
    async with a_door() as door:
        messages = [{"body": str(n), "tag": "ab"[n % 2]} for n in range(10)]
        await door.ask("POST", MESSAGES, {"messages": messages, "queue": 0})

        _, pulled = await door.ask("GET", f"{QUEUE}?offset=3&tags=b,c")

        assert [row["body"] for row in pulled["messages"]] == ["3", "5", "7", "9"]
        assert pulled["next_offset"] == 10


async def test_a_message_that_changed_on_the_disk_is_never_shown_as_json() -> None:
    async with a_door() as door:
        await send(door, "as it was sent")
        batch = bytearray(door.log.batches[-1])
        batch[batch.index(b"sent")] ^= 1
        door.log.batches[-1] = bytes(batch)

        status, problem = await door.ask("GET", f"{QUEUE}?offset=0")

        assert (status, problem["code"]) == (503, "CORRUPT_LOG")


async def test_long_pull_answers_when_a_message_is_confirmed() -> None:
    async with a_door() as door:
        pulling = asyncio.gather(door.ask("GET", f"{QUEUE}?offset=0&wait_ms=20000"))
        await until(lambda: door.service.fetcher.waiting_count == 1)

        await send(door, "late")

        [(status, pulled)] = await pulling
        assert (status, pulled["messages"][0]["body"]) == (200, "late")


async def test_long_pull_of_a_vanished_client_ends() -> None:
    async with a_door() as door:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{door.port}{QUEUE}?offset=0&wait_ms=20000"
            asking = asyncio.gather(session.get(url))
            await until(lambda: door.service.fetcher.waiting_count == 1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

        await until(lambda: door.service.fetcher.waiting_count == 0)


async def test_batches_go_in_and_out_unchanged() -> None:
    async with a_door() as door:
        batch = a_batch(b"one", b"two", queue_id=3)
        path = "/v1/topics/orders/queues/3"

        status, answer = await door.ask(
            "POST", f"{path}/batches", data=batch, headers={"Content-Type": BATCH}
        )

        assert status == 200, answer
        assert (answer["offset"], answer["count"], answer["duplicate"]) == (0, 2, False)
        url = f"http://127.0.0.1:{door.port}{path}/messages?offset=1"
        async with door.session.get(url, headers={"Accept": BATCH}) as pulled:
            body = await pulled.read()
            assert pulled.content_type == BATCH
            assert (pulled.headers["Paceline-End"], pulled.headers["Paceline-Epoch"]) == ("2", "1")
        assert body[96:] == batch[96:]


@pytest.mark.parametrize("form", ["json", "binary"])
async def test_fetch_answers_batches_of_many_queues(form: str) -> None:
    async with a_door() as door:
        for queue in (0, 1):
            body = a_batch(bytes([queue]), queue_id=queue)
            path = f"/v1/topics/orders/queues/{queue}/batches"
            await door.ask("POST", path, data=body, headers={"Content-Type": BATCH})
        if form == "json":
            rows = [{"topic": "orders", "queue": queue, "offset": 0} for queue in (0, 1)]
            asked, content_type = orjson.dumps({"queues": rows}), "application/json"
        else:
            packed = b"".join(FETCH_QUEUE.pack(1, queue, 0, 4096, 0) for queue in (0, 1))
            asked, content_type = FETCH_HEADER.pack(0, 4096, 1, 2) + packed, BATCH

        url = f"http://127.0.0.1:{door.port}/v1/fetch"
        async with door.session.post(
            url, data=asked, headers={"Content-Type": content_type}
        ) as answer:
            content = await answer.read()

        epoch, count, confirm = FETCH_ANSWER.unpack_from(content)
        assert (epoch, count, confirm) == (1, 2, door.log.end)
        at = FETCH_ANSWER.size + 2 * FETCH_PART.size
        first = BatchView(content, at)
        second = BatchView(content, at + first.header.size_bytes)
        assert (first.bodies(), second.bodies()) == ([b"\x00"], [b"\x01"])


async def test_group_resources_commit_query_and_lock() -> None:
    async with a_door() as door:
        await send(door, "a", "b", "c")
        queue = {"topic": "orders", "queue": 0}

        status, answer = await door.ask(
            "PUT", "/v1/groups/g/offsets", {"offsets": [{**queue, "offset": 2}]}
        )

        assert (status, answer["offsets"][0]["offset"]) == (200, 2)
        _, answer = await door.ask("GET", "/v1/groups/g/offsets")
        assert answer["offsets"][0]["offset"] == 2
        _, answer = await door.ask("GET", "/v1/groups/g/lag")
        assert answer["lag"] == 1
        _, answer = await door.ask(
            "POST", "/v1/groups/g/locks", {"client_id": "c1", "queues": [queue]}
        )
        token = answer["queues"][0]["token"]
        assert token[0] == 1
        status, problem = await door.ask(
            "POST", "/v1/groups/g/locks", {"client_id": "c2", "queues": [queue]}
        )
        assert (status, problem["code"]) == (409, "LOCK_HELD")
        assert problem["queues"][0]["holder"] == "c1"
        assert problem["queues"][0]["token"] is None
        unlock = {"client_id": "c1", "queues": [{**queue, "token": token}]}
        status, _ = await door.ask("POST", "/v1/groups/g/unlock", unlock)
        assert status == 200


async def test_members_of_a_group_see_each_other() -> None:
    async with a_door(member_interval_ms=1) as door:
        beat = {"topics": ["orders"], "owned": [], "generation": 0}
        await door.ask("POST", "/v1/groups/g/members", {"client_id": "a", **beat})

        _, answer = await door.ask("POST", "/v1/groups/g/members", {"client_id": "b", **beat})

        assert [member["client_id"] for member in answer["members"]] == ["a", "b"]
        _, answer = await door.ask("GET", "/v1/groups/g/members")
        assert len(answer["members"]) == 2


async def test_the_epoch_table_is_told() -> None:
    async with a_door() as door:
        status, answer = await door.ask("GET", "/v1/epochs")

        assert status == 200
        assert answer["epochs"] == [{"epoch": 1, "start": 0, "end": door.log.end}]


async def test_probe_names_incarnation_role_and_epoch() -> None:
    async with a_door() as door:
        status, answer = await door.ask("GET", "/v1/probe")

        assert status == 200
        assert answer == {
            "cluster_id": "cluster",
            "group": "g1",
            "replica_id": 1,
            "incarnation": 1,
            "role": "master",
            "epoch": 1,
            "is_stopped": False,
        }


async def test_routes_and_watch_answer_views() -> None:
    async with a_door() as door:
        _, routes = await door.ask("GET", "/v1/routes")
        watching = asyncio.gather(door.ask("GET", "/v1/watch?from=1&wait_ms=20000"))
        await until(lambda: len(door.service.routes._waiters) == 1)

        door.service.view_changed(a_view(version=2, topics={"orders": 4, "more": 1}))

        [(status, watched)] = await watching
        assert routes["version"] == 1
        assert (status, watched["version"]) == (200, 2)
        assert [topic["topic"] for topic in watched["topics"]] == ["more", "orders"]
        _, some = await door.ask("GET", "/v1/watch?topics=more,none")
        assert [topic["topic"] for topic in some["topics"]] == ["more"]
        assert some["groups"] == watched["groups"]


async def test_health_readiness_and_status_follow_the_role() -> None:
    async with a_door() as door:
        assert (await door.ask("GET", "/healthz"))[0] == 200
        assert (await door.ask("GET", "/readyz"))[0] == 200
        door.writer.is_open = False
        assert (await door.ask("GET", "/readyz"))[0] == 503
        door.role.become_replica()
        assert (await door.ask("GET", "/readyz"))[0] == 200
        door.log.is_readable = False
        assert (await door.ask("GET", "/readyz"))[0] == 503
        _, status = await door.ask("GET", "/v1/status")
        assert status["role"] == "replica"
        assert status["service"]["requests"]["http"] >= 5


async def test_metrics_carry_rocketmq_names() -> None:
    async with a_door() as door:
        await send(door, "a", "b")
        await door.ask("GET", f"{QUEUE}?offset=0")
        queue = {"topic": "orders", "queue": 0, "offset": 1}
        await door.ask("PUT", "/v1/groups/g/offsets", {"offsets": [queue]})

        async with door.session.get(f"http://127.0.0.1:{door.port}/metrics") as answer:
            text = await answer.text()

        node = {"cluster": "c", "node_type": "broker", "node_id": "g1/1", "topic": "orders"}
        samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        of_topic = {**node, "message_type": "normal", "is_system": "false"}
        of_group = {**node, "consumer_group": "g", "is_retry": "false", "is_system": "false"}
        assert samples["rocketmq_messages_in_total", frozenset(of_topic.items())] == 2
        assert samples["rocketmq_consumer_lag_messages", frozenset(of_group.items())] == 1
        over_http = frozenset({"endpoint": "http"}.items())
        assert samples["paceline_service_requests_total", over_http] >= 4


async def test_overload_is_429_with_retry_after() -> None:
    async with a_door() as door:
        door.writer.refusal = OverloadedError("full", retry_after_ms=1500)

        body = orjson.dumps({"messages": [{"body": "x"}]})
        url = f"http://127.0.0.1:{door.port}{MESSAGES}"
        async with door.session.post(
            url, data=body, headers={"Content-Type": "application/json"}
        ) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "2")
            assert answer.content_type == "application/problem+json"


async def test_too_few_replicas_is_503_and_nothing_is_stored() -> None:
    async with a_door() as door:
        before = door.log.end
        door.writer.refusal = InSyncReplicasNotEnoughError("1 of 2")

        status, problem = await door.ask("POST", MESSAGES, {"messages": [{"body": "x"}]})

        assert (status, problem["code"]) == (503, "IN_SYNC_REPLICAS_NOT_ENOUGH")
        assert problem["definite"] is True
        assert door.log.end == before


async def test_replica_redirects_sends_and_serves_reads() -> None:
    async with a_door() as door:
        await send(door, "a")
        door.role.become_replica()

        status, problem = await door.ask("POST", MESSAGES, {"messages": [{"body": "x"}]})

        assert (status, problem["code"], problem["master"]) == (421, "NOT_MASTER", OTHER_MASTER)
        status, pulled = await door.ask("GET", f"{QUEUE}?offset=0")
        assert (status, len(pulled["messages"])) == (200, 1)
        status, problem = await door.ask("GET", f"{QUEUE}?offset=7")
        assert (status, problem["code"]) == (421, "NOT_MASTER"), (
            "ahead of a replica: ask the master"
        )


async def test_a_request_that_gets_no_memory_is_answered_503_and_its_outcome_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_door() as door:

        def fail(*_: object, **__: object) -> NoReturn:
            raise MemoryError

        monkeypatch.setattr(door.service.routes, "topic_named", fail)
        sent = await door.ask("POST", MESSAGES, {"messages": [{"body": "x"}]})
        queue = {"topic": "orders", "queue": 0}
        called = await door.ask("POST", "/v1/call", {"call": "ends", "queues": [queue]})

    for status, problem in (sent, called):
        assert (status, problem["code"]) == (503, "OUT_OF_MEMORY")
        assert (problem["retry"], problem["definite"]) == ("same_node", False)
