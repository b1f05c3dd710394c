"""Fetching: confirm as the border, long polls, ranges (R3), cold pages."""

from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench, until
from tests.support.service.fetch import Fetches, fetch, send
from tests.support.service.send import Answers

from paceline.errors import DeadlineError, OverloadedError
from paceline.wire.stream import (
    FETCH_SUGGESTION_SHIFT,
    FRAME_BYTES_MAX,
    FetchCode,
)


async def test_nothing_above_confirm_is_served() -> None:
    """INV-8."""
    bench, sink = Bench(is_automatic=False), Fetches()
    send(bench, count=3)
    border = bench.log.end
    send(bench, count=2)
    bench.writer.confirm_to(border)

    fetch(bench, sink, (0, 0))

    assert (sink.answers[1].parts[0].end, sink.counts()) == (3, 1)


async def test_adjacent_batches_of_one_queue_are_one_view() -> None:
    bench, sink = Bench(), Fetches()
    for queue in (0, 0, 0, 1, 0):
        send(bench, queue)
    bench.writer.confirm_all()

    fetch(bench, sink, (0, 0))

    assert [len(view) for view in sink.answers[1].buffers] == [3 * 136, 136]


async def test_many_small_views_are_joined() -> None:
    bench, sink = Bench(), Fetches()
    for _ in range(100):
        send(bench, 0)
        send(bench, 1)
    bench.writer.confirm_all()

    fetch(bench, sink, (0, 0))

    assert (len(sink.answers[1].buffers), sink.counts()) == (1, 100)


async def test_byte_limits_cut_whole_batches_and_no_queue_starves() -> None:
    bench, sink = Bench(), Fetches()
    for _ in range(20):
        for queue in (0, 1):
            send(bench, queue, size=1000)
    bench.writer.confirm_all()

    offsets, served = [0, 0], [0, 0]
    for number in range(10):
        fetch(bench, sink, (0, offsets[0]), (1, offsets[1]), request_id=number, max_bytes=2500)
        answer = sink.answers[number]
        assert answer.size_bytes <= 2500
        for part in answer.parts:
            batches = part.size // 1120
            offsets[part.queue_id] += batches
            served[part.queue_id] += batches

    assert min(served) > 0, "both queues move on"
    assert sum(served) == 20


async def test_large_batch_comes_alone_within_the_frame() -> None:
    bench, sink = Bench(), Fetches()
    body = b"x" * (4 * 1024 * 1024 - 64)
    bench.service.sender.send(a_batch(body, body, body, body[:-2000]), Answers(), 0)
    bench.writer.confirm_all()

    fetch(bench, sink, *[(queue, 0) for queue in range(4)] * 200, max_bytes=1 << 24)

    answer = sink.answers[1]
    assert len(answer.head()) + answer.size_bytes + 12 <= FRAME_BYTES_MAX
    assert [part.queue_id for part in answer.parts] == [0]


async def test_waiting_fetch_wakes_for_its_queue_only() -> None:
    bench, sink = Bench(), Fetches()
    fetch(bench, sink, (0, 0), wait_ms=60_000, request_id=1)
    fetch(bench, sink, (1, 0), wait_ms=60_000, request_id=2)

    send(bench, 1)
    await until(lambda: 2 in sink.answers)

    assert 1 not in sink.answers
    assert bench.service.fetcher.waiting_count == 1
    bench.service.fetcher.cancel(sink)
    assert bench.service.fetcher.waiting_count == 0


async def test_fetch_that_comes_between_append_and_confirm_is_woken() -> None:
    bench, sink = Bench(is_automatic=False), Fetches()
    send(bench)
    fetch(bench, sink, (0, 0), wait_ms=60_000)
    assert sink.answers == {}

    bench.writer.confirm_all()

    assert sink.counts() == 1


async def test_min_bytes_holds_an_answer_back() -> None:
    bench, sink = Bench(), Fetches()
    fetch(bench, sink, (0, 0), wait_ms=60_000, min_bytes=300)

    send(bench)
    send(bench)
    await until(lambda: bench.log.confirm == bench.log.end)
    assert sink.answers == {}
    send(bench)
    await until(lambda: 1 in sink.answers)

    assert sink.counts() == 3


def suggestions(sink: Fetches, request_id: int = 1) -> list[int]:
    return [part.flags >> FETCH_SUGGESTION_SHIFT for part in sink.answers[request_id].parts]


async def test_what_lies_far_below_confirm_is_answered_with_a_replica_to_read_on_from() -> None:
    bench, sink = Bench(slow_read_bytes=2_000), Fetches()
    for _ in range(10):
        send(bench, size=500)
        send(bench, queue_id=1, size=500)
    bench.writer.confirm_all()

    fetch(bench, sink, (0, 0), (1, 0), (0, 9), request_id=1, max_bytes=600)
    fetch(bench, sink, (0, 9), request_id=2)
    bench.role.become_replica()
    fetch(bench, sink, (0, 0), request_id=3, max_bytes=600)
    fetch(bench, sink, (0, 9), request_id=4)

    assert sorted({*suggestions(sink)} - {0}) in ([2], [3])
    fetch(bench, sink, (1, 0), request_id=5, max_bytes=600)
    assert suggestions(sink, 2) == [0]
    assert suggestions(sink, 3) == [1]  # itself, as long as it is far behind here too
    assert suggestions(sink, 4) == [0]
    await bench.service.close()


async def test_slow_queues_spread_over_the_replicas_and_never_name_the_master() -> None:
    bench, sink = Bench(slow_read_bytes=0), Fetches()
    for queue_id in range(4):
        send(bench, queue_id=queue_id)
    send(bench)
    bench.writer.confirm_all()

    for queue_id in range(4):
        fetch(bench, sink, (queue_id, 0), request_id=queue_id)

    named = [suggestions(sink, queue_id)[0] for queue_id in range(4)]
    assert sorted(named) == [2, 2, 3, 3]
    assert named == [named[0], named[1]] * 2
    await bench.service.close()


async def test_without_slow_reads_nobody_is_sent_away() -> None:
    bench, sink = Bench(), Fetches()
    send(bench)
    send(bench)
    bench.writer.confirm_all()
    fetch(bench, sink, (0, 0))

    assert suggestions(sink) == [0]
    await bench.service.close()


async def test_wait_that_is_over_answers_with_what_there_is() -> None:
    bench, sink = Bench(), Fetches()

    fetch(bench, sink, (0, 0), wait_ms=1)
    await until(lambda: 1 in sink.answers)

    assert (sink.codes(), sink.counts()) == ([FetchCode.OK], 0)
    assert bench.service.fetcher.waiting_count == 0


async def test_offset_beyond_the_end_of_an_open_master_is_out_of_range_after_a_round() -> None:
    bench, sink = Bench(), Fetches()
    bench.writer.rounds_blocked = True

    fetch(bench, sink, (0, 5), wait_ms=60_000)
    await until(lambda: bench.writer.rounds == 1)
    assert sink.answers == {}
    bench.writer.end_rounds()
    await until(lambda: 1 in sink.answers)

    assert sink.codes() == [FetchCode.OFFSET_OUT_OF_RANGE]


async def test_offset_ahead_of_a_replica_waits_and_is_never_out_of_range() -> None:
    """R3."""
    bench, sink = Bench(), Fetches()
    bench.role.become_replica()
    bench.service.role_changed()

    fetch(bench, sink, (0, 5), wait_ms=1)
    await until(lambda: 1 in sink.answers)

    assert sink.codes() == [FetchCode.NOT_YET_AVAILABLE]


async def test_offset_ahead_of_a_master_that_is_not_open_is_not_out_of_range() -> None:
    bench, sink = Bench(), Fetches()
    bench.writer.is_open = False

    fetch(bench, sink, (0, 5))

    assert sink.codes() == [FetchCode.NOT_YET_AVAILABLE]
    assert bench.writer.rounds == 0


async def test_silent_members_leave_the_range_unsaid() -> None:
    bench, sink = Bench(), Fetches()

    async def silent() -> None:
        raise DeadlineError("no echo")

    bench.writer.read_round = silent  # type: ignore[method-assign]
    fetch(bench, sink, (0, 5), wait_ms=60_000)
    await until(lambda: 1 in sink.answers)

    assert sink.codes() == [FetchCode.NOT_YET_AVAILABLE]


async def test_unknown_queue_is_told_at_once() -> None:
    bench, sink = Bench(), Fetches()

    fetch(bench, sink, (0, 0), (9, 0), wait_ms=60_000)

    assert sink.codes() == [FetchCode.OK, FetchCode.UNKNOWN_QUEUE]


async def test_restarted_replica_serves_nothing_before_it_knows_confirm() -> None:
    bench, sink = Bench(), Fetches()
    send(bench)
    bench.writer.confirm_all()
    bench.role.become_replica()
    bench.log.is_readable = False

    fetch(bench, sink, (0, 0))

    assert (sink.codes(), sink.counts()) == ([FetchCode.NOT_YET_AVAILABLE], 0)


async def test_cold_pages_are_warmed_before_the_answer() -> None:
    bench, sink = Bench(), Fetches()
    send(bench, size=100)
    send(bench, 1, size=1 << 20)
    bench.writer.confirm_all()
    bench.log.cold = {0}

    fetch(bench, sink, (0, 0))
    assert sink.answers == {}
    await until(lambda: 1 in sink.answers)

    assert (bench.log.warmed, sink.counts()) == (1, 1)


async def test_role_change_lets_waiting_fetches_look_again() -> None:
    bench, sink = Bench(), Fetches()
    fetch(bench, sink, (0, 0), wait_ms=60_000)
    assert sink.answers == {}

    bench.role.begin_epoch(2)
    bench.service.role_changed()
    send(bench)
    await until(lambda: 1 in sink.answers)

    assert sink.answers[1].epoch == 2


async def test_waiting_fetches_are_bounded() -> None:
    bench, sink = Bench(fetches_waiting_max=2), Fetches()

    for number in range(3):
        fetch(bench, sink, (0, 0), wait_ms=60_000, request_id=number)

    assert isinstance(sink.errors[2], OverloadedError)
    bench.service.fetcher.cancel(sink)
    fetch(bench, sink, (0, 0), wait_ms=60_000, request_id=7)
    assert 7 not in sink.errors
    await bench.service.close()
