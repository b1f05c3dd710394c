"""Writes the golden record batches: a .bin of bytes beside a .json of what they must decode to.

Run once per format version, by hand:

    .venv/bin/python tests/unit/client/records/golden/generate.py

Files that exist are never written again: they stand for bytes on somebody's disk.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

from paceline.records.decode import BatchView, iter_batches
from paceline.records.encode import encode_batch, encode_internal
from paceline.records.header import HEADER_BYTES, Codec, Kind, stamp

FOLDER = Path(__file__).parent
BORN = 1_700_000_000_000


def _full(codec: Codec) -> bytes:
    """Every column, also with values left out, text beyond ASCII, and an empty body."""
    return encode_batch(
        [b"one", b"", bytes(range(256)) * 4, b'{"flight": 1545}'],
        keys=["N14228", None, "\u00fcber", "\U0001f6a9"],
        tags=["UA", None, "UA", "\u65e5\u672c"],
        properties=[{"carrier": "UA", "a": "\u00e9"}, None, {}, {"": ""}],
        born_unix_ms=[BORN, BORN + 5, BORN + 3, BORN + 9],
        topic_id=7,
        queue_id=3,
        codec=codec,
        producer_id=2**64 - 1,
        producer_epoch=65_535,
        base_sequence=1000,
    )


def _stamped(batch: bytes, physical_offset: int, base_queue_offset: int) -> bytes:
    header = stamp(
        batch,
        physical_offset=physical_offset,
        base_queue_offset=base_queue_offset,
        store_unix_ms=BORN + 100,
        master_epoch=4,
    )
    return header + batch[HEADER_BYTES:]


def _log() -> bytes:
    """Three batches as a segment holds them: epoch start, a body alone, and a compressed one."""
    log = b""
    for batch, queue_offset in (
        (encode_internal(Kind.EPOCH_START, {"epoch": 4}, store_unix_ms=BORN), 0),
        (encode_batch([b"hello"], born_unix_ms=BORN, topic_id=1, queue_id=0), 41),
        (_full(Codec.LZ4), 2**40),
    ):
        log += _stamped(batch, 4096 + len(log), queue_offset)
    return log


def _cases() -> dict[str, bytes]:
    return {
        "batch-v1-one-body": encode_batch([b"hello"], born_unix_ms=BORN, topic_id=1, queue_id=0),
        "batch-v1-bodies": encode_batch(
            [b"a", b"bb", b"ccc"], born_unix_ms=BORN, topic_id=2, queue_id=1
        ),
        "batch-v1-empty-bodies": encode_batch(
            [b"", b""], born_unix_ms=BORN, topic_id=2, queue_id=65_535
        ),
        "batch-v1-half": encode_batch(
            [b"half"], keys=["k"], born_unix_ms=BORN, topic_id=2, queue_id=0, kind=Kind.HALF
        ),
        "batch-v1-full": _full(Codec.NONE),
        "batch-v1-full-lz4": _full(Codec.LZ4),
        "batch-v1-full-zstd": _full(Codec.ZSTD),
        "batch-v1-log": _log(),
    }


def describe(content: bytes) -> list[dict[str, Any]]:
    """Header and records of each batch, as JSON values."""
    found = []
    for at, header in iter_batches(content):
        records = [
            record._asdict() | {"body": base64.b64encode(record.body).decode()}
            for record in BatchView(content, at).records()
        ]
        found.append({"at": at, "header": header._asdict(), "records": records})
    return found


def main() -> None:
    for name, content in _cases().items():
        if (FOLDER / f"{name}.bin").exists():
            sys.stdout.write(f"{name}: kept\n")
            continue
        (FOLDER / f"{name}.bin").write_bytes(content)
        document = json.dumps(describe(content), indent=1, sort_keys=True)
        (FOLDER / f"{name}.json").write_text(document + "\n")
        sys.stdout.write(f"{name}: written, {len(content)} bytes\n")


if __name__ == "__main__":
    main()
