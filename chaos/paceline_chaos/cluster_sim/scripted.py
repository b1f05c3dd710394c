"""Scripts put to the test: a rule, the script that brings its moment about, and what it asks then.

Beds of scripts (`all_ack`, `moments`) are tables of these. A run is good if the checkers found
nothing, every expectation held, and the moment really came: one in which it did not is as bad as a
violation.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from paceline_chaos.cluster_sim.faults.plan import Plan
from paceline_chaos.cluster_sim.run import Result, run_world
from paceline_chaos.cluster_sim.script import Script, stock_topology
from paceline_chaos.mutants import MUTANTS
from paceline_chaos.seeds import how_many, one_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """One rule put to the test."""

    rule: str
    script: Script
    unmet: Callable[[Result], list[str]]
    """What should have happened in the run and did not."""
    load_ms: int = 7_000
    topology: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


Table: TypeAlias = Mapping[str, Scripted]
"""Name -> script, of one bed."""


def run_scripted(
    scenario: Scripted, seed: int, *, keep_log: bool = False
) -> tuple[Result, list[str]]:
    """The world of a script and a seed; and all that is wrong with it."""
    result = run_world(
        seed,
        plan=Plan(faults=()),
        topology=stock_topology(seed, load_ms=scenario.load_ms, **scenario.topology),
        settings=scenario.settings,
        script=scenario.script,
        keep_log=keep_log,
    )
    wrong = [f"{one.property}: {one.sentence}" for one in result.verdict.violations[:5]]
    assert result.notes is not None
    wrong += result.notes.wrong
    if not result.notes.is_done:
        wrong.append(f"the script stopped after {result.notes.steps_count} steps")
    else:
        wrong += scenario.unmet(result)
    return result, wrong


TOLD = (
    "acknowledged",
    "acknowledged.unconfirmed",
    "lost.unconfirmed",
    "elections",
    "shrinks",
    "grows",
    "log.log_truncated",
)
"""Counters in the line of a run."""


def run_table(table: Table, description: str | None) -> int:
    """The command of a bed: run scripts from seeds, a line for each; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", help="scripts; all if none")
    parser.add_argument("--seeds", type=how_many, default=5)
    parser.add_argument("--first", type=one_seed, default=1)
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="with this rule taken out")
    parser.add_argument("--log", action="store_true", help="what the nodes logged, too")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(table))
    if unknown:
        parser.error(f"no script is called {', '.join(unknown)}; there are {', '.join(table)}")
    with ExitStack() as stack:
        if given.mutant is not None:
            stack.enter_context(MUTANTS[given.mutant].applied())
        return _run_all(table, given)


def _run_all(table: Table, given: argparse.Namespace) -> int:
    bad = 0
    for name in given.names or table:
        for seed in range(given.first, given.first + given.seeds):
            result, wrong = run_scripted(table[name], seed, keep_log=given.log)
            bad += bool(wrong)
            counters = {**result.verdict.counters, **result.counters}
            told = ", ".join(f"{key} {counters.get(key, 0)}" for key in TOLD)
            for line in result.logs:
                sys.stdout.write(f"{line}\n")
            sys.stdout.write(f"{name} seed {seed}: {'; '.join(wrong) or 'good'} ({told})\n")
            sys.stdout.flush()
    return 1 if bad else 0
