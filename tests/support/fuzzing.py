"""Bytes that nobody should send, on real sockets, from a seed; and what must hold afterwards.

A `Flood` says hostile bytes over many connections for some seconds: in pieces, some broken off,
some left open. Afterwards the server has said nothing of an error of its own, holds nothing, has no
more connections and tasks than before, and the process is not much larger.
"""

import asyncio
import gc
import logging
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from paceline.platform.runtime import SystemClock, pause

AT_ONCE = 32
ANSWER_S = 0.05
"""How long one connection listens: most are refused at once, and some wait for more."""
GROWTH_BYTES_MAX = 96 * 1024 * 1024
"""Of the process: what a flood of 32 connections may hold at once, and what the allocator keeps."""
SETTLE_S = 20.0
LENGTHS = (0, 1, 127, 128, 255, 256, 2**14, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
Say: TypeAlias = Callable[[random.Random], Sequence[bytes]]
"""What one connection says, piece by piece."""


def spoiled(rng: random.Random, good: bytes) -> bytes:
    """A message with something wrong in it; now and then it is left as it is."""
    data = bytearray(good)
    for _ in range(rng.choice((0, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 64, 1024)))
            case 3:
                data[at : at + 4] = struct.pack(rng.choice("<>") + "I", rng.choice(LENGTHS))
            case 4:
                data[at:at] = data[: rng.randrange(64)] * rng.randrange(4)
            case 5:
                del data[at : at + rng.randrange(16)]
            case 6:
                data[at:at] = bytes([rng.randrange(256)]) * rng.choice((1, 100, 70_000))
            case _:
                data[at:at] = rng.choice((b"\r\n", b"\0", b"\xff", b'"', b"{[", b"%s", b"\x16\x03"))
    return bytes(data)


def in_pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """As a network may bring it."""
    pieces: list[bytes] = []
    while data and len(pieces) < 8:
        size = rng.choice((1, 2, 5, 100, 1500, len(data)))
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data] if data else pieces


def saying(*goods: bytes) -> Say:
    """One of these, or several behind one another, spoiled or mere noise."""

    def say(rng: random.Random) -> Sequence[bytes]:
        if rng.randrange(10) == 0:
            return in_pieces(rng, rng.randbytes(rng.choice((1, 16, 300, 9000))))
        chosen = rng.choices(goods, k=rng.choice((1, 1, 2, 3)))
        first = chosen[0] if rng.randrange(2) else spoiled(rng, chosen[0])
        rest = b"".join(spoiled(rng, each) for each in chosen[1:])
        return in_pieces(rng, first + rest)

    return say


class Flood:
    """Of one port."""

    def __init__(self, port: int, *, seed: int) -> None:
        self._port = port
        self._rng = random.Random(seed)
        self._clock = SystemClock()
        self.count = 0

    async def run(self, say: Say, *, seconds: float, context: ssl.SSLContext | None = None) -> None:
        """With `context`, the same inside of TLS."""
        ends_ms = self._clock.monotonic_ms() + int(seconds * 1000)
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                rng = random.Random(self._rng.getrandbits(64))
                group.create_task(self._one_after_the_other(say, rng, ends_ms, context))

    async def _one_after_the_other(
        self, say: Say, rng: random.Random, ends_ms: int, context: ssl.SSLContext | None
    ) -> None:
        while self._clock.monotonic_ms() < ends_ms:
            self.count += 1
            await self.once(say(rng), rng, context)

    async def once(
        self, pieces: Sequence[bytes], rng: random.Random, context: ssl.SSLContext | None = None
    ) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=context)
        except OSError:
            return  # refused, reset: that is an answer
        try:
            for piece in pieces:
                writer.write(piece)
                await pause(0)
            async with asyncio.timeout(rng.choice((0.0, ANSWER_S))):
                while await reader.read(65536):
                    pass
        except (OSError, TimeoutError):
            pass  # broken off by either side: what the test is about
        finally:
            if rng.randrange(2):
                writer.transport.abort()
            else:
                writer.close()


class Sockets:
    """Connections that say something once and stay."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.open: list[socket.socket] = []

    async def say(self, data: bytes, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            made = socket.socket()
            made.setblocking(False)
            self.open.append(made)
            try:
                await loop.sock_connect(made, ("127.0.0.1", self._port))
                await loop.sock_sendall(made, data)
            except OSError:
                continue  # refused, reset: that is an answer

    def close(self) -> None:
        for each in self.open:
            each.close()


@cache
def client_hello() -> bytes:
    """The first record of a handshake."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    made = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        made.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without an answer")


def resident_bytes(pid: int | str = "self") -> int:
    """What a process, this one or another, holds of the machine's memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


@contextmanager
def no_error_of_its_own(caplog: Any) -> Iterator[None]:
    """Nothing the server says is an error, and the event loop has nothing to tell."""
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(repr(context)[:500]))
    with caplog.at_level(logging.INFO):
        yield
        gc.collect()  # a task that failed unseen says so when it is collected
    wrong = [
        f"{record.name} {record.getMessage()} {record.exc_text or record.exc_info or ''}"[:500]
        for record in caplog.records
        if record.levelno >= logging.ERROR or record.exc_info
    ]
    assert not wrong, wrong[:3]
    assert not told, told[:3]


@asynccontextmanager
async def bounded(
    held: Callable[[], dict[str, int]], *, more_bytes: int = 0
) -> AsyncIterator[None]:
    """What `held` counts (connections, bytes) comes back to what it was, and so do tasks; the
    process is not much larger: `more_bytes` are taken on purpose."""
    before, tasks, size = held(), len(asyncio.all_tasks()), resident_bytes()
    yield
    grown = resident_bytes() - size
    clock = SystemClock()
    ends_ms = clock.monotonic_ms() + int(SETTLE_S * 1000)
    while clock.monotonic_ms() < ends_ms:
        now = held()
        if all(now[name] <= before[name] for name in before) and (
            len(asyncio.all_tasks()) <= tasks
        ):
            break
        await pause(20)
    assert held() == before
    assert len(asyncio.all_tasks()) <= tasks, [task.get_name() for task in asyncio.all_tasks()]
    assert grown < GROWTH_BYTES_MAX + more_bytes, grown


async def eventually_served(ask: Callable[[], Any], *, within_s: float = 10.0) -> None:
    """A good client is served, perhaps after a moment."""
    last: BaseException | None = None
    try:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    await ask()
                    return
                except (OSError, EOFError, AssertionError) as error:
                    last = error
                await pause(50)
    except TimeoutError:
        raise AssertionError("a good client is not served") from last
