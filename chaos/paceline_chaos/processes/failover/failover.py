"""`paceline chaos failover`: kill -9 of the master, again and again, under a steady load.

One cluster of the product's own processes lives through all kills: the master dies, is started
again a while later, and the next one dies when all replicas are in sync and have been for a second.
What clients saw is recorded as a history and judged by `failover_figures`.
"""

import asyncio
import gc
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from paceline.admin.client import AdminClient
from paceline.cli.local.local_client import broker_status, find_master, wait_ready
from paceline.cli.local.local_cluster import ClusterPlan, LocalCluster, Node
from paceline.errors import DeadlineError
from paceline.platform.runtime import SystemClock, cancel_and_wait, pause, spawn
from paceline_broker.app import main as broker_main
from paceline_chaos.checkers import judge
from paceline_chaos.history.entering import enter_probe
from paceline_chaos.history.model import FaultEvent, History, Phase
from paceline_chaos.history.recorder import Recorder
from paceline_chaos.processes.failover.evidence import bugs_told, enter_decisions, enter_logs
from paceline_chaos.processes.failover.load import StallWatch, SteadyClients
from paceline_chaos.processes.node.fork_server import ForkServer
from paceline_chaos.report.failover_figures import FailoverFigures, Kill, figures_of
from paceline_chaos.verdict import Verdict
from paceline_controller.app import main as controller_main

TOPIC = "failover"
QUEUES = 8
SETTLE_MS = 1000
RESTART_MS = 1500
"""A dead process starts again so long after the kill: what its start costs the two cores would be
measured with what it is not part of. It is forked without its imports, as at first."""
IN_SYNC_TIMEOUT_MS = 30_000
PROBE_MS = 100


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
        self._topics: dict[int, str] = {}
        world = {
            "bed": "processes",
            "scenario": "failover",
            "controllers": [node.name for node in cluster.nodes if node.role == "controller"],
            "min_in_sync_replicas": (plan.brokers + 1) // 2,
            **_settings(plan),
        }
        self.recorder = Recorder(self._now_us, world)
        self.kills: list[Kill] = []
        self.stalls = StallWatch(self.recorder)

    def _now_us(self) -> int:
        return int((asyncio.get_running_loop().time() - self._began) * 1_000_000)

    @property
    def history(self) -> History:
        return self.recorder.history

    async def run(self) -> None:
        """All kills, one after the other."""
        cluster, plan = self._cluster, self._plan
        await wait_ready(cluster)
        self._began = asyncio.get_running_loop().time()
        self._unix_zero_us = self._clock.unix_ms() * 1000
        bootstrap = ",".join(cluster.controller_addresses)
        async with AdminClient(bootstrap) as admin:
            await admin.topics.create(TOPIC, queues=QUEUES)
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
        async with AdminClient(bootstrap) as admin:
            self._topics = {int(one.topic_id): str(one.topic) for one in await admin.topics.all()}
        await self._all_in_sync()
        self.recorder.add(Phase, name="end")

    def judged(self) -> tuple[FailoverFigures, Verdict]:
        """After the cluster has stopped: the figures, and whether any promise was broken."""
        enter_decisions(self.recorder, self._cluster, unix_zero_us=self._unix_zero_us)
        enter_logs(self.recorder, self._cluster, self._topics)
        verdict = judge(self.history)
        bugs = tuple(bugs_told(self._cluster))
        return (
            figures_of(self.history, self.kills, self.stalls.stalls, _settings(self._plan)),
            Verdict(violations=(*verdict.violations, *bugs), counters=verdict.counters),
        )

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
                raise DeadlineError(
                    f"the replicas did not come back in sync: see {self._cluster.plan.data_dir}"
                )
            await pause(50)

    async def _probe(self, node: Node) -> None:
        timeout = aiohttp.ClientTimeout(total=1)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                asked_us = self.recorder.now_us()
                status = await broker_status(session, node.address)
                if status is not None:
                    enter_probe(self.recorder, node.name, status, asked_us=asked_us)
                await pause(PROBE_MS)


def _settings(plan: FailoverPlan) -> dict[str, Any]:
    return {
        "clients": plan.clients,
        "messages_per_second": plan.rate,
        "durability": plan.durability,
        "brokers": plan.brokers,
    }


_MAINS = {"broker": broker_main, "controller": controller_main}


def _main(arguments: list[str]) -> int:
    """A role, and the arguments of the product's program for it."""
    role, *rest = arguments
    return _MAINS[role](rest)


@dataclass(slots=True, kw_only=True)
class ForkedCluster(LocalCluster):
    """Starts dead nodes again without their imports, as it starts them first."""

    server: ForkServer

    def restart(self, node: Node) -> None:
        assert not node.is_running, node
        arguments = [node.role, "--config", str(node.config_path)]
        node.pid = self.server.start(node.name, arguments, node.log_path).pid
        node.exit_status = None


def measure(plan: FailoverPlan, folder: Path) -> Failover:
    """Start a cluster in `folder`, measure, stop it. Not from within a running loop."""
    server = ForkServer(_main)  # before there is a lock, a node, or a loop
    cluster = ForkedCluster(
        plan=ClusterPlan(
            data_dir=folder, brokers_per_group=plan.brokers, port=0, durability=plan.durability
        ),
        server=server,
    )
    cluster.prepare()
    failover = Failover(cluster, plan)
    try:
        cluster.start()
        # Entries of a history live to its end, and going through 200,000 of them for cycles again
        # and again stops the harness for up to a second.
        gc.disable()
        # asyncio's own loop: uvloop's clock counts milliseconds.
        asyncio.run(failover.run())
    finally:
        gc.enable()
        cluster.stop()
        server.close()
    return failover
