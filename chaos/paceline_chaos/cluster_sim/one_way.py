"""One-way cuts of every ordered pair of nodes: acknowledgements go on within three seconds.

A world with the product's own timers; one cut after the other, each when all is whole again, each
longer than what is allowed. The longest time without an acknowledgement is measured for each pair,
and after each cut everything must become whole by itself. The checkers judge the whole history.
`python -m paceline_chaos.cluster_sim.one_way --seeds 2` runs all 30 pairs from two seeds.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline_chaos.cluster_sim.faults.plan import Plan
from paceline_chaos.cluster_sim.run import Result, run_world
from paceline_chaos.cluster_sim.script import Director, Script, Steps, stock_topology
from paceline_chaos.cluster_sim.topology import Client, Timers
from paceline_chaos.history.model import Outcome, Send
from paceline_chaos.seeds import how_many, one_seed

NODES = ("c1", "c2", "c3", "b1", "b2", "b3")
PAIRS: tuple[tuple[str, str], ...] = tuple(itertools.permutations(NODES, 2))
GAP_MS_MAX = 3_000
"""`heartbeat_timeout_ms` or `replica_lag_ms_max`, an election, and room."""
CUT_MS = 4_000
BATCH = 6
"""Pairs in one world: a history of all 30 would be long to judge."""
_SENDERS = tuple(Client(name=f"client-{number}", jobs=("send",)) for number in (1, 2, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one cut did."""

    source: str
    target: str
    gap_ms: int
    is_over: bool
    """The cut came to its end, and everything was whole again."""


def script_of(pairs: Sequence[tuple[str, str]]) -> Script:
    """The cuts, one after the other."""

    def script(d: Director) -> Steps:
        for source, target in pairs:
            yield d.is_whole
            yield d.pass_ms(500)
            d.mark(f"cut {source} {target}")
            d.begin("cut", source, for_ms=CUT_MS, other=target)
            yield d.pass_ms(CUT_MS)
            yield d.is_whole
            d.mark(f"whole {source} {target}")

    return script


def run_one_way(
    seed: int, pairs: Sequence[tuple[str, str]]
) -> tuple[Result, list[Measured], list[str]]:
    """The world of a seed with these cuts, what each did, and all that is wrong."""
    result = run_world(
        seed,
        plan=Plan(faults=()),
        topology=stock_topology(
            seed,
            load_ms=len(pairs) * (CUT_MS + 3_000) + 5_000,
            clients=_SENDERS,
            timers=Timers(),
            think_ms=40.0,
        ),
        script=script_of(pairs),
    )
    assert result.notes is not None
    measured = [_measured(result, source, target) for source, target in pairs]
    wrong = [f"{one.property}: {one.sentence}" for one in result.verdict.violations[:5]]
    wrong += [
        f"{one.source}>{one.target}: nothing was acknowledged for {one.gap_ms} ms"
        for one in measured
        if one.gap_ms > GAP_MS_MAX
    ]
    wrong += [f"{one.source}>{one.target}: not whole again" for one in measured if not one.is_over]
    return result, measured, wrong


def _measured(result: Result, source: str, target: str) -> Measured:
    assert result.notes is not None
    marks = result.notes.marks
    start_us = marks.get(f"cut {source} {target}")
    end_us = marks.get(f"whole {source} {target}")
    if start_us is None:
        return Measured(source=source, target=target, gap_ms=0, is_over=False)
    until_us = end_us or start_us + 1000 * CUT_MS
    answers = sorted(
        entry.answered_us
        for entry in result.history.entries
        if isinstance(entry, Send)
        and entry.outcome is Outcome.OK
        and start_us <= entry.answered_us <= until_us
    )
    moments = [start_us, *answers, until_us]
    gap_us = max(after - before for before, after in itertools.pairwise(moments))
    return Measured(source=source, target=target, gap_ms=gap_us // 1000, is_over=end_us is not None)


def batches(size: int = BATCH) -> Iterator[tuple[tuple[str, str], ...]]:
    """All pairs, so many at a time."""
    for at in range(0, len(PAIRS), size):
        yield PAIRS[at : at + size]


def main() -> int:
    """All pairs from some seeds, a line for each; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=how_many, default=1)
    parser.add_argument("--first", type=one_seed, default=1)
    given = parser.parse_args()
    bad = 0
    for seed in range(given.first, given.first + given.seeds):
        for pairs in batches():
            result, measured, wrong = run_one_way(seed, pairs)
            bad += bool(wrong)
            elections = result.verdict.counters.get("elections", 0)
            told = ", ".join(f"{one.source}>{one.target} {one.gap_ms} ms" for one in measured)
            sys.stdout.write(
                f"seed {seed}: {'; '.join(wrong) or 'good'} ({told}; elections {elections})\n"
            )
            sys.stdout.flush()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
