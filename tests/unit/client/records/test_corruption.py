"""Any bytes decode to a batch or CorruptLogError; damage is found; bombs do not go off."""

import struct
from collections.abc import Callable
from typing import Any

import lz4.block
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.records.corruption import sealed

from paceline.errors import CorruptLogError, TooLargeError
from paceline.records.checking import check_batch
from paceline.records.decode import BatchView, iter_batches
from paceline.records.encode import encode_batch
from paceline.records.header import (
    BATCH_BYTES_MAX,
    COLUMN_SETS,
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    Codec,
    pack_header,
    parse_header,
)

READERS: list[Callable[[BatchView], Any]] = [
    BatchView.bodies,
    BatchView.body_views,
    BatchView.keys,
    BatchView.tags,
    BatchView.properties,
    BatchView.born,
    BatchView.document,
    lambda view: list(view.records()),
]


def a_batch(codec: Codec = Codec.NONE) -> bytes:
    return encode_batch(
        [b"one", b"", b"three" * 40],
        keys=["k", "\u00fc\u00fc", None],
        tags=["t", None, "u"],
        properties=[{"a": "b"}, None, {}],
        born_unix_ms=[1, 2, 3],
        topic_id=1,
        queue_id=0,
        codec=codec,
    )


def read_everything(buffer: bytes) -> None:
    """Every reader gives a value or CorruptLogError, and all give one after check_batch has."""
    try:
        check_batch(buffer)
        is_checked = True
    except (CorruptLogError, TooLargeError):
        is_checked = False
    try:
        list(iter_batches(buffer))
        view = BatchView(buffer)
    except CorruptLogError:
        assert not is_checked
        return
    for reader in READERS:
        try:
            reader(view)
        except CorruptLogError:
            # document() asks for more than a batch must be.
            assert not is_checked or reader is BatchView.document


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_give_a_batch_or_corrupt_log_error(content: bytes) -> None:
    read_everything(content)
    read_everything(b"PLB1" + content)


@settings(max_examples=300, deadline=None)
@given(
    codec=st.sampled_from(Codec),
    edits=st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=8)), max_size=4),
    cut=st.integers(0, 40),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "record_count": st.integers(0, 9),
            "columns": st.sampled_from(sorted(COLUMN_SETS)),
            "codec": st.sampled_from(Codec),
            "payload_raw_bytes": st.integers(0, 80).map(lambda words: words * 8),
            "base_sequence": st.integers(-2, 2**31 - 1),
            "producer_id": st.integers(0, 1),
        },
    ),
)
def test_damage_behind_right_crcs_gives_a_batch_or_corrupt_log_error(
    codec: Codec, edits: list[tuple[int, bytes]], cut: int, fields: dict[str, int]
) -> None:
    batch = a_batch(codec)
    header = parse_header(batch)
    payload = bytearray(batch[HEADER_BYTES:])
    for at, piece in edits:
        payload[at : at + len(piece)] = piece
    raw = {} if codec == Codec.NONE else {"payload_raw_bytes": header.payload_raw_bytes}

    read_everything(sealed(bytes(payload[: len(payload) - cut]), header, **(raw | fields)))


@settings(max_examples=200, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 70) | st.integers(0, 2**32 - 1), max_size=40),
    columns=st.sampled_from(sorted(COLUMN_SETS)),
    count=st.integers(1, 4),
)
def test_any_directory_behind_right_crcs_gives_a_batch_or_corrupt_log_error(
    numbers: list[int], columns: int, count: int
) -> None:
    payload = struct.pack(f"<{len(numbers)}I", *numbers)

    read_everything(
        sealed(payload, parse_header(a_batch()), columns=columns, record_count=count, codec=0)
    )


@pytest.mark.parametrize("codec", list(Codec))
def test_every_single_byte_mutation_is_found(codec: Codec) -> None:
    batch = a_batch(codec)

    for at in range(len(batch)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(batch)
            damaged[at] ^= flip
            with pytest.raises(CorruptLogError):
                check_batch(damaged)
            with pytest.raises(CorruptLogError):
                BatchView(damaged).verify()


@pytest.mark.parametrize("codec", list(Codec))
def test_every_truncation_is_found(codec: Codec) -> None:
    batch = a_batch(codec)

    for size in range(len(batch)):
        with pytest.raises(CorruptLogError):
            check_batch(batch[:size])


def test_offsets_that_fall_or_leave_the_blob_are_found() -> None:
    batch = encode_batch([b"ab", b"cd", b"ef"], born_unix_ms=5, topic_id=1, queue_id=0)
    payload = batch[HEADER_BYTES:]
    assert struct.unpack_from("<4i", payload, 16) == (0, 2, 4, 6)

    for offsets in ((0, 4, 2, 6), (0, 2, 7, 6), (0, -1, 4, 6), (1, 2, 4, 6), (0, 2, 4, 5)):
        damaged = payload[:16] + struct.pack("<4i", *offsets) + payload[32:]
        with pytest.raises(CorruptLogError, match="do not rise"):
            check_batch(sealed(damaged, parse_header(batch)))


@pytest.mark.parametrize("raw_bytes", [8, 1 << 20, BATCH_BYTES_MAX])
def test_a_bomb_is_refused_before_it_is_unpacked(raw_bytes: int) -> None:
    """100 MiB of zeros compress to a few KiB; the header may say what it likes."""
    header = parse_header(a_batch())
    huge = bytes(100 * 1024 * 1024)
    bombs = {
        Codec.ZSTD: zstandard.ZstdCompressor().compress(huge),
        Codec.LZ4: lz4.block.compress(huge, store_size=False),
    }

    for codec, packed in bombs.items():
        payload = struct.pack("<II", len(packed), 0) + packed
        with pytest.raises(CorruptLogError):
            check_batch(sealed(payload, header, codec=codec, payload_raw_bytes=raw_bytes))


def test_a_zstd_frame_that_lies_about_its_size_is_refused() -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=False).compress(bytes(4096)))
    assert zstandard.frame_content_size(packed) == 4096
    position = packed.index(struct.pack("<H", 4096 - 256))
    packed[position : position + 2] = struct.pack("<H", 2048 - 256)
    payload = struct.pack("<II", len(packed), 0) + packed

    for raw_bytes in (2048, 4096):
        with pytest.raises(CorruptLogError):
            check_batch(
                sealed(
                    payload,
                    parse_header(a_batch()),
                    codec=Codec.ZSTD,
                    payload_raw_bytes=raw_bytes,
                )
            )


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(512)),
        zstandard.ZstdCompressor().compress(bytes(512)) * 2,
        zstandard.ZstdCompressor().compress(bytes(512)) + b"tail",
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip",
    ],
)
def test_a_zstd_payload_that_is_not_one_sized_frame_is_refused(packed: bytes) -> None:
    payload = struct.pack("<II", len(packed), 0) + packed

    with pytest.raises(CorruptLogError):
        check_batch(
            sealed(payload, parse_header(a_batch()), codec=Codec.ZSTD, payload_raw_bytes=512)
        )


@pytest.mark.parametrize(
    ("keys", "is_whole"),
    [([b"\xc3\xbc", b"x"], True), ([b"\xc3", b"\xbc"], False), ([b"\xff", b"x"], False)],
)
def test_a_key_must_be_whole_utf8_text(keys: list[bytes], is_whole: bool) -> None:
    blob = b"".join(keys)
    offsets = struct.pack("<3i", 0, len(keys[0]), len(blob))
    payload = struct.pack("<IIII", 16, 12, 32, len(blob)) + offsets + bytes(4) + blob
    batch = sealed(payload, parse_header(a_batch()), columns=0b10000100, record_count=2)
    batch = pack_header(parse_header(batch)._replace(born_last_unix_ms=1)) + batch[HEADER_BYTES:]

    if is_whole:
        assert check_batch(batch).record_count == 2
        assert BatchView(batch).keys() == ["\u00fc", "x"]
    else:
        with pytest.raises(CorruptLogError):
            check_batch(batch)
        with pytest.raises(CorruptLogError):
            BatchView(batch).keys()


def a_column_batch(columns: int, limit: int) -> bytes:
    """One record with one column of `limit` bytes, behind right CRCs."""
    blob = b"x" * limit
    offsets = struct.pack("<2i", 0, limit)
    head = (
        struct.pack("<IIII", 16, 8, 24, limit) + offsets
        if columns != 0b1000110000
        else struct.pack("<IIIIIIH6x", 24, 2, 32, 8, 40, limit, 1) + offsets
    )
    header = parse_header(a_batch())._replace(columns=columns, record_count=1, born_last_unix_ms=1)
    return sealed(head + blob, header)


@pytest.mark.parametrize("columns", [0b10000100, 0b1000110000])
def test_a_key_or_tag_over_its_limit_is_too_large_at_the_door(columns: int) -> None:
    assert check_batch(a_column_batch(columns, 32_767)).record_count == 1
    with pytest.raises(TooLargeError):
        check_batch(a_column_batch(columns, 32_768))


def test_a_tag_id_beyond_the_dictionary_is_found() -> None:
    batch = a_column_batch(0b1000110000, 3)
    payload = bytearray(batch[HEADER_BYTES:])
    payload[24] = 2

    for reader in (check_batch, lambda buffer: BatchView(buffer).tags()):
        with pytest.raises(CorruptLogError, match="tag id 2 with 1 tags"):
            reader(sealed(bytes(payload), parse_header(batch)))


@pytest.mark.parametrize("document", [b"[]", b"1", b'{"a":1}', b'{"a":null}', b"{", b"\xff", b"  "])
def test_properties_must_be_an_object_of_strings(document: bytes) -> None:
    offsets = struct.pack("<2i", 0, len(document))
    payload = struct.pack("<IIII", 16, 8, 24, len(document)) + offsets + document
    header = parse_header(a_batch())._replace(columns=0b100001000, record_count=1)
    batch = sealed(payload, header._replace(born_last_unix_ms=1))

    with pytest.raises(CorruptLogError, match="propert"):
        check_batch(batch)


def test_a_body_over_its_limit_is_too_large_at_the_door() -> None:
    blob = bytes(MESSAGE_BYTES_MAX + 8)
    payload = struct.pack("<IIIIii", 16, 8, 24, len(blob), 0, len(blob)) + blob
    header = parse_header(encode_batch([b"x"], born_unix_ms=5, topic_id=1, queue_id=0))

    with pytest.raises(TooLargeError):
        check_batch(sealed(payload, header))


@pytest.mark.parametrize(
    "fields",
    [
        {"producer_id": 0, "base_sequence": 0},
        {"producer_id": 1, "base_sequence": -1},
        {"producer_id": 1, "base_sequence": 2**31 - 2},
        {"born_first_unix_ms": 2},
        {"born_last_unix_ms": 9},
    ],
)
def test_header_fields_that_contradict_each_other_are_refused(fields: dict[str, int]) -> None:
    batch = a_batch()

    with pytest.raises(CorruptLogError):
        check_batch(sealed(batch[HEADER_BYTES:], parse_header(batch), **fields))
