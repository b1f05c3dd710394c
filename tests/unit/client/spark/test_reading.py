"""The work of a task: whole batches cut to the range, and what happens where data is gone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.support.service.fakes import a_view
from tests.support.spark.brokers import a_batch
from tests.support.spark.offsets import queue
from tests.support.spark.stub import Answer, Stub, a_stub, fetched, ok

from paceline.errors import OffsetOutOfRangeError, TopicNotFoundError
from paceline.spark.columnar import arrow_schema
from paceline.spark.columns import columns_named
from paceline.spark.options import Access
from paceline.spark.ranges import QueueRange, Task
from paceline.spark.reading import ReadPlan, read_task
from paceline.wire.stream import FETCH_HEADER, FETCH_QUEUE, FetchCode

Q = queue("t", 0)


@contextmanager
def a_cluster(answer: Any) -> Iterator[tuple[Stub, Access]]:
    """Three replicas behind one address; `answer(offset)` is what they have."""
    with a_stub() as stub:
        view = a_view().to_json()
        for replica in view["groups"][0]["replicas"]:
            replica["client_address"] = stub.address

        def fetch(body: bytes) -> Answer:
            found: Answer = answer(FETCH_QUEUE.unpack_from(body, FETCH_HEADER.size)[2])
            return found

        stub.on["/v1/routes"] = lambda body: ok(view)
        stub.on["/v1/fetch"] = fetch
        yield stub, Access(endpoints=(stub.address,), retry_timeout_ms=200)


def offsets(access: Access, start: int, end: int, *, is_strict: bool = True) -> list[int]:
    """The offsets that a task of one range hands to Spark."""
    plan = ReadPlan(
        access=access,
        schema=arrow_schema(columns_named(("offset",))),
        batch_bytes=1,
        tags=None,
        keys=None,
        fail_on_data_loss=is_strict,
        reads_masters=False,
    )
    task = Task((QueueRange(Q, 1, start, end),))
    return [at for batch in read_task(plan, task) for at in batch.column(0).to_pylist()]


def two_by_two(offset: int) -> Answer:
    """Batches of two records, two in an answer."""
    base = offset // 2 * 2
    return fetched(a_batch(base), a_batch(base + 2))


def test_range_is_cut_out_of_whole_batches() -> None:
    with a_cluster(two_by_two) as (_, access):
        assert offsets(access, 3, 12) == list(range(3, 12))
        assert offsets(access, 4, 5) == [4]


def test_nothing_to_read_is_no_batch() -> None:
    with a_cluster(two_by_two) as (stub, access):
        plan = ReadPlan(
            access=access,
            schema=arrow_schema(columns_named(("offset",))),
            batch_bytes=1,
            tags=None,
            keys=None,
            fail_on_data_loss=True,
            reads_masters=False,
        )
        assert list(read_task(plan, None)) == []

    assert stub.asked == []


def vanished(offset: int) -> Answer:
    """Retention has taken what lies between 4 and 10 while the read was on its way."""
    if 4 <= offset < 10:
        return fetched(code=FetchCode.OFFSET_OUT_OF_RANGE, start=10, end=100)
    return two_by_two(offset) if offset >= 10 else fetched(a_batch(offset // 2 * 2))


def test_data_that_vanishes_under_a_read_is_an_error_that_says_what_to_do() -> None:
    with a_cluster(vanished) as (_, access), pytest.raises(OffsetOutOfRangeError) as refusal:
        offsets(access, 0, 16)

    assert "begins at 10, the read was at 4: retention deleted" in refusal.value.message
    assert "Set failOnDataLoss to false to go on, or pin what you read" in refusal.value.message


def test_data_that_vanished_is_passed_over_where_that_was_chosen() -> None:
    with a_cluster(vanished) as (_, access):
        assert offsets(access, 0, 16, is_strict=False) == [0, 1, 2, 3, *range(10, 16)]
        assert offsets(access, 0, 8, is_strict=False) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_strict", [True, False])
def test_end_that_shrank_is_never_passed_over(is_strict: bool) -> None:
    def shrank(offset: int) -> Answer:
        return fetched(code=FetchCode.OFFSET_OUT_OF_RANGE, start=0, end=5)

    with a_cluster(shrank) as (_, access), pytest.raises(OffsetOutOfRangeError) as refusal:
        offsets(access, 8, 16, is_strict=is_strict)

    assert "ends at 5, the read was at 8" in refusal.value.message


def test_topic_that_is_deleted_under_a_read_is_named() -> None:
    def gone(offset: int) -> Answer:
        return fetched(code=FetchCode.UNKNOWN_QUEUE)

    with a_cluster(gone) as (_, access), pytest.raises(TopicNotFoundError, match="was deleted"):
        offsets(access, 0, 4)
