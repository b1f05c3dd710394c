"""What brokers check of a batch, in steps: lengths before contents, a bounded piece at a time."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest
from tests.support.records.corruption import sealed

from paceline.errors import CorruptLogError, TooLargeError
from paceline.records import checking
from paceline.records.checking import (
    STEP_BYTES,
    STEP_RECORDS,
    BatchCheck,
    check_batch,
)
from paceline.records.compression import compress
from paceline.records.encode import encode_batch
from paceline.records.header import (
    COLUMN_PROPERTY,
    HEADER_BYTES,
    PROPERTIES_BYTES_MAX,
    RECORDS_MAX,
    BatchHeader,
    Codec,
    parse_header,
)


def a_batch_with(*documents: bytes, codec: Codec = Codec.NONE) -> bytes:
    """A batch whose records have nothing but these properties, as they stand."""
    blob = b"".join(documents)
    ends = [sum(map(len, documents[:number])) for number in range(len(documents) + 1)]
    offsets = struct.pack(f"<{len(ends)}i", *ends)
    at = 16 + len(offsets) + (-len(offsets) & 7)
    payload = struct.pack("<4I", 16, len(offsets), at, len(blob))
    payload += offsets + bytes(-len(offsets) & 7) + blob + bytes(-len(blob) & 7)
    header: BatchHeader = parse_header(encode_batch([b""], born_unix_ms=1, topic_id=1, queue_id=0))
    packed = compress(memoryview(payload), codec) if codec else payload
    assert packed is not None
    return sealed(
        packed,
        header,
        codec=codec,
        payload_raw_bytes=len(payload),
        record_count=len(documents),
        columns=COLUMN_PROPERTY,
    )


@pytest.mark.parametrize(
    "document",
    [
        b'{"a":"1","a":"1"}',
        b'{"a":"1","b":"","a":"2"}',
        rb'{"a":"1","\u0061":"2"}',
        rb'{"\"":"1","\"":"2"}',
        rb'{"\\":"\\\"","\\":""}',
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_name_that_stands_twice_is_refused(document: bytes, codec: Codec) -> None:
    """Readers differ in which of two they take."""
    documents = [b'{"a":"1","b":"1"}'] * 40
    assert check_batch(a_batch_with(*documents, codec=codec)).record_count == 40

    with pytest.raises(CorruptLogError, match="two properties of one name"):
        check_batch(a_batch_with(*documents, document, *documents, codec=codec))


@pytest.mark.parametrize(
    "properties",
    [{'"': '"', "\\": '\\"', 'a\\"b': ""}, {"é": "\u0000", "😀": '"' * 100}, {"": "x", '"': ""}],
)
def test_quotes_and_backslashes_are_no_second_name(properties: dict[str, str]) -> None:
    batch = encode_batch(
        [b""] * 3, properties=[properties] * 3, born_unix_ms=1, topic_id=1, queue_id=0
    )
    assert check_batch(batch).record_count == 3
    escaped = orjson.dumps(properties).replace("é".encode(), rb"\u00e9").replace(b"x", rb"\u0022")
    assert check_batch(a_batch_with(escaped)).record_count == 1


def test_length_of_properties_is_checked_before_they_are_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[object] = []
    monkeypatch.setattr(checking, "parse_properties", parsed.append)
    document = b'{"a":[' + b"[]," * PROPERTIES_BYTES_MAX + b"[]]}"

    with pytest.raises(TooLargeError):
        check_batch(a_batch_with(document, codec=Codec.ZSTD))

    assert parsed == []


@pytest.mark.parametrize(
    ("count", "properties"), [(RECORDS_MAX, {"a": "1"}), (500, {"a": "x" * 30_000})]
)
def test_no_step_looks_at_more_than_a_piece(count: int, properties: dict[str, str]) -> None:
    batch = encode_batch(
        [b""] * count,
        properties=[properties] * count,
        keys=["ключ"] * count,
        born_unix_ms=1,
        topic_id=1,
        queue_id=0,
        codec=Codec.ZSTD,
    )
    looked: list[int] = []
    check = BatchCheck(batch)

    def look(first: int, rows: Sequence[Mapping[str, str]]) -> None:
        assert first == sum(looked[:-1]), "no record is left out"
        looked[-1] += len(rows)

    assert not check.is_short()
    looked.append(0)
    for _ in check.steps(look):
        looked.append(0)

    assert sum(looked) == count
    assert max(looked) <= STEP_RECORDS
    assert max(looked) * len(orjson.dumps(properties)) <= STEP_BYTES


def test_what_is_short_is_known_from_the_header_and_the_directory() -> None:
    def is_short(count: int, **more: Any) -> bool:
        more.setdefault("born_unix_ms", 1)
        return BatchCheck(encode_batch([b"x"] * count, topic_id=1, queue_id=0, **more)).is_short()

    assert is_short(1)
    assert is_short(4096)
    assert is_short(1000, properties=[{"a": "b" * 100}] * 1000)
    assert not is_short(4097)
    assert not is_short(2000, properties=[{"a": "b" * 100}] * 2000)
    assert is_short(4000, codec=Codec.ZSTD)
    assert not is_short(
        4000, born_unix_ms=[1] * 4000, properties=[{"a": "b"}] * 4000, codec=Codec.ZSTD
    )


def test_a_text_that_begins_inside_a_character_is_found_in_every_piece() -> None:
    count = 2 * STEP_RECORDS + 5
    batch = encode_batch([b""] * count, keys=["é"] * count, born_unix_ms=1, topic_id=1, queue_id=0)
    at = HEADER_BYTES + 16 + 4 * (count - 2)
    [offset] = struct.unpack_from("<i", batch, at)
    payload = bytearray(batch[HEADER_BYTES:])
    struct.pack_into("<i", payload, at - HEADER_BYTES, offset + 1)

    with pytest.raises(CorruptLogError, match="begins inside"):
        check_batch(sealed(bytes(payload), parse_header(batch)))
