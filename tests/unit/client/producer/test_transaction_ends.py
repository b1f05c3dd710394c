"""Ends of transactions on their way: calls are for who can be served; none begins at the end."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.http.turns import turn
from tests.support.service.fakes import until

from paceline.errors import NotAuthorizedError, OutcomeUnknownError, PeerError
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import SeededRandom
from paceline.producer.transaction_ends import CALLS_MAX, TransactionEndSender
from paceline.wire.calls.messages import EndRow, EndTransactions, TransactionEnds
from paceline.wire.message_ids import OffsetMessageId, make_handle


class Links:
    """Masters that put off what they are told to, and do not answer at all while `is_silent`."""

    def __init__(self) -> None:
        self.cluster = SimpleNamespace(random=SeededRandom("ends"))
        self.put_off: set[str] = set()
        self.refused: set[str] = set()
        self.lost: set[str] = set()
        """Ends of which an attempt was made whose answer nobody heard."""
        self.unknown_once: set[str] = set()
        self.is_silent = False
        self.calls = 0

    async def call(
        self, group: str, request: EndTransactions, *, on_unknown: Any = None, **_: Any
    ) -> Any:
        self.calls += 1
        if self.lost & {*request.commit} and on_unknown is not None:
            on_unknown(PeerError("the connection was lost"))
        if self.is_silent:
            await asyncio.Event().wait()
        return TransactionEnds([self._row(text) for text in request.commit]), None

    def _row(self, text: str) -> EndRow:
        code, detail = None, None
        if text in self.put_off:
            code = "NOT_YET_AVAILABLE"
        elif text in self.unknown_once:
            self.unknown_once.remove(text)
            code = "OUTCOME_UNKNOWN"
        elif text in self.refused:
            code, detail = "NOT_AUTHORIZED", "ann may not Pub on Topic:t"
        return EndRow(transaction_id=text, outcome=None, code=code, detail=detail)


def a_sender(links: Links) -> TransactionEndSender:
    return TransactionEndSender(cast(GroupLinks, links), timeout_ms=60_000, attempt_ms=1_000)


def an_id(number: int) -> str:
    return make_handle("tx", OffsetMessageId("g1", 96, number))


async def test_ends_that_are_put_off_keep_no_call_from_others() -> None:
    links = Links()
    sender = a_sender(links)
    links.put_off = {an_id(number) for number in range(CALLS_MAX)}
    waiting = []
    for number in range(CALLS_MAX):
        waiting.append(sender.end(an_id(number), is_commit=True))
        await until(lambda: links.calls > number)  # noqa: B023 - a call of its own for each

    async with asyncio.timeout(10):
        await sender.end(an_id(9), is_commit=True)
    assert not any(end.done() for end in waiting)
    links.put_off.clear()
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)
    await sender.close()


async def test_a_sender_that_closes_begins_no_call() -> None:
    links = Links()
    sender = a_sender(links)
    links.put_off = {an_id(7)}
    ends = [sender.end(an_id(7), is_commit=True)]
    await until(lambda: links.calls == 1)
    await turn()
    links.is_silent = True
    for number in range(CALLS_MAX):
        ends.append(sender.end(an_id(number), is_commit=True))
        await until(lambda: links.calls > number + 1)  # noqa: B023
    ends.append(sender.end(an_id(8), is_commit=True))
    begun = links.calls

    await sender.close()
    ends.append(sender.end(an_id(9), is_commit=True))
    await turn()

    assert links.calls == begun
    for end in ends:
        with pytest.raises(OutcomeUnknownError):
            await end


async def test_an_end_that_is_refused_after_an_answer_was_lost_is_not_known() -> None:
    """The attempt before may have been carried out: the message shows, or has gone."""
    links = Links()
    sender = a_sender(links)
    links.refused = {an_id(1), an_id(2)}
    links.lost = {an_id(1)}

    with pytest.raises(OutcomeUnknownError, match="ann may not Pub"):
        await sender.end(an_id(1), is_commit=True)
    with pytest.raises(NotAuthorizedError):
        await sender.end(an_id(2), is_commit=True)
    await sender.close()


async def test_an_end_whose_master_fell_before_it_was_refused_is_not_known() -> None:
    """As above, where the master itself says that it does not know."""
    links = Links()
    sender = a_sender(links)
    links.unknown_once = {an_id(1)}
    links.refused = {an_id(1)}

    with pytest.raises(OutcomeUnknownError, match="ann may not Pub"):
        await sender.end(an_id(1), is_commit=True)
    await sender.close()
