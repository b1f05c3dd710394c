"""Beds of `verify` that have a number of seeds instead of a time: determinism, and the scripts of
`all_ack` and `moments`.

Each seed is summed up as a `SeedResult`, like a seed of the other beds, so that it adds up in the
ledger. Properties of violations: "TRACE" for a seed that was two runs, "all_ack:NAME" or
"moments:NAME" for a script whose rule did not hold, or whose moment did not come; beside it the
properties that checkers found violated, once each, so that a mutant can name what must see it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from paceline_chaos.cluster_sim import all_ack, scripts
from paceline_chaos.cluster_sim.determinism import Rerun, rerun
from paceline_chaos.cluster_sim.scripted import Table, run_scripted
from paceline_chaos.seeds import RERUNS, RERUNS_SAME, SeedResult, size_of
from paceline_chaos.verdict import Violation

TABLES: Mapping[str, Table] = {"all_ack": all_ack.SCENARIOS, "moments": scripts.SCENARIOS}
"""Beds of scripts."""


def run_determinism(seed: int) -> SeedResult:
    """A seed run twice, in two ways."""
    return _of_rerun(rerun(seed))


def _of_rerun(found: Rerun) -> SeedResult:
    sentence = f"trace {found.digest}, and {found.digest_again} with {found.way}"
    different = Violation(property="TRACE", sentence=sentence, proof=())
    return SeedResult(
        bed="determinism",
        seed=found.seed,
        virtual_us=0,
        violations=() if found.is_same else (different,),
        counters={RERUNS: 1, RERUNS_SAME: int(found.is_same)},
        operations=found.operations,
        faults=found.faults,
    )


def run_scripts(bed: str, seed: int, *, only: str | None = None) -> SeedResult:
    """All scripts of a bed, or `only` one, with one seed."""
    violations: list[Violation] = []
    counters: Counter[str] = Counter()
    virtual_us = operations = faults = 0
    table = TABLES[bed]
    for name in table if only is None else (only,):
        result, wrong = run_scripted(table[name], seed)
        violations += [
            Violation(property=f"{bed}:{name}", sentence=sentence, proof=()) for sentence in wrong
        ]
        judged = {one.property: one for one in reversed(result.verdict.violations)}
        violations += judged.values()
        counters[f"{bed}_scripts"] += 1
        counters.update({key: n for key, n in result.counters.items() if "." not in key})
        size = size_of(result.history)
        virtual_us += size.virtual_us
        operations += size.operations
        faults += size.faults
    return SeedResult(
        bed=bed,
        seed=seed,
        virtual_us=virtual_us,
        violations=tuple(violations),
        counters=counters,
        operations=operations,
        faults=faults,
    )


RUN: Mapping[str, Callable[[int], SeedResult]] = {
    "determinism": run_determinism,
    "all_ack": partial(run_scripts, "all_ack"),
    "moments": partial(run_scripts, "moments"),
}
