"""Record batches to Arrow: equal to what records say, zero copies of bodies, damage refused."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import CorruptLogError
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch
from paceline.records.header import HEADER_BYTES, Codec, Section
from paceline.spark.columnar import (
    Gatherer,
    Piece,
    arrow_columns,
    arrow_schema,
    key_mask,
    mask_of,
    tag_mask,
)
from paceline.spark.columns import COLUMNS, columns_named

NAMES = [column.name for column in COLUMNS]
SCHEMA = arrow_schema(COLUMNS)
TEXT = st.text(max_size=6)


def a_piece(batch: bytes, first: int = 0, beyond: int | None = None) -> Piece:
    view = BatchView(batch)
    end = view.header.record_count if beyond is None else beyond
    return Piece(view, first, end, "orders", "g1")


def a_batch(count: int = 4, **arguments: Any) -> bytes:
    bodies = [b"x" * number for number in range(count)]
    return encode_batch(bodies, **{"born_unix_ms": 5, "topic_id": 1, "queue_id": 3, **arguments})


def rows(piece: Piece) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_arrays(arrow_columns(piece, NAMES), schema=SCHEMA)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def at(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, tz=UTC)


records = st.lists(
    st.tuples(
        st.binary(max_size=20),
        st.none() | TEXT,
        st.none() | TEXT,
        st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
        st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150)
@given(
    records=records,
    codec=st.sampled_from(Codec),
    cut=st.tuples(st.integers(0, 12), st.integers(0, 12)),
)
def test_columns_are_what_records_say(
    records: list[Any], codec: Codec, cut: tuple[int, int]
) -> None:
    bodies, keys, tags, properties, born = map(list, zip(*records, strict=True))
    batch = encode_batch(
        bodies, keys=keys, tags=tags, properties=properties, born_unix_ms=born,
        topic_id=1, queue_id=3, codec=codec,
    )  # fmt: skip
    first = min(cut[0], len(bodies) - 1)
    beyond = min(len(bodies), first + 1 + cut[1])
    piece = a_piece(batch, first, beyond)

    found = rows(piece)

    wanted = list(BatchView(batch).records())[first:beyond]
    assert [row["offset"] for row in found] == [record.queue_offset for record in wanted]
    assert [row["body"] for row in found] == [record.body for record in wanted]
    assert [row["key"] for row in found] == [record.key for record in wanted]
    assert [row["tag"] for row in found] == [record.tag or None for record in wanted]
    assert [dict(row["properties"]) for row in found] == [record.properties for record in wanted]
    assert [row["born_at"] for row in found] == [at(record.born_unix_ms) for record in wanted]
    assert {(row["topic"], row["broker_group"], row["queue_id"]) for row in found} == {
        ("orders", "g1", 3)
    }


def test_bodies_are_not_copied() -> None:
    batch = a_batch(100)
    piece = a_piece(batch)

    [bodies] = arrow_columns(piece, ["body"])

    raw = piece.view.section(Section.BODY_BLOB)
    assert bodies.buffers()[2].address == pa.py_buffer(raw).address


def test_offsets_that_leave_the_blob_are_refused() -> None:
    """Arrow would read beyond the buffer."""
    batch = bytearray(a_batch(4))
    view = BatchView(bytes(batch))
    offsets = view.section(Section.BODY_OFFSETS)
    place = bytes(batch).index(bytes(offsets), HEADER_BYTES)
    batch[place + 12 : place + 16] = (1_000_000).to_bytes(4, "little")

    with pytest.raises(CorruptLogError, match="body"):
        arrow_columns(a_piece(bytes(batch)), ["body"])


def test_key_that_is_no_text_is_refused() -> None:
    batch = bytearray(a_batch(1, keys=["kkk"]))
    place = bytes(batch).rindex(b"kkk")
    batch[place] = 0xFF

    with pytest.raises(CorruptLogError, match="key"):
        arrow_columns(a_piece(bytes(batch)), ["key"])


def test_only_the_columns_asked_for_are_made() -> None:
    schema = arrow_schema(columns_named(("offset", "body")))
    gatherer = Gatherer(schema, batch_bytes=1)

    [batch] = gatherer.add(a_piece(a_batch(3)))

    assert batch.schema == schema
    assert batch.num_rows == 3


def test_small_pieces_are_joined_and_large_ones_pass() -> None:
    gatherer = Gatherer(SCHEMA, batch_bytes=20_000)
    found = []
    for _ in range(40):
        found += list(gatherer.add(a_piece(a_batch(30))))
    found += list(gatherer.flush())

    assert sum(batch.num_rows for batch in found) == 40 * 30
    assert 1 < len(found) < 40
    assert all(batch.schema == SCHEMA for batch in found)


def test_tags_choose_records() -> None:
    piece = a_piece(a_batch(4, tags=["a", None, "b", "a"]))

    mask = tag_mask(piece, frozenset({"a"}))
    gatherer = Gatherer(SCHEMA, batch_bytes=1)
    [batch] = gatherer.add(piece, mask)

    assert batch.column("offset").to_pylist() == [0, 3]
    assert tag_mask(piece, frozenset({"c"})) is False
    assert tag_mask(a_piece(a_batch(2, tags=["a", "a"])), frozenset({"a"})) is None
    assert tag_mask(a_piece(a_batch(2)), frozenset({"a"})) is False


def test_keys_choose_records_also_of_a_part_of_a_batch() -> None:
    batch = a_batch(5, keys=["a", None, "b", "a", "c"])

    def offsets(piece: Piece, *keys: str) -> Any:
        mask = key_mask(piece, frozenset(keys))
        gatherer = Gatherer(SCHEMA, batch_bytes=1)
        return [at for found in gatherer.add(piece, mask) for at in found["offset"].to_pylist()]

    assert offsets(a_piece(batch), "a") == [0, 3]
    assert offsets(a_piece(batch, 1, 4), "a", "b") == [2, 3]
    assert key_mask(a_piece(batch), frozenset({"d"})) is False
    assert key_mask(a_piece(batch, 1, 2), frozenset({"a"})) is False
    assert key_mask(a_piece(batch), frozenset()) is False
    assert key_mask(a_piece(a_batch(2, keys=["a", "a"])), frozenset({"a"})) is None
    assert key_mask(a_piece(a_batch(2)), frozenset({"a"})) is False


def test_tags_and_keys_must_both_match() -> None:
    piece = a_piece(a_batch(4, tags=["x", "x", "y", "x"], keys=["a", "b", "a", "a"]))

    def chosen(tags: set[str] | None, keys: set[str] | None) -> Any:
        mask = mask_of(
            piece,
            tags=None if tags is None else frozenset(tags),
            keys=None if keys is None else frozenset(keys),
        )
        return mask.to_pylist() if isinstance(mask, pa.Array) else mask

    assert chosen({"x"}, {"a"}) == [True, False, False, True]
    assert chosen({"x", "y"}, {"a"}) == [True, False, True, True]
    assert chosen({"x"}, {"a", "b"}) == [True, True, False, True]
    assert chosen(None, {"b"}) == [False, True, False, False]
    assert chosen({"z"}, {"a"}) is False
    assert chosen({"x"}, {"z"}) is False
    assert chosen(None, None) is None
    assert chosen({"x", "y"}, {"a", "b"}) is None


def test_key_that_is_no_text_is_refused_by_a_filter_too() -> None:
    batch = bytearray(a_batch(1, keys=["kkk"]))
    batch[bytes(batch).rindex(b"kkk")] = 0xFF

    with pytest.raises(CorruptLogError, match="key"):
        key_mask(a_piece(bytes(batch)), frozenset({"kkk"}))
