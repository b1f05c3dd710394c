"""Random good histories pass; spoilt in one place they are caught by the property that says so."""

import functools

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.unit.chaos.checkers.corruptions import CORRUPTIONS

from paceline_chaos.checkers import judge
from paceline_chaos.checkers.sample import Sample
from paceline_chaos.history.model import History


@functools.cache
def sample(seed: int) -> History:
    return Sample(seed).run(900)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 1_000))
@settings(max_examples=20, deadline=None)
def test_random_good_history_passes(seed: int, steps: int) -> None:
    assert judge(Sample(seed).run(steps)).violations == ()


@pytest.mark.parametrize("name", CORRUPTIONS)
@given(seed=st.integers(0, 3), place=st.integers(0, 2**32))
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
def test_corruption_is_caught_by_its_property(name: str, seed: int, place: int) -> None:
    spoil, caught_by = CORRUPTIONS[name]
    spoilt = spoil(sample(seed), place)
    assume(spoilt is not None)
    assert spoilt is not None

    found = {violation.property for violation in judge(spoilt).violations}

    assert found & caught_by, f"{name} broke {sorted(found)}"
