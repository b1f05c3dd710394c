"""The HTTP door of simple consumers: messages with their handles, and what is refused."""

from tests.unit.http.door import a_batch, a_door
from tests.unit.service.test_send import Answers

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
