"""What a seed draws: how many nodes, how slow they are, what is done to them and when."""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.platform.runtime import SeededRandom
from paceline_chaos.faults.plan import Fault
from paceline_controller.raft.settings import RaftSettings

LOAD_MS = (1_800, 3_600)
FAULTS = (6, 15)
_FIVE_SHARE = 0.25
SPARES = 2
"""Nodes that may join later."""

ONLY_HERE = {
    "die_at": "the process dies inside a step: at the n-th message sent, entry applied, snapshot"
    " taken or put in, from then on (`steps`; `power`: 1 if the machine dies with it)",
    "transfer": "the leader hands over, and goes on",
    "replace": "a new node takes the place of one that lost its disk, or of the target",
    "add": "one node more, an empty one",
    "remove": "the target leaves the quorum, and ends when it hears of it",
}
"""Faults beside those of `faults.plan.KINDS`."""
_WEIGHTS = {
    "kill": 10,
    "power": 8,
    "power_at": 10,
    "die_at": 10,
    "pause": 6,
    "stop": 4,
    "transfer": 5,
    "isolate": 7,
    "cut": 7,
    "bridge": 5,
    "reset": 4,
    "slow_link": 3,
    "disk_fail": 12,
    "disk_full": 4,
    "disk_stall": 5,
    "replace": 6,
    "add": 2,
    "remove": 2,
    "disk_flip": 2,
    "disk_lost": 2,
    "clock_rate": 4,
    "clock_step": 2,
}
CALLS = ("sync", "writev", "sync_now", "rename", "create", "sync_folder", "unlink")
"""Of a disk, which a fault lets fail: `call` is the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What stays as it is while a seed runs."""

    nodes: int
    clients: int
    load_ms: int
    think_ms: float
    sync_ms: float
    latency_ms: float
    jitter_ms: float
    settings: RaftSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of a seed that is not chance of the moment."""

    seed: int
    shape: Shape
    faults: tuple[Fault, ...]

    def lines(self) -> Iterator[str]:
        """For people."""
        shape = self.shape
        yield (
            f"seed {self.seed}: {shape.nodes} nodes, {shape.clients} clients, {shape.load_ms} ms, "
            f"sync {shape.sync_ms:.1f} ms, latency {shape.latency_ms:.1f} ms, snapshot after "
            f"{shape.settings.compact_after_entries}+{shape.settings.retain_entries} entries"
        )
        for fault in self.faults:
            details = "".join(f" {name}={value:g}" for name, value in fault.details.items())
            other = "" if fault.other is None else f" -> {fault.other}"
            lasts = f" for {fault.for_ms} ms" if fault.for_ms else ""
            yield f"  {fault.at_ms:5} ms {fault.kind} {fault.target}{other}{lasts}{details}"


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    random = SeededRandom(f"raft/{seed}/plan")
    shape = _draw_shape(random)
    count = int(random.uniform(*FAULTS))
    faults = sorted(
        (_draw_fault(random, shape) for _ in range(count)), key=lambda fault: fault.at_ms
    )
    return Plan(seed=seed, shape=shape, faults=tuple(faults))


def _draw_shape(random: SeededRandom) -> Shape:
    def between(low: float, high: float) -> int:
        return int(random.uniform(low, high))

    return Shape(
        nodes=5 if random.uniform(0, 1) < _FIVE_SHARE else 3,
        clients=between(2, 5),
        load_ms=between(*LOAD_MS),
        think_ms=random.uniform(1, 40),
        sync_ms=random.uniform(0.1, 8),
        latency_ms=random.uniform(0.1, 3),
        jitter_ms=random.uniform(0.1, 4),
        settings=RaftSettings(
            compact_after_entries=between(6, 120),
            retain_entries=between(0, 8),
            append_bytes=between(500, 4_000),  # no command is so large
            segment_bytes=int(500 * 40 ** random.uniform(0, 1)),
            snapshot_chunk_bytes=between(300, 4_000),
        ),
    )


def _draw_fault(random: SeededRandom, shape: Shape) -> Fault:
    kind = _one_of(random, [name for name, weight in _WEIGHTS.items() for _ in range(weight)])
    nodes = [f"c{number}" for number in range(1, shape.nodes + 1)]
    at_ms = int(random.uniform(0, shape.load_ms * 0.9))
    for_ms = int(random.uniform(30, 1_800))
    target = _one_of(random, ["leader", "leader", "follower", "any", "any", *nodes])
    other: str | None = None
    details: dict[str, float] = {}
    match kind:
        case "kill" | "power" if random.uniform(0, 1) < 0.25:
            target = "all"
        case "power_at":
            details = {"operations": int(random.uniform(0, 14))}
        case "die_at":
            details = {
                "steps": int(random.uniform(0, 25)),
                "power": int(random.uniform(0, 2)),
            }
        case "cut" | "slow_link":
            other = _one_of(random, ["any", "leader", "others"])
            details = {"delay_ms": int(random.uniform(20, 300))} if kind == "slow_link" else {}
        case "disk_fail":
            is_sync = random.uniform(0, 1) < 0.6
            details = {"call": 0 if is_sync else int(random.uniform(0, len(CALLS)))}
        case "disk_full":
            details = {"room": int(random.uniform(0, 600))}
        case "disk_stall":
            details = {"delay_ms": int(random.uniform(50, 900))}
        case "clock_rate":
            details = {"rate": random.uniform(0.6, 1.7)}
        case "clock_step":
            details = {"offset_ms": int(random.uniform(-20_000, 20_000))}
        case "transfer":
            target = "leader"
    if kind in _BLOWS:
        for_ms = 0
    return Fault(at_ms=at_ms, kind=kind, target=target, for_ms=for_ms, other=other, details=details)


_BLOWS = frozenset(
    {"replace", "add", "remove", "transfer", "reset", "clock_step", "disk_flip", "disk_lost"}
)


def _one_of(random: SeededRandom, choices: list[str]) -> str:
    return choices[int(random.uniform(0, len(choices)))]
