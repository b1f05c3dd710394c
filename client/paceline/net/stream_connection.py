"""One stream connection to a broker: the fast path (docs/protocol/stream.md).

`GET /v1/stream` with `Upgrade: paceline-stream/1`; the client sends nothing before the 101 and the
broker's HELLO frame. Then requests go out as frames, many at once, and answers come back by
request id. Requests of one loop turn leave in one write (`flush`). Small answers are parsed in a
fixed buffer; a large one (a fetch) is received straight into a buffer of its own, so its bytes are
never joined or copied.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, cast

import orjson

from paceline.errors import (
    DeadlineError,
    OutcomeUnknownError,
    PacelineError,
    PeerError,
    UnauthenticatedError,
    from_problem,
)
from paceline.net.connect import Shown
from paceline.platform.address import parse_address
from paceline.platform.ports import Buffer
from paceline.wire.calls.request import AnswerT, Reply, Request, read_reply
from paceline.wire.namespaces import Namespace
from paceline.wire.stream import (
    FETCH_ANSWER,
    FETCH_HEADER,
    FETCH_PART,
    FETCH_QUEUE,
    FOLLOW_ANSWER,
    FOLLOW_HEADER,
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    STATUS_OK,
    UPGRADE_TOKEN,
    FetchPart,
    FetchQueue,
    Operation,
)

_SCRATCH_BYTES = 128 * 1024
"""Holds the answers of a loop turn; larger frames get their own buffer. One read of a socket."""
_LARGE_FRAME_BYTES = 32 * 1024
"""From here a partly received frame gets a buffer of its own instead of being moved about."""
_JOIN_BYTES_MAX = 64 * 1024
"""Below, one joined write is cheaper than several (a memcpy against a syscall)."""
_UPGRADE_ANSWER_BYTES_MAX = 16 * 1024
_CREDIT_DEFAULT_BYTES = 32 * 1024 * 1024

OnAnswer: TypeAlias = Callable[[Any, int, memoryview], None]
"""(context, status, body): `body` is valid during the call only."""
OnLost: TypeAlias = Callable[[Any], None]


class UpgradeRefusedError(PeerError):
    """The broker answers HTTP but no streams: use POST."""

    code = "UPGRADE_REFUSED"


class FetchAnswer(NamedTuple):
    """What a broker answered to a fetch; each part with the bytes of its whole batches."""

    master_epoch: int
    confirm: int
    parts: list[tuple[FetchPart, memoryview]]


class _Request(NamedTuple):
    on_answer: OnAnswer
    on_lost: OnLost
    context: Any
    size_bytes: int
    keeps_body: bool


class StreamConnection(asyncio.BufferedProtocol):
    """An open stream. Owned by whoever connected it; all calls on its event loop.

    `on_closed` (settable) is called once when the connection has ended, after every outstanding
    request was told that it is lost; `on_read` after the answers of one read were handed out.
    """

    in_flight_per_queue_max = 2
    """One connection keeps the order of its frames, and two batches hide the round trip."""

    def __init__(
        self, address: str, authorization: str = "", namespace: Namespace | None = None
    ) -> None:
        """`authorization`: the header that shows who connects, if somebody does. `namespace`: of
        the names in calls."""
        self.address = address
        self._namespace = namespace or Namespace()
        self._authorization = authorization
        self.cluster_id = ""
        self.group = ""
        self.replica_id = 0
        self.credit_bytes = _CREDIT_DEFAULT_BYTES
        self.session_queues = 0
        """Queues that a fetch session may have here; 0: the broker keeps none."""
        self.unanswered_bytes = 0
        self.on_closed: Callable[[], None] | None = None
        self.on_read: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        # A connect that is cancelled waits for it no more: then its error is nobody's.
        self._ready.add_done_callback(_retrieve)
        self._is_switched = False  # the 101 is there: frames follow
        self._is_upgraded = False  # HELLO is there: requests may go out
        self._is_closed = False
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._filled = 0
        self._frame: memoryview | None = None  # a large frame being received
        self._requests: dict[int, _Request] = {}
        self._last_request_id = 0
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0

    @property
    def is_open(self) -> bool:
        return not self._is_closed and self._is_upgraded

    def has_credit(self, size_bytes: int) -> bool:
        """Whether the broker takes this much more now; one request at a time always passes."""
        return not self._requests or self.unanswered_bytes + size_bytes <= self.credit_bytes

    # -- requests ---------------------------------------------------------------------------------

    def produce(self, batch: bytes, on_answer: OnAnswer, on_lost: OnLost, context: Any) -> None:
        """Queue a record batch for sending; `flush` puts everything queued on the wire.

        Exactly one of `on_answer(context, status, body)` and `on_lost(context)` is called, later.
        """
        self._request(Operation.PRODUCE, (batch,), len(batch), on_answer, on_lost, context)

    def flush(self) -> None:
        """Write what was queued, in one go."""
        outgoing, self._outgoing = self._outgoing, []
        size, self._outgoing_bytes = self._outgoing_bytes, 0
        if not outgoing or self._transport is None or self._is_closed:
            return
        if size <= _JOIN_BYTES_MAX:
            self._transport.write(b"".join(outgoing))
        else:
            for buffer in outgoing:
                self._transport.write(buffer)

    def begin_fetch(
        self,
        queues: Sequence[FetchQueue],
        *,
        wait_ms: int,
        max_bytes: int,
        on_answer: OnAnswer,
        on_lost: OnLost,
        context: Any,
    ) -> None:
        """Ask for batches of many queues, at once on the wire; the broker waits up to `wait_ms`.

        As for `produce`, but `body` belongs to the caller (`parse_fetch_answer` splits it).
        """
        body = pack_fetch(queues, wait_ms=wait_ms, max_bytes=max_bytes)
        self._request(
            Operation.FETCH, (body,), len(body), on_answer, on_lost, context, keeps_body=True
        )
        self.flush()

    def follow(
        self,
        queues: Sequence[FetchQueue],
        *,
        sequence: int,
        wait_ms: int,
        max_bytes: int,
        on_answer: OnAnswer,
        on_lost: OnLost,
        context: Any,
    ) -> None:
        """A request of the connection's fetch session, with the queues that changed.

        As for `begin_fetch` (`parse_follow_answer` splits the body).
        """
        head = FOLLOW_HEADER.pack(sequence, wait_ms, max_bytes, len(queues))
        body = b"".join((head, *(FETCH_QUEUE.pack(*queue) for queue in queues)))
        self._request(
            Operation.FOLLOW, (body,), len(body), on_answer, on_lost, context, keeps_body=True
        )
        self.flush()

    async def call(self, request: Request[AnswerT], *, timeout_ms: int) -> Reply[AnswerT]:
        """One call.

        Raises the broker's error; PeerError if it was not sent; DeadlineError, and
        OutcomeUnknownError when the connection is lost on the way, or the answer cannot be read: it
        may have been carried out.
        """
        body = orjson.dumps(self._namespace.request(request).to_json())
        answer = await self._exchange(Operation.CALL, body, timeout_ms)
        try:
            document = orjson.loads(answer)
        except orjson.JSONDecodeError as error:
            raise OutcomeUnknownError(f"{self.address} answered a call with no JSON") from error
        return read_reply(request, self._namespace.answer(request, document))

    async def _exchange(self, operation: Operation, body: bytes, timeout_ms: int) -> memoryview:
        if not self.is_open:
            raise PeerError(f"the connection to {self.address} is closed")
        waiter: asyncio.Future[memoryview] = self._loop.create_future()

        def on_lost(_: object) -> None:
            if not waiter.done():
                waiter.set_exception(
                    OutcomeUnknownError(f"the connection to {self.address} was lost")
                )

        request_id = self._request(
            operation, (body,), len(body), _on_reply, on_lost, waiter, keeps_body=True
        )
        self.flush()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await waiter
        except TimeoutError:
            raise DeadlineError(
                f"{self.address} did not answer {operation.name} within {timeout_ms} ms"
            ) from None
        finally:
            request = self._requests.pop(request_id, None)
            if request is not None:
                self.unanswered_bytes -= request.size_bytes

    def _request(
        self,
        operation: Operation,
        body: Sequence[Buffer],
        size_bytes: int,
        on_answer: OnAnswer,
        on_lost: OnLost,
        context: Any,
        *,
        keeps_body: bool = False,
    ) -> int:
        assert self._is_upgraded, "nothing may be sent before HELLO"
        if self._is_closed:
            self._loop.call_soon(on_lost, context)
            return 0
        request_id = self._last_request_id = (self._last_request_id + 1) & 0xFFFF_FFFF
        self._requests[request_id] = _Request(on_answer, on_lost, context, size_bytes, keeps_body)
        self.unanswered_bytes += size_bytes
        frame_bytes = FRAME_HEADER_BYTES + size_bytes
        self._outgoing.append(FRAME_HEADER.pack(frame_bytes, request_id, operation, STATUS_OK, 0))
        self._outgoing.extend(body)
        self._outgoing_bytes += frame_bytes
        return request_id

    # -- life -------------------------------------------------------------------------------------

    async def wait_ready(self) -> None:
        """Returns after HELLO. Raises UpgradeRefusedError or PeerError."""
        await self._ready

    def close(self) -> None:
        """End the connection now; outstanding requests are told that they are lost."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        request = (
            "GET /v1/stream HTTP/1.1\r\n"
            f"Host: {self.address}\r\n"
            "Connection: Upgrade\r\n"
            f"Upgrade: {UPGRADE_TOKEN}\r\n"
            + (f"Authorization: {self._authorization}\r\n" if self._authorization else "")
            + "\r\n"
        )
        self._transport.write(request.encode())

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        requests, self._requests = self._requests, {}
        self.unanswered_bytes = 0
        self._outgoing.clear()
        for request in requests.values():
            request.on_lost(request.context)
        if not self._ready.done():
            reason = "" if error is None else f": {error}"
            self._ready.set_exception(
                PeerError(f"{self.address} closed the connection before HELLO{reason}")
            )
        if self.on_closed is not None:
            self.on_closed()

    # -- receiving --------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._scratch[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        if self._frame is not None:
            if self._filled < len(self._frame):
                return
            frame, self._frame = self._frame, None
            self._filled = 0
            self._on_frame(frame, is_own_buffer=True)
            if self.on_read is not None:
                self.on_read()
            return
        start = 0
        if not self._is_switched:
            start = self._on_http_answer()
            if start == 0:
                return
        self._on_frames(start)
        if self.on_read is not None:
            self.on_read()

    def _on_http_answer(self) -> int:
        """Bytes of the HTTP answer when it is a whole 101, else 0."""
        received = bytes(self._scratch[: self._filled])
        end = received.find(b"\r\n\r\n")
        if end < 0:
            if self._filled >= _UPGRADE_ANSWER_BYTES_MAX:
                self._refuse_peer("an endless HTTP answer")
            return 0
        status_line = received[: received.find(b"\r\n")].decode("latin-1")
        if status_line.split(" ")[1:2] != ["101"]:
            body = received[end + 4 :]
            self._ready.set_exception(_upgrade_error(self.address, status_line, body))
            self.close()
            return 0
        self._is_switched = True
        return end + 4

    def _on_frames(self, start: int) -> None:
        """Take all whole frames from the scratch buffer, keep the rest at its front."""
        scratch, filled = self._scratch, self._filled
        while filled - start >= FRAME_HEADER_BYTES:
            size = int.from_bytes(scratch[start : start + 4], "little")
            if not FRAME_HEADER_BYTES <= size <= FRAME_BYTES_MAX:
                self._refuse_peer(f"a frame of {size} bytes")
                return
            if filled - start < size:
                if size >= _LARGE_FRAME_BYTES:
                    frame = memoryview(bytearray(size))
                    frame[: filled - start] = scratch[start:filled]
                    self._frame = frame
                    self._filled = filled - start
                    return
                break
            self._on_frame(scratch[start : start + size], is_own_buffer=False)
            if self._is_closed:
                return
            start += size
        left = filled - start
        if left and start:
            scratch[:left] = bytes(scratch[start:filled])
        self._filled = left

    def _on_frame(self, frame: memoryview, *, is_own_buffer: bool) -> None:
        _, request_id, operation, status, _ = FRAME_HEADER.unpack_from(frame)
        if not self._is_upgraded:
            self._on_hello(operation, frame[FRAME_HEADER_BYTES:])
            return
        request = self._requests.pop(request_id, None)
        if request is None:
            return  # its asker gave up
        self.unanswered_bytes -= request.size_bytes
        body = frame[FRAME_HEADER_BYTES:]
        if request.keeps_body and not is_own_buffer:
            body = memoryview(bytes(body))  # the asker keeps it, the scratch buffer goes on
        request.on_answer(request.context, status, body)

    def _on_hello(self, operation: int, body: memoryview) -> None:
        try:
            hello = orjson.loads(body)
            self.cluster_id = hello["cluster_id"] or ""
            self.group = hello["group"]
            self.replica_id = hello["replica_id"] or 0
            self.credit_bytes = int(hello["credit_bytes"])
            self.session_queues = int(hello.get("session_queues", 0))
        except (ValueError, KeyError, TypeError) as error:
            self._refuse_peer(f"a HELLO that is none ({error!r})")
            return
        if operation != Operation.HELLO:
            self._refuse_peer(f"operation {operation} before HELLO")
            return
        self._is_upgraded = True
        if not self._ready.done():
            self._ready.set_result(None)

    def _refuse_peer(self, what: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(PeerError(f"{self.address} sent {what}"))
        self.close()


def _on_reply(waiter: asyncio.Future[memoryview], status: int, body: memoryview) -> None:
    if waiter.done():
        return
    if status == STATUS_OK:
        waiter.set_result(body)
    else:
        waiter.set_exception(error_of(body))


def error_of(body: Buffer) -> PacelineError:
    """The error in the body of an answer with status 1."""
    try:
        problem = orjson.loads(body)
    except orjson.JSONDecodeError:
        return OutcomeUnknownError("an error answer that is no problem document")
    return from_problem(problem if isinstance(problem, dict) else {})


def pack_fetch(queues: Sequence[FetchQueue], *, wait_ms: int, max_bytes: int) -> bytes:
    """The body of a fetch that is answered as soon as there is a batch."""
    head = FETCH_HEADER.pack(wait_ms, max_bytes, 1, len(queues))
    return b"".join((head, *(FETCH_QUEUE.pack(*queue) for queue in queues)))


def parse_fetch_answer(body: memoryview) -> FetchAnswer:
    """Split a fetch answer; the parts' bytes are views of `body`. PeerError if sizes disagree."""
    if len(body) < FETCH_ANSWER.size:
        raise PeerError(f"a fetch answer of {len(body)} bytes")
    master_epoch, count, confirm = FETCH_ANSWER.unpack_from(body)
    at = FETCH_ANSWER.size
    data_at = at + count * FETCH_PART.size
    if data_at > len(body):
        raise PeerError(f"a fetch answer of {len(body)} bytes names {count} parts")
    parts: list[tuple[FetchPart, memoryview]] = []
    for _ in range(count):
        part = FetchPart._make(FETCH_PART.unpack_from(body, at))
        parts.append((part, body[data_at : data_at + part.size]))
        at += FETCH_PART.size
        data_at += part.size
    if data_at != len(body):
        raise PeerError(f"a fetch answer of {len(body)} bytes, its parts end at {data_at}")
    return FetchAnswer(master_epoch, confirm, parts)


def parse_follow_answer(body: memoryview) -> tuple[int, FetchAnswer]:
    """The last request that the answer knows of, and the answer. PeerError."""
    if len(body) < FOLLOW_ANSWER.size:
        raise PeerError(f"an answer of {len(body)} bytes in a fetch session")
    (seen,) = FOLLOW_ANSWER.unpack_from(body)
    return seen, parse_fetch_answer(body[FOLLOW_ANSWER.size :])


def _upgrade_error(address: str, status_line: str, body: bytes) -> PacelineError:
    """Why there is no stream: the node says so, or it serves none."""
    if status_line.split(" ")[1:2] in (["401"], ["403"], ["429"]):
        with suppress(orjson.JSONDecodeError):
            problem = orjson.loads(body)
            if isinstance(problem, dict) and "code" in problem:
                return from_problem(problem)
        return UnauthenticatedError(f"{address} refuses this client: {status_line}")
    return UpgradeRefusedError(f"{address} serves no streams: {status_line}")


async def connect_stream(
    address: str,
    *,
    timeout_ms: int,
    source_host: str = "",
    credentials: Shown | None = None,
    tls: ssl.SSLContext | None = None,
    namespace: Namespace | None = None,
) -> StreamConnection:
    """Connect, upgrade, wait for HELLO.

    UpgradeRefusedError, PeerError, DeadlineError; UnauthenticatedError, ForbiddenError: these
    credentials open none; OverloadedError: no more at present; ConfigError: they would be sent in
    plain text.

    `source_host`: where the connection starts from; empty: the system chooses.
    """
    host, port = parse_address(address)
    source = (source_host, 0) if source_host else None
    authorization = ""
    if credentials is not None:
        authorization = credentials.authorization(address, is_encrypted=tls is not None)
    options: dict[str, Any] = {} if tls is None else {"ssl": tls, "server_hostname": host}
    loop = asyncio.get_running_loop()
    connection: StreamConnection | None = None
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, connection = await loop.create_connection(
                lambda: StreamConnection(address, authorization, namespace),
                host,
                port,
                local_addr=source,
                **options,
            )
            await connection.wait_ready()
            return connection
    except TimeoutError:
        _abandon(connection)
        raise DeadlineError(f"{address} did not open a stream within {timeout_ms} ms") from None
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        raise PeerError(f"the certificate of {address} is refused: {why}") from error
    except OSError as error:
        raise PeerError(f"{address} cannot be reached: {error}") from error
    except BaseException:
        _abandon(connection)
        raise


def _retrieve(ready: "asyncio.Future[None]") -> None:
    if not ready.cancelled():
        ready.exception()


def _abandon(connection: StreamConnection | None) -> None:
    if connection is not None:
        connection.close()
