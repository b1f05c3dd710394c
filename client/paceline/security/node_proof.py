"""How a node of the cluster shows another one over HTTP that it is one.

A follower that relays a request vouches for where it came from: policies may name addresses. A
leader or a broker that asks a master something is no user, and may do what it asks. They hold the
cluster secret, and send a proof over the request: method, path, Authorization, and a digest of the
body, with which the body is compared when it is read (`server.http_guard`).
"""

import hashlib
from collections.abc import Mapping

from paceline.platform.ports import Random
from paceline.platform.secret import ClusterSecrets
from paceline.wire.proof import (
    DIGEST_HEADER,
    NODE_HEADER,
    NONCE_BYTES,
    PROOF_BYTES,
    SOURCE_HEADER,
    Statement,
)


class NodeProofs:
    """Makes and checks the headers; one for each node."""

    def __init__(self, secrets: ClusterSecrets, *, node_id: str, random: Random) -> None:
        self._secrets = secrets
        self._node_id = node_id
        self._random = random

    def headers(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        source: str | None = None,
        authorization: str = "",
    ) -> dict[str, str]:
        """Of a request. `path` with its query, as it is sent.

        `source`: where a relayed one came from; None: the node asks for itself.
        """
        nonce, digest = self._random.token(NONCE_BYTES), hashlib.sha256(body).hexdigest()
        parts = (self._node_id, method, path, digest, source or "", authorization)
        is_relayed = source is not None
        proof = _statement(parts, nonce, is_relayed=is_relayed).proof(self._secrets.current).hex()
        headers = {NODE_HEADER: f"{self._node_id} {nonce.hex()} {proof}", DIGEST_HEADER: digest}
        if source is not None:
            headers[SOURCE_HEADER] = source
        return headers

    def is_node(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """Whether a request with these headers comes from a node of this cluster."""
        node_id, _, rest = headers.get(NODE_HEADER, "").partition(" ")
        nonce, _, proof = rest.partition(" ")
        try:
            nonce_bytes, proof_bytes = bytes.fromhex(nonce), bytes.fromhex(proof)
        except ValueError:
            return False
        if len(nonce_bytes) != NONCE_BYTES or len(proof_bytes) != PROOF_BYTES:
            return False
        digest, source = headers.get(DIGEST_HEADER, ""), headers.get(SOURCE_HEADER, "")
        parts = (node_id, method, path, digest, source, headers.get("Authorization", ""))
        statement = _statement(parts, nonce_bytes, is_relayed=SOURCE_HEADER in headers)
        return statement.proven_by(proof_bytes, self._secrets.all) is not None


def _statement(parts: tuple[str, ...], nonce: bytes, *, is_relayed: bool) -> Statement:
    """Of another purpose where a node relays: to leave its source out makes no node of a user."""
    said = "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    return Statement(
        purpose="http-relay" if is_relayed else "http",
        prover=hashlib.sha256(said).hexdigest(),
        own_nonce=nonce,
        peer_nonce=b"",
    )
