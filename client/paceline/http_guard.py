"""Limits of a node's HTTP listener that aiohttp does not have: header deadline, connection cap,
slow readers, and error bodies that repeat nothing of the request. Brokers and controllers listen
with it.
"""

import asyncio
from typing import Any

import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from paceline.errors import UnsupportedMediaTypeError
from paceline.http_origin import check_browser

HEADER_TIMEOUT_S = 5.0
"""A begun request head must be complete after this (slow-loris)."""
KEEPALIVE_TIMEOUT_S = 75.0
"""nginx's default."""
CONNECTIONS_MAX = 8000
"""Below the usual limit of open files, which replication and segments share."""
WRITE_TIMEOUT_S = 30.0
"""A client that takes nothing of its answer for so long is disconnected."""
LINGERING_S = 1.0
"""How long the rest of a refused body is read, so that the client sees the answer."""


OWN_HOSTS = web.AppKey("own_hosts", frozenset)
"""Of an application: what `own_hosts` says of its node; `check_request` reads it."""


def check_request(request: web.Request) -> None:
    """Raise what refuses a request before any handler: ForbiddenError (http_origin.py)."""
    headers = request.headers
    own = request.app.get(OWN_HOSTS, frozenset())
    check_browser(host=headers.get("Host"), origin=headers.get("Origin"), own=own)


def check_media_type(request: web.Request, content_type: str) -> None:
    """Raise UnsupportedMediaTypeError unless the body is of that type, UTF-8 and not encoded.

    A page may send text/plain to any site unasked, and JSON only after the site has agreed.
    """
    if request.content_type != content_type or (request.charset or "utf-8").lower() != "utf-8":
        raise UnsupportedMediaTypeError(f"this resource takes {content_type}")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaTypeError("bodies are taken without Content-Encoding")


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

    __slots__ = ("_guard", "_header_timer", "_is_counted", "_write_timer")

    def __init__(self, guard: "Guard", server: web.Server, **arguments: Any) -> None:
        super().__init__(server, **arguments)
        self._guard = guard
        self._is_counted = False
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._is_counted = self._guard.admit()
        if not self._is_counted:
            self.force_close()
        else:
            # Also for a connection that sends nothing at all.
            self._begin_header()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._is_counted:
            self._is_counted = False
            self._guard.release()
        self._end_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._request_count
        super().data_received(data)
        if self._request_count != before:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None
        elif self._header_timer is None and self._is_between_requests():
            self._begin_header()

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
        if status >= 500:
            self.log_exception("Error handling request", exc_info=exc)
            body = problem_body("INTERNAL", status, "internal error, see the log of this node")
        else:
            body = problem_body("BAD_REQUEST", status, "malformed HTTP request")
        response = web.Response(status=status, body=body, content_type="application/problem+json")
        response.force_close()
        return response

    def _is_between_requests(self) -> bool:
        return self._current_request is None and not self._messages

    def _begin_header(self) -> None:
        loop = asyncio.get_running_loop()
        self._header_timer = loop.call_later(HEADER_TIMEOUT_S, self._header_late)

    def _header_late(self) -> None:
        self._header_timer = None
        transport = self.transport
        if transport is not None and self._is_between_requests():
            body = problem_body("BAD_REQUEST", 408, "the request head took too long")
            head = (
                b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/problem+json\r\n"
                b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
            )
            transport.write(head + body)
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


class Guard:
    """The protocol factory of a listener: counts connections, makes guarded handlers."""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self.connections_count = 0

    def __call__(self) -> GuardedHandler:
        return GuardedHandler(
            self,
            self._server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEPALIVE_TIMEOUT_S,
            lingering_time=LINGERING_S,
            access_log=None,
            # A gzip bomb is refused by its header (415), never unpacked.
            auto_decompress=False,
            # One piece for most bodies; else reading pauses each 64 KiB.
            read_bufsize=1024 * 1024,
        )

    def admit(self) -> bool:
        """Count a new connection; False when there are too many."""
        if self.connections_count >= CONNECTIONS_MAX:
            return False
        self.connections_count += 1
        return True

    def release(self) -> None:
        self.connections_count -= 1
