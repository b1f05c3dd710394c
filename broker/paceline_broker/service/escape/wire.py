"""Pure: the messages of the escape bridge, on the replication port (docs/protocol/replication.md).

    sender -> receiver   escape_hello      who I am, my nonce
    receiver -> sender   escape_challenge  who I am, in which epoch, my nonce, my proof
    sender -> receiver   escape_proof      my proof
    receiver -> sender   escape_answer     nothing: go on
    then, one at a time:
    sender -> receiver   escape_messages   sizes of the record batches that follow at once
                         escape_told       what went elsewhere (to the master of the own group)
    receiver -> sender   escape_answer     for each batch null or the code of a definite refusal

A receiver that does not know what became of a request closes the connection.
"""

from typing import Annotated

from msgspec import Meta

from paceline.errors import PeerError
from paceline.platform.ports import Buffer
from paceline.records.header import BATCH_BYTES_MAX, HEADER_BYTES
from paceline.wire.commands import Group
from paceline.wire.messages import Proof
from paceline_broker.replication.messages import Hello, Message, PeerChallenge, parse_message
from paceline_broker.service.escape.notes import EpochNumber, SentNote

BATCHES_MAX = 256
REQUEST_BYTES_MAX = BATCH_BYTES_MAX + 1024 * 1024
"""Batches of one request: one that is as large as can be, and some small ones."""
NOTES_MAX = 1000
"""In one `escape_told`."""
EPOCHS_MAX = 64
CODE_LENGTH_MAX = 64


class EscapeHello(Hello, frozen=True, kw_only=True):
    """Of an acting master."""

    PURPOSE = "escape"
    PROVER = "sender"


class EscapeChallenge(PeerChallenge, frozen=True, kw_only=True):
    """The master names itself and its epoch, and proves that it holds the cluster secret."""

    PROVER = "receiver"

    group: Group

    def group_of(self, hello: Hello) -> str:
        return self.group


class EscapeProof(Message, frozen=True, kw_only=True):
    """The sender's."""

    proof: Proof


class EscapeMessages(Message, frozen=True, kw_only=True):
    """Record batches of these sizes follow at once."""

    sizes_bytes: Annotated[
        tuple[Annotated[int, Meta(ge=HEADER_BYTES, le=BATCH_BYTES_MAX)], ...],
        Meta(min_length=1, max_length=BATCHES_MAX),
    ]


class EscapeTold(Message, frozen=True, kw_only=True):
    """What acting masters have sent elsewhere."""

    notes: Annotated[tuple[SentNote, ...], Meta(max_length=NOTES_MAX)]
    epochs: Annotated[tuple[EpochNumber, ...], Meta(max_length=EPOCHS_MAX)]
    """Of appointments of the sender of which nothing is left to tell after this."""


class EscapeAnswer(Message, frozen=True, kw_only=True):
    """For each batch of the request null, or the code of a definite refusal."""

    codes: tuple[Annotated[str, Meta(max_length=CODE_LENGTH_MAX)] | None, ...]


def parse_request(body: Buffer) -> EscapeMessages | EscapeTold:
    """PeerError on anything else."""
    request: Message = parse_message(body, EscapeMessages | EscapeTold)  # type: ignore[arg-type]
    if isinstance(request, EscapeMessages) and sum(request.sizes_bytes) > REQUEST_BYTES_MAX:
        raise PeerError(f"batches of {sum(request.sizes_bytes)} bytes at one time")
    return request  # type: ignore[return-value]
