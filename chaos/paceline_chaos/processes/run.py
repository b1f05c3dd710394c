"""One run of a scenario: cluster, load, faults, healing, drain, clean stop, verdict.

The history is written line by line while it happens. What is judged comes from clients, probes, the
controllers' logs and, after the stop, from the files of every node.
"""

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paceline.admin.client import AdminClient
from paceline.errors import ConfigError, PacelineError
from paceline.platform.disk_real import RealDisk
from paceline.platform.runtime import SeededRandom, pause
from paceline_chaos.checkers.expectations import (
    EXPECT,
    as_table,
    availability,
    judged,
    longest_gap,
)
from paceline_chaos.cluster_sim.dump import dump_log, replayed_digest
from paceline_chaos.cluster_sim.jobs.consuming import RETRIES_MAX
from paceline_chaos.history.codec import HistoryWriter
from paceline_chaos.history.decided import decided
from paceline_chaos.history.model import (
    ALL_ACK,
    AUTO_IN_SYNC,
    IN_SYNC,
    ControllerDump,
    History,
    Phase,
    ReplicaDump,
    Stall,
)
from paceline_chaos.history.recorder import Recorder
from paceline_chaos.processes.clients import Clients
from paceline_chaos.processes.cluster import Cluster, traceback_in
from paceline_chaos.processes.leaders import leaderless_ms
from paceline_chaos.processes.network import Network
from paceline_chaos.processes.node.fork_server import ForkServer
from paceline_chaos.processes.scenario.nemesis import Ended, Nemesis
from paceline_chaos.processes.scenario.scenario import Scenario, plan
from paceline_chaos.processes.security import secure
from paceline_chaos.processes.watch import Status, Watch
from paceline_chaos.verdict import CODE, Verdict, Violation

READY_TIMEOUT_MS = 30_000
STOP_TIMEOUT_MS = 15_000
_POLL_MS = 20
_WORDS_MAX = 300
_TAIL_MS = 1_000
"""Load goes on for so long after the last fault, so that what it broke is seen to work."""

Say = Callable[..., None]
"""say(event, **fields): progress for people and programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a run."""

    scenario: str
    seed: int
    verdict: Verdict
    given_up: tuple[Violation, ...]
    """Broken, and allowed to be by the scenario's settings."""
    observed: tuple[Violation, ...]
    """Part of the verdict: what the harness saw and the history does not tell."""
    figures: dict[str, Any]


class Run:
    """Owned by its process; `run` once."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        folder: Path,
        server: ForkServer,
        say: Say,
        *,
        is_isolated: bool,
    ) -> None:
        """`folder` is made, and must not be there. Isolated: in a network namespace of its own."""
        self._scenario = scenario
        self._is_isolated = is_isolated
        self._seed = seed
        self._folder = folder
        self._say = say
        folder.mkdir(parents=True)
        self._cluster = Cluster(
            folder / "data", scenario.cluster, server, has_shadow=scenario.needs_shadow
        )
        self._began: float | None = None
        world = {
            "bed": "processes",
            "scenario": scenario.name,
            "seed": seed,
            "groups": {
                group: [node.name for node in self._cluster.brokers if node.group == group]
                for group in self._cluster.groups
            },
            "controllers": [node.name for node in self._cluster.controllers],
            "durability": scenario.cluster.durability,
            "min_in_sync_replicas": scenario.cluster.min_in_sync_replicas
            or (scenario.cluster.brokers + 1) // 2,
            "max_reconsume_times": RETRIES_MAX,
            ALL_ACK: scenario.cluster.settings.get(ALL_ACK, True),
            IN_SYNC: scenario.cluster.settings.get(IN_SYNC, 1),
            AUTO_IN_SYNC: scenario.cluster.settings.get(AUTO_IN_SYNC, False),
            EXPECT: as_table(scenario.expect),
        }
        self._writer = HistoryWriter(folder / "history.jsonl", world)
        self._recorder = Recorder(self._now_us, world, sink=self._writer.write)
        self._violations: list[Violation] = []
        self._leaderless_ms: int | None = None

    def _now_us(self) -> int:
        now = asyncio.get_running_loop().time()
        if self._began is None:
            self._began = now
        return int((now - self._began) * 1_000_000)

    @property
    def history(self) -> History:
        return self._recorder.history

    async def run(self) -> Result:
        """From an empty folder to the verdict; no process is left, whatever happens."""
        try:
            if self._is_isolated:
                async with Network() as network:
                    await self._under(network)
            else:
                await self._under(None)
        finally:
            self._cluster.kill_all()
            self._recorder.close()
            self._writer.close()
        return self._judged()

    async def _under(self, network: Network | None) -> None:
        scenario, cluster, recorder = self._scenario, self._cluster, self._recorder
        seed = f"{scenario.name}-{self._seed}"
        clients = Clients(
            scenario.load,
            recorder,
            cluster.bootstrap,
            seed=seed,
            node_names={node.address: node.name for node in cluster.nodes.values()},
            brokers=[(node.address, node.replication_address) for node in cluster.brokers],
            tls=None if cluster.tls is None else cluster.tls.client,
        )
        self._say("starting", nodes=len(cluster.nodes))
        for node in cluster.nodes.values():
            cluster.start(node)
        async with Watch(cluster, recorder) as watch:
            nemesis = Nemesis(
                cluster,
                watch,
                recorder,
                SeededRandom(f"{seed}-nemesis"),
                network=network,
                clients=clients.hosts,
            )
            nemesis.may_empty = scenario.expect.refusals_max
            await self._ready(watch)
            nemesis.start()
            try:
                if cluster.tls is not None:
                    await secure(cluster.connect, list(clients.hosts))
                await self._configure(watch)
                await clients.prepare()
                await self._load(clients, nemesis)
                await self._settle(clients, watch, nemesis)
                await self._drain(clients, watch, nemesis)
            finally:
                await nemesis.stop()
                await clients.abort()
            final = dict(watch.statuses)
            topics = await self._topics(watch)
            recorder.add(Phase, name="end")
        await self._stop()
        self._note(nemesis, clients)
        self._note_leaders(watch)
        self._dump(final, topics)

    # -- phases -----------------------------------------------------------------------------------

    async def _ready(self, watch: Watch) -> None:
        groups = self._cluster.groups
        if not await self._until(
            lambda: all(watch.master(group) for group in groups), READY_TIMEOUT_MS
        ):
            raise PacelineError(
                f"the cluster did not come up within {READY_TIMEOUT_MS // 1000} s; "
                f"see {self._folder / 'data' / 'logs'}"
            )

    async def _configure(self, watch: Watch) -> None:
        """Settings of the groups: the leader elects anew, for they change with an epoch (R8)."""
        settings = self._scenario.cluster.settings
        if not settings:
            return
        async with AdminClient(self._cluster.connect) as admin:
            for group in self._cluster.groups:
                later = watch.epoch(group) + 1
                await admin.broker_groups.set_settings(group, **settings)
                has_begun = partial(_has_epoch, watch, group, later)
                if not await self._until(has_begun, READY_TIMEOUT_MS):
                    raise PacelineError(f"{group} got no epoch with the new settings")

    async def _until(self, is_true: Callable[[], bool], within_ms: int) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_ms / 1000
        while not is_true():
            if loop.time() > deadline:
                return False
            await pause(_POLL_MS)
        return True

    async def _load(self, clients: Clients, nemesis: Nemesis) -> None:
        faults = plan(self._scenario, SeededRandom(f"{self._scenario.name}-{self._seed}-plan"))
        last_ms = max((fault.at_ms + fault.for_ms for fault in faults), default=0)
        load_ms = max(int(self._scenario.load.seconds * 1000), last_ms + _TAIL_MS)
        self._say("load", seconds=load_ms / 1000, faults=len(faults))
        self._recorder.add(Phase, name="load")
        clients.start()
        loop = asyncio.get_running_loop()
        until = loop.time() + load_ms / 1000
        await nemesis.carry_out(faults)
        await pause(max(0.0, until - loop.time()) * 1000)

    async def _settle(self, clients: Clients, watch: Watch, nemesis: Nemesis) -> None:
        """Heal everything; the cluster must become whole by itself, with the load going on."""
        self._say("heal")
        limit_ms = self._scenario.expect.settle_ms_max
        await nemesis.heal()
        # Starts take their time when the machine is busy: healed is who answers.
        await self._until(watch.do_all_answer, limit_ms)
        healed_us = self._recorder.add(Phase, name="heal").at_us
        loop = asyncio.get_running_loop()
        began = loop.time()
        if await self._until(watch.is_whole, limit_ms):
            self._say("whole", after_ms=int((loop.time() - began) * 1000))
        else:
            self._fail(
                "EXPECT", f"not every replica is in sync {limit_ms} ms after everything was healed"
            )
        if not await self._until(lambda: clients.are_acknowledged(healed_us), limit_ms):
            self._fail("EXPECT", f"a sender got no acknowledgement {limit_ms} ms after the healing")
        if not await clients.finish():
            self._fail("EXPECT", "a client did not come to an end")

    async def _drain(self, clients: Clients, watch: Watch, nemesis: Nemesis) -> None:
        """No new work: every replica gets and confirms everything, and shows all of it."""
        self._say("drain")
        self._recorder.add(Phase, name="drain")
        limit_ms = self._scenario.expect.settle_ms_max
        if not await self._until(lambda: self._is_level(watch), limit_ms):
            self._fail("EXPECT", "not every replica reached one confirmed end after the load")
        try:
            async with asyncio.timeout(limit_ms / 1000):
                damaged = await clients.read_everything(self._cluster.brokers)
        except TimeoutError:
            self._fail("EXPECT", "not every replica showed all its messages in the end")
            return
        for name, said in damaged.items():
            if name not in nemesis.flipped:
                self._fail("R23", f"{name} has damage that no fault made: {said}")

    def _is_level(self, watch: Watch) -> bool:
        ends: dict[str, set[int]] = {}
        for node in self._cluster.brokers:
            status = watch.statuses.get(node.name)
            if status is None or status["confirm"] != status["end"]:
                return False
            ends.setdefault(node.group, set()).add(status["end"])
        return all(len(found) == 1 for found in ends.values())

    async def _topics(self, watch: Watch) -> dict[int, str]:
        """Topic ids by name, as any controller has them."""
        try:
            async with AdminClient(self._cluster.connect) as admin:
                topics = await admin.topics.all(system=True)
                return {int(topic.topic_id): str(topic.topic) for topic in topics}
        except PacelineError as error:
            self._fail("EXPECT", f"the topics are not told in the end: {error.message}")
            return {}

    async def _stop(self) -> None:
        """A clean stop: brokers first; every node must end with 0."""
        self._say("stop")
        for nodes in (self._cluster.brokers, self._cluster.controllers):
            for node in nodes:
                if not node.is_running:
                    self._fail(CODE, f"{node.name} had ended before it was asked to stop")
                self._cluster.signal(node, signal.SIGTERM)
            await self._until(
                lambda nodes=nodes: not any(node.is_running for node in nodes),  # type: ignore[misc]
                STOP_TIMEOUT_MS,
            )
            for node in nodes:
                if node.is_running:
                    self._fail("EXPECT", f"{node.name} did not stop within {STOP_TIMEOUT_MS} ms")
                    self._cluster.kill(node)
                elif (code := self._cluster.reap(node)) not in (0, None):
                    self._fail(CODE, f"{node.name} stopped with exit code {code}")

    # -- the verdict ------------------------------------------------------------------------------

    def _fail(self, name: str, sentence: str) -> None:
        self._violations.append(Violation(property=name, sentence=sentence))

    def _note(self, nemesis: Nemesis, clients: Clients) -> None:
        self.ended = nemesis.ended
        self.emptied = nemesis.emptied
        for target in nemesis.missed if not self._scenario.draw else ():
            self._fail("EXPECT", f"a fault found nobody to hit: {target}")
        self._violations += unexcused(nemesis.ended)
        for error in clients.errors:
            self._fail(CODE, f"a client raised {error!r}")
        for node in self._cluster.nodes.values():
            found = traceback_in(node.log_path)
            if found is not None:
                self._fail(CODE, f"{node.name} told of a bug: {found}")

    def _note_leaders(self, watch: Watch) -> None:
        self._leaderless_ms = leaderless_ms(watch.leaderships, self.history.entries)
        found_ms, most_ms = self._leaderless_ms, self._scenario.expect.leaderless_ms_max
        if most_ms is not None and (found_ms is None or found_ms > most_ms):
            told = "no leader died" if found_ms is None else f"nobody led for {found_ms} ms"
            self._fail("EXPECT", f"{told}; the bound after the death of a leader is {most_ms} ms")

    def _dump(self, final: dict[str, Status], topics: dict[int, str]) -> None:
        disk = RealDisk()
        for node in self._cluster.brokers:
            found = dump_log(disk, str(node.folder), group=node.group, topics=topics)
            self._recorder.add(
                ReplicaDump,
                node=node.name,
                group=node.group,
                replica=final.get(node.name, {}).get("replica_id"),
                start=found.start,
                confirm=found.confirm,
                end=found.end,
                batches=found.batches,
                damage=found.damage,
            )
        for node in self._cluster.controllers:
            status = final.get(node.name)
            if status is None:
                continue
            index = status["applied_index"]
            self._recorder.add(
                ControllerDump,
                node=node.name,
                index=index,
                digest=status["digest"],
                replayed_digest=replayed_digest(
                    disk, str(node.folder), controller_id=node.name, until_index=index
                ),
            )
        disk.close()

    def _judged(self) -> Result:
        self._say("judge", entries=len(self.history.entries))
        verdict, given_up = judged(self.history, self._violations)
        gap = longest_gap(self.history)
        stalls = [entry.for_us for entry in self.history.entries if isinstance(entry, Stall)]
        figures = {
            "gap_ms": gap.own_ms,
            "gap_stalled_ms": gap.stalled_ms,
            "availability": round(availability(self.history), 3),
            "elections": decided(self.history.entries).elections,
            "leaderless_ms": self._leaderless_ms,
            "harness_stalls": len(stalls),
            "harness_stall_ms_max": max(stalls, default=0) // 1000,
            "ended_by_themselves": [
                f"{one.node}: {one.code}{f' ({one.excuse})' if one.excuse else ''}"
                for one in self.ended
            ],
            "emptied": self.emptied,
        }
        return Result(
            scenario=self._scenario.name,
            seed=self._seed,
            verdict=verdict,
            given_up=given_up,
            observed=tuple(self._violations),
            figures=figures,
        )


def unexcused(ended: Sequence[Ended]) -> list[Violation]:
    """One for each node that ended although nothing had ended it or excuses it."""
    found = []
    wrong = [one for one in ended if not one.excuse]
    for name in dict.fromkeys(one.node for one in wrong):
        first, *more = (one for one in wrong if one.node == name)
        often = f", and {len(more)} times more" if more else ""
        sentence = (
            f"{name} ended by itself with exit code {first.code}{often}; "
            f"it said last: {first.words[-_WORDS_MAX:] or 'nothing'}"
        )
        found.append(Violation(property=CODE, sentence=sentence))
    return found


def _has_epoch(watch: Watch, group: str, epoch: int) -> bool:
    return watch.epoch(group) >= epoch


def check_permitted(scenario: Scenario) -> None:
    """ConfigError if this machine cannot run the scenario."""
    import sys

    if sys.platform != "linux":
        raise ConfigError("chaos on real processes needs Linux: addresses, namespaces, signals")
