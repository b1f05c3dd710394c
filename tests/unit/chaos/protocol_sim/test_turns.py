"""Worlds of the core bed leave nothing behind in the process that runs them."""

from paceline.platform import runtime
from paceline_chaos.protocol_sim.run import run_world


def test_tasks_of_dead_processes_end_with_their_world() -> None:
    before = set(runtime._running)

    waiting = 0
    for seed in range(8):
        world, violations = run_world(seed)
        waiting += world.coverage.counts["crash_points"]
        assert violations == []

    assert waiting > 0, "processes died in the middle of something"
    assert runtime._running == before
