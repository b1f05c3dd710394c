"""The HTTP door of simple consumers: messages with their handles, and what is refused."""

from tests.support.http.door import Door, a_batch, a_door
from tests.support.service.send import Answers

from paceline.platform.runtime import pause, spawn

ASK = {"client_id": "c1", "topics": ["orders"]}


async def test_receive_returns_messages_with_handles_that_ack_and_invisible_take() -> None:
    async with a_door() as door:
        for _ in range(2):
            batch = a_batch(b"one", b"two", b"three", keys=["k", None, None], tags=["a", None, "b"])
            door.service.sender.send(batch, Answers(), 0)

        status, answer = await door.ask(
            "POST", "/v1/groups/g/receive", {**ASK, "max_messages": 4, "wait_ms": 1000}
        )
        messages = answer["messages"]

        assert status == 200
        assert [message["body"] for message in messages] == ["one", "two", "three", "one"]
        assert [message["offset"] for message in messages] == [0, 1, 2, 3]
        assert (
            messages[0] | {"topic": "orders", "queue": 0, "attempt": 1, "key": "k"} == messages[0]
        )
        handles = [message["handle"] for message in messages]
        status, acked = await door.ask("POST", "/v1/groups/g/ack", {"handles": handles[:2]})
        assert (status, acked["receipts"]) == (200, [{"code": None}, {"code": None}])
        status, changed = await door.ask(
            "POST", "/v1/groups/g/invisible", {"handles": handles[2:3], "invisible_ms": 20_000}
        )
        assert status == 200
        renewed = changed["receipts"][0]["handle"]
        status, problem = await door.ask("POST", "/v1/groups/g/ack", {"handles": handles[2:3]})
        assert (status, problem["code"]) == (409, "RECEIPT_EXPIRED")
        status, _ = await door.ask("POST", "/v1/groups/g/ack", {"handles": [renewed]})
        assert status == 200


async def test_metrics_tell_what_was_given_came_again_and_is_in_flight() -> None:
    async with a_door() as door:
        door.service.sender.send(a_batch(*[b"x"] * 5), Answers(), 0)

        async def receive() -> list[str]:
            _, answer = await door.ask(
                "POST", "/v1/groups/g/receive", {**ASK, "invisible_ms": 10_000, "wait_ms": 0}
            )
            return [message["handle"] for message in answer["messages"]]

        handles = await receive()
        await door.ask("POST", "/v1/groups/g/ack", {"handles": handles[:2]})
        await door.ask(
            "POST", "/v1/groups/g/invisible", {"handles": handles[2:3], "invisible_ms": 60_000}
        )
        door.clock.advance(10_000)
        assert len(await receive()) == 2  # of the two that ran out

        async def wait() -> None:
            await door.ask("POST", "/v1/groups/g/receive", {**ASK, "wait_ms": 5_000})

        waiting = spawn(wait(), name="receiver")
        while not door.service.receipts.waiting_count:
            await pause(1)
        lines = await metrics_of(door)
        door.service.receipts.stop_waiting()
        await waiting

    assert "paceline_receipts_given_total 7.0" in lines
    assert "paceline_receipts_given_again_total 2.0" in lines
    assert "paceline_receipts_acknowledged_total 2.0" in lines
    assert "paceline_receipts_changed_total 1.0" in lines
    assert "paceline_receipts_waiting_count 1.0" in lines
    node = 'node_id="g1/1",node_type="broker",topic="orders"'
    where = f'cluster="c",consumer_group="g",is_retry="false",is_system="false",{node}'
    assert f"rocketmq_consumer_inflight_messages{{{where}}} 3.0" in lines


async def test_metrics_tell_what_is_read_from_replicas() -> None:
    async with a_door(slow_read_bytes=0) as door:
        for _ in range(2):
            door.service.sender.send(a_batch(b"x"), Answers(), 0)
        await door.ask("GET", "/v1/topics/orders/queues/0/messages?offset=0")
        assert "paceline_replica_reads_named_total 1.0" in await metrics_of(door)
        door.role.become_replica()
        await door.ask("GET", "/v1/topics/orders/queues/0/messages?offset=1")
        lines = await metrics_of(door)

    assert "paceline_replica_reads_messages_total 1.0" in lines
    assert "paceline_replica_reads_named_total 1.0" in lines
    [size] = [line for line in lines if line.startswith("paceline_replica_reads_bytes_total ")]
    assert float(size.split()[1]) > 96


async def metrics_of(door: Door) -> list[str]:
    async with door.session.get(f"http://127.0.0.1:{door.port}/metrics") as answer:
        return (await answer.text()).splitlines()


async def test_forged_handles_and_bad_requests_are_4xx_without_effect() -> None:
    async with a_door() as door:
        end = door.log.end
        for path, document, field in (
            ("receive", {**ASK, "max_messages": 33}, "max_messages"),
            ("receive", {**ASK, "group": "g"}, "group"),
            ("receive", {**ASK, "what": 1}, "what"),
            ("receive", {"client_id": "c"}, "topics"),
            ("ack", {"handles": []}, "handles"),
            ("ack", {"handles": ["garbage"]}, "handle"),
            ("invisible", {"handles": ["garbage"], "invisible_ms": 0}, "handle"),
        ):
            status, problem = await door.ask("POST", f"/v1/groups/g/{path}", document)
            assert (status, problem["field"]) == (400, field), problem
        status, problem = await door.ask(
            "POST", "/v1/groups/g/receive", {**ASK, "topics": ["nowhere"]}
        )
        assert (status, problem["code"]) == (404, "TOPIC_NOT_FOUND")
        assert door.log.end == end
