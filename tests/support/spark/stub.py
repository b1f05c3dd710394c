"""A broker of three routes on a free port, in a thread: what it answers is set by the test."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

from paceline.errors import PacelineError, to_problem
from paceline.wire.stream import FETCH_ANSWER, FETCH_PART, FetchPart

Answer = tuple[int, bytes]


class Stub:
    """One node. `on[path]` answers a request's body; an exception ends the connection."""

    def __init__(self) -> None:
        self.on: dict[str, Callable[[bytes], Answer]] = {}
        self.asked: list[tuple[str, bytes]] = []
        self.headers: list[dict[str, str]] = []
        self.address = ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that ends a connection, or a handshake, is what some tests are about."""


@contextmanager
def a_stub(tls: ssl.SSLContext | None = None) -> Iterator[Stub]:
    """Listens until the block ends."""
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # noqa: N802
            self._answer()

        def do_POST(self) -> None:  # noqa: N802
            self._answer()

        def do_PUT(self) -> None:  # noqa: N802
            self._answer()

        def do_DELETE(self) -> None:  # noqa: N802
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            stub.asked.append((self.path, body))
            stub.headers.append(dict(self.headers.items()))
            try:
                status, answer = stub.on[self.path](body)
            except ConnectionError:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            return None

    server = _Server(("127.0.0.1", 0), Handler)
    if tls is not None:  # the handshake is the thread's of each connection
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    stub.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ok(document: dict[str, Any]) -> Answer:
    return 200, orjson.dumps(document)


def refusal(error: PacelineError) -> Answer:
    return int(error.status), orjson.dumps(to_problem(error))


def fetched(
    *batches: bytes,
    code: int = 0,
    start: int = 0,
    end: int = 100,
    topic_id: int = 1,
    queue: int = 0,
) -> Answer:
    """The answer to a fetch of one queue."""
    body = b"".join(batches)
    part = FetchPart(topic_id, queue, code, start, end, len(body))
    return 200, FETCH_ANSWER.pack(1, 1, 0) + FETCH_PART.pack(*part) + body
