"""Whole worlds: the real cluster on the virtual loop, from a seed, judged by all checkers.

A sample; `make verify` runs hundreds. A seed that fails here is replayed by the printed command.
"""

from collections import Counter
from dataclasses import replace

import pytest

from paceline_chaos.cluster_sim.batch import run_one
from paceline_chaos.cluster_sim.coverage import COVERAGE
from paceline_chaos.cluster_sim.faults.plan import Plan, draw_plan
from paceline_chaos.cluster_sim.limits import bounds_of
from paceline_chaos.cluster_sim.run import REPLAY, Result, run_world
from paceline_chaos.cluster_sim.topology import FAST, Timers, draw_topology
from paceline_chaos.faults.plan import Fault
from paceline_chaos.history.model import Phase, ReplicaDump, Send

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
    assert phases == ["load", "heal", "over", "drain", "end"]
    assert result.counters["elections"] == 0


def test_a_killed_master_is_replaced_and_comes_back() -> None:
    plan = Plan(faults=(Fault(at_ms=1_000, kind="kill", target="master:g1", for_ms=500),))

    result = good(run_world(1, plan=plan, load_ms=LOAD_MS))

    assert result.counters["elections"] == 1
    assert result.counters["grows"] >= 1


def test_a_group_that_waits_for_its_operator_is_not_called_stuck() -> None:
    """R23: all lose power, two cut their logs at recovery, and the third one's disk is gone."""
    cut = Fault(at_ms=4_000, kind="power", target="brokers", for_ms=500)
    lost = Fault(at_ms=4_100, kind="disk_lost", target="g1-b1", for_ms=300)

    # Both disks sync nothing for the tenth of a second before: so both logs have a tail to tear.
    stalls = [
        Fault(at_ms=3_900, kind="disk_stall", target=target, for_ms=300)
        for target in ("g1-b2", "g1-b3")
    ]
    plan = Plan(faults=(*stalls, cut, lost))

    # Whether the tails end in what must be cut is chance, though a likely one.
    runs = (run_world(seed, plan=plan, load_ms=5_000) for seed in range(40, 50))
    result = good(next(run for run in runs if run.counters.get("given_up_suspect")))

    assert result.counters["given_up_suspect"] == 1
    assert "judged.L1" not in result.verdict.counters
    assert result.verdict.counters["judged.S1"] > 0


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
            if fault.kind.startswith("disk_") or fault.kind == "replace"
        }
        for group in (topology.controllers, *topology.groups.values()):
            assert len(damaged & set(group)) <= (len(group) - 1) // 2, (seed, damaged)


def test_what_breaks_for_ever_leaves_majorities_and_the_minimum() -> None:
    counts: Counter[str] = Counter()
    for seed in range(400):
        topology = draw_topology(seed)
        broken = draw_plan(topology).broken
        counts.update(fault.kind for fault in broken)
        for group in topology.groups:
            of_group = [fault for fault in broken if fault.target.endswith(f":{group}")]
            left = topology.replicas - len(of_group)
            assert not of_group or left >= topology.min_in_sync_replicas
            assert not of_group or 2 * left > topology.replicas
            counts["two of a group"] += len(of_group) == 2
        of_controllers = [fault for fault in broken if fault.target in ("leader", "follower")]
        assert 2 * len(of_controllers) < len(topology.controllers)
        counts["two controllers"] += len(of_controllers) == 2

    kinds = ("kill", "pause", "isolate", "power", "stop", "cut", "disk_full")
    assert all(counts[kind] for kind in (*kinds, "two of a group", "two controllers"))


def test_calm_and_haste_are_drawn_for_a_part_of_the_worlds() -> None:
    topologies = [draw_topology(seed) for seed in range(200)]

    assert 0.25 < sum(topology.calm_ms > 0 for topology in topologies) / 200 < 0.45
    hasty = sum("hasty" in topology.clients[0].jobs for topology in topologies)
    assert 0.3 < hasty / 200 < 0.5


def test_bounds_follow_the_timers_and_stay_below_what_they_were() -> None:
    stock = replace(draw_topology(1), timers=Timers())
    fast = replace(stock, timers=FAST)

    loose, tight = bounds_of(stock, has_gray=False), bounds_of(fast, has_gray=False)

    assert tight.master_us < loose.master_us < 8_000_000
    assert tight.first_ack_us < loose.first_ack_us < 8_000_000
    assert tight.full_set_us < loose.full_set_us < 20_000_000
    assert tight.settle_us < loose.settle_us < 10_000_000
    assert loose.patience_us < 20_000_000
    assert loose.calm_gap_us == 1_500_000
