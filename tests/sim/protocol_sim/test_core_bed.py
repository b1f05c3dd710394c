"""Seeds of the core bed: log, replication, service and controllers under every fault it knows."""

from collections import Counter

import pytest

from paceline_chaos.history.model import ReplicaDump
from paceline_chaos.protocol_sim import ending
from paceline_chaos.protocol_sim.coverage import COUNTERS, Coverage, zeros
from paceline_chaos.protocol_sim.dice import Dice
from paceline_chaos.protocol_sim.run import result_of, run_seed, run_world
from paceline_chaos.protocol_sim.shape import draw_settings
from paceline_chaos.protocol_sim.world import World
from paceline_chaos.seeds import SeedResult

CHUNK = 20
SEEDS = 80
RARE = (
    *("given_up", "disks_lost", "stale_copies", "resets", "commits_refused", "removals"),
    *("set_changes_refused", "sends_refused_overload", "torn_tails", "elections_unhealthy"),
    *("frames_corrupted", "tails_flipped", "elections_dead", "elections_transfer"),
    *("given_up_lost", "given_up_suspect", "unconfirmed_answers"),
    *("installs", "learners_whole", "logs_cut_short"),
    *(name for name in COUNTERS if name.startswith("runs_") or "_of_" in name),
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
        assert result.is_good, (
            f"python -m paceline_chaos.protocol_sim --seed {seed}\n{_said(result)}"
        )
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


def test_seeds_draw_every_shape_and_most_often_three_with_a_majority() -> None:
    drawn = [draw_settings(Dice(f"shape {seed}")) for seed in range(1000)]
    shapes = Counter((one.total_replicas, one.min_in_sync_replicas) for one in drawn)

    assert set(shapes) == {(size, least) for size in range(2, 6) for least in range(1, size + 1)}
    assert shapes.most_common(1)[0][0] == (3, 2)
    assert {one.durability for one in drawn} == {"fsync", "memory"}
    assert {one.all_ack_in_sync_state_set for one in drawn} == {True, False}
    assert {
        (one.in_sync_replicas, one.enable_auto_in_sync_replicas)
        for one in drawn
        if not one.all_ack_in_sync_state_set
    } == {(count, is_auto) for count in range(1, 6) for is_auto in (False, True)}


@pytest.mark.parametrize("is_lost", [False, True], ids=["kept", "lost"])
def test_run_that_waits_for_its_operator_is_judged_for_safety(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason is; here none, so that every seed has such an end."""
    monkeypatch.setattr(World, "_why_operator", lambda world: "lost")
    if is_lost:
        monkeypatch.setattr(ending, "content", lambda log, start, end: b"")

    world, violations = run_world(3)

    assert world.is_given_up
    assert world.coverage.counts["given_up_lost"] == 1
    assert sum(isinstance(entry, ReplicaDump) for entry in world.recorder.history.entries) == len(
        world.nodes
    )
    assert ("S1" in {found.property for found in violations}) is is_lost
    assert is_lost or not violations
