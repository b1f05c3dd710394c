"""Receipts beside commits, resets and locks of the same group."""

import asyncio
from typing import Any

import pytest
from tests.support.service.calls import started
from tests.support.service.fakes import Bench, replayed
from tests.support.service.receipts import handles, offset_row, receive, send

from paceline.errors import ReceiptExpiredError, ReceiptsOpenError
from paceline.types import MasterEpoch
from paceline_broker.controllers.clock_skew import ClockTrust


async def test_commits_wait_until_nothing_is_out_and_a_reset_voids_everything() -> None:
    bench = Bench()
    send(bench, 5)
    given = handles(await receive(bench, max_messages=2))

    with pytest.raises(ReceiptsOpenError):
        await bench.call("commit", group="g", offsets=[offset_row(4)])
    await bench.call("commit", group="g", offsets=[offset_row(1)], reset=True)
    with pytest.raises(ReceiptExpiredError):
        await bench.call("ack", group="g", handles=[given[0]])
    again = await receive(bench, max_messages=1)
    assert again["messages"] == [[1, 0, 1, 2, 1]]
    await bench.call("ack", group="g", handles=handles(again))
    await bench.call("commit", group="g", offsets=[offset_row(4)])

    assert (await receive(bench))["messages"] == [[1, 0, 4, 5, 1]]


async def test_receipts_that_ran_out_do_not_hold_back_a_group_that_consumes_otherwise() -> None:
    bench = Bench()
    send(bench, 6)
    given = handles(await receive(bench, max_messages=4, invisible_ms=10_000))
    await bench.call("ack", group="g", handles=[given[2]])
    bench.clock.advance(9_999)
    with pytest.raises(ReceiptsOpenError):
        await bench.call("commit", group="g", offsets=[offset_row(1)])
    bench.clock.advance(1)

    await bench.call("commit", group="g", offsets=[offset_row(1)])
    again = await receive(bench, invisible_ms=10_000)

    assert again["messages"] == [[1, 0, 1, 2, 2], [1, 0, 3, 4, 2], [1, 0, 4, 6, 1]]
    with pytest.raises(ReceiptsOpenError):  # they are out anew
        await bench.call("commit", group="g", offsets=[offset_row(2)])
    bench.clock.advance(10_000)
    await bench.call("commit", group="g", offsets=[offset_row(6)])
    assert not bench.role.projections.receipts.is_open("g", 1 << 16)
    assert (await receive(bench))["messages"] == []
    assert replayed(bench) == bench.role.projections.snapshot()


async def test_wrong_clock_lets_no_commit_pass_over_receipts() -> None:  # R29
    bench = Bench()
    send(bench, 1)
    await receive(bench, invisible_ms=10_000)
    bench.clock.advance(3_600_000)
    bench.trust = ClockTrust.DIFFERS

    with pytest.raises(ReceiptsOpenError):
        await bench.call("commit", group="g", offsets=[offset_row(1)])


async def test_locked_queue_is_not_given_out() -> None:
    bench = Bench()
    send(bench, 1)
    queue = {"topic": "orders", "queue": 0}
    await bench.call("lock", group="g", client_id="member", queues=[queue])

    assert (await receive(bench))["messages"] == []
    assert (await receive(bench, group="other"))["messages"] == [[1, 0, 0, 1, 1]]


LEASES_MS = 70_000


@pytest.mark.parametrize("order", [True, False])
async def test_nothing_is_given_while_an_acting_masters_locks_may_run(order: bool) -> None:
    """R36: somebody may hold a lock of the queue that this master has never heard of."""
    bench = Bench()
    send(bench, 1)
    locks, now = bench.role.projections.locks, bench.clock.unix_ms()
    locks.withhold(LEASES_MS, now_unix_ms=now, epoch=MasterEpoch(1))
    bench.clock.advance(LEASES_MS - 1)
    withheld = await receive(bench, order=order)
    bench.clock.advance(1)

    given = await receive(bench, order=order)

    assert withheld["messages"] == []
    assert given["messages"] == [[1, 0, 0, 1, 1]]


async def test_receiver_that_waits_is_given_a_queue_when_its_lock_is_given_back() -> None:
    bench = Bench()
    send(bench, 1)
    queue: dict[str, Any] = {"topic": "orders", "queue": 0}
    locked = await bench.call("lock", group="g", client_id="member", queues=[queue])
    waiting = await started(receive(bench, wait_ms=20_000))
    assert not waiting.done()
    token = locked["queues"][0]["token"]

    await bench.call("unlock", group="g", client_id="member", queues=[{**queue, "token": token}])

    assert (await started(waiting)).result()[0][0]["messages"] == [[1, 0, 0, 1, 1]]


@pytest.mark.parametrize("call", ["commit", "reset", "clone_offsets"])
async def test_receiver_that_waits_is_given_what_a_reset_brings_back(call: str) -> None:
    bench = Bench()
    send(bench, 2)
    await bench.call("commit", group="other", offsets=[offset_row(1)])
    await bench.call("ack", group="g", handles=handles(await receive(bench)))
    waiting = await started(receive(bench, wait_ms=20_000))
    assert not waiting.done()
    arguments: dict[str, dict[str, Any]] = {
        "commit": {"offsets": [offset_row(1)], "reset": True},
        "reset": {"topic": "orders", "offset": 1},
        "clone_offsets": {"topic": "orders", "source": "other"},
    }

    await bench.call(call, group="g", **arguments[call])

    async with asyncio.timeout(5):
        assert (await waiting)[0]["messages"] == [[1, 0, 1, 2, 1]]


async def test_receiver_that_waits_for_room_has_it_when_a_commit_passes_over_receipts() -> None:
    bench = Bench(pop_inflight_message_threshold=1)
    send(bench, 2)
    await receive(bench, max_messages=1, invisible_ms=10_000)
    waiting = await started(receive(bench, client_id="c2", wait_ms=20_000))
    assert not waiting.done()
    bench.clock.advance(10_000)

    await bench.call("commit", group="g", offsets=[offset_row(1)])

    async with asyncio.timeout(5):
        assert (await waiting)[0]["messages"] == [[1, 0, 1, 2, 1]]


async def test_receiver_that_waits_looks_again_when_a_lock_runs_out() -> None:
    bench = Bench()
    send(bench, 1)
    queue = {"topic": "orders", "queue": 0}
    await bench.call("lock", group="g", client_id="member", queues=[queue], lease_ms=1_000)
    waiting = await started(receive(bench, wait_ms=20_000))
    timer = bench.service.receipts._due["g"]
    loop = asyncio.get_running_loop()

    assert 0.9 < timer.when() - loop.time() <= 1.01
    waiting.cancel()
