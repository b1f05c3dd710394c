"""One world from its seed to its verdict.

Phases: the cluster forms; clients work while faults come and go (safety); then only a quorum
heals, what is named stays broken for ever, and the cluster has to come back within `CONVERGE_S`
(liveness): masters elected, every sender acknowledged again, every live replica in its sync state
set, everything readable from every replica. At the end all servers lose power at once, and what
their disks hold is read (with memory durability: they die, and their page caches count).
"""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from paceline.admin.client import AdminClient
from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.telemetry import JsonLineFormatter
from paceline.platform.telemetry import Node as LogNode
from paceline.types import ReplicaId
from paceline.wire.names import is_system_topic
from paceline_chaos.checkers import ALL, SAFETY, judge
from paceline_chaos.checkers.evidence.bounds import Bounds
from paceline_chaos.cluster_sim.coverage import coverage, judged_counts
from paceline_chaos.cluster_sim.doors.fifo import FIFO_TOPICS
from paceline_chaos.cluster_sim.doors.loading import load_grpc
from paceline_chaos.cluster_sim.draining import drain
from paceline_chaos.cluster_sim.dump import LogDump, dump_log, replayed_digest
from paceline_chaos.cluster_sim.faults.inject import Injector
from paceline_chaos.cluster_sim.faults.plan import Plan, draw_plan
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.consuming import RETRIES_MAX
from paceline_chaos.cluster_sim.jobs.permitting import PERMIT_TOPIC
from paceline_chaos.cluster_sim.limits import bounds_of
from paceline_chaos.cluster_sim.nodes import DATA, TRANSACTION_CHECKS, BrokerNode, Node
from paceline_chaos.cluster_sim.probes import PROBE_MS, EventCounter, Prober, counted_logs
from paceline_chaos.cluster_sim.rights.securing import TENANT_TOPICS
from paceline_chaos.cluster_sim.script import Director, Notes, Script
from paceline_chaos.cluster_sim.stage import Stage
from paceline_chaos.cluster_sim.topology import LOAD_MS, Topology, draw_topology
from paceline_chaos.cluster_sim.workload import TOPIC, create_topic
from paceline_chaos.history.entering import are_acknowledged
from paceline_chaos.history.model import (
    ALL_ACK,
    AUTO_IN_SYNC,
    IN_SYNC,
    ControllerDump,
    History,
    LogicalQueueDump,
    Phase,
    Queue,
    ReplicaDump,
)
from paceline_chaos.sim.loop import SimDeadlock, SimStuck
from paceline_chaos.sim.simulation import Simulation
from paceline_chaos.stuck import why_operator
from paceline_chaos.verdict import Verdict, Violation

REPLAY = "paceline chaos replay --bed world --seed {seed}"
FORM_S = 30.0
CONVERGE_S = 30.0
"""L1: everything works again so long after the last fault."""
END_S = 30.0
"""Clients have ended so long after they were asked to: longer than any timeout of theirs."""
DRAIN_S = 30.0
_OTHER_TOPICS = frozenset({PERMIT_TOPIC, *TENANT_TOPICS, *FIFO_TOPICS})
"""Of clients, beside the one that all use."""
STEP_S = 0.02
"""Between two looks at a condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a world."""

    seed: int
    topology: Topology
    plan: Plan
    history: History
    verdict: Verdict
    bounds: Bounds
    """By which its history was judged."""
    digest: str
    counters: Mapping[str, int]
    logs: tuple[str, ...] = ()
    """What the nodes logged, if asked for."""
    trace: tuple[str, ...] = ()
    """Every handle that ran, if asked for."""
    notes: Notes | None = None
    """Of the script, if there was one."""

    @property
    def replay(self) -> str:
        """The command that runs this world again."""
        return REPLAY.format(seed=self.seed)


def run_world(
    seed: int,
    *,
    plan: Plan | None = None,
    load_ms: int = LOAD_MS,
    keep_log: bool = False,
    keep_trace: bool = False,
    topology: Topology | None = None,
    settings: Mapping[str, Any] | None = None,
    script: Script | None = None,
) -> Result:
    """Run the world of a seed, with its own faults or those of `plan`.

    `settings` of all groups are put, and in effect, before the load; a `script` plays during it.
    """
    topology = draw_topology(seed, load_ms=load_ms) if topology is None else topology
    plan = draw_plan(topology) if plan is None else plan
    if topology.has_grpc:
        load_grpc()  # no world reads files of this machine
    formatter = JsonLineFormatter(LogNode(name="world")) if keep_log else None
    counter = EventCounter(formatter=formatter)
    with ExitStack() as stack:
        stack.enter_context(counted_logs(counter))
        simulation = stack.enter_context(Simulation(f"world-{seed}", keeps_log=keep_trace))
        world = _World(simulation, topology, plan, settings=settings or {}, script=script)
        counter.on_error = world.stage.logged
        world.run()
        trace = tuple(simulation.loop.trace.log or ())
        verdict = world.verdict()
        return Result(
            seed=seed,
            topology=topology,
            plan=plan,
            history=world.stage.recorder.history,
            verdict=verdict,
            bounds=world.bounds,
            digest=simulation.digest(),
            counters=world.counters(counter.counts) | judged_counts(verdict.counters),
            logs=tuple(counter.lines),
            trace=trace,
            notes=None if world.director is None else world.director.notes,
        )


class _World:
    """One run; see the module."""

    def __init__(
        self,
        simulation: Simulation,
        topology: Topology,
        plan: Plan,
        *,
        settings: Mapping[str, Any],
        script: Script | None,
    ) -> None:
        given = {
            "bed": "world",
            ALL_ACK: settings.get(ALL_ACK, True),
            IN_SYNC: settings.get(IN_SYNC, 1),
            AUTO_IN_SYNC: settings.get(AUTO_IN_SYNC, False),
            "max_reconsume_times": RETRIES_MAX,
            "transaction_check_max": TRANSACTION_CHECKS,
            **topology.to_json(),
        }
        description = json.loads(json.dumps(given))
        self.simulation = simulation
        self.topology = topology
        self.plan = plan
        self.settings = settings
        self.script = script
        self.director: Director | None = None
        self.stage = Stage(simulation, topology, description)
        self.injector = Injector(self.stage)
        self.prober = Prober(self.stage)
        self.stuck: list[Violation] = []
        self.broken: list[str] = []
        self.waits_for: str | None = None
        """Why a group waits for an operator, in the end (`why_operator`): nothing about liveness is
        judged then."""
        self.topic_id = 0
        self.segments_begun = 0
        self.learners = 0
        """That have something confirmed in the end."""
        self.stage.on_added.append(self._added)
        for node in self.stage.nodes.values():
            self._added(node)
        self._probe_later()

    def _added(self, node: Node) -> None:
        node.on_exit = self.injector.exited
        node.on_emptied = self.injector.emptied

    def run(self) -> None:
        """All phases. One that gets stuck is a violation; the dumps are made all the same."""
        try:
            self._form()
            self._load()
            self._heal()
            if self.waits_for is None:
                self._drain()
        except SimStuck as error:
            self.stuck.append(Violation(property="L1", sentence=str(error)))
        except SimDeadlock as error:
            self.stuck.append(Violation(property="CODE", sentence=str(error)))
        self._end()

    @property
    def bounds(self) -> Bounds:
        """By which it is judged."""
        has_gray = any(fault.kind == "disk_full" for fault in self.plan.broken)
        return bounds_of(self.topology, has_gray=has_gray)

    def verdict(self) -> Verdict:
        """The checkers' word, and what the world itself has seen go wrong."""
        properties = ALL if self.waits_for is None else SAFETY
        judged = judge(self.stage.recorder.history, properties=properties, bounds=self.bounds)
        # A process that loses power in a call of its disk is no error.
        bugs = (*self.stage.bugs, *self.simulation.errors_but(PowerLost))
        return Verdict(
            violations=(*self.stuck, *bugs, *judged.violations), counters=judged.counters
        )

    def counters(self, logged: Mapping[str, int]) -> dict[str, int]:
        """What made this world worth something."""
        counts = coverage(
            self.stage.recorder.history.entries, logged=logged, hits=self.injector.done
        )
        counts["segments_begun"] = self.segments_begun
        if self.waits_for is not None:
            counts[f"given_up_{self.waits_for}"] = 1
        counts["zombie_masters"] = len(self.prober.zombies)
        counts["handles"] = self.simulation.loop.handles_count
        counts.update(self.injector.operations.done)
        counts["learners"] = self.learners
        counts.update({f"fault.{kind}": count for kind, count in self.injector.done.items()})
        counts.update({f"log.{event}": count for event, count in logged.items()})
        return dict(counts)

    # -- phases ------------------------------------------------------------------------------------

    def _phase(self, name: str) -> None:
        self.stage.recorder.add(Phase, name=name, broken=tuple(self.broken))

    def _until(
        self, condition: Callable[[], bool], what: str | Callable[[], str], *, limit_s: float
    ) -> None:
        """Let time pass until the condition holds, looked at each `STEP_S`. Raises SimStuck."""
        end_us = self.simulation.now_us + int(limit_s * 1_000_000)
        while not condition():
            if self.simulation.now_us >= end_us:
                missing = what if isinstance(what, str) else what()
                raise SimStuck(f"within {limit_s:g} s not: {missing}")
            self.simulation.run_for(STEP_S)

    def _probe_later(self) -> None:
        def probe() -> None:
            self.prober.probe()
            self._probe_later()

        self.stage.at(self.stage.now_ms + PROBE_MS, probe)

    def _form(self) -> None:
        for node in self.stage.nodes.values():
            node.start()
        self._until(self._is_whole, self._what_is_missing, limit_s=FORM_S)
        self.stage.run_tool(self._make_topic, "a topic", limit_s=FORM_S)
        if self.settings:
            self.stage.run_tool(self._put_settings, "settings", limit_s=FORM_S)
            self._until(self._has_settings, "an epoch with the settings", limit_s=FORM_S)
            self._until(self._is_whole, self._what_is_missing, limit_s=FORM_S)

    async def _make_topic(self, around: Around) -> None:
        self.topic_id = int((await create_topic(around, queues=self.topology.queues)).topic_id)

    async def _put_settings(self, around: Around) -> None:
        async def put(admin: AdminClient) -> None:
            for group in self.topology.groups:
                await admin.broker_groups.set_settings(group, **self.settings)

        await around.as_admin(put)

    def _has_settings(self) -> bool:
        """Whether every group has begun an epoch with them (R8)."""
        machine = self.stage.machine()
        return machine is not None and all(
            group.settings.to_json() | dict(self.settings) == group.settings.to_json()
            for group in machine.groups.values()
        )

    def _load(self) -> None:
        self._phase("load")
        for client in self.topology.clients:
            self.stage.start_client(client)
        self.injector.schedule(self.plan.faults, start_ms=self.stage.now_ms)
        if self.script is not None:
            end_us = self.simulation.now_us + 1000 * self.topology.load_ms
            self.director = Director(self.stage, self.injector, end_us=end_us)
            self.director.play(self.script)
        self.simulation.run_for(self.topology.load_ms / 1000)

    def _heal(self) -> None:
        self.injector.heal_all()
        self.broken = self.injector.break_for_ever(self.plan.broken)
        self._phase("heal")
        healed_us = self.simulation.now_us
        self._converge()
        if self.waits_for is None:
            self._until(lambda: self._are_acknowledged(healed_us), "acknowledged sends", limit_s=10)
            self.simulation.run_for(self.topology.calm_ms / 1000)
        self._phase("over")
        self.stage.is_over = True
        # The operator's programs too: what they did in the drain would be under no entry.
        clients = [processes[-1] for processes in self.stage.client_processes.values()]
        clients += self.stage.operator_processes
        self._until(
            lambda: all(process.is_dead for process in clients), "clients end", limit_s=END_S
        )
        self.stage.recorder.close()

    def _converge(self) -> None:
        """Until the cluster is whole, or is given up to an operator for whom a group waits."""
        try:
            self._until(self._is_whole, self._what_is_missing, limit_s=CONVERGE_S)
        except SimStuck:
            self.waits_for = self._why_operator()
            if self.waits_for is None:
                raise

    def _why_operator(self) -> str | None:
        """Why a group needs its operator although all nodes run that should."""
        for name in self.topology.groups:
            group, present = self.stage.group_state(name), self._present(name)
            if group is not None and present is not None:
                reason = why_operator(group, present=present)
                if reason is not None:
                    return reason
        return None

    def _present(self, name: str) -> set[ReplicaId] | None:
        """The replicas of a group that are not broken for ever; None: some of them do not run."""
        live = [node.broker for node in self.stage.group(name) if node.name not in self.broken]
        ids = {None if broker is None else broker.role.identity.replica_id for broker in live}
        found = {replica for replica in ids if replica is not None}
        return found if len(found) == len(live) else None

    def _drain(self) -> None:
        self._phase("drain")
        self._until(self._is_level, "replicas level", limit_s=DRAIN_S)
        self.stage.is_over = False
        self.stage.run_tool(self._drain_all, "all read from all replicas", limit_s=DRAIN_S)
        self.stage.is_over = True

    def _end(self) -> None:
        """All servers end at once; their disks are read."""
        self.stage.recorder.close()
        self._phase("end")
        self._dump_logical_queues()
        confirms = {
            name: node.broker.role.status()["confirm"]
            for name, node in self.stage.brokers.items()
            if node.broker is not None
        }
        for name, node in self.stage.brokers.items():
            self._dump_broker(node, confirms.get(name, 0))
        for gone in self.stage.retired:
            if isinstance(gone, BrokerNode):
                self._dump_discarded(gone, [*gone.discarded, gone.disk])
        for name in self.stage.controllers:
            self._dump_controller(name)

    # -- conditions --------------------------------------------------------------------------------

    def _is_whole(self) -> bool:
        return not self._what_is_missing()

    def _what_is_missing(self) -> str:
        """What keeps the cluster from being whole; "" if nothing does."""
        if self.stage.machine() is None or self.stage.leader() is None:
            return "a leading controller"
        for name in self.topology.groups:
            group, present = self.stage.group_state(name), self._present(name)
            if group is None or group.master is None or not group.is_open:
                return f"an open master of {name}"
            if present is None:
                return f"all brokers of {name}"
            learners = {key for key, replica in group.replicas.items() if replica.is_learner}
            if not present - learners <= set(group.sync_state_set):
                return f"a whole set of {name}: {sorted(group.sync_state_set)} are not all live"
        return ""

    def _are_acknowledged(self, since_us: int) -> bool:
        """Whether every sending client had a message of after the heal acknowledged."""
        senders = {client.name for client in self.topology.clients if "send" in client.jobs}
        return are_acknowledged(self.stage.recorder.history, senders, since_us=since_us)

    def _is_level(self) -> bool:
        """Whether every live replica has everything, confirmed, and all who come have come."""
        if self.injector.operations.is_exchanging(self.broken):
            return False
        for name in self.topology.groups:
            ends = set()
            for node in self.stage.group(name):
                broker = node.broker
                if node.name in self.broken:
                    continue
                if broker is None:
                    return False
                positions = broker.role.status()
                ends |= {positions["end"], positions["confirm"]}
                if broker.acting_offsets.groups():
                    return False  # still to be handed to the master (R36)
            if len(ends) != 1:
                return False
        return True

    # -- the end -----------------------------------------------------------------------------------

    async def _drain_all(self, around: Around) -> None:
        nodes = [node for name, node in self.stage.brokers.items() if name not in self.broken]
        await drain(around, nodes, queues=self.topology.queues, history=self.stage.recorder.history)

    def _dump_broker(self, node: BrokerNode, confirm: int) -> None:
        replica = None if node.broker is None else node.broker.role.identity.replica_id
        node.kill()
        # Whatever the plan was, the run ends with a power cut of all: with fsync durability what
        # was acknowledged is on the disks, and nothing else need be (INV-1).
        is_synced = self.topology.durability == "fsync"
        has_cache = not is_synced and not node.is_powerless
        image = node.disk.crash_image(node.chance, keep_page_cache=has_cache, survival=0.0)
        found = self._add_dump(node, image, replica=replica, confirm=confirm)
        self.segments_begun += max(0, found.segments_count - 1)
        self.learners += node.name in self.topology.learners and confirm > 0
        self._dump_discarded(node, node.discarded)

    def _dump_discarded(self, node: BrokerNode, disks: list[MemoryDisk]) -> None:
        for disk in disks:
            image = disk.crash_image(node.chance, keep_page_cache=True)
            self._add_dump(node, image, is_discarded=True)

    def _add_dump(
        self,
        node: BrokerNode,
        image: MemoryDisk,
        *,
        replica: int | None = None,
        confirm: int = 0,
        is_discarded: bool = False,
    ) -> LogDump:
        found = dump_log(image, DATA, group=node.group, topics=self._topics())
        self.stage.recorder.add(
            ReplicaDump,
            node=node.name,
            group=node.group,
            replica=replica,
            start=found.start,
            confirm=max(confirm, found.confirm),
            end=found.end,
            batches=found.batches,
            damage=found.damage,
            is_discarded=is_discarded,
        )
        return found

    def _topics(self) -> dict[int, str]:
        """Names of the topics of clients, and of the system's."""
        machine = self.stage.machine()
        known = {} if machine is None else machine.topics
        system = {
            int(topic.topic_id): str(name) for name, topic in known.items() if is_system_topic(name)
        }
        static = {
            int(topic.topic_id): str(name)
            for name, topic in known.items()
            if topic.logical_queues or name in _OTHER_TOPICS
        }
        return {**system, **static, self.topic_id: TOPIC}

    def _dump_logical_queues(self) -> None:
        leader, machine = self.stage.leader(), self.stage.machine()
        if leader is None or machine is None:
            return
        for name, topic in machine.topics.items():
            for number, logical in enumerate(topic.logical_queues):
                segments = logical.segments
                self.stage.recorder.add(
                    LogicalQueueDump,
                    node=leader.name,
                    logical_queue=number,
                    queues=tuple(Queue(str(name), str(s.group), int(s.queue_id)) for s in segments),
                    starts=tuple(s.start for s in segments),
                    ends=tuple(s.sealed_end for s in segments if s.sealed_end is not None),
                )

    def _dump_controller(self, name: str) -> None:
        server = self.stage.controllers[name]
        node = server.controller
        if node is None or name in self.broken or server.is_damaged:
            return
        index, digest = node.quorum.status().applied_index, node.machine.digest()
        server.kill()
        image = server.disk.crash_image(server.chance, keep_page_cache=True)
        replayed = replayed_digest(image, DATA, controller_id=name, until_index=index)
        self.stage.recorder.add(
            ControllerDump, node=name, index=index, digest=digest, replayed_digest=replayed
        )
