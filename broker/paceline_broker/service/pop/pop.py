"""Handing out messages by receipt, and taking the receipts back: the turns of a master (POP).

Everything that simple consumers ask in one turn of the loop is decided together, in the order it
came, on the state at `end`, each on what the one before has left (R28); what was decided is one
record, and all answers leave when confirm has passed it: so nobody is given a message that another
master could give to somebody else meanwhile. Expiry is by log time, decided here and nowhere else,
and not while the controllers say that this clock is wrong (R29).

A receiver that finds nothing waits here until a message comes, one falls due, or its time is over.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import OutcomeUnknownError, PacelineError, PollingFullError
from paceline.platform.ports import Clock
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.wire.receipts import Receipt
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.ports import LogReader, LogWriter, Role
from paceline_broker.projections.cursors import group_of
from paceline_broker.projections.receipt_queue import Run
from paceline_broker.service.pop.filtering import TurnLook
from paceline_broker.service.pop.grant import PopGrant, PopRequest
from paceline_broker.service.pop.operations import (
    EndCursors,
    Operation,
    Receive,
    Settle,
    SettledReceipt,
    Turn,
)
from paceline_broker.service.pop.waiting import WaitingReceives
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings
from paceline_broker.service.topic_records import log_group

log = logging.getLogger("paceline.service")

_AGAIN_S = 0.1
"""A turn that may not append now (R8, R27) looks again after this."""
_LOOK_MS = 1_000
"""A receive that does not wait is answered after this, however much its filter has yet to see."""
_ROWS_MAX = 50_000
"""Receipts named by the operations of one turn; what is beyond comes in the next."""
_SERVED_MAX = 500
"""Receives that wait are answered in one turn, and those that have just come."""
_WAKE_SLACK_S = 0.002
"""Timers may fire a little early; log time is in whole ms."""


@dataclass(slots=True)
class ReceiptCounters:
    """Messages, by what was decided about them (projections/receipts.py has the items)."""

    given: int = 0
    given_again: int = 0
    """Of those: their time had run out, or their receiver gave them back."""
    acknowledged: int = 0
    changed: int = 0
    """Invisible for another time from then on, or given back."""

    def count(self, items: Iterable[Sequence[Any]]) -> None:
        """Take what a turn has put into the log."""
        for kind, *_, rows in items:
            if kind == "give":
                for _, first, end, attempt in rows:
                    self.given += end - first
                    if attempt > 1:
                        self.given_again += end - first
            elif kind == "ack":
                self.acknowledged += sum(end - first for _, first, end, _ in rows)
            elif kind == "change":
                self.changed += len(rows)


class Receipts:
    """The coordinator of simple consumers: one per broker, outlives every role."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        clock: Clock,
        settings: ServiceSettings,
        trust: Callable[[], ClockTrust],
        *,
        on_exhausted: Callable[[str, Sequence[tuple[int, Run]]], None],
        watch: Callable[[int], None],
    ) -> None:
        """`on_exhausted`: told of messages without an attempt left. `watch`: asked to have
        `messages_came` told of a queue's next messages, also of such as are there and not
        confirmed yet."""
        self._role = role
        self._routes = routes
        self._clock = clock
        self._settings = settings
        self._trust = trust
        self._new: list[Operation] = []
        self._woken: dict[tuple[str, int], None] = {}
        self._waiting = WaitingReceives()
        self._due: dict[str, asyncio.TimerHandle] = {}
        """Per group with receivers that wait: when something in flight may fall due."""
        self._is_scheduled = False
        self._look = TurnLook()
        self._again: asyncio.TimerHandle | None = None
        """After a turn that was refused; one, however many are."""
        self._received = 0
        self.counters = ReceiptCounters()
        self._warming: set[asyncio.Task[None]] = set()
        self._on_exhausted = on_exhausted
        self._watch_queue = watch

    # -- asking ------------------------------------------------------------------------------------

    async def receive(self, asked: PopRequest, *, wait_ms: int) -> PopGrant:
        """Messages for a receiver, or none after `wait_ms`. Raises what appending raises."""
        self._received += 1
        operation = Receive(asked, self._settings, self._received)
        operation.is_over = wait_ms == 0
        if wait_ms:
            self._check_room(asked)
        if wait_ms or asked.filters:
            loop = asyncio.get_running_loop()
            seconds = (wait_ms or _LOOK_MS) / 1000
            operation.timer = loop.call_later(seconds, self._time_over, operation)
        try:
            given: PopGrant = await self._decided(operation)
        finally:
            self._forget(operation)
        return given

    async def acknowledge(self, group: str, receipts: Sequence[Receipt]) -> list[SettledReceipt]:
        """End receipts: their messages are done. In the order asked."""
        return await self._settled(Settle(group, receipts, None, is_unseen=False))

    async def change(
        self, group: str, receipts: Sequence[Receipt], invisible_ms: int, *, is_unseen: bool
    ) -> list[SettledReceipt]:
        """Let messages be invisible for so long from now; `is_unseen`: they were not looked at."""
        return await self._settled(Settle(group, receipts, invisible_ms, is_unseen=is_unseen))

    async def _settled(self, operation: Settle) -> list[SettledReceipt]:
        settled: list[SettledReceipt] = await self._decided(operation)
        if any(row.code is not None for row in settled):
            # A master that was deposed knows no grant of a later one (R4).
            assert operation.writer is not None
            await operation.writer.read_round()
        return settled

    def end_receives(self, group: str, client_id: str) -> int:
        """Answer the waiting receives of a client now; how many there were."""
        found = [
            one
            for one in self._receives()
            if one.asked.group == group and one.asked.client_id == client_id and not one.is_late
        ]
        for waiting in found:
            self._time_over(waiting)
        return len(found)

    async def end_cursors(self, cursors: Sequence[str]) -> None:
        """Forget where these clients stand, after what they have asked before."""
        await self._decided(EndCursors(cursors))

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    async def _decided(self, operation: Operation) -> Any:
        self._submit(operation)
        return await operation.future

    def _check_room(self, asked: PopRequest) -> None:
        """RocketMQ's popPollingSize and maxPopPollingSize."""
        settings = self._settings
        is_full = len(self._waiting) >= settings.max_pop_polling_size or any(
            len(self._waiting.at(asked.group, key)) >= settings.pop_polling_size
            for key in asked.keys
        )
        if is_full:
            raise PollingFullError("too many receivers wait here", retry_after_ms=1000)

    # -- turns -------------------------------------------------------------------------------------

    def _submit(self, operation: Operation) -> None:
        if not operation.is_queued:
            operation.is_queued = True
            self._new.append(operation)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._is_scheduled = False
        new, self._new = self._new, []
        for operation in new:
            operation.is_queued = False
        woken, self._woken = self._woken, {}
        try:
            writer = self._role.writer()
            writer.ensure_can_append()
        except PacelineError as error:
            self._refuse_turn(new, woken, error)
            return
        projections = self._role.projections
        now = writer.appender.log_time_ms()
        try:
            groups = {one.group for one in new} | {group for group, _ in woken}
            for group in sorted(set(map(group_of, groups))):
                log_group(writer, projections, self._routes, group, store_unix_ms=now)
        except PacelineError as error:
            self._refuse_turn(new, woken, error)
            return
        may_expire = self._trust() is not ClockTrust.DIFFERS
        position, reader = int(writer.end), self._role.reader
        self._look.begin()
        dead_topic_id = self._routes.dead_topic_id
        turn = Turn(projections, [], now, position, may_expire, reader, self._look, dead_topic_id)
        taken = self._as_many(new)
        decided: list[Operation] = []
        try:
            decided += self._decide_all(taken, turn)
            woken.update(self._freed(turn))
            self._serve_woken(woken, turn, decided)
            if turn.items:
                writer.appender.decided({"items": turn.items}, store_unix_ms=now)
                self.counters.count(turn.items)
        except Exception as error:  # a full disk at a roll (R22), or a fault of this program
            self._end_turn_badly([*taken, *decided], turn, writer, error)
            return
        if decided:
            self._answer_later(decided, writer)
        looked = {group for group, key in woken if (group, key) not in self._woken}
        self._arm(sorted(self._groups_of(turn, taken) | looked))

    def _end_turn_badly(
        self, operations: list[Operation], turn: Turn, writer: LogWriter, error: Exception
    ) -> None:
        """Nothing of the turn is in the log: a state that says otherwise is nobody's (R28)."""
        log.error("receipts_turn_failed", exc_info=error)
        if turn.items:
            writer.abandon(f"a turn of receipts failed: {error}")
        self._refuse_turn(operations, {}, OutcomeUnknownError(f"the master failed: {error}"))

    def _decide_all(self, operations: list[Operation], turn: Turn) -> list[Operation]:
        decided = []
        for at, operation in enumerate(operations):
            if turn.rows_left == 0:
                self._put_back(operations[at:])
                break
            if self._decide(operation, turn):
                decided.append(operation)
        return decided

    def _freed(self, turn: Turn) -> dict[tuple[str, int], None]:
        """Queues of which receivers that wait may be given more now: an ordered one above all."""
        found: dict[tuple[str, int], None] = {}
        if self._waiting:
            for kind, group, *rest in turn.items:
                rows = rest[-1]
                if kind == "change":  # given back
                    rows = [row for row in rows if row[2] <= turn.now_unix_ms]
                if kind in ("ack", "change"):
                    found.update(dict.fromkeys((group, row[0]) for row in rows))
        return {at: None for at in found if at in self._waiting}

    def _as_many(self, new: list[Operation]) -> list[Operation]:
        """What one record may hold; the rest is for the next turn."""
        rows = 0
        for at, operation in enumerate(new):
            rows += operation.rows
            if rows > _ROWS_MAX and at:
                self._put_back(new[at:])
                return new[:at]
        return new

    def _put_back(self, operations: list[Operation]) -> None:
        """The next turn begins with these."""
        for operation in operations:
            operation.is_queued = True
        self._new = operations + self._new
        self._schedule()

    def _refuse_turn(
        self, new: list[Operation], woken: dict[tuple[str, int], None], error: PacelineError
    ) -> None:
        for operation in new:
            operation.finish(error)
        self._woken.update(dict.fromkeys(at for at in woken if at in self._waiting))
        if self._woken and self._again is None:
            # What woke them is still there: who waits looks at it later, or the role changes.
            self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        self._again = None
        self._schedule()

    def _decide(self, operation: Operation, turn: Turn) -> bool:
        if operation.future.done() or operation.is_decided:
            return False  # the asker has gone, or waits for confirm: it is given nothing more
        if isinstance(operation, Receive) and not self._has_topics(operation):
            return False
        operation.is_decided = is_decided = operation.decide(turn)
        if isinstance(operation, Receive):
            exhausted = operation.answer.exhausted
            if exhausted:
                self._on_exhausted(operation.asked.group, exhausted)
            if is_decided:
                self._forget(operation)
            elif operation.looks_on:
                self._waiting.remove(operation)
                self._look_on(operation, turn.reader)
            else:
                self._watch(operation)
        return is_decided

    def _has_topics(self, operation: Receive) -> bool:
        """Leave deleted topics out, whose state would come back else (R35); False: none is left."""
        deleted = list(filter(self._routes.is_deleted, operation.topic_ids))
        if not deleted:
            return True
        self._waiting.remove(operation)  # by the keys that it was watched by
        try:
            operation.leave_out(deleted)
        except PacelineError as error:
            operation.finish(error)
            return False
        return True

    def _look_on(self, operation: Receive, reader: LogReader) -> None:
        """Next turn, with what the filter has to see in memory."""
        if not operation.answer.cold:
            self._submit(operation)
            return
        task = spawn(self._warm(operation, reader), name="receive-warm")
        self._warming.add(task)
        task.add_done_callback(self._warming.discard)

    async def _warm(self, operation: Receive, reader: LogReader) -> None:
        try:
            for view in operation.answer.cold:
                await reader.warm(view)
        except PacelineError as error:
            operation.finish(error)
            return
        self._submit(operation)

    def stop_waiting(self) -> None:
        """The process ends: receivers are answered with what there is."""
        for operation in self._receives():
            self._time_over(operation)

    def _receives(self) -> list[Receive]:
        """All that wait, or are about to."""
        return [*self._waiting, *(one for one in self._new if isinstance(one, Receive))]

    async def close(self) -> None:
        await cancel_and_wait(*self._warming)

    def _serve_woken(
        self, woken: Iterable[tuple[str, int]], turn: Turn, decided: list[Operation]
    ) -> None:
        """Whoever waits longest first, for as long as there is something; added to `decided` one by
        one, as they wait no more: whatever comes then, they are answered."""
        for at in woken:
            for waiting in list(self._waiting.at(*at)):
                if waiting.future.done():
                    continue  # the asker has gone
                if turn.rows_left == 0 or len(decided) >= _SERVED_MAX:
                    self._woken[at] = None
                    self._schedule()
                    break
                if not self._decide(waiting, turn):
                    if waiting.future.done():
                        continue  # its topics have gone
                    if waiting.looks_on:  # the others have their turn after it
                        self._woken[at] = None
                    break
                decided.append(waiting)

    def _answer_later(self, decided: list[Operation], writer: LogWriter) -> None:
        for operation in decided:
            operation.writer = writer

        def completed(error: PacelineError | None) -> None:
            for operation in decided:
                operation.finish(error)

        writer.wait_confirmed(writer.end, completed, timeout_ms=self._settings.send_timeout_ms)

    # -- waiting -----------------------------------------------------------------------------------

    def messages_came(self, keys: Iterable[int]) -> None:
        """Confirm has passed new messages of watched queues."""
        for key in keys:
            self._woken.update(((group, key), None) for group in self._waiting.groups_at(key))
        if self._woken:
            self._schedule()

    def look_again(self, group: str, keys: Iterable[int]) -> None:
        """Something has happened to these queues that may let receivers who wait have more."""
        if not self._waiting:
            return  # commits are many
        self._woken.update({(group, key): None for key in keys if (group, key) in self._waiting})
        if self._woken:
            self._schedule()

    def view_changed(self) -> None:
        """Who waits at a topic that is deleted now hears of it."""
        for operation in self._waiting:
            if any(map(self._routes.is_deleted, operation.topic_ids)):
                self._submit(operation)

    def role_changed(self) -> None:
        """Who waits looks again, on the new state, or hears that this is no master (DESIGN 7)."""
        for timer in self._due.values():
            timer.cancel()
        self._due.clear()
        waiting = list(self._waiting)
        for operation in waiting:
            self._waiting.remove(operation)
        self._woken.clear()
        for operation in waiting:
            self._submit(operation)

    def _watch(self, operation: Receive) -> None:
        self._waiting.add(operation)
        for key in operation.asked.keys:
            self._watch_queue(key)

    def _forget(self, operation: Receive) -> None:
        if operation.timer is not None:
            operation.timer.cancel()
        self._waiting.remove(operation)

    def _time_over(self, operation: Receive) -> None:
        if not operation.is_late and not operation.is_decided:
            operation.is_over = operation.is_late = True
            self._submit(operation)

    # -- what falls due ----------------------------------------------------------------------------

    def _groups_of(self, turn: Turn, new: list[Operation]) -> set[str]:
        """Groups of which something may fall due at another time than before."""
        groups = {item[1] for item in turn.items if item[0] in ("give", "change")}
        groups |= {new.asked.group for new in new if isinstance(new, Receive)}
        return groups

    def _arm(self, groups: Iterable[str]) -> None:
        """Have the receivers of these groups look again when something falls due."""
        for group in groups:
            dues = [self._due_of(group, key) for key in self._waiting.keys_of(group)]
            if not dues:
                continue
            due = min((due for due in dues if due is not None), default=None)
            timer = self._due.pop(group, None)
            if timer is not None:
                timer.cancel()
            if due is not None:
                self._call_at(group, due)

    def _due_of(self, group: str, key: int) -> int | None:
        """When the queue may have something that it has not now, if nothing else happens."""
        projections = self._role.projections
        receipts = projections.receipts.get(group, key)
        due = None if receipts is None else receipts.due_unix_ms
        now = self._clock.unix_ms()
        barred = projections.locks.barred_until(group, key, now_unix_ms=now)
        return due if barred is None else max(barred, due or 0)

    def _call_at(self, group: str, due_unix_ms: int) -> None:
        wait_s = (due_unix_ms - self._clock.unix_ms()) / 1000
        if wait_s <= 0:
            wait_s = _AGAIN_S  # due already, and not given: the clock is wrong, or there is no room
        loop = asyncio.get_running_loop()
        self._due[group] = loop.call_later(wait_s + _WAKE_SLACK_S, self._fell_due, group)

    def _fell_due(self, group: str) -> None:
        del self._due[group]
        self.look_again(group, self._waiting.keys_of(group))
