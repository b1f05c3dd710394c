"""Rules that random faults do not show, each in a world whose faults come at its moment (R6, R12,
R21): what must hold is judged by the checkers, and the script says whether its moment came.

More: `python -m paceline_chaos.world.moments`. `tests/sim/test_mutants.py` takes the rules out.
"""

import pytest

from paceline_chaos.world.moments import SCENARIOS
from paceline_chaos.world.scripted import run_scripted


@pytest.mark.parametrize("name", SCENARIOS)
def test_rule_holds_at_its_moment(name: str) -> None:
    _, wrong = run_scripted(SCENARIOS[name], 1)

    command = f"python -m paceline_chaos.world.moments {name} --first 1 --seeds 1"
    assert not wrong, (SCENARIOS[name].rule, wrong, command)
