"""Worlds in which machines come and go: replaced brokers and controllers, wiped disks, learners
(R9, R18)."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from paceline_chaos.checkers import SAFETY
from paceline_chaos.cluster_sim.faults.plan import Plan, draw_plan
from paceline_chaos.cluster_sim.run import Result, run_world
from paceline_chaos.cluster_sim.script import GROUP, stock_topology
from paceline_chaos.cluster_sim.topology import Client, Topology, draw_topology
from paceline_chaos.faults.plan import Fault
from paceline_chaos.history.model import FaultEvent, ReplicaDump

SEED = 3


def run(*faults: Fault, load_ms: int = 9_000, **changes: object) -> Result:
    """A good world of three controllers and three replicas with these faults."""
    topology: Topology = stock_topology(SEED, load_ms=load_ms, **changes)
    result = run_world(SEED, plan=Plan(faults=faults), topology=topology)
    assert result.verdict.is_good, result.verdict.violations[:3]
    return result


def dumps(result: Result, *, is_discarded: bool) -> Iterator[str]:
    for entry in result.history.entries:
        if isinstance(entry, ReplicaDump) and entry.is_discarded is is_discarded:
            yield entry.node


@pytest.mark.parametrize("target", [f"master:{GROUP}", f"replica:{GROUP}"])
def test_a_broker_is_replaced_by_another_machine_under_load(target: str) -> None:
    result = run(Fault(at_ms=1_500, kind="replace", target=target, for_ms=500))

    gone = list(dumps(result, is_discarded=True))
    assert len(gone) == 1
    assert set(dumps(result, is_discarded=False)) == {"b1", "b2", "b3", f"{GROUP}-b4"} - {*gone}
    assert result.counters["brokers_replaced"] == 1
    assert result.counters["grows"] >= 1


@pytest.mark.parametrize("target", ["leader", "follower"])
@pytest.mark.parametrize("dead", [0, 1])
def test_a_controller_is_replaced_under_a_new_id(target: str, dead: int) -> None:
    fault = Fault(
        at_ms=1_500, kind="replace", target=target, for_ms=300, details={"dead": float(dead)}
    )
    result = run(fault)

    assert result.counters["controllers_replaced"] == 1
    told = [e for e in result.history.entries if isinstance(e, FaultEvent) and e.kind == "replace"]
    assert [entry.is_begin for entry in told] == [True, False]
    assert result.verdict.counters["judged.S32"] > 0


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("target", [f"master:{GROUP}", f"replica:{GROUP}"])
def test_a_lost_file_of_the_log_is_mended(which: int, target: str) -> None:
    fault = Fault(at_ms=2_500, kind="disk_missing", target=target, details={"which": float(which)})
    result = run(fault, load_ms=12_000, segment_size_bytes=64 * 1024, body_bytes_max=2_000)

    assert result.counters["hit_disk_missing"] == 1
    assert result.counters["repairs"] >= 1
    assert not [e for e in result.history.entries if isinstance(e, ReplicaDump) and e.damage]


def test_a_wiped_log_with_its_old_identity_is_no_member_until_it_has_all_again() -> None:
    result = run(Fault(at_ms=2_500, kind="disk_wiped", target=f"replica:{GROUP}", for_ms=300))

    assert result.counters["hit_disk_wiped"] == 1
    assert result.counters["shrinks"] >= 1
    assert result.counters["grows"] >= 1
    assert result.verdict.counters["judged.S30"] > 0


def test_operators_move_masters_and_the_controllers_leader() -> None:
    result = run(
        Fault(at_ms=1_500, kind="transfer", target=f"replica:{GROUP}"),
        Fault(at_ms=3_000, kind="lead", target="follower"),
    )

    assert result.counters["masters_ordered"] == 1
    assert result.counters["leaders_ordered"] == 1
    assert result.counters["controller_terms"] >= 1


def test_a_learner_of_a_drawn_world_follows_and_is_judged() -> None:
    seed = next(seed for seed in range(100) if draw_topology(seed).learners)

    result = run_world(seed, plan=Plan(faults=()), load_ms=4_000)

    assert result.verdict.is_good, result.verdict.violations[:3]
    assert result.counters["learners"] == len(draw_topology(seed).groups)
    assert result.verdict.counters["judged.S33"] > 0


def test_in_a_deserted_world_somebody_acts_and_hands_over() -> None:
    """Which replica is there, and whether a client commits meanwhile, hangs on the seed."""
    topologies = (draw_topology(seed) for seed in range(400))
    deserted = (replace(one, calm_ms=0) for one in topologies if one.is_deserted)
    for topology in deserted:
        disaster = [fault for fault in draw_plan(topology).faults if fault.for_ms >= 2_000]
        result = run_world(topology.seed, plan=Plan(faults=tuple(disaster[-3:])), topology=topology)
        assert not [v for v in result.verdict.violations if v.property in SAFETY]
        if result.verdict.counters["judged.S34"]:
            break

    assert result.counters["acting_masters"] >= 1
    assert result.counters["provisional_commits"] >= 1
    assert result.verdict.is_good, result.verdict.violations[:3]


def test_the_only_controller_is_replaced_while_commands_keep_coming() -> None:
    """The one that leaves needs the other's vote, and must not be ahead of it again by then."""
    clients = tuple(
        Client(name=f"client-{number}", jobs=("send", "topics", "operate"))
        for number in range(1, 4)
    )
    result = run(
        Fault(at_ms=1_500, kind="replace", target="leader", for_ms=300),
        controllers=("c1",),
        clients=clients,
        sync_ms=12.0,
    )

    assert result.counters["controllers_replaced"] == 1
    assert result.counters["controller_terms"] < 10
