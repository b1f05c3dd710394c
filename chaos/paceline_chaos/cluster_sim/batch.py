"""Many worlds in processes of their own, and what came of them, small enough to be sent back."""

import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from paceline_chaos.cluster_sim.faults.plan import Plan
from paceline_chaos.cluster_sim.run import run_world
from paceline_chaos.commands import cpu_s
from paceline_chaos.verdict import Violation, code_or_harness

_WORLDS_PER_PROCESS = 20
"""Then another process takes over: what a world leaves in memory does not pile up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is kept of a world."""

    seed: int
    digest: str
    violations: tuple[Violation, ...]
    counters: Mapping[str, int]
    cpu_s: float


def run_one(seed: int) -> Outcome:
    """The world of a seed, summed up. A harness that breaks is a violation "HARNESS"."""
    began_s = cpu_s()
    try:
        result = run_world(seed)
    except Exception as error:
        broken = (code_or_harness(error),)
        return Outcome(seed=seed, digest="", violations=broken, counters={}, cpu_s=0.0)
    return Outcome(
        seed=seed,
        digest=result.digest,
        violations=result.verdict.violations,
        counters=result.counters,
        cpu_s=cpu_s() - began_s,
    )


def run_many(seeds: Iterable[int], *, processes: int | None = None) -> Iterator[Outcome]:
    """Outcomes as they come, in any order; `processes`: as many as there are cores."""
    # Fresh interpreters: nothing that this one has made can be in a world.
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, maxtasksperchild=_WORLDS_PER_PROCESS) as pool:
        yield from pool.imap_unordered(run_one, seeds)


def fails_as(seed: int, properties: frozenset[str], plan: Plan, *, load_ms: int) -> bool:
    """Whether the world of `seed` with another plan violates one of the properties."""
    found = run_world(seed, plan=plan, load_ms=load_ms).verdict.violations
    return any(violation.property in properties for violation in found)
