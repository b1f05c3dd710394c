"""What a gateway of the cluster of the tests' secret shows."""

from paceline.platform.runtime import SystemClock
from paceline.security.delegation import LIFETIME_MS, Delegation, Door, write_delegation


def delegated(
    user: str,
    *,
    source: str = "10.0.0.1",
    access_key: str = "",
    door: Door = "grpc",
    address: str = "there",
    secret: bytes = b"the secret of a test",
    cluster_id: str = "",
) -> dict[str, str]:
    """The header for the node at `address`."""
    expires_unix_ms = SystemClock().unix_ms() + LIFETIME_MS
    made = Delegation(user, source, access_key, door, address, expires_unix_ms)
    return {"Authorization": write_delegation(made, cluster_id=cluster_id, secret=secret)}
