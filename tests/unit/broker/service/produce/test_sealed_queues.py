"""Sends to static topics: sealed queues refuse definitely, and what they took stays answered."""

from typing import Any

import pytest
from tests.support.http.door import a_batch
from tests.support.service.fakes import GROUP, Bench
from tests.support.service.resend import a_dead_letter, resend
from tests.support.service.send import Answers
from tests.support.service.send_back import a_bench, a_row, send_back
from tests.support.service.topic_checks import altered, sent

from paceline.errors import (
    InSyncReplicasNotEnoughError,
    OutcomeUnknownError,
    ProducerFencedError,
    QueueNotFoundError,
    QueueSealedError,
)
from paceline.queues import index_of_key
from paceline.records.header import Kind
from paceline.types import GroupName, QueueId
from paceline.wire.http import parse_send
from paceline.wire.static_topics import LogicalQueue, Segment
from paceline.wire.stream import PRODUCE_FLAG_DUPLICATE
from paceline_broker.projections.seals import seal_document

OTHER = GroupName("g2")


def logical(*groups: GroupName) -> tuple[LogicalQueue, ...]:
    """One open segment each, numbered in their groups in order."""
    numbers = {group: iter(range(99)) for group in groups}
    return tuple(
        LogicalQueue(
            segments=(
                Segment(generation=0, group=group, queue_id=QueueId(next(numbers[group])), start=0),
            )
        )
        for group in groups
    )


def is_static(bench: Bench, *groups: GroupName) -> None:
    altered(bench, logical_queues=logical(*groups))


def seal(bench: Bench, *queues: int) -> None:
    now = max(bench.role.projections.log_time_ms, bench.clock.unix_ms())
    document = seal_document((1, queue) for queue in queues)
    bench.writer.appender.record(Kind.OPERATION, document, store_unix_ms=now)


async def test_a_sealed_queue_refuses_definitely_and_the_others_go_on() -> None:
    bench = Bench()
    is_static(bench, GROUP, GROUP)
    assert (await sent(bench)).base_queue_offset == 0
    seal(bench, 0)
    before = bench.log.end

    error = await sent(bench)

    assert isinstance(error, QueueSealedError)
    assert (error.is_definite, error.details) == (True, {"topic_id": 1, "queue": 0})
    assert bench.log.end == before
    assert (await sent(bench, queue_id=1)).base_queue_offset == 0


async def test_what_was_stored_before_the_seal_is_answered_with_its_offset() -> None:
    """R30, R31: what a producer does not know the outcome of, it learns here, not elsewhere."""
    bench = Bench()
    is_static(bench, GROUP)
    await sent(bench, producer_id=9, base_sequence=0)
    seal(bench, 0)

    again = await sent(bench, producer_id=9, base_sequence=0)

    assert (again.base_queue_offset, again.flags) == (0, PRODUCE_FLAG_DUPLICATE)
    # The next one, and one after that, whose gap is no fault of the producer's.
    for sequence in (1, 2):
        answer = await sent(bench, producer_id=9, base_sequence=sequence)
        assert isinstance(answer, QueueSealedError)
    late = await sent(bench, producer_id=10, base_sequence=5)
    assert isinstance(late, QueueSealedError)


async def test_a_queue_sealed_after_an_unclean_election_does_not_speak_of_earlier_attempts() -> (
    None
):
    """R21, R32: what is stored from before has no producer any more; it may be this batch."""
    bench = Bench()
    is_static(bench, GROUP, GROUP)
    await sent(bench, producer_id=9, base_sequence=0)
    bench.role.begin_epoch(2, is_unclean=True)
    await sent(bench, queue_id=1, producer_id=9, base_sequence=0)
    seal(bench, 0, 1)

    for sequence in (0, 1):
        error = await sent(bench, producer_id=9, base_sequence=sequence)
        assert isinstance(error, QueueSealedError)
        assert error.details == {"topic_id": 1, "queue": 0, "is_earlier_unknown": True}
    kept = await sent(bench, queue_id=1, producer_id=9, base_sequence=0)
    assert (kept.base_queue_offset, kept.flags) == (0, PRODUCE_FLAG_DUPLICATE)
    all_known = await sent(bench, queue_id=1, producer_id=8, base_sequence=0)
    assert isinstance(all_known, QueueSealedError)
    assert all_known.details == {"topic_id": 1, "queue": 1}


async def test_a_fenced_producer_is_not_sent_on() -> None:
    """R31: where its logical queue goes on, nobody knows of the newer epoch yet."""
    bench = Bench()
    is_static(bench, GROUP)
    await sent(bench, producer_id=9, base_sequence=0, producer_epoch=2)
    seal(bench, 0)

    assert isinstance(
        await sent(bench, producer_id=9, base_sequence=0, producer_epoch=1), ProducerFencedError
    )


async def test_the_refusal_is_released_with_the_seal() -> None:
    """R28: a refusal by a seal that is lost again would let a later batch pass an earlier one."""
    bench = Bench()
    is_static(bench, GROUP)
    bench.log.is_automatic = False
    seal(bench, 0)
    sink = Answers()
    bench.service.sender.send(a_batch(b"x"), sink, 1)
    assert not sink.answers

    bench.writer.confirm_all()
    assert isinstance(sink.last, QueueSealedError)

    seal(bench, 1)
    bench.service.sender.send(a_batch(b"x"), sink, 2)
    bench.writer.fence()
    assert isinstance(sink.last, OutcomeUnknownError)
    assert sink.ids == [1, 2]


async def test_a_full_or_lonely_group_still_says_that_the_queue_has_gone() -> None:
    bench = Bench()
    is_static(bench, GROUP)
    seal(bench, 0)
    bench.writer.refusal = InSyncReplicasNotEnoughError("too few")

    assert isinstance(await sent(bench), QueueSealedError)
    assert isinstance(await sent(bench, queue_id=1), InSyncReplicasNotEnoughError)


async def test_a_segment_that_the_view_has_closed_takes_nothing_without_its_record_either() -> None:
    """R21: an unclean election may have lost the record."""
    bench = Bench()
    closed = Segment(generation=0, group=GROUP, queue_id=QueueId(0), start=0, end=9)
    following = Segment(generation=1, group=OTHER, queue_id=QueueId(0), start=9)
    altered(bench, logical_queues=(LogicalQueue(segments=(closed, following)),))
    before = bench.log.end

    assert isinstance(await sent(bench), QueueSealedError)
    assert bench.log.end == before


async def test_a_sealed_queue_of_a_group_that_is_wiped_says_that_it_is_sealed() -> None:
    """Maintenance: write permission goes first, then the queues; keyed messages go on with them."""
    bench = Bench()
    is_static(bench, GROUP, GROUP)
    await sent(bench, producer_id=9, base_sequence=0)
    seal(bench, 0)
    altered(bench, write_queues={GROUP: 0})

    assert isinstance(await sent(bench), QueueSealedError)
    assert isinstance(await sent(bench, queue_id=1), QueueNotFoundError)
    again = await sent(bench, producer_id=9, base_sequence=0)
    assert (again.base_queue_offset, again.flags) == (0, PRODUCE_FLAG_DUPLICATE)


async def test_json_goes_to_the_keys_logical_queue_or_is_told_where_that_is() -> None:
    bench = Bench()
    is_static(bench, GROUP, OTHER, GROUP, OTHER)
    topic = bench.service.routes.topic_named("orders")
    keys = {index_of_key(key.encode(), 4): key for key in map(str, range(40))}

    async def send(**message: Any) -> dict[str, Any]:
        body = parse_send({"messages": [{"body": "x", **message}]})
        answer = await bench.service.messages.send(topic, body)
        row: dict[str, Any] = answer["messages"][0]
        return row

    assert [(await send(key=keys[number]))["queue"] for number in (0, 2)] == [0, 1]
    with pytest.raises(QueueSealedError) as refused:
        await send(key=keys[1])
    assert refused.value.details == {"topic_id": 1, "logical_queue": 1, "group": OTHER}
    seal(bench, 0)
    assert {(await send())["queue"] for _ in range(4)} == {1}
    with pytest.raises(QueueSealedError):
        await send(key=keys[0])
    seal(bench, 1)
    with pytest.raises(QueueSealedError):
        await send()


async def test_a_dead_letter_is_resent_into_an_open_queue_or_refused() -> None:
    bench = a_bench()
    await a_dead_letter(bench)
    await send_back(bench, a_row(0, delay_level=-1))
    is_static(bench, GROUP, GROUP)
    queue = index_of_key(b"key-0", 2)
    seal(bench, queue)

    [row] = await resend(bench, 0)
    assert (row["to_queue"], row["duplicate"]) == (1 - queue, False)

    seal(bench, 1 - queue)
    before = bench.log.end
    with pytest.raises(QueueSealedError):
        await resend(bench, 1)
    assert bench.log.end == before


async def test_a_dead_letter_that_was_resent_before_the_seal_is_told_where_it_is() -> None:
    """R34: "nothing was stored" would have the operator send it once more elsewhere."""
    bench = a_bench()
    await a_dead_letter(bench)
    is_static(bench, GROUP, GROUP)
    [first] = await resend(bench, 0)
    seal(bench, 0, 1)

    [again] = await resend(bench, 0)

    assert again == {**first, "duplicate": True}


async def test_a_sealed_queue_of_a_recovered_topic_takes_no_dead_letter() -> None:
    """Its controllers know nothing of segments any more, its log does."""
    bench = a_bench()
    await a_dead_letter(bench)
    seal(bench, *range(4))
    before = bench.log.end

    with pytest.raises(QueueSealedError):
        await resend(bench, 0)

    assert bench.log.end == before
