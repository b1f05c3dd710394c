"""The director of scripts: it sees every change in time, and asks only where something changed."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.platform.runtime import pause
from paceline_chaos.cluster_sim.script import LOOK_MS, Director, Script, Steps
from paceline_chaos.sim.simulation import Simulation

END_MS = 1_000
WAKES_MS = 50


@dataclass
class Seen:
    """What a script has seen of a process that wakes now and then."""

    wakes: int = 0
    asked: int = 0
    went_on_us: int = 0


class SmallStage:
    """What a director needs of a stage, with one machine."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.topology = SimpleNamespace(seed=1)

    def at(self, when_ms: float, action: Any) -> None:
        self.simulation.loop.kernel_at(int(when_ms * 1e6), lambda _: action(), None)


def play(script: Script, seen: Seen, *, wakes: bool) -> Director:
    async def wake() -> None:
        while True:
            await pause(WAKES_MS)
            seen.wakes += 1

    with Simulation("director") as simulation:
        if wakes:
            simulation.machine("m").start(wake, name="p")
        stage: Any = SmallStage(simulation)
        director = Director(stage, cast("Any", None), end_us=END_MS * 1000)
        director.play(script)
        simulation.run_for(END_MS / 1000)
    return director


@pytest.mark.parametrize("wanted", [1, 2, 7])
def test_a_change_is_seen_at_the_next_look(wanted: int) -> None:
    seen = Seen()

    def holds() -> bool:
        seen.asked += 1
        return seen.wakes == wanted

    def script(d: Director) -> Steps:
        yield holds
        seen.went_on_us = d.stage.simulation.now_us

    director = play(script, seen, wakes=True)

    assert director.notes.is_done
    late_ms = seen.went_on_us / 1000 - wanted * WAKES_MS
    assert 0 <= late_ms < 2 * LOOK_MS, late_ms
    assert seen.asked <= 3 + 2 * wanted, "it asks although nothing has happened"


def test_what_the_world_does_is_seen_without_a_handle() -> None:
    seen = Seen()

    def script(d: Director) -> Steps:
        d.stage.at(400, lambda: setattr(seen, "wakes", 1))
        yield lambda: seen.wakes == 1
        seen.went_on_us = d.stage.simulation.now_us

    play(script, seen, wakes=False)

    assert 400_000 <= seen.went_on_us < 400_000 + 2_000 * LOOK_MS


def test_time_passes_where_nothing_happens() -> None:
    seen = Seen()

    def script(d: Director) -> Steps:
        over = d.pass_ms(300)
        yield d.pass_ms(100)
        yield lambda: over() and seen.wakes == 0
        seen.went_on_us = d.stage.simulation.now_us

    director = play(script, seen, wakes=False)

    assert director.notes.is_done
    assert 300_000 <= seen.went_on_us < 300_000 + 2_000 * LOOK_MS


def test_what_has_not_happened_by_the_end_does_not_happen() -> None:
    seen = Seen()

    def script(d: Director) -> Steps:
        yield lambda: seen.wakes * WAKES_MS > END_MS - WAKES_MS
        seen.went_on_us = d.stage.simulation.now_us

    director = play(script, seen, wakes=True)

    assert not director.notes.is_done
    assert director.notes.steps_count == 0
