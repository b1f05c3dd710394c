"""Transactions under load: large halves, many of them, damaged ones; others have their turn."""

import asyncio
from itertools import pairwise

import pytest
from tests.unit.service.fakes import turn, until
from tests.unit.service.test_calls import started
from tests.unit.service.test_transactions import HalfBench

from paceline.errors import DiskFullError
from paceline_broker.projections.transactions import Ended, Half
from paceline_broker.service.halves import HalfBatch, HalfReader
from paceline_broker.service.transactions import HELD_BYTES_MAX, STEP_BYTES

LARGE = b"x" * 1024 * 1024


async def test_ends_of_large_halves_are_read_and_decided_in_steps() -> None:
    """Of 24 MiB a step has some, others have their turn between, and each ends once (R34)."""
    bench = HalfBench()
    large = [bench.half(LARGE)[0] for _ in range(24)]
    [rolled_back, small] = bench.half(b"rolled", b"small", queue_id=1)
    await turn()
    begun = bench.log.end
    held: list[int] = []
    bench.log.on_confirm(lambda _: held.append(bench.log.end))

    rows = await started(bench.end(commit=large, rollback=[rolled_back]))
    await until(lambda: bench.log.end > begun)
    assert (await bench.ends.end_one(small, Ended.COMMITTED))["outcome"] == "COMMITTED"
    assert not rows.done(), "the small one has not waited for all of the large ones"
    [found] = await rows
    assert found == ["COMMITTED"] * 24 + ["ROLLED_BACK"]
    steps = [after - before for before, after in pairwise([begun, *held])]

    assert len(bench.bodies()) == 24
    assert max(steps) <= 2 * STEP_BYTES
    assert await bench.end(commit=large, rollback=[rolled_back]) == found


async def test_many_that_end_large_halves_at_once_hold_so_much_and_all_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = HalfBench()
    large = [bench.half(LARGE)[0] for _ in range(64)]
    kept: list[int] = []
    read = HalfReader.batch_of

    async def reading(reader: HalfReader, half: Half) -> HalfBatch:
        kept.append(bench.ends.held_bytes)
        return await read(reader, half)

    monkeypatch.setattr(HalfReader, "batch_of", reading)
    answers = await asyncio.gather(*(bench.ends.end_one(text, Ended.COMMITTED) for text in large))

    assert {row["outcome"] for row in answers} == {"COMMITTED"}
    assert bench.bodies() == [LARGE] * 64
    assert max(kept) <= HELD_BYTES_MAX + 2 * len(LARGE)
    assert bench.ends.held_bytes == 0


async def test_a_step_that_fails_leaves_the_answers_of_those_before_it() -> None:
    bench = HalfBench()
    large = [bench.half(LARGE)[0] for _ in range(12)]
    await turn()
    bench.log.on_confirm(lambda _: setattr(bench.writer, "refusal", DiskFullError("no room")))

    rows = await bench.end(commit=large)

    assert set(rows) == {"COMMITTED", "DISK_FULL"}
    assert rows == sorted(rows)
    assert len(bench.bodies()) == rows.count("COMMITTED")
