"""Pure: proof that a peer holds the cluster secret, without sending it.

Both sides send a nonce and answer HMAC-SHA256 over purpose, identities and both nonces. Purpose
("raft", "replication", "session") and direction are part of the input, so a proof can be neither
reflected nor used on another kind of connection.
"""

import hashlib
import hmac

NONCE_BYTES = 16
PROOF_BYTES = 32


def prove(
    secret: bytes, *, purpose: str, prover: str, own_nonce: bytes, peer_nonce: bytes
) -> bytes:
    """Proof of `prover` (e.g. "replica:g1/2/7") that it holds `secret`; 32 bytes."""
    parts = [purpose.encode(), prover.encode(), own_nonce, peer_nonce]
    message = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return hmac.new(secret, message, hashlib.sha256).digest()


def is_proof(
    proof: bytes, secret: bytes, *, purpose: str, prover: str, own_nonce: bytes, peer_nonce: bytes
) -> bool:
    """Whether `proof` is what `prove` gives the prover; nonces named from the prover's side."""
    expected = prove(
        secret, purpose=purpose, prover=prover, own_nonce=own_nonce, peer_nonce=peer_nonce
    )
    return hmac.compare_digest(proof, expected)
