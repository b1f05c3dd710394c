"""The sending side of an escape connection: to the master of a broker group (R36)."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from paceline.address import parse_address
from paceline.errors import DeadlineError, PeerError, UnauthenticatedError
from paceline.ports import Buffer
from paceline.types import GroupName, Incarnation, ReplicaId
from paceline.wire.cluster import GroupView
from paceline_broker.escape.wire import (
    EscapeHello,
    Told,
    hello_document,
    is_receiver_proof,
    messages_document,
    parse_answer,
    parse_escape_challenge,
    proof_document,
    sender_proof,
    told_document,
)
from paceline_broker.replication.handshake import (
    MESSAGE_BYTES_MAX,
    PREFIX_BYTES,
    Refused,
    encode_message,
    parse_prefix,
)

CONNECT_TIMEOUT_S = 1.0
ANSWER_TIMEOUT_S = 3.0
"""RocketMQ's forwardTimeout: after it nobody knows."""

T = TypeVar("T")
Codes = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who sends, and what it proves that with."""

    cluster_id: str
    group: GroupName
    replica_id: ReplicaId
    incarnation: Incarnation
    secret: bytes
    nonce: bytes
    local: str | None


class EscapeConnection:
    """Opened by `open`; requests one after another; `close` at the end, whatever happened."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sender: Sender, group: GroupView) -> "EscapeConnection":
        """Connect to the group's master and prove. Raises PeerError, UnauthenticatedError,
        DeadlineError, OSError: it has been given nothing then."""
        master = group.master_view()
        if master is None:
            raise PeerError(f"group {group.group} has no master")
        host, port = parse_address(master.replication_address)
        local = None if sender.local is None else (sender.local, 0)
        opening = asyncio.open_connection(host, port, local_addr=local)
        reader, writer = await _in_time(opening, CONNECT_TIMEOUT_S)
        connection = cls(reader, writer)
        try:
            await connection._prove(sender, group)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _prove(self, sender: Sender, group: GroupView) -> None:
        hello = EscapeHello(
            cluster_id=sender.cluster_id,
            group=sender.group,
            replica_id=sender.replica_id,
            incarnation=sender.incarnation,
            nonce=sender.nonce,
        )
        self._writer.write(encode_message(hello_document(hello)))
        challenge = parse_escape_challenge(await self._message())
        if isinstance(challenge, Refused):
            raise PeerError(f"refused: {challenge.code}: {challenge.detail}")
        if not is_receiver_proof(challenge, sender.secret, hello):
            raise UnauthenticatedError("the peer does not hold this cluster's secret")
        found = (challenge.group, challenge.replica_id, challenge.incarnation)
        if found != (group.group, group.master, group.master_incarnation):
            raise PeerError(f"{found} answers, not the master of group {group.group}")
        proof = sender_proof(sender.secret, hello, challenge)
        self._writer.write(encode_message(proof_document(proof)))
        await self._answer()

    async def send(self, batches: Sequence[Buffer]) -> Codes:
        """What became of each batch: None stored and confirmed, else the code of a refusal.

        Raises PeerError, DeadlineError, OSError: nobody knows, and the connection is of no use.
        """
        self._writer.write(encode_message(messages_document(batches)))
        self._writer.writelines(batches)
        codes = await self._answer()
        if len(codes) != len(batches):
            raise PeerError(f"{len(codes)} codes for {len(batches)} batches")
        return codes

    async def tell(self, told: Told) -> str | None:
        """None: it was heard and is confirmed; else why not, and it must be told again.

        Raises as `send`.
        """
        self._writer.write(encode_message(told_document(told)))
        codes = await self._answer()
        if len(codes) != 1:
            raise PeerError(f"{len(codes)} codes for what was told")
        return codes[0]

    def close(self) -> None:
        self._writer.close()

    async def _answer(self) -> Codes:
        answer = parse_answer(await self._message())
        if isinstance(answer, Refused):
            raise PeerError(f"refused: {answer.code}: {answer.detail}")
        return answer

    async def _message(self) -> bytes:
        prefix = await self._exactly(PREFIX_BYTES)
        return await self._exactly(parse_prefix(prefix, size_bytes_max=MESSAGE_BYTES_MAX))

    async def _exactly(self, size: int) -> bytes:
        try:
            return await _in_time(self._reader.readexactly(size), ANSWER_TIMEOUT_S)
        except asyncio.IncompleteReadError:
            raise PeerError("the peer closed the escape connection") from None


async def _in_time(work: Awaitable[T], limit_s: float) -> T:
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError:
        raise DeadlineError(f"no answer of the peer in {limit_s:.0f} s") from None
