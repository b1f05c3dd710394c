"""Sending: what is decided, in which order, and when the answer may leave."""

from typing import Any

import pytest
from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench, a_view, until
from tests.support.service.send import Answers

from paceline.errors import (
    InSyncReplicasNotEnoughError,
    NotMasterError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    OverloadedError,
    StorageError,
    TopicNotFoundError,
)
from paceline.platform.ports import Buffer
from paceline.records.header import Cause, Kind, parse_header
from paceline.types import PhysicalOffset
from paceline.wire.stream import (
    PRODUCE_FLAG_DUPLICATE,
    PRODUCE_FLAG_UNCONFIRMED,
    ProduceAnswer,
)


async def test_answer_leaves_when_confirm_has_passed_and_not_before() -> None:
    bench, sink = Bench(is_automatic=False), Answers()

    bench.service.sender.send(a_batch(b"a", b"b"), sink, 1)
    bench.service.sender.send(a_batch(b"c"), sink, 2)
    assert sink.answers == []
    first_end = sum(map(len, bench.log.batches[:-1]))
    bench.writer.confirm_to(first_end)

    assert sink.ids == [1]
    bench.writer.confirm_all()
    assert sink.ids == [1, 2]
    assert sink.last.base_queue_offset == 2
    assert sink.last.confirm == bench.log.end


async def test_a_log_that_fails_is_an_answer_for_every_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full disk at a roll: also whoever waited for the topic must hear of it (R22)."""
    bench, sink = Bench(), Answers()
    later = a_batch(topic_id=2)
    bench.service.sender.send(later, sink, 1)
    bench.service.sender.send(later, sink, 2)

    def fail(header: bytes, payload: Buffer) -> PhysicalOffset:
        raise StorageError("no space left")

    monkeypatch.setattr(bench.writer, "append", fail)
    bench.service.view_changed(a_view(version=2, topics={"orders": 4, "more": 4}))

    assert sink.ids == [1, 2]
    assert isinstance(sink.last, StorageError)
    assert not sink.last.is_definite


async def test_stamped_batch_carries_the_masters_fields() -> None:
    bench, sink = Bench(is_automatic=False), Answers()
    before = bench.log.end

    bench.service.sender.send(a_batch(b"a"), sink, 1)

    topic, batch = bench.log.views()[-2:]
    assert topic.header.kind == Kind.TOPIC, "a topic record precedes the first batch (R35)"
    assert topic.header.physical_offset == before
    header = batch.header
    assert header.physical_offset == before + topic.header.size_bytes
    assert (header.master_epoch, header.base_queue_offset) == (1, 0)
    assert header.store_unix_ms == bench.clock.unix_ms()
    batch.verify()


async def test_topic_record_is_written_once_and_again_when_queues_are_added() -> None:
    bench, sink = Bench(), Answers()
    for number in range(3):
        bench.service.sender.send(a_batch(), sink, number)
    bench.service.view_changed(a_view(version=2, topics={"orders": 6}))

    bench.service.sender.send(a_batch(queue_id=5), sink, 9)

    kinds = [view.header.kind for view in bench.log.views()]
    assert kinds.count(Kind.TOPIC) == 2
    assert bench.role.projections.topics[1].queues == 6


async def test_store_time_never_goes_back() -> None:
    bench, sink = Bench(), Answers()
    bench.service.sender.send(a_batch(), sink, 1)
    bench.clock.step_wall(-100_000)

    bench.service.sender.send(a_batch(), sink, 2)

    times = [view.header.store_unix_ms for view in bench.log.views()]
    assert times == sorted(times)


async def test_duplicate_is_answered_with_the_original_once_that_is_confirmed() -> None:
    """R30."""
    bench, sink = Bench(is_automatic=False), Answers()
    batch = a_batch(b"a", b"b", producer_id=7, base_sequence=0)
    bench.service.sender.send(batch, sink, 1)
    stored = len(bench.log.batches)

    bench.service.sender.send(batch, sink, 2)
    assert sink.answers == []
    bench.writer.confirm_all()

    assert len(bench.log.batches) == stored
    (_, first), (_, second) = sink.answers
    assert (first.flags, second.flags) == (0, 1)
    assert first.base_queue_offset == second.base_queue_offset == 0
    assert first.store_unix_ms == second.store_unix_ms


async def test_answer_that_leaves_before_confirm_says_so() -> None:
    """R37: only where the group has chosen it."""
    bench, sink = Bench(is_automatic=False), Answers()
    bench.writer.answers_early = True
    bench.service.sender.send(a_batch(b"a"), sink, 1)
    assert sink.answers == []

    bench.writer.hold_to(bench.log.end)
    bench.service.sender.send(a_batch(b"b"), sink, 2)
    bench.writer.confirm_all()

    assert sink.ids == [1, 2]
    flags = [answer.flags for _, answer in sink.answers]
    assert flags == [PRODUCE_FLAG_UNCONFIRMED, 0]
    assert [answer.base_queue_offset for _, answer in sink.answers] == [0, 1]


async def test_duplicate_waits_for_confirm_even_where_answers_leave_early() -> None:
    """R30 under R37: the retry is answered when the original cannot be lost any more."""
    bench, sink = Bench(is_automatic=False), Answers()
    bench.writer.answers_early = True
    batch = a_batch(b"a", producer_id=7, base_sequence=0)
    bench.service.sender.send(batch, sink, 1)
    bench.writer.hold_to(bench.log.end)

    bench.service.sender.send(batch, sink, 2)
    bench.service.sender.send(a_batch(producer_id=7, base_sequence=5), sink, 3)
    bench.writer.hold_to(bench.log.end)
    assert sink.ids == [1]
    bench.writer.confirm_all()

    assert sink.ids == [1, 2, 3]
    assert sink.answers[1][1].flags == PRODUCE_FLAG_DUPLICATE
    assert isinstance(sink.last, OutOfOrderSequenceError)


async def test_sequence_refusal_waits_for_the_state_it_was_decided_on() -> None:
    """R28: the refusal tells of a batch that is not confirmed yet."""
    bench, sink = Bench(is_automatic=False), Answers()
    bench.service.sender.send(a_batch(producer_id=7, base_sequence=0), sink, 1)

    bench.service.sender.send(a_batch(producer_id=7, base_sequence=5), sink, 2)
    assert sink.answers == []
    bench.writer.confirm_all()

    assert sink.ids == [1, 2]
    assert isinstance(sink.last, OutOfOrderSequenceError)
    assert sink.last.details["expected"] == 1


async def test_definitely_refused_batch_leaves_its_sequence_to_the_next() -> None:
    bench, sink = Bench(), Answers()
    bench.writer.refusal = InSyncReplicasNotEnoughError("1 of 2")
    bench.service.sender.send(a_batch(producer_id=7, base_sequence=0), sink, 1)
    assert [type(answer) for _, answer in sink.answers] == [InSyncReplicasNotEnoughError]
    bench.writer.refusal = None

    bench.service.sender.send(a_batch(b"other", producer_id=7, base_sequence=0), sink, 2)
    await until(lambda: len(sink.answers) == 2)

    assert sink.last.flags == 0


async def test_refusal_before_the_append_stores_nothing_not_even_a_topic() -> None:
    bench, sink = Bench(), Answers()
    before = bench.log.end
    bench.writer.refusal = OverloadedError("full", retry_after_ms=50)

    bench.service.sender.send(a_batch(), sink, 1)

    assert isinstance(sink.last, OverloadedError)
    assert bench.log.end == before


async def test_fence_makes_waiting_sends_unknown() -> None:
    bench, sink = Bench(is_automatic=False), Answers()
    bench.service.sender.send(a_batch(), sink, 1)

    bench.role.become_replica()

    assert isinstance(sink.last, OutcomeUnknownError)
    assert sink.last.is_definite is False
    bench.service.sender.send(a_batch(), sink, 2)
    assert isinstance(sink.last, NotMasterError)


async def test_producer_state_survives_a_failover() -> None:
    bench, sink = Bench(), Answers()
    batch = a_batch(b"a", producer_id=7, base_sequence=0)
    bench.service.sender.send(batch, sink, 1)
    await until(lambda: len(sink.answers) == 1)

    bench.role.begin_epoch(2)
    bench.service.role_changed()
    bench.service.sender.send(batch, sink, 2)

    assert (sink.last.flags, sink.last.master_epoch) == (1, 2)


async def test_batch_for_a_topic_newer_than_the_view_waits_for_it_in_order() -> None:
    bench, sink = Bench(), Answers()
    for sequence in range(3):
        batch = a_batch(topic_id=2, producer_id=7, base_sequence=sequence)
        bench.service.sender.send(batch, sink, sequence)
    assert sink.answers == []

    bench.service.view_changed(a_view(version=2, topics={"orders": 4, "new": 1}))
    await until(lambda: len(sink.answers) == 3)

    assert [answer.base_queue_offset for _, answer in sink.answers] == [0, 1, 2]


async def test_batch_for_a_topic_that_never_comes_is_refused() -> None:
    bench, sink = Bench(view_wait_ms=1), Answers()

    bench.service.sender.send(a_batch(topic_id=9), sink, 1)
    await until(lambda: len(sink.answers) == 1)

    assert isinstance(sink.last, TopicNotFoundError)


async def test_parked_batches_are_bounded() -> None:
    bench, sink = Bench(parked_batches_max=2), Answers()

    for number in range(3):
        bench.service.sender.send(a_batch(topic_id=9), sink, number)

    assert isinstance(sink.last, OverloadedError)
    assert sink.ids == [2]


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind != Kind.NORMAL])
async def test_other_kinds_than_normal_are_refused(kind: Kind) -> None:
    bench, sink = Bench(), Answers()
    before = bench.log.end

    bench.service.sender.send(a_batch(kind=kind), sink, 1)

    assert sink.last.is_definite is True
    assert bench.log.end == before


# -- messages that wait, and what only brokers may send -------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"flags": 1}, "flags and sources are the broker's"),
        ({"sources": [5]}, "flags and sources are the broker's"),
        ({"due_unix_ms": [5]}, "due times belong to kind DELAY"),
        ({"kind": Kind.LOCK}, "kind 3 cannot be sent"),
    ],
)
async def test_clients_do_not_send_what_is_the_brokers(fields: dict[str, Any], said: str) -> None:
    bench, sink = Bench(), Answers()

    bench.service.sender.send(a_batch(b"a", **fields), sink, 1)

    assert said in sink.last.message
    assert not [view for view in bench.log.views() if view.header.topic_id]


async def test_a_message_that_waits_is_answered_with_its_place() -> None:
    """R34: it is in no queue; the topic's record stands before it (R35)."""
    bench, sink = Bench(), Answers()
    batch = a_batch(b"a", kind=Kind.DELAY, due_unix_ms=[5], producer_id=4, base_sequence=0)

    for request_id in (1, 2):
        bench.service.sender.send_checked(batch, parse_header(batch), sink, request_id)
    await until(lambda: len(sink.answers) == 2)

    views = bench.log.views()
    assert [view.header.kind for view in views[-2:]] == [Kind.TOPIC, Kind.DELAY]
    place = views[-1].header.physical_offset
    assert [answer.base_queue_offset for _, answer in sink.answers] == [place, place]
    assert sink.last.flags == PRODUCE_FLAG_DUPLICATE
    assert bench.role.projections.queue_end(1 << 16) == 0
    assert bench.role.projections.consume_queues.get(1 << 16) is None


async def test_a_master_puts_messages_it_made_into_their_queue() -> None:
    bench = Bench()
    writer = bench.role.writer()
    now = bench.role.projections.log_time_ms
    derived = a_batch(b"a", b"b", sources=[1, 2], flags=Cause.DELAYED)

    position = writer.appender.made(derived, store_unix_ms=now)

    view = bench.log.views()[-1]
    assert (view.header.physical_offset, view.header.cause) == (position, Cause.DELAYED)
    assert bench.role.projections.queue_end(1 << 16) == 2


async def test_producers_without_end_are_refused_and_those_known_go_on() -> None:
    bench, sink = Bench(producer_states_max=2), Answers()
    for number in (1, 2):
        bench.service.sender.send(a_batch(producer_id=number, base_sequence=0), sink, number)
    bench.writer.confirm_all()
    end = bench.writer.end

    bench.service.sender.send(a_batch(producer_id=3, base_sequence=0), sink, 3)

    assert isinstance(sink.last, OverloadedError)
    assert bench.writer.end == end, "nothing is stored"
    bench.service.sender.send(a_batch(producer_id=2, base_sequence=1), sink, 4)
    bench.service.sender.send(a_batch(), sink, 5)
    bench.writer.confirm_all()
    assert [type(answer) for _, answer in sink.answers[-2:]] == [ProduceAnswer, ProduceAnswer]
