"""Run seeds of the core bed by hand: `python -m paceline_chaos.core --seed 7`."""

import argparse
import sys
import traceback

from paceline_chaos.core.world import World
from paceline_chaos.mutants.core import MUTANTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m paceline_chaos.core", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="with this rule taken out")
    options = parser.parse_args()
    write = sys.stdout.write
    for seed in range(options.seed, options.seed + options.count):
        world = World(seed)
        try:
            if options.mutant is None:
                world.run()
            else:
                with MUTANTS[options.mutant].applied():
                    world.run()
        except Exception:
            write("\n".join(world.trace) + "\n" + traceback.format_exc())
            write(f"seed {seed} fails\n")
            return 1
        if options.count == 1:
            write("\n".join(world.trace) + "\n")
        write(
            f"seed {seed}: {world.settings.durability}, {len(world.judge.truth)} bytes "
            f"acknowledged, {len(world.judge.masters)} epochs, {world.judge.reads_count} reads"
            f"{', given up' if world.is_given_up else ''}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
