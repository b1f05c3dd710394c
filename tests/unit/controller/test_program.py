"""Configuration, data folder and what the program refuses with one sentence."""

import socket
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Authority

from paceline.errors import ConfigError
from paceline.platform.config import load
from paceline.platform.disk_real import RealDisk
from paceline_controller.app import main
from paceline_controller.config import ControllerConfig
from paceline_controller.data_folder import claim, join_cluster, lock_data_folder

FLAGS: dict[str, Any] = {
    "controller_id": "c1",
    "data_dir": "/tmp/none",
    "secret_file": "/tmp/none/secret",
    "peers": "c1=127.0.0.1:7801,c2=127.0.0.1:7802,c3=127.0.0.1:7803",
    "controllers": "127.0.0.1:7701,127.0.0.1:7702,127.0.0.1:7703",
    "listen": "127.0.0.1:7701",
}


def configured(**changes: Any) -> ControllerConfig:
    return load(ControllerConfig, process="controller", flags={**FLAGS, **changes})


def test_defaults_are_those_of_the_design() -> None:
    config = configured()

    assert config.heartbeat_timeout_ms == 1500
    assert config.group_settings().to_json()["min_in_sync_replicas"] == 2
    assert config.raft_address() == ("127.0.0.1", 7801)
    assert config.client_addresses() == {
        "c1": "127.0.0.1:7701",
        "c2": "127.0.0.1:7702",
        "c3": "127.0.0.1:7703",
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"controller_id": "c9"}, "peers does not name this controller"),
        ({"controller_id": "c 1"}, "must be 1 to 64"),
        ({"controller_id": "..", "peers": "..=127.0.0.1:7801"}, "controller_id '..' must be"),
        ({"peers": "c1=h:1,..=h:2"}, "must be name=host:port"),
        ({"cluster_name": "a/b"}, "cluster_name"),
        ({"cluster_name": ".."}, "cluster_name '..' must be 1 to 127 of"),
        ({"data_dir": ""}, "data_dir must be set"),
        ({"peers": "c1"}, "must be name=host:port"),
        ({"peers": "c1=h:1,c1=h:2"}, "names c1 twice"),
        ({"controllers": "127.0.0.1:7701"}, "same controllers in both"),
        ({"controllers": "a,b,c"}, "^controllers: 'a' is not an address"),
        ({"min_in_sync_replicas": "4"}, "must not be above total_replicas"),
        ({"listen": "0.0.0.0:7701"}, "not a loopback address and TLS is not enforced"),
        ({"raft_listen": "0.0.0.0:7801"}, "raft_listen .* not a loopback .*: set tls_mode = enf"),
        ({"tls_cert": "c1.pem"}, "tls_mode is disabled, so .* must not be set"),
        ({"tls_mode": "permissive", "tls_key": "k"}, "tls_mode is permissive, so .* all be set"),
        ({"durability": "hope"}, "must be one of fsync, memory"),
        ({"heartbeat_timeout_ms": "10"}, "the least is 300"),
    ],
)
def test_a_contradictory_setting_is_refused_with_a_sentence(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        configured(**changes)


def test_both_listeners_are_protected_by_tls_that_is_enforced() -> None:
    both = {"listen": "0.0.0.0:7701", "raft_listen": "0.0.0.0:7801"}
    files = {"tls_cert": "c1.pem", "tls_key": "c1.key", "tls_ca": "ca.pem"}

    assert configured(**both, **files, tls_mode="enforcing").is_closed
    with pytest.raises(ConfigError, match="listen .* and TLS is not enforced: set"):
        configured(**both, **files, tls_mode="preferred")


@pytest.mark.parametrize("part", ["cert", "key", "ca"])
def test_a_setting_of_before_names_the_one_that_counts_now(
    part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = tmp_path / "old.toml"
    toml.write_text(f'raft_tls_{part} = "c1.pem"\n')

    last = refusal(["--config", str(toml)], capsys)
    assert f"raft_tls_{part} is no setting any more: use tls_{part} in its place" in last
    last = refusal([*arguments(tmp_path), f"--raft-tls-{part}", "c1.pem"], capsys)
    assert f"--raft-tls-{part} is no setting any more: use --tls-{part} in its place" in last
    variable = {f"PACELINE_CONTROLLER_RAFT_TLS_{part.upper()}": "c1.pem"}
    with pytest.raises(ConfigError, match=f"use PACELINE_CONTROLLER_TLS_{part.upper()} in its"):
        load(ControllerConfig, process="controller", environment=variable)


def test_a_listener_that_others_reach_is_closed_unless_it_is_said_to_be_open() -> None:
    files = {"tls_cert": "c1.pem", "tls_key": "c1.key", "tls_ca": "ca.pem"}
    tls = {"tls_mode": "enforcing", **files}

    assert not configured().is_closed
    assert configured(listen="0.0.0.0:7701", **tls).is_closed
    assert not configured(listen="0.0.0.0:7701", insecure="true").is_closed
    with pytest.raises(ConfigError, match=r"users and rights are on then.* insecure = true"):
        configured(listen="0.0.0.0:7701")


def test_a_data_folder_keeps_its_identity(tmp_path: Path) -> None:
    disk, folder = RealDisk(), str(tmp_path)
    first = claim(disk, folder, controller_id="c1", cluster_name="paceline")
    join_cluster(disk, folder, first, "abc")

    again = claim(disk, folder, controller_id="c1", cluster_name="paceline")

    assert again.cluster_id == "abc"


@pytest.mark.parametrize(
    ("controller_id", "cluster_name", "sentence"),
    [
        ("c2", "paceline", "belongs to controller c1"),
        ("c1", "other", "belongs to cluster paceline"),
    ],
)
def test_a_data_folder_of_another_is_refused(
    tmp_path: Path, controller_id: str, cluster_name: str, sentence: str
) -> None:
    disk, folder = RealDisk(), str(tmp_path)
    claim(disk, folder, controller_id="c1", cluster_name="paceline")

    with pytest.raises(ConfigError, match=sentence):
        claim(disk, folder, controller_id=controller_id, cluster_name=cluster_name)


def test_a_damaged_identity_is_refused(tmp_path: Path) -> None:
    (tmp_path / "controller.json").write_bytes(b"{")

    with pytest.raises(ConfigError, match="is damaged"):
        claim(RealDisk(), str(tmp_path), controller_id="c1", cluster_name="paceline")


def arguments(tmp_path: Path, **changes: str) -> list[str]:
    secret = tmp_path / "secret"
    if not secret.exists():
        secret.write_text("a secret of more than 16 bytes")
        secret.chmod(0o600)
    flags = {
        **FLAGS,
        "data_dir": str(tmp_path / "c1"),
        "secret_file": str(secret),
        **changes,
    }
    return [part for key, value in flags.items() for part in (f"--{key.replace('_', '-')}", value)]


def refusal(given: list[str], capsys: pytest.CaptureFixture[str], *, code: int = 2) -> str:
    """The program's last line, after it has ended with the exit code."""
    assert main(given) == code
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_locked_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = lock_data_folder(RealDisk(), str(tmp_path / "c1"))

    last = refusal(arguments(tmp_path), capsys)

    lock.close()
    assert "cannot use the data folder" in last


def test_a_folder_of_another_controller_ends_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim_folder = str(tmp_path / "c1")
    RealDisk().make_folder(claim_folder)
    claim(RealDisk(), claim_folder, controller_id="c7", cluster_name="paceline")

    assert "belongs to controller c7" in refusal(arguments(tmp_path), capsys)


def test_an_unknown_setting_and_a_missing_secret_end_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(tmp_path)

    assert "--colour" in refusal([*given, "--colour", "red"], capsys)
    assert "secret" in refusal(arguments(tmp_path, secret_file="/nowhere"), capsys)


def test_tls_files_are_checked_before_the_folder_is_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = Authority(tmp_path / "certificates").issue("c2")
    given = {
        "tls_mode": "enforcing",
        "tls_cert": files.certificate,
        "tls_key": files.key,
    }

    last = refusal(arguments(tmp_path, **given, tls_ca=str(tmp_path / "none")), capsys)
    assert f"cannot read tls_ca {tmp_path}/none: No such file" in last

    last = refusal(arguments(tmp_path, **given, tls_ca=files.authority), capsys)
    assert "names no node, not this one: it needs the subjectAltName URI:" in last
    assert not (tmp_path / "c1").exists()


@pytest.mark.parametrize("busy", ["listen", "peers"])
def test_a_port_in_use_ends_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], busy: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        changes = {"listen": "127.0.0.1:0", "peers": "c1=127.0.0.1:0", "controllers": "127.0.0.1:1"}
        changes[busy] = taken if busy == "listen" else f"c1={taken}"

        last = refusal(arguments(tmp_path, **changes), capsys)

    assert taken in last
    assert "cannot listen" in last
