"""`paceline tls`: an authority and its certificates in a folder."""

import ssl
import stat
from pathlib import Path

import orjson
import pytest
from tests.unit.client.cli.conftest import run_command


def test_an_authority_issues_shows_and_renews(tmp_path: Path) -> None:
    folder = str(tmp_path / "tls")
    made = run_command("tls", "init", "--dir", folder)
    issued = run_command(
        "tls",
        "issue",
        "b1",
        "--host",
        "b1.example.test",
        "--host",
        "10.0.0.1",
        "--broker",
        "g1",
        "--broker",
        "g2",
        "--dir",
        folder,
        "--days",
        "30",
    )

    assert (made.exit_code, issued.exit_code) == (0, 0), issued.stderr
    assert "authority" in made.stdout
    names = "DNS:b1.example.test, IP:10.0.0.1, URI:paceline:broker/g1, URI:paceline:broker/g2"
    assert names in issued.stdout
    assert "in 30 days" in issued.stdout or "in 29 days" in issued.stdout
    key, certificate = tmp_path / "tls" / "b1.key", tmp_path / "tls" / "b1.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    context = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.pem")
    context.load_cert_chain(certificate, key)
    before = certificate.read_bytes()
    renewed = run_command("tls", "renew", "b1", "--dir", folder, "--json")
    assert orjson.loads(renewed.stdout)["names"] == names.split(", ")
    assert certificate.read_bytes() != before
    shown = run_command("tls", "show", str(certificate), str(tmp_path / "tls" / "ca.pem"))
    assert len(shown.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["issue", "b1", "--host", "b1.test"], "cannot read the certificate"),
        (["issue", "b1"], "give --host"),
        (["renew", "b1"], "cannot read the certificate"),
        (["show", "nothing.pem"], "cannot read the certificate nothing.pem"),
    ],
)
def test_wrong_input_is_told(arguments: list[str], said: str, tmp_path: Path) -> None:
    more = [] if arguments[0] == "show" else ["--dir", str(tmp_path)]

    outcome = run_command("tls", *arguments, *more)

    assert outcome.exit_code == 2
    assert said in outcome.stderr


def test_an_authority_is_made_once_and_is_no_node(tmp_path: Path) -> None:
    run_command("tls", "init", "--dir", str(tmp_path))

    again = run_command("tls", "init", "--dir", str(tmp_path))
    over = run_command("tls", "issue", "ca", "--host", "a.test", "--dir", str(tmp_path))

    assert "an authority is made once" in again.stderr
    assert "choose another name" in over.stderr
