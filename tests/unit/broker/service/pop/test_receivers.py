"""Receivers that wait: what wakes them, whom first, with filters, and when a mastership ends."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.http.door import a_batch
from tests.support.http.turns import turn
from tests.support.service.calls import started
from tests.support.service.fakes import Bench, a_view, until
from tests.support.service.receipts import handles, lowest, receive, send
from tests.support.service.send import Answers

from paceline.errors import (
    BadRequestError,
    NotMasterError,
    NotYetAvailableError,
    OutcomeUnknownError,
    PollingFullError,
    TopicNotFoundError,
)
from paceline.records.header import Kind
from paceline.types import TopicId
from paceline_broker.projections.projections import TopicRecord
from paceline_broker.service.pop import pop as pop_module


async def test_waiting_receiver_is_given_a_message_when_it_is_confirmed() -> None:
    bench = Bench(is_automatic=False)
    asking = await started(receive(bench, wait_ms=20_000))
    bench.service.sender.send(a_batch(b"x", queue_id=2), Answers(), 0)
    await started(asyncio.wait([asking], timeout=0))
    assert not asking.done()

    bench.writer.confirm_all()
    await started(asyncio.wait([asking], timeout=0))
    bench.writer.confirm_all()

    assert (await asking)[0]["messages"] == [[1, 2, 0, 1, 1]]
    assert bench.service.receipts.waiting_count == 0


async def test_one_message_wakes_one_of_many_receivers_the_longest_waiting_first() -> None:
    bench = Bench()
    asking = [await started(receive(bench, client_id=f"c{n}", wait_ms=20_000)) for n in range(3)]

    for first in range(3):
        send(bench, 1)
        [answer] = await asking[first]
        assert answer["messages"] == [[1, 0, first, first + 1, 1]]
    assert bench.service.receipts.waiting_count == 0


async def test_waiting_receiver_is_given_what_falls_due() -> None:
    bench = Bench()
    send(bench, 1)
    given = handles(await receive(bench, invisible_ms=10_000))
    asking = await started(receive(bench, client_id="c2", wait_ms=20_000))

    await bench.call("invisible", group="g", handles=given, invisible_ms=0)

    assert (await asking)[0]["messages"] == [[1, 0, 0, 1, 2]]


async def test_receive_ends_empty_when_its_time_or_its_client_says_so() -> None:
    bench = Bench()
    assert (await receive(bench, wait_ms=1))["messages"] == []
    asking = await started(receive(bench, wait_ms=20_000))

    ended = await bench.call("end_receive", group="g", client_id="c1")

    assert ended["ended"] == 1
    assert (await asking)[0]["messages"] == []
    assert bench.service.receipts.waiting_count == 0


async def test_receivers_are_answered_when_the_broker_stops() -> None:
    bench = Bench()
    asking = await started(receive(bench, wait_ms=20_000))

    bench.service.stop_waiting()

    assert (await asking)[0]["messages"] == []


async def test_receiver_that_has_gone_is_given_nothing() -> None:
    bench = Bench()
    asking = await started(receive(bench, wait_ms=20_000))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    send(bench, 1)

    assert (await receive(bench, client_id="c2"))["messages"] == [[1, 0, 0, 1, 1]]


async def test_ordered_receiver_that_waits_is_given_the_next_ones_at_once() -> None:
    bench = Bench()
    send(bench, 4)
    first = await receive(bench, max_messages=2, order=True)
    waiting = await started(receive(bench, client_id="c2", order=True, wait_ms=20_000))
    await bench.call("ack", group="g", handles=handles(first)[:1])
    assert not waiting.done()

    await bench.call("ack", group="g", handles=handles(first)[1:])

    assert (await waiting)[0]["messages"] == [[1, 0, 2, 4, 1]]


async def test_receivers_that_wait_are_bounded() -> None:
    bench = Bench(pop_polling_size=1)
    waiting = await started(receive(bench, wait_ms=20_000))

    with pytest.raises(PollingFullError) as caught:
        await receive(bench, client_id="c2", wait_ms=20_000)

    assert caught.value.details["retry_after_ms"] == 1000
    assert caught.value.status == 429
    waiting.cancel()


def tagged(bench: Bench, *tags: str) -> None:
    batch = a_batch(*[b"x"] * len(tags), tags=list(tags))
    bench.service.sender.send(batch, Answers(), 0)


async def test_receiver_with_a_filter_is_given_what_it_wants_and_passes_the_rest() -> None:
    bench = Bench()
    tagged(bench, "a", "b", "a", "a")
    tagged(bench, "c", "c")
    await turn()
    asked = [{"topic": "orders", "expression": "a || d"}]

    answer = await receive(bench, topics=asked)
    nothing = await receive(bench, topics=asked)
    await bench.call("ack", group="g", handles=handles(answer))

    assert [row[2:4] for row in answer["messages"]] == [[0, 1], [2, 4]]
    assert nothing["messages"] == []
    assert lowest(bench) == 6, "what nobody wanted is passed over"
    with pytest.raises(BadRequestError):
        await receive(bench, topics=[{"topic": "orders", "type": "SQL92", "expression": "a >"}])
    with pytest.raises(BadRequestError):
        await receive(bench, topics=[{"topic": "orders", "expression": "a", "what": 1}])


async def test_filter_looks_on_behind_much_that_is_not_wanted_and_waits_for_cold_pages() -> None:
    bench = Bench()
    for _ in range(3):
        body = b"x" * 200_000
        batch = a_batch(body, body, tags=["no", "no"])
        bench.service.sender.send(batch, Answers(), 0)
    tagged(bench, "yes")
    await turn()
    bench.log.cold.add(1)

    answer = await receive(bench, topics=[{"topic": "orders", "expression": "yes"}], wait_ms=5_000)

    assert [row[2:4] for row in answer["messages"]] == [[6, 7]]
    assert bench.log.warmed == 1


async def test_receivers_of_a_deposed_master_hear_of_it_and_a_new_one_knows_all() -> None:
    bench = Bench(is_automatic=False)
    send(bench, 2)
    asked = await started(receive(bench, max_messages=1))
    waiting = await started(receive(bench, group="idle", start="last", wait_ms=20_000))
    bench.role.become_replica()
    bench.service.role_changed()

    with pytest.raises(OutcomeUnknownError):
        await asked
    with pytest.raises(NotMasterError):
        await waiting

    bench.role.begin_epoch(2)
    bench.service.role_changed()
    bench.log.is_automatic = True
    assert (await receive(bench))["messages"] == [[1, 0, 1, 2, 1]]


async def test_master_that_may_not_append_gives_nothing_and_serves_the_waiting_later() -> None:
    bench = Bench()
    asking = await started(receive(bench, wait_ms=20_000))
    send(bench, 1)
    bench.writer.refusal = NotYetAvailableError("draining")
    with pytest.raises(NotYetAvailableError):
        await receive(bench, client_id="c2")
    bench.writer.refusal = None

    assert (await asking)[0]["messages"] == [[1, 0, 0, 1, 1]]


async def test_receive_that_was_decided_is_not_decided_again_while_it_is_unconfirmed() -> None:
    """R28: else what it was given first is lost until its time is over, or goes out too early."""
    bench = Bench(is_automatic=False)
    send(bench, 2)
    asking = await started(receive(bench, max_messages=1, wait_ms=1))
    end = bench.log.end
    loop = asyncio.get_running_loop()
    over = loop.time() + 0.05
    await until(lambda: loop.time() > over)

    assert bench.log.end == end, "its wait is over, and nothing more is given"
    bench.writer.confirm_all()
    assert (await asking)[0]["messages"] == [[1, 0, 0, 1, 1]]
    assert (await receive_confirmed(bench))["messages"] == [[1, 0, 1, 2, 1]]


async def test_receive_is_in_a_turn_once_however_many_have_it_looked_at() -> None:
    bench = Bench(is_automatic=False)
    waiting = await started(receive(bench, max_messages=1, wait_ms=20_000))
    bench.writer.confirm_all()
    send(bench, 2)
    bench.service.receipts.role_changed()
    bench.service.stop_waiting()
    await turn()
    await turn()
    bench.writer.confirm_all()

    assert (await waiting)[0]["messages"] == [[1, 0, 0, 1, 1]]
    assert (await receive_confirmed(bench))["messages"] == [[1, 0, 1, 2, 1]]


async def receive_confirmed(bench: Bench) -> dict[str, Any]:
    asking = await started(receive(bench, client_id="c9"))
    bench.writer.confirm_all()
    answer: dict[str, Any] = (await asking)[0]
    return answer


async def test_filter_passes_nothing_over_that_is_damaged_nor_what_is_behind_it() -> None:
    """R24: what is passed over is nobody's for ever."""
    bench = Bench()
    for tag in ("yes", "yes", "no"):
        tagged(bench, tag)
        await turn()
    bad = len(bench.log.batches) - 2
    whole = bench.log.batches[bad]
    at = whole.rindex(b"yes")
    bench.log.batches[bad] = whole[:at] + b"yez" + whole[at + 3 :]
    asked = [{"topic": "orders", "expression": "yes"}]

    first = await receive(bench, topics=asked, max_messages=1)
    second = await receive(bench, topics=asked)
    bench.log.batches[bad] = whole
    bench.log.bad.clear()
    mended = await receive(bench, topics=asked)

    given = [row[2:4] for answer in (first, second, mended) for row in answer["messages"]]
    assert given == [[0, 1], [1, 2]]
    assert second["messages"] == []


async def test_receiver_with_a_filter_hears_of_a_message_that_was_unconfirmed_as_it_came() -> None:
    bench = Bench(is_automatic=False)
    tagged(bench, "yes")
    asked = [{"topic": "orders", "expression": "yes"}]
    asking = await started(receive(bench, topics=asked, wait_ms=20_000))
    assert not asking.done()

    for _ in range(3):
        bench.writer.confirm_all()
        await turn()
        await turn()
    bench.writer.confirm_all()

    async with asyncio.timeout(5):
        assert (await asking)[0]["messages"] == [[1, 0, 0, 1, 1]]


async def test_receiver_behind_one_that_has_just_gone_is_given_the_message() -> None:
    bench = Bench(is_automatic=False)
    gone = await started(receive(bench, wait_ms=20_000))
    behind = await started(receive(bench, client_id="c2", wait_ms=20_000))
    bench.writer.confirm_all()
    send(bench, 1)  # the turn that it wakes comes before the one that hears of the cancel
    gone.cancel()
    await turn()
    await turn()
    bench.writer.confirm_all()

    async with asyncio.timeout(5):
        assert (await behind)[0]["messages"] == [[1, 0, 0, 1, 1]]


async def test_receivers_that_were_woken_for_nothing_look_again_when_something_is_due() -> None:
    bench = Bench()
    send(bench, 1)
    await receive(bench, invisible_ms=10_000)
    waiting = await started(receive(bench, client_id="c2", wait_ms=20_000))
    desk = bench.service.receipts
    desk._due.pop("g").cancel()  # as when it has fired

    desk.messages_came([1 << 16])
    await turn()
    await turn()

    assert "g" in desk._due
    waiting.cancel()


def delete_orders(bench: Bench) -> None:
    """The topic is deleted, and its record is in the log."""
    view = replace(a_view(version=5, topics={}), topic_id_max=TopicId(1))
    bench.service.view_changed(view)
    record = TopicRecord(topic="orders", topic_id=1, queues=4, is_deleted=True)
    now = bench.service.ledger.log_time_ms()
    bench.writer.appender.record(Kind.TOPIC, record.to_json(), store_unix_ms=now)
    bench.writer.confirm_all()


async def test_receiver_that_waits_over_the_deletion_of_its_topic_brings_nothing_back() -> None:
    """R35: all that hangs on the id is gone for good."""
    bench = Bench()
    waiting = await started(receive(bench, wait_ms=20_000))

    delete_orders(bench)

    async with asyncio.timeout(5):
        with pytest.raises(TopicNotFoundError):
            await waiting
    assert bench.role.projections.topic_ids() == []
    assert bench.service.receipts.waiting_count == 0


async def test_receiver_goes_on_with_the_topics_that_are_left() -> None:
    """R35"""
    bench = Bench()
    two = {"orders": 4, "bills": 1}
    bench.service.view_changed(a_view(version=2, topics=two))
    waiting = await started(receive(bench, topics=["orders", "bills"], wait_ms=20_000))
    left = {name: topic for name, topic in a_view(topics=two).topics.items() if name == "bills"}
    bench.service.view_changed(replace(a_view(version=3), topics=left, topic_id_max=TopicId(2)))
    await turn()
    assert not waiting.done()

    bench.service.sender.send(a_batch(b"x", topic_id=2), Answers(), 0)

    async with asyncio.timeout(5):
        assert (await waiting)[0]["messages"] == [[2, 0, 0, 1, 1]]
    assert bench.service.receipts.waiting_count == 0
    assert not bench.service.receipts._waiting


@pytest.mark.parametrize("wait_ms", [0, 20])
async def test_receive_with_a_filter_ends_in_time_however_much_is_to_be_looked_at(
    monkeypatch: pytest.MonkeyPatch, wait_ms: int
) -> None:
    monkeypatch.setattr(pop_module, "_LOOK_MS", 20)
    bench = Bench()
    tagged(bench, "yes")
    await turn()
    bench.log.cold.add(1)  # for as long as the page takes
    read = asyncio.Event()

    async def warm(view: memoryview) -> None:
        await read.wait()
        bench.log.cold.clear()

    monkeypatch.setattr(bench.log, "warm", warm)
    asked = [{"topic": "orders", "expression": "yes"}]

    async with asyncio.timeout(5):
        nothing = await receive(bench, topics=asked, wait_ms=wait_ms)
    read.set()
    await turn()
    await turn()
    given = await receive(bench, topics=asked)

    assert nothing["messages"] == []
    assert given["messages"] == [[1, 0, 0, 1, 1]], "it was not given to who had gone"
