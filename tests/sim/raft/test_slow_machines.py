"""Syncs of 0.2 to 1.5 s and loops that stand: the leader stays, and work goes on (issue 19, D)."""

import pytest
from tests.sim.raft.world import World

from paceline.types import ControllerId
from paceline_controller.raft.overrides import SafeNode

SYNC_MS = (200.0, 1_500.0)
MINUTES = 2
ASK_EVERY_MS = 250
ANSWER_MS_MAX = 3_500
"""Twice the longest sync (one is under way), and the way."""


def slow_world(seed: str) -> World:
    world = World(seed)
    world.start_all()
    world.run_until(lambda: world.leader() is not None)
    world.sync_ms = SYNC_MS
    return world


def work(world: World, *, milliseconds: float) -> None:
    """Propose at the leader now and then; every answer comes in time, whoever leads."""
    asked: dict[str, float] = {}
    begun = world.clock.now_ms
    while world.clock.now_ms < begun + milliseconds:
        leader = world.leader()
        name = f"w{len(asked)}"
        if leader is not None:
            asked[name] = world.clock.now_ms
            world.propose_at(leader, name)
        world.run(ASK_EVERY_MS)
        done = set(world.acknowledged)
        late = [
            name
            for name, at in asked.items()
            if name not in done and world.clock.now_ms - at > ANSWER_MS_MAX
        ]
        assert not late, f"seed {world.seed}: {late} asked, not answered in {ANSWER_MS_MAX} ms"


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_stays_while_every_sync_is_slow(seed: int) -> None:
    world = slow_world(f"slow {seed}")
    terms = len(world.leaders)

    work(world, milliseconds=MINUTES * 60_000)

    assert len(world.leaders) == terms
    world.check_end()


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_leader_is_followed_by_one_campaign_however_slow_the_disks(seed: int) -> None:
    world = slow_world(f"slow kill {seed}")
    work(world, milliseconds=10_000)
    before = world.leader()
    assert before is not None
    assert before.core is not None
    term = before.core.term

    world.kill(before.name)
    world.run_until(lambda: world.leader() is not None, limit_ms=12_000)

    after = world.leader()
    assert after is not None
    assert after.core is not None
    assert after.core.term == term + 1
    world.check_end()


@pytest.mark.parametrize("seed", range(4))
def test_loops_that_stand_depose_nobody(seed: int) -> None:
    """Each node's loop stands for up to 600 ms now and then: what it did not hear is its own."""
    world = slow_world(f"stalls {seed}")
    terms = len(world.leaders)
    for round_number in range(60):
        name = ControllerId(f"c{1 + round_number % 3}")
        world.stall(name, world.random.uniform(300, 600))
        work(world, milliseconds=1_500)

    assert len(world.leaders) == terms
    world.check_end()


def lose_leader_and_its_only_follower_in_step(seed: str) -> None:
    """The leader's disk is slow, one follower's fast, the other one is cut off from the leader."""
    world = World(seed)
    world.start_all()
    world.run_until(lambda: world.leader() is not None)
    leader = world.leader()
    assert leader is not None
    near, far = (name for name in world.nodes if name != leader.name)
    world.run(200)
    world.sync_ms_of[leader.name] = (1_000, 1_000)
    world.cut(leader.name, far)
    for number in range(5):
        world.propose_at(leader, f"own{number}")
        world.run(60)

    world.kill(leader.name, keep_page_cache=False)
    world.kill(near)
    world.sync_ms_of.clear()
    world.heal()
    world.start(leader.name)
    world.run_until(lambda: world.leader() is not None)
    world.check_end()


@pytest.mark.parametrize("seed", range(4))
def test_what_a_leader_answered_is_on_its_own_disk(seed: int) -> None:
    lose_leader_and_its_only_follower_in_step(f"own {seed}")


def test_a_leader_that_counts_its_copy_ahead_of_its_disk_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SafeNode, "_counted", lambda self, node, message: message)

    with pytest.raises(AssertionError, match="acknowledged but lost|diverges"):
        lose_leader_and_its_only_follower_in_step("own 0")
