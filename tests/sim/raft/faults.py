"""One seeded run: load on whoever leads, and every fault the world knows."""

from tests.sim.raft.world import World

from paceline.types import ControllerId
from paceline_controller.raft.settings import RaftSettings

SETTINGS = RaftSettings(
    compact_after_entries=40, retain_entries=5, segment_bytes=2_000, snapshot_chunk_bytes=300
)


def run_with_faults(seed: str, *, nodes: int = 3, virtual_s: int = 12) -> World:
    """kill -9, power loss of one or all, death inside a disk operation, silent cuts, flaps.

    Raises AssertionError (with the seed) if anything acknowledged is lost or nodes differ.
    """
    world = World(seed, nodes=nodes, settings=SETTINGS)
    world.start_all()
    world.run_until(lambda: world.leader() is not None)
    end = world.clock.now_ms + virtual_s * 1000
    proposals = 0
    while world.clock.now_ms < end:
        world.run(world.random.uniform(5, 60))
        for node in world.nodes.values():
            for _ in range(int(world.random.uniform(1, 4))):
                proposals += 1
                world.propose_at(node, f"{node.name}.{node.life}.{proposals}")
        one_fault(world)
    world.check_end()
    return world


def one_fault(world: World) -> None:
    """At most one, by chance."""
    random = world.random
    names = list(world.nodes)

    def any_name() -> ControllerId:
        return names[int(random.uniform(0, len(names)))]

    def any_pair() -> frozenset[ControllerId]:
        return list(world.links)[int(random.uniform(0, len(world.links)))]

    chance = random.uniform(0, 1)
    if chance < 0.02:
        world.kill(any_name())
    elif chance < 0.035:
        world.kill(any_name(), keep_page_cache=False)
    elif chance < 0.05:
        world.isolate(any_name())
    elif chance < 0.06:
        world.flap(any_pair())
    elif chance < 0.065:
        for name in names:
            world.kill(name, keep_page_cache=False)
    elif chance < 0.075:
        world.cut(*sorted(any_pair()))
    elif chance < 0.09:
        world.nodes[any_name()].disk.fuse = int(random.uniform(0, 12))
    elif chance < 0.16:
        world.heal()
    elif chance < 0.3:
        for name in names:
            if random.uniform(0, 1) < 0.6:
                world.start(name)
