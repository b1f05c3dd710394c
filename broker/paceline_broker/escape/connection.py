"""The sending side of an escape connection: to the master of a broker group (R36)."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import PeerError
from paceline.platform.address import parse_address
from paceline.platform.ports import Buffer
from paceline.platform.secret import ClusterSecrets
from paceline.security.node_tls import Dial
from paceline.wire.cluster import GroupView
from paceline_broker.replication.conversation import Conversation
from paceline_broker.service.escape.wire import (
    EscapeAnswer,
    EscapeChallenge,
    EscapeHello,
    EscapeMessages,
    EscapeProof,
    EscapeTold,
)

ANSWER_TIMEOUT_S = 3.0
"""RocketMQ's forwardTimeout: after it nobody knows."""

Codes = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who sends, and what it proves that with."""

    hello: EscapeHello
    secrets: ClusterSecrets
    dial: Dial


class EscapeConnection:
    """Opened by `open`; requests one after another; `close` at the end, whatever happened."""

    def __init__(self, receiver: Conversation) -> None:
        self._receiver = receiver

    @classmethod
    async def open(cls, sender: Sender, group: GroupView) -> "EscapeConnection":
        """Connect to the group's master and prove. Raises PeerError, UnauthenticatedError,
        DeadlineError, OSError: it has been given nothing then."""
        master = group.master_view()
        if master is None:
            raise PeerError(f"group {group.group} has no master")
        host, port = parse_address(master.replication_address)
        receiver = await Conversation.open(
            host, port, dial=sender.dial, answer_timeout_s=ANSWER_TIMEOUT_S
        )
        try:
            await _prove(receiver, sender, group)
        except BaseException:
            receiver.close()
            raise
        return cls(receiver)

    async def send(self, batches: Sequence[Buffer]) -> Codes:
        """What became of each batch: None stored and confirmed, else the code of a refusal.

        Raises PeerError, DeadlineError, OSError: nobody knows, and the connection is of no use.
        """
        sizes = tuple(len(batch) for batch in batches)
        self._receiver.say(EscapeMessages(sizes_bytes=sizes), followed_by=batches)
        codes = (await self._receiver.hear(EscapeAnswer)).codes
        if len(codes) != len(batches):
            raise PeerError(f"{len(codes)} codes for {len(batches)} batches")
        return codes

    async def tell(self, told: EscapeTold) -> str | None:
        """None: it was heard and is confirmed; else why not, and it must be told again.

        Raises as `send`.
        """
        self._receiver.say(told)
        codes = (await self._receiver.hear(EscapeAnswer)).codes
        if len(codes) != 1:
            raise PeerError(f"{len(codes)} codes for what was told")
        return codes[0]

    def close(self) -> None:
        self._receiver.close()


async def _prove(receiver: Conversation, sender: Sender, group: GroupView) -> None:
    challenge, proof = await receiver.greet(sender.hello, EscapeChallenge, sender.secrets)
    found = (challenge.group, challenge.replica_id, challenge.incarnation)
    if found != (group.group, group.master, group.master_incarnation):
        raise PeerError(f"{found} answers, not the master of group {group.group}")
    receiver.say(EscapeProof(proof=proof))
    await receiver.hear(EscapeAnswer)
