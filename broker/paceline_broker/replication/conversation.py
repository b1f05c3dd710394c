"""The client side of a repair or escape connection: one message at a time, each with a deadline."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from paceline.errors import DeadlineError, PeerError
from paceline.platform.ports import Buffer
from paceline.security.node_tls import Dial
from paceline_broker.replication.messages import (
    MESSAGE_BYTES_MAX,
    PREFIX_BYTES,
    Message,
    MessageT,
    parse_answer,
    parse_prefix,
)

CONNECT_TIMEOUT_S = 1.0

T = TypeVar("T")


class Conversation:
    """Opened by `open`; `close` at the end, whatever happened.

    What `hear` and `exactly` raise (PeerError, DeadlineError, OSError) is its end.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer_timeout_s: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer_timeout_s = answer_timeout_s

    @classmethod
    async def open(
        cls, host: str, port: int, *, dial: Dial, answer_timeout_s: float
    ) -> "Conversation":
        """Connect. Raises DeadlineError, OSError."""
        opening = asyncio.open_connection(host, port, **dial.options(host))
        reader, writer = await _in_time(opening, CONNECT_TIMEOUT_S)
        return cls(reader, writer, answer_timeout_s)

    def say(self, message: Message, followed_by: Sequence[Buffer] = ()) -> None:
        self._writer.writelines([message.encode(), *followed_by])

    async def hear(self, kind: type[MessageT]) -> MessageT:
        """The next message. A refusal is raised as PeerError."""
        prefix = await self.exactly(PREFIX_BYTES)
        size = parse_prefix(prefix, size_bytes_max=MESSAGE_BYTES_MAX)
        return parse_answer(await self.exactly(size), kind)

    async def exactly(self, size_bytes: int) -> bytes:
        try:
            return await _in_time(self._reader.readexactly(size_bytes), self._answer_timeout_s)
        except asyncio.IncompleteReadError:
            raise PeerError("the peer closed the connection") from None

    def close(self) -> None:
        self._writer.close()


async def _in_time(work: Awaitable[T], limit_s: float) -> T:
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError:
        raise DeadlineError(f"no answer of the peer in {limit_s:.0f} s") from None
