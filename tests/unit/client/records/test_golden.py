"""Bytes of every format version that was ever stored are read as they were meant."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.records.checking import check_batch
from paceline.records.decode import BatchView, iter_batches
from paceline.records.encode import encode_batch

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.bin"))


def test_the_golden_files_are_there() -> None:
    assert len(NAMES) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_file_decodes_to_what_was_written(name: str) -> None:
    content = (GOLDEN / f"{name}.bin").read_bytes()
    expected: list[dict[str, Any]] = json.loads((GOLDEN / f"{name}.json").read_text())

    found = list(iter_batches(content))

    assert [at for at, _ in found] == [batch["at"] for batch in expected]
    for (at, header), batch in zip(found, expected, strict=True):
        assert header._asdict() == batch["header"]
        view = BatchView(content, at)
        view.verify()
        records = [
            record._asdict() | {"body": base64.b64encode(record.body).decode()}
            for record in view.records()
        ]
        assert records == batch["records"]
        assert check_batch(view.raw) == header


def test_the_encoder_still_makes_the_golden_bytes_of_an_uncompressed_batch() -> None:
    golden = (GOLDEN / "batch-v1-bodies.bin").read_bytes()

    made = encode_batch(
        [b"a", b"bb", b"ccc"], born_unix_ms=1_700_000_000_000, topic_id=2, queue_id=1
    )

    assert made == golden
