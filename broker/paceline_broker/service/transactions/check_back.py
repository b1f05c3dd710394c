"""Check-back: producers are asked about half messages that nobody ended.

A half is due for a check once it is older than its immunity, and again each interval after the last
check. Any live producer of its group is asked: producers wait in long polls for such questions.
That a check goes out is a record, written and confirmed before the question leaves, so the count
survives failovers (R28). After the maximum, or at the age at which messages are deleted, the half
goes to the check-max topic by a derived batch, which closes it (R34).

All of it is done by the master of an open epoch only, in log time, while its clock agrees with the
controllers' (R29). What is kept here beside the log is soft: when which half is due, who waits.
"""

import asyncio
import binascii
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from paceline.errors import NotYetAvailableError, OverloadedError, PacelineError
from paceline.platform.runtime import pause
from paceline.records.header import Cause, Kind
from paceline.wire import properties as names
from paceline.wire.calls.messages import CheckRow
from paceline.wire.names import TRANS_CHECK_MAX_TIME_TOPIC
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.ports import LogWriter, Role, open_writer
from paceline_broker.projections.consume_queues import queue_of, topic_of
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.transactions import Ended, Half, operation_document
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings
from paceline_broker.service.topic_records import log_topic
from paceline_broker.service.transactions.half_messages import (
    DERIVED_BYTES,
    TEXT_BYTES_MAX,
    Chosen,
    HalfBatch,
    HalfMessageReader,
    batches_of,
    transaction_id,
)
from paceline_broker.service.transactions.known_halves import KnownHalves
from paceline_broker.service.transactions.transactions import TransactionCounters

log = logging.getLogger("paceline.transactions")

TICK_MS_MAX = 500
CHECKS_OF_A_POLL = 32
"""Questions of one answer: a producer works on them before it asks for more."""
ANSWER_BYTES = 12 * 1024 * 1024
"""Of an answer, if it has more than one question: a frame takes 16 MiB."""
LEFT_MAX = 1024
"""Questions that did not go into an answer, of one group; others are asked after the interval."""
LOST_OF_A_LOOK = 1024
WAITERS_MAX = 10_000
BATCHES_OF_A_TICK = 1000
"""Bounds the work of one look at what is new."""
LEARNT_BYTES = 1024 * 1024
"""Batches of so many bytes are read for that in one turn of the loop, or a larger one."""
SEEN_OF_A_TURN = 1024
"""Halves that are due are looked at so many in one turn of the loop."""
PARKED_OF_A_LOOK = 1024
"""Of those that wait for a producer so many are looked at each time: they end or grow old there."""
UNREADABLE_MS = 5_000
"""What is damaged is tried again after this long; it is being mended (R24)."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """One long poll."""

    group: str
    answer: "asyncio.Future[list[Half]]"


class TransactionChecks:
    """The use-case and the duty of asking producers. `run` ends only by cancellation."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        ledger: Ledger,
        halves: HalfMessageReader,
        counters: TransactionCounters,
        settings: ServiceSettings,
        trust: Callable[[], ClockTrust],
    ) -> None:
        self._role = role
        self._routes = routes
        self._ledger = ledger
        self._halves = halves
        self._counters = counters
        self._settings = settings
        self._trust = trust
        self._waiters: dict[str, deque[_Waiter]] = {}
        self._waiters_count = 0
        self._known: KnownHalves | None = None
        self._is_stopping = False

    # -- producers ---------------------------------------------------------------------------------

    async def poll(self, group: str, *, wait_ms: int) -> list[CheckRow]:
        """Questions for a producer of `group`; none after `wait_ms`.

        Raises NotMasterError and its kin, OverloadedError.
        """
        self._role.writer()  # elsewhere than on the master it says where that is
        if self._is_stopping:
            return []
        if self._waiters_count >= WAITERS_MAX:
            raise OverloadedError(f"{WAITERS_MAX} producers wait for checks", retry_after_ms=1000)
        left = None if self._known is None else self._known.left.pop(group, None)
        return await self._questions(group, left or await self._wait(group, wait_ms))

    async def _wait(self, group: str, wait_ms: int) -> list[Half]:
        future: asyncio.Future[list[Half]] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(group, future)
        self._waiters.setdefault(group, deque()).append(waiter)
        self._waiters_count += 1
        try:
            async with asyncio.timeout(min(wait_ms, self._settings.fetch_wait_ms_max) / 1000):
                return await waiter.answer
        except TimeoutError:
            return []
        finally:
            self._forget(waiter)

    async def _questions(self, group: str, halves: list[Half]) -> list[CheckRow]:
        """As many as one answer holds; the others are for the group's next poll."""
        rows: list[CheckRow] = []
        size = 0
        for at, half in enumerate(halves):
            if not _is_open(self._role.projections, half):
                continue
            try:
                batch = await self._halves.batch_of(half)
            except NotYetAvailableError as error:  # damaged by now: asked again after the interval
                log.warning("half_not_asked", extra={"offset": half.position, "why": error.message})
                continue
            size += batch.row_bytes(half.number)
            if rows and size > ANSWER_BYTES:
                self._leave(group, halves[at:])
                break
            rows.append(self._question(half, batch))
        return rows

    def _leave(self, group: str, halves: list[Half]) -> None:
        """Written down as asked already, so the next poll is answered with them at once."""
        if self._known is not None:
            left = self._known.left.setdefault(group, [])
            left.extend(halves[: LEFT_MAX - len(left)])

    def _forget(self, waiter: _Waiter) -> None:
        waiting = self._waiters.get(waiter.group)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
            self._waiters_count -= 1
            if not waiting:
                del self._waiters[waiter.group]

    @property
    def known_count(self) -> int:
        """Halves that this mastership knows how to ask about."""
        return 0 if self._known is None else len(self._known.groups)

    def role_changed(self) -> None:
        """Who waits here asks the master of the moment; a mastership begins with nothing known."""
        known = self._known
        if known is not None and known.epoch != self._role.epoch:
            self._known = None
            self._release()

    def stop_waiting(self) -> None:
        """The process ends."""
        self._is_stopping = True
        self._release()

    def _release(self) -> None:
        for waiting in list(self._waiters.values()):
            for waiter in list(waiting):
                if not waiter.answer.done():
                    waiter.answer.set_result([])

    def _question(self, half: Half, batch: HalfBatch) -> CheckRow:
        number = half.number
        topic = self._role.projections.topics.get(topic_of(half.key))
        row = CheckRow(
            transaction_id=transaction_id(half, self._routes.group),
            unique_key=batch.unique_key(number, self._routes.group),
            topic="" if topic is None else topic.topic,
            queue=queue_of(half.key),
            checks=self._role.projections.transactions.checked(half.source).times,
            store_unix_ms=half.stored_unix_ms,
            born_unix_ms=batch.born[number],
            key=batch.keys[number],
            tag=batch.tags[number] or None,
            properties=batch.properties[number],
        )
        body = batch.bodies[number]
        try:
            # A byte of text may be six of JSON, and a large body must fit into an answer.
            if len(body) <= TEXT_BYTES_MAX:
                row.body = body.decode()
                return row
        except UnicodeDecodeError:
            pass
        row.body_base64 = binascii.b2a_base64(body, newline=False).decode()
        return row

    # -- the duty ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look again and again, for ever."""
        shortest_ms = min(
            self._settings.transaction_time_out_ms, self._settings.transaction_check_interval_ms
        )
        tick_ms = max(10, min(TICK_MS_MAX, shortest_ms // 4))
        while True:
            await pause(tick_ms)
            try:
                await self.look()
            except PacelineError as error:
                # The mastership ended under way, or the log takes nothing now: the next look tells.
                log.debug("checks_put_off", extra={"fault": error.message})
            except Exception:
                # One half that nobody thought of must not end the checks of all others.
                log.exception("checks_failed")

    async def look(self) -> None:
        """One look: learn of new halves, ask about what is due, give up what nobody decided."""
        writer = self._open_writer()
        if writer is None:
            return
        known = self._known
        if known is None or known.epoch != writer.epoch:
            known = self._known = KnownHalves(int(writer.epoch))
        await self._learn(known)
        known.unpark_some(PARKED_OF_A_LOOK)
        now = self._ledger.log_time_ms()
        asked: list[Half] = []
        lost: list[Half] = []
        room = self._room()
        for group, count in room.items():
            known.unpark(group, count)
        while self._due(known, now, room, asked, lost):
            await pause(0)  # others have their turn
            if self._known is not known:
                return
        fault = None
        if lost:
            try:
                await self._check_out(known, lost)
            except PacelineError as error:  # what can be asked is asked all the same
                fault = error
        if asked:
            await self._ask(known, asked)
        if fault is not None:
            raise fault

    def _open_writer(self) -> LogWriter | None:
        """The writer of an open epoch, while the clock may be believed (R29)."""
        return open_writer(self._role) if self._trust() is ClockTrust.AGREES else None

    async def _learn(self, known: KnownHalves) -> None:
        """Who is to be asked about halves that came since the last look, and when."""
        transactions = self._role.projections.transactions
        new = transactions.open_batches(above=known.looked_above)[:BATCHES_OF_A_TICK]
        count = min(len(known.unread), BATCHES_OF_A_TICK)
        again = (known.unread.popleft() for _ in range(count))  # the others stay if one raises
        size = 0
        for position in chain(again, new):
            if size >= LEARNT_BYTES:
                size = 0
                await pause(0)  # others have their turn
            halves = transactions.open_halves(position)
            if self._known is not known:
                return
            if not halves:
                continue
            if position + halves[0].size_bytes > self._role.reader.confirm:
                return
            is_new = position > known.looked_above
            known.looked_above = max(known.looked_above, int(position))
            try:
                batch = await self._halves.batch_of(halves[0])
            except PacelineError as error:  # damaged: it must not hold up the others
                if is_new:
                    log.warning("half_not_read", extra={"offset": position, "why": error.message})
                known.unread.append(position)
                continue
            size += batch.memory_bytes
            self._note(known, halves, batch)

    def _note(self, known: KnownHalves, halves: list[Half], batch: HalfBatch) -> None:
        settings = self._settings
        for half in halves:
            if half.source in known.groups:
                continue  # it was written again
            known.groups[half.source] = batch.producer_group(half.number)
            checked = self._role.projections.transactions.checked(half.source)
            immunity_ms = batch.immunity_ms(half.number, settings.transaction_time_out_ms)
            due_ms = half.stored_unix_ms + min(immunity_ms, settings.transaction_age_ms_max)
            if checked.times:
                due_ms = checked.last_unix_ms + settings.transaction_check_interval_ms
            known.is_due(half.source, due_ms)

    def _room(self) -> dict[str, int]:
        """How many questions the producers that wait take now, by their group."""
        return {group: len(waiting) * CHECKS_OF_A_POLL for group, waiting in self._waiters.items()}

    def _due(
        self,
        known: KnownHalves,
        now: int,
        room: dict[str, int],
        asked: list[Half],
        lost: list[Half],
    ) -> bool:
        """Add halves whose producers are asked now, and those that are given up; some of them.
        True: there are more."""
        projections = self._role.projections
        for _ in range(SEEN_OF_A_TURN):
            source = known.take_due(now) if len(lost) < LOST_OF_A_LOOK else None
            if source is None:
                return False
            half = projections.transactions.find(source)
            if half is None or half.ended is not Ended.OPEN:
                known.groups.pop(source, None)
                continue
            is_old = now - half.stored_unix_ms >= self._settings.transaction_age_ms_max
            times = projections.transactions.checked(source).times
            group = known.groups[source]
            if is_old or times >= self._settings.transaction_check_max:
                lost.append(half)
            elif room.get(group, 0):
                room[group] -= 1
                asked.append(half)
            else:
                known.park(source)
        return True

    async def _ask(self, known: KnownHalves, asked: list[Half]) -> None:
        """Write down that these are asked about; once that is confirmed, ask."""
        writer = self._open_writer()  # anew, as a check-out waits (R29)
        if writer is None:
            self._later(known, asked, 0)
            return
        try:
            writer.ensure_can_append()
        except PacelineError:
            self._later(known, asked, 0)
            raise
        now = self._ledger.log_time_ms()
        document = operation_document(checked=[half.source for half in asked])
        writer.appender.record(Kind.OPERATION, document, store_unix_ms=now)
        self._later(known, asked, now + self._settings.transaction_check_interval_ms)
        self._counters.checks += len(asked)
        await self._ledger.confirmed(writer)
        by_group: dict[str, list[Half]] = {}
        for half in asked:
            by_group.setdefault(known.groups.get(half.source, ""), []).append(half)
        for group, halves in by_group.items():
            self._hand_out(group, halves)

    def _later(self, known: KnownHalves, halves: list[Half], due_ms: int) -> None:
        for half in halves:
            known.is_due(half.source, due_ms)

    def _hand_out(self, group: str, halves: list[Half]) -> None:
        """Spread questions over the producers that wait; one after another gets the next poll."""
        waiting = [waiter for waiter in self._waiters.get(group, ()) if not waiter.answer.done()]
        if not waiting:
            return  # they have gone: asked again after the interval
        share = min(CHECKS_OF_A_POLL, -(-len(halves) // len(waiting)))
        for waiter in waiting:
            mine, halves = halves[:share], halves[share:]
            if mine:
                waiter.answer.set_result(mine)

    async def _check_out(self, known: KnownHalves, lost: list[Half]) -> None:
        """Nobody decided these: they go where operators look (RocketMQ's check-max topic)."""
        topic_id = self._check_max_topic()
        now = self._ledger.log_time_ms()
        if topic_id is None:
            log.warning("check_max_topic_missing", extra={"halves": len(lost)})
            self._later(known, lost, now + self._settings.transaction_check_interval_ms)
            return
        batches = await self._read_lost(known, lost, now)
        writer = self._open_writer()
        if writer is None:
            return
        writer.ensure_can_append()
        projections = self._role.projections
        now = self._ledger.log_time_ms()
        log_topic(writer, projections, self._routes, topic_id, store_unix_ms=now)
        chosen = [
            Chosen(half.source, batch, half.number, self._told(half, projections))
            for half, batch in batches
            if _is_open(projections, half)
        ]
        for encoded in batches_of(
            chosen,
            group=self._routes.group,
            topic_id=topic_id,
            queue_id=0,
            cause=Cause.CHECKED_OUT,
        ):
            writer.appender.made(encoded, store_unix_ms=now)
        self._counters.checked_out += len(chosen)
        log.warning("transactions_checked_out", extra={"count": len(chosen)})

    async def _read_lost(
        self, known: KnownHalves, lost: list[Half], now: int
    ) -> list[tuple[Half, HalfBatch]]:
        """Some of them with their batches; all are looked at again, as what follows may fail."""
        batches: list[tuple[Half, HalfBatch]] = []
        size = 0
        for at, half in enumerate(lost):
            if size >= DERIVED_BYTES:
                self._later(known, lost[at:], now)
                break
            try:
                batch = await self._halves.batch_of(half)
            except PacelineError as error:  # damaged: it must not hold up the others
                log.debug("half_not_read", extra={"offset": half.position, "why": error.message})
                known.is_due(half.source, now + UNREADABLE_MS)
                continue
            known.is_due(half.source, now)
            if not batches or batches[-1][1] is not batch:
                size += batch.memory_bytes
            batches.append((half, batch))
        return batches

    def _check_max_topic(self) -> int | None:
        """The topic's id, if it has a queue here."""
        topic = self._routes.find_topic(TRANS_CHECK_MAX_TIME_TOPIC)
        if topic is None or not self._routes.queue_counts.get(topic.topic_id):
            return None
        return topic.topic_id

    def _told(self, half: Half, projections: Projections) -> dict[str, str]:
        topic = projections.topics.get(topic_of(half.key))
        return {
            names.REAL_TOPIC: "" if topic is None else topic.topic,
            names.REAL_QUEUE: str(queue_of(half.key)),
            names.TRANSACTION_CHECK_TIMES: str(projections.transactions.checked(half.source).times),
        }


def _is_open(projections: Projections, half: Half) -> bool:
    found = projections.transactions.find(half.source)
    return found is not None and found.ended is Ended.OPEN
