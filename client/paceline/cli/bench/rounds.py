"""Cells of a bench that are measured several times, each time on a cluster of its own.

A cluster that has stored some gigabytes is slower or faster than a fresh one, for reasons of the
system's memory, and a shared machine changes by the minute. So every cell gets a fresh cluster, all
cells are measured once before any is measured again, and a row tells the median and the spread.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple


class Cell(NamedTuple):
    """What one child process of the bench measures."""

    replicas: int
    durability: str
    case: str
    inflight: int | None
    """None: the case has its own."""

    @property
    def flags(self) -> list[str]:
        flags = ["--replicas", str(self.replicas), "--durability", self.durability]
        flags += ["--case", self.case]
        return flags if self.inflight is None else [*flags, "--inflight", str(self.inflight)]

    def __str__(self) -> str:
        deep = "" if self.inflight is None else f", {self.inflight:,} in flight"
        return f"{self.replicas} replicas, {self.durability}: {self.case}{deep}"


def cells_of(
    runs: Sequence[tuple[int, str]], cases: Sequence[str], inflight: Sequence[int]
) -> list[Cell]:
    """`runs`: numbers of replicas, and durabilities."""
    return [
        Cell(replicas, durability, case, number)
        for replicas, durability in runs
        for case in cases
        for number in (inflight if case == "produce" else (None,))
    ]


def medians(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for all of the same cell: the median of each number, and in `spread` the lowest and
    the highest rate. Rows of peers and of a single round are left as they are."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = tuple(row.get(name) for name in _SAME)
        cells.setdefault(key, []).append(row)
    return [same[0] if len(same) == 1 else _median(same) for same in cells.values()]


_SAME = ("peer", "case", "path", "replicas", "durability", "size", "inflight")


def _median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    rates = [row["msg_per_s"] for row in rows]
    found = {name: _middle([row.get(name) for row in rows]) for name in rows[0]}
    return {**found, "rounds": len(rows), "spread": [min(rates), max(rates)]}


def _middle(values: list[Any]) -> Any:
    """The median of numbers, of each name in mappings of numbers; else the first."""
    first = values[0]
    if isinstance(first, dict):
        return {name: _middle([value[name] for value in values if name in value]) for name in first}
    if isinstance(first, bool) or not all(isinstance(value, int | float) for value in values):
        return first
    found = median(values)
    return round(found) if all(isinstance(value, int) for value in values) else round(found, 3)
