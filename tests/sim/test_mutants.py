"""Rules taken out: the bed that guards a rule must notice, by its own seeds."""

import pytest

from paceline_chaos.mutants import MUTANTS
from paceline_chaos.mutants.features.doors import DOORS
from paceline_chaos.mutants.features.rights import RIGHTS
from paceline_chaos.verify_jobs import run_one

CORE_SAMPLE = (
    *("INV-1", "INV-5", "INV-7", "INV-8", "INV-9", "INV-11", "R2-persist", "R3", "R5"),
    *("R8", "R8-append", "R10", "R10-grow", "R10-twice", "R11-fsync", "R15", "R25-torn"),
    *("R27", "R28-checkpoint", "R28-tail", "R30", "R31", "R31-memory", "R32", "R32-failed"),
    *(
        "R33-far",
        "R33-max",
        "R33-epoch",
        "R19",
        "R22",
        "R38-again",
        "R25-cut",
        "R25-noted",
        "R28-demoted",
        "R29",
        "R16",
        "R37-copies",
        "R37",
    ),
)
WORLD_SAMPLE = (
    *("R38-sequence", "R31-id", "S1-json", "R34-twice", "R28-recall"),
    *("R34-early", "R34-again", "R34-both", "R34-checks", "R34-remembered"),
    *("L9", "L10", "L11", "S23-commit"),
    *("S1-doors", "S5-doors", "S23-fifo"),
)
RAFT_SAMPLE = (
    *("INV-10-vote", "INV-10-votes", "INV-10-part", "INV-10-start", "INV-10-cut"),
    *("INV-10-match", "INV-10-roll", "INV-10-told", "R38-twice"),
)
MOMENT_SAMPLE = dict.fromkeys(
    (
        *{mutant.script: rule for rule, mutant in MUTANTS.items() if mutant.script}.values(),
        *(mutant.rule for mutant in RIGHTS),
        *(mutant.rule for mutant in DOORS if mutant.script),
    )
)
"""Of each script the last, and all that rights and the remoting door rest on. All of these are
caught by a few seeds; `make verify` has the rest."""
SEEDS_MAX = {"core": 40, "world": 8, "moments": 3, "raft": 20}
LIKELY = {
    "R3": 25,
    "R16": 111,
    "R22": 3,
    "R33-epoch": 6,
    "R25-noted": 44,
    "INV-10-part": 373,
    "INV-10-roll": 31,
    "R32-chosen": 4,
    "L9": 2,
    "L10": 11,
    "L11": 11,
    "R28-sealed": 1,
    "S1-doors": 6,
    "S5-doors": 6,
    "S23-fifo": 6,
    "S26-remoting": 6,
    "S31-source": 3,
    "S31-lock": 5,
    "S31-receipt": 4,
    "R34-decided": 4,
}
"""Seeds that are tried first, as they caught it last; if one does no more, the others are tried."""


@pytest.mark.parametrize("rule", [*CORE_SAMPLE, *WORLD_SAMPLE, *RAFT_SAMPLE, *MOMENT_SAMPLE])
def test_the_code_without_a_rule_is_caught(rule: str) -> None:
    mutant = MUTANTS[rule]
    seeds = dict.fromkeys((LIKELY.get(rule, 0), *range(SEEDS_MAX[mutant.bed])))

    assert any(
        found.property in mutant.caught_by
        for seed in seeds
        for found in run_one(mutant.bed, seed, mutant).violations
    ), mutant.meaning


@pytest.mark.parametrize("rule", sorted(MUTANTS))
def test_what_a_mutant_replaces_exists_and_comes_back(rule: str) -> None:
    mutant = MUTANTS[rule]
    patches = mutant.patches()
    before = [getattr(owner, name) for owner, name, _ in patches]

    with mutant.applied():
        inside = [getattr(owner, name) for owner, name, _ in patches]

    assert [getattr(owner, name) for owner, name, _ in patches] == before
    assert all(one is not other for one, other in zip(before, inside, strict=True))
    assert mutant.caught_by
