"""`paceline up`: start a local cluster, show it live, stop it with Ctrl-C."""

import asyncio
import contextlib
import signal
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import click
import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paceline.cli.local.local_client import broker_status, get_json
from paceline.cli.local.local_cluster import (
    BROKERS_MAX,
    CONTROLLER_PORT_DEFAULT,
    CONTROLLERS_MAX,
    HOST,
    SEGMENT_SIZE_BYTES,
    SEGMENT_SIZE_BYTES_MAX,
    SEGMENT_SIZE_BYTES_MIN,
    ClusterPlan,
    LocalCluster,
    Node,
    Owner,
)
from paceline.cli.local.local_gateways import GATEWAYS_MAX, parse_doors
from paceline.errors import BadRequestError, ConfigError, DeadlineError, PacelineError
from paceline.platform.node_process import cores_here
from paceline.platform.runtime import SystemClock, cancel_and_wait, pause, spawn
from paceline.wire.cluster import ClusterView

if TYPE_CHECKING:
    from paceline.admin.users import FirstKey

STATUS_INTERVAL_MS = 250
"""How often nodes are looked after."""
ASK_INTERVAL_MS = 1_000
"""How often a cluster that is ready is asked how it does, where no picture of that is shown."""
READY_TIMEOUT_MS = 30_000
RESTART_AFTER_MS = 2_000


class _Groups(click.IntRange):
    """A number, or "auto", which is 0 here."""

    name = "number or auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return 0 if value == "auto" else super().convert(value, param, ctx)


@click.command("up")
@click.option("--data-dir", type=click.Path(path_type=Path), default=Path("paceline-data"))
@click.option(
    "--controllers",
    type=click.IntRange(1, CONTROLLERS_MAX),
    default=3,
    show_default=True,
    help="Size of the quorum.",
)
@click.option(
    "--groups",
    type=_Groups(1, BROKERS_MAX),
    default=1,
    show_default=True,
    help="Broker groups; auto: one for each core.",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, BROKERS_MAX),
    default=3,
    show_default=True,
    help="Brokers in each group.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 60_000),
    default=CONTROLLER_PORT_DEFAULT,
    show_default=True,
    help="First port; all nodes take the ones after it. 0 = free ports.",
)
@click.option("--durability", type=click.Choice(["fsync", "memory"]), default="fsync")
@click.option(
    "--segment-size",
    "segment_size_bytes",
    type=click.IntRange(SEGMENT_SIZE_BYTES_MIN, SEGMENT_SIZE_BYTES_MAX),
    default=SEGMENT_SIZE_BYTES,
    show_default=True,
    help="Bytes of one file of a log.",
)
@click.option("--tls", is_flag=True, help="TLS everywhere, with an authority in the data folder.")
@click.option(
    "--host",
    default=HOST,
    show_default=True,
    help="Where nodes listen for clients. Beyond this machine: --tls or --insecure.",
)
@click.option("--advertise", default="", help="The name by which clients reach it, if not --host.")
@click.option("--insecure", is_flag=True, help="Let everybody who reaches --host do everything.")
@click.option("--doors", default="", help="For RocketMQ's clients: grpc, remoting, or both.")
@click.option(
    "--gateways",
    type=click.IntRange(1, GATEWAYS_MAX),
    default=1,
    show_default=True,
    help="Processes with these doors.",
)
@click.option("--restart/--no-restart", default=True, help="Start a node that died again.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines instead of the live view.")
def command(
    data_dir: Path,
    controllers: int,
    groups: int,
    brokers: int,
    port: int,
    durability: str,
    segment_size_bytes: int,
    tls: bool,
    host: str,
    advertise: str,
    insecure: bool,
    doors: str,
    gateways: int,
    restart: bool,
    as_json: bool,
) -> None:
    """Start a whole cluster on this machine as real processes; Ctrl-C stops it."""
    if gateways > 1 and not doors.strip():
        raise ConfigError(f"--gateways {gateways}: name their doors too, --doors grpc,remoting")
    plan = ClusterPlan(
        data_dir=data_dir,
        controllers=controllers,
        groups=groups or max(1, min(cores_here(), BROKERS_MAX // brokers)),
        brokers_per_group=brokers,
        port=port,
        durability=durability,
        segment_size_bytes=segment_size_bytes,
        has_tls=tls,
        host=host,
        advertise=advertise,
        is_insecure=insecure,
        doors=parse_doors(doors),
        gateways=gateways,
    )
    cluster = LocalCluster(plan)
    cluster.prepare()
    began = SystemClock().monotonic_ms()
    try:
        # Ctrl-C between here and the loop's own handlers must not leave children behind.
        cluster.start()
        watcher = _Watcher(cluster, began_ms=began, restart=restart, as_json=as_json)
        asyncio.run(watcher.run())
    finally:
        cluster.stop()
        if not as_json:
            click.echo("stopped; the data stays in " + str(data_dir))


@dataclass
class _Watcher:
    """Shows what the cluster does until a signal ends it; owns nothing but the picture."""

    cluster: LocalCluster
    began_ms: int
    restart: bool
    as_json: bool
    view: ClusterView | None = None
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    ready_ms: int | None = None
    events: list[str] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    """The last words of each node that has ended, by its name."""
    why_not_ready: str | None = None
    _last_said: str = ""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            ticking = spawn(self._tick_for_ever(session, stop), name="status")
            await stop.wait()
            await cancel_and_wait(ticking)
        if self.why_not_ready is not None:
            raise DeadlineError(self.why_not_ready)

    async def _tick_for_ever(self, session: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        console = Console()
        clock = SystemClock()
        restart_at: dict[str, int] = {}
        asked_ms = 0
        is_live = console.is_terminal and not self.as_json
        shown: Live | contextlib.nullcontext[None]
        shown = Live(console=console, auto_refresh=False) if is_live else contextlib.nullcontext()
        with shown as live:
            while not stop.is_set():
                is_asked = self.ready_ms is None or is_live
                if is_asked or clock.monotonic_ms() - asked_ms >= ASK_INTERVAL_MS:
                    asked_ms = clock.monotonic_ms()
                    await self._refresh(session)
                self._note_deaths(clock, restart_at)
                if self.ready_ms is None and self._is_ready():
                    self.ready_ms = clock.monotonic_ms() - self.began_ms
                    if self.cluster.plan.is_closed:
                        await self._let_somebody_in(console, stop)
                if live is not None:
                    live.update(self._picture(), refresh=True)
                else:
                    self._say_changes()
                if self.ready_ms is None:
                    waited_ms = clock.monotonic_ms() - self.began_ms
                    if waited_ms > READY_TIMEOUT_MS or not self._can_become_ready():
                        self._give_up(stop, waited_ms)
                    await pause(30)
                else:
                    await pause(STATUS_INTERVAL_MS)

    async def _let_somebody_in(self, console: Console, stop: asyncio.Event) -> None:
        """Show the one key of a cluster that other machines reach, at its first start."""
        from paceline.admin.client import AdminClient
        from paceline.net.cluster import Cluster

        assert self.cluster.owner is not None
        cluster = Cluster(self.cluster.bootstrap(), proofs=self.cluster.owner.proofs)
        try:
            async with AdminClient(cluster) as admin:
                await admin.security.enable(
                    partial(self._show_first_key, console), purpose="made by paceline up"
                )
        except PacelineError as error:
            self.why_not_ready = f"the first user could not be let in: {error.message}"
            stop.set()
        finally:
            await cluster.close()

    def _show_first_key(self, console: Console, made: "FirstKey") -> None:
        key = made.credentials
        shown = {"access_key": key.access_key, "secret_key": key.secret_key}
        if self.as_json:
            click.echo(orjson.dumps({"event": "first_key", "user": made.user, **shown}).decode())
            return
        # Above the live view, which a plain print would tear.
        for name, value in shown.items():
            console.print(f"{name.replace('_', ' ')}  {value}", highlight=False, soft_wrap=True)
        console.print(
            f"It is the key of {made.user}, a super user, and is shown this once; keep it with"
            " `paceline login`."
        )

    def _can_become_ready(self) -> bool:
        """Nodes that ended may start again, or a majority and a broker of each group are left."""
        running = [node for node in self.cluster.nodes if node.is_running]
        controllers = sum(node.role == "controller" for node in running)
        groups = {node.name.partition("-")[0] for node in running if node.role == "broker"}
        plan = self.cluster.plan
        return self.restart or (controllers > plan.controllers // 2 and len(groups) == plan.groups)

    def _give_up(self, stop: asyncio.Event, waited_ms: int) -> None:
        ended = [self.ended[name] for name in sorted(self.ended)]
        self.why_not_ready = (
            f"the cluster is not ready after {waited_ms // 1000} s:"
            f" {'; '.join(ended) or self._what_is_missing()};"
            f" the nodes' logs are in {self.cluster.plan.data_dir / 'logs'}"
        )
        stop.set()

    async def _refresh(self, session: aiohttp.ClientSession) -> None:
        owner = self.cluster.owner
        if owner is not None:
            owner.secrets.reload()
        for address in self.cluster.controller_addresses:
            document = await get_json(session, address, "/v1/routes", owner)
            if document is None:
                continue
            with contextlib.suppress(BadRequestError):
                view = ClusterView.from_json(document)
                if self.view is None or view.version >= self.view.version:
                    self.view = view
                break
        nodes = self.cluster.nodes
        asking = (_status(session, node, owner) for node in nodes)
        answers = await asyncio.gather(*asking)
        for node, answer in zip(nodes, answers, strict=True):
            if answer is None:
                self.statuses.pop(node.name, None)
            else:
                self.statuses[node.name] = answer

    def _note_deaths(self, clock: SystemClock, restart_at: dict[str, int]) -> None:
        for node in self.cluster.reap():
            self.events.append(node.last_words())
            self.ended[node.name] = node.last_words()
            restart_at[node.name] = clock.monotonic_ms() + RESTART_AFTER_MS
        for node in self.cluster.nodes:
            due = restart_at.get(node.name)
            if due is not None and self.restart and clock.monotonic_ms() >= due:
                del restart_at[node.name]
                self.cluster.restart(node)
                self.events.append(f"{node.name} started again")

    def _what_is_missing(self) -> str:
        if self._has_masters():
            return "a gateway does not open its doors"
        running = [node for node in self.cluster.nodes if node.is_running]
        silent = sum(node.name not in self.statuses for node in running)
        if silent:
            return (
                f"{silent} of {len(running)} processes have not answered yet, perhaps because the"
                " machine is busy"
            )
        return "no master was elected"

    def _is_ready(self) -> bool:
        return self._has_masters() and all(
            node.name in self.statuses for node in self.cluster.nodes if node.role == "gateway"
        )

    def _has_masters(self) -> bool:
        if self.view is None or len(self.view.groups) < self.cluster.plan.groups:
            return False
        open_groups = {
            status["group"]
            for status in self.statuses.values()
            if status.get("role") == "master" and status["is_open"]
        }
        return len(open_groups) >= self.cluster.plan.groups

    def _picture(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for column in ("node", "role", "epoch", "in sync", "end", "confirm", "address"):
            table.add_column(column)
        for node in self.cluster.nodes:
            table.add_row(*self._row(node))
        if self.ready_ms is None:
            head = Text("starting ...")
        else:
            bootstrap = self.cluster.controller_addresses[0]
            head = Text(f"ready after {self.ready_ms / 1000:.2f} s; bootstrap {bootstrap}", "bold")
        tail = [Text(line, "yellow") for line in self.events[-5:]]
        return Group(head, table, *tail, Text("Ctrl-C stops the cluster", "dim"))

    def _row(self, node: Node) -> tuple[str, ...]:
        if not node.is_running:
            return (node.name, f"ended ({node.how_ended})", "", "", "", "", node.address)
        status = self.statuses.get(node.name)
        if status is None:
            return (node.name, "no answer", "", "", "", "", node.address)
        if node.role == "gateway":
            return (node.name, "gateway", "", "", "", "", _doors_of(node))
        if node.role == "controller":
            epoch = f"term {status['term']}"
            return (node.name, f"controller, {status['role']}", epoch, "", "", "", node.address)
        group = None if self.view is None else self.view.groups.get(status["group"])
        in_sync = "" if group is None or status["replica_id"] not in group.sync_state_set else "yes"
        fields = (str(status[key]) for key in ("role", "epoch"))
        positions = (f"{status[key]:,}" for key in ("end", "confirm"))
        return (node.name, *fields, in_sync, *positions, node.address)

    def _say_changes(self) -> None:
        """Without a terminal: one line when something changed."""
        state: dict[str, Any] = {
            "event": "ready" if self.ready_ms is not None else "starting",
            "ready_ms": self.ready_ms,
            "bootstrap": self.cluster.controller_addresses,
            "data_dir": str(self.cluster.plan.data_dir),
            "nodes": [
                {
                    "name": node.name,
                    "role": self.statuses.get(node.name, {}).get("role", node.role),
                    "pid": node.pid,
                    "running": node.is_running,
                    "address": node.address,
                    **({"doors": node.doors} if node.doors else {}),
                }
                for node in self.cluster.nodes
            ],
        }
        line = orjson.dumps(state).decode()
        if line == self._last_said:
            return
        self._last_said = line
        if self.as_json:
            click.echo(line)
        elif self.ready_ms is not None:
            roles = ", ".join(f"{node['name']} {node['role']}" for node in state["nodes"])
            click.echo(f"ready after {self.ready_ms / 1000:.2f} s: {roles}")
            for node in self.cluster.nodes:
                if node.doors:
                    click.echo(f"{node.name}: {_doors_of(node)}")
            click.echo(f"bootstrap {state['bootstrap'][0]}; Ctrl-C stops the cluster")
        sys.stdout.flush()


async def _status(
    session: aiohttp.ClientSession, node: Node, owner: Owner | None
) -> dict[str, Any] | None:
    """What a node says of itself; of a gateway, that it is ready."""
    if node.role == "gateway":
        return await get_json(session, node.address, "/readyz", owner)
    return await broker_status(session, node.address, owner)


def _doors_of(node: Node) -> str:
    return ", ".join(f"{door} {address}" for door, address in node.doors.items())
