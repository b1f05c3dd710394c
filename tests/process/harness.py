"""Real processes for tests: `paceline up` on free ports, killed by process id, never by name."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from paceline.runtime import SystemClock, pause

READY_TIMEOUT_MS = 30_000


@dataclass
class RunningCluster:
    """A cluster started by `paceline up --json`; `launcher` is the process that owns the nodes."""

    data_dir: Path
    launcher: subprocess.Popen[bytes]
    bootstrap: list[str]

    def nodes(self) -> list[dict[str, Any]]:
        """Name, role, pid and address of every node, as last started."""
        document = orjson.loads((self.data_dir / "cluster.json").read_bytes())
        nodes: list[dict[str, Any]] = document["nodes"]
        return nodes

    def node(self, name: str) -> dict[str, Any]:
        return next(node for node in self.nodes() if node["name"] == name)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.node(name)["pid"], number)

    def logs(self) -> str:
        """The ends of all node logs, for a failing test's message."""
        parts = []
        for path in sorted((self.data_dir / "logs").iterdir()):
            parts.append(f"--- {path.name}\n" + path.read_text(errors="replace")[-3000:])
        return "\n".join(parts)


@contextlib.contextmanager
def running_cluster(
    data_dir: Path, *arguments: str, restart: bool = False
) -> Iterator[RunningCluster]:
    """`paceline up` on free ports in `data_dir`, ready on entry, stopped on exit."""
    restart_flag = "--restart" if restart else "--no-restart"
    fixed = ["up", "--json", "--port", "0", "--data-dir", str(data_dir), restart_flag]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli.main", *fixed, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        bootstrap = _wait_ready(launcher, data_dir)
        yield RunningCluster(data_dir=data_dir, launcher=launcher, bootstrap=bootstrap)
    finally:
        launcher.send_signal(signal.SIGTERM)
        try:
            launcher.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.communicate()
            raise


def _wait_ready(launcher: subprocess.Popen[bytes], data_dir: Path) -> list[str]:
    assert launcher.stdout is not None
    for line in launcher.stdout:
        state = orjson.loads(line)
        if state["event"] == "ready":
            bootstrap: list[str] = state["bootstrap"]
            return bootstrap
    assert launcher.stderr is not None
    said = launcher.stderr.read().decode()
    logs = data_dir / "logs"
    tails = [path.read_text(errors="replace")[-2000:] for path in sorted(logs.glob("*.log"))]
    raise AssertionError("the cluster did not become ready:\n" + said + "\n".join(tails))


async def eventually(probe: Any, *, within_ms: int = 10_000, what: str = "the condition") -> Any:
    """Await `probe()` again and again until it returns something true; fail at the deadline."""
    clock = SystemClock()
    deadline = clock.monotonic_ms() + within_ms
    while True:
        result = await probe()
        if result:
            return result
        if clock.monotonic_ms() > deadline:
            raise AssertionError(f"{what} did not come true within {within_ms} ms")
        await pause(20)


async def broker_status(session: aiohttp.ClientSession, address: str) -> dict[str, Any] | None:
    """`/v1/status` of one broker; None while it does not answer."""
    try:
        async with session.get(f"http://{address}/v1/status") as answer:
            if answer.status != 200:
                return None
            document: dict[str, Any] = orjson.loads(await answer.read())
            return document
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None


async def master_of(cluster: RunningCluster, group: str) -> dict[str, Any] | None:
    """The node that says it is the open master of `group` in the highest epoch."""
    best: tuple[int, dict[str, Any]] | None = None
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1)) as session:
        for node in cluster.nodes():
            if node["role"] != "broker":
                continue
            status = await broker_status(session, node["address"])
            if status is None or status["group"] != group or status["role"] != "master":
                continue
            if status["is_open"] and (best is None or status["epoch"] > best[0]):
                best = (status["epoch"], node)
    return None if best is None else best[1]
