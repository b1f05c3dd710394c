"""Certificates for tests: an authority of their own, and files as an operator would keep them."""

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)  # noqa: DTZ005, TID251  # certificates know no other clock
PAST = NOW - datetime.timedelta(days=2)


@dataclass(frozen=True)
class Files:
    """Paths of one controller's raft_tls_cert, raft_tls_key and raft_tls_ca."""

    certificate: str
    key: str
    authority: str

    def arguments(self) -> dict[str, str]:
        return {"certificate": self.certificate, "key": self.key, "authority": self.authority}


class Authority:
    """Signs certificates of controllers and writes them into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self.path = str(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.path)

    def issue(
        self,
        *names: str,
        file: str = "node",
        common_name: str | None = None,
        is_expired: bool = False,
    ) -> Files:
        """For DNS names."""
        made = self._ca.issue_cert(
            *names,
            common_name=common_name,
            not_before=PAST - datetime.timedelta(days=1) if is_expired else None,
            not_after=PAST if is_expired else None,
        )
        chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
        return self._write(file, chain, made.private_key_pem.bytes())

    def issue_uri(self, uri: str, *names: str, file: str = "node") -> Files:
        """For a URI, and DNS names beside it."""
        signer = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        issuer = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes()).subject
        key = ec.generate_private_key(ec.SECP256R1())
        other = [x509.UniformResourceIdentifier(uri), *(x509.DNSName(name) for name in names)]
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "controller")]))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(PAST)
            .not_valid_after(NOW + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName(other), critical=False)
            .sign(signer, hashes.SHA256())
        )
        encoded = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return self._write(file, made.public_bytes(serialization.Encoding.PEM), encoded)

    def _write(self, file: str, chain: bytes, key: bytes) -> Files:
        certificate_path, key_path = self.folder / f"{file}.pem", self.folder / f"{file}.key"
        certificate_path.write_bytes(chain)
        key_path.write_bytes(key)
        key_path.chmod(0o600)
        return Files(str(certificate_path), str(key_path), self.path)
