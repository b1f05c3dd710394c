"""What a worker process of `verify` does: a few core seeds, one world, or one mutant.

Top-level functions of a module of their own, so that a fresh interpreter can import them.
"""

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from paceline_chaos.commands import cpu_s
from paceline_chaos.mutants import MUTANTS
from paceline_chaos.mutants.mutant import Mutant
from paceline_chaos.protocol_sim.run import run_seed
from paceline_chaos.seeds import SeedResult, size_of
from paceline_chaos.verdict import code_or_harness

MUTANT_CPU_S_MAX = 180.0
"""A defect that these seeds do not show in that time is one that they do not guard against. A
dozen worlds with all jobs of the message model, or some five hundred core seeds."""
MUTANT_SEEDS_MAX = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece of work: seeds [start, end) of a bed, with a rule taken out or not."""

    bed: str
    start: int
    end: int
    mutant: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a job."""

    job: Job
    cpu_s: float
    results: tuple[SeedResult, ...]
    caught_by: str | None = None
    """The property that a mutant violated, of those that it names."""
    caught_seed: int | None = None
    seen: Mapping[str, str] = field(default_factory=dict)
    """What else a mutant violated before: property -> sentence."""


def run_job(job: Job) -> Done:
    """Never raises: what breaks in a seed is a violation of that seed. Nobody logs meanwhile."""
    logger = logging.getLogger("paceline")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)  # a node that stops itself says so as critical
    try:
        return _run_job(job)
    finally:
        logger.setLevel(level)


def _run_job(job: Job) -> Done:
    began_s = cpu_s(with_children=True)
    if job.mutant is not None:
        return _run_mutant(job, MUTANTS[job.mutant])
    results = tuple(run_one(job.bed, seed) for seed in range(job.start, job.end))
    return Done(job=job, cpu_s=cpu_s(with_children=True) - began_s, results=results)


def run_one(bed: str, seed: int, mutant: Mutant | None = None) -> SeedResult:
    """One seed of a bed."""
    if bed == "core":
        return run_seed(seed, mutant=mutant)
    if bed == "raft":
        return _run_raft(seed, mutant)
    try:
        with nullcontext() if mutant is None else mutant.applied():
            if bed == "world":
                return _run_world(seed)
            return _run_counted(bed, seed, script=None if mutant is None else mutant.script)
    except Exception as error:
        return SeedResult(
            bed=bed,
            seed=seed,
            virtual_us=0,
            violations=(code_or_harness(error),),
            counters={},
            operations=0,
            faults=0,
        )


def _run_raft(seed: int, mutant: Mutant | None) -> SeedResult:
    from paceline_chaos.raft.run import run_seed as run_raft_seed  # only where it is wanted

    return run_raft_seed(seed, mutant=mutant)


def _run_world(seed: int) -> SeedResult:
    from paceline_chaos.cluster_sim.run import run_world  # a world imports the whole product

    result = run_world(seed)
    size = size_of(result.history)
    return SeedResult(
        bed="world",
        seed=seed,
        virtual_us=size.virtual_us,
        violations=tuple(result.verdict.violations),
        counters={name: n for name, n in result.counters.items() if "." not in name},
        operations=size.operations,
        faults=size.faults,
    )


def _run_counted(bed: str, seed: int, *, script: str | None) -> SeedResult:
    from paceline_chaos.cluster_sim.counted import RUN, run_scripts  # as above

    return RUN[bed](seed) if script is None else run_scripts(bed, seed, only=script)


def _run_mutant(job: Job, mutant: Mutant) -> Done:
    """Seeds from the first on, as for the product, until one is caught by a check it names."""
    began_s = cpu_s()
    seen: dict[str, str] = {}
    for seed in range(job.start, job.end):
        result = run_one(mutant.bed, seed, mutant)
        is_late = cpu_s() - began_s > MUTANT_CPU_S_MAX
        for violation in result.violations:
            if violation.property in mutant.caught_by and not is_late:
                return Done(
                    job=job,
                    cpu_s=cpu_s() - began_s,
                    results=(),
                    caught_by=violation.property,
                    caught_seed=seed,
                    seen=seen,
                )
            seen.setdefault(violation.property, f"seed {seed}: {violation.sentence}")
        if is_late:
            break
    return Done(job=job, cpu_s=cpu_s() - began_s, results=(), seen=seen)
