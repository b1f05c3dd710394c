"""`python -m paceline_chaos.cluster_sim`: worlds by seed, shrinking, determinism.

--seed 7                 one world, its verdict; exit code 1 if it is bad
--seed 7 --shrink        the fewest of its faults that still break the same property, as a file
--plan world-7.json      the world of such a file; exit code 2 if the file is wrong
--seeds 0-59             many worlds on all cores, and what they were worth
--determinism 20         the same digest again: other hash seeds, other heaps, other worlds before;
                         from seed 0 on, or from --seed
"""

import argparse
import sys
from pathlib import Path

from paceline.errors import BadRequestError
from paceline_chaos.cluster_sim import console
from paceline_chaos.commands import EXIT_REFUSED
from paceline_chaos.seeds import how_many, one_seed, seeds_between


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m paceline_chaos.cluster_sim", description=__doc__
    )
    parser.add_argument("--seed", type=one_seed)
    parser.add_argument("--seeds", type=seeds_between, metavar="FIRST-LAST")
    parser.add_argument("--determinism", type=how_many, metavar="COUNT")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="what --shrink has written")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="for the plan of --shrink; world-SEED.json"
    )
    parser.add_argument("--processes", type=how_many, default=None)
    parser.add_argument("--history", help="write the history of --seed or --plan to this file")
    parser.add_argument("--log", help="write what the nodes of --seed logged to this file")
    given = parser.parse_args(arguments)
    try:
        return _run(parser, given)
    except BadRequestError as error:
        sys.stderr.write(f"{error.message}\n")
        return EXIT_REFUSED


def _run(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    if given.determinism is not None:
        first = given.seed or 0
        return console.show_determinism(range(first, first + given.determinism), given.processes)
    if given.seeds is not None:
        return console.show_many(given.seeds, given.processes)
    if given.plan is not None:
        return console.show_plan(given.plan, history=given.history, log=given.log)
    if given.seed is None:
        parser.error("--seed, --seeds, --plan or --determinism")
    if given.shrink:
        return console.show_shrunk(given.seed, given.output or Path(f"world-{given.seed}.json"))
    return console.show_one(given.seed, history=given.history, log=given.log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
