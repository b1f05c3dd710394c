"""Receiving by receipt: what a master gives whom, when, and what its receipts are worth (POP)."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from tests.support.http.turns import turn
from tests.support.service.calls import started
from tests.support.service.fakes import Bench, a_view, replayed
from tests.support.service.receipts import handles, lowest, offset_row, receive, send

from paceline.errors import (
    BadRequestError,
    InvalidReceiptHandleError,
    NotMasterError,
    OutcomeUnknownError,
    ReceiptExpiredError,
    TooLargeError,
)
from paceline.records.decode import BatchView
from paceline.records.header import Kind
from paceline.wire.receipts import Receipt, format_handle
from paceline_broker.appender import Appender
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.service.pop import operations


async def test_message_is_given_once_until_its_time_is_over_then_again() -> None:
    bench = Bench()
    send(bench, 3)

    first = await receive(bench, max_messages=2, invisible_ms=30_000)
    second = await receive(bench, client_id="c2", invisible_ms=30_000)
    nothing = await receive(bench, client_id="c3")
    bench.clock.advance(29_999)
    early = await receive(bench, client_id="c3")
    bench.clock.advance(1)
    again = await receive(bench, client_id="c3")

    assert first["messages"] == [[1, 0, 0, 2, 1]]
    assert second["messages"] == [[1, 0, 2, 3, 1]]
    assert nothing["messages"] == early["messages"] == []
    assert [row[2:] for row in again["messages"]] == [[0, 2, 2], [2, 3, 2]]


async def test_nothing_is_handed_out_before_its_grant_is_confirmed() -> None:
    """R28: else two masters give one message inside its invisible time."""
    bench = Bench(is_automatic=False)
    send(bench, 1)

    asking = await started(receive(bench))
    assert not asking.done()
    other = await started(receive(bench, client_id="c2"))
    bench.writer.confirm_all()

    assert (await asking)[0]["messages"] == [[1, 0, 0, 1, 1]]
    assert (await other)[0]["messages"] == []


async def test_requests_of_one_turn_are_one_record() -> None:
    bench = Bench()
    send(bench, 10)
    before = len(bench.log.batches)

    answers = await asyncio.gather(
        *(receive(bench, client_id=f"c{number}", max_messages=2) for number in range(4))
    )

    given = sorted(row[2] for answer in answers for row in answer["messages"])
    assert given == [0, 2, 4, 6]
    assert [view.header.kind for view in bench.log.views()[before:]] == [Kind.POP]


async def test_acknowledged_is_never_given_again_and_the_offset_follows_the_lowest_open() -> None:
    bench = Bench()
    send(bench, 3)
    given = handles(await receive(bench, invisible_ms=10_000))

    await bench.call("ack", group="g", handles=[given[1]])
    assert lowest(bench) == 0
    await bench.call("ack", group="g", handles=[given[0]])
    assert lowest(bench) == 2
    bench.clock.advance(10_000)
    again = await receive(bench)

    assert again["messages"] == [[1, 0, 2, 3, 2]]


async def test_ack_is_idempotent_for_its_handle_and_void_for_an_older_one() -> None:
    bench = Bench()
    send(bench, 1)
    [old] = handles(await receive(bench, invisible_ms=10_000))
    bench.clock.advance(10_000)
    [new] = handles(await receive(bench, client_id="c2"))

    with pytest.raises(ReceiptExpiredError):
        await bench.call("ack", group="g", handles=[old])
    assert lowest(bench) == 0, "a void handle has no effect"
    for _ in range(2):
        answer = await bench.call("ack", group="g", handles=[new])
        assert answer["receipts"] == [{"code": None}]
    with pytest.raises(ReceiptExpiredError):
        await bench.call("ack", group="g", handles=[old])


async def test_ack_counts_after_its_time_while_nobody_else_was_given_the_message() -> None:
    bench = Bench()
    send(bench, 1)
    given = handles(await receive(bench, invisible_ms=10_000))
    bench.clock.advance(60_000)

    await bench.call("ack", group="g", handles=given)

    assert (await receive(bench))["messages"] == []
    assert lowest(bench) == 1


async def test_change_gives_a_new_handle_and_voids_the_old_one() -> None:
    bench = Bench()
    send(bench, 1)
    [old] = handles(await receive(bench, invisible_ms=10_000))

    changed = await bench.call("invisible", group="g", handles=[old], invisible_ms=60_000)
    [row] = changed["receipts"]
    bench.clock.advance(10_000)
    nothing = await receive(bench, client_id="c2")

    assert nothing["messages"] == []
    assert row["invisible_until_unix_ms"] == bench.clock.unix_ms() + 50_000
    with pytest.raises(ReceiptExpiredError):
        await bench.call("ack", group="g", handles=[old])
    await bench.call("ack", group="g", handles=[row["handle"]])
    assert lowest(bench) == 1


async def test_message_given_back_unseen_comes_at_once_and_costs_no_attempt() -> None:
    bench = Bench()
    send(bench, 1)
    given = handles(await receive(bench))
    await bench.call("invisible", group="g", handles=given, invisible_ms=0, unseen=True)

    again = await receive(bench, client_id="c2")

    assert again["messages"] == [[1, 0, 0, 1, 1]]


async def test_forged_foreign_and_unknown_handles_are_refused_without_effect() -> None:
    bench = Bench()
    send(bench, 2)
    answer = await receive(bench, max_messages=1)
    [good] = handles(answer)
    receipt = Receipt("g1", 1, 0, 0, answer["position"], 1)
    never_given = format_handle(receipt._replace(offset=1), "g")
    before = bench.log.end

    for bad in ("", "x" * 300, "AAAA", good[:-1], good + "A", "é", good.swapcase()):
        with pytest.raises(InvalidReceiptHandleError):
            await bench.call("ack", group="g", handles=[bad])
    for no_text in (7, None):
        with pytest.raises(BadRequestError, match="expected str"):
            await bench.call("ack", group="g", handles=[no_text])
    with pytest.raises(InvalidReceiptHandleError):
        await bench.call("ack", group="other", handles=[good])
    with pytest.raises(InvalidReceiptHandleError):
        await bench.call("ack", group="g", handles=[never_given])
    for changed in (receipt._replace(position=0), receipt._replace(attempt=2)):
        stale = format_handle(changed, "g")
        with pytest.raises(ReceiptExpiredError):
            await bench.call("ack", group="g", handles=[stale])
    elsewhere = format_handle(receipt._replace(broker_group="g2"), "g")
    with pytest.raises(BadRequestError, match="broker group g2"):
        await bench.call("ack", group="g", handles=[elsewhere])

    assert bench.log.end == before, "nothing was decided"
    assert lowest(bench) == 0


async def test_batch_ack_answers_each_handle() -> None:
    bench = Bench()
    send(bench, 3)
    given = handles(await receive(bench, invisible_ms=10_000))
    bench.clock.advance(10_000)
    [fresh] = handles(await receive(bench, client_id="c2", max_messages=1))

    answer = await bench.call("ack", group="g", handles=[*given, fresh, fresh])

    codes = [row["code"] for row in answer["receipts"]]
    assert codes == ["RECEIPT_EXPIRED", None, None, None, None]
    assert lowest(bench) == 3


async def test_lag_tells_what_is_in_flight() -> None:
    bench = Bench()
    send(bench, 5)
    given = handles(await receive(bench, max_messages=3))
    await bench.call("ack", group="g", handles=given[:1])

    lag = await bench.call("lag", group="g")

    assert [(row["lag"], row["in_flight"]) for row in lag["queues"] if row["end"]] == [(4, 2)]


async def test_wrong_clock_gives_nothing_anew() -> None:
    """R29: the controllers say that this clock is wrong; new messages still go out."""
    bench = Bench()
    bench.service.receipts._trust = lambda: ClockTrust.DIFFERS
    send(bench, 1)
    await receive(bench, invisible_ms=10_000)
    bench.clock.advance(3_600_000)
    send(bench, 1)

    answer = await receive(bench, client_id="c2")

    assert answer["messages"] == [[1, 0, 1, 2, 1]]


async def test_redelivered_come_first_but_leave_half_to_new_ones() -> None:
    bench = Bench()
    send(bench, 8)
    await receive(bench, max_messages=8, invisible_ms=10_000)
    bench.clock.advance(10_000)
    send(bench, 8)

    answer = await receive(bench, max_messages=8)

    assert answer["messages"] == [[1, 0, 0, 4, 2], [1, 0, 8, 12, 1]]


async def test_queues_take_turns() -> None:
    bench = Bench()
    for queue_id in range(4):
        send(bench, 100, queue_id)

    answers = [await receive(bench) for _ in range(4)]

    assert sorted(answer["messages"][0][1] for answer in answers) == [0, 1, 2, 3]


async def test_ordered_receiver_is_given_a_queue_only_after_the_last_ones_are_done() -> None:
    bench = Bench()
    send(bench, 4)
    first = await receive(bench, max_messages=2, order=True, invisible_ms=10_000)
    given = handles(first)

    assert (await receive(bench, client_id="c2", order=True))["messages"] == []
    await bench.call("ack", group="g", handles=given[1:])
    bench.clock.advance(10_000)
    again = await receive(bench, client_id="c2", order=True)
    assert again["messages"] == [[1, 0, 0, 1, 2]], "the lowest that is open, alone"
    await bench.call("ack", group="g", handles=handles(again))

    assert (await receive(bench, order=True))["messages"] == [[1, 0, 2, 4, 1]]


async def test_in_flight_messages_of_a_queue_are_bounded() -> None:
    bench = Bench(pop_inflight_message_threshold=5)
    send(bench, 10)

    given = await receive(bench)
    assert given["messages"] == [[1, 0, 0, 5, 1]]
    assert (await receive(bench))["messages"] == []
    await bench.call("ack", group="g", handles=handles(given)[:2])

    assert (await receive(bench))["messages"] == [[1, 0, 5, 7, 1]]


async def test_group_begins_where_it_says_and_goes_on_where_it_has_committed() -> None:
    bench = Bench()
    send(bench, 5)
    await bench.call("commit", group="pulled", offsets=[offset_row(3)])

    last = await receive(bench, group="late", start="last")
    pulled = await receive(bench, group="pulled", start="last")

    assert last["messages"] == []
    assert pulled["messages"] == [[1, 0, 3, 5, 1]]


async def test_a_group_that_begins_last_misses_nothing_of_a_queue_that_comes_later() -> None:
    bench = Bench()
    send(bench, 2)
    assert (await receive(bench, start="last"))["messages"] == []
    bench.service.view_changed(a_view(version=2, topics={"orders": 5}))
    send(bench, 1, queue_id=4)

    later = await receive(bench, start="last")

    assert later["messages"] == [[1, 4, 0, 1, 1]]


async def test_what_retention_has_deleted_is_passed_over() -> None:
    bench = Bench()
    for _ in range(4):
        send(bench, 1)
        await turn()
    await receive(bench, max_messages=2, invisible_ms=10_000)
    await turn()
    queue = bench.role.projections.consume_queues.get(1 << 16)
    assert queue is not None
    queue.drop_below(queue.index(3, 4)[1][0])
    bench.clock.advance(10_000)

    answer = await receive(bench)

    assert answer["messages"] == [[1, 0, 3, 4, 1]]
    assert lowest(bench) == 3


async def test_state_of_a_master_is_what_its_records_fold_to() -> None:
    """INV-9: a master folds items as it decides them, others the whole record."""
    bench = Bench()
    for queue_id in range(3):
        send(bench, 10, queue_id)
    given: list[str] = []
    for number in range(6):
        answer = await receive(
            bench, client_id=f"c{number % 2}", max_messages=4, invisible_ms=10_000
        )
        given += handles(answer)
        with suppress(ReceiptExpiredError):
            await bench.call("ack", group="g", handles=given[number::3])
        with suppress(ReceiptExpiredError):
            await bench.call("invisible", group="g", handles=given[-1:], invisible_ms=20_000)
        bench.clock.advance(4_000)

    assert replayed(bench) == bench.role.projections.snapshot()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_messages", 0),
        ("max_messages", 33),
        ("invisible_ms", 9_999),
        ("invisible_ms", 12 * 3600 * 1000 + 1),
        ("wait_ms", 20_001),
        ("start", "middle"),
        ("order", 1),
        ("topics", []),
        ("topics", "orders"),
        ("client_id", ""),
        ("surprise", 1),
    ],
)
async def test_bad_input_of_receive_is_refused_by_name(field: str, value: Any) -> None:
    bench = Bench()
    with pytest.raises(BadRequestError) as caught:
        await receive(bench, **{field: value})
    assert caught.value.details["field"] == field


async def given_out(bench: Bench, count: int, group: str, queue_id: int = 0) -> list[Receipt]:
    """Messages that are out by one record, without their being sent."""
    key = (1 << 16) + queue_id
    projections, writer = bench.role.projections, bench.writer
    position, now = int(writer.end), bench.clock.unix_ms()
    rows = [[key, 0, count, 1]]
    items: list[list[Any]] = [
        ["start", group, [[key, 0]]],
        ["give", group, "c", now + 30_000, rows],
    ]
    for item in items:
        projections.receipt_item(item)
    writer.appender.decided({"items": items}, store_unix_ms=now)
    return [Receipt("g1", 1, queue_id, offset, position, 1) for offset in range(count)]


async def test_what_is_asked_at_once_is_in_as_many_records_as_it_needs() -> None:
    """R28: a record that is too large would leave the state ahead of the log."""
    bench = Bench()
    group = "g" * 120
    receipts = await given_out(bench, 29 * 1024, group)
    before = len(bench.log.batches)

    answers = await asyncio.gather(
        *(
            bench.service.receipts.change(group, receipts[at::29], 60_000, is_unseen=False)
            for at in range(29)
        )
    )

    assert all(settled.code is None for answer in answers for settled in answer)
    made = bench.log.batches[before:]
    assert len(made) > 1
    assert max(map(len, made)) < 1.5 * 1024 * 1024
    assert replayed(bench) == bench.role.projections.snapshot()


async def test_group_begins_on_its_queues_in_as_many_turns_as_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "TURN_BYTES_MAX", 200)
    bench = Bench()
    for queue_id in range(4):
        send(bench, 1, queue_id)

    answers = [await receive(bench, max_messages=1) for _ in range(4)]

    assert sorted(row[1] for answer in answers for row in answer["messages"]) == [0, 1, 2, 3]
    assert max(map(len, bench.log.batches)) < 600


async def test_deleted_messages_in_flight_are_dropped_as_ranges() -> None:
    bench = Bench()
    for _ in range(2):
        send(bench, 30)
        await turn()
    await receive(bench)
    await turn()
    queue = bench.role.projections.consume_queues.get(1 << 16)
    assert queue is not None
    queue.drop_below(queue.index(1, 2)[1][0])

    await receive(bench)

    items = [item for view in pops(bench) for item in view.document()["items"]]
    assert ["drop", "g", [[1 << 16, 0, 30]]] in items


def pops(bench: Bench) -> list[BatchView]:
    return [view for view in bench.log.views() if view.header.kind == Kind.POP]


@pytest.mark.parametrize("error", [TooLargeError("too large"), IndexError("a fault")])
async def test_mastership_ends_when_what_was_decided_cannot_be_appended(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """R28: a state that is ahead of its log answers nobody."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    bench = Bench()
    send(bench, 1)
    monkeypatch.setattr(Appender, "decided", fail)

    with pytest.raises(OutcomeUnknownError):
        async with asyncio.timeout(5):
            await receive(bench)

    assert bench.writer.abandoned is not None
    with pytest.raises(NotMasterError):
        await receive(bench, client_id="c2")
