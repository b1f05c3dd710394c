"""The second phase on its way: ends of transactions to the masters, many in one call.

An end is repeated, at whoever is master, until its outcome is definite: the same end again is
answered the same (R34). What is asked for while two calls to a broker group are under way becomes
the next one, so thousands a second take few calls.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from paceline.errors import BY_CODE, DeadlineError, OutcomeUnknownError, PacelineError, PeerError
from paceline.net.backoff import Backoff
from paceline.net.group_links import PASSING, GroupLinks
from paceline.net.refusals import NOT_ALLOWED
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.types import GroupName
from paceline.wire.calls.messages import EndRow, EndTransactions
from paceline.wire.message_ids import parse_handle

CALLS_MAX = 2
ENDS_OF_A_CALL = 1024
HANDLE_KIND = "tx"


@dataclass(slots=True)
class _End:
    transaction_id: str
    is_commit: bool
    deadline: float
    outcome: "asyncio.Future[None]"
    is_unknown: bool = False
    """It may have been carried out: nobody heard the answer of an attempt."""


class TransactionEndSender:
    """Ends of one producer, for all broker groups. Used on its event loop."""

    def __init__(self, links: GroupLinks, *, timeout_ms: int, attempt_ms: int) -> None:
        self._links = links
        self._timeout_ms = timeout_ms
        self._attempt_ms = attempt_ms
        self._lanes: dict[GroupName, _Lane] = {}
        self._loop = asyncio.get_running_loop()

    def end(self, transaction_id: str, *, is_commit: bool) -> "asyncio.Future[None]":
        """Commit or roll back; done when that is confirmed.

        TransactionEndedError: it has ended otherwise. TransactionNotFoundError, BadRequestError:
        there is none of that id. NotAuthorizedError: the user may not, and nothing has ended.
        OutcomeUnknownError after the time limit, or where an attempt failed and the next was
        refused: if the end has not arrived, the broker will ask a producer of the group.
        """
        group = GroupName(parse_handle(HANDLE_KIND, transaction_id).group)
        lane = self._lanes.get(group)
        if lane is None:
            lane = self._lanes[group] = _Lane(self._links, group, self._attempt_ms)
        deadline = self._loop.time() + self._timeout_ms / 1000
        end = _End(transaction_id, is_commit, deadline, self._loop.create_future())
        end.outcome.add_done_callback(_retrieve)
        lane.add(end)
        return end.outcome

    async def close(self) -> None:
        """What is under way gets no outcome any more."""
        for lane in self._lanes.values():
            await lane.close()


def _retrieve(outcome: "asyncio.Future[None]") -> None:
    """Whoever asked may have gone: an error that nobody takes is no bug."""
    if not outcome.cancelled():
        outcome.exception()


class _Lane:
    """Ends for one broker group."""

    def __init__(self, links: GroupLinks, group: GroupName, attempt_ms: int) -> None:
        self._links = links
        self._group = group
        self._attempt_ms = attempt_ms
        self._waiting: deque[_End] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._put_off: dict[int, tuple[asyncio.TimerHandle, list[_End]]] = {}
        """What a master put off, by a number: it waits aside, and others have the calls."""
        self._number = 0
        self._backoff = Backoff(links.cluster.random)
        self._is_pump_due = False
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    def add(self, end: _End) -> None:
        if self._is_closed:
            _give_up([end], OutcomeUnknownError("the producer is closed"))
            return
        self._waiting.append(end)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_due = False
        while self._waiting and len(self._calls) < CALLS_MAX and not self._is_closed:
            count = min(len(self._waiting), ENDS_OF_A_CALL)
            ends = [self._waiting.popleft() for _ in range(count)]
            task = spawn(self._run(ends), name=f"ends-{self._group}")
            self._calls.add(task)
            task.add_done_callback(self._called)

    def _called(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(task)
        self._pump()

    async def _run(self, ends: list[_End]) -> None:
        """One call; what a master put off comes again after a while."""
        try:
            again = await self._call(ends)
        except BaseException:
            _give_up(ends, OutcomeUnknownError("the producer was closed before the answer"))
            raise
        if not again:
            self._backoff.reset()
            return
        self._number += 1
        delay_s = self._backoff.next_ms() / 1000
        timer = self._loop.call_later(delay_s, self._come_again, self._number)
        self._put_off[self._number] = (timer, again)

    def _come_again(self, number: int) -> None:
        _, ends = self._put_off.pop(number)
        self._waiting.extend(ends)
        self._pump_soon()

    async def _call(self, ends: list[_End]) -> list[_End]:
        """One call; what has to be repeated."""
        now = self._loop.time()
        late = [end for end in ends if end.deadline <= now]
        _give_up(late, _not_known("no master answered in time"))
        ends = [end for end in ends if end.deadline > now]
        if not ends:
            return []
        ends.sort(key=lambda end: not end.is_commit)  # stable; the order of the answer's rows
        request = EndTransactions(
            commit=[end.transaction_id for end in ends if end.is_commit],
            rollback=[end.transaction_id for end in ends if not end.is_commit],
        )
        limit_ms = int((min(end.deadline for end in ends) - now) * 1000) + 1
        try:
            answer, _ = await self._links.call(
                self._group,
                request,
                timeout_ms=limit_ms,
                attempt_ms=self._attempt_ms,
                on_unknown=lambda _: _doubt(ends),
            )
            return _settle(ends, answer.ends)
        except DeadlineError as error:
            _doubt(ends)
            return [end for end in ends if not _is_late(end, self._loop.time(), error)]
        except PacelineError as error:
            _give_up(ends, error)
            return []

    async def close(self) -> None:
        """Nothing is begun any more; what has no outcome gets none."""
        self._is_closed = True
        await cancel_and_wait(*self._calls)
        error = OutcomeUnknownError("the producer was closed before the transaction ended")
        for timer, ends in self._put_off.values():
            timer.cancel()
            _give_up(ends, error)
        self._put_off.clear()
        _give_up(self._waiting, error)
        self._waiting.clear()


def _doubt(ends: list[_End]) -> None:
    for end in ends:
        end.is_unknown = True


def _is_late(end: _End, now: float, error: PacelineError) -> bool:
    if end.deadline > now:
        return False
    _give_up([end], _not_known(error.message))
    return True


def _not_known(why: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"whether the transaction has ended is not known: {why}; if it has not, the broker will ask"
        " a producer of its group"
    )


def _give_up(ends: "list[_End] | deque[_End]", error: PacelineError) -> None:
    for end in ends:
        if not end.outcome.done():
            end.outcome.set_exception(type(error)(error.message, **error.details))


def _settle(ends: list[_End], rows: list[EndRow]) -> list[_End]:
    """Tell the outcomes; what a master put off."""
    if len(rows) != len(ends):
        raise PeerError(f"{len(rows)} answers for {len(ends)} ends of transactions")
    again = []
    for end, row in zip(ends, rows, strict=True):
        if row.code is None:
            if not end.outcome.done():
                end.outcome.set_result(None)
            continue
        kind = BY_CODE.get(row.code, OutcomeUnknownError)
        if issubclass(kind, PASSING):
            end.is_unknown |= not kind.is_definite
            again.append(end)
            continue
        if end.is_unknown and issubclass(kind, NOT_ALLOWED):
            _give_up([end], _not_known(f"an attempt failed, the next was refused: {row.detail}"))
            continue
        details = {} if row.outcome is None else {"outcome": row.outcome}
        _give_up([end], kind(str(row.detail), **details))
    return again
