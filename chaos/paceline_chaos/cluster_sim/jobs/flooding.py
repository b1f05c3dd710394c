"""Somebody hostile: connections that only stand there, announcements, halves, answers not taken,
batches of few bytes that unpack to many, and fetches of many queues at one moment.

Nothing that it says is a whole request that stores something, so nothing is recorded: what it may
do to others is nothing, and what it may hold of a node is its share (ADR 18).
"""

import asyncio
import struct
from collections.abc import Sequence
from contextlib import suppress

from paceline.platform.address import parse_address
from paceline.platform.runtime import pause
from paceline.records.encode import encode_batch
from paceline.records.header import Codec, Kind
from paceline.wire.stream import (
    FETCH_HEADER,
    FETCH_QUEUE,
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    Operation,
    encode_frame,
)
from paceline_chaos.cluster_sim.jobs.around import Around

CONNECTIONS = 24
"""Of each kind, to each broker: together more than its share of places, at either port."""
_PIECES = (bytes(32 * 1024),) * 8
_AGAIN_MS = 200
_UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
    b"Upgrade: paceline-stream/1\r\n\r\n"
)
_HEAD = FRAME_HEADER.pack(FRAME_BYTES_MAX, 1, Operation.PRODUCE, 0, 0)
_BODY = (
    b"POST /v1/topics/orders/queues/0/batches HTTP/1.1\r\nHost: x\r\nContent-Length: 16777216\r\n"
    b"Content-Type: application/vnd.paceline.batch\r\n\r\n"
)
_PACKED = encode_batch(
    [bytes(600)] * 100, kind=Kind.HALF, codec=Codec.ZSTD, born_unix_ms=1, topic_id=1, queue_id=0
)
"""60,000 bytes in some 150. Nobody could be asked about these halves: refused, once unpacked."""
_BOMBS = (b"".join(encode_frame(n, Operation.PRODUCE, _PACKED) for n in range(1, 25)),) * 4
"""In each more than one turn of the loop may unpack."""
_QUEUES = 1024
_FETCH = FETCH_HEADER.pack(0, 1, 1, _QUEUES) + b"".join(
    FETCH_QUEUE.pack(1, 0, 0, 1, 0) for _ in range(_QUEUES)
)
_FETCHES = (b"".join(encode_frame(n, Operation.FETCH, _FETCH) for n in range(1, 9)),) * 4
"""In each more than one turn of the loop may look at."""
_PIECES_OF = {0: _BOMBS, 1: _BOMBS, 2: _FETCHES, 3: _FETCHES}
"""Number of a stream -> what it sends; the others only stand there."""
_HELLO = struct.pack("<II", 0x31524C50, 4096)
"""The beginning of a replica's first message."""


class Flooder:
    """Every kind, to every broker, each connection begun again when it has been ended."""

    def __init__(self, around: Around) -> None:
        self._around = around.apart("flood")

    async def run(self) -> None:
        """Until it is over."""
        around = self._around
        async with asyncio.TaskGroup() as group:
            for client, replication in around.brokers:
                for number in range(CONNECTIONS):
                    is_odd = number % 2 == 1
                    pieces = _PIECES if is_odd else ()
                    for address, said, rest in (
                        (client, b"" if is_odd else b"GET /v1/status HTTP/1.1\r\nX: ", ()),
                        (client, _UPGRADE + (_HEAD if is_odd else b""), pieces),
                        (client, _UPGRADE, _PIECES_OF.get(number, ())),
                        (client, _BODY, pieces),
                        (replication, _HELLO, ()),
                        (replication, b"", ()),
                    ):
                        work = self._stand(address, said, rest)
                        group.create_task(work, name=f"{around.client}-flood")

    async def _stand(self, address: str, said: bytes, pieces: Sequence[bytes]) -> None:
        around = self._around
        while not around.is_over():
            with suppress(OSError, TimeoutError):  # refused, reset, displaced: what it is for
                await self._stand_once(address, said, pieces)
            await pause(around.random.uniform(0.0, 2 * _AGAIN_MS))

    async def _stand_once(self, address: str, said: bytes, pieces: Sequence[bytes]) -> None:
        around, (host, port) = self._around, parse_address(address)
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(
                host, port, local_addr=(around.source_host, 0)
            )
        try:
            writer.write(said)
            for piece in pieces:
                await pause(around.random.uniform(0.0, _AGAIN_MS))
                writer.write(piece)
            while not around.is_over():
                async with asyncio.timeout(_AGAIN_MS / 100):
                    if not await reader.read(4096):
                        return
        finally:
            writer.transport.abort()
