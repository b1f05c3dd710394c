"""What tests of places share with others."""

import asyncio

from tests.support.http.door import Door

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(door: Door, data: bytes = b"") -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    writer.write(data)
    return reader, writer


def close(*connections: Connection) -> None:
    for _, writer in connections:
        writer.close()
