"""Receipts beside commits, resets and locks of the same group."""

import pytest
from tests.unit.service.fakes import Bench
from tests.unit.service.test_receipts import handles, offset_row, receive, replayed, send

from paceline.errors import ReceiptExpiredError, ReceiptsOpenError
from paceline_broker.clocks import Trust


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
    bench.trust = Trust.DIFFERS

    with pytest.raises(ReceiptsOpenError):
        await bench.call("commit", group="g", offsets=[offset_row(1)])


async def test_locked_queue_is_not_given_out() -> None:
    bench = Bench()
    send(bench, 1)
    queue = {"topic": "orders", "queue": 0}
    await bench.call("lock", group="g", client_id="member", queues=[queue])

    assert (await receive(bench))["messages"] == []
    assert (await receive(bench, group="other"))["messages"] == [[1, 0, 0, 1, 1]]
