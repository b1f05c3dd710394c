"""The shrinker leaves what makes a plan fail and nothing else."""

import pytest

from paceline_chaos.cluster_sim.faults.plan import Plan
from paceline_chaos.cluster_sim.faults.shrink import shrink
from paceline_chaos.faults.plan import Fault

FAULTS = tuple(Fault(at_ms=at, kind="kill", target=f"g1-b{at}") for at in range(11))


@pytest.mark.parametrize("guilty", [set(), {3}, {0, 10}, {2, 5, 9}, set(range(11))])
def test_only_faults_that_matter_are_left(guilty: set[int]) -> None:
    plan = Plan(faults=FAULTS, broken=FAULTS[:1])

    found = shrink(plan, lambda tried: guilty <= {fault.at_ms for fault in tried.faults})

    assert {fault.at_ms for fault in found.faults} == guilty
    assert found.broken == ()


def test_what_stays_broken_is_kept_if_it_matters() -> None:
    plan = Plan(faults=FAULTS, broken=FAULTS[:1])

    found = shrink(plan, lambda tried: bool(tried.broken))

    assert (found.faults, found.broken) == ((), FAULTS[:1])


def test_of_those_that_stay_broken_only_the_guilty_are_left() -> None:
    plan = Plan(faults=FAULTS[:4], broken=FAULTS[5:9])
    guilty = [FAULTS[2], FAULTS[6]]

    found = shrink(
        plan, lambda tried: all(fault in (*tried.faults, *tried.broken) for fault in guilty)
    )

    assert (found.faults, found.broken) == ((FAULTS[2],), (FAULTS[6],))
