"""`paceline bench`: measure produce, consume and latency on a cluster of its own."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson

from paceline.cli.bench import cases, catch_up, failures, overload
from paceline.cli.bench import queues as bench_queues
from paceline.cli.bench.figures import CpuMeter
from paceline.cli.bench.model import MODEL_CASES, run_model_case
from paceline.cli.bench.report import check_report, print_table, write_report
from paceline.cli.bench.rounds import Cell, cells_of, medians
from paceline.cli.local.local_client import find_master, wait_ready
from paceline.cli.local.local_cluster import ClusterPlan, LocalCluster, Node
from paceline.cli.options import FiniteRange
from paceline.errors import ConfigError
from paceline.platform.event_loop import run_loop
from paceline.types import TopicName

TOPIC = TopicName("bench")
ALL_RUNS = ((3, "memory"), (3, "fsync"), (1, "memory"), (1, "fsync"))
CASES = ("produce", "bulk", "json", "post", "consume", "latency")
OVERLOAD = "overload"
KILLING_CASES = ("failover", "restart", "catch-up", "many-queues")
PEER_TIMEOUT_S = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    replicas: int
    durability: str
    chosen: tuple[str, ...]
    inflight: tuple[int, ...]
    size: int
    seconds: float
    queues: int
    groups: int
    behind_mib: int
    has_own_core: bool
    has_tls: bool


@click.command("bench")
@click.option("--replicas", type=click.IntRange(1, 5), default=3, show_default=True)
@click.option("--durability", type=click.Choice(["memory", "fsync"]), default="fsync")
@click.option(
    "--case",
    "chosen",
    multiple=True,
    type=click.Choice((*CASES, *MODEL_CASES, OVERLOAD, *KILLING_CASES)),
    help=f"Default: {', '.join(CASES)}.",
)
@click.option("--inflight", default="1,64,512,4096", show_default=True)
@click.option("--size", type=click.IntRange(1, 1 << 20), default=1024, show_default=True)
@click.option("--seconds", type=FiniteRange(0.2, 600), default=3.0, show_default=True)
@click.option("--queues", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option(
    "--groups",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Broker groups, each of --replicas brokers; topics are in all of them.",
)
@click.option(
    "--behind-mib",
    type=click.IntRange(1, 65_536),
    default=1024,
    show_default=True,
    help="catch-up: what the replica lacks.",
)
@click.option(
    "--own-core",
    is_flag=True,
    help="catch-up: the replica that returns has one core, all others share the rest (Linux).",
)
@click.option("--tls", is_flag=True, help="All connections by TLS; not for cases over plain HTTP.")
@click.option("--all", "run_all", is_flag=True, help="All replica counts and durabilities.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="How often each case is measured, each time on a fresh cluster; rows tell the median.",
)
@click.option("--peer", "peers", multiple=True, help="A program that prints the same JSON lines.")
@click.option("--write", "report", type=click.Path(path_type=Path), help="Write Markdown here.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a case.")
def command(
    replicas: int,
    durability: str,
    chosen: tuple[str, ...],
    inflight: str,
    size: int,
    seconds: float,
    queues: int,
    groups: int,
    behind_mib: int,
    own_core: bool,
    tls: bool,
    run_all: bool,
    rounds: int,
    peers: tuple[str, ...],
    report: Path | None,
    as_json: bool,
) -> None:
    """Measure throughput, latency and CPU per message on a cluster of its own.

    With --all, --rounds or --peer each case has a fresh cluster; else all cases share one.
    """
    if report is not None:
        check_report(report)
    is_many = run_all or bool(peers) or rounds > 1
    if is_many:
        runs = ALL_RUNS if run_all else ((replicas, durability),)
        cells = cells_of(runs, chosen or CASES, _numbers(inflight))
        rows = _run_many(cells, rounds, peers, _same_flags())
    else:
        options = _Options(
            replicas=replicas,
            durability=durability,
            chosen=chosen or CASES,
            inflight=_numbers(inflight),
            size=size,
            seconds=seconds,
            queues=queues,
            groups=groups,
            behind_mib=behind_mib,
            has_own_core=own_core,
            has_tls=tls,
        )
        rows = _run_one(options, as_json=as_json)
    if not as_json:
        print_table(rows)
    elif is_many:
        for row in rows:
            click.echo(orjson.dumps(row).decode())
    if report is not None:
        write_report(report, rows)
        click.echo(f"written to {report}", err=True)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--inflight {text!r} is not a list like 1,64,512") from error
    if any(not 1 <= number <= 65_536 for number in numbers):
        raise ConfigError(f"--inflight {text!r}: each must be from 1 to 65536")
    return numbers


def _same_flags() -> list[str]:
    """The flags of this call that a child run of the same bench gets too."""
    context = click.get_current_context()
    flags: list[str] = []
    for name in ("size", "seconds", "queues", "groups", "behind_mib"):
        flags += [f"--{name.replace('_', '-')}", str(context.params[name])]
    flags += [f"--{name.replace('_', '-')}" for name in ("own_core", "tls") if context.params[name]]
    return flags


def _run_many(
    cells: Sequence[Cell], rounds: int, peers: Sequence[str], flags: list[str]
) -> list[dict[str, Any]]:
    """Every cell is a process of its own, because nodes are forked before any loop exists."""
    rows: list[dict[str, Any]] = []
    own = [sys.executable, "-m", "paceline.cli.main", "bench", "--json", *flags]
    for number in range(1, rounds + 1):
        for peer in peers:
            click.echo(f"round {number} of {rounds}: {peer}", err=True)
            rows += _lines_of(shlex.split(peer), what=f"peer {peer}")
        for done, cell in enumerate(cells, start=1):
            click.echo(f"round {number} of {rounds}, {done} of {len(cells)}: {cell}", err=True)
            rows += _lines_of([*own, *cell.flags], what="bench")
    return medians(rows)


def _lines_of(arguments: list[str], *, what: str) -> list[dict[str, Any]]:
    finished = subprocess.run(
        arguments, stdout=subprocess.PIPE, check=False, timeout=PEER_TIMEOUT_S
    )
    if finished.returncode != 0:
        raise ConfigError(f"{what} ended with exit code {finished.returncode}")
    rows = [orjson.loads(line) for line in finished.stdout.splitlines() if line.startswith(b"{")]
    return [row for row in rows if "msg_per_s" in row]  # peers also tell their start, or memory


def _run_one(options: _Options, *, as_json: bool) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        plan = ClusterPlan(
            data_dir=Path(folder),
            groups=options.groups,
            brokers_per_group=options.replicas,
            port=0,
            durability=options.durability,
            has_tls=options.has_tls,
        )
        cluster = LocalCluster(plan)
        cluster.prepare()
        try:
            cluster.start()
            return run_loop(_measure(cluster, options, as_json=as_json))
        finally:
            cluster.stop()


async def _measure(
    cluster: LocalCluster, options: _Options, *, as_json: bool
) -> list[dict[str, Any]]:
    await wait_ready(cluster)
    bootstrap = cluster.bootstrap()
    masters = []
    for number in range(1, options.groups + 1):
        found = await find_master(cluster, f"g{number}")
        assert found is not None
        masters.append(found[0])
    await cases.create_topic(bootstrap, TOPIC, queues=options.queues)
    setting = cases.BenchSetting(
        bootstrap=bootstrap,
        topic=TOPIC,
        size=options.size,
        seconds=options.seconds,
        replicas=options.replicas,
        durability=options.durability,
        bodies=cases.random_bodies(options.size),
        meter=CpuMeter(_processes(cluster, masters)),
    )
    rows: list[dict[str, Any]] = []
    for case in options.chosen:
        if case == "catch-up":
            measured = await catch_up.catch_up(
                cluster,
                setting,
                behind_mib=options.behind_mib,
                has_own_core=options.has_own_core,
            )
        elif case == OVERLOAD:
            measured = await overload.overload(setting)
        elif case == "many-queues":
            measured = await bench_queues.many_queues(cluster, setting)
        elif case in KILLING_CASES:
            kill = failures.failover if case == "failover" else failures.restart
            measured = [await kill(cluster, setting)]
        elif case in MODEL_CASES:
            measured = await run_model_case(case, setting)
        else:
            measured = await cases.run_case(
                case, setting, inflight=options.inflight, master_address=masters[0].address
            )
        for figures in measured:
            rows.append(figures.to_json())
            if as_json:
                click.echo(orjson.dumps(rows[-1]).decode())
    return rows


def _processes(cluster: LocalCluster, masters: Sequence[Node]) -> dict[str, int]:
    processes = {"client": os.getpid()}
    replicas = 0
    for node in cluster.nodes:
        assert node.pid is not None
        if node is masters[0]:
            processes["master"] = node.pid
        elif node in masters:
            processes[f"master{masters.index(node) + 1}"] = node.pid
        elif node.role == "broker":
            replicas += 1
            processes[f"replica{replicas}"] = node.pid
        else:
            processes[node.name] = node.pid
    return processes
