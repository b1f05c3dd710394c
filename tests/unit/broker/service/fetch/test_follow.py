"""Fetch sessions: only queues with something are looked at and answered, and none is forgotten."""

import pytest
from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench, a_view, until
from tests.support.service.fetch import send
from tests.support.service.filtered_fetch import a_filter
from tests.support.service.filtered_fetch import send as send_tagged
from tests.support.service.follow import Follower
from tests.support.service.send import Answers

from paceline.errors import BadRequestError, DeadlineError, OverloadedError
from paceline.wire.stream import FRAME_BYTES_MAX, FetchCode, FetchQueue
from paceline_broker.service.fetch import session_answer
from paceline_broker.service.fetch import sessions as follow
from paceline_broker.service.fetch.read import Gathering

MANY = 4000


async def test_one_message_touches_one_queue_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a message costs does not hang on how many queues are asked for."""
    bench = Bench()
    bench.service.view_changed(a_view(version=2, topics={"wide": MANY}))
    follower = Follower(bench)
    follower.ask(*[(queue, 0) for queue in range(MANY)])
    looks: list[FetchQueue] = []
    look = Gathering.look

    def counted(self: Gathering, queue: FetchQueue, state: session_answer.Row) -> object:
        looks.append(queue)
        return look(self, queue, state)

    await until(lambda: not bench.service.fetcher.sessions._by_sink[follower.sink]._ready)
    monkeypatch.setattr(Gathering, "look", counted)
    send(bench, 1234)
    await until(lambda: 1 in follower.sink.answers)

    [part] = follower.sink.answers[1].parts
    assert (part.queue_id, part.code, part.end) == (1234, FetchCode.OK, 1)
    assert [queue.queue_id for queue in looks] == [1234]


async def test_a_part_ends_what_was_asked_and_the_others_go_on_waiting() -> None:
    bench = Bench()
    follower = Follower(bench)
    follower.ask((0, 0), (1, 0))
    send(bench, 0)
    await until(lambda: 1 in follower.sink.answers)
    assert follower.queues(1) == [0]

    empty = follower.ask()
    send(bench, 0)
    send(bench, 1)
    await until(lambda: empty in follower.sink.answers)

    assert follower.queues(empty) == [1], "queue 0 was answered and not asked for since"
    assert follower.queues(follower.ask((0, 1))) == [0]


async def test_nobody_hears_of_what_is_not_confirmed() -> None:
    """INV-8."""
    bench = Bench(is_automatic=False)
    follower = Follower(bench)
    send(bench, 0, count=3)
    border = bench.log.end
    follower.ask((0, 0))
    send(bench, 0, count=2)
    bench.writer.confirm_to(border)

    assert (follower.sink.answers[1].parts[0].end, follower.sink.counts(1)) == (3, 1)
    second = follower.ask((0, 3))
    assert second not in follower.sink.answers
    bench.writer.confirm_all()
    assert follower.sink.counts(second) == 1


async def test_without_a_request_nothing_is_answered_and_nothing_is_lost() -> None:
    bench = Bench()
    follower = Follower(bench)
    follower.ask((0, 0), (1, 0), (2, 0), wait_ms=0)
    assert follower.sink.answers[1].parts == []
    for queue in (2, 1, 0):
        send(bench, queue)
    await until(lambda: bench.log.confirm == bench.log.end)
    assert len(follower.sink.answers) == 1

    assert sorted(follower.queues(follower.ask())) == [0, 1, 2]


async def test_what_did_not_fit_is_the_first_of_the_next_answer() -> None:
    bench = Bench()
    for _ in range(3):
        for queue in range(4):
            send(bench, queue, size=1000)
    bench.writer.confirm_all()
    follower = Follower(bench, max_bytes=2500)
    offsets = dict.fromkeys(range(4), 0)
    number = follower.ask(*offsets.items())
    served: list[int] = []
    while min(offsets.values()) < 3:
        answer = follower.sink.answers[number]
        assert 0 < answer.size_bytes <= 2500
        moved = []
        for part in answer.parts:
            offsets[part.queue_id] += part.size // 1120
            served.append(part.queue_id)
            moved.append((part.queue_id, offsets[part.queue_id]))
        number = follower.ask(*moved)

    assert served[:4] == [0, 1, 2, 3], "each has its turn"
    assert offsets == dict.fromkeys(range(4), 3)


async def test_a_large_batch_comes_alone_within_the_frame() -> None:
    bench = Bench()
    body = b"x" * (4 * 1024 * 1024 - 64)
    bench.service.sender.send(a_batch(body, body, body, body[:-2000]), Answers(), 0)
    bench.writer.confirm_all()
    follower = Follower(bench, max_bytes=1 << 24)

    first = follower.ask((0, 0), (9, 0))

    answer = follower.sink.answers[first]
    assert len(answer.head()) + answer.size_bytes + 12 <= FRAME_BYTES_MAX
    assert follower.parts(first) == [(0, FetchCode.OK)]
    assert follower.parts(follower.ask()) == [(9, FetchCode.UNKNOWN_QUEUE)]


async def test_an_answer_says_which_requests_it_knows_of() -> None:
    bench = Bench()
    send(bench, 0, count=3)
    bench.writer.confirm_all()
    follower = Follower(bench)
    follower.ask((1, 0))
    follower.ask((0, 0))

    assert follower.sink.answers[1].seen == 2, "the answer to the first knows of the second"


async def test_an_ask_replaces_the_one_before_and_can_be_taken_back() -> None:
    bench = Bench()
    follower = Follower(bench)
    follower.ask((0, 0), (1, 0))
    send(bench, 0)
    send(bench, 1)
    follower.send([FetchQueue(1, 0, 0, 0), FetchQueue(1, 1, 1, 1 << 20)])
    await until(lambda: bench.log.confirm == bench.log.end)

    assert not follower.sink.answers, "queue 0 is not asked for, queue 1 has nothing above 1"
    send(bench, 1)
    await until(lambda: 1 in follower.sink.answers)
    assert follower.queues(1) == [1]


async def test_no_more_than_two_requests_wait() -> None:
    follower = Follower(Bench())
    for queue in range(4):
        follower.ask((queue, 0))

    assert sorted(follower.sink.answers) == [1, 2]
    assert follower.sink.answers[1].parts == []


async def test_the_wait_of_a_request_ends() -> None:
    follower = Follower(Bench())
    follower.ask((0, 0), wait_ms=20)
    await until(lambda: 1 in follower.sink.answers)
    assert follower.sink.answers[1].parts == []


async def test_codes_are_told_at_once() -> None:
    bench = Bench()
    send(bench, 0)
    bench.writer.confirm_all()
    follower = Follower(bench)

    assert follower.parts(follower.ask((99, 0))) == [(99, FetchCode.UNKNOWN_QUEUE)]
    assert follower.parts(follower.ask((0, 0), filter_id=7)) == [(0, FetchCode.UNKNOWN_FILTER)]


async def test_above_the_end_is_out_of_range_after_a_read_round() -> None:
    """R3."""
    bench = Bench()
    bench.writer.rounds_blocked = True
    follower = Follower(bench)
    follower.ask((0, 5), (1, 0))
    await until(lambda: bool(bench.writer.round_waiters))
    assert not follower.sink.answers
    send(bench, 1)
    await until(lambda: 1 in follower.sink.answers)
    assert follower.parts(1) == [(1, FetchCode.OK)], "others do not wait for the round"

    second = follower.ask()
    bench.writer.end_rounds()
    await until(lambda: second in follower.sink.answers)

    assert follower.parts(second) == [(0, FetchCode.OFFSET_OUT_OF_RANGE)]


async def test_what_was_late_is_asked_about_when_the_epoch_has_opened_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R3: out of range is said by a read round of its own, not when everything is swept."""
    monkeypatch.setattr(follow, "SWEEP_S", 3_600.0)
    bench = Bench()
    bench.writer.is_open = False
    follower = Follower(bench)
    follower.ask((0, 5), (1, 0))
    assert not follower.sink.answers
    bench.writer.is_open = True
    send(bench, 1)
    await until(lambda: 1 in follower.sink.answers)
    assert follower.parts(1) == [(1, FetchCode.OK)]
    second = follower.ask()
    await until(lambda: second in follower.sink.answers)

    assert follower.parts(second) == [(0, FetchCode.OFFSET_OUT_OF_RANGE)]


async def test_a_round_that_fails_says_nothing_about_ranges() -> None:
    """R3."""
    bench = Bench()

    async def fail() -> None:
        raise DeadlineError("silent")

    bench.writer.read_round = fail  # type: ignore[method-assign]
    follower = Follower(bench)
    follower.ask((0, 5))
    await until(lambda: 1 in follower.sink.answers)

    assert follower.parts(1) == [(0, FetchCode.NOT_YET_AVAILABLE)]


async def test_a_replica_says_that_it_is_not_so_far_when_the_wait_is_over() -> None:
    bench = Bench()
    bench.role.become_replica()
    follower = Follower(bench)
    follower.ask((0, 5), (1, 0), wait_ms=30)
    assert not follower.sink.answers
    await until(lambda: 1 in follower.sink.answers)

    assert follower.parts(1) == [(0, FetchCode.NOT_YET_AVAILABLE)]


async def test_every_queue_is_looked_at_again_when_the_role_changes() -> None:
    bench = Bench()
    bench.role.become_replica()
    follower = Follower(bench)
    follower.ask((0, 5))

    bench.role.begin_epoch(2)
    bench.service.role_changed()
    await until(lambda: 1 in follower.sink.answers)

    assert follower.parts(1) == [(0, FetchCode.OFFSET_OUT_OF_RANGE)]
    assert follower.sink.answers[1].epoch == 2


async def test_what_nobody_said_is_found_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic is deleted: no message wakes who waits for its queues."""
    monkeypatch.setattr(follow, "SWEEP_S", 0.0)
    bench = Bench()
    follower = Follower(bench)
    follower.ask((0, 0))
    bench.service.view_changed(a_view(version=2, topics={"other": 0}))

    follower.ask(wait_ms=10)
    follower.ask(wait_ms=10)
    await until(lambda: any(answer.parts for answer in follower.sink.answers.values()))

    said = [part.code for answer in follower.sink.answers.values() for part in answer.parts]
    assert said == [FetchCode.UNKNOWN_QUEUE]


async def test_cold_pages_are_warmed_and_an_ask_made_meanwhile_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline_broker.service.fetch.read.HOT_TAIL_BYTES", 0)
    bench = Bench(is_automatic=False)
    send(bench, 0, count=2)
    send(bench, 0, count=2)
    bench.writer.confirm_all()
    bench.log.cold.add(1)
    follower = Follower(bench)
    follower.ask((0, 0))
    assert not follower.sink.answers
    follower.ask((0, 2))
    await until(lambda: 2 in follower.sink.answers)

    assert bench.log.warmed == 1
    assert [follower.sink.answers[number].seen for number in (1, 2)] == [1, 2]
    assert [follower.sink.counts(number) for number in (1, 2)] == [2, 1]


async def test_what_is_damaged_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """R24."""
    monkeypatch.setattr("paceline_broker.service.fetch.read.HOT_TAIL_BYTES", 0)
    bench = Bench(is_automatic=False)
    send(bench, 0)
    send(bench, 1)
    bench.writer.confirm_all()
    broken = bytearray(bench.log.batches[-2])
    broken[-1] ^= 1
    bench.log.batches[-2] = bytes(broken)
    follower = Follower(bench)
    number = follower.ask((0, 0), (1, 0))

    assert sorted(follower.parts(number)) == [
        (0, FetchCode.NOT_YET_AVAILABLE),
        (1, FetchCode.OK),
    ]


async def test_filters_pass_over_and_say_how_far() -> None:
    bench = Bench()
    blue = await a_filter(bench, "blue")
    follower = Follower(bench)
    follower.ask((0, 0), filter_id=blue)
    for _ in range(3):
        send_tagged(bench, "red")
    await until(lambda: bench.log.confirm == bench.log.end)
    assert not follower.sink.answers
    send_tagged(bench, "blue", queue_id=0)
    await until(lambda: 1 in follower.sink.answers)

    [part] = follower.sink.answers[1].parts
    assert (follower.sink.counts(1), part.next_offset) == (1, 4)


async def test_a_queue_of_which_much_is_passed_over_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    blue = await a_filter(bench, "blue")
    for _ in range(30):
        send_tagged(bench, "red", queue_id=0)
    send_tagged(bench, "blue", queue_id=1)
    await until(lambda: bench.log.confirm == bench.log.end)
    monkeypatch.setattr(follow, "LOOK_BYTES_MAX", 1)  # one batch in each look
    looks: list[int] = []
    look = Gathering.look

    def counted(self: Gathering, queue: FetchQueue, state: session_answer.Row) -> object:
        looks.append(queue.queue_id)
        return look(self, queue, state)

    monkeypatch.setattr(Gathering, "look", counted)
    follower = Follower(bench)
    follower.ask((0, 0), (1, 0), filter_id=blue)
    await until(lambda: 1 in follower.sink.answers)

    assert follower.queues(1) == [1]
    assert looks.count(0) < 5


async def test_a_queue_of_which_nothing_is_wanted_has_its_say_in_any_answer() -> None:
    bench = Bench()
    blue = await a_filter(bench, "blue")
    follower = Follower(bench)
    follower.ask((0, 0), filter_id=blue)
    follower.ask((1, 0))
    send_tagged(bench, "red")
    await until(lambda: bench.log.confirm == bench.log.end)
    send(bench, 1)
    await until(lambda: 1 in follower.sink.answers)

    parts = {part.queue_id: part for part in follower.sink.answers[1].parts}
    assert (parts[0].size, parts[0].next_offset) == (0, 1)
    assert parts[1].size > 0
    counted = bench.service.counters.topics[1]
    assert counted.messages_out == 1


async def test_forged_sequences_end_the_session() -> None:
    bench = Bench()
    follower = Follower(bench)
    follower.sequence = 6
    assert follower.ask((0, 0)) == 7
    assert isinstance(follower.sink.errors[7], BadRequestError)

    follower.sequence = 0
    follower.ask((0, 0))
    follower.sequence = 4
    follower.ask((1, 0))
    assert sorted(follower.sink.errors) == [1, 5, 7], "each request is answered"
    assert bench.service.fetcher.sessions.queue_count == 0


async def test_a_session_begun_anew_answers_what_the_old_one_was_asked() -> None:
    follower = Follower(Bench())
    follower.ask((0, 0))
    follower.sequence = 0
    sessions = follower.bench.service.fetcher.sessions
    sessions.follow(
        [FetchQueue(1, 1, 0, 1 << 20)],
        sequence=1,
        wait_ms=5_000,
        max_bytes=1 << 20,
        sink=follower.sink,
        request_id=50,
    )
    assert list(follower.sink.errors) == [1]
    assert sessions.queue_count == 1


async def test_what_sessions_hold_is_bounded() -> None:
    bench = Bench(followed_queues_max=3)
    follower, other = Follower(bench), Follower(bench)
    follower.ask((0, 0), (1, 0))
    other.ask((0, 0), (1, 0))

    assert isinstance(other.sink.errors[1], OverloadedError)
    assert not follower.sink.errors
    sessions = bench.service.fetcher.sessions
    assert sessions.queue_count == 2
    bench.service.fetcher.cancel(follower.sink)
    assert (sessions.queue_count, sessions._by_key) == (0, {})
