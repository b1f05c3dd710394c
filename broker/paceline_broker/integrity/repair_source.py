"""The server side of a repair: one connection of a replica whose log is damaged (R24).

Any member gives, not only the master: with two damaged members and no master each may be the
other's only help. What it gives lies below its own confirm, outside of damage of its own, and is
verified as it is read: damage found here is this broker's own to repair. A master gives what it has
flushed: its confirm may be behind what the damaged member knows as confirmed, and moves on only
with that member (R8); who asks takes nothing above its own confirm and that of the answer. One
range at a time, at most 1 MiB, cold pages off the loop.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from paceline.errors import CorruptLogError, PeerError, StorageError, UnauthenticatedError
from paceline.platform.runtime import spawn
from paceline.types import Incarnation, PhysicalOffset, ReplicaId
from paceline.wire.messages import NO_PROOF, Nonce
from paceline_broker.integrity.repair_wire import (
    RepairChallenge,
    RepairClaim,
    RepairHello,
    RepairOffer,
    RepairRange,
)
from paceline_broker.log.repair import first_bad
from paceline_broker.replication.frames import encode_frame_header
from paceline_broker.replication.master.ports import PeerLink
from paceline_broker.replication.messages import (
    HELLO_BYTES_MAX,
    Hello,
    Refused,
    parse_message,
    take_message,
)
from paceline_broker.storage.store import Store

log = logging.getLogger("paceline.repair")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairSource:
    """What this broker is for damaged members of its group. Made by the role."""

    store: Store
    is_master: Callable[[], bool]
    claimed: Callable[[ReplicaId, Incarnation], None]
    """That start of a replica says that its log is damaged: it does not acknowledge."""
    doubted: Callable[[PhysicalOffset], None]
    """Reading there failed: damage here, or a position that is no boundary; to be looked at."""

    def refusal_of(self, hello: Hello) -> Refused | None:
        known = self.store.identity.identity
        if hello.group != known.group:
            return Refused(code="OTHER_GROUP", detail=f"this is broker group {known.group}")
        if known.cluster_id is None or known.replica_id is None:
            return Refused(code="NOT_REGISTERED", detail="this broker is not registered yet")
        if hello.cluster_id != known.cluster_id:
            return Refused(code="OTHER_CLUSTER", detail="this broker is of another cluster")
        return None

    def challenge(self, nonce: Nonce) -> RepairChallenge:
        known = self.store.identity.identity
        assert known.replica_id is not None
        return RepairChallenge(
            replica_id=known.replica_id,
            incarnation=known.incarnation,
            epoch=self.store.identity.epoch,
            nonce=nonce,
            proof=NO_PROOF,
        )

    def offer(self, claim: RepairClaim) -> RepairOffer | Refused:
        """Only between members of one epoch (R24)."""
        commit_log, epoch = self.store.log, self.store.identity.epoch
        if claim.epoch != epoch:
            return Refused(code="OTHER_EPOCH", detail=f"this broker is in epoch {epoch}")
        return RepairOffer(
            epoch=epoch,
            is_master=self.is_master(),
            start=commit_log.start,
            end=commit_log.end,
            confirm=commit_log.confirm,
            epochs=commit_log.epochs,
        )

    async def read(self, wanted: RepairRange) -> memoryview:
        """Verified whole batches from the position on; empty if they are not to be had here."""
        commit_log = self.store.log
        damage = commit_log.damage
        end = max(commit_log.confirm, commit_log.flushed if self.is_master() else 0)
        if damage is not None and damage.position < end:
            end = damage.position
        if not commit_log.start <= wanted.position < end:
            return memoryview(b"")
        try:
            piece = commit_log.read_raw(wanted.position, wanted.size_bytes_max, PhysicalOffset(end))
            if commit_log.is_cold(piece):
                await commit_log.warm(piece)
            is_sound = first_bad(piece, wanted.position) is None
        except CorruptLogError:
            is_sound = False
        if is_sound:
            return piece
        self.doubted(wanted.position)
        return memoryview(b"")


class RepairSession:
    """One connection: hello, claim, then ranges."""

    def __init__(self, source: RepairSource, link: PeerLink, secret: bytes, nonce: Nonce) -> None:
        self._link = link
        self._source = source
        self._secret = secret
        self._nonce = nonce
        self._hello: Hello | None = None
        self._reading: asyncio.Task[None] | None = None
        self.is_proven = False

    def begin(self, body: bytes) -> None:
        """See `PeerSession`."""
        self._received(body)

    def read(self, received: bytearray) -> None:
        """See `PeerSession`."""
        while (body := take_message(received, size_bytes_max=HELLO_BYTES_MAX)) is not None:
            self._received(body)

    def _received(self, body: bytes) -> None:
        if self._hello is None:
            self._on_hello(parse_message(body, RepairHello))
        elif not self.is_proven:
            self._on_claim(self._hello, parse_message(body, RepairClaim))
        else:
            self._on_range(self._hello, parse_message(body, RepairRange))

    def closed(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _on_hello(self, hello: Hello) -> None:
        refused = self._source.refusal_of(hello)
        if refused is not None:
            self._link.refuse(refused)
            return
        self._hello = hello
        self._link.challenge(hello, self._source.challenge(self._nonce))

    def _on_claim(self, hello: Hello, claim: RepairClaim) -> None:
        if not hello.is_proven(claim.proof, self._secret, peer_nonce=self._nonce):
            raise UnauthenticatedError("the replica does not hold this cluster's secret")
        self.is_proven = True
        offer = self._source.offer(claim)
        if isinstance(offer, Refused):
            self._link.refuse(offer)
            return
        log.info(
            "repair_begins", extra={"replica": hello.replica_id, "position": int(claim.position)}
        )
        self._source.claimed(hello.replica_id, hello.incarnation)
        self._link.write([offer.encode()])

    def _on_range(self, hello: Hello, wanted: RepairRange) -> None:
        if self._reading is not None and not self._reading.done():
            raise PeerError("a second range was asked for before the first was answered")
        self._source.claimed(hello.replica_id, hello.incarnation)
        self._reading = spawn(self._read(wanted), name="repair-read")

    async def _read(self, wanted: RepairRange) -> None:
        store = self._source.store
        try:
            piece = await self._source.read(wanted)
        except StorageError as error:
            self._link.refuse(Refused(code=error.code, detail=error.message[:1000]))
            return
        header = encode_frame_header(
            body_bytes=len(piece),
            epoch=store.identity.epoch,
            position=wanted.position,
            confirm=store.log.confirm,
            round=0,
        )
        self._link.write([header, piece] if len(piece) else [header])
