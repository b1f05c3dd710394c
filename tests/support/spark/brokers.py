"""What tests of brokers share with others."""

from paceline.records.encode import encode_batch
from paceline.records.header import stamp


def a_batch(base: int, count: int = 2, topic_id: int = 1) -> bytes:
    raw = encode_batch([b"x"] * count, born_unix_ms=1, topic_id=topic_id, queue_id=0)
    return stamped(raw, base)


def stamped(raw: bytes, base: int) -> bytes:
    return stamp(
        raw[:96], physical_offset=0, master_epoch=1, base_queue_offset=base, store_unix_ms=1
    ) + raw[96:]  # fmt: skip
