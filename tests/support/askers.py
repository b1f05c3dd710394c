"""Who asks, for tests that are not about rights."""

from paceline.platform.runtime import SystemClock, SystemRandom
from paceline.platform.secret import ClusterSecrets
from paceline.security.access import Access, Asker, Principal
from paceline.security.node_proof import NodeProofs

ANYBODY = Asker(Access(SystemClock()), Principal("anonymous", "127.0.0.1"))
"""Where rights are off."""
PROOFS = NodeProofs(
    ClusterSecrets(b"the secret of a test"), node_id="controller:c9", random=SystemRandom()
)
"""Of a node of the cluster of that secret."""
