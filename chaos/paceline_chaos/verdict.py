"""Pure: what a checker says of a history."""

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType

from paceline.errors import PacelineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken promise."""

    property: str
    """ "S1" ... "S32", "L1" ... "L7" (reliability), "INV-3" where no S has it; "CODE": the
    product raised what nobody took, mostly an assertion of its own; "HARNESS": a bed did."""
    sentence: str
    proof: tuple[int, ...] = ()
    """Numbers of the entries that prove it."""


CODE = "CODE"
HARNESS = "HARNESS"
"""No promise of the product is broken, and no mutant is caught by it."""
_PRODUCT = frozenset({"paceline", "paceline_broker", "paceline_controller"})
_DOUBLE = "paceline.platform.disk_memory"
"""Lies in the product's folder, but is the beds' disk."""


def code_or_harness(error: BaseException, *, of: str = "") -> Violation:
    """What nobody caught, by the innermost frame that is ours: the product's code, or a bed's.

    An assertion of the product is a finding whoever called; a bed or a mutant that breaks is none.
    `of` begins the sentence: whose end it was.
    """
    if isinstance(error, BaseExceptionGroup):
        parts = [code_or_harness(inner) for inner in error.exceptions]
        worst = CODE if any(part.property == CODE for part in parts) else HARNESS
        return Violation(property=worst, sentence=of + "; ".join(part.sentence for part in parts))
    frames = list(_frames_of_ours(error))
    kind = CODE if frames and _is_product(frames[-1][0]) else HARNESS
    where = "nowhere"
    if frames:
        frame, line = frames[-1]
        where = f"{frame.f_code.co_filename.rpartition('/')[2]}:{line}"
    return Violation(property=kind, sentence=f"{of}{type(error).__name__} at {where}: {error}")


def _frames_of_ours(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """From the outermost on. What the test disk raises as any disk would is its caller's matter."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = _module(frame).partition(".")[0]
        is_as_promised = _module(frame) == _DOUBLE and isinstance(error, (PacelineError, OSError))
        if package in (*_PRODUCT, "paceline_chaos") and not is_as_promised:
            yield frame, line


def _is_product(frame: FrameType) -> bool:
    module = _module(frame)
    return module.partition(".")[0] in _PRODUCT and module != _DOUBLE


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All violations of one history, and what was seen on the way."""

    violations: tuple[Violation, ...]
    counters: Mapping[str, int]
    """Operations, acknowledged, reads, faults, elections ...: what made the run worth something."""

    @property
    def is_good(self) -> bool:
        return not self.violations
