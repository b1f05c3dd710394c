"""Half messages that are long, odd or many."""

from typing import Any

import pytest
from tests.unit.service.test_transactions import HalfBench


@pytest.mark.parametrize(
    ("column", "filling"),
    [("keys", "\u20ac" * 10_000), ("tags", "\u20ac" * 10_000), ("properties", "\x01" * 5000)],
)
async def test_texts_of_halves_that_end_together_count_for_the_size_of_their_batches(
    column: str, filling: str
) -> None:
    """R34: none is too large to be encoded, with bodies of a byte and texts of 30 KB each."""
    bench = HalfBench()
    ids: list[str] = []
    for first in range(0, 600, 60):  # 18 MB, where a batch is at most 16
        texts = [f"{first + number:03}{filling}" for number in range(60)]
        given: dict[str, Any] = {column: texts}
        if column == "properties":
            given = {"properties_each": [{"PGROUP": "payers", "note": text} for text in texts]}
        ids += bench.half(*[b"a"] * 60, **given)

    assert set(await bench.end(commit=ids)) == {"COMMITTED"}

    assert len(bench.bodies()) == 600
