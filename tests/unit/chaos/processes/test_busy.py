"""The goals of `paceline chaos busy`: each one can be missed."""

from dataclasses import replace
from typing import Any

import pytest

from paceline_chaos.processes.busy import Figures, told

GOOD = Figures(
    seconds=1,
    loops=1,
    leader_changes=2,
    topics=1,
    topic_ms_max=5000,
    sends=1,
    noticed_ms=2000,
    next_leader_ms=9000,
)


def test_a_run_at_the_bounds_of_the_goals_meets_them() -> None:
    assert GOOD.is_met
    assert told(GOOD).endswith("goals met")


@pytest.mark.parametrize(
    "missed",
    [
        {"leader_changes": 3},
        {"masters_replaced": 1},
        {"topics": 0},
        {"topic_ms_max": 5001},
        {"sends": 0},
        {"noticed_ms": None},
        {"noticed_ms": 2001},
        {"next_leader_ms": None},
        {"failures": ["TIMEOUT: no answer"]},
    ],
    ids=str,
)
def test_each_goal_can_be_missed(missed: dict[str, Any]) -> None:
    figures = replace(GOOD, **missed)

    assert not figures.is_met
    assert figures.to_json()["is_met"] is False
    assert told(figures).endswith("goals NOT met")
