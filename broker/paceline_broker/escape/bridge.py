"""What an acting master sends to other groups: delayed and retried messages that are due (R36).

Its own state is that of its confirm and does not move while it acts, so it goes through what is due
with a cursor and closes nothing. One request at a time to each group that has an open master, in
turn; a message is noted once that master has confirmed it, and is sent again, with the same mark,
whatever else became of it. Nothing is sent unless the majority of the controllers agrees with the
clock just now (R29): who is cut off from them may act beyond his time.
"""

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from paceline.errors import (
    BadRequestError,
    CorruptLogError,
    NoMasterError,
    NotMasterError,
    PacelineError,
    StorageError,
)
from paceline.platform.ports import Clock
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.records.header import Cause, unpack_source
from paceline.types import GroupName, PhysicalOffset
from paceline.wire.cluster import GroupView
from paceline.wire.names import RETRY_PREFIX
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.escape.connection import Codes, EscapeConnection
from paceline_broker.escape.held import Held
from paceline_broker.escape.notes_file import NotesFile
from paceline_broker.ports import Acting, Role
from paceline_broker.projections.consume_queues import queue_of, topic_of
from paceline_broker.projections.timers import Due
from paceline_broker.service.delays.delivery import REFUSALS, Lateness
from paceline_broker.service.delays.delivery_batch import Ready, Target, delivered_batch
from paceline_broker.service.delays.sources import Sources
from paceline_broker.service.escape.intake import epoch_at
from paceline_broker.service.escape.notes import SentNote
from paceline_broker.service.routes import Routes

log = logging.getLogger("paceline.escape")

LOOK_MS = 50
"""Between two looks at what is due, while acting."""
IDLE_MS = 500
PART_MESSAGES = 256
PART_BYTES = 256 * 1024
_WHYS_MAX = 100
BACKLOG_MAX = 2048
"""What is due and was taken up; the rest stays where it is."""
ALONE_MAX = BACKLOG_MAX // 2
"""Of them, what was refused and goes again."""
REFUSED_MS = 5000
"""A message that was refused for what it is is tried again after this long."""
IDLE_CONNECTION_MS = 5000
"""One that stood unused for so long is not used again: the other side closes it after 10 s."""
AWAY_MS = 500
AWAY_MS_MAX = 8000
"""A group that did not take a request is left alone for so long, twice as long each time."""

Connect = Callable[[GroupView], Awaitable[EscapeConnection]]
_Place = tuple[int, int, int]
"""Topic id, queue of the other group, and a source that has a batch of its own, or 0."""
Part = Mapping[_Place, Sequence[Ready]]
_OF_THE_MASTER = frozenset(error.code for error in (*REFUSALS, NoMasterError, NotMasterError))
"""Refusals of all that is sent to it; others are of one batch."""


class _Peer(NamedTuple):
    """The master that a connection was opened to."""

    replica_id: int | None
    incarnation: int | None


class _Lane:
    """The way to one group."""

    def __init__(self, group: GroupName) -> None:
        self.group = group
        self.connection: EscapeConnection | None = None
        self.peer: _Peer | None = None
        self.task: asyncio.Task[None] | None = None
        self.used_ms = 0
        self.away_until_ms = 0
        self.away_ms = AWAY_MS

    @property
    def is_busy(self) -> bool:
        return self.task is not None and not self.task.done()

    def is_away(self, now_ms: int) -> bool:
        return self.away_until_ms > now_ms

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = self.peer = None

    def failed(self, now_ms: int) -> None:
        self.close()
        self.away_until_ms = now_ms + self.away_ms
        self.away_ms = min(2 * self.away_ms, AWAY_MS_MAX)


class Bridge:
    """One per broker; `run` ends only by cancellation."""

    def __init__(
        self,
        *,
        role: Role,
        routes: Routes,
        clock: Clock,
        trust: Callable[[], ClockTrust],
        notes: NotesFile,
        connect: Connect,
    ) -> None:
        self._role = role
        self._routes = routes
        self._clock = clock
        self._trust = trust
        self._kept = notes
        self._connect = connect
        self._sources = Sources()
        self._news = asyncio.Event()
        self._lanes: dict[GroupName, _Lane] = {}
        self._turns = 0
        self._acting: Acting | None = None
        self._epochs: list[dict[str, int]] = []
        self._known: set[int] = set()
        self._last = (-1, 0)
        self._backlog: list[Due] = []
        self._asleep: dict[int, array[int]] = {}
        """By topic that no other group takes now: the sources, as there may be very many."""
        self._held = Held()
        self._alone: set[int] = set()
        """Sources in the backlog, or on their way, whose batch was refused: one may be why, and
        must not hold back the others."""
        self._held_why: set[str] = set()
        """What was logged of this appointment."""
        self.untold_epochs: set[int] = set()
        """Of appointments of this process that the next master has to hear of."""
        self.lateness = Lateness()
        """Of what another group has confirmed."""
        self.refused = 0
        self.unknown = 0
        """Messages sent of which nobody knows; they are sent again."""

    def poke(self) -> None:
        """The role changed."""
        self._news.set()

    @property
    def is_busy(self) -> bool:
        """Something is on its way, and may have to be told of."""
        return any(lane.is_busy for lane in self._lanes.values())

    async def run(self) -> None:
        try:
            while True:
                self._news.clear()
                wait_ms = self._turn()
                for view in self._sources.take_cold():
                    await self._role.reader.warm(view)
                    del view  # or it keeps its file on the disk
                    wait_ms = 0
                await self._wait(wait_ms)
        finally:
            await cancel_and_wait(*(lane.task for lane in self._lanes.values()))
            for lane in self._lanes.values():
                lane.close()

    async def _wait(self, wait_ms: int) -> None:
        if wait_ms == 0:
            await pause(0)
            return
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            return

    # -- a turn ------------------------------------------------------------------------------------

    def _turn(self) -> int:
        """Take up what is due and give it to the lanes that are free; ms to wait after it."""
        acting = self._role.acting
        if acting is not self._acting:
            self._begin(acting)
        if acting is None or acting.has_ended:
            for lane in self._lanes.values():
                if not lane.is_busy:
                    lane.close()
            return IDLE_MS
        if self._trust() is not ClockTrust.AGREES:  # R29
            return LOOK_MS
        open_groups = self._open_groups()
        self._turns += 1
        free = self._free_lanes(open_groups)
        shift = self._turns % max(1, len(free))
        usable = [name for name in open_groups if not self._lanes[name].is_away(self._now_ms())]
        self._wake(usable)
        self._take_up()
        for lane in free[shift:] + free[:shift]:
            part = self._part(lane.group, usable)
            if part:
                work = self._send(lane, acting, open_groups[lane.group], part)
                lane.task = spawn(work, name=f"escape:{lane.group}")
        return LOOK_MS

    def _begin(self, acting: Acting | None) -> None:
        self._acting = acting
        self._sources.forget()
        self._backlog.clear()
        self._asleep.clear()
        self._held.clear()
        self._alone.clear()
        self._held_why.clear()
        self._last = (-1, 0)
        if acting is None:
            return
        self.untold_epochs.add(int(acting.epoch))
        self._epochs = self._role.reader.epochs()
        self._known = self._kept.notes.origins()
        log.info("escape_begins", extra={"pending": len(self._role.projections.timers)})

    def _take_up(self) -> None:
        now_ms = self._now_ms()
        timers = self._role.projections.timers
        # However many are refused again and again, half of the room is for the others.
        sources = self._held.take(now_ms, ALONE_MAX - len(self._alone))
        again = list(filter(None, map(timers.find, sources)))
        self._alone.update(entry.source for entry in again)
        self._backlog += again
        room = BACKLOG_MAX - len(self._backlog)
        if room <= 0 or self._kept.notes.is_full:
            return
        found = timers.due_after(self._last, self._clock.unix_ms(), room)
        if found:
            self._last = (found[-1].due_unix_ms, found[-1].source)
        self._backlog += [
            entry for entry in found if timers.origin(entry.source) not in self._known
        ]

    def _wake(self, usable: Collection[GroupName]) -> None:
        """What some group takes again goes before what was not looked at yet."""
        find = self._role.projections.timers.find
        for topic_id in list(self._asleep):
            room = BACKLOG_MAX - len(self._backlog)
            if room <= 0:
                return
            if self._is_taken(topic_id, usable):
                sources = self._asleep[topic_id]
                self._backlog += filter(None, map(find, sources[:room]))
                del sources[:room]
                if not sources:
                    del self._asleep[topic_id]

    def _sleep(self, entry: Due) -> None:
        """It waits beside the backlog, so that it holds back nothing that can go."""
        self._note_why(entry, "no broker group takes its topic now")
        self._alone.discard(entry.source)
        self._asleep.setdefault(topic_of(entry.key), array("Q")).append(entry.source)

    def _open_groups(self) -> dict[GroupName, GroupView]:
        """Other groups that have a master; an acting one is none."""
        view = self._routes.view
        if view is None:
            return {}
        return {
            name: group
            for name, group in sorted(view.groups.items())
            if name != self._routes.group and group.master_view() is not None
        }

    def _free_lanes(self, open_groups: Mapping[GroupName, GroupView]) -> list[_Lane]:
        lanes = [self._lanes.setdefault(name, _Lane(name)) for name in open_groups]
        return [lane for lane in lanes if not lane.is_busy and not lane.is_away(self._now_ms())]

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def _queues(self, topic_id: int, group: GroupName) -> int:
        """Queues of the topic that the group takes such messages for; 0: none."""
        topic = self._routes.topics_by_id.get(topic_id)
        if topic is None:
            return 0
        if topic.topic.startswith(RETRY_PREFIX):
            return topic.queues.get(group, 0)
        is_open = topic.is_for_clients and topic.can_write
        return topic.write_queues.get(group, 0) if is_open else 0

    def _is_taken(self, topic_id: int, usable: Collection[GroupName]) -> bool:
        return any(self._queues(topic_id, group) for group in usable)

    def _part(self, group: GroupName, usable: Collection[GroupName]) -> dict[_Place, list[Ready]]:
        """What goes to the group next, out of the backlog; `usable`: other groups, and this one."""
        part: dict[_Place, list[Ready]] = {}
        left: list[Due] = []
        taken: dict[int, bool] = {}
        count = size = 0
        for at, entry in enumerate(self._backlog):
            if count == PART_MESSAGES or size >= PART_BYTES:
                left += self._backlog[at:]
                break
            topic_id, queue = topic_of(entry.key), queue_of(entry.key)
            queues = self._queues(topic_id, group)
            if not queues:
                if topic_id not in taken:
                    taken[topic_id] = self._is_taken(topic_id, usable)
                if taken[topic_id]:
                    left.append(entry)  # for another lane
                else:
                    self._sleep(entry)
                continue
            try:
                ready = self._read(entry)
            except CorruptLogError as error:
                self._hold(entry, error.message)
                continue
            if ready is None:
                left.append(entry)
                continue
            alone = entry.source if entry.source in self._alone else 0
            part.setdefault((topic_id, queue % queues, alone), []).append(ready)
            count += 1
            size += ready.message.size_bytes_max()
        self._backlog = left
        return part

    def _read(self, entry: Due) -> Ready | None:
        """None while its pages are cold. CorruptLogError."""
        position, number = unpack_source(entry.source)
        batch = self._sources.get(self._role.reader, PhysicalOffset(position))
        if batch is None:
            return None
        origin = self._role.projections.timers.origin(entry.source)
        return Ready(entry, batch, number, batch.message(number), origin)

    def _note_why(self, entry: Due, why: str) -> None:
        if why not in self._held_why and len(self._held_why) < _WHYS_MAX:
            self._held_why.add(why)
            log.info("escape_held", extra={"source": entry.source, "why": why})

    def _hold(self, entry: Due, why: str) -> None:
        self._note_why(entry, why)
        self._alone.discard(entry.source)
        self._held.add(entry.source, self._now_ms() + REFUSED_MS)

    # -- a request ---------------------------------------------------------------------------------

    async def _send(self, lane: _Lane, acting: Acting, group: GroupView, part: Part) -> None:
        sent, batches = self._encoded(part)
        count = sum(map(len, sent))
        try:
            connection = await self._connected(lane, group)
        except (PacelineError, OSError) as error:
            log.info("escape_not_sent", extra={"group": lane.group, "why": repr(error)})
            lane.failed(self._now_ms())
            self._back(acting, sent)
            return
        try:
            codes = await connection.send(batches)
        except (PacelineError, OSError) as error:
            log.warning(
                "escape_unknown", extra={"group": lane.group, "n": count, "why": repr(error)}
            )
            self.unknown += count
            lane.failed(self._now_ms())
            self._back(acting, sent)
            return
        self._settle(lane, acting, sent, codes)
        try:
            await self._kept.save()
        except StorageError as error:
            # After a restart they come twice, marked.
            log.error("escape_notes_not_saved", extra={"fault": error.message})
        self._news.set()

    def _encoded(self, part: Part) -> tuple[list[Sequence[Ready]], list[bytes]]:
        """Messages and their batch, for each queue; one that cannot be encoded is held."""
        sent: list[Sequence[Ready]] = []
        batches: list[bytes] = []
        for (topic_id, queue, _), found in part.items():
            target = Target(topic_id, queue, Cause.ESCAPED, self._routes.group)
            try:
                batches.append(delivered_batch(found, target))
                sent.append(found)
            except BadRequestError as error:  # of one of them: alone they hold back nobody
                for ready in found:
                    try:
                        batches.append(delivered_batch([ready], target))
                        sent.append([ready])
                    except BadRequestError:
                        self._hold(ready.entry, error.message)
        return sent, batches

    async def _connected(self, lane: _Lane, group: GroupView) -> EscapeConnection:
        peer = _Peer(group.master, group.master_incarnation)
        idle_ms = self._now_ms() - lane.used_ms
        if lane.peer != peer or idle_ms >= IDLE_CONNECTION_MS:
            lane.close()
        lane.used_ms = self._now_ms()
        if lane.connection is None:
            lane.connection = await self._connect(group)
            lane.peer = peer
        return lane.connection

    def _settle(
        self, lane: _Lane, acting: Acting, sent: Sequence[Sequence[Ready]], codes: Codes
    ) -> None:
        now_ms = self._clock.unix_ms()
        for found, code in zip(sent, codes, strict=True):
            if code is None:
                self._kept.add([self._note(ready) for ready in found])
                for ready in found:
                    self._alone.discard(ready.entry.source)
                    due_ms = max(ready.entry.due_unix_ms, ready.batch.header.store_unix_ms)
                    self.lateness.saw(max(0, now_ms - max(due_ms, acting.since_unix_ms)))
                continue
            log.info("escape_refused", extra={"group": lane.group, "code": code, "n": len(found)})
            self.refused += len(found)
            if code in _OF_THE_MASTER:
                self._back(acting, [found])
            elif acting is self._acting:
                self._hold_refused(found, code)
        if _OF_THE_MASTER.intersection(codes):
            lane.failed(self._now_ms())
        else:
            lane.away_ms = AWAY_MS

    def _hold_refused(self, found: Sequence[Ready], code: str) -> None:
        if len(found) == 1:
            self._hold(found[0].entry, code)
            return
        for ready in found:  # once more alone, and soon; who was alone already is why
            self._note_why(ready.entry, code)
            self._alone.add(ready.entry.source)
            self._backlog.append(ready.entry)

    def _note(self, ready: Ready) -> SentNote:
        position, _ = unpack_source(ready.origin)
        entry = ready.entry
        epoch = epoch_at(self._epochs, position)
        return SentNote(ready.origin, entry.due_unix_ms, entry.key, epoch)

    def _back(self, acting: Acting, sent: Sequence[Sequence[Ready]]) -> None:
        """They go again, wherever there is a way; not after the appointment."""
        if acting is self._acting:
            self._backlog[:0] = [ready.entry for found in sent for ready in found]
        self._news.set()
