"""Fetches where something fails that nobody thought of, and sessions that are closed."""

import asyncio

import pytest
from tests.support.http.turns import turn
from tests.support.service.fakes import Bench, until
from tests.support.service.fetch import Fetches, fetch, send
from tests.support.service.follow import Follower

from paceline.errors import StorageError
from paceline.wire.stream import FetchCode


async def test_pages_that_cannot_be_read_for_whatever_reason_end_the_session(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waits is told, and the reason is logged; a session begun anew is answered."""
    monkeypatch.setattr("paceline_broker.service.fetch.read.HOT_TAIL_BYTES", 0)
    bench = Bench(is_automatic=False)
    send(bench, 0)
    send(bench, 0)
    bench.writer.confirm_all()
    bench.log.cold.add(1)

    async def fail(view: memoryview) -> None:
        bench.log.cold.clear()
        raise ValueError("mmap closed or invalid")

    monkeypatch.setattr(bench.log, "warm", fail)
    follower = Follower(bench)
    follower.ask((0, 0))
    await until(lambda: 1 in follower.sink.errors)
    assert isinstance(follower.sink.errors[1], StorageError)
    assert "mmap closed or invalid" in caplog.text

    anew = Follower(bench)
    assert anew.sink.counts(anew.ask((0, 0))) == 2


async def test_a_round_that_fails_for_whatever_reason_keeps_no_later_one_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R3."""
    bench = Bench()
    read_round = bench.writer.read_round

    async def fail() -> None:
        bench.writer.read_round = read_round  # type: ignore[method-assign]
        raise ValueError("nobody thought of it")

    bench.writer.read_round = fail  # type: ignore[method-assign]
    follower = Follower(bench)
    first = follower.ask((0, 5))
    await until(lambda: first in follower.sink.answers)
    second = follower.ask((0, 5))
    await until(lambda: second in follower.sink.answers)

    assert follower.parts(first) == [(0, FetchCode.NOT_YET_AVAILABLE)]
    assert follower.parts(second) == [(0, FetchCode.OFFSET_OUT_OF_RANGE)]
    assert "nobody thought of it" in caplog.text


@pytest.mark.parametrize("wait_ms", [0, 30_000])
async def test_a_plain_fetch_is_told_that_pages_cannot_be_read_for_whatever_reason(
    wait_ms: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("paceline_broker.service.fetch.read.HOT_TAIL_BYTES", 0)
    bench = Bench(is_automatic=False)
    send(bench, 0)
    send(bench, 0)
    bench.writer.confirm_all()
    bench.log.cold.add(1)

    async def fail(view: memoryview) -> None:
        bench.log.cold.clear()
        raise ValueError("mmap closed or invalid")

    monkeypatch.setattr(bench.log, "warm", fail)
    sink = Fetches()
    fetch(bench, sink, (0, 0), wait_ms=wait_ms)
    await until(lambda: 1 in sink.errors)

    assert isinstance(sink.errors[1], StorageError)
    assert "mmap closed or invalid" in caplog.text
    assert bench.service.fetcher.waiting_count == 0
    fetch(bench, sink, (0, 0), request_id=2)
    assert sink.counts(2) == 2


@pytest.mark.parametrize("wait_ms", [0, 30_000])
async def test_a_plain_fetch_whose_round_fails_for_whatever_reason_is_answered(
    wait_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    """R3."""
    bench = Bench()

    async def fail() -> None:
        raise ValueError("nobody thought of it")

    bench.writer.read_round = fail  # type: ignore[method-assign]
    sink = Fetches()
    fetch(bench, sink, (0, 5), wait_ms=wait_ms)
    await until(lambda: 1 in sink.answers)

    assert sink.codes() == [FetchCode.NOT_YET_AVAILABLE]
    assert "nobody thought of it" in caplog.text
    assert bench.service.fetcher.waiting_count == 0


async def test_closing_waits_for_a_session_whose_connection_has_a_plain_fetch_too() -> None:
    bench = Bench()
    is_ended = False

    async def read_round() -> None:
        nonlocal is_ended
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await turn()
            is_ended = True

    bench.writer.read_round = read_round  # type: ignore[method-assign]
    follower = Follower(bench)
    follower.ask((0, 5))
    fetch(bench, follower.sink, (1, 0), request_id=50, wait_ms=5_000)
    await turn()

    await bench.service.fetcher.close()

    assert is_ended
