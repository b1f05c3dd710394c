"""What a gateway shows to nodes: on whose behalf it comes."""

from collections.abc import Callable

from paceline.net.connect import check_loopback
from paceline.platform.ports import Clock
from paceline.platform.secret import ClusterSecrets
from paceline.security.delegation import LIFETIME_MS, Delegation, Door, write_delegation
from paceline.security.identity import Principal


class OnBehalf:
    """`paceline.net.connect.Shown` of one user: made anew for each connection and request."""

    def __init__(
        self,
        principal: Principal,
        secrets: ClusterSecrets,
        *,
        cluster_id: Callable[[], str],
        clock: Clock,
        allow_plaintext: bool,
    ) -> None:
        """`cluster_id`: that users and rights are of. `allow_plaintext`: show it to nodes on other
        machines also without TLS."""
        door: Door = "grpc" if principal.door == "grpc" else "remoting"
        self._who = (principal.user, principal.source, principal.access_key, door)
        self._secrets, self._cluster_id, self._clock = secrets, cluster_id, clock
        self._allow_plaintext = allow_plaintext

    def authorization(self, address: str, *, is_encrypted: bool) -> str:
        """See `Shown`. ConfigError where others could read it on the way."""
        if not is_encrypted and not self._allow_plaintext:
            check_loopback(address, f"what the gateway shows for {self._who[0]}")
        expires_unix_ms = self._clock.unix_ms() + LIFETIME_MS
        delegation = Delegation(*self._who, address, expires_unix_ms)
        return write_delegation(
            delegation, cluster_id=self._cluster_id(), secret=self._secrets.current
        )
