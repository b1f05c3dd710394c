"""Nodes of a running cluster that the test itself ends, changes on disk, and starts again.

Under `paceline up --no-restart` nobody else starts them: between the end of a process and its next
start the folder is the test's alone, however busy the machine is.
"""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.process.harness import (
    STOP_TIMEOUT_S,
    RunningCluster,
    end_with_parent,
    eventually,
    has_ended,
)

from paceline.cli.local.free_ports import free_ports

_PROGRAM = (
    "import sys; from paceline.cli.local.local_cluster import run_program; "
    "sys.exit(run_program(sys.argv[1], sys.argv[2:]))"
)


class Machines:
    """What runs the nodes of a cluster once a test has taken them over from `paceline up`."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def folder(self, name: str) -> Path:
        return self.cluster.data_dir / name

    def is_running(self, name: str) -> bool:
        process = self._processes.get(name)
        if process is not None:
            return process.poll() is None
        return not has_ended(self.cluster.node(name)["pid"])

    async def end(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal a node and wait until it is over."""
        self.cluster.send_signal(name, number)

        async def is_over() -> bool:
            return not self.is_running(name)

        await eventually(is_over, within_ms=STOP_TIMEOUT_S * 1000, what=f"the end of {name}")

    def start(self, name: str) -> None:
        """A fresh process of a node that has ended, with its configuration, on its folder."""
        node = self.cluster.node(name)
        config = self.cluster.data_dir / f"{name}.toml"
        with (self.cluster.data_dir / "logs" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, node["role"], "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent,
            )
        self._processes[name] = process
        self.cluster.started[name] = {**node, "pid": process.pid}

    def add_broker(self, name: str, *, like: str) -> None:
        """Start another broker of the group of `like`, with an empty folder, on free ports."""
        client, replication = _free_addresses()
        self._write(name, like, listen=client, replication_listen=replication)
        self.cluster.started[name] = {"name": name, "role": "broker", "address": client}
        self.start(name)

    def add_controller(self, name: str, *, like: str) -> tuple[str, str]:
        """Start another controller on an empty folder, which waits; Raft and client address."""
        raft, client = _free_addresses()
        config = self._config(like)
        self._write(
            name,
            like,
            controller_id=name,
            listen=client,
            peers=[*config["peers"], f"{name}={raft}"],
            controllers=[*config["controllers"], client],
        )
        self.cluster.started[name] = {"name": name, "role": "controller", "address": client}
        self.start(name)
        return raft, client

    def copy(self, name: str, to: Path) -> None:
        """Its folder at one moment, as a snapshot of the file system would have it."""
        is_running = self.is_running(name)
        with self.cluster.paused(name) if is_running else contextlib.nullcontext():
            shutil.copytree(self.folder(name), to)

    def restore(self, name: str, copy: Path) -> None:
        """Put a copy in the place of what an ended node has on its disk."""
        shutil.rmtree(self.folder(name))
        shutil.copytree(copy, self.folder(name))

    def wipe(self, name: str) -> None:
        """Everything on the disk of an ended node is gone."""
        shutil.rmtree(self.folder(name))

    def stop(self) -> None:
        """SIGTERM to all that were started here, and wait: brokers before controllers."""
        for role in ("broker", "controller"):
            ending = [
                process
                for name, process in self._processes.items()
                if self.cluster.started[name]["role"] == role
            ]
            for process in ending:
                process.send_signal(signal.SIGTERM)  # a no-op once it has ended
            for process in ending:
                try:
                    process.wait(timeout=STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    raise

    def _config(self, name: str) -> dict[str, Any]:
        return tomllib.loads((self.cluster.data_dir / f"{name}.toml").read_text())

    def _write(self, name: str, like: str, **changes: Any) -> None:
        config = {**self._config(like), "data_dir": str(self.folder(name)), **changes}
        path = self.cluster.data_dir / f"{name}.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))


@contextlib.contextmanager
def taking_over(cluster: RunningCluster) -> Iterator[Machines]:
    """The nodes of a cluster that was started with `restart=False`; all stopped at the end."""
    machines = Machines(cluster)
    try:
        yield machines
    finally:
        machines.stop()


def _free_addresses() -> tuple[str, str]:
    first, second = free_ports(2, host="127.0.0.1")
    return f"127.0.0.1:{first}", f"127.0.0.1:{second}"
