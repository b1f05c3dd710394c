"""Real processes for tests: `paceline up` on free ports, killed by process id, never by name.

Everything a test starts lies under its own temporary folder and listens on ports that the system
chose, so tests run side by side. What is started dies with the test process (Linux), also when
that is killed.
"""

import asyncio
import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import orjson
from tests.support.process.secrets import command_lines, told_secrets

from paceline.net.connect import Credentials
from paceline.platform.runtime import SystemClock, pause

READY_TIMEOUT_S = 40
"""`paceline up` itself gives up after 30 s and says why."""
STOP_TIMEOUT_S = 20
BUSY_MS_MAX = 5_000
"""For a failover: generous for two cores with another cluster on them. The figures are the
benchmark's business; a test with a narrower bound runs alone (marker `alone`)."""

Found = TypeVar("Found")


@dataclass
class RunningCluster:
    """A cluster started by `paceline up --json`, which owns the nodes."""

    data_dir: Path
    bootstrap: list[str]
    started: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Nodes that the test itself started (machines.py), by name: they are the ones that count."""
    first_key: Credentials | None = None
    """Shown by the launcher: other machines reach this cluster, and it is its first start."""
    secrets: list[tuple[str, bytes]] = field(default_factory=list)
    """What a test has made and shows to nodes, and what each is: no log may have it."""
    forgotten: set[str] = field(default_factory=set)
    """Names of nodes that were taken out of the cluster for good."""

    def nodes(self) -> list[dict[str, Any]]:
        """Name, role, pid and address of every node, as last started."""
        document = orjson.loads((self.data_dir / "cluster.json").read_bytes())
        nodes = {node["name"]: node for node in document["nodes"]} | self.started
        return [node for name, node in nodes.items() if name not in self.forgotten]

    def brokers(self, group: str | None = None) -> list[dict[str, Any]]:
        """The broker nodes, all or of one group."""
        prefix = "" if group is None else f"{group}-"
        return [
            node
            for node in self.nodes()
            if node["role"] == "broker" and node["name"].startswith(prefix)
        ]

    def groups(self) -> list[str]:
        """The names of the broker groups."""
        return sorted({node["name"].partition("-")[0] for node in self.brokers()})

    def node(self, name: str) -> dict[str, Any]:
        return next(node for node in self.nodes() if node["name"] == name)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.node(name)["pid"], number)

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """The node is stopped with SIGSTOP inside the block; the same process goes on after it."""
        pid = self.node(name)["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def logs(self) -> str:
        """The ends of all node logs, for a failing test's message."""
        return log_tails(self.data_dir)


def log_tails(data_dir: Path, *, size: int = 2500) -> str:
    """The end of every node log under `data_dir`."""
    ends = [
        f"--- {path.name}\n{path.read_text(errors='replace')[-size:]}"
        for path in sorted((data_dir / "logs").glob("*.log"))
    ]
    return "\n".join(ends)


def tracebacks(data_dir: Path) -> list[str]:
    """What nodes said about bugs of their own: no fault may cause an unexpected exception."""
    found = []
    for path in sorted((data_dir / "logs").glob("*.log")):
        text = path.read_text(errors="replace")
        at = text.find("Traceback (most recent call last)")
        if at >= 0:
            found.append(f"{path.name}: {text[max(0, at - 300) : at + 3000]}")
    return found


@contextlib.contextmanager
def running_cluster(
    data_dir: Path, *arguments: str, restart: bool = False
) -> Iterator[RunningCluster]:
    """`paceline up` on free ports in `data_dir`, ready on entry, stopped on exit.

    `restart`: a node that was killed starts again after 2 s. A failure inside the block carries the
    ends of the nodes' logs. Afterwards the launcher has ended with 0, no node told of a bug, and no
    secret stands in a log or a command line.
    """
    restart_flag = "--restart" if restart else "--no-restart"
    fixed = ["up", "--json", "--port", "0", "--data-dir", str(data_dir), restart_flag]
    with _launched([*fixed, *arguments]) as launcher:
        try:
            bootstrap, first_key = _wait_ready(launcher)
            cluster = RunningCluster(data_dir=data_dir, bootstrap=bootstrap, first_key=first_key)
            yield cluster
            pids = [launcher.process.pid, *(node["pid"] for node in cluster.nodes())]
            told = command_lines(pids)
        except BaseException as error:
            error.add_note(log_tails(data_dir))
            raise
    assert launcher.process.returncode == 0, launcher.stderr()
    assert tracebacks(data_dir) == []
    told["stderr of the launcher"] = launcher.stderr().encode()
    secrets = told_secrets(data_dir, told, made=cluster.secrets)
    assert not secrets, secrets


class _Launcher:
    """`paceline ...` in a session of its own; its output is always read, so it never blocks."""

    def __init__(self, arguments: list[str]) -> None:
        self.process = subprocess.Popen(
            paceline_command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        self.lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """Lines of stdout, then None."""
        self._said: list[bytes] = []
        self._threads = [
            threading.Thread(target=self._read_stdout, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stderr(self) -> str:
        return b"".join(self._said).decode(errors="replace")

    def join(self) -> None:
        """After the end of the process: all its output has been read."""
        for thread in self._threads:
            thread.join(timeout=STOP_TIMEOUT_S)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        self._said.extend(self.process.stderr)


@contextlib.contextmanager
def _launched(arguments: list[str]) -> Iterator[_Launcher]:
    launcher = _Launcher(arguments)
    process = launcher.process
    try:
        yield launcher
    finally:
        process.send_signal(signal.SIGTERM)  # a no-op once it has ended
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            launcher.join()


def _wait_ready(launcher: _Launcher) -> tuple[list[str], Credentials | None]:
    first_key: Credentials | None = None
    clock = SystemClock()
    deadline = clock.monotonic_ms() + READY_TIMEOUT_S * 1000
    while (left_ms := deadline - clock.monotonic_ms()) > 0:
        try:
            line = launcher.lines.get(timeout=left_ms / 1000)
        except queue.Empty:
            break
        if line is None:
            break
        state = orjson.loads(line)
        if state["event"] == "first_key":
            access_key, secret_key = state["access_key"], state["secret_key"]
            first_key = Credentials(access_key=access_key, secret_key=secret_key)
        if state["event"] == "ready":
            bootstrap: list[str] = state["bootstrap"]
            return bootstrap, first_key
    raise AssertionError("the cluster did not become ready: " + launcher.stderr())


def has_ended(pid: int) -> bool:
    """Whether that process is over, reaped by its parent or not yet (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def paceline_command(*arguments: str) -> list[str]:
    """The command line of the `paceline` program of this checkout."""
    return [sys.executable, "-m", "paceline.cli.main", *arguments]


def end_with_parent() -> None:
    """In a child before exec: SIGTERM when the parent ends (Linux), so that nothing is left."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


async def eventually(
    probe: Callable[[], Awaitable[Found | None]],
    *,
    within_ms: int = 30_000,
    what: str = "the condition",
) -> Found:
    """Await `probe()` again and again until it returns something true; fail at the deadline.

    Deadlines are for what never comes: who judges a time measures it.
    """
    clock = SystemClock()
    deadline = clock.monotonic_ms() + within_ms
    while True:
        result = await probe()
        if result:
            return result
        if clock.monotonic_ms() > deadline:
            raise AssertionError(f"{what} did not come true within {within_ms} ms")
        await pause(20)


def http_session(*, timeout_ms: int = 1000) -> aiohttp.ClientSession:
    """A session whose requests end in time also when the other side is paused."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_ms / 1000))


async def stranger_gets(cluster: RunningCluster, name: str, path: str) -> int:
    """The HTTP status that whoever shows no key is answered by a node; 0: it does not answer."""
    async with http_session() as session:
        try:
            async with session.get(f"http://{cluster.node(name)['address']}/v1/{path}") as answer:
                return answer.status
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0


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


async def broker_statuses(
    cluster: RunningCluster, group: str | None = None
) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Each broker node with what it says of itself."""
    nodes = cluster.brokers(group)
    async with http_session() as session:
        answers = await asyncio.gather(*(broker_status(session, node["address"]) for node in nodes))
    return list(zip(nodes, answers, strict=True))


async def master_of(cluster: RunningCluster, group: str) -> dict[str, Any] | None:
    """The node that says it is the open master of `group` in the highest epoch."""
    masters = [
        (status["epoch"], node["name"], node)
        for node, status in await broker_statuses(cluster, group)
        if status is not None and status["role"] == "master" and status["is_open"]
    ]
    return max(masters)[2] if masters else None


async def the_master(cluster: RunningCluster, group: str = "g1") -> str:
    """The name of the open master, waited for."""
    node = await eventually(lambda: master_of(cluster, group), what=f"a master of {group}")
    name: str = node["name"]
    return name
