"""Certificates and keys from files: read, tried, and told what is wrong with them.

Every sentence names the setting and the file: these errors are what an operator sees.
"""

import os
import ssl
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from paceline.errors import ConfigError, PeerError

CLIENT_URI = "paceline:client/"
"""How the subjectAltName begins that says whose certificate it is."""
BROKER_URI, CONTROLLER_URI = "paceline:broker/", "paceline:controller/"
"""What stands behind: GROUP or GROUP/REPLICA_ID; the id of a controller."""
_NODE_URIS = (BROKER_URI, CONTROLLER_URI)
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


class TlsFiles(NamedTuple):
    """PEM files of a node: the settings tls_cert, tls_key and tls_ca."""

    certificate: str
    key: str
    authority: str


def make_contexts(files: TlsFiles) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a dialer and of a listener. ConfigError if the files cannot be used.

    Neither looks at host names; both ask for a certificate of the authority.
    """
    _check_readable("tls_cert", files.certificate)
    _check_private("tls_key", files.key)
    _check_readable("tls_ca", files.authority)
    client, server = (
        _context(protocol, files) for protocol in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)
    )
    return client, server


def shake_own_hand(
    client: ssl.SSLContext, server: ssl.SSLContext, files: TlsFiles
) -> dict[str, Any]:
    """Both sides in memory: the own certificate as a peer would see it. ConfigError says what any
    peer would find wrong with it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialer = client.wrap_bio(to_client, to_server)
    listener = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [dialer, listener]
    what = f"tls_cert {files.certificate}"
    try:
        for _ in range(_STEPS_MAX):
            waiting = [side for side in waiting if not _is_done(side)]
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            raise ConfigError(
                f"{what} (or its authority in {files.authority}) has expired"
            ) from error
        raise ConfigError(
            f"{what} would be refused by every peer with tls_ca {files.authority}:"
            f" {error.verify_message}"
        ) from error
    except ssl.SSLError as error:
        raise ConfigError(f"{what} does not work: {error}") from error
    assert not waiting, "a handshake in memory ends or fails"
    return dict(dialer.getpeercert() or {})


def uris_of(certificate: Mapping[str, Any], prefix: str) -> frozenset[str]:
    """What stands behind `prefix` in the URIs of a verified certificate."""
    return frozenset(
        name.removeprefix(prefix)
        for kind, name in certificate.get("subjectAltName", ())
        if kind == "URI" and name.startswith(prefix)
    )


def check_own(certificate: Mapping[str, Any], uri: str, files: TlsFiles) -> None:
    """ConfigError unless a node's own certificate has that URI; empty: any certificate will do."""
    uris = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "URI"]
    if uri and uri not in uris:
        raise ConfigError(
            f"tls_cert {files.certificate} names {', '.join(uris) or 'no node'}, not"
            f" this one: it needs the subjectAltName URI:{uri}"
        )


class Connected(Protocol):
    """A connection of asyncio or aiohttp, as far as it tells of its peer."""

    def get_extra_info(self, name: str, default: Any = None) -> Any: ...


def is_tls(connection: Connected) -> bool:
    return connection.get_extra_info("ssl_object") is not None


def check_broker(connection: Connected, *, group: str, replica_id: int | None) -> None:
    """PeerError if the peer comes by TLS and its certificate is not that broker's.

    `replica_id`: None: it has none yet, and any of the group will do.
    """
    if not is_tls(connection):
        return
    names = uris_of(connection.get_extra_info("peercert") or {}, BROKER_URI)
    is_any = replica_id is None and any(name.startswith(f"{group}/") for name in names)
    if not is_any and names.isdisjoint((group, f"{group}/{replica_id}")):
        who = group if replica_id is None else f"{group}/{replica_id}"
        raise PeerError(_another(names, f"broker {who}", f"{BROKER_URI}{group}"))


def check_controller(connection: Connected, controller_id: str) -> None:
    """PeerError if the peer answers by TLS and its certificate is not that controller's."""
    if not is_tls(connection):
        return
    names = uris_of(connection.get_extra_info("peercert") or {}, CONTROLLER_URI)
    if controller_id not in names:
        uri = f"{CONTROLLER_URI}{controller_id}"
        raise PeerError(_another(names, f"controller {controller_id}", uri))


def handshake_sentence(error: ssl.SSLError) -> str:
    """What went wrong between a node and its peer, whose fault it is, and what to do."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is refused: {error.verify_message}"
    if reason in _NO_TLS_AT_ALL:
        return "the peer does not speak TLS, this node does: see tls_mode of both"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the peer shows no certificate"
    words = reason.lower().replace("_", " ") or str(error)
    if "ALERT" in reason:
        return f"the peer refuses this node's certificate or TLS ({words}): see its log"
    return f"TLS failed: {words}"


def _another(names: frozenset[str], claimed: str, uri: str) -> str:
    listed = ", ".join(sorted(names)) or "no such node"
    return (
        f"the peer says that it is {claimed}, and its certificate names {listed}: it needs the"
        f" subjectAltName URI:{uri}"
    )


class SslOfNodes(ssl.SSLObject):
    """A connection for nodes: a certificate that was made for a client is refused, before anything
    is read."""

    def do_handshake(self) -> None:
        super().do_handshake()
        shown = self.getpeercert() or {}
        is_nodes = any(uris_of(shown, prefix) for prefix in _NODE_URIS)
        if uris_of(shown, CLIENT_URI) and not is_nodes:
            raise ssl.SSLError("a client's certificate does not serve between nodes")


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


def _check_private(setting: str, path: str) -> None:
    mode = stat.S_IMODE(_check_readable(setting, path).st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{setting} {path} has mode {mode:04o}, so others can read it; run: chmod 600 {path}"
        )


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key = files.certificate, files.key

    def refuse_password() -> str:
        raise ConfigError(f"tls_key {key} is encrypted: a node has nobody to ask")

    try:
        context.load_cert_chain(certificate, key, password=refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"tls_key {key} does not fit the certificate in tls_cert {certificate}"
            ) from error
        raise ConfigError(
            f"tls_cert {certificate} or tls_key {key} is no PEM file of its kind: {error}"
        ) from error
    try:
        context.load_verify_locations(cafile=files.authority)
    except ssl.SSLError as error:
        raise ConfigError(f"tls_ca {files.authority} holds no PEM certificates: {error}") from error
    return context


def _is_done(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
