"""Streams: multiplexed binary frames on an upgraded connection (docs/protocol/stream.md).

A small frame is copied once out of the receive buffer, which all connections share (what is left
of a read is copied before the next one begins); a large one is received straight into a buffer of
its own, which grows as it comes (stream_frames.py, stream_memory.py). That buffer is what the log
writes and replication pushes. Answers of one loop turn leave in one write; fetched views of the log
go to the transport without a copy.

Each connection bounds what it makes the broker hold: unanswered bytes (reading pauses), waiting
fetches and calls (429), the time for a started frame and for taking answers (closed). All together
have one budget of bytes (ADR 18): over it a frame or request is refused (429). What a connection
asks in one go is served over several turns of the loop.
"""

import asyncio
import struct
from typing import Any, cast

import orjson

from paceline.errors import (
    BadRequestError,
    OverloadedError,
    PacelineError,
    ShuttingDownError,
    to_problem,
)
from paceline.platform.ports import Buffer
from paceline.platform.runtime import spawn
from paceline.platform.telemetry import strangers
from paceline.security.access import Asker
from paceline.security.quotas import WAIT_MS_MAX, UserQuota, exceeded
from paceline.server.byte_budget import JSON_FACTOR, no_room, source_of
from paceline.server.connections import Connection, ConnectionState
from paceline.wire.http import parse_json_object
from paceline.wire.stream import (
    FETCH_HEADER,
    FETCH_QUEUE,
    FOLLOW_HEADER,
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    PRODUCE_ANSWER,
    STATUS_ERROR,
    STATUS_OK,
    FetchQueue,
    Operation,
    ProduceAnswer,
)
from paceline_broker.server import stream_stillness
from paceline_broker.server.stream_frames import SCRATCH_BYTES, TURN_REQUESTS_MAX, StreamFrames
from paceline_broker.server.stream_memory import AHEAD_BYTES, FrameBuffer, RequestBytes
from paceline_broker.server.stream_quotas import QuotaLines, StreamQuota
from paceline_broker.server.stream_rights import StreamRights, topic_of_batch
from paceline_broker.server.stream_stillness import Stillness
from paceline_broker.service.fetch.read import Fetched
from paceline_broker.service.fetch.sessions import SESSION_QUEUES_MAX
from paceline_broker.service.long_work import Job
from paceline_broker.service.service import Service

CREDIT_BYTES = 32 * 1024 * 1024
"""Unanswered request bytes of one connection: two batches of the largest size in flight."""
REQUEST_COST_BYTES = 1024
"""What a request costs beside its bytes, so that many small ones are bounded as well."""
SMALL_FETCH_BYTES = 256 * 1024
"""Of an answer where the connection's share has no room for what was asked."""
FETCHES_MAX = 64
CALLS_MAX = 256
CALL_BYTES_OF_COST = 256
"""What is longer costs more: a filter of 3 KB takes 0.8 ms to read."""
WRITE_HIGH_BYTES = 4 * 1024 * 1024
"""Answers the transport may hold before reading pauses: one large fetch is under way, one waits."""
JOIN_BYTES = 64 * 1024
"""Smaller buffers are joined before the write."""

# The frame header and `PRODUCE_ANSWER` in one pack.
_PRODUCED = struct.Struct("<IIBBH" + PRODUCE_ANSWER.format.lstrip("<"))
_OPERATION_BITS = 3
_OPERATION_MASK = (1 << _OPERATION_BITS) - 1


class StreamServer:
    """All stream connections of one broker."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.watch = service.hooks.watch(service.clock)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.lines = QuotaLines(service.clock)
        self._connections: dict[StreamConnection, None] = {}  # in the order they came
        self._is_closing = False
        self._sweep: asyncio.TimerHandle | None = None
        service.access.on_change(self._rights_changed)

    def upgrade(
        self,
        transport: asyncio.Transport,
        before: asyncio.BaseProtocol,
        place: Connection | None = None,
        *,
        asker: Asker,
    ) -> "StreamConnection":
        """Take over a connection whose 101 was written. `before` hears of its end (aiohttp's)."""
        if self._is_closing:
            raise ShuttingDownError("this broker is stopping")
        connection = StreamConnection(self, before, place, asker)
        self._connections[connection] = None
        self.service.counters.streams_open += 1
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if self._sweep is None:
            self._schedule()
        return connection

    def forget(self, connection: "StreamConnection") -> None:
        """A connection has ended."""
        if connection in self._connections:
            del self._connections[connection]
            self.service.counters.streams_open -= 1

    def close(self) -> None:
        """Close every stream; before the HTTP server, whose handlers park on them."""
        self._is_closing = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._connections):
            connection.close()

    def _rights_changed(self) -> None:
        for connection in list(self._connections):
            connection.rights_changed()

    def _schedule(self) -> None:
        self._sweep = asyncio.get_running_loop().call_later(
            stream_stillness.STALL_SWEEP_S, self._look_for_stalls
        )

    def _look_for_stalls(self) -> None:
        self._sweep = None
        for connection in list(self._connections):
            connection.check_stall()
        if self._connections:
            self._schedule()


class StreamConnection(StreamFrames):
    """One stream. A `Sink` and `FetchSink` of the use-cases: they answer by request id."""

    def __init__(
        self,
        server: StreamServer,
        before: asyncio.BaseProtocol,
        place: Connection | None,
        asker: Asker,
    ) -> None:
        service = server.service
        super().__init__(server.scratch, service.fetcher.turns)
        self._server = server
        self._before = before
        self._place = place
        if place is not None:
            place.is_idle = self._is_idle
            place.is_now(ConnectionState.SILENT)
        self._sender = service.sender
        self._fetcher = service.fetcher
        self._calls = service.calls
        self._counters = service.counters
        self._role = service.role
        self._watch = server.watch
        self._quotas = service.access.quotas
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection has ended."""
        self.source = asker.principal.source
        """Host of the client; of one that comes through a gateway its own."""
        self.peer: str | None = None
        """Address of the other end."""
        self.asker: str | None = None
        self._checking: Job | None = None
        """A batch whose check takes several turns: what comes after it waits for its end."""
        self._holder = service.budget.holder(None)  # until it is known where it comes from
        self._held = RequestBytes(self._holder)
        self._pending: dict[int, int] = {}
        """Request id -> cost << 2 | operation, of requests without an answer."""
        self._unanswered_bytes = 0
        self._is_reading_paused = False
        self._lacks_room = False
        """Half of what it has must be answered before it is read from again."""
        self._is_writing_paused = False
        self._is_in_line = False
        self._unread_bytes = 0
        """Held in the budget for answers that the client does not take."""
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stillness = Stillness()
        self._asker = asker
        self._rights = StreamRights(asker) if service.access.is_on else None
        self._client_id = ""
        """What the client last called itself here; empty: it has not."""
        self._quota = StreamQuota(server.lines, asker.quota, self._regulate)
        """While it waits nothing is read: the user has taken more than it may."""

    # -- the transport's side ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, as uvloop's transports are no subclasses.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        end = transport.get_extra_info("peername")
        if end is not None:
            self.peer = f"{end[0]}:{end[1]}"
            self.asker = source_of(end[0])
            self._holder = self._server.service.budget.holder(self.asker)
            self._held = RequestBytes(self._holder)
        self._frame = FrameBuffer(self._holder)
        identity = self._role.identity
        hello = {
            "cluster_id": identity.cluster_id,
            "group": identity.group,
            "replica_id": identity.replica_id,
            "credit_bytes": CREDIT_BYTES,
            "session_queues": SESSION_QUEUES_MAX,
        }
        self._answer(0, Operation.HELLO, orjson.dumps(hello))

    def eof_received(self) -> None:
        return None  # closes the transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._later = b""
        self._out.clear()
        self._fetcher.cancel(self)
        self._quota.end()
        if self._checking is not None:
            self._checking.cancel()
        for task in self._tasks:
            task.cancel()
        if self._watch is not None:
            self._watch.lost(self)
        self._server.forget(self)
        self._server.service.connection_lost(self)
        self._holder.close()
        self._before.connection_lost(exc)
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        self._regulate()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._hold_unread(0)
        self._flush()
        self._regulate()

    def close(self) -> None:
        """Close after what was answered has been written."""
        if self._transport is not None:
            self._is_writing_paused = False
            self._flush()
            self._transport.close()

    def rights_changed(self) -> None:
        """Users or rights are others: close it if what it has done it may not do any more.

        So a fetch that waits ends too. The client comes back and is told what it lacks.
        """
        self._quota.change(self._asker.quota_of(self._client_id))
        if not self._asker.access.is_on:
            self._rights = None
        elif self._rights is None or not self._rights.still_holds():
            self.close()  # also when rights are switched on: what it has done is not known

    def is_client(self, client_id: str) -> None:
        """The client has said who it is: its quota counts."""
        if client_id != self._client_id:
            self._client_id = client_id
            self._quota.change(self._asker.quota_of(client_id))

    def check_stall(self) -> None:
        """Called every `STALL_SWEEP_S`: abort if a frame or the writing stood still too long."""
        transport, frame = self._transport, self._frame
        if transport is None:
            return
        if self._rights is not None and not self._rights.is_valid():
            self.close()  # its key has expired
            return
        unwritten = transport.get_write_buffer_size() if self._is_writing_paused else 0
        still = self._stillness
        if still.is_stalled(frame, unwritten=unwritten, is_reading_paused=self._is_reading_paused):
            strangers.warning("stream_stalled", extra={"unwritten_bytes": unwritten})
            transport.abort()
            return
        if not self._pending:
            self._held.rest()
        standing = still.standing(is_idle=self._is_idle())
        if standing is None:
            self.close()
        elif self._place is not None:
            self._place.is_now(standing)

    def _is_idle(self) -> bool:
        is_waiting = self._frame.view is not None or self._quota.is_waiting
        return not self._pending and not self._out and not is_waiting

    # -- requests in -------------------------------------------------------------------------------

    def _refuse_request(self, request_id: int, operation: int, what: str) -> None:
        if request_id in self._pending:
            raise BadRequestError(f"request id {request_id} is in use")
        self._pending[request_id] = operation
        self.failed(request_id, no_room(what))

    def _may_take(self, size: int) -> bool:
        return self._quota.may_take(size)

    def _take(self, request_id: int, operation: int, body: Buffer) -> None:
        """One request; `body` belongs to it."""
        pending = self._pending
        if request_id in pending:
            raise BadRequestError(f"request id {request_id} is in use")
        self._counters.stream_requests += 1
        self._stillness.asked_count += 1
        if self._watch is not None:
            self._watch.took(self, request_id, Operation(operation).name, len(body))
        factor = JSON_FACTOR if operation == Operation.CALL else 1
        cost = factor * len(body) + REQUEST_COST_BYTES
        unanswered = self._unanswered_bytes + cost
        if unanswered > self._held.held and not self._held.grow(unanswered):
            self._refuse_request(request_id, operation, f"a request of {len(body)} bytes")
            return
        self._turns.spend(len(body) // JOIN_BYTES)
        pending[request_id] = cost << _OPERATION_BITS | operation
        self._unanswered_bytes = unanswered
        if operation == Operation.PRODUCE:
            if self._rights is not None and not self._may_send(request_id, body):
                return
            if self._quotas.limits_namespaces:
                self._spend_in_namespace(topic_of_batch(body), bytes_in=len(body))
            job = self._sender.send(body, self, request_id, asker=self.asker, rights=self._rights)
            if job is not None:
                job.then = self._checked
                self._checking = job
                self._turn_requests = TURN_REQUESTS_MAX
                self._regulate()
        elif operation == Operation.FETCH:
            self._fetch(request_id, body)
        elif operation == Operation.FOLLOW:
            self._follow(request_id, body)
        else:
            self._call(request_id, body)
        if self._unanswered_bytes > AHEAD_BYTES:
            self._regulate()

    def _spend_in_namespace(self, topic_id: int, *, bytes_in: int = 0, bytes_out: int = 0) -> None:
        name = self._server.service.routes.topic_name(topic_id)
        shared = self._asker.namespace_quota(name)
        if shared is not None:
            self._quota.spend_shared(shared, bytes_in=bytes_in, bytes_out=bytes_out)

    def _may_send(self, request_id: int, body: Buffer) -> bool:
        assert self._rights is not None
        try:
            self._rights.check_send(body, request_id)
        except PacelineError as error:
            self.failed(request_id, error)
            return False
        return True

    def _may_read(self, request_id: int, queues: list[FetchQueue], operation: Operation) -> bool:
        if not self._quota.may_fetch:
            self.failed(request_id, exceeded(WAIT_MS_MAX))
            return False
        if self._rights is None:
            return True
        try:
            self._rights.check_read(queues, request_id, operation)
        except PacelineError as error:
            self.failed(request_id, error)
            return False
        return True

    def _checked(self) -> None:
        self._checking = None
        self._turn_requests = 0
        self._regulate()

    def _fetch(self, request_id: int, body: Buffer) -> None:
        self._turn_requests += 1
        try:
            wait_ms, max_bytes, min_bytes, count = FETCH_HEADER.unpack_from(body)
            if len(body) != FETCH_HEADER.size + count * FETCH_QUEUE.size:
                raise BadRequestError(f"{len(body)} bytes for a fetch of {count} queues")
        except (struct.error, BadRequestError) as error:
            self.failed(request_id, BadRequestError(f"malformed fetch: {error}"))
            return
        if self._fetcher.waiting_of(self) >= FETCHES_MAX:
            error_full = OverloadedError(f"{FETCHES_MAX} fetches wait here", retry_after_ms=1000)
            self.failed(request_id, error_full)
            return
        queues = [
            FetchQueue._make(row) for row in FETCH_QUEUE.iter_unpack(body[FETCH_HEADER.size :])
        ]
        if not self._may_read(request_id, queues, Operation.FETCH):
            return
        self._fetcher.fetch(
            queues,
            wait_ms=self._quota.rest_of(wait_ms),
            max_bytes=self._answer_room(max_bytes),
            min_bytes=min_bytes,
            sink=self,
            request_id=request_id,
        )

    def _answer_room(self, max_bytes: int) -> int:
        """What an answer may have: as asked, or little where the share has no room for it, or the
        quota."""
        max_bytes = self._quota.answer_bytes(max_bytes)
        if self._holder.has_room(min(max_bytes, FRAME_BYTES_MAX)):
            return max_bytes
        return min(max_bytes, SMALL_FETCH_BYTES)

    def _follow(self, request_id: int, body: Buffer) -> None:
        self._turn_requests += 1
        try:
            sequence, wait_ms, max_bytes, count = FOLLOW_HEADER.unpack_from(body)
            if len(body) != FOLLOW_HEADER.size + count * FETCH_QUEUE.size:
                raise BadRequestError(f"{len(body)} bytes for {count} queues")
        except (struct.error, BadRequestError) as error:
            self.failed(request_id, BadRequestError(f"malformed request to follow: {error}"))
            return
        rows = FETCH_QUEUE.iter_unpack(body[FOLLOW_HEADER.size :])
        queues = [FetchQueue._make(row) for row in rows]
        if not self._may_read(request_id, queues, Operation.FOLLOW):
            return
        self._fetcher.sessions.follow(
            queues,
            sequence=sequence,
            wait_ms=self._quota.rest_of(wait_ms),
            max_bytes=self._answer_room(max_bytes),
            sink=self,
            request_id=request_id,
        )

    def _call(self, request_id: int, body: Buffer) -> None:
        cost = len(body) // CALL_BYTES_OF_COST
        self._turn_requests += 1 + cost
        self._turns.spend(cost)
        if len(self._tasks) >= CALLS_MAX:
            error = OverloadedError(f"{CALLS_MAX} calls run here", retry_after_ms=100)
            self.failed(request_id, error)
            return
        try:
            document = parse_json_object(bytes(body))
        except BadRequestError as bad:
            self.failed(request_id, bad)
            return
        task = spawn(self._answer_call(request_id, document, len(body)), name="stream-call")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_call(self, request_id: int, document: dict[str, Any], size: int) -> None:
        shared: list[UserQuota] = []
        try:
            rights = self._rights
            asker = self._asker if rights is None else rights.asker_of(request_id)
            answer = await self._calls.call(document, asker=asker, caller=self, share=shared.append)
        except PacelineError as error:
            self.failed(request_id, error)
            return
        told = orjson.dumps(answer)
        self._answer(request_id, Operation.CALL, told)
        self._quota.spend(bytes_out=len(told))
        for each in shared:
            self._quota.spend_shared(each, bytes_in=size, bytes_out=len(told))

    # -- answers out (Sink, FetchSink) -------------------------------------------------------------

    def produced(self, request_id: int, answer: ProduceAnswer) -> None:
        self._settle(request_id)
        out = self._out
        if not out:
            self._loop.call_soon(self._flush)
        out.append(
            _PRODUCED.pack(
                _PRODUCED.size, request_id, Operation.PRODUCE, STATUS_OK, 0, *answer.packed()
            )
        )

    def fetched(self, request_id: int, answer: Fetched) -> None:
        self._settle(request_id)
        head = answer.head()
        size = FRAME_HEADER_BYTES + len(head) + answer.size_bytes
        assert size <= FRAME_BYTES_MAX, size
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out_bytes += size
        self._turns.spend(size // JOIN_BYTES)
        if self._out_bytes > WRITE_HIGH_BYTES:
            self._turn_requests = TURN_REQUESTS_MAX
        operation = Operation.FETCH if answer.seen is None else Operation.FOLLOW
        self._out.append(FRAME_HEADER.pack(size, request_id, operation, STATUS_OK, 0) + head)
        self._out.extend(answer.buffers)
        self._quota.spend(bytes_out=size)
        if self._quotas.limits_namespaces:
            for part in answer.parts:
                self._spend_in_namespace(part.topic_id, bytes_out=part.size)

    def failed(self, request_id: int, error: PacelineError) -> None:
        self._counters.refused(error.code)
        self._asker.throttled(error)
        if self._watch is not None:
            self._watch.failed(self, request_id, error.code)
        operation = self._pending.get(request_id, Operation.CALL) & _OPERATION_MASK
        if self._rights is not None:
            self._rights.failed(request_id, operation, error)
        self._answer(request_id, operation, orjson.dumps(to_problem(error)), STATUS_ERROR)

    def _answer(
        self, request_id: int, operation: int, body: bytes, status: int = STATUS_OK
    ) -> None:
        self._settle(request_id)
        if not self._out:
            self._loop.call_soon(self._flush)
        size = FRAME_HEADER_BYTES + len(body)
        self._out.append(FRAME_HEADER.pack(size, request_id, operation, status, 0) + body)

    def _settle(self, request_id: int) -> None:
        """The request is answered: give its credit back."""
        cost = self._pending.pop(request_id, 0) >> _OPERATION_BITS
        self._unanswered_bytes -= cost
        if self._rights is not None and self._rights.samples:
            self._rights.answered(request_id)
        if self._watch is not None:
            self._watch.answered(self, request_id)
        if self._is_reading_paused:
            self._regulate()

    def _flush(self) -> None:
        out = self._out
        transport = self._transport
        if not out or self._is_writing_paused or transport is None:
            return
        self._out, self._out_bytes = [], 0
        small: list[Buffer] = []
        for number, buffer in enumerate(out):
            if len(buffer) < JOIN_BYTES:
                small.append(buffer)
                continue
            if small:
                transport.write(b"".join(small))
                small = []
            transport.write(buffer)
            if self._is_writing_paused:
                self._keep_unwritten(out[number + 1 :])
                return
        if small:
            transport.write(b"".join(small) if len(small) > 1 else small[0])
            if self._is_writing_paused:
                self._keep_unwritten([])
                return
        if self._held.held > AHEAD_BYTES:
            self._held.shrink(self._unanswered_bytes)

    def _keep_unwritten(self, out: list[Buffer]) -> None:
        """The client is slow in taking what it asked for: the rest waits here, and is counted."""
        transport = self._transport
        assert transport is not None
        self._out, self._out_bytes = out, sum(map(len, out))
        if not self._hold_unread(transport.get_write_buffer_size() + self._out_bytes):
            strangers.warning("stream_unread", extra={"unwritten_bytes": self._out_bytes})
            transport.abort()

    def _hold_unread(self, size_bytes: int) -> bool:
        """Hold so much, instead of what was held, for answers that are not taken."""
        self._holder.give(self._unread_bytes)
        self._unread_bytes = 0
        if not self._holder.take(size_bytes):
            return False
        self._unread_bytes = size_bytes
        return True

    def _regulate(self) -> None:
        """Read only while credit is left, there is room for what is read, and the client takes its
        answers."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        unanswered = self._unanswered_bytes
        if self._held.held - unanswered > AHEAD_BYTES:
            self._held.shrink(unanswered)  # what was answered a moment ago is room again
        is_full = unanswered > (CREDIT_BYTES // 2 if self._lacks_room else CREDIT_BYTES)
        share = unanswered * 2 if self._lacks_room else unanswered
        is_short = unanswered > AHEAD_BYTES and (
            self._held.is_short(unanswered, self._frame) or not self._sender.has_window(share)
        )
        is_resting = self._quota.is_waiting
        is_busy = self._checking is not None or len(self._later) > 0 or is_resting
        self._lacks_room = is_full or is_short
        should_pause = self._lacks_room or self._is_writing_paused or is_busy
        if should_pause and not self._is_reading_paused:
            transport.pause_reading()
        elif not should_pause and self._is_reading_paused:
            transport.resume_reading()
        self._is_reading_paused = should_pause
        can_go_on = not self._is_writing_paused and self._checking is None and not is_resting
        if self._later and can_go_on and not self._is_in_line:
            self._is_in_line = True
            self._turns.later(self._go_on, self.asker, cost=0)

    def _go_on(self) -> None:
        self._is_in_line = False
        if self._checking is not None or self._quota.is_waiting:
            return
        if self._transport is not None and not self._transport.is_closing():
            self._read_later()
            self._quota.end_turn()
            self._regulate()
