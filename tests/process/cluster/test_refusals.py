"""Processes that must not start: exit code 2, and one sentence that says what and what to do.

The last line on stderr is the sentence (log lines may stand before it); nothing follows it, and
there is no traceback.
"""

import asyncio
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import orjson
import pytest
from tests.support.process.harness import (
    RunningCluster,
    end_with_parent,
    paceline_command,
    running_cluster,
)
from tests.support.process.load import WORKERS, reach, settled, under_load

from paceline.platform.sealed import seal, unseal

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(60),
    pytest.mark.xdist_group("refusals"),
]

START_TIMEOUT_S = 20
PROGRAMS = {"broker": "paceline_broker.app", "controller": "paceline_controller.app"}


@dataclass(frozen=True)
class Site:
    """A running cluster ("ours") and the stopped folders of another one ("theirs")."""

    ours: RunningCluster
    theirs: Path

    def settings(self, name: str) -> dict[str, Any]:
        """The configuration of a node of ours, to be changed."""
        return tomllib.loads((self.ours.data_dir / f"{name}.toml").read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    theirs = tmp_path_factory.mktemp("theirs") / "data"
    small = ("--controllers", "1", "--brokers", "1")
    with running_cluster(theirs, *small) as cluster, asyncio.Runner() as runner:
        runner.run(fill(cluster))
    with running_cluster(tmp_path_factory.mktemp("ours") / "data", *small) as ours:
        yield Site(ours, theirs)


async def fill(cluster: RunningCluster) -> None:
    async with under_load(cluster, "orders") as load:
        await reach(load, WORKERS)
    await settled(cluster)


def refusal(program: str, config: Path, *arguments: str) -> str:
    """Run a node program that must refuse; its sentence."""
    command = [sys.executable, "-c", _RUN.format(PROGRAMS[program]), "--config", str(config)]
    return refused([*command, *arguments])


_RUN = "import sys; from {} import main; sys.exit(main(sys.argv[1:]))"


def refused(command: list[str]) -> str:
    """The last line of stderr of a command that ends with 2."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=end_with_parent,
    )
    try:
        _, said = process.communicate(timeout=START_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        _, said = process.communicate()
        raise AssertionError(f"it goes on running: {said.decode()[-3000:]}") from None
    lines = said.decode().splitlines()
    assert process.returncode == 2, said.decode()
    assert "Traceback" not in said.decode(), said.decode()
    before = [line for line in lines[:-1] if not line.startswith("{")]
    assert not before, f"more than log lines and one sentence: {before}"
    sentence = lines[-1]
    assert re.match(r"(paceline(-broker|-controller)?|Error): \S", sentence), sentence
    return sentence


def written(path: Path, settings: dict[str, Any]) -> Path:
    """A TOML file with these settings."""
    lines = [f"{key} = {orjson.dumps(value).decode()}\n" for key, value in settings.items()]
    path.write_text("".join(lines))
    return path


def a_broker(site: Site, tmp_path: Path, **changes: Any) -> Path:
    """The configuration of one more broker of ours, on free ports and an empty folder."""
    settings = site.settings("g1-b1")
    settings["data_dir"] = str(tmp_path / "store")
    settings["listen"] = settings["replication_listen"] = "127.0.0.1:0"
    settings.update(changes)
    return written(tmp_path / "broker.toml", settings)


def a_controller(site: Site, tmp_path: Path, **changes: Any) -> Path:
    """The configuration of a controller like ours, on free ports and an empty folder."""
    settings = site.settings("c1")
    settings["data_dir"] = str(tmp_path / "store")
    settings["listen"] = "127.0.0.1:0"
    settings["peers"] = ["c1=127.0.0.1:0"]
    settings.update(changes)
    return written(tmp_path / "controller.toml", settings)


def has_words(sentence: str, *words: str) -> bool:
    missing = [word for word in words if word not in sentence]
    assert not missing, (missing, sentence)
    return True


# -- data of another ------------------------------------------------------------------------------


def test_broker_with_another_clusters_data_is_refused(site: Site, tmp_path: Path) -> None:
    copytree(site.theirs / "g1-b1", tmp_path / "store")

    sentence = refusal("broker", a_broker(site, tmp_path))

    assert has_words(sentence, "belongs to cluster")


def test_broker_with_data_of_another_group_is_refused(site: Site, tmp_path: Path) -> None:
    copytree(site.theirs / "g1-b1", tmp_path / "store")

    sentence = refusal("broker", a_broker(site, tmp_path, group="g2"))

    assert has_words(sentence, "'g1'", "'g2'", "data_dir")


def test_broker_with_a_replica_id_of_another_store_is_refused(site: Site, tmp_path: Path) -> None:
    copytree(site.ours.data_dir / "g1-b1", tmp_path / "store")
    path = tmp_path / "store" / "identity.json"
    path.write_bytes(seal({**unseal(path.read_bytes()), "replica_id": 7}))

    sentence = refusal("broker", a_broker(site, tmp_path))

    assert has_words(sentence, "replica 7")


def test_broker_with_records_of_a_forgotten_cluster_is_refused(site: Site, tmp_path: Path) -> None:
    """R18: a store with records never founds or joins a group under a new identity."""
    copytree(site.theirs / "g1-b1", tmp_path / "store")
    path = tmp_path / "store" / "identity.json"
    identity = unseal(path.read_bytes())
    path.write_bytes(seal({**identity, "cluster_id": None, "replica_id": None}))

    sentence = refusal("broker", a_broker(site, tmp_path))

    assert has_words(sentence, "refused")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"controller_id": "c2", "peers": ["c2=127.0.0.1:0"]}, ("c1", "c2", "belongs")),
        ({"cluster_name": "another"}, ("paceline", "another", "belongs")),
    ],
)
def test_controller_with_data_of_another_is_refused(
    site: Site, tmp_path: Path, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    copytree(site.theirs / "c1", tmp_path / "store")

    sentence = refusal("controller", a_controller(site, tmp_path, **changes))

    assert has_words(sentence, *words)


@pytest.mark.parametrize("name", ["identity.json", "epoch.json"])
def test_broker_whose_small_files_are_damaged_is_refused(
    site: Site, tmp_path: Path, name: str
) -> None:
    copytree(site.theirs / "g1-b1", tmp_path / "store")
    for twin in (name, f"{name}.copy"):
        (tmp_path / "store" / twin).write_bytes(b'{"store_id": "x')

    assert has_words(refusal("broker", a_broker(site, tmp_path)), name, "damaged")


def test_controller_whose_identity_is_damaged_is_refused(site: Site, tmp_path: Path) -> None:
    copytree(site.theirs / "c1", tmp_path / "store")
    (tmp_path / "store" / "controller.json").write_bytes(b"[")

    sentence = refusal("controller", a_controller(site, tmp_path))

    assert has_words(sentence, "controller.json", "damaged")


# -- folders and files ----------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["broker", "controller"])
def test_locked_folder_is_refused(site: Site, tmp_path: Path, program: str) -> None:
    name = {"broker": "g1-b1", "controller": "c1"}[program]
    folder = str(site.ours.data_dir / name)
    make = a_broker if program == "broker" else a_controller

    sentence = refusal(program, make(site, tmp_path, data_dir=folder))

    assert has_words(sentence, folder)
    assert re.search("in use|lock", sentence), sentence


@pytest.mark.parametrize("program", ["broker", "controller"])
def test_secret_that_others_can_read_is_refused(site: Site, tmp_path: Path, program: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o644)
    make = a_broker if program == "broker" else a_controller

    sentence = refusal(program, make(site, tmp_path, secret_file=str(secret)))

    assert has_words(sentence, "0644", f"chmod 600 {secret}")


def test_wrong_secret_is_refused_by_the_controllers(site: Site, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)

    sentence = refusal("broker", a_broker(site, tmp_path, secret_file=str(secret)))

    assert has_words(sentence, "secret")


@pytest.mark.parametrize("content", [None, b"short"])
def test_secret_that_is_missing_or_short_is_refused(
    site: Site, tmp_path: Path, content: bytes | None
) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content)
        secret.chmod(0o600)

    sentence = refusal("broker", a_broker(site, tmp_path, secret_file=str(secret)))

    assert has_words(sentence, str(secret))


# -- configuration --------------------------------------------------------------------------------

BROKER_CHANGES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown key": ({"heartbeat_interval": 300}, ("heartbeat_interval", "heartbeat_interval_ms")),
    "wrong type": ({"heartbeat_interval_ms": "soon"}, ("heartbeat_interval_ms",)),
    "too small": ({"segment_size_bytes": 7}, ("segment_size_bytes", "7")),
    "bad address": ({"listen": "127.0.0.1"}, ("listen",)),
    "open to everybody": ({"listen": "0.0.0.0:0"}, ("0.0.0.0", "insecure")),
    "no controllers": ({"controllers": []}, ("controllers",)),
    "bad controller": ({"controllers": ["c1"]}, ("controllers: 'c1' is not an address",)),
    "group out of its folder": ({"group": "../../x"}, ("group '../../x'", "1 to 127 of")),
    "group of dots": ({"group": ".."}, ("group '..'", "more than dots")),
    "no folder": ({"data_dir": ""}, ("data_dir must be set",)),
    "fields that contradict": (
        {"heartbeat_interval_ms": 1000, "replica_lag_ms_max": 2000},
        ("heartbeat_interval_ms (1000)", "replica_lag_ms_max (2000)"),
    ),
}


@pytest.mark.parametrize("case", BROKER_CHANGES.values(), ids=BROKER_CHANGES)
def test_bad_configuration_of_a_broker_is_refused(
    site: Site, tmp_path: Path, case: tuple[dict[str, Any], tuple[str, ...]]
) -> None:
    changes, words = case

    assert has_words(refusal("broker", a_broker(site, tmp_path, **changes)), *words)
    assert not (tmp_path / "store").exists(), "nothing is made before the configuration is checked"


CONTROLLER_CHANGES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown key": ({"colour": "red"}, ("colour",)),
    "wrong type": ({"total_replicas": 1.5}, ("total_replicas",)),
    "unknown choice": ({"durability": "hope"}, ("durability", "fsync", "memory")),
    "not a peer": ({"controller_id": "c9"}, ("c9", "peers")),
    "fields that contradict": (
        {"total_replicas": 3, "min_in_sync_replicas": 4},
        ("min_in_sync_replicas (4)", "total_replicas (3)"),
    ),
}


@pytest.mark.parametrize("case", CONTROLLER_CHANGES.values(), ids=CONTROLLER_CHANGES)
def test_bad_configuration_of_a_controller_is_refused(
    site: Site, tmp_path: Path, case: tuple[dict[str, Any], tuple[str, ...]]
) -> None:
    changes, words = case

    assert has_words(refusal("controller", a_controller(site, tmp_path, **changes)), *words)


def test_configuration_that_is_no_toml_or_missing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("listen = ")

    assert has_words(refusal("broker", path), str(path), "not valid TOML")
    assert has_words(refusal("controller", tmp_path / "none.toml"), "none.toml")


def test_unknown_flag_is_refused(site: Site, tmp_path: Path) -> None:
    config = a_broker(site, tmp_path)
    command = [sys.executable, "-c", _RUN.format(PROGRAMS["broker"]), "--config", str(config)]

    process = subprocess.run([*command, "--colour", "red"], capture_output=True, check=False)

    assert process.returncode == 2
    assert b"--colour" in process.stderr.splitlines()[-1]


# -- ports ----------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[str]:
    """An address on which something else listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("field", ["listen", "replication_listen"])
def test_broker_whose_port_is_in_use_is_refused(
    site: Site, tmp_path: Path, taken: str, field: str
) -> None:
    sentence = refusal("broker", a_broker(site, tmp_path, **{field: taken}))

    assert has_words(sentence, taken, "in use")


@pytest.mark.parametrize("field", ["listen", "raft_listen"])
def test_controller_whose_port_is_in_use_is_refused(
    site: Site, tmp_path: Path, taken: str, field: str
) -> None:
    sentence = refusal("controller", a_controller(site, tmp_path, **{field: taken}))

    assert has_words(sentence, taken)


# -- paceline up ----------------------------------------------------------------------------------


def test_up_with_a_port_in_use_starts_nothing(tmp_path: Path, taken: str) -> None:
    port = taken.rpartition(":")[2]
    command = paceline_command("up", "--data-dir", str(tmp_path / "data"), "--port", port)

    assert has_words(refused(command), port, "in use", "--port")
    assert not (tmp_path / "data").exists()


def test_up_on_a_data_folder_in_use_starts_nothing(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    lock = os.open(data_dir / "LOCK", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        sentence = refused(paceline_command("up", "--data-dir", str(data_dir), "--port", "0"))
    finally:
        os.close(lock)

    assert has_words(sentence, str(data_dir), "in use", "--data-dir")
    assert not list((data_dir / "logs").iterdir())


def test_up_with_an_even_quorum_is_refused(tmp_path: Path) -> None:
    command = paceline_command(
        "up", "--data-dir", str(tmp_path / "data"), "--port", "0", "--controllers", "2"
    )

    assert has_words(refused(command), "--controllers 2", "odd")


def test_up_that_cannot_become_ready_fails_and_says_why(tmp_path: Path) -> None:
    for name in ("c1", "c2", "c3"):
        (tmp_path / name).write_text("where a data folder should be")

    done = subprocess.run(
        paceline_command("up", "--port", "0", "--no-restart", "--data-dir", str(tmp_path)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=START_TIMEOUT_S,
        preexec_fn=end_with_parent,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("paceline: the cluster is not ready after ")
    # They start together, so any of the three may end first.
    why = r"c[123] ended \(exit code 2\): paceline-controller: cannot use the data folder "
    assert re.search(why, last), last
    assert str(tmp_path / "logs") in last
