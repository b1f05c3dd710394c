"""TLS before a cluster that speaks none: what an operator's proxy does, node by node.

Every node gets a listener of its own with one certificate. A request needs the token; it goes on to
the node as it is, and in the routes that come back nodes are named by their fronts.
"""

import http.client
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
from tests.support.certificates import Authority
from tests.support.process.harness import RunningCluster

from paceline.errors import UnauthenticatedError, to_problem

TOKEN = "the-right-one"
NODE_TIMEOUT_S = 40


class Front:
    """Where a cluster can be reached by TLS, and who signed for it."""

    def __init__(self, authority: str) -> None:
        self.authority = authority
        self.addresses: dict[str, str] = {}
        """Of a node -> of its front."""
        self.passed: list[tuple[str, str]] = []
        """(node, path) of all that went through."""
        self.refused = 0

    @property
    def endpoints(self) -> str:
        return ",".join(f"https://{address}" for address in self.addresses.values())

    def renamed(self, body: bytes) -> bytes:
        """An answer in which nodes are named by their fronts."""
        for node, front in self.addresses.items():
            body = body.replace(f'"{node}"'.encode(), f'"{front}"'.encode())
        return body


@contextmanager
def a_front(cluster: RunningCluster, folder: Path) -> Iterator[Front]:
    """Listens until the block ends."""
    authority = Authority(folder)
    files = authority.issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    front = Front(authority.path)
    with ExitStack() as stack:
        for node in cluster.nodes():
            stack.enter_context(_listener(front, node["address"], context))
        yield front


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A handshake that a client ends is what some tests are about."""


@contextmanager
def _listener(front: Front, node: str, context: ssl.SSLContext) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # noqa: N802
            self._pass_on()

        def do_POST(self) -> None:  # noqa: N802
            self._pass_on()

        def do_PUT(self) -> None:  # noqa: N802
            self._pass_on()

        def do_DELETE(self) -> None:  # noqa: N802
            self._pass_on()

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                front.refused += 1
                problem = to_problem(UnauthenticatedError("no such token"))
                self._answer(401, "application/problem+json", orjson.dumps(problem))
                return
            front.passed.append((node, self.path))
            kind = self.headers.get("Content-Type", "application/json")
            connection = http.client.HTTPConnection(node, timeout=NODE_TIMEOUT_S)
            try:
                connection.request(self.command, self.path, body, {"Content-Type": kind})
                found = connection.getresponse()
                whole = found.read()
            finally:
                connection.close()
            if self.path == "/v1/routes":
                whole = front.renamed(whole)
            self._answer(found.status, found.headers["Content-Type"], whole)

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return None

    server = _Server(("127.0.0.1", 0), Handler)
    # The handshake is the thread's of each connection.
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    front.addresses[node] = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
