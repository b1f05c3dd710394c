"""Fetching: confirmed batches of many queues at once, as views of the log, with long polls.

A fetch looks its queues up in the consume queues, has the log's mapped bytes in hand (nothing is
copied, the transport gets the views), or waits: for a batch to be confirmed, its time to be over,
the role to change. Waiting costs nothing while nothing happens: a queue somebody waits for is
marked, the fold reports it once, and the sweep of confirm wakes its waiters.

Out of range is said only where it is certain (R3): below the queue's start, or above its end on an
open master after a read round; elsewhere a position ahead of this broker waits.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
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
from paceline.types import PhysicalOffset
from paceline.wire.stream import FetchQueue
from paceline_broker.ports import LogReader, LogWriter, Role, RoleState, open_writer
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.service.counters import Counters
from paceline_broker.service.fetch.filters import (
    LOOK_BYTES_MAX,
    TURN_BYTES_OF_COST,
    FilterRegistry,
    check_filters,
    short_look,
    sift,
    unpacked_bytes,
)
from paceline_broker.service.fetch.read import (
    COST_QUEUES,
    Asked,
    Fetched,
    FetchSink,
    Gathered,
    gather,
)
from paceline_broker.service.fetch.replica_suggestion import SlowReads
from paceline_broker.service.fetch.sessions import Sessions
from paceline_broker.service.long_work import Job, LongWork
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings

log = logging.getLogger("paceline.service")

_AWAITED_COST = 6
"""Of a turn, for an answer that is written as JSON over HTTP: some 0.3 ms, 50 us over a stream."""


class FutureFetchSink:
    """A sink of one request whose asker awaits."""

    asker = None

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.answer: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()

    def fetched(self, request_id: int, answer: Fetched) -> None:
        self._turns.spend(_AWAITED_COST)
        if not self.answer.done():
            self.answer.set_result(answer)

    def failed(self, request_id: int, error: PacelineError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Waiting(Asked):
    """One fetch that is not answered yet."""

    __slots__ = (
        "has_filters",
        "is_done",
        "job",
        "keys",
        "min_bytes",
        "moved",
        "request_id",
        "sink",
        "task",
        "timer",
    )

    def __init__(
        self,
        queues: Sequence[FetchQueue],
        max_bytes: int,
        min_bytes: int,
        sink: FetchSink,
        request_id: int,
    ) -> None:
        super().__init__(queues, max_bytes)
        self.min_bytes = min_bytes
        self.sink = sink
        self.request_id = request_id
        self.keys: tuple[int, ...] = ()
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.job: Job | None = None
        """A look of many turns at what filters want; it answers or looks again."""
        self.is_done = False
        self.has_filters = False
        self.moved: dict[tuple[int, int], int] = {}
        """Offsets up to which filters have passed over everything."""


class Fetcher:
    """The use-case of fetching. One per broker; `close` before the role goes."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        counters: Counters,
        settings: ServiceSettings,
        work: LongWork,
        *,
        on_messages: Callable[[Iterable[int]], None],
    ) -> None:
        """`on_messages`: told which watched queues (`ConsumeQueue.is_watched`) confirm has passed
        messages of."""
        self.filters = FilterRegistry(work)
        self._work = work
        self.turns = turns = Turns(settings.turn_requests_max)
        """Long polls are woken, and requests of streams begun, as far as a turn has room."""
        self._role = role
        self._routes = routes
        self._counters = counters
        self._settings = settings
        self.slow = SlowReads(role, routes, settings.slow_read_bytes)
        self._by_key: dict[int, dict[_Waiting, None]] = {}
        self._by_sink: dict[FetchSink, dict[_Waiting, None]] = {}
        self._behind: dict[int, None] = {}
        """Queues with waiters whose last batch was folded before they came, not yet confirmed."""
        self.waiting_count = 0
        self._on_messages = on_messages
        self._turn = 0
        self.sessions = Sessions(
            role, routes, self.slow, counters, self.filters, settings, self.watch, work, turns
        )
        self._reader: LogReader | None = None
        self._stop_listening = _nothing
        self.role_changed()

    # -- asking ------------------------------------------------------------------------------------

    def fetch(
        self,
        queues: Sequence[FetchQueue],
        *,
        wait_ms: int,
        max_bytes: int,
        min_bytes: int,
        sink: FetchSink,
        request_id: int,
    ) -> None:
        """Answer now or when there is something; never raises, the sink hears of it once."""
        if not 1 <= len(queues) <= self._settings.fetch_queues_max:
            limit = self._settings.fetch_queues_max
            error: PacelineError = BadRequestError(
                f"a fetch names 1 to {limit} queues, not {len(queues)}", field="queues"
            )
            sink.failed(request_id, error)
            return
        has_filters, has_unknown = any(queue.filter_id for queue in queues), False
        if has_filters:
            try:
                has_unknown = not check_filters(self.filters, queues)
            except BadRequestError as twice:
                sink.failed(request_id, twice)
                return
        if has_filters:
            # How much is left nobody knows before: what is looked at need not reach `min_bytes`.
            max_bytes, min_bytes = min(max_bytes, LOOK_BYTES_MAX), 1
        waiting = _Waiting(queues, max_bytes, max(1, min_bytes), sink, request_id)
        waiting.has_filters = has_filters
        waiting.is_over = wait_ms == 0 or has_unknown
        if self._try_answer(waiting):
            return
        if self.waiting_count >= self._settings.fetches_waiting_max:
            waiting.is_done = True  # whatever task it may have started finds it so
            error = OverloadedError(
                f"{self.waiting_count} fetches wait already", retry_after_ms=1000
            )
            sink.failed(request_id, error)
            return
        self.waiting_count += 1
        self._by_sink.setdefault(sink, {})[waiting] = None
        if waiting.task is None and waiting.job is None:
            self._watch(waiting)
        if wait_ms:
            bounded_ms = min(wait_ms, self._settings.fetch_wait_ms_max)
            loop = asyncio.get_running_loop()
            waiting.timer = loop.call_later(bounded_ms / 1000, self._time_over, waiting)

    def waiting_of(self, sink: FetchSink) -> int:
        """How many fetches of one connection wait."""
        return len(self._by_sink.get(sink, ()))

    def cancel(self, sink: FetchSink) -> None:
        """The connection has gone: forget its fetches."""
        for waiting in list(self._by_sink.get(sink, ())):
            self._finish(waiting)
        self.sessions.cancel(sink)

    def role_changed(self) -> None:
        """Listen to the present log, and let every waiting fetch look again (DESIGN 7)."""
        if self._role.reader is not self._reader:
            self._stop_listening()
            self._reader = self._role.reader
            self._stop_listening = self._reader.on_confirm(self._confirm_moved)
        for sink in list(self._by_sink):
            for waiting in list(self._by_sink.get(sink, ())):
                self._wake(waiting)
        self.sessions.role_changed()

    async def close(self) -> None:
        """Forget everything that waits; connections are closed by their owners."""
        self._stop_listening()
        fetches = [waiting for group in self._by_sink.values() for waiting in group]
        for waiting in fetches:
            self._finish(waiting)
        await self.sessions.close()
        await cancel_and_wait(*(waiting.task for waiting in fetches))

    # -- waking ------------------------------------------------------------------------------------

    def _confirm_moved(self, confirm: PhysicalOffset) -> None:
        touched = self._role.projections.touched
        keys: dict[int, None] = {}
        if self._behind:
            keys, self._behind = self._behind, {}
        while touched and touched[0].position <= confirm:
            keys[touched.popleft().queue.key] = None
        for key in keys:
            for waiting in list(self._by_key.get(key, ())):
                self._wake(waiting)
        if keys:
            self.sessions.wake(keys)
            self._on_messages(keys)

    def watch(self, key: int) -> None:
        """Have `on_messages` told of the next messages of a queue that confirm passes."""
        queue = self._role.projections.consume_queues.get_or_make(key)
        queue.is_watched = True
        if queue.end > queue.confirmed_end(self._role.reader.confirm):
            self._behind[key] = None

    def _time_over(self, waiting: _Waiting) -> None:
        waiting.timer = None
        waiting.is_over = True
        self._wake(waiting)

    def _wake(self, waiting: _Waiting) -> None:
        """Look at it again, now or in a later turn: ten thousand may wait for one message."""
        if not self.turns.add(partial(self._look_again, waiting), waiting.sink.asker):
            self._unwatch(waiting)  # it need not be woken again

    def _look_again(self, waiting: _Waiting) -> None:
        is_busy = waiting.task is not None and not waiting.task.done()
        if waiting.is_done or is_busy or waiting.job is not None:
            return  # task or job looks again when it ends
        self._unwatch(waiting)
        if self._try_answer(waiting):
            self._finish(waiting)
        elif waiting.task is None and waiting.job is None:
            self._watch(waiting)

    def _watch(self, waiting: _Waiting) -> None:
        keys = []
        for asked in waiting.queues:
            key = queue_key(asked.topic_id, asked.queue_id)
            self.watch(key)
            self._by_key.setdefault(key, {})[waiting] = None
            keys.append(key)
        waiting.keys = tuple(keys)

    def _unwatch(self, waiting: _Waiting) -> None:
        for key in waiting.keys:
            waiters = self._by_key.get(key)
            if waiters is None:
                continue  # one fetch may name a queue twice
            waiters.pop(waiting, None)
            if not waiters:
                del self._by_key[key]
        waiting.keys = ()

    def _finish(self, waiting: _Waiting) -> None:
        waiting.is_done = True
        self._unwatch(waiting)
        if waiting.timer is not None:
            waiting.timer.cancel()
        if waiting.job is not None:
            waiting.job.cancel()
        of_sink = self._by_sink.get(waiting.sink)
        if of_sink is None or waiting not in of_sink:
            return
        self.waiting_count -= 1
        del of_sink[waiting]
        if not of_sink:
            del self._by_sink[waiting.sink]

    # -- looking -----------------------------------------------------------------------------------

    def _try_answer(self, waiting: _Waiting) -> bool:
        """Answer if there is enough, a code to tell, or no time left. True if it was answered.

        False also when a task was started that will answer: a read round, or cold pages.
        """
        writer = open_writer(self._role)
        gathered = self._gather(waiting, is_open=writer is not None)
        self._turn += 1
        self.turns.spend(len(waiting.queues) // COST_QUEUES)
        if gathered.needs_round and writer is not None:
            self._start(waiting, self._ask_round(waiting, writer))
            return False
        answer = gathered.answer
        is_enough = answer.size_bytes >= waiting.min_bytes or gathered.has_code
        if not is_enough and not waiting.is_over:
            return False
        reader = self._role.reader
        cold = [view for view in gathered.deep if reader.is_cold(view)]
        if cold:
            self._start(waiting, self._warm(waiting, gathered, cold, reader))
            return False
        if not all(reader.is_sound(view, position) for position, view in gathered.unsure):
            return self._answer_damaged(waiting)
        return self._deliver(waiting, gathered)

    def _answer_damaged(self, waiting: _Waiting) -> bool:
        """What was found wrong is nobody's; the rest of the answer can still be had (R24)."""
        gathered = self._gather(waiting, is_open=False)
        reader = self._role.reader
        if all(reader.is_sound(view, position) for position, view in gathered.unsure):
            return self._deliver(waiting, gathered)
        # a second one in the same answer
        error = CorruptLogError("the log is damaged there; it is being repaired")
        waiting.sink.failed(waiting.request_id, error)
        return True

    def _gather(self, waiting: _Waiting, *, is_open: bool) -> Gathered:
        return gather(
            waiting, self._role, self._routes, self.slow, is_open=is_open, turn=self._turn
        )

    def _start(self, waiting: _Waiting, work: Coroutine[Any, Any, None]) -> None:
        waiting.task = spawn(work, name="fetch")

    async def _ask_round(self, waiting: _Waiting, writer: LogWriter) -> None:
        try:
            await writer.read_round()
            waiting.is_round_done = True
        except PacelineError:
            # No master any more, or members are silent: then nothing is certain.
            waiting.is_round_failed = waiting.is_over = True
        except Exception:  # a fault of this program: the consumer must not wait for it
            log.exception("read_round_failed")
            waiting.is_round_failed = waiting.is_over = True
        waiting.task = None
        self._wake(waiting)

    async def _warm(
        self, waiting: _Waiting, gathered: Gathered, cold: list[memoryview], reader: LogReader
    ) -> None:
        try:
            for view in cold:
                await reader.warm(view)
        except PacelineError as known:
            self._fail(waiting, known)
            return
        except Exception:  # a fault of this program: the consumer is told, and asks again
            log.exception("pages_not_warmed")
            error = StorageError("the log could not be read; the broker's own log says why")
            self._fail(waiting, error)
            return
        waiting.task = None
        if waiting.is_done:
            return
        if all(reader.is_sound(view, position) for position, view in gathered.unsure):
            is_answered = self._deliver(waiting, gathered)
        else:
            is_answered = self._answer_damaged(waiting)
        if is_answered:
            self._finish(waiting)

    def _fail(self, waiting: _Waiting, error: PacelineError) -> None:
        if not waiting.is_done:
            waiting.sink.failed(waiting.request_id, error)
            self._finish(waiting)

    def _deliver(self, waiting: _Waiting, gathered: Gathered) -> bool:
        """Answer; False if filters want nothing of it: then it looks on behind that. False also
        while a job looks what they want."""
        answer = gathered.answer
        if not waiting.has_filters:
            self._send(waiting, gathered)
            return True
        try:
            cost = short_look(self.filters, waiting.queues, answer)
            steps = self._sift(waiting, gathered)
            if not cost or not self._work.has_turn_for(cost * TURN_BYTES_OF_COST):
                waiting.job = self._sift_later(waiting, gathered, steps)
                return False
            for _ in steps:
                pass
        except PacelineError as error:
            waiting.sink.failed(waiting.request_id, error)
            return True
        return self._send_sifted(waiting, gathered)

    def _sift_later(self, waiting: _Waiting, gathered: Gathered, steps: Iterator[None]) -> Job:
        def done(error: PacelineError | None) -> None:
            waiting.job = None
            if error is not None:
                self._fail(waiting, error)
            elif self._send_sifted(waiting, gathered):
                self._finish(waiting)

        raw_bytes = unpacked_bytes(gathered.answer.buffers)
        return self._work.start(steps, done, asker=id(waiting.sink), raw_bytes=raw_bytes)

    def _sift(self, waiting: _Waiting, gathered: Gathered) -> Iterator[None]:
        """Leave out what filters do not want, and note which queues moved on by that."""
        answer, before = gathered.answer, waiting.queues
        waiting.queues, gathered.counts = yield from sift(self.filters, before, answer)
        moved = waiting.moved
        for old, new in zip(before, waiting.queues, strict=True):
            if new.offset != old.offset:
                gathered.is_moved = True
                moved[new.topic_id, new.queue_id] = new.offset
        answer.parts = [
            part._replace(next_offset=moved.get((part.topic_id, part.queue_id), 0))
            for part in answer.parts
        ]

    def _send_sifted(self, waiting: _Waiting, gathered: Gathered) -> bool:
        if gathered.is_moved and not gathered.answer.size_bytes and not waiting.is_over:
            asyncio.get_running_loop().call_soon(self._look_again, waiting)
            return False
        self._send(waiting, gathered)
        return True

    def _send(self, waiting: _Waiting, gathered: Gathered) -> None:
        answer = gathered.answer
        for topic_id, messages, size_bytes in gathered.counts:
            self._counters.delivered(topic_id, messages, size_bytes)
        if self._role.state is RoleState.REPLICA:
            self._counters.replica_messages_out += sum(row[1] for row in gathered.counts)
            self._counters.replica_bytes_out += sum(row[2] for row in gathered.counts)
        answer.join_small()
        waiting.sink.fetched(waiting.request_id, answer)


def _nothing() -> None:
    return None
