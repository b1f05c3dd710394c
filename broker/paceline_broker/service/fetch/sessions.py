"""Fetch sessions: a broker remembers the queues of a stream, so that requests need not repeat them.

Without sessions both sides handle all ten thousand queues of a consumer for each message. In a
session a request says only what has changed, and an answer contains only queues that have messages.
The consumer then asks for each of these from its new offset. Each request gets one answer.

A queue is checked when it is asked for, when confirm passes one of its batches, and when the role
changes. Ready queues are FIFO; those that do not fit into an answer come first in the next. A
session ends with its stream; after an error the consumer asks for everything anew
(docs/protocol/stream.md).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from paceline.errors import (
    BadRequestError,
    CorruptLogError,
    OverloadedError,
    PacelineError,
    StorageError,
)
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.server.turns import Turns
from paceline.wire.stream import FOLLOW_QUEUES_MAX, FetchCode, FetchPart, FetchQueue
from paceline_broker.ports import LogReader, LogWriter, Role, open_writer
from paceline_broker.service.counters import Counters
from paceline_broker.service.fetch.filters import LOOK_BYTES_MAX, FilterRegistry
from paceline_broker.service.fetch.read import COST_QUEUES, Fetched, FetchSink, Gathering
from paceline_broker.service.fetch.replica_suggestion import SlowReads
from paceline_broker.service.fetch.session_answer import (
    FINAL_CODES,
    PARTS_MAX,
    ROOM_MAX,
    Harvest,
    Request,
    Row,
)
from paceline_broker.service.long_work import Job, LongWork
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings

log = logging.getLogger("paceline.service")

SESSION_QUEUES_MAX = 65_536
"""Queues of one stream: as many as a topic can have in a broker group."""
REQUESTS_MAX = 64
"""Unanswered requests of one session."""
WAITING_MAX = 2
"""So many wait for something; the oldest is answered at once when there are more."""
LOOKS_MAX = PARTS_MAX
"""Queues looked at in one step."""
SWEEP_S = 5.0
"""As often some of the queues that wait are looked at again, as an asker of long polls would."""


class _Session:
    """The fetch session of one stream."""

    def __init__(self, sessions: "Sessions", sink: FetchSink) -> None:
        self.sink = sink
        self.rows: dict[int, Row] = {}
        self.seen = 0
        self.is_ended = False
        self.tasks: set[asyncio.Task[None]] = set()
        self._sessions = sessions
        self._ready: dict[int, Row] = {}
        """To be looked at, in line."""
        self._news: dict[int, Row] = {}
        """Without batches, but not without anything to say once an answer leaves."""
        self._uncertain: dict[int, Row] = {}
        """Perhaps out of range: a read round decides (R3)."""
        self._requests: deque[Request] = deque()
        self._is_warming = False
        self._job: Job | None = None
        self._is_round_under_way = False
        self._is_look_due = False
        self._has_filters = False
        self._unswept: deque[int] = deque()
        self._sweep_at = asyncio.get_running_loop().time() + SWEEP_S

    # -- asking ------------------------------------------------------------------------------------

    def take(self, request: Request, sequence: int, queues: Iterable[FetchQueue]) -> None:
        """Note what changed. Nothing is looked at yet."""
        self.seen = sequence
        for asked in queues:
            row = Row(asked)
            if row.key in self.rows:
                self._drop(self.rows[row.key])
            if asked.max_bytes:
                self.rows[row.key] = self._ready[row.key] = row
                self._sessions.enter(row.key, self)
                self._has_filters |= asked.filter_id != 0
        self._requests.append(request)

    def time_over(self, request: Request) -> None:
        request.is_over = True
        self._requests.remove(request)
        self._requests.appendleft(request)
        self.look_in_turn()

    def has_room(self) -> bool:
        return len(self._requests) < REQUESTS_MAX

    def wake(self, key: int) -> None:
        """Confirm has passed a batch of the queue; `look` comes after all of them."""
        row = self.rows.get(key)
        if row is not None and key not in self._uncertain:
            self._news.pop(key, None)
            self._ready[key] = row

    def wake_all(self) -> None:
        for row in self.rows.values():
            row.is_round_done = row.is_round_failed = False
        self._uncertain.clear()
        self._news.clear()
        self._ready |= self.rows
        self.look_in_turn()

    def forget(self) -> None:
        """The session has ended; whoever waits is not told."""
        self.is_ended = True
        for row in tuple(self.rows.values()):
            self._drop(row)
        for request in self._requests:
            if request.timer is not None:
                request.timer.cancel()
        self._requests.clear()
        for task in self.tasks:
            task.cancel()
        if self._job is not None:
            self._job.cancel()

    def request_ids(self) -> list[int]:
        return [request.request_id for request in self._requests]

    def _drop(self, row: Row) -> None:
        del self.rows[row.key]
        self._ready.pop(row.key, None)
        self._news.pop(row.key, None)
        self._uncertain.pop(row.key, None)
        self._sessions.leave(row.key, self)

    # -- looking -----------------------------------------------------------------------------------

    def look_in_turn(self) -> None:
        """`look` now, or in a later turn where this one has no room."""
        if not self._is_look_due and not self._sessions.turns.add(self.look, self.sink.asker):
            self._is_look_due = True

    def look(self) -> None:
        """Answer as many requests as there is something for."""
        self._is_look_due = False
        while self._requests and not self._is_warming and self._job is None:
            request = self._requests[0]
            harvest = self._harvest(request)
            if harvest is None:
                return
            reader = self._sessions.role.reader
            cold = [view for view in harvest.gathering.found.deep if reader.is_cold(view)]
            if cold:
                self._is_warming = True
                self._start(self._warm(harvest, cold, reader))
            elif not self._deliver_sound(harvest, reader):
                return

    def _must_answer(self, request: Request) -> bool:
        """Whether an answer leaves even if it says nothing."""
        return request.is_over or len(self._requests) > WAITING_MAX

    def _look_later(self) -> None:
        if not self._is_look_due and not self.is_ended:
            self._is_look_due = True
            self._sessions.turns.later(self.look, self.sink.asker)

    def _harvest(self, request: Request) -> Harvest | None:
        """What can be answered now; None if that can wait."""
        room = min(request.max_bytes, LOOK_BYTES_MAX if self._has_filters else ROOM_MAX)
        writer = open_writer(self._sessions.role)
        gathering = self._sessions.gathering(is_open=writer is not None, room=room)
        harvest = Harvest(gathering, self.seen)
        self._sessions.turns.spend(min(len(self._ready), LOOKS_MAX) // COST_QUEUES)
        for row in list(islice(self._ready.values(), LOOKS_MAX)):
            if not self._look_at(row, harvest):
                break
        if self._uncertain and writer is not None and not self._is_round_under_way:
            self._is_round_under_way = True
            self._start(self._ask_round(writer))
        if not harvest.rows and not self._must_answer(request):
            if self._ready:
                self._look_later()
            return None
        for row in list(islice(self._news.values(), LOOKS_MAX)):
            part, views = self._part(row, gathering)
            if part.size or part.code != FetchCode.OK or row.next_offset:
                harvest.add(row, part, views)
            else:  # no longer late: where it stands by now, the next look says
                self._ready[row.key] = self._news.pop(row.key)
        harvest.without_large_company()
        return harvest

    def _look_at(self, row: Row, harvest: Harvest) -> bool:
        """Whether there may be room for more after this one."""
        found = harvest.gathering.found
        found.needs_round = False
        part, views = self._part(row, harvest.gathering)
        is_late = part.code == FetchCode.NOT_YET_AVAILABLE
        if part.size or part.code in FINAL_CODES or (is_late and row.is_round_failed):
            harvest.add(row, part, views)
            return True
        if found.needs_round:
            del self._ready[row.key]
            self._uncertain[row.key] = row
            return True
        if part.end > row.asked.offset and not is_late:
            return False
        del self._ready[row.key]
        self._sessions.watch(row.key)
        if is_late or row.next_offset:
            self._news[row.key] = row
        return True

    def _part(self, row: Row, gathering: Gathering) -> tuple[FetchPart, list[memoryview]]:
        asked = row.asked
        if asked.filter_id and self._sessions.filters.get(asked.filter_id) is None:
            code = FetchCode.UNKNOWN_FILTER
            return FetchPart(asked.topic_id, asked.queue_id, code, 0, 0, 0), []
        return gathering.look(asked, row)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = spawn(work, name="follow")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _ask_round(self, writer: LogWriter) -> None:
        waiting = dict(self._uncertain)  # the next ones need a round of their own
        is_done = False
        try:
            await writer.read_round()
            is_done = True
        except PacelineError:
            pass  # no master any more, or members are silent: nothing is certain
        except Exception:  # a fault of this program: the consumer must not wait for it
            log.exception("read_round_failed")
        finally:
            self._is_round_under_way = False
        for key, row in waiting.items():
            if self._uncertain.get(key) is row:
                del self._uncertain[key]
                row.is_round_done, row.is_round_failed = is_done, not is_done
                self._ready[key] = row
        self.look_in_turn()

    async def _warm(self, harvest: Harvest, cold: list[memoryview], reader: LogReader) -> None:
        try:
            for view in cold:
                await reader.warm(view)
        except PacelineError as known:
            self._sessions.end(self, known)
            return
        except Exception:  # a fault of this program: the consumer is told, and begins anew
            log.exception("pages_not_warmed")
            error = StorageError("the log could not be read; the broker's own log says why")
            self._sessions.end(self, error)
            return
        finally:
            self._is_warming = False
        if self._deliver_sound(harvest, reader):
            self.look()

    # -- answering ---------------------------------------------------------------------------------

    def _deliver_sound(self, harvest: Harvest, reader: LogReader) -> bool:
        """Verify what is old, and answer. R24: what was found damaged is nobody's; the second look
        leaves it out. False if nothing was answered now."""
        if harvest.is_sound(reader):
            return self._deliver(harvest)
        again = self._harvest(self._requests[0])
        if again is None:
            return False
        if again.is_sound(self._sessions.role.reader):
            return self._deliver(again)
        error = CorruptLogError("the log is damaged there; it is being repaired")
        self._sessions.end(self, error)
        return False

    def _deliver(self, harvest: Harvest) -> bool:
        """False if nothing was answered now; a long look at what filters want answers later."""
        sessions, steps = self._sessions, harvest.sift(self._sessions.filters)
        is_short, raw_bytes = harvest.look(sessions.filters, sessions.work)
        try:
            if not is_short:
                self._job = sessions.work.start(
                    steps, partial(self._sifted, harvest), asker=id(self.sink), raw_bytes=raw_bytes
                )
                return False
            for _ in steps:
                pass
        except PacelineError as error:
            sessions.end(self, error)
            return False
        return self._leave(harvest)

    def _sifted(self, harvest: Harvest, error: PacelineError | None) -> None:
        self._job = None
        if error is not None:
            self._sessions.end(self, error)
        elif self._leave(harvest):
            self.look()

    def _leave(self, harvest: Harvest) -> bool:
        for row in harvest.passed:  # each queue has its turn, however much is passed over in one
            if self._ready.get(row.key) is row:
                self._ready[row.key] = self._ready.pop(row.key)
        request = self._requests[0]
        if not harvest.rows and not self._must_answer(request):
            self._look_later()  # filters wanted nothing of it: on behind that
            return False
        self._requests.popleft()
        if request.timer is not None:
            request.timer.cancel()
        for row in harvest.rows:
            if self.rows.get(row.key) is row:  # else it was asked for anew meanwhile
                self._drop(row)
        found = harvest.gathering.found.answer
        answer = Fetched(found.epoch, found.confirm, harvest.parts, seen=harvest.seen)
        answer.buffers = [view for views in harvest.views for view in views]
        answer.size_bytes = sum(part.size for part in harvest.parts)
        answer.join_small()
        for topic_id, messages, size_bytes in harvest.counts:
            self._sessions.counters.delivered(topic_id, messages, size_bytes)
        self._sweep()
        self.sink.fetched(request.request_id, answer)
        return True

    def _sweep(self) -> None:
        """Now and then look again at some of the queues that wait.

        What says that a queue has news may be lost with what it hung on; and that a topic is gone
        is not said at all. Long polls have an end after which all is looked at anew: so here.
        """
        now = asyncio.get_running_loop().time()
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_S
        if not self._unswept:
            self._unswept.extend(self.rows)
        for _ in range(min(LOOKS_MAX, len(self._unswept))):
            self.wake(self._unswept.popleft())


class Sessions:
    """All fetch sessions of one broker; part of the `Fetcher`."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        slow: SlowReads,
        counters: Counters,
        filters: FilterRegistry,
        settings: ServiceSettings,
        watch: Callable[[int], None],
        work: LongWork,
        turns: Turns,
    ) -> None:
        """`watch(key)`: see that `wake` is called with the queue's next messages; `turns`: in which
        sessions look."""
        self.role = role
        self.counters = counters
        self.filters = filters
        self.watch = watch
        self.work = work
        self.turns = turns
        self._routes = routes
        self._slow = slow
        self._settings = settings
        self._by_sink: dict[FetchSink, _Session] = {}
        self._by_key: dict[int, dict[_Session, None]] = {}
        self.queue_count = 0
        """Over all sessions."""

    def follow(
        self,
        queues: Sequence[FetchQueue],
        *,
        sequence: int,
        wait_ms: int,
        max_bytes: int,
        sink: FetchSink,
        request_id: int,
    ) -> None:
        """One request of a session; never raises, the sink hears of it once."""
        if sequence == 1:
            if sink in self._by_sink:
                self.end(self._by_sink[sink], BadRequestError("the fetch session was begun anew"))
            self._by_sink[sink] = _Session(self, sink)
        session = self._by_sink.get(sink)
        if session is None or sequence != session.seen + 1:
            error: PacelineError = BadRequestError(
                "no such fetch session: begin one with sequence 1", field="sequence"
            )
            self._refuse(sink, request_id, error)
            return
        if len(queues) > FOLLOW_QUEUES_MAX:
            error = BadRequestError(
                f"a request names up to {FOLLOW_QUEUES_MAX} queues, not {len(queues)}",
                field="queues",
            )
            self._refuse(sink, request_id, error)
            return
        if not session.has_room():
            error = OverloadedError(f"{REQUESTS_MAX} requests wait here", retry_after_ms=1000)
            self._refuse(sink, request_id, error)
            return
        request = Request(request_id, max_bytes)
        request.is_over = wait_ms == 0
        session.take(request, sequence, queues)
        limit = self._settings.followed_queues_max
        if len(session.rows) > SESSION_QUEUES_MAX or self.queue_count > limit:
            error = OverloadedError(
                f"fetch sessions hold {self.queue_count} queues here", retry_after_ms=1000
            )
            self.end(session, error)
            return
        if not request.is_over:
            bounded_ms = min(wait_ms, self._settings.fetch_wait_ms_max)
            loop = asyncio.get_running_loop()
            request.timer = loop.call_later(bounded_ms / 1000, session.time_over, request)
        session.look()

    def wake(self, keys: Collection[int]) -> None:
        """Confirm has passed messages of these queues."""
        woken: dict[_Session, None] = {}
        for key in keys:
            for session in self._by_key.get(key, ()):
                session.wake(key)
                woken[session] = None
        for session in woken:
            session.look_in_turn()

    def role_changed(self) -> None:
        for session in tuple(self._by_sink.values()):
            session.wake_all()

    def cancel(self, sink: FetchSink) -> None:
        """The connection has gone."""
        self._end_quietly(sink)

    def end(self, session: _Session, error: PacelineError) -> None:
        """It cannot go on: all its requests are told, and the next one must begin a new one."""
        unanswered = session.request_ids()
        self._end_quietly(session.sink)
        for request_id in unanswered:
            session.sink.failed(request_id, error)

    async def close(self) -> None:
        tasks = [task for session in self._by_sink.values() for task in session.tasks]
        for sink in tuple(self._by_sink):
            self._end_quietly(sink)
        await cancel_and_wait(*tasks)

    # -- for sessions ------------------------------------------------------------------------------

    def enter(self, key: int, session: _Session) -> None:
        self.queue_count += 1
        self._by_key.setdefault(key, {})[session] = None

    def leave(self, key: int, session: _Session) -> None:
        self.queue_count -= 1
        of_key = self._by_key[key]
        del of_key[session]
        if not of_key:
            del self._by_key[key]

    def gathering(self, *, is_open: bool, room: int) -> Gathering:
        return Gathering(self.role, self._routes, self._slow, is_open=is_open, room=room)

    def _refuse(self, sink: FetchSink, request_id: int, error: PacelineError) -> None:
        session = self._by_sink.get(sink)
        if session is not None:
            self.end(session, error)
        sink.failed(request_id, error)

    def _end_quietly(self, sink: FetchSink) -> None:
        session = self._by_sink.pop(sink, None)
        if session is not None:
            session.forget()
