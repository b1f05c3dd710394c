"""The same rows make the same batches, however they arrive."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import BadRequestError
from paceline.queues import index_of_key
from paceline.spark.chunks import by_queue, chunks, producer_id, rows_of
from paceline.spark.options import write_options
from paceline.spark.storing import check_columns

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.binary(max_size=30)), max_size=40)


@given(rows=ROWS, records_max=st.integers(1, 9), bytes_max=st.integers(1, 120))
def test_chunks_keep_order_and_limits(
    rows: list[tuple[str, bytes]], records_max: int, bytes_max: int
) -> None:
    given_rows = [(topic, (body, None, None, None)) for topic, body in rows]

    found = list(chunks(given_rows, records_max=records_max, bytes_max=bytes_max))

    assert [(chunk.topic, row) for chunk in found for row in chunk.rows] == given_rows
    assert all(len(chunk.rows) <= records_max for chunk in found)
    assert all(
        len(chunk.rows) == 1 or sum(len(row[0]) for row in chunk.rows) <= bytes_max
        for chunk in found
    )
    assert [chunk.number for chunk in found] == list(range(len(found)))


@given(rows=ROWS, cut=st.integers(0, 40), records_max=st.integers(1, 9))
def test_rows_that_are_cut_short_make_no_other_complete_chunk(
    rows: list[tuple[str, bytes]], cut: int, records_max: int
) -> None:
    """Spark ends the rows of a task early when the task before it fails."""
    given_rows = [(topic, (body, None, None, None)) for topic, body in rows]

    whole = list(chunks(given_rows, records_max=records_max, bytes_max=100))
    part = list(chunks(given_rows[:cut], records_max=records_max, bytes_max=100))

    complete = [chunk for chunk in part if chunk.is_complete]
    assert complete == [chunk for chunk in whole if chunk.is_complete][: len(complete)]
    assert all(not chunk.is_complete for chunk in whole[-1:])


def test_keys_go_where_every_producer_sends_them() -> None:
    index = index_of_key(b"k1", 4)
    other = (index + 1) % 4
    rows: list[Any] = [(b"1", b"k1", None, None), (b"2", None, None, None), (b"3", b"k1", "t", {})]

    found = by_queue(rows, queues_count=4, turn=other + 4)

    assert {queue: part.bodies for queue, part in found.items()} == {
        index: [b"1", b"3"],
        other: [b"2"],
    }


def test_columns_of_text_and_of_bytes_make_the_same_rows() -> None:
    others: dict[str, Any] = {"tag": ["t"], "properties": [[("a", "1"), ("UNIQ_KEY", "2")]]}
    as_text = {"body": ["x"], "key": ["k"], **others}
    as_bytes = {"body": [b"x"], "key": [b"k"], **others}

    [(topic, row)] = rows_of(as_text, "orders")

    assert topic == "orders"
    assert row == (b"x", b"k", "t", {"a": "1"})
    assert list(rows_of(as_bytes, "orders")) == [(topic, row)]


def test_producer_id_is_that_of_its_name() -> None:
    assert producer_id("q/0/1") == producer_id("q/0/1") != producer_id("q/0/2")
    assert 0 < producer_id("q/0/1") < 2**64


@pytest.mark.parametrize(
    ("types", "field"),
    [
        ({"value": "binary"}, "value"),
        ({"key": "string"}, "body"),
        ({"body": "bigint"}, "body"),
        ({"body": "binary", "tag": "int"}, "tag"),
        ({"body": "binary"}, "topic"),
    ],
)
def test_columns_without_a_place_are_refused(types: dict[str, str], field: str) -> None:
    options = write_options({"endpoints": "h:1"})

    with pytest.raises(BadRequestError) as refusal:
        check_columns(types, options)

    assert refusal.value.details["field"] == field
