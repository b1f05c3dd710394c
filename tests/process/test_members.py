"""Controllers are replaced under load, one after the other, until none of the first is left."""

import asyncio
import contextlib
import functools
import json
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process.harness import (
    STOP_TIMEOUT_S,
    RunningCluster,
    end_with_parent,
    eventually,
    paceline_command,
    running_cluster,
)
from tests.process.load import check_stored, reach, settled, under_load

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


async def test_each_controller_is_replaced_under_load(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data") as cluster, contextlib.ExitStack() as stack:
        async with under_load(cluster, "orders") as load:
            await reach(load, 100)
            for old, new in (("c1", "c4"), ("c2", "c5"), ("c3", "c6")):
                raft, client = _free_addresses()
                _start(stack, cluster, new, raft=raft, client=client)

                answer = await _controller(
                    cluster, "members", "replace", old, new, "--raft", raft, "--client", client
                )

                assert new in _names(answer)
                assert old not in _names(answer)
                has_ended = functools.partial(_has_ended, cluster, old)
                await eventually(has_ended, within_ms=10_000, what=f"{old} ends")
                cluster.bootstrap.append(client)
                await reach(load, load.count + 200)
            moved = await _controller(cluster, "transfer")
            assert moved["elapsed_ms"] < 1_000
            await reach(load, load.count + 200)
        status = await _controller(cluster, "status")
        assert [row["controller_id"] for row in status["controllers"]] == ["c4", "c5", "c6"]
        assert {row["sessions"] for row in status["controllers"]} == {3}
        assert {row["generation"] for row in status["controllers"]} == {9}
        positions = await settled(cluster)
    check_stored(cluster, positions, load)


def _names(members: dict[str, Any]) -> list[str]:
    return [member["controller_id"] for member in members["members"]]


async def _has_ended(cluster: RunningCluster, name: str) -> bool:
    """It said why, and is gone."""
    said = (cluster.data_dir / "logs" / f"{name}.log").read_text(errors="replace")
    return f"controller {name} was removed from the quorum" in said


async def _controller(cluster: RunningCluster, *arguments: str) -> dict[str, Any]:
    """`paceline controller ... --json`."""
    process = await asyncio.create_subprocess_exec(
        *paceline_command("controller", *arguments, "--json"),
        "--bootstrap",
        ",".join(cluster.bootstrap),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, said = await process.communicate()
    assert process.returncode == 0, said.decode() + out.decode()
    document: dict[str, Any] = json.loads(out)
    return document


def _start(
    stack: contextlib.ExitStack, cluster: RunningCluster, name: str, *, raft: str, client: str
) -> None:
    """A controller with an empty folder, beside those of `paceline up`."""
    config = tomllib.loads((cluster.data_dir / "c1.toml").read_text())
    config |= {
        "controller_id": name,
        "data_dir": str(cluster.data_dir / name),
        "listen": client,
        "peers": [*config["peers"], f"{name}={raft}"],
        "controllers": [*config["controllers"], client],
    }
    path = cluster.data_dir / f"{name}.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
    stack.enter_context(_running(path, cluster.data_dir / "logs" / f"{name}.log"))


@contextlib.contextmanager
def _running(config: Path, log: Path) -> Iterator[None]:
    program = "from paceline_controller.app import main; raise SystemExit(main())"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=end_with_parent,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=STOP_TIMEOUT_S)


def _free_addresses() -> tuple[str, str]:
    sockets = [socket.socket(), socket.socket()]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    names = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return names[0], names[1]
