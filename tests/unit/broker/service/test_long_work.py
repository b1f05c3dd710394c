"""Work of many turns of the loop: one step each turn, askers in turn, held in the budget."""

import asyncio
import gc
from collections.abc import Generator, Iterator
from weakref import ref

import pytest
from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench, until
from tests.support.service.send import Answers

from paceline.errors import (
    BadRequestError,
    CorruptBatchError,
    NotMasterError,
    OverloadedError,
    PacelineError,
    StorageError,
)
from paceline.platform.runtime import pause
from paceline.records.header import RECORDS_MAX, Codec
from paceline.server.byte_budget import MIB, ByteBudget
from paceline_broker.service import long_work
from paceline_broker.service.long_work import LongWork


def steps(name: str, count: int, log: list[str]) -> Iterator[None]:
    for number in range(count):
        log.append(f"{name}{number}")
        yield


def ignore(error: PacelineError | None) -> None:
    assert error is None


async def test_each_turn_has_one_step_and_askers_come_in_turn() -> None:
    log: list[str] = []
    work = LongWork(ByteBudget())
    for name, asker in (("a", "one"), ("b", "one"), ("c", "two")):
        work.start(steps(name, 2, log), ignore, asker=asker)
    while not work.is_idle:
        before = len(log)
        await pause(0)
        assert len(log) <= before + 1

    assert log == ["a0", "a1", "c0", "c1", "b0", "b1"]


async def test_unpacked_bytes_are_held_from_the_first_step_to_the_end() -> None:
    budget = ByteBudget(96 * MIB)
    work = LongWork(budget)
    errors: list[PacelineError | None] = []
    work.start(steps("a", 2, []), errors.append, asker=None, raw_bytes=10 * MIB)
    work.start(steps("b", 1, []), errors.append, asker=None, raw_bytes=97 * MIB)
    assert budget.used_bytes == 0

    work.turn()
    assert budget.used_bytes == 10 * MIB
    await until(lambda: work.is_idle)

    assert budget.used_bytes == 0
    assert errors[0] is None
    assert isinstance(errors[1], OverloadedError)
    assert work.refused == 1


async def test_who_has_left_gets_nothing_done() -> None:
    log: list[str] = []
    work = LongWork(ByteBudget())
    under_way = work.start(steps("a", 9, log), ignore, asker=None, raw_bytes=5)
    waiting = work.start(steps("b", 9, log), ignore, asker=None)
    work.turn()
    under_way.cancel()
    waiting.cancel()
    await until(lambda: work.is_idle)

    assert log == ["a0"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await work.run(endless(), asker=None)
    await until(lambda: work.is_idle)


def endless() -> Generator[None, None, None]:
    while True:
        yield


async def test_what_was_refused_leaves_nothing_for_a_full_garbage_collection() -> None:
    """A flood of refusals had the loop stand for 100 ms each time that all were collected."""

    def refused() -> Generator[None, None, None]:
        yield
        raise BadRequestError("not so", field="expression")

    work = LongWork(ByteBudget())
    errors: list[ref[BaseException]] = []
    gc.disable()
    try:
        try:
            await work.run(refused(), asker=None)
        except BadRequestError as error:
            errors.append(ref(error))
        await pause(0)
        assert [error() for error in errors] == [None]
    finally:
        gc.enable()


async def test_a_fault_is_told_and_the_line_goes_on() -> None:
    def broken() -> Generator[None, None, None]:
        yield
        raise ZeroDivisionError

    work = LongWork(ByteBudget())
    with pytest.raises(StorageError):
        await work.run(broken(), asker=None)
    log: list[str] = []
    work.start(steps("a", 1, log), ignore, asker=None)
    await until(lambda: work.is_idle)
    assert log == ["a0"]


async def test_the_line_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "JOBS_MAX", 1)
    work = LongWork(ByteBudget())
    work.start(steps("a", 1, []), ignore, asker=None)

    with pytest.raises(OverloadedError):
        work.start(steps("b", 1, []), ignore, asker=None)
    await until(lambda: work.is_idle)


async def test_small_compressed_batches_of_one_turn_have_a_bound() -> None:
    """1,700 batches of 150 bytes fit into one read; each may unpack to 64 KiB."""
    bench = Bench()
    sink, before = Answers(), len(bench.log.batches)
    batch = a_batch(*[b"x" * 600] * 100, codec=Codec.ZSTD)
    raw_bytes = 60_000
    for number in range(100):
        bench.service.sender.send(batch, sink, number)

    done = len(bench.log.batches) - before
    assert done * raw_bytes <= 600_000, "a topic record, and what fits into 512 KiB"
    await until(lambda: bench.service.work.is_idle)
    assert len(bench.log.batches) - before == 101


async def test_nothing_known_before_a_long_check_counts_after_it() -> None:
    """R1: the step that appends asks who is master, not the one that began to check."""
    bench = Bench()
    sink = Answers()
    stored = bench.log.end
    batch = a_batch(*[b""] * RECORDS_MAX, properties=[{"a": "1"}] * RECORDS_MAX)
    assert bench.service.sender.send(batch, sink, 1) is not None
    bench.service.work.turn()
    bench.role.become_replica()
    bench.finish_work()

    assert isinstance(sink.last, NotMasterError)
    assert bench.log.end == stored


@pytest.mark.parametrize("name", ["RECONSUME_TIME", ""])
async def test_every_record_of_a_long_batch_is_looked_at(name: str) -> None:
    bench = Bench()
    sink, stored = Answers(), bench.log.end
    rows: list[dict[str, str]] = [{"a": "1"}] * RECORDS_MAX
    batch = a_batch(*[b""] * RECORDS_MAX, properties=[*rows[1:], {name: "x"}], codec=Codec.ZSTD)
    bench.service.sender.send(batch, sink, 1)
    bench.finish_work()

    assert isinstance(sink.last, BadRequestError)
    spoiled = batch[:-9] + bytes([batch[-9] ^ 1]) + batch[-8:]
    bench.service.sender.send(spoiled, sink, 2)
    bench.finish_work()
    assert isinstance(sink.last, CorruptBatchError)
    assert bench.log.end == stored
