"""Scripts: worlds in which a fault begins at the very moment that a condition holds.

A plan says when; a script says *between what and what*: "the master has appended, nothing is
acknowledged, now it dies". It is a generator that yields conditions; the `Director` looks at them
every `LOOK_MS` of virtual time, without a message or a task, and goes on when one holds. Where
nothing has happened since its last look, it knows what it would see. It notes moments and counts
what it has done, so that who reads the history afterwards knows what to ask.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from paceline.platform.runtime import SeededRandom
from paceline.types import TopicName
from paceline_broker.projections.projections import Projections
from paceline_broker.role.mastership import Mastership
from paceline_chaos.cluster_sim.faults.inject import Injector
from paceline_chaos.cluster_sim.nodes import BrokerNode
from paceline_chaos.cluster_sim.stage import Stage
from paceline_chaos.cluster_sim.topology import FAST, Client, Topology, draw_topology
from paceline_chaos.faults.plan import Fault
from paceline_controller.state import Machine
from paceline_controller.state.model import Topic

LOOK_MS = 0.2
"""Less than a message takes from machine to machine."""
GROUP = "g1"

Condition: TypeAlias = Callable[[], bool]
"""Reads what nodes hold, and no clock: how much time is over is asked by `Director.pass_ms`."""
Steps: TypeAlias = Iterator[Condition]
Script: TypeAlias = Callable[["Director"], Steps]


def stock_topology(seed: int, *, load_ms: int, **changes: Any) -> Topology:
    """Three controllers, three replicas, fsync, two senders and a reader; `changes` over that."""
    clients = (
        Client(name="client-1", jobs=("send",)),
        Client(name="client-2", jobs=("send",)),
        Client(name="client-3", jobs=("read",)),
    )
    stock: dict[str, Any] = {
        "controllers": ("c1", "c2", "c3"),
        "groups": {GROUP: ("b1", "b2", "b3")},
        "clients": clients,
        "durability": "fsync",
        "min_in_sync_replicas": 2,
        "queues": 2,
        "body_bytes_max": 200,
        "think_ms": 20.0,
        "delay_ms": 1.0,
        "timers": FAST,
        "calm_ms": 0,
        "log_bytes_max": 0,
        "learners": (),
        "is_deserted": False,
    }
    return replace(draw_topology(seed, load_ms=load_ms), **stock | changes)


@dataclass(slots=True)
class Notes:
    """What a script remembers; all that is left of it after its world."""

    marks: dict[str, int] = field(default_factory=dict)
    """Name -> microseconds of the history's clock."""
    seen: Counter[str] = field(default_factory=Counter)
    nodes: dict[str, str] = field(default_factory=dict)
    """Role in the script -> node."""
    wrong: list[str] = field(default_factory=list)
    """What did not hold when it should have."""
    is_done: bool = False
    """The script came to its end."""
    steps_count: int = 0
    """Conditions that held."""


class Director:
    """Plays one script on a stage. Owner of its notes."""

    def __init__(self, stage: Stage, injector: Injector, *, end_us: int) -> None:
        self.stage = stage
        self.chance = SeededRandom(f"{stage.topology.seed}/script")
        self.notes = Notes()
        self._names_known: dict[int, str] = {}
        self._injector = injector
        self._end_us = end_us
        self._looks_count = 0
        self._happened = -1
        """Handles and acts of the world, but for own looks, at the last look that asked."""
        self._times_us: list[int] = []
        """Moments that conditions wait for; a heap."""

    def play(self, script: Script) -> None:
        """Begin; what has not happened by the end of the load does not happen any more."""
        self._go_on(script(self))

    def _go_on(self, steps: Steps) -> None:
        condition = next(steps, None)
        if condition is None:
            self.notes.is_done = True
        else:
            self._look(steps, condition)

    def _look(self, steps: Steps, condition: Condition) -> None:
        now_us = self.stage.simulation.now_us
        if now_us >= self._end_us:
            return
        if condition():
            self.notes.steps_count += 1
            self._go_on(steps)
        else:
            self._look_again(steps, condition)

    def _look_again(self, steps: Steps, condition: Condition) -> None:
        """Some time later. A condition that did not hold holds still less while nothing happens:
        most looks fall between two handles, and asking costs more than what goes on."""

        def look() -> None:
            self._looks_count += 1
            if self._has_news():
                self._look(steps, condition)
            else:
                self._look_again(steps, condition)

        now_us = self.stage.simulation.now_us
        self.stage.at(now_us / 1000 + LOOK_MS, look)

    def _has_news(self) -> bool:
        """Whether a handle ran, the world acted, or a moment came since this was last asked."""
        loop, now_us = self.stage.simulation.loop, self.stage.simulation.now_us
        happened = loop.handles_count + loop.acts_count - self._looks_count
        is_news = happened != self._happened
        self._happened = happened
        while self._times_us and self._times_us[0] <= now_us:
            heapq.heappop(self._times_us)
            is_news = True
        return is_news

    # -- what a script does ------------------------------------------------------------------------

    def mark(self, name: str) -> None:
        """Remember this moment."""
        self.notes.marks[name] = self.stage.simulation.now_us

    def saw(self, what: str) -> None:
        self.notes.seen[what] += 1

    def expect(self, is_so: bool, sentence: str) -> None:
        """Something must hold now; `sentence` says what went wrong if it does not."""
        if not is_so:
            self.notes.wrong.append(sentence)

    def begin(
        self, kind: str, target: str, *, for_ms: int, other: str | None = None, **details: float
    ) -> None:
        """Begin a fault now; it must hit somebody."""
        fault = Fault(
            at_ms=0, kind=kind, target=target, for_ms=for_ms, other=other, details=details
        )
        hit = self._injector.begin(fault, self.chance)
        assert hit, f"{kind} of {target} hit nobody"

    def kill(self, *nodes: BrokerNode, for_ms: int) -> None:
        for node in nodes:
            self.begin("kill", node.name, for_ms=for_ms)

    def fail_over(self, *, for_ms: int) -> Steps:
        """The master dies; go on when everybody is in the set again."""
        self.kill(self.master, for_ms=for_ms)
        yield lambda: not self.is_whole()
        yield self.is_whole

    @property
    def now_us(self) -> int:
        """Of the history's clock."""
        return self.stage.simulation.now_us

    def pass_ms(self, duration_ms: float) -> Condition:
        """Some time is over."""
        end_us = self.stage.simulation.now_us + int(duration_ms * 1000)
        heapq.heappush(self._times_us, end_us)
        return lambda: self.stage.simulation.now_us >= end_us

    # -- what a script looks at --------------------------------------------------------------------

    @property
    def master(self) -> BrokerNode:
        """The running master of the highest epoch."""
        master = self.stage.master(GROUP)
        assert master is not None
        return master

    @property
    def replicas(self) -> list[BrokerNode]:
        """The others, in order of their names."""
        master = self.stage.master(GROUP)
        return [node for node in self.stage.group(GROUP) if node is not master]

    @property
    def running(self) -> list[BrokerNode]:
        """Whoever of the group is up."""
        return [node for node in self.stage.group(GROUP) if node.broker is not None]

    def machine(self) -> Machine | None:
        """As `Stage.machine`, but looked up without a trace: a controller that is asked for its
        status reads its clock, which creeps, and a look must not change the run."""
        nodes = [node for node in self.stage.controllers.values() if node.controller is not None]
        newest = max(nodes, key=lambda node: (node.applied_index, node.name), default=None)
        controller = None if newest is None else newest.controller
        return None if controller is None else controller.machine

    def topic(self, name: str) -> Topic | None:
        """As the controllers have it."""
        machine = self.machine()
        return None if machine is None else machine.topics.get(TopicName(name))

    def mastership_of(self, node: BrokerNode) -> Mastership | None:
        return None if node.broker is None else node.broker.role.mastership

    def unconfirmed_bytes(self, node: BrokerNode) -> int:
        """What a running master has appended and not confirmed; 0 elsewhere."""
        mastership = self.mastership_of(node)
        return 0 if mastership is None else int(mastership.end - mastership.confirm)

    def replica_id(self, node: BrokerNode) -> int:
        """Its number in the group."""
        return int(self.status(node)["replica_id"])

    def projections(self, node: BrokerNode) -> Projections:
        """What a running broker has folded."""
        assert node.broker is not None, node.name
        return node.broker.role.projections

    def status(self, node: BrokerNode) -> Mapping[str, Any]:
        """Positions of a running broker."""
        assert node.broker is not None, node.name
        return node.broker.role.status()

    def is_open(self) -> bool:
        """Whether a master has opened its epoch and takes messages."""
        master = self.stage.master(GROUP)
        mastership = None if master is None else self.mastership_of(master)
        return mastership is not None and mastership.is_open and mastership.term.can_accept()

    def is_whole(self) -> bool:
        """Whether that master, and the controllers, have everybody in the set (but learners)."""
        learners = self.stage.topology.learners
        wanted = {n.name for n in self.stage.group(GROUP) if n.name not in learners}
        return self.is_open() and wanted <= self.committed() == self.known(self.master)

    def committed(self) -> frozenset[str]:
        """Names of the members, as the controllers have committed them."""
        machine = self.machine()
        groups = {} if machine is None else {str(key): g for key, g in machine.groups.items()}
        return self._names(groups[GROUP].sync_state_set) if GROUP in groups else frozenset()

    def known(self, node: BrokerNode) -> frozenset[str]:
        """Names of the members, as this master knows them; nobody if it is none."""
        mastership = self.mastership_of(node)
        if mastership is None:
            return frozenset()
        return self._names(mastership.term.sync_state_set)

    def _names(self, ids: frozenset[Any] | set[Any]) -> frozenset[str]:
        return frozenset(self._name_of(replica) for replica in ids)

    def _name_of(self, replica: int) -> str:
        """Names of replicas that have been told who they are stay known when they are down."""
        names = self._names_known
        for node in self.stage.group(GROUP):
            if node.broker is not None and node.broker.role.identity.replica_id is not None:
                names[int(node.broker.role.identity.replica_id)] = node.name
        return names.get(int(replica), f"replica {replica}")
