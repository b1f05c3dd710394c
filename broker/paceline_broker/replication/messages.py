"""Pure: JSON messages between brokers on the replication port: how they are framed, and how
connections of replication, repair and escape open.

All three open alike. Whoever connects says hello, with a nonce. The other side answers with a
challenge: a nonce of its own and its proof that it holds the cluster secret. The first proves the
same in its next message; nothing about a log is said before that. Each kind of connection has a
purpose of its own, so a proof of one serves on no other. After the challenge everything travels in
sealed records (`wire.seal`), except by TLS. What a record holds is whole: messages, a frame, or a
piece of a checkpoint.

Each message travels as u32 LE magic "PLR1", u32 LE size, then that many bytes of JSON. Any byte
string is read as a message or is a PeerError.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

import msgspec
import orjson
from msgspec import Meta

from paceline.errors import BadRequestError, PeerError
from paceline.platform.ports import Buffer
from paceline.types import PhysicalOffset
from paceline.wire.calls.request import snake_case
from paceline.wire.commands import Epoch, Group, Replica, Start, Token
from paceline.wire.fields import I64_MAX
from paceline.wire.messages import Nonce, Proof, message_json, read_message
from paceline.wire.proof import Statement
from paceline.wire.seal import Seals

MAGIC = 0x31524C50  # "PLR1", also the version of the protocol
PREFIX_BYTES = 8
HELLO_BYTES_MAX = 4096
"""Bound of what an unproven peer may send."""
MESSAGE_BYTES_MAX = 1024 * 1024
"""An epoch table of 20,000 entries still fits."""

_PREFIX = struct.Struct("<II")


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=snake_case):
    """One message. Its kind is the class's name in lower case, words joined by "_"."""

    def encode(self) -> bytes:
        """With its prefix."""
        return frame(message_json(self))


MessageT = TypeVar("MessageT", bound=Message)
Position: TypeAlias = Annotated[PhysicalOffset, Meta(ge=0, le=I64_MAX)]


class Refused(Message, frozen=True, kw_only=True):
    """Why the other side closes; `code` is one of docs/protocol/replication.md."""

    code: Annotated[str, Meta(max_length=1024)]
    detail: Annotated[str, Meta(max_length=1024)]


class Hello(Message, frozen=True, kw_only=True):
    """First message of whoever connects; nothing in it is believed yet."""

    PURPOSE: ClassVar[str] = "replication"
    PROVER: ClassVar[str] = "replica"

    cluster_id: Token
    group: Group
    replica_id: Replica
    incarnation: Start
    nonce: Nonce
    is_sealed: bool = False
    """What follows the challenge is sealed, in both directions; true unless it comes by TLS."""

    @property
    def purpose(self) -> str:
        """Of the proofs: they say how the connection goes on, so nobody can talk it down."""
        return f"{self.PURPOSE}-sealed" if self.is_sealed else self.PURPOSE

    def seals(self, secret: bytes, *, peer_nonce: bytes, is_dialer: bool) -> Seals | None:
        """How it goes on after the challenge; None: as it is, inside TLS."""
        if not self.is_sealed:
            return None
        return Seals(
            secret,
            purpose=self.PURPOSE,
            is_dialer=is_dialer,
            dialer_nonce=self.nonce,
            listener_nonce=peer_nonce,
        )

    def proof(self, secret: bytes, challenge: "PeerChallenge") -> Proof:
        """Of whoever said hello, over its identity and both nonces."""
        return Proof(self._statement(challenge.nonce).proof(secret))

    def is_proven(self, proof: bytes, secret: bytes, *, peer_nonce: bytes) -> bool:
        return self._statement(peer_nonce).is_proven(proof, secret)

    def _statement(self, peer_nonce: bytes) -> Statement:
        who = f"{self.cluster_id}/{self.group}/{self.replica_id}/{self.incarnation}"
        return Statement(
            purpose=self.purpose,
            prover=f"{self.PROVER}:{who}",
            own_nonce=self.nonce,
            peer_nonce=peer_nonce,
        )


class PeerChallenge(Message, frozen=True, kw_only=True):
    """The answer to a hello: who answers, in which epoch, and its proof over both."""

    PROVER: ClassVar[str]

    replica_id: Replica
    incarnation: Start
    epoch: Epoch
    nonce: Nonce
    proof: Proof

    def group_of(self, hello: Hello) -> str:
        """The broker group of whoever answers `hello`."""
        return hello.group

    def proven(self, secret: bytes, hello: Hello) -> Self:
        """With the proof."""
        proof = Proof(self._statement(hello).proof(secret))
        return msgspec.structs.replace(self, proof=proof)

    def proven_by(self, secrets: Iterable[bytes], hello: Hello) -> bytes | None:
        """The one of them that it proves: the connection goes on with it; None: none of them."""
        return self._statement(hello).proven_by(self.proof, secrets)

    def _statement(self, hello: Hello) -> Statement:
        who = f"{self.group_of(hello)}/{self.replica_id}/{self.incarnation}/{self.epoch}"
        return Statement(
            purpose=hello.purpose,
            prover=f"{self.PROVER}:{who}",
            own_nonce=self.nonce,
            peer_nonce=hello.nonce,
        )


def frame(document: Mapping[str, Any]) -> bytes:
    """A JSON object with the prefix of a message."""
    body = orjson.dumps(document)
    return _PREFIX.pack(MAGIC, len(body)) + body


def parse_prefix(buffer: Buffer, *, size_bytes_max: int) -> int:
    """Size of the JSON that follows the 8 bytes of `buffer`; PeerError on a foreign peer."""
    magic, size = _PREFIX.unpack_from(buffer)
    if magic != MAGIC:
        raise PeerError(f"not a paceline replication peer (magic {magic:#010x})")
    if not 0 < size <= size_bytes_max:
        raise PeerError(f"a handshake message of {size} bytes is over {size_bytes_max}")
    return int(size)


def take_message(received: bytearray, *, size_bytes_max: int) -> bytes | None:
    """Take the JSON of a whole message from the front; None: it is not all there."""
    if len(received) < PREFIX_BYTES:
        return None
    end = PREFIX_BYTES + parse_prefix(received, size_bytes_max=size_bytes_max)
    if len(received) < end:
        return None
    body = bytes(received[PREFIX_BYTES:end])
    del received[:end]
    return body


def parse_message(body: Buffer, kinds: type[MessageT]) -> MessageT:
    """The message; `kinds` is a struct or a union of structs. PeerError on anything else."""
    try:
        return read_message(body, kinds, size_bytes_max=MESSAGE_BYTES_MAX)
    except BadRequestError as error:
        raise PeerError(error.message) from error


def parse_answer(body: Buffer, kind: type[MessageT]) -> MessageT:
    """The message of that kind. PeerError on anything else, also on `Refused`."""
    answer: Message = parse_message(body, kind | Refused)  # type: ignore[arg-type]
    if isinstance(answer, Refused):
        raise PeerError(f"refused: {answer.code}: {answer.detail}")
    return answer  # type: ignore[return-value]
