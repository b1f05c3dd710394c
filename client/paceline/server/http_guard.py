"""Limits of a node's HTTP listener that aiohttp does not have: header deadline, places for
connections, slow readers, a budget of bytes, and error bodies that repeat nothing of the
request. Brokers and controllers listen with it.

Each connection has a place (connections.py; how it comes to it: http_listener.py). Who has none but
in the reserve may only ask what is always answered.

What a connection sends is held in the budget as it comes (ADR 18), and its answer until the client
has taken it; all of it is given back when the request has ended. Over its share a request is
answered 429 at once, and the rest of it passed over.
"""

import asyncio
import contextlib
from http import HTTPStatus

import orjson
from aiohttp import ClientConnectionResetError, StreamReader, web
from aiohttp.web_protocol import RequestHandler

from paceline.errors import OutOfMemoryError, OverloadedError, PacelineError, to_problem
from paceline.server.byte_budget import ByteHolder, no_room
from paceline.server.connections import Connection, ConnectionState
from paceline.server.http_origin import check_browser, check_target
from paceline.server.turns import Dropping, Turns

HEADER_TIMEOUT_S = 5.0
"""A begun request head must be complete after this (slow-loris)."""
KEEPALIVE_TIMEOUT_S = 75.0
"""nginx's default."""
WRITE_TIMEOUT_S = 30.0
"""A client that takes nothing of its answer for so long is disconnected."""
LINGERING_S = 1.0
"""How long the rest of a refused request is read, so that the client sees the answer."""
READ_BYTES = 64 * 1024
"""aiohttp reads on while it has less than twice this of a body that nobody has taken yet."""
READ_AHEAD_BYTES = 2 * READ_BYTES + 256 * 1024
"""What a connection has at most of its next requests: that, and one read of uvloop."""
OWN_HOSTS = web.AppKey("own_hosts", frozenset)
"""Of an application: what `own_hosts` says of its node; `check_request` reads it."""


def check_request(request: web.Request) -> None:
    """Raise what refuses a request before any handler: OverloadedError where its connection has no
    place, and what http_origin.py raises."""
    protocol = request.protocol
    if isinstance(protocol, GuardedHandler):
        protocol.check_place(request.path)
    check_target(request.raw_path)
    headers, own = request.headers, request.app.get(OWN_HOSTS, frozenset())
    check_browser(
        host=headers.get("Host"),
        origin=headers.get("Origin"),
        site=headers.get("Sec-Fetch-Site"),
        own=own,
    )


def take_room(request: web.Request, size_bytes: int, what: str) -> None:
    """Hold so much more until the request has ended. Raises OverloadedError."""
    protocol = request.protocol
    if isinstance(protocol, GuardedHandler) and not protocol.holder.take(size_bytes):
        raise no_room(what)


def room_for(request: web.Request, size_bytes: int, *, at_least: int) -> int:
    """How large an answer may be: `size_bytes`, or `at_least` where it has no room for that."""
    protocol = request.protocol
    if not isinstance(protocol, GuardedHandler) or protocol.holder.has_room(size_bytes):
        return size_bytes
    return min(size_bytes, at_least)


async def next_turn(request: web.Request) -> None:
    """Return when it is this request's turn: called after a wait that ends for many at once."""
    protocol = request.protocol
    if isinstance(protocol, GuardedHandler):
        await protocol.next_turn()


def place_of(request: web.Request) -> Connection | None:
    """That of its connection."""
    protocol = request.protocol
    return protocol.place if isinstance(protocol, GuardedHandler) else None


def is_stranger(request: web.Request) -> None:
    """This request waits for a proof: until then its connection is as good as a silent one."""
    protocol = request.protocol
    if isinstance(protocol, GuardedHandler):
        protocol.place.is_idle = lambda: True
        protocol.place.is_now(ConnectionState.SILENT)


def is_proven(request: web.Request) -> None:
    """This connection has proven the cluster's secret: it needs no place and counts for nothing."""
    protocol = request.protocol
    if isinstance(protocol, GuardedHandler):
        protocol.place.ended()
        protocol.count_no_more()


def counted_elsewhere(request: web.Request) -> None:
    """This connection has become a stream, which counts for itself."""
    protocol = request.protocol
    if isinstance(protocol, GuardedHandler):
        protocol.count_no_more()


def problem_body(code: str, status: int, detail: str) -> bytes:
    """A problem document (RFC 9457) for what no `PacelineError` describes."""
    return orjson.dumps(
        {
            "type": f"https://paceline.dev/errors/{code}",
            "title": code.replace("_", " ").capitalize(),
            "status": status,
            "code": code,
            "detail": detail,
            "retry": "never",
            "definite": status < 500,
        }
    )


class GuardedHandler(RequestHandler):
    """aiohttp's connection protocol with deadlines."""

    __slots__ = (
        "_always",
        "_content",
        "_dropping",
        "_early",
        "_header_timer",
        "_is_counted",
        "_is_refused",
        "_lost",
        "_turns",
        "_write_timer",
        "holder",
        "place",
    )

    def __init__(
        self,
        server: web.Server,
        place: Connection,
        holder: ByteHolder,
        *,
        dropping: Dropping,
        turns: Turns,
        always: tuple[str, ...],
    ) -> None:
        """`holder`: what this connection holds in the node's budget; `turns`: in which requests of
        this listener are served; `always`: how paths begin that are answered to whoever finds no
        place."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEPALIVE_TIMEOUT_S,
            lingering_time=LINGERING_S,
            access_log=None,  # type: ignore[arg-type]  # none
            # A gzip bomb is refused by its header (415), never unpacked.
            auto_decompress=False,
            read_bufsize=READ_BYTES,
        )
        self._always = always
        self._dropping = dropping
        self._turns = turns
        self._early = b""
        """What came of the next request before it was this connection's turn."""
        self.place = place
        self.holder = holder
        self._is_counted = True
        self._content: StreamReader | None = None
        """Of the request that came last."""
        self._is_refused = False
        """What came found no room: whatever comes now is passed over."""
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._lost: asyncio.Future[None] | None = None  # while what follows is passed over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.place.is_idle = self._is_waiting
        self.place.close = self._abort
        self._begin_header()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.place.gone()
        self._end_timers()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        super().connection_lost(exc)
        self.holder.close()

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self._lost is not None:
            self._drop_rest()
            return
        if data and self._is_counted and not self.holder.take(len(data)):
            self._refuse()
            return
        if not data or not (self._early or self._is_waiting()):
            self._parse(data)
            return
        is_due_already = bool(self._early)
        self._early += data
        if (
            is_due_already
            or self._turns.add(self._parse_early, self.place.address)
            or self.transport is None
        ):
            return
        self.transport.pause_reading()

    def _parse_early(self) -> None:
        """It is this connection's turn, if it is still there."""
        data, self._early = self._early, b""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if not transport.is_reading():
            transport.resume_reading()
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        before = self._request_count
        super().data_received(data)
        if self._request_count != before:
            self._content = self._messages[-1][1]
            self.place.is_now(ConnectionState.BUSY)
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None
        elif self._header_timer is None and self._is_waiting():
            self._begin_header()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write an answer; what the request and it hold goes back when the client has taken it."""
        if not self._messages:
            self._content = None  # what comes of it now, aiohttp reads for a while and drops
        resp = self._hold_answer(request, resp)
        if self.place.is_reserved and not resp.prepared:
            resp.force_close()
        outcome = await super().finish_response(request, resp, start_time)
        if self._is_between_requests():
            self.holder.give(self.holder.held_bytes)
            self.place.is_now(ConnectionState.IDLE)
        elif self.holder.held_bytes > READ_AHEAD_BYTES:
            self.holder.give(self.holder.held_bytes - READ_AHEAD_BYTES)
        if self._is_refused:
            await self.linger()
        return outcome

    def check_place(self, path: str) -> None:
        """Raise OverloadedError unless this connection may ask for `path`."""
        if self.place.is_reserved and not path.startswith(self._always):
            raise OverloadedError(
                "this address has as many connections at work as it may have on this node",
                retry_after_ms=1000,
            )

    async def next_turn(self) -> None:
        """Return when it is this connection's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def has_come() -> None:
            if not turn.done():  # cancelled: the client has gone
                turn.set_result(None)

        if not self._turns.add(has_come, self.place.address):
            await turn

    def count_no_more(self) -> None:
        """See `counted_elsewhere`."""
        self._is_counted = False
        self.holder.give(self.holder.held_bytes)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            loop = asyncio.get_running_loop()
            self._write_timer = loop.call_later(WRITE_TIMEOUT_S, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Malformed HTTP, or a bug: a problem document without a byte of the request."""
        if isinstance(exc, UnicodeEncodeError):
            status = 400  # aiohttp wanted to repeat a header that is no text
        if isinstance(exc, MemoryError):
            self.log_exception("Error handling request", exc_info=exc)
            status, body = OutOfMemoryError.status, orjson.dumps(to_problem(OutOfMemoryError()))
        elif status >= 500:
            if not isinstance(exc, ClientConnectionResetError):  # who asked has gone meanwhile
                self.log_exception("Error handling request", exc_info=exc)
            body = problem_body("INTERNAL", status, "internal error, see the log of this node")
        else:
            body = problem_body("BAD_REQUEST", status, "malformed HTTP request")
        response = _LastResponse(self, status=status, body=body)
        response.force_close()
        return response

    async def linger(self) -> None:
        """Read and drop what the client still sends: a reset would cost it the answer.

        The connection stays until the client has ended it or the time is over.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has reset it, and is told nothing
                transport.write_eof()
        self._lost = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGERING_S):
                await self._lost

    def _refuse(self) -> None:
        """What came now has no room: end the request that it belongs to, then the connection."""
        self._is_refused = True
        self._lingering_time = 0.0  # of aiohttp, which would hear of the error again; ours follows
        error = no_room("this request")
        self._drop_rest()
        if self._is_waiting():
            if self.transport is not None:
                self.transport.write(refusal(error))
            asyncio.get_running_loop().call_later(LINGERING_S, self.force_close)
            return
        if self._content is not None and not self._content.is_eof():
            self._content.set_exception(error)
        self.close()  # after the requests that are here

    def _drop_rest(self) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing():
            self._dropping.add(transport)

    def _hold_answer(
        self, request: web.BaseRequest, resp: web.StreamResponse
    ) -> web.StreamResponse:
        """Hold what is to be written. What was only read is refused where there is no room."""
        size = resp.content_length if isinstance(resp, web.Response) and not resp.prepared else 0
        if not size or self.holder.take(size):
            return resp
        if request.method in ("GET", "HEAD"):
            return _problem_response(no_room("the answer"))
        self.holder.hold(size)  # it is done and has to be told
        return resp

    def _is_waiting(self) -> bool:
        """For a request. Not so while one that has been taken is about to be begun."""
        is_asleep = self._waiter is not None and not self._waiter.done()
        return is_asleep and not (self._messages or self._early)

    def _is_between_requests(self) -> bool:
        return self._current_request is None and not self._messages

    def _begin_header(self) -> None:
        loop = asyncio.get_running_loop()
        self._header_timer = loop.call_later(HEADER_TIMEOUT_S, self._header_late)

    def _header_late(self) -> None:
        self._header_timer = None
        transport = self.transport
        if transport is not None and not self._is_refused and self._is_waiting():
            transport.write(head_too_late())
            self.force_close()

    def _abort(self) -> None:
        self._write_timer = None
        if self.transport is not None:
            self.transport.abort()

    def _end_timers(self) -> None:
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._header_timer = self._write_timer = None


def head_too_late() -> bytes:
    """The answer to half a request head whose time is over."""
    return last_answer(408, problem_body("BAD_REQUEST", 408, "the request head took too long"))


def refusal(error: PacelineError) -> bytes:
    """The last answer where there is no request to answer."""
    return last_answer(error.status, orjson.dumps(to_problem(error)))


def last_answer(status: int, body: bytes) -> bytes:
    """A problem document as a whole answer, after which the connection is closed."""
    phrase = HTTPStatus(status).phrase.encode()
    return (
        b"HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (status, phrase, len(body)) + body
    )


def _problem_response(error: PacelineError) -> web.Response:
    body = orjson.dumps(to_problem(error))
    return web.Response(status=error.status, body=body, content_type="application/problem+json")


class _LastResponse(web.Response):
    """The answer to what is no request: nothing that follows on this connection is one."""

    def __init__(self, handler: GuardedHandler, *, status: int, body: bytes) -> None:
        super().__init__(status=status, body=body, content_type="application/problem+json")
        self._handler = handler

    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        await self._handler.linger()
