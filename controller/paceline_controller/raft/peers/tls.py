"""Mutual TLS between controllers: the files, the two contexts, whom a certificate names.

Optional, beside the proof of the cluster secret (`hello.py`), never instead of it. Both sides must
show a certificate of the configured authority that names the controller they speak for: a URI
`paceline:controller/ID` in subjectAltName, or, without such a URI, a DNS name that is the id. The
common name counts for nothing. A handshake of the node with itself tells what any peer would find
wrong with the certificate. Files that change are read again, as those of the node's other ports.
"""

import ssl
from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import ConfigError, PeerError
from paceline.security.certificates import (
    CONTROLLER_URI,
    TlsFiles,
    make_contexts,
    shake_own_hand,
    uris_of,
)
from paceline.security.node_tls import ReloadedTls
from paceline.types import ControllerId

_NO_TLS_AT_ALL = {
    "WRONG_VERSION_NUMBER",
    "UNSUPPORTED_PROTOCOL",
    "UNKNOWN_PROTOCOL",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
    "BAD_RECORD_TYPE",
}
"""How OpenSSL calls bytes that are no TLS; which one depends on its version and on the bytes."""


class Tls(ReloadedTls):
    """One controller's side of every connection, as dialer and as listener."""

    client: ssl.SSLContext
    """Of the next connection."""
    expires: str
    """When the own certificate ends, as OpenSSL writes it."""

    def __init__(self, files: TlsFiles, *, controller_id: ControllerId) -> None:
        """Raises ConfigError with a sentence for the operator."""
        self._controller_id = controller_id
        super().__init__(files)
        self.server = self._server
        """For the life of the listener: each connection is handed the present one."""
        self.server.sni_callback = self._hand_over

    def _load(self) -> None:
        client, server = make_contexts(self._files)
        for context in (client, server):
            # By 1.2 a session could be resumed, which shows no certificate.
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.options |= ssl.OP_NO_TICKET
        server.num_tickets = 0  # each connection shows its certificate anew
        own = shake_own_hand(client, server, self._files)
        names = certified_ids(own)
        if self._controller_id not in names:
            raise ConfigError(
                f"raft_tls_cert {self._files.certificate} names {_listed(names)}, not this"
                f" controller: it needs the subjectAltName"
                f" URI:{CONTROLLER_URI}{self._controller_id} or DNS:{self._controller_id}"
            )
        self.client, self._server, self.expires = client, server, str(own["notAfter"])

    def _hand_over(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str, context: ssl.SSLContext
    ) -> None:
        """OpenSSL calls it at each ClientHello, also where that names no host."""
        connection.context = self._server

    @property
    def expires_unix_ms(self) -> int:
        return ssl.cert_time_to_seconds(self.expires) * 1000

    def report_failures(self, report: Callable[[ssl.SSLError], None]) -> None:
        """Tell of incoming handshakes that fail: the event loop keeps them to itself."""

        class Reporting(ssl.SSLObject):
            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    raise
                except ssl.SSLError as error:
                    report(error)
                    raise

        self.server.sslobject_class = Reporting


def open_tls(*, certificate: str, key: str, authority: str, controller_id: ControllerId) -> Tls:
    """Read and try the three PEM files. ConfigError with a sentence for the operator."""
    files = TlsFiles(certificate, key, authority, "raft_tls")
    return Tls(files, controller_id=controller_id)


def certified_ids(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The controllers a verified certificate speaks for (`SSLObject.getpeercert`)."""
    names = certificate.get("subjectAltName", ())
    uris = uris_of(certificate, CONTROLLER_URI)
    return uris or frozenset(name for kind, name in names if kind == "DNS")


def check_certificate(certificate: Mapping[str, Any] | None, peer: str) -> None:
    """Raises PeerError unless the other side's certificate names the controller it is to be."""
    names = certified_ids(certificate or {})
    if peer not in names:
        raise PeerError(f"the certificate names {_listed(names)}, not controller {peer!r}")


def handshake_sentence(error: ssl.SSLError) -> str:
    """What went wrong between two controllers, whose fault it is, and what to do."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is refused: {error.verify_message}"
    if reason in _NO_TLS_AT_ALL:
        return "the peer does not speak TLS, this controller does: set raft_tls_* on all of them"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the peer shows no certificate"
    words = reason.lower().replace("_", " ") or str(error)
    if "ALERT" in reason:
        return f"the peer refuses this controller's certificate or TLS ({words}): see its log"
    return f"TLS failed: {words}"


def is_tls_record(head: bytes) -> bool:
    """Whether the first bytes of a connection are TLS: as a length they are always too large."""
    return len(head) >= 2 and 0x14 <= head[0] <= 0x17 and head[1] == 3


def _listed(names: frozenset[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "no controller"
