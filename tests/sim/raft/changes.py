"""One seeded run in which the controllers change while everything else goes wrong."""

from tests.sim.raft.faults import SETTINGS, one_fault
from tests.sim.raft.node import SimNode
from tests.sim.raft.world import World

from paceline.errors import CommandRefusedError
from paceline.types import ControllerId
from paceline_controller.raft.members import Member, Members


def run_with_changes(seed: str, *, nodes: int = 3, virtual_s: int = 20) -> World:
    """Faults and load as in `faults.py`, and an operator who adds, removes and replaces.

    Raises AssertionError (with the seed) if anything acknowledged is lost or nodes differ.
    """
    world = World(seed, nodes=nodes, settings=SETTINGS)
    world.start_all()
    world.run_until(lambda: world.leader() is not None)
    end = world.clock.now_ms + virtual_s * 1000
    proposals = 0
    while world.clock.now_ms < end:
        world.run(world.random.uniform(5, 60))
        for node in list(world.nodes.values()):
            for _ in range(int(world.random.uniform(1, 4))):
                proposals += 1
                world.propose_at(node, f"{node.name}.{node.life}.{proposals}")
        one_fault(world)
        if world.random.uniform(0, 1) < 0.1:
            _one_change(world)
    world.check_end()
    return world


def change(node: SimNode, members: Members) -> None:
    """What the shell does with an operator's wish: fill in what is known, append."""
    assert node.core is not None
    core = node.core

    def append() -> None:
        core.change_members(members)
        node.tick()

    node.world.alive(node, append)


def members_of(node: SimNode) -> Members:
    """The generation in force, with the stores that this node knows."""
    assert node.core is not None
    assert node.identity is not None
    known = {name: node.identity.remembered_store(name) for name in node.world.nodes}
    known[node.name] = node.identity.store
    return node.core.members.known_as({name: Member(store=s) for name, s in known.items()})


def _one_change(world: World) -> None:
    leader = world.leader()
    if leader is None or leader.core is None:
        return
    members, random = members_of(leader), world.random
    voters = sorted(members.voters)
    someone = voters[int(random.uniform(0, len(voters)))]
    fresh = ControllerId(f"c{len(world.nodes) + 1}")
    chance = random.uniform(0, 1)
    try:
        if chance < 0.15 and members.learners:
            wish = members.removing(sorted(members.learners)[0])
        elif len(voters) < 5 and chance < 0.4:
            wish = members.added(fresh, Member())
        elif len(voters) > 3 and chance < 0.7:
            wish = members.removing(someone)
        else:
            wish = members.replaced(someone, fresh, Member())
        change(leader, wish)
    except CommandRefusedError:
        return  # another change is under way, or the leader is too young
    if wish.find(fresh) is not None:
        world.add_node(fresh, [name for name in voters if name != someone])
        world.start(fresh)
