"""What a producer puts in comes out again, for all columns, codecs and kinds."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import BadRequestError, TooLargeError
from paceline.message import received_messages
from paceline.platform.ports import Buffer
from paceline.records.checking import check_batch
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch, encode_internal
from paceline.records.header import CLIENT_KINDS, MESSAGE_BYTES_MAX, RECORDS_MAX, Codec, Kind

TEXT = st.text(max_size=6)
ROW = st.tuples(
    st.binary(max_size=40),
    st.none() | TEXT,
    st.none() | TEXT,
    st.none() | st.dictionaries(TEXT, TEXT, max_size=2),
    st.integers(-(2**63), 2**63 - 1),
)


def a_batch(bodies: Sequence[Buffer] = (b"x",), **fields: Any) -> bytes:
    return encode_batch(bodies, **({"born_unix_ms": 5, "topic_id": 1, "queue_id": 0} | fields))


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(ROW, min_size=1, max_size=12),
    codec=st.sampled_from(Codec),
    kind=st.sampled_from(sorted(CLIENT_KINDS)),
    columns=st.sets(st.sampled_from(["keys", "tags", "properties", "born_unix_ms"])),
)
def test_every_batch_decodes_to_what_was_encoded(
    rows: list[Any], codec: Codec, kind: Kind, columns: set[str]
) -> None:
    bodies, keys, tags, properties, born = (list(column) for column in zip(*rows, strict=True))
    given_columns = {"keys": keys, "tags": tags, "properties": properties, "born_unix_ms": born}
    chosen = {name: given_columns[name] for name in columns}

    batch = a_batch(bodies, codec=codec, kind=kind, **chosen)

    header = check_batch(batch)
    view = BatchView(b"12345678" + batch, 8)
    count = len(rows)
    assert (header.kind, header.record_count) == (kind, count)
    assert view.bodies() == view.body_views() == bodies
    assert view.keys() == [key or None for key in (keys if "keys" in columns else [None] * count)]
    assert view.tags() == [tag or "" for tag in (tags if "tags" in columns else [""] * count)]
    assert view.properties() == [
        one or {} for one in (properties if "properties" in columns else [{}] * count)
    ]
    assert view.born() == (born if "born_unix_ms" in columns else [5] * count)
    assert [record.body for record in view.records(skip=1)] == bodies[1:]
    assert header.size_bytes == len(batch)
    assert len(batch) % 8 == 0


def test_records_and_messages_name_their_place() -> None:
    batch = a_batch(
        [b"a", b"b", b"c"],
        keys=["k", None, "l"],
        tags=[None, "t", "t"],
        properties=[{"p": "q"}] * 3,
    )

    record = next(BatchView(batch).records(skip=2))
    (message,) = received_messages(BatchView(batch), topic="flights", group="g1", skip=2)

    assert record == (2, b"c", "l", "t", {"p": "q"}, 5)
    assert tuple(message) == (
        "flights",
        "g1",
        0,
        2,
        b"c",
        "l",
        "t",
        {"p": "q"},
        5,
        0,
        None,
        None,
        None,
    )
    assert list(BatchView(batch).records(skip=4)) == []
    assert BatchView(batch).tag_names() == ["t"]


def test_columns_that_are_all_empty_are_left_out() -> None:
    plain = a_batch([b"a", b"b"])

    assert a_batch([b"a", b"b"], keys=[None, ""], tags=["", None], properties=[{}, None]) == plain
    assert a_batch([b"a", b"b"], born_unix_ms=[5, 5]) == plain
    assert len(a_batch([b"", b""])) == 96


def test_a_batch_of_one_body_is_the_same_from_both_paths() -> None:
    for size in (1, 7, 8, 9, 1000):
        body = bytes(range(256)) * 4
        assert a_batch([body[:size]]) == a_batch([body[:size]], keys=[None])


def test_bodies_may_be_any_flat_buffers_and_are_copied() -> None:
    body = bytearray(b"abc")
    batch = a_batch([body, memoryview(b"def")])
    body[0] = 0

    assert BatchView(batch).bodies() == [b"abc", b"def"]
    assert check_batch(a_batch([memoryview(b"def")])).record_count == 1


def test_a_key_given_as_bytes_is_the_same_text() -> None:
    assert a_batch([b"a"], keys=["\u00fc".encode()]) == a_batch([b"a"], keys=["\u00fc"])


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_payload_is_compressed_only_if_that_shrinks_it(codec: Codec) -> None:
    shrinking = a_batch([b"a" * 10_000], codec=codec)
    random_like = a_batch([bytes(range(200))], codec=codec)

    assert check_batch(shrinking).codec == codec
    assert len(shrinking) < 500
    assert check_batch(random_like).codec == Codec.NONE
    assert check_batch(a_batch([b""], codec=codec, keys=["k"])).codec == Codec.NONE


def test_an_internal_record_is_canonical_json_of_topic_zero() -> None:
    batch = encode_internal(Kind.LOCK, {"b": [1, None], "a": "\u00fc"}, store_unix_ms=9)

    view = BatchView(batch)
    assert view.document() == {"a": "\u00fc", "b": [1, None]}
    assert view.bodies() == ['{"a":"\u00fc","b":[1,null]}'.encode()]
    assert (view.header.topic_id, view.header.kind) == (0, Kind.LOCK)


@pytest.mark.parametrize(
    "fields",
    [
        {"bodies": []},
        {"bodies": ["text"]},
        {"bodies": ["text", "text"]},
        {"bodies": [5]},
        {"bodies": [memoryview(b"12345678" * 8).cast("q")]},
        {"bodies": [memoryview(b"12345678").cast("q"), b""]},
        {"bodies": [b"a", b"b"], "keys": ["k"]},
        {"keys": [7]},
        {"keys": ["\ud800"]},
        {"keys": [b"\xff"]},
        {"tags": [7]},
        {"tags": [["t"]]},
        {"tags": ["\ud800"]},
        {"properties": [{"a": 1}]},
        {"properties": [{1: "a"}]},
        {"properties": [{"a": "\ud800"}]},
        {"properties": [5]},
        {"properties": ["text"]},
        {"born_unix_ms": []},
        {"born_unix_ms": [1, 2]},
        {"born_unix_ms": 2**63},
        {"topic_id": 2**32},
        {"queue_id": -1},
        {"producer_id": 2**64},
        {"bodies": [b"a", b"b"], "base_sequence": 2**31 - 1},
    ],
)
def test_what_cannot_be_encoded_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        a_batch(fields.pop("bodies", [b"x"]), **fields)


def test_limits_are_refused_as_too_large() -> None:
    largest = bytes(MESSAGE_BYTES_MAX)

    assert check_batch(a_batch([largest])).record_count == 1
    with pytest.raises(TooLargeError):
        a_batch([largest + b"x"])
    with pytest.raises(TooLargeError):
        a_batch([largest] * 4)
    with pytest.raises(TooLargeError):
        a_batch([largest] * 4, codec=Codec.ZSTD)
    for fields in (
        {"properties": [{"a": "x" * 32_767}]},
        {"keys": ["x" * 32_768]},
        {"tags": ["x" * 32_768]},
    ):
        with pytest.raises(TooLargeError):
            a_batch(**fields)
    with pytest.raises(BadRequestError):
        a_batch([b""] * (RECORDS_MAX + 1))


def test_a_batch_holds_up_to_the_largest_count_of_records() -> None:
    batch = a_batch([b"x"] * RECORDS_MAX, tags=[str(number) for number in range(RECORDS_MAX)])

    assert check_batch(batch).record_count == RECORDS_MAX
    assert BatchView(batch).tags()[-1] == str(RECORDS_MAX - 1)
