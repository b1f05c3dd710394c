"""Run seeds of the Raft bed: `python -m paceline_chaos.raft --seeds 0-99`."""

import argparse
import logging
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from paceline_chaos.cluster_sim.faults.shrink import minimal
from paceline_chaos.commands import cpu_s
from paceline_chaos.mutants import MUTANTS
from paceline_chaos.mutants.mutant import Mutant
from paceline_chaos.raft.coverage import COUNTERS
from paceline_chaos.raft.plan import Plan, draw_plan
from paceline_chaos.raft.run import BED, RaftWorld, run_plan
from paceline_chaos.seeds import replay_command, seeds_between


def main() -> int:
    """Exit code 1 if a seed fails; its plan and the command that replays it are printed."""
    parser = argparse.ArgumentParser(prog="python -m paceline_chaos.raft", description=__doc__)
    parser.add_argument("--seeds", type=seeds_between, required=True, help="first-last, or one")
    known = sorted(rule for rule, mutant in MUTANTS.items() if mutant.bed == BED)
    parser.add_argument("--mutant", choices=known, help="with this rule taken out")
    parser.add_argument("--shrink", action="store_true", help="leave out faults that do not matter")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first")
    parser.add_argument("--log", help="write all that happened in the last seed to this file")
    options = parser.parse_args()
    logging.getLogger("paceline").setLevel(logging.CRITICAL + 1)
    mutant = None if options.mutant is None else MUTANTS[options.mutant]
    total: Counter[str] = Counter()
    bad = 0
    began_s = cpu_s()
    for seed in options.seeds:
        world = run_plan(draw_plan(seed), mutant=mutant, keeps_log=options.log is not None)
        total.update(world.counters)
        if world.judge.violations:
            bad += 1
            _tell(world, mutant, shrinks=options.shrink)
            if not options.keep_going:
                break
    count = sum(total[f"runs_of_{nodes}"] for nodes in (3, 5))
    for name, meaning in COUNTERS.items():
        _say(f"{total[name]:9,} {meaning}")
    _say(f"{count} seeds, {bad} bad, {(cpu_s() - began_s) / max(1, count):.2f} CPU-s each")
    if options.log is not None:
        Path(options.log).write_text("\n".join(world.simulation.loop.trace.log or []))
    return 1 if bad else 0


def _tell(world: RaftWorld, mutant: Mutant | None, *, shrinks: bool) -> None:
    plan = world.plan
    names = {violation.property for violation in world.judge.violations}
    if shrinks:

        def fails(smaller: Plan) -> bool:
            found = run_plan(smaller, mutant=mutant).judge.violations
            return any(violation.property in names for violation in found)

        faults = minimal(list(plan.faults), lambda left: fails(replace(plan, faults=left)))
        plan = replace(plan, faults=faults)
    for line in plan.lines():
        _say(line)
    for violation in world.judge.violations:
        _say(f"{violation.property}: {violation.sentence}")
    rule = None if mutant is None else mutant.rule
    _say(f"replay: {replay_command(BED, plan.seed, mutant=rule)}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
