"""What a node says at its start about TLS files, and whom a certificate names."""

import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from tests.support.certificates import Authority, Files

from paceline.errors import ConfigError, PeerError
from paceline.platform.address import Address
from paceline.platform.runtime import ManualClock, SystemClock
from paceline.platform.telemetry import Metrics
from paceline.security.authority import Authority as OwnAuthority
from paceline.security.certificates import check_controller
from paceline.security.node_settings import NodeSettings
from paceline.security.node_tls import NodeTls, open_node_tls, register_tls

OWN = "URI:paceline:controller/c1"


def opened(files: Files, *, own_uri: str = "", **changes: str) -> NodeTls:
    given = {**files.arguments(), **changes}
    settings = NodeSettings(
        listen=Address("127.0.0.1", 7700),
        secret_file="none",
        tls_mode="enforcing",
        tls_cert=given["certificate"],
        tls_key=given["key"],
        tls_ca=given["authority"],
    )
    tls = open_node_tls(settings, own_uri=own_uri)
    assert tls is not None
    return tls


def issued(folder: Path, *names: str) -> Files:
    """Of paceline's own authority in that folder, always into the same files."""
    authority = OwnAuthority(folder)
    now_ms = SystemClock().unix_ms()
    if not authority.certificate.exists():
        authority.init(common_name="test", now_unix_ms=now_ms)
    authority.issue("node", names, now_unix_ms=now_ms)
    certificate, key = authority.paths("node")
    return Files(str(certificate), str(key), str(authority.certificate))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> Files:
    return authority.issue("c1")


def test_metrics_say_how_long_the_loaded_certificate_is_good(files: Files) -> None:
    clock, tls = ManualClock(), opened(files)
    metrics = Metrics(cluster="paceline", node_type="controller", node_id="c1")
    register_tls(metrics, tls, clock)
    clock.step_wall(tls.expires_unix_ms - 60_000 - clock.unix_ms())

    lines = metrics.exposition()[0].decode().splitlines()

    (told,) = (line for line in lines if line.startswith("paceline_tls_listener_certificate"))
    assert told.endswith(" 60.0")


def test_other_files_are_taken_if_they_name_this_node(tmp_path: Path) -> None:
    tls = opened(issued(tmp_path, OWN), own_uri="paceline:controller/c1")
    before = tls.client

    assert not tls.reload(), "nothing has changed"
    issued(tmp_path, "URI:paceline:controller/c2")
    assert not tls.reload()
    assert tls.client is before, "another controller's certificate"
    issued(tmp_path, OWN, "127.0.0.1")
    assert tls.reload()
    assert tls.client is not before


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (("URI:paceline:controller/c2", "c1"), "paceline:controller/c2"),
        (("URI:paceline:controller/c11",), "paceline:controller/c11"),
        (("URI:paceline:controller/C1",), "paceline:controller/C1"),
        (("URI:paceline:broker/c1",), "paceline:broker/c1"),
        (("URI:spiffe://c1",), "spiffe://c1"),
        (("c1",), "no node"),
    ],
)
def test_a_node_starts_with_a_certificate_that_names_it_and_no_other(
    names: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    files = issued(tmp_path, *names)

    with pytest.raises(ConfigError, match=f"names {named}, not this one: it needs the .*{OWN}$"):
        opened(files, own_uri="paceline:controller/c1")


@pytest.mark.parametrize(
    ("argument", "setting"),
    [("certificate", "tls_cert"), ("key", "tls_key"), ("authority", "tls_ca")],
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
    with pytest.raises(ConfigError, match="cannot read tls_cert .*: Permission denied"):
        opened(files)


def test_a_key_that_others_can_read_is_refused(files: Files) -> None:
    Path(files.key).chmod(0o640)
    with pytest.raises(ConfigError, match=r"tls_key .* has mode 0640, .*: chmod 600 "):
        opened(files)


def test_a_key_of_another_certificate_is_refused(files: Files, authority: Authority) -> None:
    other = authority.issue("c1", file="other")
    with pytest.raises(ConfigError, match=r"tls_key .*other\.key does not fit the cert"):
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
    with pytest.raises(ConfigError, match=r"tls_cert .* has expired"):
        opened(authority.issue("c1", is_expired=True))


def test_a_certificate_of_another_authority_is_refused(files: Files, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"refused by every peer with tls_ca .*local issuer"):
        opened(files, authority=other.path)


def test_files_that_are_no_pem_are_refused(files: Files, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("nothing of the kind")
    with pytest.raises(ConfigError, match=r"tls_cert .*text or tls_key .* no PEM file"):
        opened(files, certificate=str(text))
    with pytest.raises(ConfigError, match=r"tls_ca .*text holds no PEM certificates"):
        opened(files, authority=str(text))


class Peer:
    """A connection by TLS, as far as `check_controller` looks at it."""

    def __init__(self, *names: tuple[str, str]) -> None:
        self._told = {"ssl_object": object(), "peercert": {"subjectAltName": names}}

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._told.get(name, default)


def test_a_controller_must_be_named_exactly_and_by_its_uri() -> None:
    uri = "paceline:controller/"
    check_controller(Peer(("URI", f"{uri}c1")), "c1")
    for peer in ("C1", "c11", "a.example"):
        with pytest.raises(PeerError, match=f"it is controller {peer}, and its certificate names"):
            check_controller(Peer(("URI", f"{uri}c1"), ("DNS", peer)), peer)
    with pytest.raises(PeerError, match="names no such node"):
        check_controller(Peer(("DNS", "c1"), ("URI", "paceline:broker/c1")), "c1")
