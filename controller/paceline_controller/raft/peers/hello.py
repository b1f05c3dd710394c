"""Pure: how two controllers prove themselves to each other before any Raft frame.

dialer -> hello; listener -> hello, proof; dialer -> proof; listener -> accepted. Each hello names
protocol, cluster, both ids, a digest of the configured members, the newest generation of the member
list that the sender knows, the sender's store (its data folder), whether that store has ever taken
part in voting, and which store the sender remembers of the other. A
proof covers the prover's whole hello and both nonces.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
import orjson

from paceline.errors import BadRequestError, PeerError, UnauthenticatedError
from paceline.types import ControllerId
from paceline.wire.messages import Nonce, message_json, read_message
from paceline.wire.proof import Statement
from paceline_controller.raft.members import Members, read_members
from paceline_controller.raft.settings import HANDSHAKE_BYTES_MAX

PROTOCOL = 3
PURPOSE = "raft"
"""Of proofs and seals."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who speaks, to whom, and what it remembers."""

    protocol: int
    cluster: str
    sender: str
    receiver: str
    members: str
    nonce: Nonce
    store: str
    is_founded: bool
    remembered_store: str
    known: dict[str, Any]
    """The newest generation of the member list that the sender knows to be committed."""

    @property
    def generation(self) -> Members:
        """Raises PeerError if it is none."""
        return read_members(self.known)

    def encode(self) -> bytes:
        return orjson.dumps(message_json(self), option=orjson.OPT_SORT_KEYS)


def parse_document(content: bytes) -> dict[str, object]:
    """A JSON object, or PeerError; a refusal of the other side is raised as its sentence."""
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise PeerError("handshake is no JSON") from error
    if not isinstance(document, dict):
        raise PeerError("handshake is no JSON object")
    if "refused" in document:
        raise PeerError(f"peer refused: {str(document['refused'])[:500]}")
    return document


def parse_hello(content: bytes) -> Hello:
    """Raises PeerError unless every field is there, of its type, and nothing else."""
    parse_document(content)
    try:
        hello = read_message(content, Hello, size_bytes_max=HANDSHAKE_BYTES_MAX)
    except BadRequestError as error:
        raise PeerError(f"hello: {error.message}") from error
    read_members(hello.known)
    return hello


def members_digest(members: Iterable[ControllerId]) -> str:
    """The same for every node that was configured with the same set of controllers."""
    return hashlib.sha256("\n".join(sorted(members)).encode()).hexdigest()[:32]


def check_hello(theirs: Hello, *, ours: Hello, expected_sender: str | None = None) -> None:
    """Raises PeerError with a sentence for the operator if the two do not belong together."""
    if theirs.protocol != PROTOCOL:
        raise PeerError(f"raft protocol {theirs.protocol}, not {PROTOCOL}")
    if theirs.cluster != ours.cluster:
        raise PeerError(f"cluster is {ours.cluster!r} here and {theirs.cluster!r} there")
    if theirs.receiver != ours.sender:
        raise PeerError(f"this is controller {ours.sender!r}, not {theirs.receiver!r}")
    if expected_sender is not None and theirs.sender != expected_sender:
        raise PeerError(f"dialled {expected_sender!r}, reached {theirs.sender!r}")
    is_configured = theirs.generation.generation == ours.generation.generation == 0
    if is_configured and theirs.members != ours.members:
        raise PeerError("the two sides are configured with different controllers")


def make_proof(secret: bytes, *, role: str, own: Hello, peer: Hello) -> bytes:
    """JSON frame with the proof of `own`; role is "dialer" or "listener"."""
    return orjson.dumps({"proof": _statement(role, own, peer).proof(secret).hex()})


def check_proof(
    content: bytes, secrets: Iterable[bytes], *, role: str, prover: Hello, verifier: Hello
) -> bytes:
    """The one of `secrets` that `prover` holds, in that role. UnauthenticatedError: none."""
    document = parse_document(content)
    proof = document.get("proof")
    try:
        proof_bytes = bytes.fromhex(proof) if isinstance(proof, str) else b""
    except ValueError:
        proof_bytes = b""
    secret = _statement(role, prover, verifier).proven_by(proof_bytes, secrets)
    if secret is None:
        raise UnauthenticatedError(f"controller {prover.sender!r} has another cluster secret")
    return secret


def _statement(role: str, prover: Hello, verifier: Hello) -> Statement:
    return Statement(
        purpose=PURPOSE,
        prover=f"{role}:{hashlib.sha256(prover.encode()).hexdigest()}",
        own_nonce=prover.nonce,
        peer_nonce=verifier.nonce,
    )
