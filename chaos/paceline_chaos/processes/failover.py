"""`paceline chaos failover`: kill -9 of the master, again and again, under a steady load.

One cluster of the product's own processes lives through all kills: the master dies, is started
again a while later, and the next one dies when all replicas are in sync and have been for a second.
What clients saw is recorded as a history and judged by `failover_figures`.
"""

import asyncio
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import click
import orjson

from paceline.admin import AdminClient
from paceline.cli.local_client import broker_status, find_master, wait_ready
from paceline.cli.local_cluster import ClusterPlan, LocalCluster, Node
from paceline.errors import DeadlineError
from paceline.runtime import SystemClock, cancel_and_wait, pause, spawn
from paceline_chaos.history import codec
from paceline_chaos.history.model import Decision, FaultEvent, History, Phase, Probe
from paceline_chaos.history.recorder import Recorder
from paceline_chaos.processes.failover_figures import FailoverFigures, Kill, figures_of
from paceline_chaos.processes.failover_load import StallWatch, SteadyClients
from paceline_chaos.report.write import write_failover_report, write_report
from paceline_chaos.verdict import Verdict

TOPIC = "failover"
QUEUES = 8
SETTLE_MS = 1000
RESTART_MS = 1500
"""A dead process starts again so long after the kill: its start-up costs a core for most of a
second, which would be measured with what it is not part of."""
IN_SYNC_TIMEOUT_MS = 30_000
PROBE_MS = 100
LOG_FIELDS = frozenset({"unix_ms", "level", "event", "logger", "node", "epoch", "index"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPlan:
    """What to measure."""

    kills: int = 100
    clients: int = 8
    rate: float = 500.0
    """Messages a second of all clients together."""
    durability: str = "fsync"
    brokers: int = 3


class Failover:
    """One measurement on a cluster that runs; `run` once."""

    def __init__(self, cluster: LocalCluster, plan: FailoverPlan) -> None:
        self._cluster = cluster
        self._plan = plan
        self._clock = SystemClock()
        self._began = 0.0
        self._unix_zero_us = 0
        world = {"bed": "processes", "scenario": "failover", **_settings(plan)}
        self.recorder = Recorder(self._now_us, world)
        self.kills: list[Kill] = []
        self.stalls = StallWatch(self.recorder)

    def _now_us(self) -> int:
        return int((asyncio.get_running_loop().time() - self._began) * 1_000_000)

    @property
    def history(self) -> History:
        return self.recorder.history

    async def run(self) -> FailoverFigures:
        """All kills, one after the other."""
        cluster, plan = self._cluster, self._plan
        await wait_ready(cluster)
        self._began = asyncio.get_running_loop().time()
        self._unix_zero_us = self._clock.unix_ms() * 1000
        bootstrap = ",".join(cluster.controller_addresses)
        async with AdminClient(bootstrap) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        clients = SteadyClients(self.recorder, bootstrap, TOPIC, count=plan.clients, rate=plan.rate)
        self.recorder.add(Phase, name="load")
        await clients.start()
        probes = [spawn(self._probe(node), name=f"probe-{node.name}") for node in cluster.brokers]
        try:
            with self.stalls.running():
                for number in range(plan.kills):
                    self.kills.append(await self._kill(number))
        finally:
            await cancel_and_wait(*probes)
            await clients.stop()
            self.recorder.close()
        self.recorder.add(Phase, name="end")
        self._read_decisions()
        return figures_of(self.history, self.kills, self.stalls.stalls, _settings(plan))

    async def _kill(self, number: int) -> Kill:
        await self._all_in_sync()
        await pause(SETTLE_MS)
        found = await find_master(self._cluster, "g1")
        if found is None:
            raise DeadlineError("the group has no master: see the nodes' logs")
        master, _ = found
        at_us = self._fault(master, is_begin=True)
        self._cluster.signal(master, signal.SIGKILL)
        await pause(RESTART_MS)
        while master.is_running:
            self._cluster.reap()
            await pause(5)
        restarted_us = self._fault(master, is_begin=False)
        self._cluster.restart(master)
        await self._all_in_sync()
        return Kill(
            number=number,
            node=master.name,
            at_us=at_us,
            restarted_us=restarted_us,
            in_sync_us=self.recorder.now_us(),
        )

    def _fault(self, node: Node, *, is_begin: bool) -> int:
        event = self.recorder.add(FaultEvent, kind="kill", target=node.name, is_begin=is_begin)
        return event.at_us

    async def _all_in_sync(self) -> None:
        deadline = self._clock.monotonic_ms() + IN_SYNC_TIMEOUT_MS
        while True:
            found = await find_master(self._cluster, "g1")
            replication = None if found is None else found[1]["replication"]
            if replication and len(replication["sync_state_set"]) == len(self._cluster.brokers):
                return
            if self._clock.monotonic_ms() > deadline:
                raise DeadlineError("the replicas did not come back in sync: see the nodes' logs")
            await pause(50)

    async def _probe(self, node: Node) -> None:
        timeout = aiohttp.ClientTimeout(total=1)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                status = await broker_status(session, node.address)
                if status is not None:
                    self._enter(node, status)
                await pause(PROBE_MS)

    def _enter(self, node: Node, status: Mapping[str, Any]) -> None:
        self.recorder.add(
            Probe,
            node=node.name,
            group=status["group"],
            replica=status["replica_id"],
            incarnation=status["incarnation"],
            role=status["role"],
            epoch=status["epoch"],
            is_open=status["is_open"],
            start=status["start"],
            end=status["end"],
            flushed=status["flushed"],
            confirm=status["confirm"],
        )

    def _read_decisions(self) -> None:
        """What the controllers applied, from their logs; in whole milliseconds of wall time."""
        for node in self._cluster.nodes:
            if node.role != "controller":
                continue
            for line in _json_lines(node.log_path):
                at_us = line.get("unix_ms", 0) * 1000 - self._unix_zero_us
                if line.get("logger") == "paceline.controller" and "index" in line:
                    members = {key: value for key, value in line.items() if key not in LOG_FIELDS}
                    self.recorder.add(
                        Decision,
                        at_us=max(0, at_us),
                        node=node.name,
                        index=line["index"],
                        kind=line["event"],
                        members=members,
                    )


def _json_lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_bytes().splitlines():
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue  # a last word on stderr
        if isinstance(document, dict):
            found.append(document)
    return found


def _settings(plan: FailoverPlan) -> dict[str, Any]:
    return {
        "clients": plan.clients,
        "messages_per_second": plan.rate,
        "durability": plan.durability,
        "brokers": plan.brokers,
        "controllers": 3,
    }


def measure(plan: FailoverPlan, folder: Path) -> tuple[FailoverFigures, History]:
    """Start a cluster in `folder`, measure, stop it. Not from within a running loop."""
    cluster = LocalCluster(
        ClusterPlan(
            data_dir=folder, brokers_per_group=plan.brokers, port=0, durability=plan.durability
        )
    )
    cluster.prepare()
    try:
        cluster.start()
        # asyncio's own loop: uvloop's clock counts milliseconds.
        failover = asyncio.run(_measured(cluster, plan))
    finally:
        cluster.stop()
    return failover


async def _measured(cluster: LocalCluster, plan: FailoverPlan) -> tuple[FailoverFigures, History]:
    failover = Failover(cluster, plan)
    return await failover.run(), failover.history


@click.command("failover")
@click.option("--kills", default=100, show_default=True, type=click.IntRange(1))
@click.option("--clients", default=8, show_default=True, type=click.IntRange(1, 256))
@click.option("--rate", default=500.0, show_default=True, help="Messages a second, of all clients.")
@click.option("--brokers", default=3, show_default=True, type=click.IntRange(2, 7))
@click.option("--durability", default="fsync", type=click.Choice(["fsync", "memory"]))
@click.option(
    "--report",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for failover.html, timeline.html, failover.json and history.jsonl.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON line.")
def command(
    kills: int,
    clients: int,
    rate: float,
    brokers: int,
    durability: str,
    report: Path | None,
    as_json: bool,
) -> int:
    """Kill the master again and again, and measure how long clients wait."""
    plan = FailoverPlan(
        kills=kills, clients=clients, rate=rate, brokers=brokers, durability=durability
    )
    with tempfile.TemporaryDirectory(prefix="paceline-failover-") as folder:
        figures, history = measure(plan, Path(folder))
    if report is not None:
        write_failover_report(figures, report / "failover.html")
        write_report(history, Verdict(violations=(), counters={}), report / "timeline.html")
        (report / "failover.json").write_bytes(orjson.dumps(figures.to_json()))
        codec.save(history, report / "history.jsonl")
    click.echo(orjson.dumps(figures.to_json()).decode() if as_json else _told(figures))
    return 0 if figures.is_met else 1


def _told(figures: FailoverFigures) -> str:
    gaps, back = figures.gaps, figures.return_gaps
    stages = ", ".join(f"{name[:-3]} {value} ms" for name, value in figures.stage_medians().items())
    return (
        f"{len(figures.stages)} kills, {gaps.count} samples, "
        f"{len(figures.samples) - gaps.count} discarded\n"
        f"longest gap of a client: median {gaps.median:.0f} ms, p95 {gaps.p95:.0f} ms, "
        f"p99 {gaps.p99:.0f} ms, max {gaps.max:.0f} ms\n"
        f"while the dead one came back: median {back.median:.0f} ms, p99 {back.p99:.0f} ms, "
        f"max {back.max:.0f} ms\n"
        f"median moments after the kill: {stages}\n"
        f"goals {'met' if figures.is_met else 'NOT met'}"
    )
