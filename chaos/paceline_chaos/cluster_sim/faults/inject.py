"""Carries out faults on a stage: roles become nodes when a fault begins, and every begin and end
goes into the history.

A fault is told, and counted, by its effect: power that is to fail inside a disk operation when it
fails there, a call that is to fail when it has failed, an old copy when it is put back, a flip when
a bit has changed. Who is down already is held down by a kill, which is told, and not counted.

Faults overlap. What they share is counted: a link is healed when no fault cuts it any more, a node
starts when no fault holds it. `heal_all` ends everything; a fault that begins afterwards is the
liveness phase's and lasts.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from paceline.platform.runtime import SeededRandom
from paceline_chaos.cluster_sim.faults.disk_faults import disk_fault, flip, lose_file, stale
from paceline_chaos.cluster_sim.faults.replacing import Operations
from paceline_chaos.cluster_sim.nodes import BrokerNode, Node
from paceline_chaos.cluster_sim.stage import Stage
from paceline_chaos.faults.plan import Fault
from paceline_chaos.history.model import FaultEvent

End = Callable[[], None]
_SIGTERM = 15
ARMED_MS = 5_000
"""What waits for a disk operation is given up so long after it would have ended."""
_LOOK_MS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnderWay:
    """A fault that has an end."""

    kind: str
    told: str
    """Its target, as the history has it."""
    end: End


class Injector:
    """Owner of all faults under way on one stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._delays: Counter[tuple[str, str]] = Counter()
        self._under_way: dict[int, _UnderWay] = {}
        self._told: set[int] = set()
        """Of those under way, those whose beginning is in the history."""
        self._next = 0
        self.operations = Operations(stage)
        self.done: Counter[str] = Counter()
        """Faults that hit somebody, by kind."""

    def schedule(self, faults: Iterable[Fault], *, start_ms: int) -> None:
        """Let faults begin at their times after `start_ms`."""
        for fault in faults:
            chance = self._chance_of(fault, "fault")
            self._stage.at(start_ms + fault.at_ms, partial(self.begin, fault, chance))

    def _chance_of(self, fault: Fault, use: str) -> SeededRandom:
        """Of this fault alone: it hits the same whether others are dropped from the plan or not."""
        identity = f"{use}/{fault.at_ms}/{fault.kind}/{fault.target}"
        return SeededRandom(f"{self._stage.topology.seed}/{identity}")

    def begin(self, fault: Fault, chance: SeededRandom, *, is_for_ever: bool = False) -> list[str]:
        """Begin a fault now; the names of the nodes it hit."""
        targets = self._resolve(fault.target, chance)
        if fault.kind == "replace":
            targets = [self.operations.whom(name) for name in targets]
        if fault.kind == "split":
            targets = targets[:1]  # one fault, however many names its side has
        effects = [self._begin_at(fault, name, chance, is_for_ever=is_for_ever) for name in targets]
        self.done[fault.kind] += any(effects)
        return targets

    def _begin_at(
        self, fault: Fault, name: str, chance: SeededRandom, *, is_for_ever: bool
    ) -> bool:
        """Whether it has hit somebody by now; one that waits counts itself."""
        self._next += 1
        number = self._next
        is_hit = False
        if fault.kind in _WAITING:
            end = self._wait(fault, name, number)
        elif fault.kind in _DAMAGES:
            node = self._stage.nodes.get(name)
            end = None
            if node is not None and _DAMAGES[fault.kind](node, fault, chance=chance):
                is_hit = True
                self._told.add(number)
                self._tell_begin(fault, name)
        else:
            is_hit = self._is_hit(fault, name)
            if fault.kind == "disk_wiped" and not is_hit:
                return False  # the history tells of no wipe that did nothing
            self._told.add(number)
            self._tell_begin(fault, name)
            end = self._carry_out(fault, name, chance)
        under_way = _UnderWay(kind=fault.kind, told=_told_target(fault, name), end=end or _nothing)
        self._under_way[number] = under_way
        if end is None:
            self._finish(number)
            return is_hit
        if not is_for_ever and fault.kind not in _ARMED:
            finish = partial(self._finish, number)
            self._stage.at(self._stage.now_ms + max(1, fault.for_ms), finish)
        return is_hit

    def _is_hit(self, fault: Fault, name: str) -> bool:
        """Whether a fault that acts at once changes anything now."""
        node = self._stage.nodes.get(name)
        match fault.kind:
            case "cut" | "slow_link" | "flap":
                # Who is meant by a role is drawn later; that there is somebody is known now.
                return fault.other != name
            case "kill" | "stop" | "pause" if node is None:
                processes = self._stage.client_processes[name]
                return bool(processes) and not processes[-1].is_dead
            case "kill" | "stop" | "disk_stall" | "disk_full" | "disk_cold":
                return node is not None and node.is_running
            case "pause":
                return node is not None and node.is_answering
            case "power":
                return node is not None and not node.is_powerless
            case "disk_wiped":
                return isinstance(node, BrokerNode) and not node.is_powerless
        return True

    def _wait(self, fault: Fault, name: str, number: int) -> End | None:
        """Begin to wait for what makes the effect."""
        node = self._stage.nodes.get(name)
        if node is None:
            return None
        finish = partial(self._finish, number)

        def hit() -> None:
            self._told.add(number)
            self._tell_begin(fault, name)
            self.done[fault.kind] += 1

        match fault.kind:
            case "power_at":
                return self._arm_fuse(fault, node, finish, hit)
            case "disk_fail":
                return self._arm_failure(fault, node, finish, hit)
            case "replace":
                come = self.operations.replace(fault, node)
                if come is not None:
                    hit()
                return come
            case "transfer" | "lead":
                if not self.operations.order(fault, node, finish):
                    return None
                hit()
                return _nothing
        return stale(self._stage, node, hit)

    def _finish(self, number: int) -> None:
        """A fault is over, unless it was before."""
        fault = self._under_way.pop(number, None)
        if fault is not None:
            fault.end()
            if number in self._told:
                self._told.discard(number)
                self._tell(fault.kind, fault.told, is_begin=False)

    def heal_all(self) -> None:
        """End every fault that is under way."""
        for number in list(self._under_way):
            self._finish(number)
        for node in self._stage.nodes.values():
            node.disk.forget_failures()
            node.disk.observer = node.disk.on_failed = None

    def exited(self, node: Node, reason: str) -> None:
        """A process has ended by itself; it is started again."""
        self._tell("exit", node.name, is_begin=True, detail=reason)

    def emptied(self, node: Node) -> None:
        """The operator has emptied a damaged folder: what was on it is gone."""
        self._tell("disk_lost", node.name, is_begin=True, detail="emptied by the operator")
        self._tell("disk_lost", node.name, is_begin=False)

    def break_for_ever(self, faults: Iterable[Fault]) -> list[str]:
        """Begin faults that last, as far as what is left can go on; the nodes they hit."""
        broken: list[str] = []
        for fault in faults:
            chance = self._chance_of(fault, "broken")
            for name in self._resolve(fault.target, chance)[:1]:
                if name not in broken and self._stage.can_spare(name, broken):
                    named = replace(fault, target=name)
                    broken += self.begin(named, chance, is_for_ever=True)
        return broken

    # -- who ---------------------------------------------------------------------------------------

    def _resolve(self, target: str, chance: SeededRandom) -> list[str]:
        """The nodes that a target means now; none if nobody has that role."""
        stage = self._stage
        role, _, group = target.partition(":")
        master = stage.master(group) if group else None
        names = [node.name for node in stage.group(group)] if group else []
        leader = stage.leader()
        match role:
            case "master":
                return [master.name] if master else _one_of(names, chance)
            case "replica":
                others = [name for name in names if master is None or name != master.name]
                return _one_of(others, chance)
            case "any":
                return _one_of(names, chance)
            case "leader":
                return [leader.name] if leader else _one_of(list(stage.controllers), chance)
            case "follower":
                followers = [n for n in stage.controllers if leader is None or n != leader.name]
                return _one_of(followers, chance)
            case "all":
                return list(stage.nodes)
            case "brokers":
                return list(stage.brokers)
            case "controllers":
                return list(stage.controllers)
            case "clients":
                return list(stage.clients)
        known = {*stage.nodes, *stage.clients}
        return [name for name in target.split(",") if name in known]

    # -- what --------------------------------------------------------------------------------------

    def _carry_out(self, fault: Fault, name: str, chance: SeededRandom) -> End | None:
        """Do it; how to end it, None if there is nothing to end."""
        stage, node = self._stage, self._stage.nodes.get(name)
        match fault.kind:
            case "cut" | "slow_link" | "flap" | "isolate" | "split" | "bridge" | "reset":
                return self._network_fault(fault, name, chance)
            case "clock_step":
                stage.simulation.machine(name).set_clock(
                    wall_step_ms=fault.details.get("offset_ms", 0)
                )
                return None
            case "clock_rate":
                machine = stage.simulation.machine(name)
                machine.set_clock(rate=fault.details.get("rate", 1.0))
                return lambda: machine.set_clock(rate=1.0)
        if node is None:
            return self._client_fault(fault, name)
        if fault.kind.startswith("disk_"):
            return disk_fault(stage, fault, node)
        return self._process_fault(fault, node)

    def _process_fault(self, fault: Fault, node: Node) -> End | None:
        match fault.kind:
            case "kill":
                node.hold()
                node.kill()
                return node.release
            case "stop":
                node.hold()
                if node.process is not None and node.is_running:
                    node.process.signal(_SIGTERM)
                return lambda: _release_stopped(node)
            case "pause":
                process = node.process
                if process is None:
                    return None
                process.pause()
                return process.resume
            case "power":
                node.hold()
                node.power_off()
                return node.release
        raise AssertionError(f"unknown fault {fault.kind}")

    def _arm_fuse(self, fault: Fault, node: Node, finish: End, hit: End) -> End | None:
        """Power loss inside the n-th disk operation from now on, if there are so many soon."""
        if not node.is_running:
            return None
        disk, stage, blown = node.disk, self._stage, list[bool]()
        disk.fuse = int(fault.details.get("operations", 0))

        def look(operation: str, path: str) -> None:
            if disk.fuse == 0 and node.is_running:
                disk.observer = None
                blown.append(True)
                hit()
                node.hold()
                node.power_off()
                stage.at(stage.now_ms + max(1, fault.for_ms), finish)

        def give_up() -> None:
            if not blown:
                finish()

        def end() -> None:
            if blown:
                node.release()
            elif disk.observer is look:
                disk.fuse = disk.observer = None

        disk.observer = look
        stage.at(stage.now_ms + ARMED_MS, give_up)
        return end

    def _arm_failure(self, fault: Fault, node: Node, finish: End, hit: End) -> End | None:
        """The next writes or syncs fail, if there are any soon."""
        disk, stage = node.disk, self._stage

        def failed(operation: str) -> None:
            disk.on_failed = None
            node.excuse(fault.kind)
            hit()

        disk.on_failed = failed
        call = "writev" if fault.details.get("call") == 1 else "sync"
        disk.fail_next(call, count=int(fault.details.get("count", 1)))
        until_ms = stage.now_ms + ARMED_MS

        def look() -> None:
            if not disk.is_failing or stage.now_ms >= until_ms:
                finish()
            else:
                stage.at(stage.now_ms + _LOOK_MS, look)

        def end() -> None:
            disk.on_failed = None
            disk.forget_failures()

        stage.at(stage.now_ms + _LOOK_MS, look)
        return end

    def _client_fault(self, fault: Fault, name: str) -> End | None:
        """Only kills and pauses: a client has no disk."""
        processes = self._stage.client_processes[name]
        if not processes or processes[-1].is_dead:
            return None
        if fault.kind == "kill":
            processes[-1].kill()
            return lambda: self._restart_client(name)
        if fault.kind == "pause":
            processes[-1].pause()
            return processes[-1].resume
        return None

    def _restart_client(self, name: str) -> None:
        if self._stage.client_processes[name][-1].is_dead:
            self._stage.start_client(self._stage.clients[name])

    # -- network -----------------------------------------------------------------------------------

    def _network_fault(self, fault: Fault, name: str, chance: SeededRandom) -> End | None:
        stage = self._stage
        everybody = list(stage.simulation.machines)
        others = [other for other in everybody if other != name]
        match fault.kind:
            case "isolate":
                return self._cut([(name, o) for o in others] + [(o, name) for o in others])
            case "split":
                side = set(fault.target.split(","))
                return self._cut([(a, b) for a in everybody for b in everybody
                                  if (a in side) != (b in side)])  # fmt: skip
            case "bridge":
                half = {other for other in others if chance.uniform(0, 1) < 0.5}
                return self._cut([(a, b) for a in others for b in others
                                  if (a in half) != (b in half)])  # fmt: skip
        peers = [peer for peer in self._resolve(fault.other or "all", chance) if peer != name]
        match fault.kind:
            case "cut" if fault.details.get("inbound"):
                return self._cut([(peer, name) for peer in peers])
            case "cut":
                return self._cut([(name, peer) for peer in peers])
            case "reset":
                for peer in others:
                    stage.simulation.reset(name, peer)
                return None
            case "slow_link":
                return self._slow(name, peers, fault.details.get("delay_ms", 100))
            case "flap":
                links = [(name, p) for p in peers] + [(p, name) for p in peers]
                return self._flap(links, fault.details.get("period_ms", 500))
        raise AssertionError(f"unknown fault {fault.kind}")

    def _cut(self, links: list[tuple[str, str]]) -> End:
        network = self._stage.simulation.network
        for link in links:
            self._cuts[link] += 1
            if self._cuts[link] == 1:
                network.cut(*link)

        def heal() -> None:
            for link in links:
                self._cuts[link] -= 1
                if self._cuts[link] == 0:
                    network.heal(*link)

        return heal

    def _flap(self, links: list[tuple[str, str]], period_ms: float) -> End:
        """Cut and heal in turn until the end."""
        state: list[End | None] = [self._cut(links)]

        def turn() -> None:
            if not state:
                return
            heal = state.pop()
            if heal is not None:
                heal()
                state.append(None)
            else:
                state.append(self._cut(links))
            self._stage.at(self._stage.now_ms + period_ms, turn)

        def end() -> None:
            heal = state.pop()
            if heal is not None:
                heal()

        self._stage.at(self._stage.now_ms + period_ms, turn)
        return end

    def _slow(self, name: str, peers: list[str], delay_ms: float) -> End:
        simulation = self._stage.simulation
        links = [(name, peer) for peer in peers] + [(peer, name) for peer in peers]
        for link in links:
            simulation.delay(*link, base_ms=delay_ms, jitter_ms=delay_ms / 10)

        def end() -> None:
            for link in links:
                self._stage.usual_delay(*link)

        return end

    # -- history -----------------------------------------------------------------------------------

    def _tell_begin(self, fault: Fault, name: str) -> str:
        told = _told_target(fault, name)
        detail = " ".join(f"{key}={value:g}" for key, value in sorted(fault.details.items()))
        self._tell(fault.kind, told, is_begin=True, detail=detail)
        return told

    def _tell(self, kind: str, target: str, *, is_begin: bool, detail: str = "") -> None:
        self._stage.recorder.add(
            FaultEvent, kind=kind, target=target, is_begin=is_begin, detail=detail
        )


_ARMED = frozenset({"power_at", "disk_fail", "transfer", "lead"})
"""Faults that end when what they wait for has happened."""
_WAITING = _ARMED | {"disk_stale", "replace"}
"""Faults that hit later than they begin, or never."""
_DAMAGES = {"disk_flip": flip, "disk_missing": lose_file}
"""Faults of stored bytes: over at once, if there was something to hit."""


def _nothing() -> None:
    """The end of what is over at once."""


def _told_target(fault: Fault, name: str) -> str:
    """The target as the history has it."""
    if fault.kind == "split":
        return fault.target
    return name if fault.other is None else f"{name}>{fault.other}"


def _one_of(names: list[str], chance: SeededRandom) -> list[str]:
    return [names[min(len(names) - 1, int(chance.uniform(0, len(names))))]] if names else []


def _release_stopped(node: Node) -> None:
    """After a graceful stop; whoever has not ended by now is killed, as service managers do."""
    node.kill()
    node.release()
