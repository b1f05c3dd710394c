"""Finds the few faults of a failing plan that matter: drops the others while it still fails.

Delta debugging: halves are tried first, then smaller parts, until no single fault can be left out.
"Still fails" means: the same property is violated. Each try is a whole world, so a shrink of ten
faults takes some tens of runs.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from paceline_chaos.cluster_sim.faults.plan import Plan
from paceline_chaos.faults.plan import Fault

Fails: TypeAlias = Callable[[Plan], bool]
"""Runs the world with a plan; whether it fails as before."""


def shrink(plan: Plan, fails: Fails) -> Plan:
    """A smallest plan (no fault of it can go) that still fails; `plan` must fail."""
    if plan.broken:
        without = replace(plan, broken=())
        if fails(without):
            plan = without
    faults = minimal(list(plan.faults), lambda left: fails(replace(plan, faults=left)))
    plan = replace(plan, faults=faults)
    return replace(
        plan, broken=minimal(list(plan.broken), lambda left: fails(replace(plan, broken=left)))
    )


def minimal(faults: list[Fault], fails: Callable[[tuple[Fault, ...]], bool]) -> tuple[Fault, ...]:
    parts = 2
    while faults:
        size = max(1, len(faults) // parts)
        for start in range(0, len(faults), size):
            left = faults[:start] + faults[start + size :]
            if fails(tuple(left)):
                faults = left
                parts = max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(faults), 2 * parts)
    return tuple(faults)
