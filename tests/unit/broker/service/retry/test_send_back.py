"""Sending back: retries with their delays, dead letters, once for each message (R28, R34)."""

from typing import Any

import pytest
from tests.support.service.calls import started
from tests.support.service.fakes import GROUP, Bench
from tests.support.service.send_back import (
    DEAD,
    KEY,
    ORDERS,
    OTHER_RETRY,
    RETRY,
    a_bench,
    a_row,
    made,
    records,
    retried,
    send,
    send_back,
)

from paceline.errors import (
    BadRequestError,
    ForbiddenError,
    LockFencedError,
    NoMasterError,
    NotYetAvailableError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
)
from paceline.records.header import Cause, Kind, pack_source
from paceline.wire import properties as names
from paceline.wire.consumer_groups import ConsumerGroupSettings, RetryPolicy
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.projections.projections import Projections
from paceline_broker.service.retry.source_messages import Source, Wanted


async def test_message_sent_back_waits_for_the_retry_topic_with_all_it_had() -> None:
    bench = a_bench()
    position = send(bench, 3, producer_id=7, base_sequence=0)

    [row] = await send_back(bench, a_row(2))

    assert (row["outcome"], row["reconsume_times"], row["duplicate"]) == ("retry", 1, False)
    assert row["due_unix_ms"] == bench.clock.unix_ms() + 10_000
    [view] = made(bench, Cause.RETRIED)
    header = view.header
    assert (header.kind, header.topic_id, header.queue_id) == (Kind.DELAY, RETRY, 0)
    assert (view.due(), view.sources()) == ([row["due_unix_ms"]], [pack_source(position, 1)])
    [record] = view.records()
    assert (record.body, record.key, record.tag) == (b"body 1", "key-1", "a")
    assert record.born_unix_ms == 1001
    assert record.properties == {
        "colour": "shade 1",
        names.RECONSUME_TIMES: "1",
        names.RETRY_TOPIC: "orders",
        names.ORIGIN_MESSAGE_ID: f"g1:{position:x}:1",
        names.UNIQ_KEY: f"{7:016x}:0:1:0:1",
    }
    assert row["message_id"] == f"g1:{header.physical_offset:x}:0"
    assert bench.role.projections.queue_end(RETRY << 16) == 0


async def test_answer_waits_for_confirm_and_is_unknown_when_the_mastership_ends() -> None:
    """R28"""
    bench = a_bench(is_automatic=False)
    send(bench)

    asking = await started(send_back(bench, a_row(0)))
    assert not asking.done()
    bench.writer.confirm_all()
    assert (await asking)[0][0]["outcome"] == "retry"

    asking = await started(send_back(bench, a_row(1)))
    bench.writer.fence()
    with pytest.raises(OutcomeUnknownError):
        await asking


async def test_message_is_sent_back_once_however_often_it_is_asked() -> None:
    """R34: the first answer was lost, or the queue's next owner failed on it too."""
    bench = a_bench()
    send(bench)
    [first] = await send_back(bench, a_row(0))
    end = bench.writer.end
    bench.clock.advance(60_000)

    [again] = await send_back(bench, a_row(0, delay_level=-1))

    assert again == {**first, "duplicate": True}
    assert bench.writer.end == end


async def test_answer_to_a_duplicate_waits_for_the_first_ones_record() -> None:
    """R30: the first one is in the log, but who knows for how long."""
    bench = a_bench(is_automatic=False)
    send(bench)
    first = await started(send_back(bench, a_row(0)))

    again = await started(send_back(bench, a_row(0)))

    assert not again.done()
    bench.writer.confirm_all()
    assert (await again)[0][0]["message_id"] == (await first)[0][0]["message_id"]


def fail_over(bench: Bench) -> None:
    """The master dies; the next one has what was confirmed, and folds it anew."""
    bench.role.become_replica()
    kept = [view for view in bench.log.views() if view.header.end_offset <= bench.log.confirm]
    bench.log.batches = [bytes(view.raw) for view in kept]
    bench.role.projections = Projections()
    for view in kept:
        bench.role.projections.apply(view.header, view)
    bench.role.begin_epoch(2)
    bench.service.role_changed()


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_who_asks_the_next_master_again_has_one_retry(is_confirmed: bool) -> None:
    """R28, R34: the first answer was lost with its master; its record perhaps too."""
    bench = a_bench(is_automatic=False)
    send(bench)
    first = await started(send_back(bench, a_row(0)))
    if is_confirmed:
        bench.log.confirm_position = bench.writer.end  # and nobody is told
    fail_over(bench)
    with pytest.raises(OutcomeUnknownError):
        await first

    again = await started(send_back(bench, a_row(0)))
    bench.writer.confirm_all()
    [row] = (await again)[0]

    assert row["duplicate"] is is_confirmed
    [view] = made(bench, Cause.RETRIED)
    assert row["message_id"] == f"g1:{view.header.physical_offset:x}:0"
    assert row["due_unix_ms"] == view.due()[0]


async def test_acting_master_sends_nothing_back() -> None:
    """R36: it never appends; consumers keep the message and try again."""
    bench = a_bench()
    send(bench)
    bench.role.become_acting(2)
    end = len(bench.log.batches)

    with pytest.raises(NoMasterError):
        await send_back(bench, a_row(0))

    assert len(bench.log.batches) == end


async def test_group_that_was_reset_may_send_back_again() -> None:
    bench = a_bench()
    send(bench)
    await send_back(bench, a_row(0))
    await bench.call("commit", group="g", reset=True, offsets=[a_row(0)])

    [row] = await send_back(bench, a_row(0))

    assert (row["outcome"], row["duplicate"]) == ("retry", False)
    assert len(made(bench, Cause.RETRIED)) == 2


async def test_each_retry_waits_longer_and_keeps_where_the_message_came_from() -> None:
    bench = a_bench()
    row = retried(bench, times=2, queue=1)

    [answer] = await send_back(bench, row)

    assert answer["reconsume_times"] == 3
    assert answer["due_unix_ms"] == bench.clock.unix_ms() + 60_000
    [view] = made(bench, Cause.RETRIED)
    assert view.header.queue_id == 1
    [record] = view.records()
    assert record.properties == {
        "colour": "red",
        names.RECONSUME_TIMES: "3",
        names.RETRY_TOPIC: "orders",
        names.ORIGIN_MESSAGE_ID: "g1:64:0",
        names.UNIQ_KEY: "unique",
    }


@pytest.mark.parametrize(
    ("level", "delay_ms"), [(1, 1000), (3, 10_000), (18, 7_200_000), (19, 7_200_000)]
)
async def test_level_above_zero_is_the_delay_as_it_is(level: int, delay_ms: int) -> None:
    bench = a_bench()

    [answer] = await send_back(bench, {**retried(bench, times=5), "delay_level": level})

    assert answer["due_unix_ms"] == bench.clock.unix_ms() + delay_ms


async def test_delay_is_the_groups_policy() -> None:
    policy = RetryPolicy(type="EXPONENTIAL")
    bench = a_bench(settings=ConsumerGroupSettings(retry_policy=policy))

    [answer] = await send_back(bench, retried(bench, times=3))

    assert answer["due_unix_ms"] == bench.clock.unix_ms() + 40_000


async def test_delay_counts_from_the_right_time_though_a_clock_ran_ahead() -> None:
    """R29: log time stays where the wrong clock has put it; a retry is not hours late by that."""
    bench = a_bench()
    send(bench, 2)
    bench.service.sender.delays_from_ms()  # the controllers agreed
    now = bench.clock.unix_ms()
    bench.clock.step_wall(3_600_000)
    bench.trust = ClockTrust.DIFFERS
    while_ahead = await send_back(bench, a_row(0))
    bench.clock.step_wall(-3_600_000)
    bench.trust = ClockTrust.AGREES
    after = await send_back(bench, a_row(1), a_row(2, delay_level=1))

    due = [row["due_unix_ms"] - now for row in while_ahead + after]
    assert due == [10_000, 10_000, 1_000]
    stamps = [view.header.store_unix_ms for view in made(bench, Cause.RETRIED)]
    assert stamps == [now + 3_600_000] * len(stamps), "R29: the log's time never goes back"


async def test_message_without_an_attempt_left_is_a_dead_letter() -> None:
    bench = a_bench()
    row = retried(bench, times=16)

    [answer] = await send_back(bench, row)

    assert (answer["outcome"], answer["reconsume_times"]) == ("dead", 16)
    [view] = made(bench, Cause.DEAD)
    assert (view.header.kind, view.header.topic_id) == (Kind.NORMAL, DEAD)
    [record] = view.records()
    assert record.body == b"again"
    assert record.properties == {
        "colour": "red",
        names.RECONSUME_TIMES: "16",
        names.RETRY_TOPIC: "orders",
        names.ORIGIN_MESSAGE_ID: "g1:64:0",
        names.UNIQ_KEY: "unique",
        names.DLQ_ORIGIN_TOPIC: "orders",
        names.DLQ_ORIGIN_MESSAGE_ID: "g1:64:0",
    }
    assert bench.role.projections.queue_end(DEAD << 16) == 1
    [again] = await send_back(bench, row)
    assert again == {**answer, "duplicate": True}


async def test_maximum_of_the_group_and_of_the_request() -> None:
    bench = a_bench(settings=ConsumerGroupSettings(retry_max_times=2))
    rows = [retried(bench, times=1, offset=0), retried(bench, times=2, offset=1)]

    assert [row["outcome"] for row in await send_back(bench, *rows)] == ["retry", "dead"]
    more = retried(bench, times=2, offset=2)
    assert (await send_back(bench, more, max_reconsume_times=3))[0]["outcome"] == "retry"
    send(bench)
    assert (await send_back(bench, a_row(1), max_reconsume_times=0))[0]["outcome"] == "dead"


async def test_negative_level_is_death_at_once() -> None:
    bench = a_bench()
    send(bench)

    [answer] = await send_back(bench, a_row(0, delay_level=-1))

    assert answer["outcome"] == "dead"
    assert not made(bench, Cause.RETRIED)


async def test_many_messages_ride_in_one_batch_for_each_target() -> None:
    bench = a_bench()
    send(bench, 4)
    rows = [a_row(offset) for offset in (4, 1, 3)] + [a_row(2, delay_level=-1)]

    answers = await send_back(bench, *rows)

    assert [row["outcome"] for row in answers] == ["retry", "retry", "retry", "dead"]
    [view] = made(bench, Cause.RETRIED)
    assert [record.body for record in view.records()] == [b"body 3", b"body 0", b"body 2"]
    place = f"g1:{view.header.physical_offset:x}:"
    assert [row["message_id"] for row in answers[:3]] == [place + "0", place + "1", place + "2"]


async def test_that_property_of_a_client_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gets rid of a group's messages or keeps them by a count in an old log."""
    monkeypatch.setattr(
        "paceline_broker.service.produce.send.rows_check", lambda header, rights: None
    )
    send(
        bench := a_bench(),
        properties=[{names.RECONSUME_TIMES: "99", names.ORIGIN_MESSAGE_ID: "forged"}],
    )

    [answer] = await send_back(bench, a_row(1))

    assert (answer["outcome"], answer["reconsume_times"]) == ("retry", 1)
    [record] = records(made(bench, Cause.RETRIED))
    assert record.properties[names.ORIGIN_MESSAGE_ID] != "forged"


async def test_a_retry_keeps_the_unique_key_that_a_client_gave() -> None:
    send(bench := a_bench(), properties=[{names.UNIQ_KEY: "01ab"}])

    await send_back(bench, a_row(1))

    [record] = records(made(bench, Cause.RETRIED))
    assert record.properties[names.UNIQ_KEY] == "01ab"


async def test_properties_at_the_limit_get_the_systems_beside_them() -> None:
    bench = a_bench()
    send(bench, properties=[{"p": "x" * 32_750}])

    [answer] = await send_back(bench, a_row(1))

    assert answer["outcome"] == "retry"
    [record] = records(made(bench, Cause.RETRIED))
    assert len(record.properties["p"]) == 32_750


async def test_owner_of_before_does_not_bring_back_what_its_successor_was_done_with() -> None:
    """S29: a frozen consumer fails on a message that another one has processed since."""
    bench = a_bench()
    send(bench, 2)
    await bench.call("commit", group="g", offsets=[a_row(1)])

    rows = await send_back(bench, a_row(0), a_row(1), only_uncommitted=True)

    assert [row["outcome"] for row in rows] == ["passed", "retry"]
    assert rows[0]["message_id"] is None
    assert (await send_back(bench, a_row(0)))[0]["outcome"] == "retry", "who commits first may"


async def test_lost_lock_refuses_as_commits_are_refused() -> None:
    """R33, INV-11"""
    bench = a_bench()
    send(bench)
    queue = {"topic_id": ORDERS, "queue": 0}
    lock = await bench.call("lock", group="g", client_id="a", queues=[queue])
    token = lock["queues"][0]["token"]

    with pytest.raises(LockFencedError):
        await send_back(bench, a_row(0))
    with pytest.raises(LockFencedError):
        await send_back(bench, a_row(0, token=[token[0], token[1] + 1]))
    assert not made(bench, Cause.RETRIED)
    assert (await send_back(bench, a_row(0, token=token)))[0]["outcome"] == "retry"


async def test_deleted_and_future_messages_are_refused_one_by_one() -> None:
    bench = a_bench()
    position = send(bench)
    bench.role.projections.consume_queues.drop_below(position)

    rows = await send_back(bench, a_row(0), a_row(1), a_row(2))

    assert [row["code"] for row in rows] == ["OFFSET_OUT_OF_RANGE", None, "NOT_YET_AVAILABLE"]
    with pytest.raises(OffsetOutOfRangeError):
        await send_back(bench, a_row(0))
    with pytest.raises(NotYetAvailableError):
        await send_back(bench, a_row(7))


async def test_each_message_is_told_its_own_reason_when_none_is_taken() -> None:
    """Who is only to wait must not hear that its message is gone: it would give it up."""
    bench = a_bench()
    position = send(bench)
    bench.role.projections.consume_queues.drop_below(position)

    rows = await send_back(bench, a_row(0), a_row(2), a_row(3))

    assert [row["code"] for row in rows] == ["OFFSET_OUT_OF_RANGE", *["NOT_YET_AVAILABLE"] * 2]
    with pytest.raises(NotYetAvailableError):
        await send_back(bench, a_row(2), a_row(3))


async def test_damaged_message_is_not_sent_back() -> None:
    """R24"""
    bench = a_bench()
    position = send(bench)
    bench.log.bad.add(position)

    with pytest.raises(NotYetAvailableError):
        await send_back(bench, a_row(1))
    assert not made(bench, Cause.RETRIED)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (a_row(0, topic_id=DEAD), BadRequestError),
        (a_row(0, topic_id=OTHER_RETRY), ForbiddenError),
        (a_row(-1), BadRequestError),
        (a_row(0, delay_level=-2), BadRequestError),
        (a_row(0, delay_level=1.5), BadRequestError),
        (a_row(0, more=1), BadRequestError),
    ],
)
async def test_bad_rows_are_refused_and_nothing_is_stored(
    row: dict[str, Any], error: type[Exception]
) -> None:
    bench = a_bench()
    send(bench)
    end = bench.writer.end

    with pytest.raises(error):
        await send_back(bench, row)

    assert bench.writer.end == end


async def test_message_named_twice_is_refused() -> None:
    bench = a_bench()
    send(bench)

    with pytest.raises(BadRequestError):
        await send_back(bench, a_row(0), a_row(0, delay_level=3))


async def test_dead_letters_of_other_services_are_made_once() -> None:
    """What receipts and ordered consumers use: within a step of theirs."""
    bench = a_bench()
    send(bench, 2)
    service = bench.service.send_back
    await service.ensure("g")
    found = await bench.service.sources.read([Wanted(KEY, 1), Wanted(KEY, 2)])
    sources = [source for source in found if isinstance(source, Source)]

    for _ in range(2):
        service.dead_letter(
            bench.writer,
            bench.role.projections,
            "g",
            sources,
            store_unix_ms=bench.service.ledger.log_time_ms(),
        )

    assert [record.body for record in records(made(bench, Cause.DEAD))] == [b"body 0", b"body 1"]
    assert bench.service.counters.dead_letters == 2
    assert GROUP == "g1"
