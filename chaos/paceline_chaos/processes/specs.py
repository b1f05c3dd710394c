"""Pure: the parts of a scenario: its cluster, its load, its faults."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What runs."""

    controllers: int = 3
    groups: int = 1
    brokers: int = 3
    """Of each group."""
    durability: str = "fsync"
    min_in_sync_replicas: int | None = None
    segment_size_bytes: int = 1 << 20
    """The least that is allowed: logs of short runs have several segments."""
    broker: Mapping[str, Any] = field(default_factory=dict)
    """More settings of every broker."""
    controller: Mapping[str, Any] = field(default_factory=dict)
    """More settings of every controller."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every broker group, in effect from an election before the load on."""
    secure: bool = False
    """TLS between all, users with keys, and rights on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """What clients do meanwhile."""

    seconds: float = 4.0
    """At least; it ends some time after the last fault."""
    clients: Mapping[str, int] = field(default_factory=lambda: {"send": 4, "read": 1, "push": 2})
    """Job (`world.workload.JOBS`) -> number of clients that do it."""
    queues: int = 4
    think_ms: float = 20.0
    body_bytes_max: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """A fault, and how often; see `faults.plan.Fault`."""

    at_ms: int
    kind: str
    target: str = ""
    for_ms: int = 0
    other: str | None = None
    details: Mapping[str, float] = field(default_factory=dict)
    times: int = 1
    every_ms: int = 0
    jitter_ms: int = 0
    for_jitter_ms: int = 0
    choose: tuple[str, ...] = ()
