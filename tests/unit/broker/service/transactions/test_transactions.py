"""Transactions at the broker: ends decided in log order, checks, and what is written again."""

import asyncio
from typing import Any

import pytest
from tests.support.askers import ANYBODY
from tests.support.http.door import a_batch
from tests.support.http.turns import turn
from tests.support.service.calls import started
from tests.support.service.fakes import a_view, until
from tests.support.service.send import Answers
from tests.support.service.transactions import INTERVAL_MS, TIME_OUT_MS, HalfBench, polled

from paceline.errors import (
    BadRequestError,
    ForbiddenError,
    NoMasterError,
    NotYetAvailableError,
    OverloadedError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from paceline.records.header import Cause, Kind
from paceline.wire.message_ids import OffsetMessageId, make_handle
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.projections.transactions import Ended


async def test_a_commit_puts_the_message_into_its_queue_once() -> None:
    """R34: the same end again answers the same and stores nothing."""
    bench = HalfBench()
    [text] = bench.half(b"pay", keys=["k"], tags=["t"], producer_id=7, base_sequence=0)
    assert bench.bodies() == []

    assert await bench.end(commit=[text]) == ["COMMITTED"]
    assert await bench.end(commit=[text]) == ["COMMITTED"]

    assert bench.bodies() == [b"pay"]
    view = bench.log.views()[-1]
    assert (view.header.cause, view.header.producer_id) == (Cause.COMMITTED, 0)
    assert (view.keys(), view.tags()) == (["k"], ["t"])
    assert view.properties()[0]["UNIQ_KEY"] == "0000000000000007:0:1:0:0"


async def test_a_contradicting_end_is_refused_without_effect() -> None:
    bench = HalfBench()
    first, second = bench.half(b"a", b"b")
    assert await bench.end(commit=[first], rollback=[second]) == ["COMMITTED", "ROLLED_BACK"]
    end = bench.log.end

    codes = await bench.end(commit=[second], rollback=[first])

    assert codes == ["TRANSACTION_ENDED", "TRANSACTION_ENDED"]
    with pytest.raises(TransactionEndedError) as caught:
        await bench.ends.end_one(first, Ended.ROLLED_BACK, asker=ANYBODY)
    assert caught.value.details["outcome"] == "COMMITTED"
    assert bench.log.end == end
    assert bench.bodies() == [b"a"]


async def test_ends_of_one_turn_are_one_batch_a_queue_and_one_record() -> None:
    bench = HalfBench()
    ids = bench.half(*[b"%d" % number for number in range(6)])
    other = bench.half(b"other", queue_id=1)
    before = len(bench.log.batches)

    answers = await asyncio.gather(
        *(bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY) for text in [*ids[:4], *other]),
        *(bench.ends.end_one(text, Ended.ROLLED_BACK, asker=ANYBODY) for text in ids[4:]),
    )

    assert [row["outcome"] for row in answers] == ["COMMITTED"] * 5 + ["ROLLED_BACK"] * 2
    assert bench.kinds()[before:] == [
        (Kind.NORMAL, Cause.COMMITTED),
        (Kind.NORMAL, Cause.COMMITTED),
        (Kind.OPERATION, 0),
    ]
    assert bench.bodies() == [b"0", b"1", b"2", b"3"]


async def test_commit_and_rollback_that_race_are_decided_in_order_of_arrival() -> None:
    bench = HalfBench()
    [text] = bench.half(b"a")

    outcomes: list[Any] = await asyncio.gather(
        bench.ends.end_one(text, Ended.ROLLED_BACK, asker=ANYBODY),
        bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY),
        return_exceptions=True,
    )

    assert [type(outcome) for outcome in outcomes] == [dict, TransactionEndedError]
    assert bench.bodies() == []


async def test_an_end_is_answered_when_confirm_has_passed_it() -> None:
    """R28."""
    bench = HalfBench(is_automatic=False)
    [text] = bench.half(b"a")

    asking = await started(bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY))
    await until(lambda: bench.bodies() == [b"a"])
    again = await started(bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY))
    assert not asking.done()
    assert not again.done(), "it tells of what is not confirmed"
    bench.writer.confirm_all()

    await asking
    await again


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("garbage", BadRequestError),
        ("tx.g1:60:0.00000000", BadRequestError),
        (make_handle("recall", OffsetMessageId("g1", 96, 0)), BadRequestError),
        (make_handle("tx", OffsetMessageId("g2", 96, 0)), TransactionNotFoundError),
        (make_handle("tx", OffsetMessageId("g1", 0, 0)), TransactionNotFoundError),
        (make_handle("tx", OffsetMessageId("g1", 1 << 40, 0)), TransactionNotFoundError),
    ],
)
async def test_forged_ids_are_refused_without_effect(text: str, error: type[Exception]) -> None:
    bench = HalfBench()
    bench.half(b"a")
    end = bench.log.end
    with pytest.raises(error):
        await bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY)

    assert bench.log.end == end


async def test_an_unknown_id_is_unknown_only_after_a_read_round() -> None:
    """R4: a deposed master knows not what a later one has stored."""
    bench = HalfBench()
    bench.writer.rounds_blocked = True

    asking = await started(bench.ends.end_one(bench.id_of(4096), Ended.COMMITTED, asker=ANYBODY))
    await until(lambda: bench.writer.rounds == 1)
    assert not asking.done()
    bench.writer.end_rounds()

    with pytest.raises(TransactionNotFoundError):
        await asking


async def test_only_the_master_of_an_open_epoch_ends_anything() -> None:
    """R3, R36."""
    bench = HalfBench()
    [text] = bench.half(b"a")
    bench.writer.is_open = False
    with pytest.raises(NotYetAvailableError):
        await bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY)

    bench.role.become_acting(2)
    with pytest.raises(NoMasterError):
        await bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY)
    assert bench.bodies() == []


async def test_a_topic_that_is_deleted_takes_no_commit_but_a_rollback() -> None:
    """R35: also before the deletion is in the log."""
    bench = HalfBench()
    [text] = bench.half(b"a")
    bench.service.view_changed(a_view(version=3, topics={}))

    with pytest.raises(TransactionEndedError, match="topic was deleted"):
        await bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY)
    answer = await bench.ends.end_one(text, Ended.ROLLED_BACK, asker=ANYBODY)

    assert answer["outcome"] == "ROLLED_BACK"


async def test_a_topic_without_a_queue_here_for_now_is_not_a_deleted_one() -> None:
    """A definite refusal would have the producer give its commit up."""
    bench = HalfBench()
    [text] = bench.half(b"a")
    bench.service.view_changed(a_view(version=3, topics={"orders": 0}))

    with pytest.raises(NotYetAvailableError):
        await bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY)
    bench.service.view_changed(a_view(version=4))
    await bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY)

    assert bench.bodies() == [b"a"]


async def test_halves_are_refused_beyond_the_limit_without_a_group_or_where_none_are_taken() -> (
    None
):
    bench, sink = HalfBench(open_halves_max=2), Answers()
    bench.half(b"a", b"b")
    group = [{"PGROUP": "payers"}]
    full = a_batch(b"c", kind=Kind.HALF, properties=group)

    bench.service.sender.send(full, sink, 1)
    assert isinstance(sink.last, OverloadedError)
    bench.service.sender.send(a_batch(b"c", kind=Kind.HALF), sink, 2)
    assert "PGROUP" in sink.last.message
    long = [{**group[0], "x": "y" * 32_000}]
    bench.service.sender.send(a_batch(b"c", kind=Kind.HALF, properties=long), sink, 3)
    assert "at most" in sink.last.message

    closed = HalfBench(reject_transaction_message=True)
    closed.service.sender.send(full, sink, 4)
    assert isinstance(sink.last, ForbiddenError)


# -- checks ---------------------------------------------------------------------------------------


async def test_a_half_that_is_old_enough_is_checked_and_again_each_interval() -> None:
    bench = HalfBench()
    [text] = bench.half(b"a", keys=["k"])
    bench.clock.advance(TIME_OUT_MS - 1)
    first = await polled(bench)
    await bench.checks.look()
    await turn()
    assert not first.done(), "immunity"
    bench.clock.advance(1)
    await bench.checks.look()

    [[question]] = await first
    assert (question.transaction_id, question.checks) == (text, 1)
    assert (question.topic, question.body, question.key) == ("orders", "a", "k")
    second = await polled(bench)
    bench.clock.advance(INTERVAL_MS - 1)
    await bench.checks.look()
    assert not second.done()
    bench.clock.advance(1)
    await bench.checks.look()

    [[question]] = await second
    assert question.checks == 2
    assert await bench.end(rollback=[text]) == ["ROLLED_BACK"]
    bench.clock.advance(INTERVAL_MS)
    third = await polled(bench)
    await bench.checks.look()
    assert not third.done(), "it has ended"
    third.cancel()


async def test_a_half_may_ask_for_another_immunity() -> None:
    bench = HalfBench()
    bench.half(b"a", properties={"PGROUP": "payers", "CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
    asking = await polled(bench)
    bench.clock.advance(59_000)
    await bench.checks.look()
    assert not asking.done()
    bench.clock.advance(1_000)
    await bench.checks.look()

    assert len((await asking)[0]) == 1


async def test_the_question_leaves_when_its_record_is_confirmed() -> None:
    """R28: the count survives a failover."""
    bench = HalfBench(is_automatic=False)
    bench.half(b"a")
    asking = await polled(bench)
    bench.clock.advance(TIME_OUT_MS)
    looking = await started(bench.checks.look())
    await turn()
    assert bench.kinds()[-1] == (Kind.OPERATION, 0)
    assert not asking.done()

    bench.writer.confirm_all()

    await looking
    assert len((await asking)[0]) == 1


async def test_any_live_producer_of_the_group_is_asked_and_no_other() -> None:
    bench = HalfBench()
    bench.half(b"a", b"b")
    other = await polled(bench, "others")
    one, two = await polled(bench), await polled(bench)
    bench.clock.advance(TIME_OUT_MS)
    await bench.checks.look()

    [mine], [yours] = await one, await two
    assert sorted(row.body for row in [*mine, *yours]) == ["a", "b"]
    assert (len(mine), len(yours)) == (1, 1)
    assert not other.done()
    other.cancel()


async def test_nobody_there_to_ask_uses_up_no_check_and_who_comes_is_asked() -> None:
    bench = HalfBench()
    [text] = bench.half(b"a")
    for _ in range(20):
        bench.clock.advance(INTERVAL_MS)
        await bench.checks.look()
    assert (await bench.call("transactions"))["transactions"][0]["checks"] == 0

    asking = await polled(bench)
    await bench.checks.look()

    [[question]] = await asking
    assert question.transaction_id == text


async def test_checks_go_on_at_the_next_master_with_their_count() -> None:
    bench = HalfBench()
    bench.half(b"a")
    asking = await polled(bench)
    bench.clock.advance(TIME_OUT_MS)
    await bench.checks.look()
    await asking
    bench.role.become_replica()
    bench.role.begin_epoch(2)
    bench.service.role_changed()

    asking = await polled(bench)
    await bench.checks.look()
    assert not asking.done(), "the interval is that of the log"
    bench.clock.advance(INTERVAL_MS)
    await bench.checks.look()

    [[question]] = await asking
    assert question.checks == 2


@pytest.mark.parametrize("trust", [ClockTrust.DIFFERS, ClockTrust.UNKNOWN])
async def test_a_clock_that_does_not_agree_checks_nothing(trust: ClockTrust) -> None:
    """R29."""
    bench = HalfBench()
    bench.half(b"a")
    bench.trust = trust
    asking = await polled(bench)
    bench.clock.advance(TIME_OUT_MS)
    end = bench.log.end
    await bench.checks.look()

    assert bench.log.end == end
    assert not asking.done()
    asking.cancel()


async def test_after_the_last_check_the_half_goes_to_the_check_max_topic() -> None:
    bench = HalfBench(transaction_check_max=2)
    [text] = bench.half(b"a")
    bench.clock.advance(TIME_OUT_MS)
    for _ in range(2):
        asking = await polled(bench)
        await bench.checks.look()
        assert len((await asking)[0]) == 1
        bench.clock.advance(INTERVAL_MS)
    await bench.checks.look()
    bench.writer.confirm_all()

    assert bench.bodies(2 << 16) == [b"a"]
    view = bench.log.views()[-1]
    assert view.header.cause == Cause.CHECKED_OUT
    properties = view.properties()[0]
    assert (properties["REAL_TOPIC"], properties["TRANSACTION_CHECK_TIMES"]) == ("orders", "2")
    with pytest.raises(TransactionEndedError) as caught:
        await bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY)
    assert caught.value.details["outcome"] == "CHECKED_OUT"
    assert bench.bodies() == []


async def test_an_old_half_that_nobody_can_be_asked_about_is_given_up() -> None:
    bench = HalfBench(transaction_age_ms_max=3600_000)
    bench.half(b"a")
    bench.clock.advance(TIME_OUT_MS)
    await bench.checks.look()
    bench.clock.advance(3600_000)
    await bench.checks.look()

    assert bench.bodies(2 << 16) == [b"a"]


async def test_a_poll_ends_with_the_mastership_and_with_its_time() -> None:
    bench = HalfBench()
    assert await bench.checks.poll("payers", wait_ms=0) == []
    bench.half(b"a")
    await bench.checks.look()
    asking = await polled(bench)
    bench.role.become_replica()
    bench.role.begin_epoch(2)
    bench.service.role_changed()

    assert await asking == [[]]


async def test_an_end_read_under_another_mastership_is_put_off() -> None:
    bench = HalfBench()
    [text] = bench.half(b"a")
    asking = asyncio.gather(bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY))

    def switch() -> None:
        bench.role.become_replica()
        bench.role.begin_epoch(2)

    asyncio.get_running_loop().call_soon(switch)  # after it was read, before it is decided

    with pytest.raises(NotYetAvailableError):
        await asking
    assert bench.bodies() == []


async def test_open_halves_are_listed_and_shown() -> None:
    bench = HalfBench()
    first, second = bench.half(b"a", b"b")
    await bench.end(commit=[first])

    listed = await bench.call("transactions", topic="orders")
    assert listed["open"] == 1
    assert [row["transaction_id"] for row in listed["transactions"]] == [second]
    assert (await bench.ends.show(first))["outcome"] == "COMMITTED"
    with pytest.raises(TransactionNotFoundError):
        await bench.ends.show(bench.id_of(8))
