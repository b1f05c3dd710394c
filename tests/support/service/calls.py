"""What tests of calls share with others."""

import asyncio
from typing import Any


async def started(asking: Any) -> "asyncio.Future[Any]":
    """The call, begun: everything up to its first wait has happened."""
    future: asyncio.Future[Any] = asyncio.gather(asking)
    for _ in range(3):
        await asyncio.wait([future], timeout=0)
    return future
