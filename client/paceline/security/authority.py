"""A small certificate authority, for clusters whose operators have none.

One folder: `ca.pem` and `ca.key`, and `NAME.pem` with `NAME.key` for each node or client. Keys are
on the curve P-256 and in files of mode 0600. Only `paceline tls` and `paceline up --tls` need it.
"""

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from paceline.errors import ConfigError

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 397
"""What browsers take at most."""
_SKEW = timedelta(minutes=5)
"""Certificates count from so long before: clocks differ."""
_CA = "ca"


class Shown(NamedTuple):
    """What people want to know of a certificate."""

    subject: str
    names: tuple[str, ...]
    """As `DNS:...`, `IP:...`, `URI:...`."""
    begins_unix_ms: int
    ends_unix_ms: int
    is_authority: bool


class Authority:
    """The authority in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def certificate(self) -> Path:
        return self._folder / f"{_CA}.pem"

    def paths(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of what was issued under that name."""
        return self._folder / f"{name}.pem", self._folder / f"{name}.key"

    def init(self, *, common_name: str, now_unix_ms: int, days: int = AUTHORITY_DAYS) -> Path:
        """Make the authority. ConfigError if there is one."""
        if self.certificate.exists():
            raise ConfigError(f"{self.certificate} exists: an authority is made once")
        key, subject = ec.generate_private_key(ec.SECP256R1()), _name(common_name)
        made = (
            _builder(subject, subject, key.public_key(), now_unix_ms, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        self._write(_CA, made, key)
        return self.certificate

    def issue(
        self, name: str, names: tuple[str, ...], *, now_unix_ms: int, days: int = CERTIFICATE_DAYS
    ) -> Path:
        """A certificate for a node or client, for both ends of a connection; in place of one of
        before. `names`: host names, addresses, or `URI:...`. ConfigError."""
        if name == _CA:
            raise ConfigError(f"{_CA} is the authority itself; choose another name")
        issuer, signer = self._own()
        key = ec.generate_private_key(ec.SECP256R1())
        made = (
            _builder(_name(name), issuer.subject, key.public_key(), now_unix_ms, days)
            .add_extension(x509.SubjectAlternativeName([_general(each) for each in names]), False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
            )
            .sign(signer, hashes.SHA256())
        )
        self._write(name, made, key)
        return self.paths(name)[0]

    def renew(self, name: str, *, now_unix_ms: int, days: int = CERTIFICATE_DAYS) -> Path:
        """The same once more, with a new key. ConfigError: nothing was issued under that name."""
        found = show(self.paths(name)[0])
        names = tuple(_asked(each) for each in found.names)
        return self.issue(name, names, now_unix_ms=now_unix_ms, days=days)

    def _own(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        path, key_path = self.paths(_CA)
        certificate = _read(path)
        try:
            key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"cannot read the authority's key {key_path}: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{key_path} is no key that `paceline tls init` made")
        return certificate, key

    def _write(
        self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        path, key_path = self.paths(name)
        encoded = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The key first: who reads between the two finds a pair that does not fit, and waits.
        for target, content, mode in (
            (key_path, encoded, 0o600),
            (path, certificate.public_bytes(serialization.Encoding.PEM), 0o644),
        ):
            beside = target.with_name(f".{target.name}.new")
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            beside.replace(target)


def show(path: Path) -> Shown:
    """What a certificate says. ConfigError."""
    certificate = _read(path)
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = tuple(_text(each) for each in extension.value)
    except x509.ExtensionNotFound:
        names = ()
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        basic = False
    return Shown(
        subject=certificate.subject.rfc4514_string(),
        names=names,
        begins_unix_ms=int(certificate.not_valid_before_utc.timestamp() * 1000),
        ends_unix_ms=int(certificate.not_valid_after_utc.timestamp() * 1000),
        is_authority=basic,
    )


def _read(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the certificate {path}: {error}") from error


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now_unix_ms: int,
    days: int,
) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(now_unix_ms / 1000, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    except ValueError as error:
        raise ConfigError(f"{common_name!r} is no name for a certificate: {error}") from error


def _general(text: str) -> x509.GeneralName:
    if text.startswith("URI:"):
        return x509.UniformResourceIdentifier(text.removeprefix("URI:"))
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is neither a host name nor an address: {error}") from error


def _text(name: x509.GeneralName) -> str:
    match name:
        case x509.UniformResourceIdentifier():
            return f"URI:{name.value}"
        case x509.IPAddress():
            return f"IP:{name.value}"
        case x509.DNSName():
            return f"DNS:{name.value}"
    return str(name.value)


def _asked(text: str) -> str:
    """As `issue` takes what `show` tells."""
    return text if text.startswith("URI:") else text.partition(":")[2]
