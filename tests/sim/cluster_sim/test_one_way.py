"""Every ordered pair of nodes, one way: acknowledgements go on within three seconds, and all of it
becomes whole by itself (R6, R10, R12, R15, R19). More:
`python -m paceline_chaos.cluster_sim.one_way`.
"""

import itertools
from collections.abc import Sequence

import pytest

from paceline_chaos.cluster_sim import one_way
from paceline_chaos.cluster_sim.one_way import PAIRS, batches, run_one_way

SEED = 1


@pytest.mark.parametrize("pairs", list(batches()), ids=lambda pairs: ">".join(pairs[0]))
def test_cut_of_one_direction_is_recovered_from_within_three_seconds(
    pairs: Sequence[tuple[str, str]],
) -> None:
    _, _, wrong = run_one_way(SEED, pairs)

    assert not wrong, f"python -m paceline_chaos.cluster_sim.one_way --first {SEED}"


def test_all_ordered_pairs_are_run() -> None:
    assert len(set(PAIRS)) == len(PAIRS) == 30
    assert list(itertools.chain(*batches())) == list(PAIRS)


def test_pause_above_the_bound_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that hears nothing holds sends for `replica_lag_ms_max`, 2 s (R12)."""
    monkeypatch.setattr(one_way, "GAP_MS_MAX", 1_000)
    brokers = [pair for pair in PAIRS if pair[0][0] == pair[1][0] == "b"]

    _, _, wrong = run_one_way(SEED, brokers)

    assert any("nothing was acknowledged for 20" in sentence for sentence in wrong), wrong
