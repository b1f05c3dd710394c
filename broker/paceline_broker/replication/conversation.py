"""The client side of a repair or escape connection: one message at a time, each with a deadline."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from paceline.errors import DeadlineError, PeerError, UnauthenticatedError
from paceline.platform.ports import Buffer
from paceline.platform.secret import ClusterSecrets
from paceline.security.certificates import check_broker, is_tls
from paceline.security.node_tls import Dial
from paceline.wire.messages import Proof
from paceline.wire.seal import RECORD_HEAD_BYTES, Seals, record_size
from paceline_broker.replication.frames import FRAME_BYTES_MAX
from paceline_broker.replication.messages import (
    MESSAGE_BYTES_MAX,
    PREFIX_BYTES,
    Hello,
    Message,
    MessageT,
    PeerChallenge,
    parse_answer,
    parse_prefix,
)

CONNECT_TIMEOUT_S = 1.0

T = TypeVar("T")
ChallengeT = TypeVar("ChallengeT", bound=PeerChallenge)


class Conversation:
    """Opened by `open`; then `greet`; `close` at the end, whatever happened.

    What `hear` and `exactly` raise (PeerError, DeadlineError, OSError) is its end.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer_timeout_s: float,
        refused: Callable[[str, UnauthenticatedError], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer_timeout_s = answer_timeout_s
        self._refused = refused
        """Told the door, and why."""
        self._seals: Seals | None = None
        """From the challenge on, unless inside TLS."""
        self._content = b""
        """Of the record that is being read."""

    @classmethod
    async def open(
        cls, host: str, port: int, *, dial: Dial, answer_timeout_s: float
    ) -> "Conversation":
        """Connect. Raises DeadlineError, OSError."""
        opening = asyncio.open_connection(host, port, **dial.options(host))
        reader, writer = await _in_time(opening, CONNECT_TIMEOUT_S)

        def refused(door: str, error: UnauthenticatedError) -> None:
            dial.on_refused(door, host, error)

        return cls(reader, writer, answer_timeout_s, refused)

    async def greet(
        self, hello: Hello, kind: type[ChallengeT], secrets: ClusterSecrets
    ) -> tuple[ChallengeT, Proof]:
        """Say hello; the challenge, proven, and the own proof, to be said next.

        Raises UnauthenticatedError, and as `hear`.
        """
        hello = msgspec.structs.replace(hello, is_sealed=not is_tls(self._writer))
        self.say(hello)
        challenge = await self.hear(kind)
        secret = challenge.proven_by(secrets.all, hello)
        if secret is None:
            error = UnauthenticatedError("the peer does not hold this cluster's secret")
            self._refused(hello.PURPOSE, error)
            raise error
        group, replica_id = challenge.group_of(hello), challenge.replica_id
        check_broker(self._writer, group=group, replica_id=replica_id)
        self._seals = hello.seals(secret, peer_nonce=challenge.nonce, is_dialer=True)
        return challenge, hello.proof(secret, challenge)

    def say(self, message: Message, followed_by: Sequence[Buffer] = ()) -> None:
        buffers = [message.encode(), *followed_by]
        if self._seals is None:
            self._writer.writelines(buffers)
        else:
            self._writer.write(self._seals.outgoing.record(buffers))

    async def hear(self, kind: type[MessageT]) -> MessageT:
        """The next message. A refusal is raised as PeerError."""
        prefix = await self.exactly(PREFIX_BYTES)
        size = parse_prefix(prefix, size_bytes_max=MESSAGE_BYTES_MAX)
        return parse_answer(await self.exactly(size), kind)

    async def exactly(self, size_bytes: int) -> bytes:
        """The next so many bytes."""
        if self._seals is None:
            return await self._read(size_bytes)
        while len(self._content) < size_bytes:
            head = await self._read(RECORD_HEAD_BYTES)
            size = record_size(head, size_bytes_max=FRAME_BYTES_MAX)
            record = head + await self._read(size - RECORD_HEAD_BYTES)
            self._content += self._seals.incoming.open_record(memoryview(record))
        taken, self._content = self._content[:size_bytes], self._content[size_bytes:]
        return taken

    async def _read(self, size_bytes: int) -> bytes:
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
