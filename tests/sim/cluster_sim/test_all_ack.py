"""`all_ack_in_sync_state_set`, verified (DESIGN 5): each rule in a world whose faults come at the
very moment that the rule is about.

What must hold is judged by the checkers; each scenario says besides whether its moment came, so
that no test passes because nothing happened. More: `python -m paceline_chaos.cluster_sim.all_ack`.
"""

import pytest

from paceline_broker.service.produce import send
from paceline_chaos.cluster_sim.all_ack import SCENARIOS, run_all_ack
from paceline_chaos.mutants import MUTANTS


@pytest.mark.parametrize("name", SCENARIOS)
def test_acknowledgement_rule_holds_when_it_matters(name: str) -> None:
    """R7, R8, R10, R11, INV-1; R37 for what may be lost and what may not."""
    _, wrong = run_all_ack(name, 1)

    command = f"python -m paceline_chaos.cluster_sim.all_ack {name} --first 1 --seeds 1"
    assert not wrong, (SCENARIOS[name].rule, wrong, command)


@pytest.mark.parametrize(
    ("rule", "name", "seed", "told"),
    [
        ("INV-1", "weak-one-off", 1, "S1: "),
        ("R10-twice", "slowest-dies-between", 3, ("S11: ", "S16: ")),
        ("R8", "min-two", 1, "R8: "),
        ("R8-append", "min-two", 1, "something was appended by one of three"),
        ("R37-copies", "weak-two-alone", 1, "the script stopped"),
        ("INV-6", "shrink-unheard", 1, "confirmed with one of both sets"),
    ],
)
def test_code_without_the_rule_is_caught(
    rule: str, name: str, seed: int, told: str | tuple[str, ...]
) -> None:
    with MUTANTS[rule].applied():
        _, wrong = run_all_ack(name, seed)

    assert any(sentence.startswith(told) for sentence in wrong), (MUTANTS[rule].meaning, wrong)


def test_early_answer_that_calls_itself_confirmed_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R37: the flag is all that tells a client what may be lost."""
    monkeypatch.setattr(send._StoredEarly, "__call__", send._Stored.__call__)

    _, wrong = run_all_ack("weak-one", 1)

    assert any(sentence.startswith("S1: ") for sentence in wrong), wrong
