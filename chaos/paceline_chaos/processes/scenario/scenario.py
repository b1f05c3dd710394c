"""Pure: scenarios as files: what runs, what is done to it, and what is expected of it.

    title = "kill -9 of the master"
    family = "kill"              # one of FAMILIES
    proves = "Nothing acknowledged is lost ..."

    [cluster]                    # all optional: controllers, groups, brokers, durability, ...
    durability = "fsync"

    [load]
    seconds = 8
    clients = { send = 4, read = 1, push = 2 }

    [[fault]]                    # faults.plan.Fault, and how often
    at_ms = 1500
    kind = "kill"
    target = "master:g1"
    for_ms = 1500
    times = 3
    every_ms = 2500
    jitter_ms = 300              # so much later at most, drawn from the seed
    for_jitter_ms = 300          # so much longer at most, drawn from the seed
    choose = ["any:g1", "leader"]   # instead of target: drawn from the seed, each time

    [expect]
    gap_ms_max = 1500

Unknown keys are refused. `plan(scenario, random)` gives the faults of one run: the same seed,
the same faults (whom a role means is found when the fault begins).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from paceline.errors import ConfigError
from paceline.platform.ports import Random
from paceline_chaos.checkers.expectations import Expectation
from paceline_chaos.cluster_sim.jobs.names import JOBS
from paceline_chaos.faults.plan import Fault
from paceline_chaos.processes.scenario.aimed import wrong_with
from paceline_chaos.processes.specs import ClusterSpec, FaultSpec, LoadSpec
from paceline_chaos.tables import build

NETWORK_KINDS = frozenset({"cut", "isolate", "split", "bridge", "flap", "reset", "thin_link"})
"""Faults that need a network of our own."""
SHADOW_KINDS = frozenset({"power", "power_at", "disk_fail", "disk_stale"})
"""Faults that need to know what was synced."""
CLIENTS_MAX = 150
"""Each has an address of its own: 127.0.0.102 and up."""

FAMILIES: Mapping[str, str] = {
    "kill": "kill -9 of one process after another",
    "restart": "storms of kills, everybody at once, graceful stops",
    "pause": "processes that sleep",
    "partition": "nodes and clients cut off",
    "link": "links that carry one direction, flap, or are reset",
    "power": "machines that lose their power",
    "disk": "disks that fail, are full, stall",
    "damage": "bits that flip, copies of old disks, empty disks",
    "clock": "clocks that jump and run wrong",
    "hostile": "clients that take all they can get, and store nothing",
    "security": "users, rights and certificates that change in use",
    "mixed": "several faults at once, drawn from all of the above",
    "acknowledgement": "everybody who dies between append and acknowledgement, weaker settings",
}
"""Of scenarios: what rounds are counted for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One file."""

    name: str
    title: str
    proves: str
    fault: tuple[FaultSpec, ...]
    family: str
    draw: int = 0
    """So many of the faults, drawn from the seed; 0: all of them."""
    is_quick: bool = False
    """Part of `make test`."""
    cluster: ClusterSpec = field(default_factory=ClusterSpec)
    load: LoadSpec = field(default_factory=LoadSpec)
    expect: Expectation = field(default_factory=Expectation)

    def secured(self) -> "Scenario":
        """The same with TLS, users and rights. ConfigError: somebody hostile is in it."""
        if not self.can_be_secure:
            raise ConfigError(f"{self.name} cannot be secure: its flood has no key and no TLS")
        return replace(self, cluster=replace(self.cluster, secure=True))

    @property
    def can_be_secure(self) -> bool:
        """Whether all its clients can show keys."""
        return "flood" not in self.load.clients

    @property
    def needs_network(self) -> bool:
        """Whether it must run in a network namespace."""
        return any(spec.kind in NETWORK_KINDS for spec in self.fault)

    @property
    def needs_shadow(self) -> bool:
        """Whether the nodes' disks must remember what was synced."""
        return any(spec.kind in SHADOW_KINDS for spec in self.fault)


def parse(name: str, text: str, *, source: str = "") -> Scenario:
    """The scenario in a TOML text. ConfigError with one sentence that names `source`, the entry and
    its line."""
    source = source or f"scenario {name}"
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    raw = document.get("fault")
    tables = raw if isinstance(raw, list) else []
    places = _places(source, text, len(tables))
    for place, table in zip(places, tables, strict=True):
        build(FaultSpec, table, place)
    scenario = build(Scenario, {**document, "name": name}, source)
    _check(scenario, source)
    for place, spec in zip(places, scenario.fault, strict=True):
        wrong = wrong_with(spec, scenario.cluster, scenario.load)
        if wrong is not None:
            raise ConfigError(f"{place}: {wrong}")
    return scenario


def _places(source: str, text: str, count: int) -> list[str]:
    """Where each fault stands; without a line where the file does not write them as tables."""
    lines: list[int] = [
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if line.split("#")[0].replace(" ", "").strip() == "[[fault]]"
    ]
    told = [f" (line {line})" for line in lines] if len(lines) == count else [""] * count
    return [f"{source}, fault {number}{line}" for number, line in enumerate(told, start=1)]


def _check(scenario: Scenario, source: str) -> None:
    """All but the faults."""
    if scenario.family not in FAMILIES:
        raise ConfigError(
            f"{source}: no family is called {scenario.family!r}; known: {', '.join(FAMILIES)}"
        )
    if not 0 <= scenario.draw <= len(scenario.fault):
        raise ConfigError(f"{source}: draw must be at least 0, at most {len(scenario.fault)}")
    cluster, load, expect = scenario.cluster, scenario.load, scenario.expect
    for job in load.clients:
        if job not in JOBS:
            raise ConfigError(f"{source}: no client does {job!r}; known: {', '.join(JOBS)}")
    clients, least = sum(load.clients.values()), min(load.clients.values(), default=0)
    minimum = cluster.min_in_sync_replicas
    ranges: tuple[tuple[str, float, float, float], ...] = (
        ("cluster: controllers", cluster.controllers, 1, 50),
        ("cluster: groups", cluster.groups, 1, 50),
        ("cluster: brokers", cluster.brokers, 1, 50),
        ("cluster: min_in_sync_replicas", 1 if minimum is None else minimum, 1, cluster.brokers),
        ("load: seconds", load.seconds, 0, 3600),
        ("load: queues", load.queues, 1, 1000),
        ("load: think_ms", load.think_ms, 0, 60_000),
        ("load: body_bytes_max", load.body_bytes_max, 1, 1 << 20),
        ("load: all clients", clients, 1, CLIENTS_MAX),
        ("load: each number of clients", least, 0, CLIENTS_MAX),
        ("expect: gap_ms_max", expect.gap_ms_max or 0, expect.gap_ms_min, 1 << 30),
        ("expect: availability_min", expect.availability_min, 0, 1),
    )
    for what, value, low, high in ranges:
        is_unset = what == "expect: gap_ms_max" and expect.gap_ms_max is None
        if not is_unset and not low <= value <= high:
            raise ConfigError(f"{source}: {what} is {value}, must be from {low} to {high}")
    if cluster.durability not in ("fsync", "memory"):
        raise ConfigError(f'{source}: durability must be "fsync" or "memory"')


def _drawn(scenario: Scenario, random: Random) -> list[FaultSpec]:
    left = list(scenario.fault)
    if not scenario.draw:
        return left
    return [left.pop(int(random.uniform(0, len(left)))) for _ in range(scenario.draw)]


def plan(scenario: Scenario, random: Random) -> list[Fault]:
    """The faults of one run, in order of time."""
    faults = []
    for spec in _drawn(scenario, random):
        for number in range(spec.times):
            late_ms = int(random.uniform(0, spec.jitter_ms + 1))
            longer_ms = int(random.uniform(0, spec.for_jitter_ms + 1))
            target = spec.target
            if spec.choose:
                target = spec.choose[int(random.uniform(0, len(spec.choose)))]
            faults.append(
                Fault(
                    at_ms=spec.at_ms + number * spec.every_ms + late_ms,
                    kind=spec.kind,
                    target=target,
                    for_ms=spec.for_ms + longer_ms,
                    other=spec.other,
                    details=spec.details,
                )
            )
    return sorted(faults, key=lambda fault: fault.at_ms)
