"""A cluster of real processes, each on an address of its own, as the harness sees it.

Every node is `processes.node`, forked (fork_server.py) into a session of its own; it dies with the
harness. Only the harness starts, stops and signals nodes, by the process ids that it got itself.
"""

import contextlib
import shutil
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from paceline.net.connect import ConnectSettings
from paceline.platform.runtime import SystemRandom
from paceline.platform.secret import make_secret
from paceline_chaos.processes.node.control import Control
from paceline_chaos.processes.node.fork_server import ForkServer, NodeProcess
from paceline_chaos.processes.security import ClusterTls, root_of
from paceline_chaos.processes.specs import ClusterSpec

HARNESS_HOST = "127.0.0.1"
"""Where probes come from; no cut touches it."""
_REAP_TIMEOUT_S = 5.0


@dataclass(slots=True, kw_only=True)
class Node:
    """One server process and what belongs to it."""

    name: str
    role: str
    """ "controller" or "broker"."""
    group: str
    """Broker group; empty for controllers."""
    host: str
    address: str
    """Client address."""
    replication_address: str
    """Of brokers; empty for controllers."""
    folder: Path
    """Its data folder."""
    config_path: Path
    log_path: Path
    control: Control
    control_path: Path
    shadow: Path | None
    boots: int = 0
    """Power cuts so far: another boot id each time (R13)."""
    process: NodeProcess | None = None
    is_paused: bool = False
    ended: list[int] = field(default_factory=list)
    """Exit codes of its processes so far."""

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Cluster:
    """See the module. `start` everything, then node by node; `stop` in any case."""

    def __init__(
        self, folder: Path, spec: ClusterSpec, server: ForkServer, *, has_shadow: bool
    ) -> None:
        self.folder = folder
        self._server = server
        self.spec = spec
        (folder / "logs").mkdir(parents=True)
        make_secret(str(folder / "secret"), SystemRandom())
        self.tls = ClusterTls(folder / "tls") if spec.secure else None
        self.nodes: dict[str, Node] = {}
        self._has_shadow = has_shadow
        self._lay_out()

    @property
    def controllers(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.role == "controller"]

    @property
    def brokers(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.role == "broker"]

    @property
    def groups(self) -> list[str]:
        return sorted({node.group for node in self.brokers})

    @property
    def bootstrap(self) -> list[str]:
        return [node.address for node in self.controllers]

    @property
    def connect(self) -> ConnectSettings:
        """For the harness's own clients."""
        return root_of(self.bootstrap, self.tls)

    # -- processes --------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        """Start a node that does not run, on the files it has."""
        assert not node.is_running, node.name
        arguments = [node.role, "--config", str(node.config_path)]
        arguments += ["--control", str(node.control_path)]
        if node.shadow is not None:
            arguments += ["--shadow", str(node.shadow)]
        if node.boots:
            arguments += ["--boot", f"chaos-boot-{node.name}-{node.boots}"]
        node.process = self._server.start(node.name, arguments, node.log_path)
        node.is_paused = False

    def signal(self, node: Node, number: signal.Signals) -> None:
        """To a node that runs; nothing happens if it has ended."""
        if node.is_running:
            assert node.process is not None
            node.process.send_signal(number)
            if number in (signal.SIGSTOP, signal.SIGCONT):
                node.is_paused = number is signal.SIGSTOP

    def kill(self, node: Node) -> None:
        """kill -9; it is gone on return."""
        self.signal(node, signal.SIGKILL)
        self.reap(node)

    def reap(self, node: Node) -> int | None:
        """The exit code of a node that has been killed or has ended; None: it runs."""
        process = node.process
        if process is None:
            return None
        # SIGKILL is on its way: the wait is short, and harmless for a harness.
        code = process.wait(_REAP_TIMEOUT_S)
        if code is not None:
            node.ended.append(code)
            node.process = None
        return code

    def kill_all(self) -> None:
        """The end of everything that still runs."""
        for node in self.nodes.values():
            self.signal(node, signal.SIGKILL)
        for node in self.nodes.values():
            self.reap(node)

    def empty(self, node: Node) -> None:
        """Take a dead node's disk away: it starts again as a new store."""
        assert not node.is_running, node.name
        shutil.rmtree(node.folder, ignore_errors=True)
        if node.shadow is not None:
            shutil.rmtree(node.shadow, ignore_errors=True)

    # -- layout -----------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        spec = self.spec
        names = [f"c{number}" for number in range(1, spec.controllers + 1)]
        hosts = {name: f"127.0.0.{10 + number}" for number, name in enumerate(names, start=1)}
        for group in range(1, spec.groups + 1):
            for number in range(1, spec.brokers + 1):
                hosts[f"g{group}-b{number}"] = f"127.0.{group}.{number}"
        with contextlib.ExitStack() as stack:  # held until all are chosen, so all differ
            ports = {
                name: [_free_port(host, stack) for _ in range(2)] for name, host in hosts.items()
            }
        clients = [f"{hosts[name]}:{ports[name][0]}" for name in names]
        peers = [f"{name}={hosts[name]}:{ports[name][1]}" for name in names]
        for name, host in hosts.items():
            first, second = (f"{host}:{port}" for port in ports[name])
            common = {"secret_file": str(self.folder / "secret"), "source_host": host}
            if name in names:
                own = _controller_settings(spec, name, peers)
                group_name = ""
            else:
                group_name = name.partition("-")[0]
                own = {
                    "group": group_name,
                    "replication_listen": second,
                    "segment_size_bytes": spec.segment_size_bytes,
                    **spec.broker,
                }
            if self.tls is not None:
                role = "broker" if group_name else "controller"
                own |= self.tls.settings(name, role, group_name or name, host)
            settings = {**common, "listen": first, "controllers": clients, **own}
            self._add(name, group_name, host, settings)

    def _add(self, name: str, group: str, host: str, settings: Mapping[str, Any]) -> None:
        folder = self.folder / name
        lines = [f"{key} = {orjson.dumps(value).decode()}\n" for key, value in settings.items()]
        config_path = self.folder / f"{name}.toml"
        config_path.write_text(
            "".join([f"data_dir = {orjson.dumps(str(folder)).decode()}\n", *lines])
        )
        control_path = self.folder / f"{name}.control"
        self.nodes[name] = Node(
            name=name,
            role="broker" if group else "controller",
            group=group,
            host=host,
            address=settings["listen"],
            replication_address=settings.get("replication_listen", ""),
            folder=folder,
            config_path=config_path,
            log_path=self.folder / "logs" / f"{name}.log",
            control=Control(control_path),
            control_path=control_path,
            shadow=self.folder / "shadow" / name if self._has_shadow else None,
        )


def _controller_settings(spec: ClusterSpec, name: str, peers: list[str]) -> dict[str, Any]:
    minimum = spec.min_in_sync_replicas
    return {
        "controller_id": name,
        "peers": peers,
        "total_replicas": spec.brokers,
        "min_in_sync_replicas": (spec.brokers + 1) // 2 if minimum is None else minimum,
        "durability": spec.durability,
        **spec.controller,
    }


def _free_port(host: str, stack: contextlib.ExitStack) -> int:
    one = stack.enter_context(socket.socket())
    one.bind((host, 0))
    port: int = one.getsockname()[1]
    return port


def traceback_in(log_path: Path) -> str | None:
    """What a node said about a bug of its own; None: nothing."""
    text = log_path.read_text(errors="replace") if log_path.exists() else ""
    at = text.find("Traceback (most recent call last)")
    return None if at < 0 else text[max(0, at - 300) : at + 3000]
