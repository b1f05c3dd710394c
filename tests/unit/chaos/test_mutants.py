"""Mutants still fit the code that they change."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from paceline_chaos.mutants import MUTANTS


@pytest.mark.parametrize("rule", MUTANTS)
def test_what_a_mutant_puts_in_place_of_a_function_takes_what_that_takes(rule: str) -> None:
    for target, name, new in MUTANTS[rule].patches():
        old = getattr(target, name)
        if inspect.isfunction(old) and inspect.isfunction(new):
            bind_all(old, new)


def bind_all(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """TypeError unless `new` can be called as `old` is, with everything."""
    given = inspect.signature(old).parameters.values()
    named = {each.name: None for each in given if each.kind is each.KEYWORD_ONLY}
    plain = [
        None for each in given if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    inspect.signature(new).bind(*plain, **named)
