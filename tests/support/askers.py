"""Who asks, for tests that are not about rights."""

from paceline.platform.runtime import SystemClock, SystemRandom
from paceline.platform.secret import ClusterSecrets
from paceline.security.access import Access, Asker
from paceline.security.identity import Principal
from paceline.security.node_proof import NodeProofs
from paceline.wire.proof import CHALLENGE_HEADER

ANYBODY = Asker(Access(SystemClock()), Principal("anonymous", "127.0.0.1"))
"""Where rights are off."""


class Everywhere:
    """The addresses of a node that takes whatever is sent to it."""

    def __contains__(self, address: object) -> bool:
        return True


PROOFS = NodeProofs(
    ClusterSecrets(b"the secret of a test"),
    node_id="controller:c9",
    addresses=Everywhere,
    clock=SystemClock(),
    random=SystemRandom(),
)
"""Of a node of the cluster of that secret, on both sides."""


def proof_of(
    proofs: NodeProofs,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    to: NodeProofs | None = None,
    address: str = "there",
    source: str | None = None,
    authorization: str = "",
) -> dict[str, str]:
    """Headers of a request that `to` takes, the same node by default."""
    proofs.learn(address, {CHALLENGE_HEADER: (to or proofs).challenge})
    return proofs.headers(method, address, path, body, source=source, authorization=authorization)
