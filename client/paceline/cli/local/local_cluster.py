"""A whole cluster on this machine as real processes: what `up`, `demo` and `bench` stand on.

The launcher imports the two node programs once, through their entry points, and forks every node
before any event loop or thread exists (DESIGN 2: six separate starts cost 2.3 s of imports on two
cores, one start and six forks 0.6 s). A node that is started again later is a fresh interpreter,
because by then this process runs a loop.

Files: `<data_dir>/<node>.toml` (configuration), `<data_dir>/<node>/` (data), `<data_dir>/logs/`,
`<data_dir>/cluster-secret`, `<data_dir>/cluster.json` (names, process ids and addresses).
"""

import contextlib
import fcntl
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson

from paceline.cli.local.free_ports import check_free, free_ports, is_wildcard
from paceline.cli.local.local_gateways import (
    GatewayPorts,
    check_doors,
    gateway_ports,
    gateway_settings,
)
from paceline.errors import ConfigError
from paceline.platform.address import Address
from paceline.platform.node_process import be_program, end_with_parent
from paceline.platform.runtime import SystemClock, SystemRandom
from paceline.platform.secret import ClusterSecrets, make_secret
from paceline.security.node_proof import NodeProofs, proofs_of_operator

HOST = "127.0.0.1"
CONTROLLER_PORT_DEFAULT = 7700
SEGMENT_SIZE_BYTES = 64 * 1024 * 1024  # DESIGN 4: 64 MiB under `paceline up`
SEGMENT_SIZE_BYTES_MIN, SEGMENT_SIZE_BYTES_MAX = 1024 * 1024, 4096 * 1024 * 1024
"""As brokers take it."""
CONTROLLERS_MAX = 7
"""As many vote at most."""
BROKERS_MAX = 64
"""Of all groups together: each is a process of some 60 MiB."""
_WORDS_MAX = 300
"""A sentence fits."""
if TYPE_CHECKING:
    from paceline.net.connect import ConnectSettings

_PROGRAMS = {
    "controller": "paceline-controller",
    "broker": "paceline-broker",
    "gateway": "paceline-gateway",
}

NodeMain = Callable[[list[str]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What to start. `port` is the first controller's client port; 0 takes free ports for all."""

    data_dir: Path
    controllers: int = 3
    groups: int = 1
    brokers_per_group: int = 3
    port: int = CONTROLLER_PORT_DEFAULT
    durability: str = "fsync"
    segment_size_bytes: int = SEGMENT_SIZE_BYTES
    has_tls: bool = False
    """Every connection by TLS, with certificates of an authority in the data folder."""
    host: str = HOST
    """Where nodes listen for clients. Controllers among themselves and replicas use HOST."""
    advertise: str = ""
    """The name or address by which others reach it; empty: `host`, which then must be one."""
    is_insecure: bool = False
    """Others may reach it without TLS or rights."""
    doors: tuple[str, ...] = ()
    """For RocketMQ's clients, in gateways."""
    gateways: int = 1
    """If there are doors."""

    @property
    def dialled(self) -> str:
        """The host in addresses that clients are told."""
        return self.advertise or self.host

    @property
    def is_closed(self) -> bool:
        """Whether nodes enforce rights from the start, as other machines reach them."""
        return not (self.is_insecure or Address(self.host, 0).is_loopback)

    @property
    def tls_folder(self) -> Path:
        return self.data_dir / "tls"

    def validate(self) -> None:
        """Raises ConfigError with a sentence for the operator."""
        if self.controllers < 1 or self.controllers % 2 == 0:
            raise ConfigError(
                f"--controllers {self.controllers}: a quorum wants an odd number (1, 3 or 5)"
            )
        if self.groups < 1 or self.brokers_per_group < 1:
            raise ConfigError("--groups and --brokers must be at least 1")
        if self.groups * self.brokers_per_group > BROKERS_MAX:
            raise ConfigError(
                f"--groups {self.groups} of --brokers {self.brokers_per_group} are"
                f" {self.groups * self.brokers_per_group} processes: a machine takes {BROKERS_MAX}"
            )
        if self.is_closed and not self.has_tls:
            raise ConfigError(
                f"--host {self.host}: other machines would reach this cluster; give --tls, and"
                " users and rights are on from the start, or --insecure knowing that it is open to"
                " everybody who reaches it"
            )
        if not self.advertise and is_wildcard(self.host):
            raise ConfigError(
                f"--host {self.host} is no address that a client can dial: name one of this machine"
                " with --advertise"
            )
        if self.durability not in ("fsync", "memory"):
            raise ConfigError(f"--durability {self.durability!r}: choose fsync or memory")
        check_doors(self.doors)


@dataclass(slots=True, kw_only=True)
class Node:
    """One process of the local cluster; owned by the launching process."""

    name: str
    role: str
    config_path: Path
    log_path: Path
    address: str
    """Client address, "host:port"; of a gateway for metrics and health."""
    doors: dict[str, str] = field(default_factory=dict)
    """Of a gateway: door -> address."""
    pid: int | None = None
    exit_status: int | None = None
    """Set when the process ended: as `os.waitstatus_to_exitcode` gives it (negative = signal)."""

    @property
    def is_running(self) -> bool:
        return self.pid is not None and self.exit_status is None

    @property
    def how_ended(self) -> str:
        """How the process ended: the name of a signal, or the exit code."""
        status = self.exit_status
        if status is not None and status < 0:
            return signal.Signals(-status).name
        return f"exit code {status}"

    def last_words(self) -> str:
        """How it ended; and why, which a node that cannot go on says in plain words at last."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        why = f": {lines[-1][:_WORDS_MAX]}" if lines and not lines[-1].startswith("{") else ""
        return f"{self.name} ended ({self.how_ended}){why}"


class Owner(NamedTuple):
    """Whoever started the cluster: what he asks nodes with."""

    proofs: NodeProofs
    secrets: ClusterSecrets
    tls: ssl.SSLContext | None
    """None: they speak no TLS."""


@dataclass(slots=True)
class LocalCluster:
    """Plan, start, watch and stop the processes. Not for use from several threads."""

    plan: ClusterPlan
    nodes: list[Node] = field(default_factory=list)
    owner: "Owner | None" = None
    """Known once it is prepared."""
    _lock_fd: int | None = None

    @property
    def controller_addresses(self) -> list[str]:
        return [node.address for node in self.nodes if node.role == "controller"]

    def bootstrap(self) -> "ConnectSettings":
        """For clients on this machine."""
        from paceline.net.connect import ClientTls, ConnectSettings

        folder = self.plan.tls_folder
        tls = ClientTls(ca_file=str(folder / "ca.pem")) if self.plan.has_tls else None
        return ConnectSettings(self.controller_addresses[0], tls=tls)

    @property
    def brokers(self) -> list[Node]:
        return [node for node in self.nodes if node.role == "broker"]

    def prepare(self) -> None:
        """Lock the data folder, choose and check ports, write secret and configurations."""
        self.plan.validate()
        with _writing(self.plan.data_dir):
            # A port in use leaves no new folder behind. One that is there is locked first: then it
            # is this very cluster that has the ports.
            ports = None if self.plan.data_dir.exists() else _ports(self.plan)
            self.plan.data_dir.mkdir(parents=True, exist_ok=True)
            (self.plan.data_dir / "logs").mkdir(exist_ok=True)
            self._lock_folder()
            secret_path = self.plan.data_dir / "cluster-secret"
            secrets = make_secret(str(secret_path), SystemRandom())
            proofs = proofs_of_operator(secrets, name="launcher")
            tls = _prepare_tls(self.plan) if self.plan.has_tls else None
            self.owner = Owner(proofs, secrets, tls)
            self.nodes = _lay_out(self.plan, secret_path, ports or _ports(self.plan))

    def start(self) -> None:
        """Fork all nodes. Must run before an event loop or a thread exists in this process."""
        programs = {role: _load_program(role) for role in {node.role for node in self.nodes}}
        for node in self.nodes:
            node.pid = _fork_node(node, programs[node.role])
        self._write_summary()

    def restart(self, node: Node) -> None:
        """Start an ended node again, on its old data, as a fresh interpreter."""
        assert not node.is_running, node
        with node.log_path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _RESTART, node.role, "--config", str(node.config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent,
            )
        process.returncode = 0  # this process reaps by pid in `reap`; keep Popen from waiting too
        node.pid, node.exit_status = process.pid, None
        self._write_summary()

    def reap(self) -> list[Node]:
        """Nodes that ended since the last call."""
        ended = []
        for node in self.nodes:
            if not node.is_running:
                continue
            assert node.pid is not None
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(node.pid, os.WNOHANG)
                if pid == 0:
                    continue
                node.exit_status = os.waitstatus_to_exitcode(status)
                ended.append(node)
        return ended

    def signal(self, node: Node, number: signal.Signals) -> None:
        """Send a signal to one node that this launcher started."""
        if node.is_running:
            assert node.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.pid, number)

    def stop(self, *, timeout_ms: int = 8000) -> None:
        """Stop everything, controllers last; SIGKILL after the timeout."""
        clock = SystemClock()
        deadline = clock.monotonic_ms() + timeout_ms
        for role in ("gateway", "broker", "controller"):
            nodes = [node for node in self.nodes if node.role == role]
            for node in nodes:
                self.signal(node, signal.SIGTERM)
                self.signal(node, signal.SIGCONT)  # a paused node must hear it
            self._wait_ended(nodes, clock, deadline)
        for node in self.nodes:
            self.signal(node, signal.SIGKILL)
        self._wait_ended(self.nodes, clock, deadline + 2000)
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _wait_ended(self, nodes: Sequence[Node], clock: SystemClock, deadline: int) -> None:
        # A blocking wait with a pipe-free poll: select() on nothing is the stop path's only wait.
        import select

        while any(node.is_running for node in nodes) and clock.monotonic_ms() < deadline:
            self.reap()
            if any(node.is_running for node in nodes):
                select.select([], [], [], 0.01)

    def _lock_folder(self) -> None:
        path = self.plan.data_dir / "LOCK"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise ConfigError(
                f"{self.plan.data_dir} is in use by another running cluster: "
                "stop that one or choose another --data-dir"
            ) from error
        self._lock_fd = fd

    def _write_summary(self) -> None:
        summary = [
            {"name": node.name, "role": node.role, "pid": node.pid, "address": node.address}
            | ({"doors": node.doors} if node.doors else {})
            for node in self.nodes
        ]
        path = self.plan.data_dir / "cluster.json"
        temporary = path.with_suffix(".new")
        temporary.write_bytes(orjson.dumps({"nodes": summary}, option=orjson.OPT_INDENT_2))
        temporary.replace(path)


# -- layout ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """What cannot be made or written in the data folder is the operator's to mend: ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the data folder {folder} cannot be used: {error.strerror or error}"
            f" ({error.filename or folder}); choose another one with --data-dir"
        ) from error


class _Ports(NamedTuple):
    nodes: list[int]
    gateways: list[GatewayPorts]


def _ports(plan: ClusterPlan) -> _Ports:
    """For all nodes: consecutive from plan.port, each checked free; or free ones when it is 0."""
    count = 2 * plan.controllers + 2 * plan.groups * plan.brokers_per_group
    if plan.port == 0:
        nodes = free_ports(count, host=plan.host)
    else:
        nodes = list(range(plan.port, plan.port + count))
        for port in nodes:
            check_free(port, host=plan.host)
    first = 0 if plan.port == 0 else plan.port + count
    gateways = plan.gateways if plan.doors else 0
    return _Ports(nodes, gateway_ports(gateways, plan.groups, first=first, host=plan.host))


def _prepare_tls(plan: ClusterPlan) -> ssl.SSLContext:
    """An authority in the data folder, unless there is one; what trusts it."""
    from paceline.security.authority import Authority

    authority = Authority(plan.tls_folder)
    if not authority.certificate.exists():
        authority.init(common_name="paceline up", now_unix_ms=SystemClock().unix_ms())
    return ssl.create_default_context(cafile=authority.certificate)


def _tls_settings(plan: ClusterPlan, name: str, role: str, uri: str) -> dict[str, object]:
    """Of one node, whose certificate is made anew."""
    if not plan.has_tls:
        return {}
    from paceline.security.authority import Authority

    authority = Authority(plan.tls_folder)
    hosts = dict.fromkeys((HOST, "localhost", plan.host, plan.dialled))
    names = (*(host for host in hosts if not is_wildcard(host)), f"URI:paceline:{role}/{uri}")
    authority.issue(name, names, now_unix_ms=SystemClock().unix_ms())
    certificate, key = authority.paths(name)
    files = {
        "cert": str(certificate.resolve()),
        "key": str(key.resolve()),
        "ca": str(authority.certificate.resolve()),
    }
    return {"tls_mode": "enforcing", **{f"tls_{part}": path for part, path in files.items()}}


def _lay_out(plan: ClusterPlan, secret: Path, chosen: _Ports) -> list[Node]:
    ports = iter(chosen.nodes)
    clients = [Address(plan.dialled, next(ports)) for _ in range(plan.controllers)]
    controllers = [str(client) for client in clients]
    rafts = [f"{HOST}:{next(ports)}" for _ in range(plan.controllers)]
    names = [f"c{index + 1}" for index in range(plan.controllers)]
    peers = [f"{name}={address}" for name, address in zip(names, rafts, strict=True)]
    minimum = (plan.brokers_per_group + 1) // 2
    nodes = []
    for name, client in zip(names, clients, strict=True):
        settings: dict[str, object] = {
            "controller_id": name,
            "data_dir": str((plan.data_dir / name).resolve()),
            "secret_file": str(secret.resolve()),
            "listen": str(client._replace(host=plan.host)),
            "insecure": plan.is_insecure,
            "peers": peers,
            "controllers": controllers,
            "total_replicas": plan.brokers_per_group,
            "min_in_sync_replicas": minimum,
            "durability": plan.durability,
            **_tls_settings(plan, name, "controller", name),
        }
        nodes.append(_write_node(plan, name, "controller", str(client), settings))
    for group in range(1, plan.groups + 1):
        for index in range(1, plan.brokers_per_group + 1):
            name, client = f"g{group}-b{index}", Address(plan.dialled, next(ports))
            settings = {
                "group": f"g{group}",
                "data_dir": str((plan.data_dir / name).resolve()),
                "secret_file": str(secret.resolve()),
                "listen": str(client._replace(host=plan.host)),
                **({"advertised": str(client)} if plan.dialled != plan.host else {}),
                "insecure": plan.is_insecure,
                "replication_listen": f"{HOST}:{next(ports)}",
                "controllers": controllers,
                "segment_size_bytes": plan.segment_size_bytes,
                **_tls_settings(plan, name, "broker", f"g{group}"),
            }
            nodes.append(_write_node(plan, name, "broker", str(client), settings))
    for number, of_gateway in enumerate(chosen.gateways, start=1):
        name = f"gw{number}"
        settings = {
            **gateway_settings(of_gateway, plan.doors, host=plan.host, advertise=plan.advertise),
            "secret_file": str(secret.resolve()),
            "insecure": plan.is_insecure,
            "controllers": controllers,
            **_tls_settings(plan, name, "gateway", name),
        }
        doors = of_gateway.addresses(plan.doors, plan.dialled)
        address = str(Address(plan.dialled, of_gateway.http))
        nodes.append(_write_node(plan, name, "gateway", address, settings, doors))
    return nodes


def _write_node(
    plan: ClusterPlan,
    name: str,
    role: str,
    address: str,
    settings: dict[str, object],
    doors: dict[str, str] | None = None,
) -> Node:
    # JSON's strings, numbers, booleans and arrays of strings are valid TOML values too.
    lines = [f"{key} = {orjson.dumps(value).decode()}\n" for key, value in settings.items()]
    config_path = plan.data_dir / f"{name}.toml"
    config_path.write_text("".join(lines))
    return Node(
        name=name,
        role=role,
        config_path=config_path,
        log_path=plan.data_dir / "logs" / f"{name}.log",
        address=address,
        doors=doors or {},
    )


# -- processes ------------------------------------------------------------------------------------


def _load_program(role: str) -> NodeMain:
    """The `main(argv)` of a node program, through its entry point (the CLI imports no node)."""
    name = _PROGRAMS[role]
    for entry in entry_points(group="console_scripts", name=name):
        program: NodeMain = entry.load()
        return program
    raise ConfigError(f"the program {name} is not installed beside this one: reinstall paceline")


_RESTART = (
    "import sys; from paceline.cli.local.local_cluster import run_program; "
    "sys.exit(run_program(sys.argv[1], sys.argv[2:]))"
)


def run_program(role: str, arguments: list[str]) -> int:
    """Entry of a restarted node."""
    return _load_program(role)(arguments)


def _fork_node(node: Node, program: NodeMain) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        be_program(node.log_path, lambda: _run_detached(node, program))
    return pid


def _run_detached(node: Node, program: NodeMain) -> int:
    end_with_parent()
    return program(["--config", str(node.config_path)])
