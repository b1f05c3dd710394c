"""Rules that random faults do not show, each in a world whose faults come at its moment (R6, R12,
R21): what must hold is judged by the checkers, and the script says whether its moment came.

More: `python -m paceline_chaos.cluster_sim.scripts`.
`tests/sim/test_mutants.py` takes the rules out.
"""

import pytest

from paceline_chaos.cluster_sim.scripted import run_scripted
from paceline_chaos.cluster_sim.scripts import SCENARIOS
from paceline_chaos.history.model import Operation, Phase


@pytest.mark.parametrize("name", SCENARIOS)
def test_rule_holds_at_its_moment(name: str) -> None:
    _, wrong = run_scripted(SCENARIOS[name], 1)

    command = f"python -m paceline_chaos.cluster_sim.scripts {name} --first 1 --seeds 1"
    assert not wrong, (SCENARIOS[name].rule, wrong, command)


def test_what_the_operator_began_ends_before_all_is_read() -> None:
    """Else what it does then is under no entry: processed, and counted as not processed."""
    result, _ = run_scripted(SCENARIOS["sealed"], 4)

    entries = result.history.entries
    (drain,) = [one for one in entries if isinstance(one, Phase) and one.name == "drain"]
    operations = [one for one in entries if isinstance(one, Operation)]
    mine = [one for one in operations if one.client == "operator"]
    assert mine
    assert not [one for one in mine if one.answered_us >= drain.at_us - 1]
