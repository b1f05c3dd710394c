"""Sending: a record batch from an endpoint to the log, and its answer once confirm has passed it.

The hot path of the broker, so it is one synchronous step per batch without a task or a future:
check, look up, may we append (R8, R27), is it a duplicate (R31), stamp, append, fold, wait. A batch
whose check is long is checked over several turns first, and all the rest is one step then. The
answer goes to a `Sink` that knows the connection. Every answer that tells of the state at `end`,
duplicates and sequence refusals included, leaves when confirm has passed that `end` (R28, R30).
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from paceline.errors import (
    CorruptBatchError,
    CorruptLogError,
    OverloadedError,
    PacelineError,
    ProducerFencedError,
    QueueSealedError,
    StorageQuotaExceededError,
    TopicNotFoundError,
)
from paceline.platform.ports import Buffer, Clock
from paceline.records.checking import BatchCheck
from paceline.records.decode import BatchView
from paceline.records.header import (
    BatchHeader,
    Kind,
)
from paceline.types import PhysicalOffset
from paceline.wire.stream import (
    PRODUCE_FLAG_DUPLICATE,
    PRODUCE_FLAG_OFFSET_UNKNOWN,
    PRODUCE_FLAG_UNCONFIRMED,
    ProduceAnswer,
)
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.projections.producers import StoredBatch, Verdict
from paceline_broker.projections.projections import Projections
from paceline_broker.service.batch_rules import (
    SenderRights,
    check_count,
    check_from_client,
    check_half_sizes,
    rows_check,
    turn_bytes,
)
from paceline_broker.service.counters import Counters
from paceline_broker.service.delays.intake import take_delayed
from paceline_broker.service.hooks import Hooks
from paceline_broker.service.long_work import Job, LongWork
from paceline_broker.service.produce.storage_quotas import StorageQuotas
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings
from paceline_broker.service.topic_records import log_topic
from paceline_broker.service.transactions.half_messages import check_may_begin


class Sink(Protocol):
    """Where the answers of a connection go. Each request id gets exactly one call, on the loop."""

    def produced(self, request_id: int, answer: ProduceAnswer) -> None: ...

    def failed(self, request_id: int, error: PacelineError) -> None: ...


class _Stored:
    """A batch that waits for confirm; the sweep calls it. One object with slots, no closure."""

    __slots__ = ("_answer", "_request_id", "_sink", "_writer")

    def __init__(
        self, sink: Sink, request_id: int, answer: ProduceAnswer, writer: LogWriter
    ) -> None:
        self._sink = sink
        self._request_id = request_id
        self._answer = answer
        self._writer = writer

    def __call__(self, error: PacelineError | None) -> None:
        if error is not None:
            self._sink.failed(self._request_id, error)
            return
        epoch, count, base, _, store_unix_ms, flags, position = self._answer
        self._sink.produced(
            self._request_id,
            ProduceAnswer(epoch, count, base, self._writer.confirm, store_unix_ms, flags, position),
        )


class _StoredEarly(_Stored):
    """A batch that waits for n members (R37); its answer says whether confirm has passed it too."""

    __slots__ = ("_end",)

    def __init__(
        self,
        sink: Sink,
        request_id: int,
        answer: ProduceAnswer,
        writer: LogWriter,
        end: PhysicalOffset,
    ) -> None:
        super().__init__(sink, request_id, answer, writer)
        self._end = end

    def __call__(self, error: PacelineError | None) -> None:
        if error is None and self._writer.confirm < self._end:
            self._answer = self._answer._replace(flags=PRODUCE_FLAG_UNCONFIRMED)
        super().__call__(error)


class _Refused:
    """A refusal decided on state that is not confirmed yet."""

    __slots__ = ("_error", "_request_id", "_sink")

    def __init__(self, sink: Sink, request_id: int, error: PacelineError) -> None:
        self._sink = sink
        self._request_id = request_id
        self._error = error

    def __call__(self, error: PacelineError | None) -> None:
        self._sink.failed(self._request_id, error or self._error)


class _Parked(NamedTuple):
    """A batch for a topic that a newer view may know."""

    batch: Buffer
    header: BatchHeader
    sink: Sink
    request_id: int
    timer: asyncio.TimerHandle


class Sender:
    """The use-case of sending batches."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        clock: Clock,
        counters: Counters,
        settings: ServiceSettings,
        work: LongWork,
        hooks: Hooks,
        storage: StorageQuotas,
        *,
        delays_from_ms: Callable[[], int],
        on_pending: Callable[[], None],
    ) -> None:
        """`delays_from_ms`: from when a delay counts that begins now (fire_clock.py); `on_pending`:
        told when messages that wait were appended, of which one may be the next to act on."""
        self._hooks = hooks
        self._storage = storage
        self._work = work
        self._role = role
        self._routes = routes
        self._clock = clock
        self._counters = counters
        self._settings = settings
        self._parked: dict[int, _Parked] = {}
        self._parked_last = 0
        self.delays_from_ms = delays_from_ms
        self._on_pending = on_pending
        routes.on_change(self._retry_parked)

    def has_window(self, unanswered_bytes: int) -> bool:
        """Whether a connection that has so much unanswered should be read from (R27)."""
        try:
            return self._role.writer().has_window(unanswered_bytes)
        except PacelineError:
            return True  # what is refused does not wait

    def send(
        self,
        batch: Buffer,
        sink: Sink,
        request_id: int,
        *,
        asker: str | None = None,
        rights: SenderRights | None = None,
    ) -> Job | None:
        """Store a batch as it came from a client; never raises, the sink hears of it once. `asker`:
        whose share of long work it has. `rights`: None where they are off.

        A job: its check takes some turns of the loop. What the same producer sends after it must
        wait for the job's end (`then`); a cancelled one stores nothing and tells nobody.
        """
        try:
            check = BatchCheck(batch)
            header = check.header
            check_from_client(header)
            steps = check.steps(rows_check(header, rights))
            is_short = check.is_short()
            if is_short and (work_bytes := turn_bytes(header)):
                is_short = self._work.has_turn_for(work_bytes)
            if not is_short:
                return self._send_later(check, steps, sink, request_id, asker)
            for _ in steps:
                pass
            self._check_whole(check)
        except CorruptLogError as error:
            sink.failed(request_id, CorruptBatchError(error.message))
            return None
        except PacelineError as error:
            sink.failed(request_id, error)
            return None
        self.send_checked(batch, header, sink, request_id)
        return None

    def _send_later(
        self,
        check: BatchCheck,
        steps: Iterator[None],
        sink: Sink,
        request_id: int,
        asker: str | None,
    ) -> Job:
        def done(error: PacelineError | None) -> None:
            try:
                if error is None:
                    self._check_whole(check)
            except PacelineError as refused:
                error = refused
            if isinstance(error, CorruptLogError):
                error = CorruptBatchError(error.message)
            if error is not None:
                sink.failed(request_id, error)
                return
            # Nothing that was known before the check counts: role, topic and sequence are looked
            # up now, in the step that appends.
            self.send_checked(check.view.raw, check.header, sink, request_id)

        raw_bytes = check.header.payload_raw_bytes if check.header.codec else 0
        return self._work.start(steps, done, asker=asker, raw_bytes=raw_bytes)

    def _check_whole(self, check: BatchCheck) -> None:
        if check.header.kind == Kind.HALF:
            check_half_sizes(check.view)
        self._hooks.check_put(self._hooks.put, check.header, check.view.raw)

    def check(
        self,
        header: BatchHeader,
        batch: Buffer,
        rows: Sequence[Mapping[str, str]],
        rights: SenderRights | None,
    ) -> None:
        """Raise what refuses a batch that this process has encoded of a client's messages, before
        it is put: our own rules, then hooks. `rows`: its properties, {} where there are none."""
        check_count(header)
        check_rows = rows_check(header, rights)
        if check_rows is not None:
            check_rows(0, rows)
        if header.kind == Kind.HALF:
            check_half_sizes(BatchView(batch))
        self._hooks.check_put(self._hooks.put, header, batch)

    def send_checked(self, batch: Buffer, header: BatchHeader, sink: Sink, request_id: int) -> None:
        """Store a batch that passed its check, or that this process has encoded."""
        queue_id = header.queue_id
        here = self._routes.sendable.get(header.topic_id)
        if here is None or queue_id >= here.writes or not here.kinds >> header.kind & 1:
            self._refuse(batch, header, sink, request_id)
            return
        projections = self._role.projections
        key = queue_key(header.topic_id, queue_id)
        if key in projections.seals.by_key or key in self._routes.closed:
            self._refuse_sealed(header, sink, request_id)
            return
        try:
            writer = self._role.writer()
            writer.ensure_can_append()
        except PacelineError as error:
            sink.failed(request_id, error)
            return
        if header.producer_id and self._is_answered(header, key, writer, sink, request_id):
            return
        if header.topic_id in self._storage.limits:
            try:
                self._storage.check(header.topic_id, header.size_bytes, projections.consume_queues)
            except StorageQuotaExceededError as error:
                sink.failed(request_id, error)
                return
        now = writer.appender.log_time_ms()
        try:
            is_pending = header.kind != Kind.NORMAL
            if is_pending:
                batch, header = self._take_pending(batch, header, projections)
            logged = projections.topics.get(header.topic_id)
            if logged is None or logged.queues < here.reads:
                log_topic(writer, projections, self._routes, header.topic_id, store_unix_ms=now)
            position = writer.end
            if is_pending:
                base = int(writer.appender.pending(batch, store_unix_ms=now))
                self._on_pending()
            else:
                base = writer.appender.messages(batch, header, store_unix_ms=now)
        except PacelineError as error:  # refused; or a full disk at a roll: it is over (R22)
            sink.failed(request_id, error)
            return
        self._counters.stored(header.topic_id, header.record_count, header.size_bytes)
        answer = ProduceAnswer(writer.epoch, header.record_count, base, 0, now, 0, position)
        self._answer_later(answer, writer.end, writer, sink, request_id, kind=header.kind)

    def _take_pending(
        self, batch: Buffer, header: BatchHeader, projections: Projections
    ) -> tuple[Buffer, BatchHeader]:
        """A batch of messages that wait, as it is stored; what refuses them is raised."""
        if header.kind == Kind.HALF:
            check_may_begin(self._settings, projections)
            return batch, header
        now_ms = self.delays_from_ms()
        return take_delayed(batch, header, projections.timers, self._settings, now_unix_ms=now_ms)

    def _answer_later(
        self,
        answer: ProduceAnswer,
        end: PhysicalOffset,
        writer: LogWriter,
        sink: Sink,
        request_id: int,
        *,
        kind: int,
    ) -> None:
        timeout_ms = self._settings.send_timeout_ms
        # By the group's choice, never by default; and no local transaction must begin on a
        # half that a failover may lose (R37).
        if writer.answers_early and kind != Kind.HALF:
            early = _StoredEarly(sink, request_id, answer, writer, end)
            writer.wait_held(end, early, timeout_ms=timeout_ms)
            return
        stored = _Stored(sink, request_id, answer, writer)
        writer.wait_confirmed(end, stored, timeout_ms=timeout_ms)

    def _is_answered(
        self, header: BatchHeader, key: int, writer: LogWriter, sink: Sink, request_id: int
    ) -> bool:
        """Whether an idempotent batch is a duplicate or refused (R31): then its answer waits."""
        timeout_ms = self._settings.send_timeout_ms
        try:
            verdict, original = self._role.projections.producers.decide(key, header)
        except PacelineError as error:
            refused = _Refused(sink, request_id, error)
            writer.wait_confirmed(writer.end, refused, timeout_ms=timeout_ms)
            return True
        if verdict is Verdict.NEW:
            return self._is_one_too_many(header, key, sink, request_id)
        duplicate = _duplicate_answer(header, original, writer)
        stored = _Stored(sink, request_id, duplicate, writer)
        writer.wait_confirmed(writer.end, stored, timeout_ms=timeout_ms)
        return True

    def _is_one_too_many(self, header: BatchHeader, key: int, sink: Sink, request_id: int) -> bool:
        """Whether the batch is refused because too many producers are remembered already."""
        producers = self._role.projections.producers
        limit = self._settings.producer_states_max
        if len(producers) < limit or producers.knows(key, header):
            return False
        what = f"{limit} producers and queues are remembered here; more are taken once some have"
        error = OverloadedError(f"{what} been silent for a while", retry_after_ms=1000)
        sink.failed(request_id, error)
        return True

    # -- what is not taken -------------------------------------------------------------------------

    def _refuse(self, batch: Buffer, header: BatchHeader, sink: Sink, request_id: int) -> None:
        """Tell why; what the queue took while it was allowed is still a duplicate (R30).

        A sealed queue says so also where the whole group takes no messages for the moment: its
        batches are to go on.
        """
        if header.topic_id in self._routes.sendable and self._is_sealed(header):
            self._refuse_sealed(header, sink, request_id)
            return
        if self._is_stored(header, sink, request_id):
            return
        try:
            self._routes.check_send(header.topic_id, header.queue_id, header.kind)
        except TopicNotFoundError as error:
            if header.topic_id > self._routes.topic_id_max:
                self._park(batch, header, sink, request_id)
            else:
                sink.failed(request_id, error)
        except PacelineError as error:
            sink.failed(request_id, error)

    def _is_sealed(self, header: BatchHeader) -> bool:
        key = queue_key(header.topic_id, header.queue_id)
        return key in self._role.projections.seals.by_key or key in self._routes.closed

    def _refuse_sealed(self, header: BatchHeader, sink: Sink, request_id: int) -> None:
        """What the queue took before it was sealed is a duplicate (R30, R31); all else goes on.

        So does a batch whose predecessor was refused here: its gap is no fault of the producer.
        The refusal is released with the seal (R28): else an unsealed queue of the next master could
        take a later batch than one that has gone on.
        """
        try:
            writer = self._role.writer()
        except PacelineError as error:
            sink.failed(request_id, error)
            return
        if self._is_stored(header, sink, request_id):
            return
        why = self._why_sealed(header)
        refused = _Refused(sink, request_id, why)
        writer.wait_confirmed(writer.end, refused, timeout_ms=self._settings.send_timeout_ms)

    def _why_sealed(self, header: BatchHeader) -> PacelineError:
        """A fenced producer stays here (R31): where it would go on nobody knows of its fence."""
        key = queue_key(header.topic_id, header.queue_id)
        sealed = QueueSealedError(
            f"queue {header.queue_id} of topic {self._routes.topic_name(header.topic_id)} in group"
            f" {self._routes.group} is sealed: its logical queue goes on elsewhere; nothing was"
            " stored",
            topic_id=header.topic_id,
            queue=header.queue_id,
            **self._what_is_forgotten(key),
        )
        if header.producer_id:
            try:
                self._role.projections.producers.decide(key, header)
            except ProducerFencedError as fenced:
                return fenced
            except PacelineError:
                return sealed  # those before it were refused here, and it goes where they go
        return sealed

    def _what_is_forgotten(self, key: int) -> dict[str, bool]:
        """R21, R32: what lies in the queue from before an unclean epoch has no producers any more,
        so the refusal says nothing of attempts that came before this one."""
        projections = self._role.projections
        voided_at = projections.producers.voided_at
        queue = projections.consume_queues.get(key)
        if not voided_at or queue is None or not queue.confirmed_end(voided_at):
            return {}
        return {"is_earlier_unknown": True}

    def _is_stored(self, header: BatchHeader, sink: Sink, request_id: int) -> bool:
        """Whether it is the repetition of a batch that is in the log, and is answered as such."""
        key = queue_key(header.topic_id, header.queue_id)
        if not header.producer_id or self._routes.is_deleted(header.topic_id):
            return False
        try:
            writer = self._role.writer()
            verdict, original = self._role.projections.producers.decide(key, header)
        except PacelineError:
            return False  # then it is refused for what it is
        if verdict is Verdict.NEW:
            return False
        stored = _Stored(sink, request_id, _duplicate_answer(header, original, writer), writer)
        writer.wait_confirmed(writer.end, stored, timeout_ms=self._settings.send_timeout_ms)
        return True

    def _park(self, batch: Buffer, header: BatchHeader, sink: Sink, request_id: int) -> None:
        if len(self._parked) >= self._settings.parked_batches_max:
            error = OverloadedError("too many batches wait for a new topic", retry_after_ms=100)
            sink.failed(request_id, error)
            return
        self._parked_last += 1
        timer = asyncio.get_running_loop().call_later(
            self._settings.view_wait_ms / 1000, self._give_up, self._parked_last
        )
        self._parked[self._parked_last] = _Parked(batch, header, sink, request_id, timer)

    def _give_up(self, number: int) -> None:
        parked = self._parked.pop(number)
        error = TopicNotFoundError(
            f"no topic with id {parked.header.topic_id}", version=self._routes.version
        )
        parked.sink.failed(parked.request_id, error)

    def _retry_parked(self) -> None:
        """A newer view is here: in the order they came, so that sequences stay in order."""
        parked, self._parked = self._parked, {}
        for number, waiting in parked.items():
            if waiting.header.topic_id > self._routes.topic_id_max:
                self._parked[number] = waiting
                continue
            waiting.timer.cancel()
            self.send_checked(waiting.batch, waiting.header, waiting.sink, waiting.request_id)


def _duplicate_answer(
    header: BatchHeader, original: StoredBatch | None, writer: LogWriter
) -> ProduceAnswer:
    """The answer the first attempt got or missed (R30); its offset may be out of the window."""
    if original is None:
        flags = PRODUCE_FLAG_DUPLICATE | PRODUCE_FLAG_OFFSET_UNKNOWN
        return ProduceAnswer(writer.epoch, header.record_count, 0, 0, 0, flags, 0)
    return ProduceAnswer(
        writer.epoch,
        header.record_count,
        original.base_queue_offset,
        0,
        original.store_unix_ms,
        PRODUCE_FLAG_DUPLICATE,
        0,
    )


class FutureSink:
    """A sink of one request whose asker awaits: the HTTP endpoint uses it."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[ProduceAnswer] = asyncio.get_running_loop().create_future()

    def produced(self, request_id: int, answer: ProduceAnswer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def failed(self, request_id: int, error: PacelineError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
