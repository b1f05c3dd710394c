"""Open halves are stored again at the log's end, so that retention goes on (R14, R26)."""

import asyncio
from operator import sub

import pytest
from tests.support.askers import ANYBODY
from tests.support.http.turns import turn
from tests.support.service.calls import started
from tests.support.service.fakes import until
from tests.support.service.transactions import HalfBench

from paceline.errors import OverloadedError
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.records.header import Cause, Kind
from paceline.types import PhysicalOffset
from paceline_broker.projections.transactions import Ended


async def test_open_halves_are_written_again_so_that_retention_goes_on() -> None:
    """R14, R26, R34: the transaction keeps its id."""
    bench = HalfBench()
    ended, text = bench.half(b"a", b"b", producer_id=7, base_sequence=0)
    assert await bench.end(rollback=[ended]) == ["ROLLED_BACK"]
    needs = bench.service.transactions.needs
    old = needs.oldest()
    assert old is not None

    needs.append_again(bench.writer.end)
    assert await needs.turn()
    assert not await needs.turn()

    assert bench.kinds()[-1] == (Kind.HALF, Cause.AGAIN)
    moved = needs.oldest()
    assert moved is not None
    assert moved > old
    assert await bench.end(commit=[text]) == ["COMMITTED"]
    assert bench.bodies() == [b"b"]
    assert bench.log.views()[-1].properties()[0]["UNIQ_KEY"] == "0000000000000007:0:1:0:1"
    assert needs.oldest() is None


async def test_an_end_that_was_read_before_the_half_moved_ends_it_all_the_same() -> None:
    bench = HalfBench()
    [text] = bench.half(b"a")
    needs = bench.service.transactions.needs
    needs.append_again(bench.writer.end)

    # One after another begins; the first has read and not decided when the second moves the half.
    await asyncio.gather(bench.ends.end_one(text, Ended.COMMITTED, asker=ANYBODY), needs.turn())

    assert bench.kinds()[-2:] == [(Kind.HALF, Cause.AGAIN), (Kind.NORMAL, Cause.COMMITTED)]
    assert bench.bodies() == [b"a"]


def old_halves(bench: HalfBench) -> PhysicalOffset:
    """8 MB of open halves in batches of 2 MB; where they end."""
    for _ in range(4):
        bench.half(*[bytes(50_000)] * 40)
    return bench.writer.end


async def all_written_again(bench: HalfBench, below: PhysicalOffset) -> None:
    """No open half is left there."""
    needs = bench.service.transactions.needs
    while await needs.turn():
        pass
    oldest = needs.oldest()
    assert oldest is not None
    assert oldest >= below


async def test_open_halves_are_written_again_a_little_at_a_time() -> None:
    """R26: others have the loop, and the log is asked each time whether it takes more."""
    bench = HalfBench()
    old = old_halves(bench)
    needs = bench.service.transactions.needs

    needs.append_again(old)
    ends = [old, bench.writer.end]
    running = spawn(needs.run(), name="half-needs")

    def is_done() -> bool:
        ends.append(bench.writer.end)
        oldest = needs.oldest()
        return oldest is not None and oldest >= old

    await until(is_done)
    await cancel_and_wait(running)

    assert max(map(sub, ends[1:], ends)) < 1024 * 1024
    assert bench.role.projections.transactions.open_count == 160


async def test_a_log_that_takes_no_more_is_asked_between_two_turns() -> None:
    bench = HalfBench()
    old = old_halves(bench)
    needs = bench.service.transactions.needs
    needs.append_again(old)
    assert await needs.turn()
    end = bench.writer.end
    assert old < end < old + 512 * 1024
    bench.writer.refusal = OverloadedError("enough", retry_after_ms=1000)

    with pytest.raises(OverloadedError):
        await needs.turn()

    assert bench.writer.end == end
    bench.writer.refusal = None
    await all_written_again(bench, old)


async def test_nothing_is_written_again_while_the_last_turn_is_not_confirmed() -> None:
    bench = HalfBench()
    old = old_halves(bench)
    needs = bench.service.transactions.needs
    needs.append_again(old)
    await turn()
    bench.log.is_automatic = False
    assert await needs.turn()
    end = bench.writer.end

    waiting = await started(needs.turn())
    await turn()
    assert (waiting.done(), bench.writer.end) == (False, end)
    bench.writer.confirm_all()

    assert await waiting
    assert bench.writer.end > end


async def test_halves_in_cold_batches_are_written_again_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk is waited for, not the cleaner's next look."""
    monkeypatch.setattr("paceline_broker.service.transactions.half_messages.HOT_TAIL_BYTES", 0)
    bench = HalfBench()
    old = old_halves(bench)
    monkeypatch.setattr(bench.log, "is_cold", lambda view: True)
    needs = bench.service.transactions.needs
    needs.append_again(old)

    await all_written_again(bench, old)
    assert bench.log.warmed >= 4


async def test_a_batch_that_is_being_mended_does_not_hold_up_the_others() -> None:
    bench = HalfBench()
    [text] = bench.half(b"damaged")
    bench.half(b"sound")
    needs = bench.service.transactions.needs
    old, damaged = bench.writer.end, needs.oldest()
    assert damaged is not None
    bench.log.bad.add(damaged)
    needs.append_again(old)
    while await needs.turn():
        pass
    assert needs.oldest() == damaged
    assert bench.log.views()[-1].bodies() == [b"sound"]

    bench.log.bad.clear()
    needs.append_again(old)
    await all_written_again(bench, old)
    assert await bench.end(commit=[text]) == ["COMMITTED"]
