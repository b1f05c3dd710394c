"""A raw stream client over asyncio streams, for tests of the stream door."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from paceline.wire.stream import FRAME_HEADER, FRAME_HEADER_BYTES, Operation, encode_frame

UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
    b"Upgrade: paceline-stream/1\r\n\r\n"
)


class RawStream:
    """Frames in and out, nothing else."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.hello: dict[str, Any] = {}

    @classmethod
    async def open(cls, port: int, headers: Mapping[str, str] = {}) -> "RawStream":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(UPGRADE[:-2] + more.encode() + b"\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head
        stream = cls(reader, writer)
        _, _, _, body = await stream.answer()
        stream.hello = orjson.loads(body)
        return stream

    def ask(self, request_id: int, operation: int, body: bytes) -> None:
        self.writer.write(encode_frame(request_id, operation, body))

    async def answer(self, timeout_s: float = 10) -> tuple[int, int, int, bytes]:
        """(request id, operation, status, body)."""
        async with asyncio.timeout(timeout_s):
            head = await self.reader.readexactly(FRAME_HEADER_BYTES)
            size, request_id, operation, status, _ = FRAME_HEADER.unpack(head)
            body = await self.reader.readexactly(size - FRAME_HEADER_BYTES)
        return request_id, operation, status, body

    async def call(self, name: str, **fields: Any) -> tuple[int, dict[str, Any]]:
        """Status and document."""
        self.ask(77, Operation.CALL, orjson.dumps({"call": name, **fields}))
        _, _, status, body = await self.answer()
        return status, orjson.loads(body)

    async def ended(self) -> bytes:
        """What still comes until the broker closes."""
        async with asyncio.timeout(10):
            rest = await self.reader.read()
        self.writer.close()
        return rest

    def close(self) -> None:
        self.writer.close()
