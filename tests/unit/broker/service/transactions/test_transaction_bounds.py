"""Transactions under load: large halves, many of them, damaged ones; others have their turn."""

import asyncio
import base64
from itertools import pairwise

import orjson
import pytest
from tests.support.askers import ANYBODY
from tests.support.http.turns import turn
from tests.support.service.calls import started
from tests.support.service.fakes import until
from tests.support.service.transactions import TIME_OUT_MS, HalfBench

from paceline.errors import DiskFullError
from paceline.wire.calls.request import to_json
from paceline.wire.stream import FRAME_BYTES_MAX
from paceline_broker.projections.transactions import Ended, Half
from paceline_broker.service.transactions import half_messages
from paceline_broker.service.transactions.check_back import (
    CHECKS_OF_A_POLL,
    PARKED_OF_A_LOOK,
    UNREADABLE_MS,
)
from paceline_broker.service.transactions.half_messages import HalfBatch, HalfMessageReader
from paceline_broker.service.transactions.known_halves import KnownHalves
from paceline_broker.service.transactions.transactions import HELD_BYTES_MAX, STEP_BYTES

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
    assert (await bench.ends.end_one(small, Ended.COMMITTED, asker=ANYBODY))[
        "outcome"
    ] == "COMMITTED"
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
    read = HalfMessageReader.batch_of

    async def reading(reader: HalfMessageReader, half: Half) -> HalfBatch:
        kept.append(bench.ends.held_bytes)
        return await read(reader, half)

    monkeypatch.setattr(HalfMessageReader, "batch_of", reading)
    answers = await asyncio.gather(
        *(bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY) for text in large)
    )

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


# -- checks ---------------------------------------------------------------------------------------


async def asked_by(bench: HalfBench, group: str = "payers") -> list[str]:
    """Transaction ids that a producer which polls once is asked about by the next look."""
    asking = await started(bench.checks.poll(group, wait_ms=20_000))
    await bench.checks.look()
    await turn()
    if not asking.done():
        asking.cancel()
        return []
    [questions] = await asking
    return [question.transaction_id for question in questions]


async def test_a_damaged_batch_holds_up_the_checks_of_no_other_and_is_asked_about_when_mended() -> (
    None
):
    bench = HalfBench()
    [damaged], [sound] = bench.half(b"a"), bench.half(b"b")
    position = bench.role.projections.transactions.oldest_open()
    assert position is not None
    bench.log.bad.add(position)
    bench.clock.advance(TIME_OUT_MS)

    assert await asked_by(bench) == [sound]
    assert await asked_by(bench) == []
    bench.log.bad.clear()
    assert await asked_by(bench) == [damaged]


async def test_a_batch_that_fails_in_a_way_nobody_thought_of_takes_no_other_damaged_one_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = HalfBench()
    ids, positions = [], []
    for number in range(3):
        positions.append(bench.writer.end)
        ids += bench.half(b"%d" % number)
    positions[0] = bench.role.projections.transactions.oldest_open() or positions[0]
    bench.log.bad.update(positions)
    await bench.checks.look()
    bench.log.bad.clear()
    read = HalfMessageReader.batch_of

    async def fails(reader: HalfMessageReader, half: Half) -> HalfBatch:
        if half.position == positions[0]:
            raise RuntimeError("a fault of this program")
        return await read(reader, half)

    monkeypatch.setattr(HalfMessageReader, "batch_of", fails)
    with pytest.raises(RuntimeError):
        await bench.checks.look()
    bench.clock.advance(TIME_OUT_MS)

    assert await asked_by(bench) == ids[1:]


async def test_questions_about_large_halves_fit_into_their_answers_and_none_is_left_out() -> None:
    """32 of a MiB each were an answer that no client takes."""
    bench = HalfBench()
    texts = [bench.half(LARGE)[0] for _ in range(CHECKS_OF_A_POLL)]
    bench.clock.advance(TIME_OUT_MS)
    asking = await started(bench.checks.poll("payers", wait_ms=20_000))
    await bench.checks.look()
    [answer] = await asking
    answers = [answer]
    while sum(map(len, answers)) < len(texts):
        [ended] = await bench.end(commit=[texts[-1]])  # what has ended is not asked about
        assert ended == "COMMITTED"
        if not (answer := await bench.checks.poll("payers", wait_ms=0)):
            break
        answers.append(answer)

    assert [row.transaction_id for rows in answers for row in rows] == texts[:-1]
    assert max(len(orjson.dumps(to_json(rows))) for rows in answers) < FRAME_BYTES_MAX
    assert await bench.checks.poll("payers", wait_ms=0) == []


async def test_a_large_body_that_json_would_make_larger_is_asked_about_in_base64() -> None:
    bench = HalfBench()
    body = bytes(4 * 1024 * 1024)
    bench.half(body)
    bench.clock.advance(TIME_OUT_MS)
    asking = await started(bench.checks.poll("payers", wait_ms=20_000))
    await bench.checks.look()
    [[question]] = await asking

    assert base64.b64decode(question.body_base64) == body
    assert len(orjson.dumps(to_json(question))) < FRAME_BYTES_MAX


async def test_a_damaged_half_that_is_given_up_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(half_messages, "KEPT_BATCHES", 1)  # the first is read again
    bench = HalfBench(transaction_age_ms_max=60_000)
    bench.half(b"a")
    bench.half(b"b")
    await bench.checks.look()
    position = bench.role.projections.transactions.oldest_open()
    assert position is not None
    bench.log.bad.add(position)
    bench.clock.advance(60_000)

    await bench.checks.look()
    await bench.checks.look()
    assert bench.bodies(2 << 16) == [b"b"]
    bench.log.bad.clear()
    bench.clock.advance(UNREADABLE_MS)
    await bench.checks.look()
    assert bench.bodies(2 << 16) == [b"b", b"a"]


async def test_what_a_new_master_learns_of_halves_leaves_others_their_turn() -> None:
    bench = HalfBench()
    for _ in range(8):
        bench.half(LARGE)
    bench.clock.advance(TIME_OUT_MS)
    turns = 0
    loop = asyncio.get_running_loop()

    looking = loop.create_task(bench.checks.look())

    def others() -> None:
        nonlocal turns
        turns += 1
        if not looking.done():
            loop.call_soon(others)

    loop.call_soon(others)
    await looking

    assert turns >= 7, "a batch of 1 MiB a turn"
    assert len(await asked_by(bench)) == 8


async def test_of_many_parked_halves_a_producer_that_comes_moves_so_many_as_it_is_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = HalfBench()
    ids = bench.half(*[b"%d" % number for number in range(3000)])
    bench.half(b"other", properties={"PGROUP": "others"})
    bench.clock.advance(TIME_OUT_MS)
    await bench.checks.look()
    moved: list[int] = []
    is_due = KnownHalves.is_due

    def counted(known: KnownHalves, source: int, unix_ms: int) -> None:
        moved.append(source)
        is_due(known, source, unix_ms)

    monkeypatch.setattr(KnownHalves, "is_due", counted)
    asked: list[str] = []
    for _ in range(5):
        asked += await asked_by(bench)

    assert len(set(asked)) == 5 * CHECKS_OF_A_POLL
    assert set(asked) <= set(ids)
    assert len(moved) <= 5 * (PARKED_OF_A_LOOK + 3 * CHECKS_OF_A_POLL)


async def test_parked_halves_that_have_ended_are_forgotten_though_no_producer_comes() -> None:
    bench = HalfBench()
    ids = bench.half(*[b"%d" % number for number in range(2000)])
    bench.clock.advance(TIME_OUT_MS)
    await bench.checks.look()
    await bench.end(rollback=ids)
    for _ in range(3):
        await bench.checks.look()

    assert bench.checks.known_count == 0
