"""Controllers are added, removed and replaced while the quorum goes on (R18, adr/0011)."""

import functools
import os

import pytest
from tests.sim.raft.changes import change, members_of, run_with_changes
from tests.sim.raft.node import SimNode
from tests.sim.raft.world import World

from paceline.types import ControllerId
from paceline_controller.raft.members import Member

SEEDS = int(os.environ.get("PACELINE_RAFT_SEEDS", "25"))
C1, C2, C3, C4 = (ControllerId(f"c{number}") for number in (1, 2, 3, 4))


def a_world(seed: str) -> tuple[World, SimNode]:
    world = World(seed)
    world.start_all()
    world.run_until(lambda: world.leader() is not None)
    leader = world.leader()
    assert leader is not None
    return world, leader


def voters_of(world: World) -> list[str]:
    leader = world.leader()
    return [] if leader is None or leader.core is None else sorted(leader.core.members.voters)


def _has_voters(world: World, wanted: list[str]) -> bool:
    return voters_of(world) == wanted


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_while_members_change_under_faults(seed: int) -> None:
    world = run_with_changes(f"members {seed}")

    assert len(world.acknowledged) > 30


def test_each_of_three_controllers_is_replaced_in_turn() -> None:
    world, _ = a_world("replace all")
    fresh = [ControllerId(f"c{number}") for number in (4, 5, 6)]

    for old, new in zip((C1, C2, C3), fresh, strict=True):
        leader = world.leader()
        assert leader is not None
        change(leader, members_of(leader).replaced(old, new, Member()))
        world.add_node(new, [C1, C2, C3])
        world.start(new)
        wanted = sorted({*voters_of(world), new} - {old})
        world.run_until(functools.partial(_has_voters, world, wanted))
        world.run(2_000)
        assert world.nodes[old].is_removed
        current = world.leader()
        assert current is not None
        world.propose_at(current, f"after {new}")

    world.check_end()
    assert voters_of(world) == fresh
    assert sorted(world.generations) == list(range(1, 10))
