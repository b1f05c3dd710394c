"""Due times and sources: the columns of messages that wait, and of batches made out of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import BadRequestError, CorruptLogError
from paceline.records.checking import check_batch
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch
from paceline.records.header import (
    RECORDS_MAX,
    SOURCE_POSITION_MAX,
    Cause,
    Codec,
    Kind,
    pack_source,
    stamp,
    unpack_source,
)

PLACE = st.tuples(st.integers(0, SOURCE_POSITION_MAX), st.integers(0, RECORDS_MAX - 1))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), PLACE), min_size=1, max_size=9),
    codec=st.sampled_from(Codec),
)
def test_due_times_and_sources_come_back(
    rows: list[tuple[int, tuple[int, int]]], codec: Codec
) -> None:
    batch = encode_batch(
        [b"body"] * len(rows),
        keys=["k"] * len(rows),
        born_unix_ms=5,
        due_unix_ms=[due for due, _ in rows],
        sources=[pack_source(*place) for _, place in rows],
        topic_id=1,
        queue_id=0,
        kind=Kind.DELAY,
        flags=Cause.RETRIED,
        codec=codec,
    )
    view = BatchView(batch)

    header = check_batch(batch)
    assert header.is_derived
    assert header.cause == Cause.RETRIED
    assert view.due() == [due for due, _ in rows]
    assert [unpack_source(source) for source in view.sources()] == [place for _, place in rows]
    assert view.bodies() == [b"body"] * len(rows)


def test_a_single_body_with_a_due_time_is_not_the_plain_case() -> None:
    batch = encode_batch(
        [b"b"], born_unix_ms=5, due_unix_ms=[9], topic_id=1, queue_id=0, kind=Kind.DELAY
    )

    assert BatchView(batch).due() == [9]


def test_a_column_that_is_not_there_is_no_column_of_zeros() -> None:
    view = BatchView(encode_batch([b"b"], born_unix_ms=5, topic_id=1, queue_id=0))

    assert not view.header.is_derived
    with pytest.raises(CorruptLogError, match="without DUE"):
        view.due()
    with pytest.raises(CorruptLogError, match="without SOURCE"):
        view.sources()


def test_columns_are_parallel_to_the_bodies() -> None:
    with pytest.raises(BadRequestError, match="1 bodies but 2 DUE"):
        encode_batch([b"b"], born_unix_ms=5, due_unix_ms=[1, 2], topic_id=1, queue_id=0)


def test_a_stamped_header_may_stand_apart_from_its_payload() -> None:
    batch = encode_batch([b"b"], born_unix_ms=5, sources=[7], topic_id=1, queue_id=0, flags=1)
    header = stamp(batch, physical_offset=640, base_queue_offset=3, store_unix_ms=8, master_epoch=2)

    view = BatchView.stamped(batch, header)

    assert (view.header.physical_offset, view.header.base_queue_offset) == (640, 3)
    assert view.sources() == [7]
