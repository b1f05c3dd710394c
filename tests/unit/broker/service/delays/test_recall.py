"""Taking delayed messages back, and looking at what waits: the calls and their HTTP resources."""

import asyncio
from typing import Any

import pytest
from tests.support.http.door import Door, a_door
from tests.support.service.delivery import DelayBench
from tests.support.service.fakes import a_view, until

from paceline.errors import BadRequestError, ConflictError, ForbiddenError, TopicNotFoundError
from paceline.records.dues import due_of_delay
from paceline.records.header import Kind
from paceline.wire.message_ids import OffsetMessageId, make_handle, parse_handle
from paceline_broker.projections.timers import RECALL_KNOWN_MS


def handle_of(answer: Any, number: int = 0, group: str = "g1") -> str:
    return make_handle("recall", OffsetMessageId(group, answer.base_queue_offset, number))


async def recalled(bench: DelayBench, handle: str, topic: str = "orders") -> dict[str, Any]:
    """The call's answer once what it appended is confirmed."""
    loop = asyncio.get_running_loop()
    confirming = loop.call_soon(bench.writer.confirm_all)
    try:
        return await bench.call("recall", topic=topic, handle=handle)
    finally:
        confirming.cancel()


async def test_message_is_taken_back_and_never_delivered() -> None:
    bench = DelayBench()
    answer = bench.delay([due_of_delay(100)] * 2, b"0", b"1")

    result = await recalled(bench, handle_of(answer, 1))

    place = OffsetMessageId("g1", answer.base_queue_offset, 1)
    assert (result["message_id"], result["topic"]) == (str(place), "orders")
    bench.clock.advance(100)
    bench.turn()
    assert bench.bodies() == [b"0"]


async def test_recall_and_delivery_are_decided_in_log_order() -> None:
    """R28: a delivery that is appended, confirmed or not, has happened for the recall."""
    bench = DelayBench()
    answer = bench.delay([due_of_delay(100)])
    bench.clock.advance(100)
    bench.service.delivery.turn()

    before = bench.log.confirm

    def confirm() -> None:
        assert bench.log.confirm == before, "a refusal too tells of what is not confirmed"
        bench.writer.confirm_all()

    asyncio.get_running_loop().call_soon(confirm)
    with pytest.raises(ConflictError):
        await bench.call("recall", topic="orders", handle=handle_of(answer))
    assert bench.log.confirm > before
    assert bench.bodies() == [b"x"]


async def test_repeated_recall_gets_the_same_answer_for_a_while() -> None:
    """Who got no answer asks again, perhaps at the next master."""
    bench = DelayBench()
    answer = bench.delay([due_of_delay(1000)] * 2)
    first = await recalled(bench, handle_of(answer))

    again = await recalled(bench, handle_of(answer))

    assert again["message_id"] == first["message_id"]
    assert len(bench.role.projections.timers) == 1
    bench.clock.advance(RECALL_KNOWN_MS)
    with pytest.raises(ConflictError):
        await recalled(bench, handle_of(answer))


async def test_forged_and_foreign_handles_have_no_effect() -> None:
    bench = DelayBench()
    bench.topics["others"] = 1
    answer = bench.delay([due_of_delay(100)])
    good = handle_of(answer)
    before = len(bench.log.batches)

    for bad in (good[:-1], good + "0", "recall.g1:0:0.00000000", "x", good.replace("g1", "g2")):
        with pytest.raises(BadRequestError):
            await recalled(bench, bad)
    with pytest.raises(BadRequestError, match="broker group g2"):
        await recalled(bench, handle_of(answer, group="g2"))
    for number in (1, 7):
        with pytest.raises(ConflictError):
            await recalled(bench, handle_of(answer, number))
    with pytest.raises(BadRequestError):  # a handle of another kind
        await recalled(bench, make_handle("tx", parse_handle("recall", good)))
    with pytest.raises(TopicNotFoundError):
        await recalled(bench, good, topic="nosuch")

    assert len(bench.log.batches) == before
    assert len(bench.role.projections.timers) == 1


async def test_handle_of_another_topic_is_refused() -> None:
    bench = DelayBench()
    bench.service.view_changed(a_view(version=3, topics={**bench.topics, "others": 1}))
    answer = bench.delay([due_of_delay(100)])

    with pytest.raises(BadRequestError, match="another topic"):
        await recalled(bench, handle_of(answer), topic="others")
    assert len(bench.role.projections.timers) == 1


async def test_recall_can_be_switched_off() -> None:
    bench = DelayBench(recall_message_enable=False)
    answer = bench.delay([due_of_delay(100)])
    with pytest.raises(ForbiddenError):
        await recalled(bench, handle_of(answer))


# -- the HTTP door --------------------------------------------------------------------------------


async def send(door: Door, *messages: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return await door.ask(
        "POST", "/v1/topics/orders/messages", {"messages": list(messages), "queue": 0}
    )


async def test_json_messages_may_be_delayed_each_in_its_way() -> None:
    async with a_door() as door:
        now = door.clock.unix_ms()
        status, answer = await send(
            door,
            {"body": "now"},
            {"body": "level", "delay_level": 2, "delay_ms": 9},
            {"body": "ms", "delay_ms": 70},
            {"body": "at", "delivery_unix_ms": now + 80},
            {"body": "zero", "delay_level": 0, "delay_ms": 0},
        )
        assert status == 200
        rows = answer["messages"]
        assert [row["offset"] for row in rows] == [0, None, None, None, 1]
        assert [("recall_handle" in row) for row in rows] == [False, True, True, True, False]

        _, waiting = await door.ask("GET", "/v1/delays?topic=orders&max=10")
        assert waiting["pending"] == 3
        assert waiting["next_due_unix_ms"] == now + 70
        assert [row["due_unix_ms"] - now for row in waiting["messages"]] == [70, 80, 5000]
        assert [row["recall_handle"] for row in waiting["messages"]] == [
            rows[2]["recall_handle"],
            rows[3]["recall_handle"],
            rows[1]["recall_handle"],
        ]
        assert waiting["topics"] == [{"topic_id": 1, "topic": "orders", "pending": 3}]

        status, back = await door.ask(
            "POST", "/v1/topics/orders/recall", {"handle": rows[2]["recall_handle"]}
        )
        assert (status, back["topic"]) == (200, "orders")
        door.clock.advance(100)
        door.service.delivery.turn()
        await until(lambda: len(door.log.batches) > 0 and door.log.confirm == door.log.end)
        bodies = [
            body
            for view in door.log.views()
            if view.header.kind == Kind.NORMAL
            for body in view.bodies()
        ]
        assert bodies == [b"now", b"zero", b"at"]


@pytest.mark.parametrize(
    "bad",
    [
        {"delay_ms": -1},
        {"delay_ms": 1.5},
        {"delay_ms": "10"},
        {"delay_ms": True},
        {"delay_ms": 2**60},
        {"delay_level": -1},
        {"delay_level": 10**6},
        {"delivery_unix_ms": -5},
        {"delivery_unix_ms": 10**18},
        {"delivery_unix_ms": 2**63},
        {"delay_ms": 100 * 365 * 24 * 3600 * 1000},
    ],
)
async def test_bad_delays_are_400_and_name_the_field(bad: dict[str, Any]) -> None:
    async with a_door() as door:
        status, problem = await send(door, {"body": "x", **bad})
        assert status == 400, problem
        assert "delay" in problem["field"] or "delivery" in problem["field"]
        assert len(door.role.projections.timers) == 0


async def test_metrics_tell_what_waits_and_how_late_it_was() -> None:
    async with a_door() as door:
        await send(door, {"body": "a", "delay_ms": 70}, {"body": "b", "delay_ms": 90_000})
        door.clock.advance(70 + 15)
        door.service.delivery.turn()
        async with door.session.get(f"http://127.0.0.1:{door.port}/metrics") as answer:
            lines = (await answer.text()).splitlines()
    assert 'paceline_delay_pending_messages{topic="orders"} 1.0' in lines
    assert "paceline_delay_delivered_total 1.0" in lines
    assert 'paceline_delay_late_total{le_ms="20"} 1.0' in lines


async def test_bad_recalls_are_4xx() -> None:
    async with a_door() as door:
        for document in ({}, {"handle": 5}, {"handle": "x"}, {"handle": "x", "more": 1}):
            status, _ = await door.ask("POST", "/v1/topics/orders/recall", document)
            assert status == 400
        handle = make_handle("recall", OffsetMessageId("g1", 2**40, 0))
        status, _ = await door.ask("POST", "/v1/topics/orders/recall", {"handle": handle})
        assert status == 409
        status, _ = await door.ask("GET", "/v1/delays?max=9999999")
        assert status == 400
