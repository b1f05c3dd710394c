"""Runs scenarios from seeds and prints a line for each."""

import argparse
import sys

from paceline_chaos.world.all_ack import SCENARIOS, run_all_ack


def main() -> int:
    """Run scenarios; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="scenarios; all if none")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    bad = 0
    for name in given.names or SCENARIOS:
        for seed in range(given.first, given.first + given.seeds):
            result, wrong = run_all_ack(name, seed)
            bad += bool(wrong)
            counters = {**result.verdict.counters, **result.counters}
            told = ", ".join(
                f"{key} {counters.get(key, 0)}"
                for key in ("acknowledged", "acknowledged.unconfirmed", "lost.unconfirmed",
                            "elections", "shrinks", "grows", "log.log_truncated")
            )  # fmt: skip
            sys.stdout.write(f"{name} seed {seed}: {'; '.join(wrong) or 'good'} ({told})\n")
            sys.stdout.flush()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
