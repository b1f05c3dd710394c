"""Mutual TLS between controllers: the files, the two contexts, whom a certificate names.

Optional, beside the proof of the cluster secret (`hello.py`), never instead of it. Both sides must
show a certificate of the configured authority that names the controller they speak for: a URI
`paceline:controller/ID` in subjectAltName, or, without such a URI, a DNS name that is the id. The
common name counts for nothing. Files are read once, at start, and refused there with a sentence; a
handshake of the node with itself tells what any peer would find wrong with the certificate.
"""

import os
import ssl
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import ConfigError, PeerError
from paceline.types import ControllerId

URI_PREFIX = "paceline:controller/"

_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
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

_STEPS_MAX = 10
"""Of a handshake in memory; TLS 1.3 needs three, TLS 1.2 four."""


@dataclass(frozen=True, slots=True)
class Tls:
    """One controller's side of every connection, as dialer and as listener."""

    client: ssl.SSLContext
    server: ssl.SSLContext
    expires: str
    """When the own certificate ends, as OpenSSL writes it."""

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
    _check_readable("raft_tls_cert", certificate)
    _check_private(key)
    _check_readable("raft_tls_ca", authority)
    client, server = make_contexts(certificate=certificate, key=key, authority=authority)
    own = _shake_own_hand(client, server, certificate=certificate, authority=authority)
    names = certified_ids(own)
    if controller_id not in names:
        raise ConfigError(
            f"raft_tls_cert {certificate} names {_listed(names)}, not this controller: it needs "
            f"the subjectAltName URI:{URI_PREFIX}{controller_id} or DNS:{controller_id}"
        )
    return Tls(client, server, expires=str(own["notAfter"]))


def make_contexts(
    *, certificate: str, key: str, authority: str
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a dialer and of a listener. ConfigError if OpenSSL cannot use the files."""
    client, server = (
        _context(protocol, certificate=certificate, key=key, authority=authority)
        for protocol in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)
    )
    return client, server


def certified_ids(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The controllers a verified certificate speaks for (`SSLObject.getpeercert`)."""
    names = certificate.get("subjectAltName", ())
    uris = {
        name.removeprefix(URI_PREFIX)
        for kind, name in names
        if kind == "URI" and name.startswith(URI_PREFIX)
    }
    return frozenset(uris or {name for kind, name in names if kind == "DNS"})


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


# -- at start --------------------------------------------------------------------------------------


def _check_readable(setting: str, path: str) -> os.stat_result:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"cannot read {setting} {path}: {error.strerror or error}") from error
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{setting} {path} is not a regular file")
    return status


def _check_private(path: str) -> None:
    mode = stat.S_IMODE(_check_readable("raft_tls_key", path).st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"raft_tls_key {path} has mode {mode:04o}, so others can read it; run: chmod 600 {path}"
        )


def _context(protocol: int, *, certificate: str, key: str, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # each connection shows its certificate anew
    context.check_hostname = False  # certificates name controllers: check_certificate
    context.verify_mode = ssl.CERT_REQUIRED

    def refuse_password() -> str:
        raise ConfigError(f"raft_tls_key {key} is encrypted: a controller has nobody to ask")

    try:
        context.load_cert_chain(certificate, key, password=refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"raft_tls_key {key} does not fit the certificate in raft_tls_cert {certificate}"
            ) from error
        raise ConfigError(
            f"raft_tls_cert {certificate} or raft_tls_key {key} is no PEM file of its kind: {error}"
        ) from error
    try:
        context.load_verify_locations(cafile=authority)
    except ssl.SSLError as error:
        raise ConfigError(f"raft_tls_ca {authority} holds no PEM certificates: {error}") from error
    return context


def _shake_own_hand(
    client: ssl.SSLContext, server: ssl.SSLContext, *, certificate: str, authority: str
) -> dict[str, Any]:
    """Both sides in memory; the own certificate as a peer would see it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialer = client.wrap_bio(to_client, to_server)
    listener = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [dialer, listener]
    try:
        for _ in range(_STEPS_MAX):
            waiting = [side for side in waiting if not _is_done(side)]
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            raise ConfigError(
                f"raft_tls_cert {certificate} (or its authority in {authority}) has expired"
            ) from error
        raise ConfigError(
            f"raft_tls_cert {certificate} would be refused by every peer with raft_tls_ca "
            f"{authority}: {error.verify_message}"
        ) from error
    except ssl.SSLError as error:
        raise ConfigError(f"raft_tls_cert {certificate} does not work: {error}") from error
    assert not waiting, "a handshake in memory ends or fails"
    return dict(dialer.getpeercert() or {})


def _is_done(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _listed(names: frozenset[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "no controller"
