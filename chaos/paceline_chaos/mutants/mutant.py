"""A rule taken out of the code: what a bed must notice, or it would not guard the rule.

A mutant replaces attributes of product classes and modules by versions without the rule. Where the
product keeps a rule twice (R38-views), both go; a rule that only a shell keeps is for the world, or
for a script of the moments. Each patch asserts that what it replaces exists, so a mutant cannot
outlive the code that it is about. Product code has no branch for this.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict
from unittest.mock import patch

from paceline_chaos.verdict import HARNESS

Patch = tuple[object, str, Any]
"""Owner, name of its attribute, what to put there."""

NOT_WHERE_IT_MUST_BE = frozenset({"INV-3", "INV-4", "INV-12", "S1", "S2"})
"""What is seen when something acknowledged is missing, whatever the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One rule, and the code without it."""

    rule: str
    """The rule of docs/INVARIANTS.md, with a suffix where there are several of one rule."""
    meaning: str
    caught_by: frozenset[str]
    """Properties of which one must be violated ("S1", "INV-3"); "CODE", an assertion of the
    product, only where nothing else can show it, and `meaning` then says why."""
    patches: Callable[[], list[Patch]]
    bed: str = "core"
    """Which bed catches it: "core", "world", "moments" or "raft"."""
    script: str | None = None
    """In a bed of scripts: the one that its seeds play."""

    def __post_init__(self) -> None:
        assert self.caught_by, f"{self.rule} is caught by nothing"
        assert HARNESS not in self.caught_by, f"{self.rule}: a bed that breaks has caught nothing"
        is_of_scripts = self.bed not in ("core", "world", "raft")
        assert is_of_scripts == (self.script is not None), f"{self.rule}: which script plays it?"

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The code without the rule, inside the block."""
        with ExitStack() as stack:
            for owner, name, value in self.patches():
                assert hasattr(owner, name), f"{owner} has no {name} any more: {self.rule}"
                stack.enter_context(patch.object(owner, name, value))
            yield


class _OfMoment(TypedDict):
    bed: str
    script: str
    caught_by: frozenset[str]


def of_moment(script: str, *caught_by: str) -> _OfMoment:
    """Members of a mutant that a script of the moments plays, and catches if nothing else does."""
    found = frozenset(caught_by or {f"moments:{script}"})
    return {"bed": "moments", "script": script, "caught_by": found}
