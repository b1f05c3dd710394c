"""Pure: how much verification is enough, beside how much there was.

A run that says "good" after three seeds has said nothing. What a source has done adds up in the
ledger, so many short runs are as good as a long one; below these numbers none is called good.
"""

from collections.abc import Iterable, Mapping

from paceline_chaos.checkers import ALL
from paceline_chaos.cluster_sim.coverage import WORLDS_FOR_COVERAGE, judged_counts

SEEDS_WANTED: Mapping[str, int] = {
    "raft": 2_000,
    "determinism": 100,
    "all_ack": 4,
    "moments": 12,
}
"""Beds that end when the ledger has so many seeds of the source."""
SEEDS_TO_JUDGE: Mapping[str, int] = {"core": 300, "world": WORLDS_FOR_COVERAGE, **SEEDS_WANTED}
"""From so many seeds on, every counter must have been seen."""
ROUNDS_WANTED = 30
"""Of each family on real processes."""
RATES: Mapping[str, tuple[int, int]] = {"core": (2_000, 60), "world": (60, 30)}
"""Seeds in five minutes on two cores, and virtual seconds of each."""
_RATE_MS = 5 * 60_000
_CORES = 2


def said_of_rate(
    bed: str, *, seeds: int, virtual_us: int, elapsed_ms: int, processes: int
) -> str | None:
    """The measured rate beside the goal; None for beds without one."""
    if bed not in RATES or not seeds:
        return None
    wanted, virtual_s = RATES[bed]
    rate = seeds * _RATE_MS / max(1, elapsed_ms)
    return (
        f"{bed}: {rate:,.0f} seeds of {virtual_us / seeds / 1e6:.0f} virtual seconds in 5 minutes "
        f"with {processes} workers; the goal is {wanted:,} of {virtual_s} on {_CORES} cores"
    )


def too_few_seeds(bed: str, seeds: int) -> str | None:
    """What is missing before a bed can be judged."""
    wanted = SEEDS_TO_JUDGE.get(bed, 0)
    return f"{bed}: {seeds} of {wanted} seeds" if seeds < wanted else None


def too_few_rounds(rounds: Mapping[str, int], families: Iterable[str]) -> str | None:
    """Families that no round of the source has run."""
    missing = [family for family in families if not rounds.get(family)]
    return f"processes: no round of {', '.join(missing)}" if missing else None


def never_judged(sums: Mapping[str, int]) -> list[str]:
    """Properties on which all rounds together are silent."""
    silent = judged_counts({})
    return [prop for prop, name in zip(ALL, silent, strict=True) if not sums.get(name)]


def said_of_rounds(rounds: Mapping[str, int], families: Iterable[str]) -> str:
    """How far the families have come, in the ledger's sum."""
    counts = (f"{family} {rounds.get(family, 0)}" for family in families)
    return f"processes: rounds of this source: {', '.join(counts)}; the goal is {ROUNDS_WANTED}"
