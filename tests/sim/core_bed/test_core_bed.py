"""Seeds of the core bed: log, replication, service and controllers under every fault it knows."""

import pytest

from paceline_chaos.core.coverage import Coverage, zeros
from paceline_chaos.core.run import result_of, run_seed, run_world
from paceline_chaos.seeds import SeedResult

CHUNK = 20
SEEDS = 80
RARE = (
    *("given_up", "disks_lost", "stale_copies", "resets", "commits_refused", "removals"),
    *("set_changes_refused", "sends_refused_overload", "torn_tails", "elections_unhealthy"),
    *("frames_corrupted", "tails_flipped", "elections_dead", "elections_transfer"),
)


def _said(result: SeedResult) -> str:
    return "\n".join(f"{found.property}: {found.sentence}" for found in result.violations)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nothing_acknowledged_is_ever_lost_changed_or_reordered(first: int) -> None:
    """Every property that a history or a step can break, INV-1, INV-8 and INV-12 among them, and
    that a repaired group comes to rest.

    A few runs may end with nobody electable, by rule; but not many, and every kind of event must
    have been seen: runs in which nothing happens prove nothing.
    """
    coverage = Coverage()
    for seed in range(first, first + CHUNK):
        result = run_seed(seed)
        assert result.is_good, f"python -m paceline_chaos.core --seed {seed}\n{_said(result)}"
        coverage.add(result.counters)

    assert coverage.counts["given_up"] < CHUNK / 5
    # Rare ones need more seeds than a chunk: `make verify` demands all of them.
    assert zeros(coverage.counts, but=RARE) == []


def test_same_seed_is_the_same_run() -> None:
    one, other = run_world(7)[0], run_world(7)[0]

    assert one.trace == other.trace
    assert one.judge.truth == other.judge.truth
    assert one.recorder.history.entries == other.recorder.history.entries
    assert result_of(one, []) == result_of(other, [])
