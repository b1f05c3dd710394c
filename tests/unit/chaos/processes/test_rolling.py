"""A rolling restart takes the next node only when all is well again."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

from paceline.platform.runtime import pause, spawn
from paceline_chaos.faults.plan import Fault
from paceline_chaos.processes import rolling
from paceline_chaos.processes.cluster import Node
from paceline_chaos.processes.rolling import roll
from paceline_chaos.processes.watch import Watch
from paceline_chaos.sim.loop import SimLoop

NAMES = ("c1", "g1-b1", "g1-b2")
FAULT = Fault(at_ms=0, kind="roll", target="all", for_ms=100)


class Cluster:
    """Nodes that answer every 50 ms while they are up; whole so long after the last start."""

    def __init__(self, *, catch_up_ms: float) -> None:
        self.nodes = [cast(Node, SimpleNamespace(name=name)) for name in NAMES]
        self.answers: Counter[str] = Counter()
        self.told: list[str] = []
        self._catch_up_ms = catch_up_ms
        self._is_whole = True
        self._up = set(NAMES)

    def is_whole(self) -> bool:
        return self._is_whole

    async def answer(self) -> None:
        while True:
            self.answers.update(self._up)
            await pause(50)

    @asynccontextmanager
    async def stop(self, fault: Fault) -> AsyncIterator[None]:
        assert self._is_whole, f"{fault.target} was stopped while another was not back"
        self._is_whole = False
        self._up.discard(fault.target)
        self.told.append(fault.target)
        yield
        self._up.add(fault.target)
        asyncio.get_running_loop().call_later(self._catch_up_ms / 1000, self._become_whole)

    def _become_whole(self) -> None:
        self._is_whole = True


def rolled(cluster: Cluster) -> list[str]:
    """What `roll` says, in virtual time."""

    async def run() -> list[str]:
        answering = spawn(cluster.answer(), name="answers")
        try:
            return await roll(FAULT, cluster.nodes, cast(Watch, cluster), cluster.stop)
        finally:
            answering.cancel()

    loop = SimLoop("roll")
    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()


def test_nodes_are_restarted_in_turn_each_when_the_one_before_is_back() -> None:
    cluster = Cluster(catch_up_ms=700)

    missed = rolled(cluster)

    assert not missed
    assert cluster.told == list(NAMES)


def test_cluster_that_does_not_become_whole_ends_the_roll_and_is_told() -> None:
    cluster = Cluster(catch_up_ms=2 * rolling.WHOLE_TIMEOUT_MS)

    [sentence] = rolled(cluster)

    assert "not whole" in sentence
    assert "c1" in sentence
    assert cluster.told == ["c1"]
