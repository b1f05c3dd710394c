"""One seed of the core bed from beginning to end, with everything that judges it.

The judge of each step sees what histories cannot show: bytes, confirms, epochs of processes. The
checkers judge the history afterwards, as they do for the other beds.
"""

import gc
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from paceline.errors import CorruptLogError
from paceline_chaos import checkers
from paceline_chaos.mutants.mutant import Mutant
from paceline_chaos.protocol_sim.judge import ViolationError
from paceline_chaos.protocol_sim.world import StalledError, World
from paceline_chaos.seeds import SeedResult, size_of
from paceline_chaos.verdict import CODE, Violation, code_or_harness

JUDGED = tuple(name for name in checkers.ALL if name not in ("L2", "L5"))
"""Not how long a calm cluster may take: steps of the walk put no bound on delays."""


def run_seed(seed: int, *, mutant: Mutant | None = None) -> SeedResult:
    """Run one seed, with a rule taken out if `mutant` is given; never raises."""
    return result_of(*run_world(seed, mutant=mutant))


def run_world(
    seed: int, *, mutant: Mutant | None = None, changes: Mapping[str, Any] | None = None
) -> tuple[World, list[Violation]]:
    """As `run_seed`, for who wants to look at the world afterwards, or its group to be another."""
    was_collecting = gc.isenabled()
    gc.disable()  # a run lives a quarter of a second, and its garbage is one graph
    try:
        with ExitStack() as stack:
            if mutant is not None:
                stack.enter_context(mutant.applied())
            world = World(seed, changes=changes)
            violations = _run(world)
    finally:
        if was_collecting:
            gc.enable()
    return world, violations


def _run(world: World) -> list[Violation]:
    try:
        world.run()
    except ViolationError as error:
        return [Violation(property=error.rule, sentence=str(error))]
    except StalledError as error:
        return [Violation(property="L1", sentence=str(error))]
    except Exception as error:  # an assertion of the product, or the bed's own fault
        world.trace.append(traceback.format_exc())
        found = code_or_harness(error)
        if isinstance(error, CorruptLogError) and found.property == CODE:
            # No fault of this bed damages what was written beyond what recovery is to cut.
            sentence = f"damage that no fault made: {found.sentence}"
            found = Violation(property="R23", sentence=sentence)
        return [found]
    history = world.recorder.history
    return list(checkers.judge(history, properties=properties_of(world)).violations)


def properties_of(world: World) -> tuple[str, ...]:
    """What its history is judged for."""
    return checkers.SAFETY if world.is_given_up else JUDGED


def result_of(world: World, violations: list[Violation]) -> SeedResult:
    """The small result of a finished world."""
    size = size_of(world.recorder.history)
    return SeedResult(
        bed="core",
        seed=world.seed,
        virtual_us=world.clock.now_us,
        violations=tuple(violations),
        counters=dict(world.coverage.counts),
        operations=size.operations,
        faults=size.faults,
    )
