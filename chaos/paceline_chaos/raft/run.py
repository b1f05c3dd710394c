"""One seed of the Raft bed from beginning to end, with everything that judges it."""

import gc
from collections.abc import Callable
from contextlib import ExitStack

from paceline.platform.disk_memory import PowerLost
from paceline.platform.runtime import SeededRandom
from paceline.types import ControllerId
from paceline_chaos.mutants.mutant import Mutant
from paceline_chaos.raft.clients import Client
from paceline_chaos.raft.coverage import COUNTERS
from paceline_chaos.raft.inject import Injector
from paceline_chaos.raft.judge import Judge
from paceline_chaos.raft.node import PORT, RaftNode
from paceline_chaos.raft.operator import Operator
from paceline_chaos.raft.plan import SPARES, Plan, draw_plan
from paceline_chaos.seeds import SeedResult
from paceline_chaos.sim.loop import SimDeadlock, SimStuck
from paceline_chaos.sim.simulation import Simulation
from paceline_chaos.verdict import Violation, code_or_harness

BED = "raft"
FORM_S = 15.0
LIVE_S = 15.0
"""From the end of all faults until the quorum has acknowledged something to every client, and all
nodes have applied the same; mostly some hundred milliseconds."""
_STEP_S = 0.02


class RaftWorld:
    """The nodes and clients of one plan, from first start to judgement."""

    def __init__(self, plan: Plan, *, keeps_log: bool = False) -> None:
        self.plan = plan
        self.judge = Judge()
        seed = f"raft/{plan.seed}"
        self.simulation = Simulation(seed, keeps_log=keeps_log)
        self.nodes: dict[str, RaftNode] = {}
        self.clients: list[Client] = []
        self.digest = ""
        self._seed = seed

    def run(self) -> None:
        """All phases; what is wrong is in `judge.violations` afterwards."""
        with self.simulation:
            self._build()
            try:
                self._play()
            except SimStuck as error:
                self.judge.found("RAFT-live", str(error))
            except SimDeadlock as error:
                self.judge.found("RAFT-live", str(error))
            self._judge_ends()
            self.digest = self.simulation.digest()

    def _build(self) -> None:
        shape, simulation = self.plan.shape, self.simulation
        names = [ControllerId(f"c{number}") for number in range(1, shape.nodes + SPARES + 1)]
        machines = {name: simulation.machine(name) for name in names}
        addresses = {name: (machine.ip, PORT) for name, machine in machines.items()}
        first = names[: shape.nodes]
        for name in names:
            for other in names:
                simulation.delay(name, other, base_ms=shape.latency_ms, jitter_ms=shape.jitter_ms)
            self.nodes[name] = RaftNode(
                name,
                machines[name],
                peers={peer: addresses[peer] for peer in dict.fromkeys([*first, name])},
                shape=shape,
                seed=self._seed,
                judge=self.judge,
            )
            self.nodes[name].is_spare = name not in first
        self.operator = Operator(self.nodes, judge=self.judge, loop=simulation.loop)
        asked = [self.nodes[name] for name in first]
        self.operator.on_joined = asked.append
        for number in range(1, shape.clients + 1):
            client = Client(
                f"k{number}",
                nodes=asked,
                judge=self.judge,
                loop=simulation.loop,
                chance=SeededRandom(f"{self._seed}/client/{number}"),
                think_ms=shape.think_ms,
            )
            self.clients.append(client)

    # -- phases ------------------------------------------------------------------------------------

    def _play(self) -> None:
        for node in self.nodes.values():
            node.start()
        self._until(self._is_founded, "a founded quorum", limit_s=FORM_S)
        injector = Injector(
            self.simulation, self.nodes, self.operator, seed=self._seed, judge=self.judge
        )
        for client in self.clients:
            client.start()
        injector.schedule(self.plan.faults)
        self.simulation.run_for(self.plan.shape.load_ms / 1000)
        injector.heal_all()
        self._settle("after the faults")
        for client in self.clients:
            client.is_over = True
        # Acknowledged is what the disks of a majority hold: a power cut of all takes nothing.
        present = self._present()
        self.judge.counts["joined"] += sum(
            int(node.name[1:]) > self.plan.shape.nodes for node in present
        )
        for node in self.nodes.values():
            node.power_off()
        for node in present:
            node.disk.crash(node.chance, keep_page_cache=False, survival=0)
            node.start()
        self._until(self._is_level, "level nodes after a power cut of all", limit_s=LIVE_S)
        self.judge.end(self._longest())

    def _settle(self, when: str) -> None:
        healed_ns = self.simulation.loop.now_ns

        def is_served() -> bool:
            served = {
                done.value.partition(".")[0]
                for done in self.judge.operations
                if done.kind == "append" and done.count is not None and done.asked_ns >= healed_ns
            }
            return len(served) == len(self.clients)

        self._until(is_served, f"an acknowledged append of each client {when}", limit_s=LIVE_S)
        for client in self.clients:
            client.is_over = True
        self._until(self._is_level, f"level nodes {when}", limit_s=LIVE_S)

    def _until(self, condition: Callable[[], bool], what: str, *, limit_s: float) -> None:
        end_us = self.simulation.now_us + int(limit_s * 1_000_000)
        while not condition():
            if self.judge.violations:
                return
            if self.simulation.now_us >= end_us:
                raise SimStuck(f"within {limit_s:g} s not: {what}; {self._state()}")
            self.simulation.run_for(_STEP_S)

    # -- conditions --------------------------------------------------------------------------------

    def _present(self) -> list[RaftNode]:
        """Those that are to take part when all faults are over."""
        return [node for node in self.operator.voters() if not node.is_out]

    def _is_founded(self) -> bool:
        return self._is_level() and all(
            node.quorum is not None
            and node.quorum._links is not None
            and node.quorum._links._identity.may_vote
            for node in self._present()
        )

    def _is_level(self) -> bool:
        """A leader, all have applied what it has committed, and nobody joins or leaves."""
        present, members = self._present(), self.operator.members()
        if members is None or members.learners or members.leaving is not None:
            return False
        statuses = [
            node.quorum.status() for node in present if node.quorum is not None and node.is_running
        ]
        return (
            len(statuses) == len(present)
            and sum(status.is_leader for status in statuses) == 1
            and len({(status.applied_index, status.commit_index) for status in statuses}) == 1
        )

    def _longest(self) -> list[str]:
        present = self._present()
        for node in present[1:]:
            if node.list.digest() != present[0].list.digest():
                self.judge.found("RAFT-same", f"{node.name} and {present[0].name} end differently")
        return max((node.list.values for node in present), key=len)

    def _state(self) -> str:
        parts = []
        for node in self.nodes.values():
            if node.is_out or node.is_spare or node.is_removed:
                parts.append(f"{node.name} is out")
            elif not node.is_running or node.quorum is None:
                parts.append(f"{node.name} is down")
            else:
                status = node.quorum.status()
                role = "leads" if status.is_leader else "follows"
                parts.append(
                    f"{node.name} {role} in {status.term}, {status.applied_index} of "
                    f"{status.commit_index} applied, log {status.log_length}"
                )
        return f"{'; '.join(parts)}; members {self.operator.members()}"

    def _judge_ends(self) -> None:
        bugs = [bug for node in self.nodes.values() for bug in node.bugs]
        for bug in [*bugs, *self.simulation.errors_but(PowerLost)]:
            self.judge.found(bug.property, bug.sentence)

    @property
    def counters(self) -> dict[str, int]:
        counts = dict.fromkeys(COUNTERS, 0) | dict(self.judge.counts)
        counts[f"runs_of_{self.plan.shape.nodes}"] = 1
        counts["generations"] = self.judge.generations
        counts["terms"] = self.judge.leaders
        return counts


def run_plan(plan: Plan, *, mutant: Mutant | None = None, keeps_log: bool = False) -> RaftWorld:
    """Run a plan, with a rule taken out if `mutant` is given."""
    was_collecting = gc.isenabled()
    gc.disable()  # a run lives a fraction of a second, and its garbage is one graph
    world = RaftWorld(plan, keeps_log=keeps_log)
    try:
        with ExitStack() as stack:
            if mutant is not None:
                stack.enter_context(mutant.applied())
            world.run()
    except Exception as error:
        found = code_or_harness(error)
        world.judge.found(found.property, found.sentence)
    finally:
        if was_collecting:
            gc.enable()
    return world


def run_seed(seed: int, *, mutant: Mutant | None = None) -> SeedResult:
    """Run one seed; never raises."""
    return result_of(run_plan(draw_plan(seed), mutant=mutant))


def result_of(world: RaftWorld) -> SeedResult:
    """The small result of a finished world."""
    violations: tuple[Violation, ...] = tuple(world.judge.violations)
    return SeedResult(
        bed=BED,
        seed=world.plan.seed,
        virtual_us=world.simulation.now_us,
        violations=violations,
        counters=world.counters,
        operations=len(world.judge.operations),
        faults=len(world.plan.faults),
    )
