"""Times of queues."""

from typing import Any

from paceline.wire.calls.offsets import LagRow
from paceline_gateway.grpc.service.time_spans import span_of
from paceline_gateway.grpc.stubs.resources_pb2 import MessageQueue


def row(*, behind_ms: int = 0, **times: Any) -> LagRow:
    return LagRow(
        topic_id=1,
        queue=0,
        start=0,
        end=9,
        topic="t",
        offset=None,
        lag=0,
        behind_ms=behind_ms,
        in_flight=0,
        **times,
    )


def times_of(*rows: LagRow) -> tuple[int, ...]:
    span = span_of(MessageQueue(id=3), list(rows))
    assert span.message_queue.id == 3
    return (
        span.min_timestamp,
        span.max_timestamp,
        span.consume_timestamp,
        span.delay_time_ms,
    )


def test_a_queue_without_messages_has_no_times() -> None:
    assert times_of(row()) == (-1, -1, -1, 0)


def test_a_group_that_has_consumed_nothing_stands_at_the_first_message() -> None:
    assert times_of(row(first_unix_ms=5, last_unix_ms=8, behind_ms=90)) == (5, 8, 5, 90)


def test_segments_of_a_logical_queue_are_told_of_as_one() -> None:
    done = row(first_unix_ms=5, last_unix_ms=8, consumed_unix_ms=8)
    next_ = row(first_unix_ms=10, last_unix_ms=20, consumed_unix_ms=12, behind_ms=70)
    unread = row(first_unix_ms=30, last_unix_ms=40, behind_ms=50)

    assert times_of(unread, next_, done, row()) == (5, 40, 12, 70)
