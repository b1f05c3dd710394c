"""The queue index: lookups, limits, and confirm as the border."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import CorruptLogError
from paceline_broker.projections.consume_queues import (
    ConsumeQueue,
    ConsumeQueues,
    Run,
    TopicBytes,
    queue_key,
)


def a_queue(*batches: tuple[int, int, int]) -> ConsumeQueue:
    """Batches as (count of records, position, size)."""
    queue = ConsumeQueue(1 << 16, TopicBytes())
    for count, position, size in batches:
        queue.add(queue.end, count, position, size)
    return queue


def test_offset_inside_a_batch_finds_that_batch() -> None:
    queue = a_queue((10, 0, 200), (5, 200, 104), (1, 1000, 104))

    span = queue.span(12, confirm=10_000, max_bytes=150, is_first=True)

    assert span is not None
    assert span.runs == [Run(200, 104)]  # type: ignore[arg-type]
    assert span.next_offset == 15


def test_neighbours_in_the_log_become_one_run() -> None:
    queue = a_queue((1, 0, 104), (1, 104, 104), (1, 500, 104), (1, 604, 200))

    span = queue.span(0, confirm=10_000, max_bytes=10_000, is_first=True)

    assert span is not None
    assert [tuple(run) for run in span.runs] == [(0, 208), (500, 304)]
    assert (span.size_bytes, span.next_offset) == (512, 4)


def test_nothing_at_or_above_confirm_is_given() -> None:
    queue = a_queue((2, 0, 104), (2, 104, 104), (2, 208, 104))

    assert queue.confirmed_end(208) == 4
    assert queue.confirmed_end(0) == 0
    assert queue.confirmed_end(312) == 6
    span = queue.span(0, confirm=208, max_bytes=10_000, is_first=True)
    assert span is not None
    assert span.next_offset == 4
    assert queue.span(4, confirm=208, max_bytes=10_000, is_first=True) is None


def test_first_batch_is_given_even_when_it_is_too_large() -> None:
    queue = a_queue((1, 0, 5000), (1, 5000, 104))

    first = queue.span(0, confirm=10_000, max_bytes=100, is_first=True)

    assert first is not None
    assert (first.size_bytes, first.next_offset) == (5000, 1)
    assert queue.span(0, confirm=10_000, max_bytes=100, is_first=False) is None


def test_gap_in_queue_offsets_is_damage() -> None:
    queue = a_queue((3, 0, 104))

    with pytest.raises(CorruptLogError, match="begins at queue offset 5, queue ends at 3"):
        queue.add(5, 1, 104, 104)


def test_retention_moves_the_start_to_a_batch_boundary() -> None:
    queue = a_queue((2, 0, 104), (3, 104, 104), (4, 208, 104))

    queue.drop_below(150)

    assert (queue.start, queue.end, len(queue)) == (5, 9, 1)
    queue.drop_below(10_000)
    assert (queue.start, queue.end, len(queue)) == (9, 9, 0)
    assert queue.confirmed_end(10_000) == 9


def test_snapshot_ignores_queues_that_only_readers_asked_for() -> None:
    queues = ConsumeQueues()
    empty = queues.snapshot()
    queues.get_or_make(77)
    assert queues.snapshot() == empty
    queues.get_or_make(5).add(0, 2, 0, 104)

    restored = ConsumeQueues.restore(memoryview(queues.snapshot()))

    assert restored.snapshot() == queues.snapshot()
    assert [queue.key for queue in restored.all()] == [5]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 3), st.integers(0, 2), st.integers(1, 999)),
            st.tuples(st.just("below"), st.integers(0, 5000)),
            st.tuples(st.just("drop"), st.integers(1, 3)),
            st.tuples(st.just("again")),
        ),
        max_size=40,
    )
)
def test_bytes_of_topics_are_the_sums_of_what_their_queues_hold(
    steps: list[tuple[str, ...] | tuple[str, int] | tuple[str, int, int, int]],
) -> None:
    queues, position = ConsumeQueues(), 0
    for step in steps:
        match step:
            case ("add", int(topic), int(queue_id), int(size)):
                queue = queues.get_or_make(queue_key(topic, queue_id))
                queue.add(queue.end, 1, position, size)
                position += size
            case ("below", int(log_start)):
                queues.drop_below(log_start)
            case ("drop", int(topic)):
                queues.drop_topic(topic)
            case _:
                queues = ConsumeQueues.restore(memoryview(queues.snapshot()))

    for topic in (1, 2, 3):
        held = [queue for queue in queues.all() if queue.topic_id == topic]
        expected = sum(sum(queue.sizes(0, len(queue))) for queue in held)
        assert queues.topic_bytes(topic) == expected
