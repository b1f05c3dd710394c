"""Which faults a seed suffers: a random subset of the kinds (swarm), aimed mostly at masters.

Every fault is drawn from a stream of its own, so that a plan without one of its faults (the
shrinker) leaves everything else as it was. Plans keep the budget: never is more than a minority of
the copies of acknowledged bytes damaged, else a loss would prove nothing. What costs a copy is a
lost, stale, wiped or damaged disk, a machine that is replaced, and with memory durability a power
loss or a failed sync too; a group of `min_in_sync_replicas` m has m copies of everything
acknowledged, so at most m - 1 such faults hit it, all on one broker, in one run.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from paceline_chaos.cluster_sim.topology import Topology
from paceline_chaos.faults.plan import Fault

WEIGHTS: Mapping[str, float] = {
    "kill": 3,
    "stop": 1,
    "pause": 2,
    "power": 3,
    "power_at": 3,
    "cut": 2,
    "isolate": 2,
    "split": 1,
    "bridge": 0.5,
    "flap": 1,
    "reset": 1,
    "slow_link": 1,
    "disk_fail": 1,
    "disk_stall": 1,
    "disk_full": 0.7,
    "disk_flip": 1.5,
    "disk_lost": 0.7,
    "disk_stale": 1,
    "disk_missing": 1,
    "disk_wiped": 1,
    "replace": 1.5,
    "transfer": 1,
    "lead": 1,
    "clock_step": 1,
    "clock_rate": 0.7,
    "disk_cold": 1.5,
}
"""How often a kind is drawn among those that a seed has."""
_FAULTS_MEAN = 9
_KIND_SHARE = 0.4
_CLIENT_SHARE = 0.08
"""Of the kills, pauses and cuts: those that hit a client."""
_QUIET_MS = 1_000
"""At the beginning of the load: so that there is something to lose."""
_DISASTER_MS = 16_000
"""So long before the end of the load a disaster begins."""
_DAMAGE = frozenset(
    {"disk_flip", "disk_lost", "disk_stale", "disk_missing", "disk_wiped", "replace"}
)
_OF_BROKERS = frozenset({"disk_missing", "disk_wiped", "transfer"})
_CONTROLLERS_REPLACED_SHARE = 0.4
_RARE = ("disk_fail", "disk_missing", "disk_stale", "disk_wiped", "replace", "slow_link")
_RARE_SHARE = 0.8
"""Worlds that get one more of these, if the budget is not spent: each is to be seen often."""
_MEMORY_DAMAGE = frozenset({"power", "power_at", "disk_fail"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens to a world."""

    faults: tuple[Fault, ...]
    """In order of their beginnings."""
    broken: tuple[Fault, ...] = ()
    """Begin with the liveness phase and last for ever; what would take a quorum is left out."""


def draw_plan(topology: Topology) -> Plan:
    """The plan of a seed."""
    dice = random.Random(f"plan-{topology.seed}")
    kinds = [kind for kind in WEIGHTS if dice.random() < _KIND_SHARE]
    while len(kinds) < 2:
        kinds = sorted({*kinds, dice.choice(list(WEIGHTS))})
    count = max(2, min(3 * _FAULTS_MEAN, round(dice.gammavariate(4, _FAULTS_MEAN / 4))))
    drawer = _Drawer(topology, victims={})
    faults = []
    for number in range(count):
        fault = drawer.draw(kinds, random.Random(f"fault-{topology.seed}-{number}"))
        if fault is not None:
            faults.append(fault)
    dice = random.Random(f"rare-{topology.seed}")
    if dice.random() < _RARE_SHARE:
        rare = drawer.draw([dice.choice(_RARE)], dice)
        faults += [] if rare is None else [rare]
    if topology.has_rescue or topology.is_deserted:
        faults += _draw_disaster(topology, random.Random(f"disaster-{topology.seed}"))
    return Plan(
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
        broken=_draw_broken(topology, random.Random(f"broken-{topology.seed}")),
    )


def _draw_disaster(topology: Topology, dice: random.Random) -> list[Fault]:
    """One replica falls behind, and when it is back all others are away for long (R21, R36)."""
    group = dice.choice(list(topology.groups))
    names = [name for name in topology.groups[group] if name not in topology.learners]
    behind, *others = dice.sample(names, len(names))
    lag_ms = topology.timers.replica_lag_ms_max
    at_ms = dice.randint(2 * _QUIET_MS, max(2 * _QUIET_MS, topology.load_ms - _DISASTER_MS))
    first = Fault(at_ms=at_ms, kind="pause", target=behind, for_ms=lag_ms + 1_500)
    kind = dice.choice(("kill", "kill", "power", "isolate"))
    if kind == "power" and topology.durability == "memory" and topology.is_deserted:
        kind = "kill"  # nobody accepts the loss of what only they had
    away_ms = dice.randint(8_000, 12_000)
    gone_ms = at_ms + lag_ms + 1_000
    return [
        first,
        *(Fault(at_ms=gone_ms, kind=kind, target=name, for_ms=away_ms) for name in others),
    ]


class _Drawer:
    """Draws faults one after another and keeps count of the copies that they cost."""

    def __init__(self, topology: Topology, victims: dict[str, str]) -> None:
        self._topology = topology
        self._victims = victims
        """Group -> the one broker whose copies may be damaged."""
        self._damages: dict[str, int] = {}

    def draw(self, kinds: list[str], dice: random.Random) -> Fault | None:
        kind = dice.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        at_ms = dice.randint(_QUIET_MS, max(_QUIET_MS + 1, self._topology.load_ms - 500))
        for_ms = round(min(10_000, dice.lognormvariate(7.3, 1.0)))  # median 1.5 s, mean 2.4 s
        fault = _shaped(self._topology, kind, at_ms, for_ms, dice)
        return self._within_budget(fault, dice)

    def _within_budget(self, fault: Fault, dice: random.Random) -> Fault | None:
        is_memory = self._topology.durability == "memory"
        is_of_controllers = fault.target in ("leader", "follower", "controllers")
        if is_of_controllers:
            group, names = "controllers", self._topology.controllers
            is_damage = fault.kind in _DAMAGE and (
                fault.kind != "replace" or fault.details.get("dead") == 1
            )
            copies = (len(names) - 1) // 2
        else:
            group = dice.choice(list(self._topology.groups))
            names = self._topology.groups[group]
            members = self._topology.replicas
            is_damage = fault.kind in _DAMAGE or (is_memory and fault.kind in _MEMORY_DAMAGE)
            copies = min(self._topology.min_in_sync_replicas - 1, (members - 1) // 2)
        if not is_damage:
            return fault
        if self._damages.get(group, 0) >= copies:
            return None
        if is_of_controllers and fault.kind == "disk_stale":
            return None  # no Raft survives a member that has forgotten its vote unnoticed
        self._damages[group] = self._damages.get(group, 0) + 1
        victim = self._victims.setdefault(group, dice.choice(names))
        return Fault(
            at_ms=fault.at_ms,
            kind=fault.kind,
            target=victim,
            for_ms=fault.for_ms,
            details=fault.details,
        )


def _shaped(topology: Topology, kind: str, at_ms: int, for_ms: int, dice: random.Random) -> Fault:
    """A fault of a kind with targets and numbers."""
    target, other, details = _target(topology, dice), None, dict[str, float]()
    if kind in ("kill", "pause", "isolate", "reset") and dice.random() < _CLIENT_SHARE:
        target = dice.choice(topology.clients).name
    match kind:
        case "kill" | "power":
            if dice.random() < 0.15:
                target = dice.choice(("all", "brokers", "controllers"))
            if dice.random() < 0.3:
                for_ms = min(for_ms, 100)  # back before anybody has noticed
        case "power_at":
            details = {"operations": dice.randint(0, 40)}
        case "cut" | "slow_link" | "flap":
            other = _other(topology, dice)
            details = _link_details(kind, dice)
        case "split":
            names = topology.nodes()
            target = ",".join(dice.sample(names, dice.randint(1, max(1, len(names) - 1))))
        case "disk_fail":
            details = {"count": 1, "call": dice.choice((0, 0, 1))}
        case "disk_stall":
            details = {"delay_ms": dice.choice((50, 300, 2500))}
        case "disk_cold":
            details = {"delay_ms": dice.choice((1, 20, 200))}
        case "disk_flip":
            details = {"region": dice.choice((0, 1)), "zeros": dice.choice((0, 0, 700, 9_000))}
        case "disk_missing":
            details = {"which": dice.choice((0, 0, 1, 2))}
        case "replace":
            details = {"dead": dice.choice((0, 1))}
            if dice.random() < _CONTROLLERS_REPLACED_SHARE:
                target = dice.choice(("leader", "follower"))
        case "transfer":
            target = f"replica:{dice.choice(list(topology.groups))}"
        case "lead":
            target = dice.choice(("follower", "follower", "leader"))
        case "clock_step":
            details = {"offset_ms": dice.choice((-1, 1)) * dice.choice((100, 5_000, 3_600_000))}
        case "clock_rate":
            details = {"rate": dice.choice((0.7, 0.98, 1.02, 1.5))}
    if kind in _OF_BROKERS and target in ("leader", "follower"):
        target = f"any:{dice.choice(list(topology.groups))}"
    return Fault(at_ms=at_ms, kind=kind, target=target, for_ms=for_ms, other=other, details=details)


def _link_details(kind: str, dice: random.Random) -> dict[str, float]:
    if kind == "slow_link":
        return {"delay_ms": dice.choice((20, 100, 400))}
    return {"period_ms": dice.choice((100, 500, 1500))} if kind == "flap" else {}


def _target(topology: Topology, dice: random.Random) -> str:
    """A role or a node; masters half of the time."""
    group = dice.choice(list(topology.groups))
    return str(
        dice.choices(
            (f"master:{group}", f"replica:{group}", f"any:{group}", "leader", "follower"),
            (50, 18, 12, 14, 6),
        )[0]
    )


def _other(topology: Topology, dice: random.Random) -> str:
    """The other end of a link."""
    group = dice.choice(list(topology.groups))
    return str(
        dice.choices(
            (f"replica:{group}", f"master:{group}", "controllers", "leader", "clients"),
            (30, 15, 25, 15, 15),
        )[0]
    )


_LASTING: Mapping[str, float] = {
    "kill": 2,
    "pause": 2,
    "isolate": 2,
    "power": 1,
    "stop": 1,
    "cut": 2,
    "disk_full": 1,
}
"""What may last for ever, and how often."""


def _draw_broken(topology: Topology, dice: random.Random) -> tuple[Fault, ...]:
    """Perhaps some stay broken for ever: of a group and of the controllers any minority."""
    broken = []
    needed = max(topology.min_in_sync_replicas, topology.replicas // 2 + 1)
    for group in topology.groups:
        if topology.replicas > needed and dice.random() < 0.4:
            for _ in range(dice.randint(1, topology.replicas - needed)):
                roles = (f"master:{group}", f"replica:{group}", f"any:{group}")
                broken.append(_lasting(dice.choice(roles), dice))
    spare = (len(topology.controllers) - 1) // 2
    if spare and dice.random() < 0.3:
        for _ in range(dice.randint(1, spare)):
            broken.append(_lasting(dice.choice(("leader", "follower")), dice))
    return tuple(broken)


def _lasting(target: str, dice: random.Random) -> Fault:
    kind = dice.choices(list(_LASTING), list(_LASTING.values()))[0]
    if kind != "cut":
        return Fault(at_ms=0, kind=kind, target=target)
    # One way: what it says is not heard, or it hears nothing.
    details = {"inbound": float(dice.choice((0, 1)))}
    return Fault(at_ms=0, kind=kind, target=target, other="all", details=details)
