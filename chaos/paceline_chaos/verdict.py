"""Pure: what a checker says of a history."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken promise."""

    property: str
    """ "S1" ... "S32", "L1" ... "L7" (reliability), "INV-3" where no S has it, or "CODE": an
    assertion of the product itself, an unexpected exception."""
    sentence: str
    proof: tuple[int, ...] = ()
    """Numbers of the entries that prove it."""


def harness_broke(error: Exception) -> Violation:
    """A harness that breaks must not end a long run, and is no fault of the product."""
    return Violation(property="HARNESS", sentence=f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All violations of one history, and what was seen on the way."""

    violations: tuple[Violation, ...]
    counters: Mapping[str, int]
    """Operations, acknowledged, reads, faults, elections ...: what made the run worth something."""

    @property
    def is_good(self) -> bool:
        return not self.violations
