"""Run seeds of the core bed by hand: `python -m paceline_chaos.protocol_sim --seed 7`."""

import argparse
import logging
import sys
from pathlib import Path

from paceline_chaos.mutants import CORE_MUTANTS
from paceline_chaos.protocol_sim.run import properties_of, result_of, run_world
from paceline_chaos.report.keep import keep
from paceline_chaos.seeds import how_many, one_seed, replay_command
from paceline_chaos.verdict import Verdict


def main() -> int:
    """Exit code 1 if a seed fails; its trace and the command that replays it are printed."""
    parser = argparse.ArgumentParser(
        prog="python -m paceline_chaos.protocol_sim", description=__doc__
    )
    parser.add_argument("--seed", type=one_seed, required=True)
    parser.add_argument("--count", type=how_many, default=1, help="how many seeds from there on")
    parser.add_argument("--mutant", choices=sorted(CORE_MUTANTS), help="with this rule taken out")
    parser.add_argument("--history", help="write the history of the last seed to this file")
    options = parser.parse_args()
    logging.getLogger("paceline").setLevel(logging.CRITICAL)
    mutant = None if options.mutant is None else CORE_MUTANTS[options.mutant]
    write = sys.stdout.write
    is_good = True
    for seed in range(options.seed, options.seed + options.count):
        world, violations = run_world(seed, mutant=mutant)
        result = result_of(world, violations)
        if options.history is not None:
            verdict = Verdict(violations=tuple(violations), counters=result.counters)
            properties = properties_of(world)
            keep(world.recorder.history, verdict, Path(options.history), properties=properties)
        if options.count == 1 or violations:
            write("\n".join(world.trace) + "\n")
        for violation in violations:
            write(f"{violation.property}: {violation.sentence} {violation.proof or ''}\n")
        counts = ", ".join(f"{name} {count}" for name, count in result.counters.items() if count)
        write(f"seed {seed}: {result.operations} operations, {result.faults} faults; {counts}\n")
        if violations:
            write(f"replay: {replay_command('core', seed, mutant=options.mutant)}\n")
            is_good = False
            break
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
