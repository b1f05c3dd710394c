"""The receiving side of an escape connection, on the replication port (R36).

Nothing is taken before the sender has proven that it holds the cluster's secret. One request at a
time; a request with an unknown outcome closes the connection, as no answer would be true.
"""

import asyncio
import logging

from paceline.errors import PacelineError, PeerError, UnauthenticatedError
from paceline.platform.runtime import spawn
from paceline.types import MasterEpoch
from paceline.wire.messages import NO_PROOF, Nonce
from paceline_broker.replication.master.ports import PeerLink
from paceline_broker.replication.messages import (
    HELLO_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    Hello,
    parse_message,
    take_message,
)
from paceline_broker.service.escape.intake import Intake
from paceline_broker.service.escape.wire import (
    EscapeAnswer,
    EscapeChallenge,
    EscapeHello,
    EscapeProof,
    EscapeTold,
    parse_request,
)

log = logging.getLogger("paceline.escape")


class EscapeSession:
    """One connection."""

    def __init__(self, intake: Intake, link: PeerLink, secret: bytes, nonce: Nonce) -> None:
        self._link = link
        self._intake = intake
        self._secret = secret
        self._nonce = nonce
        self._hello: Hello | None = None
        self._sizes: tuple[int, ...] | None = None
        """Of the batches that come next."""
        self._work: asyncio.Task[None] | None = None
        self.is_proven = False

    def begin(self, body: bytes) -> None:
        """See `PeerSession`."""
        hello = parse_message(body, EscapeHello)
        refused = self._intake.refusal_of(hello)
        if refused is not None:
            self._link.refuse(refused)
            return
        self._hello = hello
        known = self._intake.identity
        assert known.replica_id is not None
        challenge = EscapeChallenge(
            group=known.group,
            replica_id=known.replica_id,
            incarnation=known.incarnation,
            epoch=MasterEpoch(self._intake.epoch),
            nonce=self._nonce,
            proof=NO_PROOF,
        )
        self._link.challenge(hello, challenge)

    def read(self, received: bytearray) -> None:
        """See `PeerSession`."""
        hello = self._hello
        while hello is not None:
            if self._sizes is not None:
                size = sum(self._sizes)
                if len(received) < size:
                    return
                body = bytes(received[:size])
                del received[:size]
                self._on_messages(hello, self._sizes, body)
                self._sizes = None
                continue
            limit = MESSAGE_BYTES_MAX if self.is_proven else HELLO_BYTES_MAX
            message = take_message(received, size_bytes_max=limit)
            if message is None:
                return
            if not self.is_proven:
                self._on_proof(hello, message)
            else:
                self._on_request(hello, message)

    def closed(self) -> None:
        """See `PeerSession`: a request under way is finished; nobody hears its answer."""

    def _on_proof(self, hello: Hello, body: bytes) -> None:
        proof = parse_message(body, EscapeProof).proof
        if not hello.is_proven(proof, self._secret, peer_nonce=self._nonce):
            raise UnauthenticatedError("the sender does not hold this cluster's secret")
        self.is_proven = True
        self._answer([])

    def _on_request(self, hello: Hello, body: bytes) -> None:
        if self._work is not None and not self._work.done():
            raise PeerError("a second request came before the first was answered")
        request = parse_request(body)
        if isinstance(request, EscapeTold):
            if hello.group != self._intake.identity.group:
                raise PeerError(f"group {hello.group} tells what another group has sent")
            self._work = spawn(self._tell(request), name="escape-told")
            return
        self._sizes = request.sizes_bytes

    def _on_messages(self, hello: Hello, sizes: tuple[int, ...], body: bytes) -> None:
        batches, at = [], 0
        for size in sizes:
            batches.append(body[at : at + size])
            at += size
        self._work = spawn(self._take(hello, batches), name="escape-take")

    async def _take(self, hello: Hello, batches: list[bytes]) -> None:
        try:
            codes = await self._intake.take(hello.group, batches)
        except PacelineError as error:
            log.info("escape_unknown", extra={"why": error.message})
            self._link.close()
            return
        self._answer(codes)

    async def _tell(self, told: EscapeTold) -> None:
        try:
            await self._intake.told(told)
        except PacelineError as error:  # it is told again, whatever came of it
            self._answer([error.code])
            return
        self._answer([None])

    def _answer(self, codes: list[str | None]) -> None:
        self._link.write([EscapeAnswer(codes=tuple(codes)).encode()])
