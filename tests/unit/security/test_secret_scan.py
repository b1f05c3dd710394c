"""The scan of logs for secrets finds what it is for (tests/support/process/secrets.py)."""

from pathlib import Path

import orjson
import pytest
from tests.support.controller.harness import controllers
from tests.support.process.secrets import (
    found_in,
    kept_secrets,
    message_logs,
    told_files,
    told_secrets,
)

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


PLACES = (
    "c1/audit/0000000000000001.jsonl",
    "g1-b1/audit/0000000000000001.jsonl",
    "c1/raft/journal-0000000001",
    "c1/raft/snapshot",
    "g1-b1/security.json",
    "g1-b1/log/00000000000000000000",
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", [SECRET, b"sk_" + b"5e" * 32, b"a password that a test has made"])
def test_a_secret_on_the_disk_of_a_node_is_found(text: bytes, place: str, data_dir: Path) -> None:
    path = data_dir / place
    for each in PLACES:
        (data_dir / each).parent.mkdir(parents=True, exist_ok=True)
        (data_dir / each).touch()
    made = [("a password", b"a password that a test has made")]
    with path.open("wb") as file:
        file.write(b'{"user":"root"}\n')
        file.truncate(1 << 24)  # as files that are made ahead
    assert told_secrets(data_dir, {}, made=made) == []
    with path.open("r+b") as file:
        file.seek(1 << 23)
        file.write(b'{"why":"' + text + b'"}')

    assert told_secrets(data_dir, {}, made=made)


def test_the_places_that_are_scanned_are_those_of_nodes(tmp_path: Path) -> None:
    """What a real node keeps lies there: see tests/process/features/test_secrets.py, which fails
    where one of them is empty."""
    for place in PLACES:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(b"x")

    scanned = {name for name, _ in (*told_files(tmp_path), *message_logs(tmp_path))}

    assert scanned == set(PLACES)


async def test_what_controllers_keep_has_digests_and_what_is_encrypted() -> None:
    """The replicated state is in their journal's commands and in its snapshots alike."""
    secrets = {"root": "sk_" + "1f" * 32, "signs": "sk_" + "2e" * 32, "password": "correct horse"}
    journal: list[bytes] = []
    async with controllers() as cluster:
        cluster.leader.quorum.on_applied(
            lambda command, result, events, index: journal.append(orjson.dumps([command, result]))
        )
        await cluster.ask("PUT", "/v1/users/root", {"type": "Super", "new": True})
        keys = "/v1/users/root/keys"
        await cluster.ask("PUT", f"{keys}/key-root", {"secret_key": secrets["root"]})
        sealed = {"secret_key": secrets["signs"], "signs": True}
        assert (await cluster.ask("PUT", f"{keys}/key-signs", sealed))[0] < 300
        password = {"password": secrets["password"]}
        assert (await cluster.ask("PUT", "/v1/users/root/password", password))[0] < 300
        _, login = await cluster.ask("POST", "/v1/login", {"user": "root", **password})
        snapshot = cluster.leader.machine.snapshot()

    assert b"key-signs" in snapshot
    assert b"argon2" in snapshot
    assert any(b"key-signs" in entry for entry in journal)
    made = [(what, secret.encode()) for what, secret in secrets.items()]
    made.append(("a login", str(login["secret_key"]).encode()))
    texts = {f"entry {number}": entry for number, entry in enumerate(journal)}
    assert found_in({**texts, "the snapshot": snapshot}, made) == []


def test_a_line_of_a_private_key_is_found(data_dir: Path) -> None:
    keys = [secret for what, secret in kept_secrets(data_dir) if what == "a private key"]

    assert keys
    assert told_secrets(data_dir, {"stderr": b"lines " + keys[-1]})
