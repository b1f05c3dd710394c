"""The asking side of a repair: one connection to a member that has what is damaged here (R24)."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from paceline.errors import DeadlineError, PeerError, UnauthenticatedError
from paceline.types import GroupName, Incarnation, MasterEpoch, PhysicalOffset, ReplicaId
from paceline_broker.replication.frames import FRAME_HEADER_BYTES, parse_frame_header
from paceline_broker.replication.handshake import (
    MESSAGE_BYTES_MAX,
    PREFIX_BYTES,
    Refused,
    encode_message,
    parse_prefix,
)
from paceline_broker.replication.repair_wire import (
    RANGE_BYTES_MAX,
    RepairClaim,
    RepairHello,
    RepairOffer,
    RepairRange,
    claim_document,
    hello_document,
    is_source_proof,
    parse_repair_challenge,
    parse_repair_offer,
    range_document,
    requester_proof,
)

CONNECT_TIMEOUT_S = 1.0
ANSWER_TIMEOUT_S = 5.0
"""Also for a range that the source has to read from a slow disk."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """Who asks, in the epoch that its store has adopted."""

    cluster_id: str
    group: GroupName
    replica_id: ReplicaId
    incarnation: Incarnation
    epoch: MasterEpoch
    secret: bytes
    nonce: bytes


class RepairConnection:
    """Opened by `open`; `fetch` as often as needed; `close` at the end, whatever happened."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, epoch: MasterEpoch
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._epoch = epoch
        self._offer: RepairOffer | None = None

    @property
    def offer(self) -> RepairOffer:
        assert self._offer is not None
        return self._offer

    @classmethod
    async def open(
        cls, requester: Requester, host: str, port: int, *, local: str | None, at: PhysicalOffset
    ) -> "RepairConnection":
        """Connect, prove, claim damage at `at`. Raises PeerError, DeadlineError, OSError."""
        opening = asyncio.open_connection(
            host, port, local_addr=None if local is None else (local, 0)
        )
        reader, writer = await _in_time(opening, CONNECT_TIMEOUT_S)
        connection = cls(reader, writer, requester.epoch)
        try:
            await connection._claim(requester, at)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _claim(self, requester: Requester, at: PhysicalOffset) -> None:
        hello = RepairHello(
            cluster_id=requester.cluster_id,
            group=requester.group,
            replica_id=requester.replica_id,
            incarnation=requester.incarnation,
            nonce=requester.nonce,
        )
        self._writer.write(encode_message(hello_document(hello)))
        challenge = parse_repair_challenge(await self._message())
        if isinstance(challenge, Refused):
            raise PeerError(f"refused: {challenge.code}: {challenge.detail}")
        if not is_source_proof(challenge, requester.secret, hello):
            raise UnauthenticatedError("the peer does not hold this cluster's secret")
        proof = requester_proof(requester.secret, hello, challenge)
        claim = RepairClaim(proof=proof, epoch=requester.epoch, position=at)
        self._writer.write(encode_message(claim_document(claim)))
        offer = parse_repair_offer(await self._message())
        if isinstance(offer, Refused):
            raise PeerError(f"refused: {offer.code}: {offer.detail}")
        if offer.epoch != requester.epoch:  # R24
            raise PeerError(f"an offer of epoch {offer.epoch}, not {requester.epoch}")
        self._offer = offer

    async def fetch(self, position: PhysicalOffset, size_bytes_max: int) -> bytes:
        """Whole batches from `position` on, as the peer has them; empty if it has not.

        Nothing is checked here but that the answer is one: the mender judges every batch.
        """
        wanted = RepairRange(position=position, size_bytes_max=min(size_bytes_max, RANGE_BYTES_MAX))
        self._writer.write(encode_message(range_document(wanted)))
        frame = parse_frame_header(await self._exactly(FRAME_HEADER_BYTES))
        if frame.epoch != self._epoch or frame.position != position:
            raise PeerError(f"bytes of {frame.position} in epoch {frame.epoch}, not of {position}")
        return await self._exactly(frame.size_bytes - FRAME_HEADER_BYTES)

    def close(self) -> None:
        self._writer.close()

    async def _message(self) -> bytes:
        prefix = await self._exactly(PREFIX_BYTES)
        return await self._exactly(parse_prefix(prefix, size_bytes_max=MESSAGE_BYTES_MAX))

    async def _exactly(self, size: int) -> bytes:
        try:
            return await _in_time(self._reader.readexactly(size), ANSWER_TIMEOUT_S)
        except asyncio.IncompleteReadError:
            raise PeerError("the peer closed the repair connection") from None


async def _in_time(work: Awaitable[T], limit_s: float) -> T:
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError:
        raise DeadlineError(f"no answer of the peer in {limit_s:.0f} s") from None
