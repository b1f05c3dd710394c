"""TLS of a node's listener for clients, and of its own HTTP to other nodes.

Certificates and authorities are replaced without a restart: the files are looked at every 10 s and
on SIGHUP; a pair that does not fit, or that any peer would refuse, is told in the log, and the old
one stays. New connections have the new one, open ones stay.
"""

import hashlib
import logging
import ssl
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError, PacelineError
from paceline.platform.ports import Clock
from paceline.platform.runtime import pause
from paceline.platform.telemetry import Metrics
from paceline.security.certificates import (
    SslOfNodes,
    TlsFiles,
    check_own,
    make_contexts,
    shake_own_hand,
)
from paceline.security.node_settings import ProcessSettings

log = logging.getLogger("paceline.tls")

LOOK_INTERVAL_MS = 10_000


class TlsMode(StrEnum):
    """How far a cluster has come on its way to TLS."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    """Takes TLS and plain connections, and dials plain ones: until all nodes have certificates."""
    PREFERRED = "preferred"
    """Takes both, dials TLS: until all clients have changed."""
    ENFORCING = "enforcing"
    """TLS only."""


def open_node_tls(settings: ProcessSettings, *, own_uri: str = "") -> "NodeTls | None":
    """What `tls_*` name; None where they are disabled. ConfigError.

    `own_uri`: that the certificate must have; empty: peers will look at it.
    """
    mode = TlsMode(settings.tls_mode)
    if mode is TlsMode.DISABLED:
        return None
    files = TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_ca)
    return NodeTls(files, mode, minimum=settings.tls_min_version, own_uri=own_uri)


class NodeTls:
    """TLS of a node's listeners, and of its dials, from files as they are now."""

    def __init__(
        self, files: TlsFiles, mode: TlsMode, *, minimum: str = "1.3", own_uri: str = ""
    ) -> None:
        """`minimum`: the least version for clients, "1.2" or "1.3"; nodes dial by 1.3 alone. Raises
        ConfigError with a sentence for the operator."""
        assert mode is not TlsMode.DISABLED
        self._minimum = ssl.TLSVersion.TLSv1_3 if minimum == "1.3" else ssl.TLSVersion.TLSv1_2
        self._own_uri = own_uri
        self.mode = mode
        self.plain_count = 0
        """Connections that came without TLS."""
        self.tls_count = 0
        self.failed_count = 0
        """Handshakes that did not come about."""
        self._files = files
        self._digest = self._content_digest()
        self._load()

    @property
    def takes_plain(self) -> bool:
        return self.mode is not TlsMode.ENFORCING

    @property
    def dials(self) -> bool:
        """Whether this node speaks TLS to other nodes by itself."""
        return self.mode is not TlsMode.PERMISSIVE

    def reload(self) -> bool:
        """Look at the files; whether there were new ones that are good. What is wrong is logged."""
        digest = self._content_digest()
        if digest == self._digest:
            return False
        try:
            self._load()
        except (ConfigError, OSError) as error:
            log.error("tls_not_reloaded", extra={"why": str(error)})
            return False
        self._digest = digest
        log.info("tls_reloaded", extra={"certificate": self._files.certificate})
        return True

    async def watch(self) -> None:
        """Reload what has changed, until cancelled."""
        while True:
            await pause(LOOK_INTERVAL_MS)
            self.reload()

    def _for_clients(self) -> ssl.SSLContext:
        _, server = make_contexts(self._files)
        server.minimum_version = self._minimum
        server.verify_mode = ssl.CERT_OPTIONAL
        return server

    def _content_digest(self) -> bytes:
        """Of all files; empty if one cannot be read: loading it tells which."""
        digest = hashlib.sha256()
        try:
            for path in self._files:
                digest.update(Path(path).read_bytes() + b"\0")
        except OSError:
            return b""
        return digest.digest()

    def _load(self) -> None:
        """Put what the files hold in place of what was there; ConfigError leaves that."""
        client, server = make_contexts(self._files)
        for context in (client, server):
            # By 1.2 a session could be resumed, which shows no certificate.
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.options |= ssl.OP_NO_TICKET
        server.num_tickets = 0  # each connection of nodes shows its certificates anew
        own = shake_own_hand(client, server, self._files)
        check_own(own, self._own_uri, self._files)
        client.check_hostname = True
        server.sslobject_class = SslOfNodes
        of_clients, of_grpc = self._for_clients(), self._for_clients()
        of_grpc.set_alpn_protocols(["h2"])
        self.client = client
        """Of dials to other nodes."""
        self.server = of_clients
        """For clients, who may show a certificate."""
        self.grpc_server = of_grpc
        """For clients that speak gRPC, which they ask for in the handshake."""
        self.node_server = server
        """For nodes, who must."""
        self.expires_unix_ms = ssl.cert_time_to_seconds(str(own["notAfter"])) * 1000


def register_tls(metrics: Metrics, tls: NodeTls, clock: Clock) -> None:
    """Metrics of TLS at a node's listener."""
    metrics.sampled(
        "paceline_tls_listener_certificate_left_seconds",
        "Seconds until the certificate of this listener ends; alert: below 30 days.",
        lambda: (tls.expires_unix_ms - clock.unix_ms()) / 1000,
    )
    metrics.sampled(
        "paceline_tls_plain_connections_total",
        "Connections that came without TLS; enforce it when this stands still.",
        lambda: tls.plain_count,
    )
    metrics.sampled(
        "paceline_tls_connections_total",
        "Connections with TLS.",
        lambda: tls.tls_count,
    )
    metrics.sampled(
        "paceline_tls_handshakes_failed_total",
        "Handshakes that did not come about; alert when it grows.",
        lambda: tls.failed_count,
    )


class Dial:
    """How a node reaches another one: where from, and whether by TLS."""

    def __init__(self, tls: NodeTls | None = None, *, source_host: str = "") -> None:
        """`source_host`: local address that connections start from; empty: the system chooses."""
        self._tls = tls if tls is not None and tls.dials else None
        self._local = (source_host, 0) if source_host else None
        self.on_refused: Callable[[str, str, PacelineError], None] = lambda door, host, error: None
        """`RefusedPeers.refused`: told of who was dialled and has not proven the secret."""

    def http(self, address: str, path: str) -> dict[str, Any]:
        """`url` and `ssl` of an HTTP request, as aiohttp wants them."""
        if self._tls is None:
            return {"url": f"http://{address}{path}", "ssl": True}
        return {"url": f"https://{address}{path}", "ssl": self._tls.client}

    def options(self, host: str) -> dict[str, Any]:
        """For `create_connection` and `open_connection` to that host."""
        if self._tls is None:
            return {"local_addr": self._local}
        return {"local_addr": self._local, "ssl": self._tls.client, "server_hostname": host}
