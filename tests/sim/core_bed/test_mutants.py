"""Each rule of safety, taken out: the core bed must notice, or it would not guard the rule."""

import pytest

from paceline.errors import CorruptLogError
from paceline_chaos.core.world import StalledError, World
from paceline_chaos.mutants.core import MUTANTS

SEEDS_MAX = 1500
"""The rarest is caught by one seed in a hundred or two."""


@pytest.mark.parametrize("rule", sorted(MUTANTS))
def test_core_bed_catches_the_code_without_a_rule(rule: str) -> None:
    mutant = MUTANTS[rule]

    with mutant.applied():
        assert any(_is_unsafe(seed) for seed in range(SEEDS_MAX)), mutant.meaning


def _is_unsafe(seed: int) -> bool:
    """Whether a run breaks an invariant: the judge's, or one that the code itself asserts."""
    try:
        World(seed).run()
    except StalledError:
        return False  # unavailable, which these rules are willing to pay
    except (AssertionError, CorruptLogError):
        return True
    return False
