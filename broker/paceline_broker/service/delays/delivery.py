"""Delivering messages that wait for their time, on an open master (R28, R29, R34, R35).

A turn takes what is due, makes one batch for each target queue, appends and folds them: delivery
and completion are one record, so a new master, which has folded its whole tail before it fires,
goes on exactly where this one stopped. A turn is one synchronous step and small; the loop serves
others between two of them, so a backlog is worked off beside the sends.

Never early: see fire_clock.py (R29).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from operator import attrgetter

from paceline.errors import (
    BadRequestError,
    CorruptLogError,
    DiskFullError,
    InSyncReplicasNotEnoughError,
    NoMasterError,
    NotFoundError,
    NotMasterError,
    NotYetAvailableError,
    OverloadedError,
    PacelineError,
)
from paceline.platform.ports import Clock
from paceline.platform.runtime import pause
from paceline.records.header import Cause, unpack_source
from paceline.types import PhysicalOffset
from paceline.wire.names import DELAY_DLQ_TOPIC
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.consume_queues import queue_of, topic_of
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.timers import Due, Timers
from paceline_broker.service.delays.delivery_batch import Ready, Target, delivered_batch
from paceline_broker.service.delays.fire_clock import FireClock
from paceline_broker.service.delays.rewrite import TimerRewriter
from paceline_broker.service.delays.sources import SourceBatch, Sources
from paceline_broker.service.escape.wait import EscapeWait
from paceline_broker.service.routes import Routes
from paceline_broker.service.topic_records import log_topic

log = logging.getLogger("paceline.delivery")

TURN_MESSAGES = 128
"""Some 1 ms of the loop; in a trickle a turn is what has come due since the last one."""
TURNS_UNCONFIRMED_MAX = 4
"""A backlog waits for confirm like a producer does, with 512 messages under way: enough for
10,000 a second where confirm takes 50 ms."""
TURN_BYTES = 256 * 1024
IDLE_MS = 500
"""Between two looks when nothing is known to come; sends of delayed messages wake it."""
REFUSED_MS = 20
"""After the log refused to take more."""
HELD_MS = 5000
"""A message that cannot be delivered now is tried again within this time."""


REFUSALS = (
    DiskFullError,
    InSyncReplicasNotEnoughError,
    NotYetAvailableError,
    OverloadedError,
)
"""Of `LogWriter.ensure_can_append`, while the mastership goes on: the log takes nothing for now."""


class Lateness:
    """What was delivered, and how late, since this process started."""

    BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 60_000)

    def __init__(self) -> None:
        self.delivered = 0
        self.dead_letters = 0
        self.buckets = [0] * (len(self.BOUNDS_MS) + 1)

    def saw(self, late_ms: int) -> None:
        self.delivered += 1
        for at, bound in enumerate(self.BOUNDS_MS):
            if late_ms <= bound:
                self.buckets[at] += 1
                return
        self.buckets[-1] += 1


class Delivery:
    """The duty of a master; `run` ends only by cancellation."""

    def __init__(
        self, role: Role, routes: Routes, clock: Clock, fire: FireClock, escape: EscapeWait
    ) -> None:
        """`escape`: how long to wait for what acting masters have to tell (R36)."""
        self._escape = escape
        self._role = role
        self._routes = routes
        self._clock = clock
        self._fire = fire
        self.sources = Sources()
        self._timers: Timers | None = None
        self._held: set[int] = set()
        """Sources that cannot be delivered now."""
        self._held_until_ms = 0
        """When all of them are tried again, in running time."""
        self._news = asyncio.Event()
        self._awaits_confirm = False
        self._ends: deque[PhysicalOffset] = deque()
        """Of turns whose batches are not confirmed yet."""
        self.needs = TimerRewriter(role, clock, self._read, poke=self.poke, hold=self._hold)
        self.lateness = Lateness()
        role.reader.on_confirm(self._confirm_moved)

    def poke(self) -> None:
        """Something is pending that may be due before what is waited for, or the role changed."""
        self._news.set()

    def _confirm_moved(self, confirm: PhysicalOffset) -> None:
        if self._awaits_confirm:
            self._news.set()

    async def run(self) -> None:
        while True:
            self._news.clear()
            try:
                wait_ms = self.turn()
                for view in self.sources.take_cold():
                    await self._role.reader.warm(view)
                    del view  # or it keeps its file on the disk
                    wait_ms = 0  # what was not read can be now
            except (NotMasterError, NoMasterError):  # elsewhere, or nowhere (R36)
                self.sources.forget()
                wait_ms = IDLE_MS
            except PacelineError as error:  # the disk failed: the role hears of it as well (R22)
                log.warning("delivery_failed", extra={"fault": error.message})
                wait_ms = IDLE_MS
            await self._wait(wait_ms)

    async def _wait(self, wait_ms: int) -> None:
        if wait_ms == 0:
            await pause(0)  # others have their turn
            return
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            return

    # -- a turn ------------------------------------------------------------------------------------

    def turn(self) -> int:
        """Deliver some of what is due, else store again some of what retention asks for; how many
        ms there is nothing to do after it.

        Raises NotMasterError, StorageError.
        """
        writer = self._role.writer()
        projections = self._role.projections
        self._take_state(projections.timers)
        now_ms = self._fire.due_until_ms()
        if not writer.is_open:
            return IDLE_MS
        # Asked also while nothing waits: the time counts from the opening.
        rest_ms = self._escape.rest_ms(writer.epoch, now_ms=self._clock.monotonic_ms())
        if not projections.timers:
            return IDLE_MS
        confirm = self._role.reader.confirm
        while self._ends and self._ends[0] <= confirm:
            self._ends.popleft()
        if len(self._ends) >= TURNS_UNCONFIRMED_MAX:
            self._awaits_confirm = True
            return IDLE_MS
        self._release_held(projections.timers)
        try:
            waits_ms = rest_ms or self._due_turn(writer, projections, confirm, now_ms)
        except REFUSALS:
            waits_ms = REFUSED_MS
        try:  # also after a refusal: what makes room is taken for longer (R26)
            if waits_ms and self.needs.turn(writer, projections, count_max=TURN_MESSAGES):
                waits_ms = 0
        except REFUSALS:
            waits_ms = min(waits_ms, REFUSED_MS)
        if waits_ms == 0:
            self._ends.append(writer.end)
        return waits_ms

    def _due_turn(
        self,
        writer: LogWriter,
        projections: Projections,
        confirm: PhysicalOffset,
        now_ms: int | None,
    ) -> int:
        """Deliver some of what is due; 0, or how many ms nothing is."""
        timers = projections.timers
        next_ms = timers.next_due_ms()
        if now_ms is None or next_ms is None:
            return IDLE_MS
        if next_ms > now_ms:
            return min(IDLE_MS, next_ms - now_ms)
        try:
            writer.ensure_can_append()
        except DiskFullError:
            entries = self._due_in_the_way(timers, confirm, now_ms)
            if not entries:
                raise
            writer.ensure_can_append(is_freeing=True)  # the old part goes after it (R26)
            self._deliver(writer, projections, entries, now_ms)
            return 0
        entries = timers.due(now_ms, below=confirm, max_count=TURN_MESSAGES, skip=self._held)
        if not entries:  # what is due is not confirmed, cold or held; or was delivered just now
            self._awaits_confirm = True
            later_ms = timers.next_due_after(now_ms)
            return IDLE_MS if later_ms is None else min(IDLE_MS, later_ms - now_ms)
        self._deliver(writer, projections, entries, now_ms)
        return 0

    def _due_in_the_way(self, timers: Timers, confirm: PhysicalOffset, now_ms: int) -> list[Due]:
        """What is due of that which keeps a full disk's log from being cut, some of it."""
        if self.needs.below is None:
            return []
        in_the_way = timers.below(min(confirm, self.needs.below), TURN_MESSAGES)
        due = [
            entry
            for entry in in_the_way
            if entry.due_unix_ms <= now_ms and entry.source not in self._held
        ]
        return sorted(due, key=attrgetter("due_unix_ms"))

    def _take_state(self, timers: Timers) -> None:
        self._awaits_confirm = False
        if timers is not self._timers:  # another role: nothing read or held before counts
            self._timers = timers
            self.sources.forget()
            self._held.clear()
            self._ends.clear()
            self.needs.forget()

    def _release_held(self, timers: Timers) -> None:
        """All at a time: so each is passed over once in that time, and not in every turn."""
        if self._held and self._clock.monotonic_ms() >= self._held_until_ms:
            self._held.clear()
            timers.look_again()

    def _hold(self, source: int, why: str) -> None:
        if not self._held:
            self._held_until_ms = self._clock.monotonic_ms() + HELD_MS
        if source not in self._held:
            log.warning("message_held", extra={"source": source, "fault": why})
            self._held.add(source)

    def _deliver(
        self, writer: LogWriter, projections: Projections, entries: Sequence[Due], now_ms: int
    ) -> None:
        """Append one batch for each target queue. No await in it."""
        by_queue: dict[int, list[Ready]] = {}
        size = 0
        for entry in entries:
            _, index = unpack_source(entry.source)
            batch = self._read(entry)
            if batch is None:
                continue
            message = batch.message(index)
            origin = projections.timers.origin(entry.source)
            ready = Ready(entry, batch, index, message, origin)
            by_queue.setdefault(entry.key, []).append(ready)
            size += message.size_bytes_max()
            if size >= TURN_BYTES:
                break
        for key, found in by_queue.items():
            target = self._target(key)
            if isinstance(target, str):
                for ready in found:
                    self._hold(ready.entry.source, target)
                continue
            self._append(writer, projections, target, found, now_ms)

    def _read(self, entry: Due) -> SourceBatch | None:
        """The batch of an entry; None: it is cold, or damaged and being mended."""
        position, _ = unpack_source(entry.source)
        try:
            return self.sources.get(self._role.reader, PhysicalOffset(position))
        except CorruptLogError as error:
            self._hold(entry.source, error.message)
            return None

    def _target(self, key: int) -> Target | str:
        """Where messages for a queue go; or why they have to wait."""
        topic_id, queue_id = topic_of(key), queue_of(key)
        group = self._role.identity.group
        count = self._routes.queue_counts.get(topic_id)
        if count is not None and queue_id < count:
            return Target(topic_id, queue_id, Cause.DELAYED, group)
        if count is None and not self._routes.is_deleted(topic_id):
            return "its topic is newer than this broker's view"
        try:
            dead_letters = self._routes.topic_named(DELAY_DLQ_TOPIC).topic_id
            self._routes.check_queue(dead_letters, 0)
        except NotFoundError:
            return f"its queue is gone, and so is {DELAY_DLQ_TOPIC}"
        origin = self._routes.topic_name(topic_id) or f"id {topic_id}"
        return Target(dead_letters, 0, Cause.DEAD, group, origin)  # R35

    def _append(
        self,
        writer: LogWriter,
        projections: Projections,
        target: Target,
        found: Sequence[Ready],
        fire_ms: int,
    ) -> None:
        try:
            batch = delivered_batch(found, target)
        except BadRequestError as error:  # of one of them, which holds back nobody (R35)
            if len(found) == 1:
                self._hold(found[0].entry.source, error.message)
                return
            for ready in found:
                self._append(writer, projections, target, [ready], fire_ms)
            return
        now_ms = writer.appender.log_time_ms()
        log_topic(writer, projections, self._routes, target.topic_id, store_unix_ms=now_ms)
        writer.appender.made(batch, store_unix_ms=now_ms)
        for entry, source, _, _, _ in found:
            # What was due before it was stored is late from then on.
            since_ms = max(entry.due_unix_ms, source.header.store_unix_ms)
            self.lateness.saw(max(0, fire_ms - since_ms))
        if target.cause is Cause.DEAD:
            self.lateness.dead_letters += len(found)
