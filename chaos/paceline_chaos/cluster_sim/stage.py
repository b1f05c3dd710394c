"""The stage of a world: simulation, nodes, clients, recorder, and what everybody asks about them.

Owns nothing that moves by itself: `run` starts and stops, `inject` breaks, `probes` looks.
"""

import random
from collections.abc import Callable, Coroutine, Iterable
from operator import itemgetter
from typing import Any

from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.runtime import SeededRandom
from paceline.types import GroupName
from paceline_chaos.cluster_sim.addresses import Addresses
from paceline_chaos.cluster_sim.jobs.around import Around, IntendedError
from paceline_chaos.cluster_sim.nodes import (
    SECRETS,
    BrokerNode,
    ControllerServer,
    Node,
)
from paceline_chaos.cluster_sim.topology import Client, Topology
from paceline_chaos.cluster_sim.workload import TOPIC, run_client
from paceline_chaos.history.recorder import Recorder, RecorderOf
from paceline_chaos.sim.loop import SimStuck
from paceline_chaos.sim.machine import Machine as SimMachine
from paceline_chaos.sim.process import Process, State
from paceline_chaos.sim.simulation import Simulation
from paceline_chaos.verdict import Violation, code_or_harness
from paceline_controller.state import Machine
from paceline_controller.state.model import Group

US_PER_MS = 1000
NS_PER_MS = 1_000_000
_MAKER = "maker"
_OPERATOR = "operator"


class Stage:
    """See the module. Made inside a running simulation."""

    def __init__(self, simulation: Simulation, topology: Topology, world: dict[str, Any]) -> None:
        self.simulation = simulation
        self.topology = topology
        self.bugs: list[Violation] = []
        """What the product itself did wrong: exceptions nobody caught, exits without reason."""
        self.recorder = Recorder(lambda: simulation.now_us, world)
        self.is_over = False
        """Clients begin nothing new."""
        self.addresses = Addresses(topology)
        self.controllers = {name: self._controller(name) for name in topology.controllers}
        self.brokers = {name: self._broker(name, group) for name, group in topology.brokers.items()}
        self.nodes: dict[str, Node] = {**self.controllers, **self.brokers}
        self.retired: list[Node] = []
        """Nodes whose place others have taken; no more in the tables above."""
        self.on_added: list[Callable[[Node], None]] = []
        """Told of each node that comes later."""
        self.clients = {client.name: client for client in topology.clients}
        self._keys: dict[str, list[str]] = {}
        """What an operator has given out (`Around.keys`)."""
        self._client_disks: dict[str, MemoryDisk] = {}
        self.client_processes: dict[str, list[Process]] = {name: [] for name in self.clients}
        for name in [*self.clients, _MAKER]:
            self._machine(name)
        self._delays: dict[tuple[str, str], float] = {}
        names = list(self.simulation.machines)
        pairs = [(source, target) for source in names for target in names]
        self._draw_delays(pairs, random.Random(f"delays-{topology.seed}"))

    def _machine(self, name: str) -> SimMachine:
        hosts = {_MAKER: "127.0.0.99", _OPERATOR: "127.0.0.98"}
        return self.simulation.machine(name, ip=hosts.get(name) or self.addresses.host_of(name))

    def _controller(self, name: str) -> ControllerServer:
        machine = self._machine(name)
        return ControllerServer(name, machine, self.topology, self.addresses, self.bugs)

    def _broker(self, name: str, group: str) -> BrokerNode:
        machine = self._machine(name)
        return BrokerNode(name, group, machine, self.topology, self.addresses, self.bugs)

    def _draw_delays(self, pairs: Iterable[tuple[str, str]], dice: random.Random) -> None:
        """Each direction between two machines gets its own latency around the topology's mean."""
        for source, target in pairs:
            if source != target:
                mean = self.topology.delay_ms * dice.uniform(0.5, 1.5)
                self._delays[source, target] = mean
                self.usual_delay(source, target)

    def _wire(self, name: str) -> None:
        """A machine that comes later gets its latencies, to and from all others."""
        others = [other for other in self.simulation.machines if other != name]
        pairs = [pair for other in others for pair in ((name, other), (other, name))]
        self._draw_delays(pairs, random.Random(f"delays-{self.topology.seed}-{name}"))

    # -- who comes and goes ------------------------------------------------------------------------

    def add_controller(self) -> ControllerServer:
        """A new machine for a controller with a new id and an empty disk; not started."""
        count = len(self.controllers) + sum(isinstance(n, ControllerServer) for n in self.retired)
        name = f"c{count + 1}"
        self.addresses.add(name, is_controller=True)
        node = self.controllers[name] = self._controller(name)
        self._added(node)
        return node

    def add_broker(self, group: str) -> BrokerNode:
        """A new machine for a broker of a group, with an empty disk; not started."""
        gone = sum(isinstance(n, BrokerNode) and n.group == group for n in self.retired)
        name = f"{group}-b{len(self.group(group)) + gone + 1}"
        self.addresses.add(name, is_controller=False)
        node = self.brokers[name] = self._broker(name, group)
        self._added(node)
        return node

    def _added(self, node: Node) -> None:
        self.nodes[node.name] = node
        self._wire(node.name)
        for tell in self.on_added:
            tell(node)

    def retire(self, node: Node) -> None:
        """It never comes back; its disk is kept, to be judged as one that was thrown away."""
        node.retire()
        del self.nodes[node.name]
        self.controllers.pop(node.name, None)
        self.brokers.pop(node.name, None)
        self.retired.append(node)

    def usual_delay(self, source: str, target: str) -> None:
        """The latency that a direction has when no fault slows it."""
        half = self._delays[source, target] / 2
        self.simulation.delay(source, target, base_ms=half, jitter_ms=half)

    def logged(self, who: str, event: str, error: BaseException) -> None:
        """Somebody logged an error with its traceback: a bug, unless its disk explains it, or an
        application raised it on purpose."""
        node = next((n for n in (*self.nodes.values(), *self.retired) if n.name == who), None)
        if isinstance(error, IntendedError | PowerLost):
            return
        if node is not None and node.is_explained(error):
            return
        self.bugs.append(code_or_harness(error, of=f"{who} logged {event}: "))

    # -- time --------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.simulation.now_us // US_PER_MS

    def at(self, when_ms: float, action: Callable[[], object]) -> None:
        """Do something at a moment of virtual time."""
        self.simulation.loop.kernel_at(int(when_ms * NS_PER_MS), lambda _: action(), None)

    # -- roles -------------------------------------------------------------------------------------

    def leader(self) -> ControllerServer | None:
        """The controller that leads in the highest term."""
        leaders = [
            (node.controller.quorum.status().term, node.name)
            for node in self.controllers.values()
            if node.is_leader and node.controller is not None
        ]
        return self.controllers[max(leaders)[1]] if leaders else None

    def group_state(self, name: str) -> Group | None:
        """What the controllers know of a group; None: nothing yet, or there is no controller."""
        machine = self.machine()
        return None if machine is None else machine.groups.get(GroupName(name))

    def machine(self) -> Machine | None:
        """The controllers' state as whoever has applied most of it has it."""
        found = [
            (node.controller.quorum.status().applied_index, node.name)
            for node in self.controllers.values()
            if node.controller is not None
        ]
        if not found:
            return None
        node = self.controllers[max(found)[1]].controller
        assert node is not None
        return node.machine

    def voters(self) -> frozenset[str]:
        """Names of the controllers that count, as whoever has the newest list has it."""
        lists = [
            (members.generation, frozenset(m.controller_id for m in members.members if m.is_voter))
            for node in self.controllers.values()
            if node.controller is not None
            and (members := node.controller.quorum.status().members) is not None
        ]
        newest = max(lists, key=itemgetter(0), default=(0, frozenset()))
        return frozenset(map(str, newest[1])) if newest[0] else frozenset(self.topology.controllers)

    def master(self, group: str) -> BrokerNode | None:
        """The running broker that says it is master in the highest epoch."""
        masters = [
            (broker.role.epoch, node.name)
            for node in self.brokers.values()
            if node.group == group
            and (broker := node.broker) is not None
            and broker.role.mastership is not None
        ]
        return self.brokers[max(masters)[1]] if masters else None

    def group(self, name: str) -> list[BrokerNode]:
        return [node for node in self.brokers.values() if node.group == name]

    def can_spare(self, name: str, broken: list[str]) -> bool:
        """Whether the cluster must go on without this node (and those that are `broken`).

        A majority of controllers has to be left; of a group as many brokers as must acknowledge,
        and a member of the committed set that has its records.
        """
        lost = {*broken, name}
        if name in self.controllers:
            voters = self.voters()
            good = {
                name
                for name, server in self.controllers.items()
                if not (server.is_damaged or server.has_lost_disk)
            }
            return 2 * len(good & voters - lost) > len(voters)
        group = self.brokers[name].group
        found = self.group_state(group)
        if found is None:
            return False
        lost |= set(self.topology.learners)
        left = [node for node in self.group(group) if node.name not in lost]
        stores = {replica.store_id for key, replica in found.replicas.items()
                  if key in found.sync_state_set}  # fmt: skip
        has_member = any(node.store_id() in stores and not node.is_damaged for node in left)
        return has_member and len(left) >= self.topology.min_in_sync_replicas

    # -- clients -----------------------------------------------------------------------------------

    def around(self, name: str, *, incarnation: int = 1) -> Around:
        """The surroundings of a client program."""
        topology, recorder = self.topology, self.recorder
        if topology.has_rights:
            source = self.simulation.machine(name).ip
            recorder = RecorderOf(recorder, access_key="", source=source)
        return Around(
            client=name,
            life=incarnation,
            bootstrap=self.addresses.bootstrap,
            recorder=recorder,
            keys=self._keys,
            clock=self.simulation.machine(name).clock,
            random=SeededRandom(f"{topology.seed}/client/{name}/{incarnation}"),
            seed=str(topology.seed),
            topic=TOPIC,
            body_bytes_max=topology.body_bytes_max,
            think_ms=topology.think_ms,
            is_over=lambda: self.is_over,
            node_names=self.addresses.names,
            brokers=self.addresses.brokers(),
            address=self.simulation.machine(name).ip,
            secrets=SECRETS if topology.has_rights else None,
            disk=self._client_disk(name),
        )

    def _client_disk(self, name: str) -> MemoryDisk:
        """What a client's process has on its machine; a new life finds what was fsynced."""
        disk = self._client_disks.setdefault(name, MemoryDisk())
        disk.crash(SeededRandom(f"{self.topology.seed}/disk/{name}"), keep_page_cache=True)
        return disk

    def start_client(self, client: Client) -> None:
        """Start a client's program on its machine."""
        incarnations = self.client_processes[client.name]
        around = self.around(client.name, incarnation=len(incarnations) + 1)
        machine = self.simulation.machine(client.name)
        process = machine.start(lambda: run_client(client.jobs, around), name=client.name)
        process.on_end.append(self._client_ended)
        incarnations.append(process)

    def run_tool(self, main: Callable[[Around], Any], what: str, *, limit_s: float) -> None:
        """Run a program on the machine of tools to its end, or raise SimStuck: not `what`."""
        machine = self.simulation.machine(_MAKER)
        around = self.around(_MAKER, incarnation=len(machine.processes))
        process = machine.start(lambda: main(around), name=_MAKER)
        process.on_end.append(self._client_ended)
        try:
            self.simulation.run(lambda: process.is_dead, limit_s=limit_s)
        except SimStuck:
            raise SimStuck(f"within {limit_s:g} s not: {what}") from None

    def begin_tool(self, main: Callable[[Around], Coroutine[Any, Any, None]]) -> None:
        """Run a program on the operator's machine beside everything else."""
        is_new = _OPERATOR not in self.simulation.machines
        machine = self._machine(_OPERATOR)
        if is_new:
            self._wire(_OPERATOR)
        around = self.around(_OPERATOR, incarnation=len(machine.processes) + 1)
        process = machine.start(lambda: main(around), name=_OPERATOR)
        process.on_end.append(self._client_ended)

    @property
    def operator_processes(self) -> list[Process]:
        """What `begin_tool` has begun."""
        machine = self.simulation.machines.get(_OPERATOR)
        return [] if machine is None else machine.processes

    def _client_ended(self, process: Process) -> None:
        if process.state is State.FAILED:
            assert process.error is not None
            self.bugs.append(code_or_harness(process.error, of=f"client {process.name} ended: "))
