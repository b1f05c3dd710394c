"""Dead letters of simple consumers, and what a group's settings mean to its receivers (R34)."""

import asyncio
import os
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.support.http.turns import turn
from tests.support.service.fakes import Bench, a_view, until
from tests.support.service.receipts import handles, offset_row, receive
from tests.support.service.send import Answers
from tests.support.service.send_back import DEAD, KEY, ORDERS, RETRY, TOPICS, a_bench, send

from paceline.errors import NoPermissionError, ReceiptExpiredError, StorageError
from paceline.records.decode import Record
from paceline.records.encode import encode_batch
from paceline.records.header import Cause, Kind, pack_source
from paceline.types import ConsumerGroupName
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.projections.projections import Projections
from paceline_broker.service.pop import dead_letters as burying

ONE_RETRY = ConsumerGroupSettings(retry_max_times=1)


def dead_letters(bench: Bench) -> list[Record]:
    found: list[Record] = []
    for view in bench.log.views():
        if view.header.topic_id == DEAD and view.header.kind == Kind.NORMAL:
            assert view.header.cause == Cause.DEAD
            found += view.records()
    return found


async def fail(bench: Bench, **more: Any) -> dict[str, Any]:
    """Receive, and let the time run out."""
    answer = await receive(bench, invisible_ms=10_000, **more)
    bench.clock.advance(10_000)
    return answer


def floor(bench: Bench) -> int:
    committed = bench.role.projections.offsets.get("g", KEY)
    assert committed is not None
    return committed.offset


async def test_message_becomes_a_dead_letter_after_its_last_attempt_once() -> None:
    bench = a_bench(settings=ONE_RETRY)
    send(bench)
    end = bench.role.projections.queue_end(KEY)
    attempts = [(await fail(bench))["messages"][0][4] for _ in range(2)]
    last = handles(await fail(bench)) or handles(await fail(bench))

    assert attempts == [1, 2]
    assert last == []
    await until(lambda: floor(bench) == end)
    await fail(bench)
    assert [letter.properties["DLQ_ORIGIN_TOPIC"] for letter in dead_letters(bench)] == [
        "orders"
    ] * end
    assert bench.role.projections.receipts.dying == {}
    assert not bench.role.projections.receipts.is_open("g", KEY)


async def test_receipt_of_a_dead_letter_is_void() -> None:  # S29: never both done and dead
    bench = a_bench(settings=ConsumerGroupSettings(retry_max_times=0))
    send(bench)
    given = handles(await fail(bench))
    await receive(bench, client_id="c2")
    await until(lambda: floor(bench) == bench.role.projections.queue_end(KEY))

    with pytest.raises(ReceiptExpiredError):
        await bench.call("ack", group="g", handles=given)


async def test_acknowledged_meanwhile_is_no_dead_letter() -> None:
    bench = a_bench(settings=ConsumerGroupSettings(retry_max_times=0))
    send(bench)
    given = handles(await fail(bench))
    bench.role.reader.cold.add(1)  # the read of the message takes a turn
    await bench.call("ack", group="g", handles=given)
    await receive(bench, client_id="c2")

    assert dead_letters(bench) == []
    assert floor(bench) == bench.role.projections.queue_end(KEY)


async def test_next_master_finishes_what_a_master_has_begun() -> None:
    """R34: the log ends between the record that withdraws and the dead letter."""
    bench = a_bench()
    position = send(bench)
    await receive(bench)
    item = ["bury", "g", DEAD, [[KEY, 1, pack_source(position, 0)]]]
    projections = bench.role.projections
    projections.receipt_item(item)
    now = bench.clock.unix_ms()
    bench.writer.appender.decided({"items": [item]}, store_unix_ms=now)
    bench.writer.confirm_all()
    bench.role.become_replica()
    bench.service.role_changed()
    restored = Projections()
    for view in bench.log.views():
        restored.apply(view.header, view)
    bench.role.projections = restored

    bench.role.begin_epoch(2)
    bench.service.role_changed()
    await until(lambda: not bench.role.projections.receipts.dying)
    bench.service.role_changed()

    assert len(dead_letters(bench)) == 1
    await bench.service.close()


def with_group_h(bench: Bench) -> int:
    """A second group over the same topics; the id of its dead letters' topic."""
    topics = {**TOPICS, "%DLQ%h": 1}
    groups = {
        group: ConsumerGroupView(group=group, settings=ConsumerGroupSettings(retry_max_times=0))
        for group in (ConsumerGroupName("g"), ConsumerGroupName("h"))
    }
    bench.service.view_changed(replace(a_view(version=3, topics=topics), consumer_groups=groups))
    return len(topics)


async def test_dead_letter_of_another_group_does_not_stand_for_this_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R34: two groups fail on one message; the log ends between the records of the first."""
    bench = a_bench()
    other = with_group_h(bench)
    send(bench)
    await fail(bench)

    def fails(*_: Any, **__: Any) -> None:
        raise StorageError("the disk has gone")

    with monkeypatch.context() as patched:
        patched.setattr(bench.service.send_back, "dead_letter", fails)
        await receive(bench, client_id="c2")
        await until(lambda: bool(bench.role.projections.receipts.dying))
        await bench.service.dead_letters.close()
    row = {"topic_id": ORDERS, "queue": 0, "offset": 1, "delay_level": -1}
    await bench.call("send_back", group="h", messages=[row])
    bench.service.role_changed()

    async with asyncio.timeout(5):
        await until(lambda: floor(bench) == bench.role.projections.queue_end(KEY))
    made = [view.header for view in bench.log.views() if view.header.cause == Cause.DEAD]
    assert sum(header.record_count for header in made if header.topic_id == DEAD) == 2
    assert sum(header.record_count for header in made if header.topic_id == other) == 1
    await bench.service.close()


async def test_wrong_clock_buries_nothing() -> None:  # R29
    bench = a_bench(settings=ConsumerGroupSettings(retry_max_times=0))
    send(bench)
    await fail(bench)
    bench.service.receipts._trust = bench.service.dead_letters._trust = lambda: ClockTrust.DIFFERS

    await receive(bench, client_id="c2")

    assert dead_letters(bench) == []
    assert bench.role.projections.receipts.is_open("g", KEY)


async def test_ordered_receiver_that_waits_behind_a_dead_letter_is_given_the_next() -> None:
    bench = a_bench(settings=ConsumerGroupSettings(retry_max_times=0))
    send(bench, 4)
    await fail(bench, max_messages=1, order=True)

    async with asyncio.timeout(5):
        answer = await receive(bench, client_id="c2", order=True, wait_ms=20_000)

    assert [row[2:4] for row in answer["messages"]] == [[1, 5]]
    assert len(dead_letters(bench)) == 1


async def test_message_that_cannot_be_read_keeps_no_other_from_being_buried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R24: it waits until it is mended; the others do not."""
    monkeypatch.setattr(burying, "_AGAIN_MS", 1)
    bench = a_bench(settings=ConsumerGroupSettings(retry_max_times=0))
    position = send(bench)
    item = ["bury", "g", DEAD, [[KEY, 1, pack_source(position, 0)]]]
    await receive(bench, invisible_ms=10_000)
    projections = bench.role.projections
    projections.receipt_item(item)
    now = bench.service.ledger.log_time_ms()
    bench.writer.appender.decided({"items": [item]}, store_unix_ms=now)
    bench.log.bad.add(position)
    bench.service.role_changed()
    bench.clock.advance(10_000)
    await receive(bench, client_id="c2")

    async with asyncio.timeout(5):
        await until(lambda: len(dead_letters(bench)) == 1)
        assert projections.receipts.dying
        bench.log.bad.clear()
        await until(lambda: len(dead_letters(bench)) == 2)
    assert not projections.receipts.dying
    await bench.service.close()


async def test_message_that_cannot_be_buried_keeps_no_other_from_being_given_again() -> None:
    """R24: it stays the first that is due until it is mended."""
    bench = a_bench(settings=ONE_RETRY)
    bench.log.bad.add(send(bench))
    for _ in range(2):
        await fail(bench)
    await receive(bench)
    await until(lambda: len(dead_letters(bench)) == 1)
    send(bench, 4)
    new = await fail(bench, max_messages=4)
    again = await receive(bench, max_messages=1)
    others = await receive(bench, max_messages=2)

    assert [row[2:] for row in new["messages"]] == [[2, 6, 1]]
    assert [row[2:] for row in again["messages"]] == [[2, 3, 2]]
    assert [row[2:] for row in others["messages"]] == [[3, 5, 2]]
    await bench.service.close()


async def test_poison_blocks_no_other_message() -> None:
    bench = a_bench(settings=ConsumerGroupSettings(retry_max_times=0))
    send(bench, 4)
    await fail(bench, max_messages=2)
    answer = await receive(bench, client_id="c2")

    assert [row[2:4] for row in answer["messages"]] == [[2, 5]]


async def test_retries_of_the_group_are_received_too() -> None:
    bench = a_bench()
    send(bench)
    await receive(bench)

    asked = bench.role.projections.receipts.of_group("g").keys()

    assert {key >> 16 for key in asked} == {ORDERS, RETRY}
    assert {key >> 16 for key in bench.role.projections.receipts.of_group("other")} == set()


async def test_group_that_may_not_consume_is_given_nothing() -> None:
    bench = a_bench(settings=ConsumerGroupSettings(consume_enable=False))
    send(bench)

    with pytest.raises(NoPermissionError):
        await receive(bench)


async def test_orderly_group_is_given_a_queue_in_order() -> None:
    bench = a_bench(settings=ConsumerGroupSettings(consume_message_orderly=True))
    send(bench, 3)
    await receive(bench, max_messages=1)

    assert (await receive(bench, client_id="c2"))["messages"] == []


@pytest.mark.parametrize("is_begun", [False, True])
async def test_large_messages_are_buried_in_steps(is_begun: bool) -> None:
    """R27: a step asks once whether it may append, so the log must not grow much by it."""
    bench = a_bench(settings=ConsumerGroupSettings(retry_max_times=0))
    send(bench)
    for _ in range(24):
        body = os.urandom(1024 * 1024)
        batch = encode_batch([body], topic_id=ORDERS, queue_id=0, born_unix_ms=1)
        bench.service.sender.send(batch, Answers(), 0)
    await turn()
    headers = [view.header for view in bench.log.views() if view.header.topic_id == ORDERS]
    while handles(await receive(bench, invisible_ms=10_000, max_messages=32)):
        pass
    bench.clock.advance(10_000)
    held = [bench.log.end]
    bench.log.on_confirm(lambda _: held.append(bench.log.end))

    if is_begun:
        rows = [
            [KEY, header.base_queue_offset, pack_source(header.physical_offset, 0)]
            for header in headers
            if header.kind == Kind.NORMAL
        ]
        item = ["bury", "g", DEAD, rows]
        bench.role.projections.receipt_item(item)
        now = bench.service.ledger.log_time_ms()
        bench.writer.appender.decided({"items": [item]}, store_unix_ms=now)
        bench.service.role_changed()
    else:
        await receive(bench, client_id="c2")
    await until(lambda: floor(bench) == bench.role.projections.queue_end(KEY))
    await turn()
    await bench.service.close()

    steps = [after - before for before, after in pairwise(held)]
    assert len(dead_letters(bench)) == 26
    assert max(steps) < 10 * 1024 * 1024
    assert len([size for size in steps if size > 1024 * 1024]) == 3


async def test_what_was_a_dead_letter_before_is_finished_by_the_next_master() -> None:
    """The log ends between the record that withdraws and the one that says it is done."""
    bench = a_bench(settings=ConsumerGroupSettings(retry_max_times=0))
    position = send(bench)
    await fail(bench)
    await receive(bench)
    await until(lambda: floor(bench) == bench.role.projections.queue_end(KEY))
    letters = len(dead_letters(bench))
    await bench.call("commit", group="g", offsets=[offset_row(0)], reset=True)
    bench.role.projections.send_backs._resets.clear()  # the letters count
    await receive(bench)
    item = ["bury", "g", DEAD, [[KEY, 1, pack_source(position, 0)]]]
    projections = bench.role.projections
    projections.receipt_item(item)
    now = bench.service.ledger.log_time_ms()
    bench.writer.appender.decided({"items": [item]}, store_unix_ms=now)

    bench.service.role_changed()
    async with asyncio.timeout(5):
        await until(lambda: not projections.receipts.dying)

    assert len(dead_letters(bench)) == letters
    await bench.service.close()
