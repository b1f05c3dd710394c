"""500 runs of the core bed: replication, log and controller state under every fault it knows."""

import pytest

from paceline_chaos.core.world import run_seed

CHUNK = 50


@pytest.mark.parametrize("first", range(0, 500, CHUNK))
def test_nothing_acknowledged_is_ever_lost_changed_or_reordered(first: int) -> None:
    """INV-1 to INV-8 and INV-12, and that a repaired group comes to rest."""
    worlds = [run_seed(seed) for seed in range(first, first + CHUNK)]

    # Runs in which nothing happens would prove nothing.
    assert sum(len(world.judge.truth) for world in worlds) > 1000 * CHUNK
    assert sum(len(world.judge.masters) for world in worlds) > 2 * CHUNK
    assert sum(world.judge.reads_count for world in worlds) > CHUNK
    assert sum(world.is_given_up for world in worlds) < CHUNK / 5


def test_same_seed_is_the_same_run() -> None:
    one, other = run_seed(7), run_seed(7)

    assert one.trace == other.trace
    assert one.judge.truth == other.judge.truth
