"""Receipts that are refused, or asked for again: what is said of them, and by whom (R4, R28)."""

import asyncio
from collections.abc import Callable

import pytest
from tests.support.http.turns import turn
from tests.support.service.calls import started
from tests.support.service.fakes import Bench, until
from tests.support.service.receipts import handles, receive, send

from paceline.errors import (
    InvalidReceiptHandleError,
    NotMasterError,
    OutcomeUnknownError,
    OverloadedError,
    ReceiptExpiredError,
)
from paceline.wire.receipts import format_handle, parse_handle
from paceline_broker.projections.receipt_queue import DONE_MAX
from paceline_broker.service.pop import pop as pop_module
from paceline_broker.service.pop.operations import Receive, Turn


async def stale(bench: Bench) -> str:
    """A receipt that is void, of a message that is out under another."""
    send(bench, 1)
    [old] = handles(await receive(bench, invisible_ms=10_000))
    bench.clock.advance(10_000)
    await receive(bench, client_id="c2")
    return old


@pytest.mark.parametrize("call", ["ack", "invisible"])
async def test_refusal_is_answered_after_a_read_round(call: str) -> None:
    """R4: a master that was stopped and goes on knows no grant of a later one."""
    bench = Bench()
    old = await stale(bench)
    more = {"invisible_ms": 20_000} if call == "invisible" else {}
    bench.writer.rounds_blocked = True

    asking = await started(bench.call(call, group="g", handles=[old], **more))
    assert not asking.done()
    bench.writer.end_rounds()

    with pytest.raises(ReceiptExpiredError):
        await asking


async def test_deposed_master_refuses_no_receipt() -> None:
    """R4"""
    bench = Bench()
    send(bench, 1)
    [good] = handles(await receive(bench))
    later = format_handle(parse_handle(good, "g")._replace(offset=7), "g")  # of a later master
    bench.writer.rounds_blocked = True
    asking = await started(bench.call("ack", group="g", handles=[later]))

    bench.role.become_replica()
    bench.service.role_changed()

    with pytest.raises(NotMasterError):
        await asking


async def test_refusal_tells_nothing_that_is_not_confirmed() -> None:
    """R28: the grant that voids a receipt may be lost with this master."""
    bench = Bench(is_automatic=False)
    send(bench, 1)
    asking = await started(receive(bench, invisible_ms=10_000))
    bench.writer.confirm_all()
    [old] = handles((await asking)[0])
    bench.clock.advance(10_000)
    again = await started(receive(bench, client_id="c2"))

    refused = await started(bench.call("ack", group="g", handles=[old]))
    assert not refused.done()
    bench.writer.confirm_all()

    with pytest.raises(ReceiptExpiredError):
        await refused
    assert (await again)[0]["messages"] == [[1, 0, 0, 1, 2]]


async def test_good_receipts_need_no_read_round() -> None:
    bench = Bench()
    send(bench, 1)
    given = handles(await receive(bench))
    before = bench.writer.rounds

    await bench.call("ack", group="g", handles=given)
    await bench.call("ack", group="g", handles=given)

    assert bench.writer.rounds == before
    with pytest.raises(InvalidReceiptHandleError):
        await bench.call("ack", group="other", handles=given)


async def test_repeated_acknowledgement_is_answered_the_same_for_ever() -> None:
    bench = Bench()
    send(bench, 2 * DONE_MAX)
    given: list[str] = []
    while len(given) < 2 * DONE_MAX:
        given += handles(await receive(bench))
    late = given[::2] + given[1::2]  # no two neighbours together
    for at in range(0, len(late), 500):
        await bench.call("ack", group="g", handles=late[at : at + 500])

    answers = [
        await bench.call("ack", group="g", handles=late[at : at + 500])
        for at in range(0, len(late), 500)
    ]

    codes = {row["code"] for answer in answers for row in answer["receipts"]}
    assert codes == {None}
    with pytest.raises(ReceiptExpiredError):
        await bench.call("invisible", group="g", handles=late[:1], invisible_ms=20_000)


async def test_receipt_of_a_deleted_message_is_void() -> None:
    bench = Bench()
    for _ in range(2):
        send(bench, 1)
        await turn()
    given = handles(await receive(bench))
    await bench.call("ack", group="g", handles=given)
    receipts = bench.role.projections.receipts.get("g", 1 << 16)
    queue = bench.role.projections.consume_queues.get(1 << 16)
    assert receipts is not None
    assert queue is not None
    receipts.done.clear()  # as after many others
    queue.drop_below(queue.index(1, 2)[1][0])

    answer = await bench.call("ack", group="g", handles=given)

    assert [row["code"] for row in answer["receipts"]] == ["RECEIPT_EXPIRED", None]


async def test_refused_turns_are_tried_again_by_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each request that is refused meanwhile adds a look to every tenth of a second."""
    bench = Bench()
    waiting = await started(receive(bench, wait_ms=20_000))
    monkeypatch.setattr(pop_module, "_AGAIN_S", 0.02)
    send(bench, 1)
    bench.writer.refusal = OverloadedError("too much is not confirmed", retry_after_ms=1000)
    looks: list[float] = []
    loop = asyncio.get_running_loop()
    ensure = bench.writer.ensure_can_append

    def counted(**options: bool) -> None:
        looks.append(loop.time())
        ensure(**options)

    def after(seconds: float) -> Callable[[], bool]:
        then = loop.time() + seconds
        return lambda: loop.time() > then

    for _ in range(30):
        with pytest.raises(OverloadedError):
            await receive(bench, client_id="c2")
        await until(after(0.0005))
    monkeypatch.setattr(bench.writer, "ensure_can_append", counted)
    await until(after(0.2))
    assert len(looks) <= 12

    bench.writer.refusal = None
    [answer] = await waiting
    assert [row[2:4] for row in answer["messages"]] == [[0, 1]]


async def test_turn_that_fails_at_one_woken_receiver_answers_those_served_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R28: nothing of the turn is in the log, and nobody waits for ever."""
    bench = Bench()
    first = await started(receive(bench, wait_ms=20_000, max_messages=1))
    second = await started(receive(bench, wait_ms=20_000, max_messages=1, client_id="c2"))
    decide = Receive.decide

    def fails(operation: Receive, turn: Turn) -> bool:
        if operation.asked.client_id == "c2":
            raise RuntimeError("a fault of this program")
        return decide(operation, turn)

    monkeypatch.setattr(Receive, "decide", fails)
    send(bench, 2)

    with pytest.raises(OutcomeUnknownError):
        async with asyncio.timeout(5):
            await first
    assert bench.writer.abandoned
    second.cancel()
