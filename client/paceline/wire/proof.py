"""Pure: proof that a peer holds the cluster secret, without sending it.

Both sides send a nonce and answer HMAC-SHA256 over purpose, identities and both nonces. Purpose
("raft", "replication", "session") and direction are part of the input, so a proof can be neither
reflected nor used on another kind of connection.
"""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

NONCE_BYTES = 16
PROOF_BYTES = 32
NODE_HEADER = "Paceline-Node"
"""Of an HTTP request that a node has proven: its id, the address that the request is for, a
challenge of the node there, a nonce and the proof."""
CHALLENGE_HEADER = "Paceline-Node-Challenge"
"""Of the answer to such a request: the challenge that proofs are to cover from now on."""
SOURCE_HEADER = "Paceline-Source"
"""The address that it came from, if the node only relays it, and the user that its certificate was
for, if it was for one."""
DIGEST_HEADER = "Paceline-Body-Digest"
"""SHA-256 of its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one side proves; both sides make it by the same function, so that they mean the same."""

    purpose: str
    """The kind of connection: "raft", "replication", "session", "repair", "http", "http-relay"."""
    prover: str
    """Role and identity, e.g. "replica:g1/2/7"."""
    own_nonce: bytes
    """Of the prover."""
    peer_nonce: bytes

    def proof(self, secret: bytes) -> bytes:
        """That the prover holds `secret`; PROOF_BYTES long."""
        parts = (self.purpose.encode(), self.prover.encode(), self.own_nonce, self.peer_nonce)
        return keyed_hash(secret, *parts)

    def is_proven(self, proof: bytes, secret: bytes) -> bool:
        """Whether `proof` is what the prover gives."""
        return hmac.compare_digest(proof, self.proof(secret))

    def proven_by(self, proof: bytes, secrets: Iterable[bytes]) -> bytes | None:
        """The secret that the prover holds, of several; None: none of them."""
        return next((secret for secret in secrets if self.is_proven(proof, secret)), None)


def keyed_hash(secret: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over the parts, each with its length. The first says what for, and no two uses
    have the same: then a hash of one is of no use in another."""
    message = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return hmac.new(secret, message, hashlib.sha256).digest()
