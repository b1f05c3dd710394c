"""Figures of one bench case: rates, latency percentiles and CPU per message of every process."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One measured case. Latencies in milliseconds; empty when the case has none."""

    case: str
    """produce, bulk, consume-bodies, consume-messages, end-to-end."""
    path: str
    """stream, post or json."""
    replicas: int
    durability: str
    size: int
    inflight: int
    messages: int
    seconds: float
    latencies_ms: Sequence[float] = ()
    cpu_us_per_message: Mapping[str, float] = field(default_factory=dict)
    """Process name -> CPU microseconds per message, user and system."""
    warm_up_per_s: float | None = None
    """Messages a second while everything was cold, which counts nowhere else."""

    def to_json(self) -> dict[str, Any]:
        """The fields of the peer programs, and ours beside them."""
        rate = self.messages / self.seconds
        return {
            "peer": "paceline",
            "case": self.case,
            "path": self.path,
            "replicas": self.replicas,
            "durability": self.durability,
            "size": self.size,
            "inflight": self.inflight,
            "msg_per_s": round(rate),
            "mb_per_s": round(rate * self.size / 1e6, 1),
            "p50_ms": percentile(self.latencies_ms, 0.5),
            "p99_ms": percentile(self.latencies_ms, 0.99),
            "max_ms": percentile(self.latencies_ms, 1.0),
            "cpu_us": {name: round(value, 2) for name, value in self.cpu_us_per_message.items()},
            **({} if self.warm_up_per_s is None else {"warm_up_per_s": round(self.warm_up_per_s)}),
        }


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` (0..1) of the values lie, by nearest rank; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    rank = max(0, math.ceil(share * len(ordered)) - 1)
    return round(ordered[rank], 3)


class CpuMeter:
    """CPU time of named processes between `start` and `per_message`."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        """`processes`: name -> process id; include this process under its own name."""
        self._processes = {name: psutil.Process(pid) for name, pid in processes.items()}
        self._began: dict[str, float] = {}

    def start(self) -> None:
        self._began = {name: _cpu_seconds(process) for name, process in self._processes.items()}

    def per_message(self, messages: int) -> dict[str, float]:
        """Microseconds of CPU per message since `start`, per process."""
        spent = {
            name: _cpu_seconds(process) - self._began[name]
            for name, process in self._processes.items()
        }
        return {name: seconds * 1e6 / max(messages, 1) for name, seconds in spent.items()}


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
