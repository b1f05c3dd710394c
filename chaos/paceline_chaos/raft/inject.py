"""Carries out the faults of a plan on the machines of the bed, and ends them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from paceline.platform.runtime import SeededRandom
from paceline_chaos.faults.plan import Fault
from paceline_chaos.raft.judge import Judge
from paceline_chaos.raft.node import RaftNode
from paceline_chaos.raft.operator import Operator
from paceline_chaos.raft.plan import CALLS
from paceline_chaos.sim.simulation import Simulation

_MS = 1_000_000
End = Callable[[], None]


class Injector:
    """Owner of what is broken at the moment."""

    def __init__(
        self,
        simulation: Simulation,
        nodes: Mapping[str, RaftNode],
        operator: Operator,
        *,
        seed: str,
        judge: Judge,
    ) -> None:
        self._simulation = simulation
        self._nodes = nodes
        self._operator = operator
        self._chance = SeededRandom(f"{seed}/faults")
        self._judge = judge
        self._ends: dict[int, list[End]] = {}
        self._rates: dict[str, int] = {}

    def schedule(self, faults: Sequence[Fault]) -> None:
        loop = self._simulation.loop
        start_ns = loop.now_ns
        for number, fault in enumerate(faults):
            begin = partial(self._begin, number, fault)
            loop.kernel_at(start_ns + fault.at_ms * _MS, begin, None)

    def heal_all(self) -> None:
        """End every fault that is under way, and whatever is still armed."""
        self._operator.stop()
        for number in list(self._ends):
            self._finish(number, None)
        self._simulation.heal()
        for node in self._nodes.values():
            node.disk.forget_failures()
            node.disk.observer = None
            node.steps_left = None
            if not node.is_out:
                node.start()

    # -- inside ------------------------------------------------------------------------------------

    def _begin(self, number: int, fault: Fault, _: None) -> None:
        names = self._resolve(fault.target)
        if fault.target == "all":
            self._judge.counts["fault_all"] += 1
        ends = [end for name in names if (end := self._carry_out(fault, self._nodes[name]))]
        self._judge.counts[f"fault_{fault.kind}"] += 1
        self._simulation.loop.note(f"{fault.kind} {' '.join(names)}")
        if ends:
            self._ends[number] = ends
            when_ns = self._simulation.loop.now_ns + max(1, fault.for_ms) * _MS
            self._simulation.loop.kernel_at(when_ns, partial(self._finish, number), None)

    def _finish(self, number: int, _: None) -> None:
        for end in self._ends.pop(number, []):
            end()

    def _carry_out(self, fault: Fault, node: RaftNode) -> End | None:
        match fault.kind:
            case "kill" | "power" | "stop" | "power_at" | "die_at" | "pause" | "transfer":
                return self._strike(fault, node)
            case "isolate" | "cut" | "bridge" | "reset" | "slow_link":
                return self._wire(fault, node)
            case "replace" | "add" | "remove":
                self._wish(fault.kind, node)
                return None
            case "clock_rate" | "clock_step":
                return self._clock(fault, node)
        return self._disk(fault, node)

    def _wish(self, kind: str, node: RaftNode) -> None:
        match kind:
            case "replace":
                self._operator.replace(node)
            case "add":
                self._operator.add()
            case "remove":
                self._operator.remove(node)

    def _strike(self, fault: Fault, node: RaftNode) -> End | None:
        if node.is_out:
            return None
        match fault.kind:
            case "kill" | "power" | "stop":
                node.holds += 1
                {"kill": node.kill, "power": node.power_off, "stop": node.stop}[fault.kind]()
                return node.release
            case "power_at":
                if node.is_running:
                    node.arm_fuse(int(fault.details["operations"]))
                    return self._up_again(node)
            case "die_at":
                if node.is_running:
                    node.steps_left = int(fault.details["steps"])
                    node.dies_with_power = bool(fault.details["power"])
                    return self._up_again(node)
            case "pause":
                process = node.process
                if process is not None and node.is_running:
                    process.pause()
                    return process.resume
            case "transfer":
                if node.is_running and node.quorum is not None and node.process is not None:
                    with self._simulation.loop.acting_as(node.process):
                        node.quorum._guarded(lambda core: core.transfer_leadership())
        return None

    def _up_again(self, node: RaftNode) -> End:
        """Whatever it died of is over when the fault is."""

        def end() -> None:
            if not node.is_running:
                node.start()

        return end

    def _wire(self, fault: Fault, node: RaftNode) -> End | None:
        simulation, name = self._simulation, str(node.name)
        others = [other for other in self._nodes if other != name]
        match fault.kind:
            case "isolate":
                cuts = [(name, other) for other in others] + [(other, name) for other in others]
            case "bridge":
                half = len(others) // 2
                halves = others[:half], others[half:]
                cuts = [(a, b) for a in halves[0] for b in halves[1]]
                cuts += [(b, a) for a, b in cuts]
            case "cut":
                cuts = [(name, other) for other in self._other_side(fault, name)]
            case "reset":
                for other in others:
                    simulation.reset(name, other)
                return None
            case _:
                return self._slow_link(fault, name)
        for source, target in cuts:
            simulation.network.cut(source, target)

        def heal() -> None:
            for source, target in cuts:
                simulation.network.heal(source, target)

        return heal

    def _slow_link(self, fault: Fault, name: str) -> End:
        simulation, shape = self._simulation, self._nodes[name].shape
        pairs = [(name, other) for other in self._other_side(fault, name)]
        pairs += [(other, one) for one, other in pairs]
        for one, other in pairs:
            simulation.delay(one, other, base_ms=fault.details["delay_ms"], jitter_ms=5)

        def end() -> None:
            for one, other in pairs:
                simulation.delay(one, other, base_ms=shape.latency_ms, jitter_ms=shape.jitter_ms)

        return end

    def _disk(self, fault: Fault, node: RaftNode) -> End | None:
        disk = node.disk
        match fault.kind:
            case "disk_fail":
                node.has_bad_disk = True
                disk.fail_next(CALLS[int(fault.details["call"])])
                return disk.forget_failures
            case "disk_full":
                node.has_bad_disk = True
                used = sum(i.size for f in disk._folders.values() for i in f.names.values())
                disk.capacity_bytes = used + int(fault.details["room"])

                def free() -> None:
                    node.disk.capacity_bytes = None

                return free
            case "disk_stall":
                disk.sync_delay_ms = fault.details["delay_ms"]

                def recover() -> None:
                    node.disk.sync_delay_ms = node.shape.sync_ms
                    if node.process is not None:
                        node.process.unblock()

                return recover
            case "disk_lost" if self._can_spare() and node in self._operator.voters():
                node.lose_disk()
            case "disk_flip" if self._can_spare() and not node.is_out and not node.is_powerless:
                self._judge.counts["segments_flipped"] += node.flip_old_segment()
        return None

    def _can_spare(self) -> bool:
        """Whether the others would still be a majority without one more."""
        voters, members = self._operator.voters(), self._operator.members()
        is_quiet = members is not None and not members.learners and members.leaving is None
        out = sum(node.is_out or node.is_flipped for node in voters)
        return is_quiet and not self._operator.is_busy and 2 * (out + 1) < len(voters)

    def _clock(self, fault: Fault, node: RaftNode) -> End | None:
        if fault.kind == "clock_step":
            node.machine.set_clock(wall_step_ms=fault.details["offset_ms"])
            return None
        node.machine.set_clock(rate=fault.details["rate"])
        number = self._rates[node.name] = self._rates.get(node.name, 0) + 1

        def end() -> None:
            if self._rates[node.name] == number:
                node.machine.set_clock(rate=1.0)

        return end

    # -- who ---------------------------------------------------------------------------------------

    def _resolve(self, target: str) -> list[str]:
        """The nodes that a target means now."""
        names = [name for name, node in self._nodes.items() if not node.is_spare]
        leading = [name for name in names if self._nodes[name].is_leading]
        match target:
            case "all":
                return names
            case "leader":
                return leading[-1:] or [self._one_of(names)]
            case "follower":
                return [self._one_of([name for name in names if name not in leading] or names)]
            case "any":
                return [self._one_of(names)]
        return [target]

    def _other_side(self, fault: Fault, name: str) -> list[str]:
        others = [other for other in self._nodes if other != name]
        if fault.other == "others":
            return others
        found = [other for other in self._resolve(str(fault.other)) if other != name]
        return found or [self._one_of(others)]

    def _one_of(self, names: Sequence[str]) -> str:
        return names[int(self._chance.uniform(0, len(names)))]
