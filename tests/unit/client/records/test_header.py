"""The header: what it refuses, what the broker's stamp changes, and that its CRC covers it all."""

import pytest
from crc32c import crc32c

from paceline.errors import CorruptLogError
from paceline.records.checking import check_batch
from paceline.records.decode import BatchView, iter_batches
from paceline.records.encode import encode_batch
from paceline.records.header import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    Codec,
    Kind,
    pack_header,
    parse_header,
    peek_size,
    stamp,
)


def a_batch() -> bytes:
    return encode_batch(
        [b"one", b"two"],
        born_unix_ms=5,
        topic_id=9,
        queue_id=2,
        producer_id=77,
        producer_epoch=3,
        base_sequence=10,
    )


def restamped(batch: bytes, **fields: int) -> bytes:
    """The batch with header fields replaced and the header CRC right again."""
    return pack_header(parse_header(batch)._replace(**fields)) + batch[HEADER_BYTES:]


def test_fields_stand_where_the_format_page_says() -> None:
    batch = restamped(
        a_batch(), physical_offset=800, base_queue_offset=31, store_unix_ms=6, master_epoch=4
    )

    def number(start: int, end: int) -> int:
        return int.from_bytes(batch[start:end], "little")

    assert batch[0:4] == b"PLB1"
    assert number(4, 8) == len(batch)
    assert number(8, 12) == crc32c(batch[12:96], len(batch))
    assert number(12, 16) == crc32c(batch[96:])
    assert (number(16, 24), number(24, 32), number(32, 40)) == (800, 31, 6)
    assert (number(40, 48), number(48, 56), number(56, 64)) == (5, 5, 77)
    assert (number(64, 68), number(68, 72), number(72, 76)) == (4, 9, len(batch) - 96)
    assert (number(76, 80), number(80, 82), number(82, 84)) == (10, 3, 2)
    assert (number(84, 86), batch[86], batch[87]) == (2, Kind.NORMAL, Codec.NONE)
    assert (number(88, 90), number(90, 92), number(92, 96)) == (0b1000010, 0, 0)


def test_a_stamp_changes_the_brokers_fields_and_nothing_else() -> None:
    batch = a_batch()

    stamped = (
        stamp(
            batch, physical_offset=2**63, base_queue_offset=2**40, store_unix_ms=7, master_epoch=4
        )
        + batch[HEADER_BYTES:]
    )

    before, after = parse_header(batch), check_batch(stamped)
    assert after == before._replace(
        header_crc32c=after.header_crc32c,
        physical_offset=2**63,
        base_queue_offset=2**40,
        store_unix_ms=7,
        master_epoch=4,
    )
    assert after.end_offset == 2**63 + len(batch)
    assert after.end_queue_offset == 2**40 + 2


def test_a_header_parses_from_any_buffer_at_any_place() -> None:
    batch = a_batch()
    buffer = b"12345" + batch

    assert parse_header(buffer, 5) == parse_header(memoryview(batch))
    assert parse_header(bytearray(buffer), 5).topic_id == 9
    assert parse_header(batch[:HEADER_BYTES]).size_bytes == len(batch)


def test_every_single_bit_of_the_header_is_covered_by_parse_header_alone() -> None:
    header = a_batch()[:HEADER_BYTES]

    for bit in range(8 * HEADER_BYTES):
        damaged = bytearray(header)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptLogError):
            parse_header(damaged)


def test_every_other_value_of_a_size_byte_is_refused_without_the_payload() -> None:
    header = a_batch()[:HEADER_BYTES]

    for at in range(4, 8):
        for value in range(256):
            damaged = bytearray(header)
            damaged[at] = value
            if damaged != header:
                with pytest.raises(CorruptLogError):
                    parse_header(damaged)


@pytest.mark.parametrize(
    "fields",
    [
        {"magic": 0x32424C50},
        {"size_bytes": 88},
        {"size_bytes": 132},
        {"size_bytes": BATCH_BYTES_MAX + 8},
        {"kind": max(Kind) + 1},
        {"codec": 3},
        {"codec": 1, "payload_raw_bytes": 0},
        {"codec": 1, "payload_raw_bytes": BATCH_BYTES_MAX + 8},
        {"codec": 2, "payload_raw_bytes": 12},
        {"payload_raw_bytes": 8},
        {"record_count": 0},
        {"columns": 1 << 12},
        {"columns": 0b10},
        {"columns": 0b10000},
        {"base_sequence": -2},
        {"reserved": 1},
    ],
)
def test_a_header_with_a_right_crc_and_a_wrong_field_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(CorruptLogError) as caught:
        parse_header(restamped(a_batch(), **fields))

    assert caught.value.details["offset"] == 0
    assert next(iter(fields)) in caught.value.message


def test_less_than_a_header_is_refused() -> None:
    for size in range(HEADER_BYTES):
        with pytest.raises(CorruptLogError):
            parse_header(a_batch()[:size])
    with pytest.raises(CorruptLogError):
        parse_header(a_batch(), 10_000)


def test_peek_size_needs_eight_bytes_and_no_crc() -> None:
    batch = a_batch()

    assert peek_size(batch[:8]) == len(batch)
    for wrong in (batch[:7], b"PLB2" + batch[4:8], b"PLB1" + bytes(4), b"PLB1\xff\xff\xff\xff"):
        with pytest.raises(CorruptLogError):
            peek_size(wrong)


def test_a_walk_yields_whole_batches_and_refuses_a_cut_one() -> None:
    batch = a_batch()

    assert [at for at, _ in iter_batches(batch * 3)] == [0, len(batch), 2 * len(batch)]
    assert [at for at, _ in iter_batches(batch * 3, 2 * len(batch))] == [2 * len(batch)]
    assert list(iter_batches(b"")) == []
    with pytest.raises(CorruptLogError):
        list(iter_batches(batch * 2 + batch[:-8]))
    with pytest.raises(CorruptLogError):
        list(iter_batches(batch + bytes(8)))


def test_a_view_refuses_a_batch_whose_end_is_missing() -> None:
    batch = a_batch()

    with pytest.raises(CorruptLogError, match="ends after"):
        BatchView(batch[:-1])
    with pytest.raises(CorruptLogError, match="bytes for a batch"):
        check_batch(batch + b"x")
