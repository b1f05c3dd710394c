"""A raw keep-alive HTTP/1.1 client for the bench: what a broker can do, not what a client library.

One request in flight per connection; the answer's status line and Content-Length are all it reads.
"""

import asyncio
import time
from collections.abc import Callable
from typing import cast

from paceline.errors import PeerError

_END_OF_HEAD = b"\r\n\r\n"


class RawConnection(asyncio.Protocol):
    """One connection that repeats one request until `stop_at` (seconds of perf_counter)."""

    def __init__(self, request: bytes, latencies_ms: list[float], stop_at: float) -> None:
        self._request = request
        self._latencies_ms = latencies_ms
        self._stop_at = stop_at
        self._buffer = bytearray()
        self._began = 0.0
        self._write: Callable[[bytes], None] = lambda data: None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        self._write = transport.write
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(_END_OF_HEAD)
        if head_end < 0:
            return
        head = bytes(self._buffer[:head_end])
        if len(self._buffer) < head_end + len(_END_OF_HEAD) + _content_length(head):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self._fail(PeerError(f"the broker answered {bytes(self._buffer[:300])!r}"))
            return
        self._buffer.clear()
        now = time.perf_counter()
        self._latencies_ms.append((now - self._began) * 1000)
        if now < self._stop_at:
            self._send()
        elif not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(PeerError(f"the broker closed the connection: {error}"))

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._write(self._request)

    def _fail(self, error: PeerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def post_request(address: str, path: str, body: bytes, *, content_type: str) -> bytes:
    """The bytes of one POST."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def post_again_and_again(
    address: str, request: bytes, *, connections: int, seconds: float
) -> list[float]:
    """Latencies (ms) of all answers within `seconds` over that many connections."""
    host, _, port = address.rpartition(":")
    latencies_ms: list[float] = []
    stop_at = time.perf_counter() + seconds
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(
            lambda: RawConnection(request, latencies_ms, stop_at), host, int(port)
        )
        for _ in range(connections)
    ]
    try:
        await asyncio.gather(*(protocol.done for _, protocol in made))
    finally:
        for transport, _ in made:
            transport.close()
    return latencies_ms
