"""Rules that only whole processes keep, taken out: the world must notice by its own seeds."""

import pytest

from paceline_chaos.mutants import WORLD_MUTANTS
from paceline_chaos.verify_jobs import run_one

SAMPLE = ("R38-sequence", "R31-id", "S1-json")
"""Those that the first worlds catch; `make verify` has all."""
SEEDS_MAX = 8


@pytest.mark.parametrize("rule", SAMPLE)
def test_worlds_catch_the_code_without_a_rule(rule: str) -> None:
    mutant = WORLD_MUTANTS[rule]

    assert any(
        found.property in mutant.caught_by
        for seed in range(SEEDS_MAX)
        for found in run_one("world", seed, mutant).violations
    ), mutant.meaning


@pytest.mark.parametrize("rule", sorted(WORLD_MUTANTS))
def test_what_a_mutant_of_the_world_replaces_exists_and_comes_back(rule: str) -> None:
    mutant = WORLD_MUTANTS[rule]
    patches = mutant.patches()
    before = [getattr(owner, name) for owner, name, _ in patches]

    with mutant.applied():
        inside = [getattr(owner, name) for owner, name, _ in patches]

    assert [getattr(owner, name) for owner, name, _ in patches] == before
    assert all(one is not other for one, other in zip(before, inside, strict=True))
    assert mutant.caught_by
