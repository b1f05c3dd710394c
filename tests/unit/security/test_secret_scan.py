"""The scan of logs for secrets finds what it is for (tests/support/process/secrets.py)."""

from pathlib import Path

import pytest
from tests.support.process.secrets import kept_secrets, told_secrets

from paceline.platform.runtime import SystemClock
from paceline.security.authority import Authority

SECRET = b"0123456789abcdef" * 4


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "cluster-secret").write_bytes(SECRET + b"\n")
    (tmp_path / "tls").mkdir()
    authority = Authority(tmp_path / "tls")
    authority.init(common_name="test", now_unix_ms=SystemClock().unix_ms())
    return tmp_path


def test_what_a_healthy_cluster_says_is_no_secret(data_dir: Path) -> None:
    (data_dir / "logs" / "c1.log").write_text(
        '{"event":"refused","user":"ana","access_key":"pk0123","disk_maximum_used_space_ratio":1}\n'
        "the secret is in /data/cluster-secret; show an access key: Authorization: Bearer KEY\n"
    )

    assert told_secrets(data_dir, {"stderr": b""}) == []


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        b"sk_" + b"5e" * 32,
        b"Authorization: Bearer pk0123456789.sk-anything",
        b"authorization: basic abcdef=",
        b"-----BEGIN EC PRIVATE KEY-----",
        b"c1 " + b"0" * 32 + b" " + b"1" * 64,
    ],
)
@pytest.mark.parametrize("where", ["log", "other"])
def test_a_secret_is_found(text: bytes, where: str, data_dir: Path) -> None:
    said = b'{"event":"x","why":"' + text + b'"}'
    (data_dir / "logs" / "c1.log").write_bytes(said if where == "log" else b"")

    assert told_secrets(data_dir, {"the command line of 7": said if where == "other" else b""})


def test_a_line_of_a_private_key_is_found(data_dir: Path) -> None:
    keys = [secret for what, secret in kept_secrets(data_dir) if what == "a private key"]

    assert keys
    assert told_secrets(data_dir, {"stderr": b"lines " + keys[-1]})
