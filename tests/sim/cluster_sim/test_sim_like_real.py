"""What programs see on the virtual loop is what they see on the stock loop with real sockets."""

import asyncio

import pytest
from tests.sim.cluster_sim.tcp_scripts import SCRIPTS, Script

from paceline_chaos.sim import Simulation

pytestmark = pytest.mark.real_time


def simulated(script: Script, seed: str) -> list[object]:
    results: list[list[object]] = []

    async def main() -> None:
        results.append(await script())

    with Simulation(seed) as world:
        process = world.machine("m").start(main)
        world.run(lambda: process.is_dead, limit_s=60)
        assert process.error is None, process.error
        assert not world.errors
    return results[0]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_program_sees_the_same_on_the_virtual_loop(script: Script) -> None:
    real = asyncio.run(script())

    for seed in range(5):
        assert simulated(script, str(seed)) == real, seed
