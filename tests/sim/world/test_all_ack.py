"""`all_ack_in_sync_state_set`, verified (DESIGN 5): each rule in a world whose faults come at the
very moment that the rule is about.

What must hold is judged by the checkers; each scenario says besides whether its moment came, so
that no test passes because nothing happened. More: `python -m paceline_chaos.world.all_ack`.
"""

import pytest

from paceline_chaos.world.all_ack import SCENARIOS, run_all_ack


@pytest.mark.parametrize("name", SCENARIOS)
def test_acknowledgement_rule_holds_when_it_matters(name: str) -> None:
    """R7, R8, R10, R11, INV-1; R37 for what may be lost and what may not."""
    _, wrong = run_all_ack(name, 1)

    command = f"python -m paceline_chaos.world.all_ack {name} --first 1 --seeds 1"
    assert not wrong, (SCENARIOS[name].rule, wrong, command)
