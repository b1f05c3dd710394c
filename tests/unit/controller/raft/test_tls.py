"""What a controller says at its start about TLS files, and whom a certificate names."""

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.support.certificates import Authority, Files

from paceline.errors import ConfigError, PeerError
from paceline.platform.address import Address
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import ManualClock, SeededRandom
from paceline.platform.secret import ClusterSecrets
from paceline.types import ControllerId
from paceline_controller.app import build_node
from paceline_controller.config import ControllerConfig
from paceline_controller.data_folder import FolderIdentity
from paceline_controller.raft.peers.tls import (
    Tls,
    certified_ids,
    check_certificate,
    is_tls_record,
    open_tls,
)

C1 = ControllerId("c1")


def opened(files: Files, **changes: str) -> Tls:
    return open_tls(**{**files.arguments(), **changes}, controller_id=C1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> Files:
    return authority.issue("c1")


def test_good_files_are_taken(files: Files) -> None:
    assert opened(files).expires.endswith("GMT")


async def test_metrics_say_how_long_the_loaded_certificate_is_good(
    files: Files, tmp_path: Path
) -> None:
    clock = ManualClock()
    tls = opened(files)
    node = build_node(
        ControllerConfig(
            controller_id=C1,
            data_dir=str(tmp_path),
            secret_file="none",
            peers=("c1=127.0.0.1:7720",),
            controllers=("127.0.0.1:7700",),
            listen=Address("127.0.0.1", 7700),
        ),
        disk=MemoryDisk(),
        clock=clock,
        random=SeededRandom("tls"),
        secrets=ClusterSecrets(b"s" * 16),
        identity=FolderIdentity(controller_id=C1, cluster_name="paceline", cluster_id=None),
        tls=tls,
    )
    clock.step_wall(tls.expires_unix_ms - 60_000 - clock.unix_ms())

    text = node.metrics.metrics.exposition()[0].decode()

    (told,) = (line for line in text.splitlines() if line.startswith("paceline_tls_certificate"))
    assert 'use="raft"' in told
    assert told.endswith(" 60.0")


def test_other_files_are_taken_if_they_are_good(authority: Authority, files: Files) -> None:
    tls = opened(files)
    before = tls.client

    assert not tls.reload(), "nothing has changed"
    authority.issue("c2")  # into the same files
    assert not tls.reload()
    assert tls.client is before, "another controller's certificate"
    authority.issue("c1")
    assert tls.reload()
    assert tls.client is not before


def test_a_uri_names_a_controller_too(authority: Authority) -> None:
    assert opened(authority.issue_uri("paceline:controller/c1", "host.example")).expires


def test_a_uri_is_the_only_name_where_there_is_one(authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"names 'c2', not this controller: .*URI:.*/c1 or DNS"):
        opened(authority.issue_uri("paceline:controller/c2", "c1"))


def test_uris_of_other_kinds_and_common_names_count_for_nothing(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="names no controller, not this controller"):
        opened(authority.issue_uri("spiffe://c1"))
    with pytest.raises(ConfigError, match=r"names 'host\.example', not this"):
        opened(authority.issue("host.example", common_name="c1"))


@pytest.mark.parametrize(
    ("argument", "setting"),
    [("certificate", "raft_tls_cert"), ("key", "raft_tls_key"), ("authority", "raft_tls_ca")],
)
def test_a_file_that_is_missing_or_none_is_named(
    files: Files, tmp_path: Path, argument: str, setting: str
) -> None:
    with pytest.raises(ConfigError, match=rf"cannot read {setting} .*/none: No such file"):
        opened(files, **{argument: str(tmp_path / "none")})
    with pytest.raises(ConfigError, match=rf"{setting} .* is not a regular file"):
        opened(files, **{argument: str(tmp_path)})


def test_a_file_that_may_not_be_read_is_named(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refuse)  # root, as whom tests may run, reads everything
    with pytest.raises(ConfigError, match="cannot read raft_tls_cert .*: Permission denied"):
        opened(files)


def test_a_key_that_others_can_read_is_refused(files: Files) -> None:
    Path(files.key).chmod(0o640)
    with pytest.raises(ConfigError, match=r"raft_tls_key .* has mode 0640, .*: chmod 600 "):
        opened(files)


def test_a_key_of_another_certificate_is_refused(files: Files, authority: Authority) -> None:
    other = authority.issue("c1", file="other")
    with pytest.raises(ConfigError, match=r"raft_tls_key .*other\.key does not fit the cert"):
        opened(files, key=other.key)


def test_an_encrypted_key_asks_nobody(files: Files) -> None:
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    Path(files.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(ConfigError, match="is encrypted: a node has nobody to ask"):
        opened(files)


def test_an_expired_certificate_is_refused(authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"raft_tls_cert .* has expired"):
        opened(authority.issue("c1", is_expired=True))


def test_a_certificate_of_another_authority_is_refused(files: Files, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"refused by every peer with raft_tls_ca .*local issuer"):
        opened(files, authority=other.path)


def test_files_that_are_no_pem_are_refused(files: Files, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("nothing of the kind")
    with pytest.raises(ConfigError, match=r"raft_tls_cert .*text or raft_tls_key .* no PEM file"):
        opened(files, certificate=str(text))
    with pytest.raises(ConfigError, match=r"raft_tls_ca .*text holds no PEM certificates"):
        opened(files, authority=str(text))


def test_a_peer_must_be_named_exactly() -> None:
    certificate = {"subjectAltName": (("DNS", "c1"), ("DNS", "*.example"))}
    assert certified_ids(certificate) == {"c1", "*.example"}
    check_certificate(certificate, "c1")
    for peer in ("C1", "c11", "a.example"):
        with pytest.raises(PeerError, match=f"names .*, not controller '{peer}'"):
            check_certificate(certificate, peer)
    with pytest.raises(PeerError, match="names no controller"):
        check_certificate(None, "c1")


def test_no_length_of_a_handshake_looks_like_tls() -> None:
    assert is_tls_record(b"\x16\x03\x01\x02")
    assert is_tls_record(b"\x15\x03\x03\x00")
    assert not is_tls_record((0x0316).to_bytes(4, "little")[:1])
    assert not any(is_tls_record(length.to_bytes(4, "little")) for length in range(1, 0x0314))
