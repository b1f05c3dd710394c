"""What a master takes of delayed messages, and from when it counts."""

from tests.support.http.door import a_batch
from tests.support.service.delivery import DelayBench

from paceline.errors import BadRequestError, OverloadedError, TooLargeError
from paceline.records.dues import due_of_delay
from paceline.records.header import DELAYED_RECORDS_MAX, Kind
from paceline_broker.controllers.clock_skew import ClockTrust


async def test_delay_above_the_longest_is_refused_and_nothing_stored() -> None:
    bench = DelayBench(timer_max_delay_sec=60)
    now = bench.clock.unix_ms()

    assert isinstance(bench.delay([due_of_delay(121_000)]), BadRequestError)
    assert isinstance(bench.delay([now + 121_000]), BadRequestError)
    assert isinstance(bench.delay([10**18]), BadRequestError)

    assert len(bench.log.batches) == 1
    assert bench.delay([due_of_delay(60_000)]).record_count == 1


async def test_more_delayed_messages_than_one_step_takes_are_refused() -> None:
    """65,535 of them would stop the loop for a tenth of a second."""
    bench = DelayBench()
    dues = [due_of_delay(1000)] * DELAYED_RECORDS_MAX

    assert isinstance(bench.delay([*dues, 0]), TooLargeError)

    assert len(bench.log.batches) == 1
    assert bench.delay(dues).record_count == DELAYED_RECORDS_MAX


async def test_limits_of_what_waits_are_429() -> None:
    bench = DelayBench(timer_pending_max=3, timer_congest_num_each_slot=2)
    bench.delay([due_of_delay(1000)] * 2)

    full_second = bench.delay([due_of_delay(1001)])
    assert isinstance(full_second, OverloadedError)
    assert "timer_congest_num_each_slot" in full_second.message
    bench.delay([due_of_delay(9000)])
    full = bench.delay([due_of_delay(5000)])
    assert isinstance(full, OverloadedError)
    assert "timer_pending_max" in full.message


async def test_delay_counts_by_the_controllers_where_the_clock_was_wrong_from_the_start() -> None:
    """By an hour that is over it would come at once, with the next master (R29)."""
    bench = DelayBench()
    bench.trust, bench.told_unix_ms = ClockTrust.DIFFERS, bench.clock.unix_ms() + 3_600_000

    bench.delay([due_of_delay(700)])

    [batch] = [view for view in bench.log.views() if view.header.kind == Kind.DELAY]
    assert batch.due() == [bench.told_unix_ms + 700]


async def test_one_turn_takes_in_one_large_batch_and_the_next_ones_the_others() -> None:
    bench = DelayBench()
    due = due_of_delay(1000)
    batch = a_batch(
        *[b""] * DELAYED_RECORDS_MAX, kind=Kind.DELAY, due_unix_ms=[due] * DELAYED_RECORDS_MAX
    )
    send = bench.service.sender.send

    assert send(batch, bench.sink, 1) is None
    jobs = [send(batch, bench.sink, number) for number in (2, 3)]

    assert None not in jobs
    assert len(bench.role.projections.timers) == DELAYED_RECORDS_MAX
    bench.finish_work()
    assert len(bench.role.projections.timers) == 3 * DELAYED_RECORDS_MAX
