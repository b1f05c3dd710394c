"""Certificates for tests: an authority of their own, and files as an operator would keep them."""

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme

NOW = datetime.datetime.now(datetime.UTC)  # noqa: DTZ005, TID251  # certificates know no other clock
PAST = NOW - datetime.timedelta(days=2)


@dataclass(frozen=True)
class Files:
    """Paths of a node's tls_cert, tls_key and tls_ca."""

    certificate: str
    key: str
    authority: str

    def arguments(self) -> dict[str, str]:
        return {"certificate": self.certificate, "key": self.key, "authority": self.authority}


class Authority:
    """Signs certificates and writes them into a folder."""

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

    def _write(self, file: str, chain: bytes, key: bytes) -> Files:
        certificate_path, key_path = self.folder / f"{file}.pem", self.folder / f"{file}.key"
        certificate_path.write_bytes(chain)
        key_path.write_bytes(key)
        key_path.chmod(0o600)
        return Files(str(certificate_path), str(key_path), self.path)
