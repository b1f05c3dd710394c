"""The client side of a repair: one connection to a member that has what is damaged here (R24)."""

from dataclasses import dataclass

from paceline.errors import PeerError
from paceline.platform.secret import ClusterSecrets
from paceline.security.node_tls import Dial
from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.integrity.repair_wire import (
    RANGE_BYTES_MAX,
    RepairChallenge,
    RepairClaim,
    RepairHello,
    RepairOffer,
    RepairRange,
)
from paceline_broker.replication.conversation import Conversation
from paceline_broker.replication.frames import FRAME_HEADER_BYTES, parse_frame_header

ANSWER_TIMEOUT_S = 5.0
"""Also for a range that the source has to read from a slow disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """Who asks, in the epoch that its store has adopted."""

    hello: RepairHello
    epoch: MasterEpoch
    secrets: ClusterSecrets


class RepairConnection:
    """Opened by `open`; `fetch` as often as needed; `close` at the end, whatever happened."""

    def __init__(self, source: Conversation, offer: RepairOffer) -> None:
        self._source = source
        self.offer = offer
        self.confirm = offer.confirm
        """Of the peer, as it said last."""

    @classmethod
    async def open(
        cls, requester: Requester, host: str, port: int, *, dial: Dial, at: PhysicalOffset
    ) -> "RepairConnection":
        """Connect, prove, claim damage at `at`. Raises PeerError, DeadlineError, OSError."""
        source = await Conversation.open(host, port, dial=dial, answer_timeout_s=ANSWER_TIMEOUT_S)
        try:
            return cls(source, await _claim(source, requester, at))
        except BaseException:
            source.close()
            raise

    async def fetch(self, position: PhysicalOffset, size_bytes_max: int) -> bytes:
        """Whole batches from `position` on, as the peer has them; empty if it has not.

        Nothing is checked here but that the answer is one: the mender judges every batch.
        """
        wanted = RepairRange(position=position, size_bytes_max=min(size_bytes_max, RANGE_BYTES_MAX))
        self._source.say(wanted)
        frame = parse_frame_header(await self._source.exactly(FRAME_HEADER_BYTES))
        if frame.epoch != self.offer.epoch or frame.position != position:
            raise PeerError(f"bytes of {frame.position} in epoch {frame.epoch}, not of {position}")
        data = await self._source.exactly(frame.size_bytes - FRAME_HEADER_BYTES)
        self.confirm = max(self.confirm, frame.confirm)
        return data

    def close(self) -> None:
        self._source.close()


async def _claim(source: Conversation, requester: Requester, at: PhysicalOffset) -> RepairOffer:
    _, proof = await source.greet(requester.hello, RepairChallenge, requester.secrets)
    source.say(RepairClaim(proof=proof, epoch=requester.epoch, position=at))
    offer = await source.hear(RepairOffer)
    if offer.epoch != requester.epoch:  # R24
        raise PeerError(f"an offer of epoch {offer.epoch}, not {requester.epoch}")
    return offer
