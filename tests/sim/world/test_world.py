"""Whole worlds: the real cluster on the virtual loop, from a seed, judged by all checkers.

A sample; `make verify` runs hundreds. A seed that fails here is replayed by the printed command.
"""

import pytest

from paceline_chaos.faults.plan import Fault
from paceline_chaos.history.model import Phase, ReplicaDump, Send
from paceline_chaos.world.batch import run_one
from paceline_chaos.world.coverage import COVERAGE
from paceline_chaos.world.plan import Plan, draw_plan
from paceline_chaos.world.run import REPLAY, Result, run_world
from paceline_chaos.world.topology import draw_topology

LOAD_MS = 6_000


def good(result: Result) -> Result:
    assert result.verdict.is_good, (result.verdict.violations[:3], result.replay)
    return result


def test_a_world_without_faults_loses_nothing_and_elects_nobody_twice() -> None:
    result = good(run_world(1, plan=Plan(faults=()), load_ms=LOAD_MS))

    sends = [entry for entry in result.history.entries if isinstance(entry, Send)]
    dumps = [entry for entry in result.history.entries if isinstance(entry, ReplicaDump)]
    phases = [entry.name for entry in result.history.entries if isinstance(entry, Phase)]
    assert len(sends) > 100
    assert len({entry.value for entry in sends}) == len(sends)
    assert len({dump.end for dump in dumps}) == 1
    assert phases == ["load", "heal", "drain", "end"]
    assert result.counters["elections"] == 0


def test_a_killed_master_is_replaced_and_comes_back() -> None:
    plan = Plan(faults=(Fault(at_ms=1_000, kind="kill", target="master:g1", for_ms=500),))

    result = good(run_world(1, plan=plan, load_ms=LOAD_MS))

    assert result.counters["elections"] == 1
    assert result.counters["grows"] >= 1


@pytest.mark.parametrize("seed", [1, 4, 9])
def test_seed_is_good(seed: int) -> None:
    outcome = run_one(seed)

    assert not outcome.violations, (outcome.violations[:3], REPLAY.format(seed=seed))
    assert outcome.counters["operations"] >= 500
    assert set(COVERAGE) <= set(outcome.counters)


def test_plans_are_drawn_from_the_seed_and_keep_their_budget() -> None:
    for seed in range(200):
        topology = draw_topology(seed)
        plan = draw_plan(topology)

        assert plan == draw_plan(draw_topology(seed))
        damaged = {
            fault.target
            for fault in plan.faults
            if fault.kind in ("disk_flip", "disk_lost", "disk_stale")
        }
        for group in (topology.controllers, *topology.groups.values()):
            assert len(damaged & set(group)) <= (len(group) - 1) // 2, (seed, damaged)
