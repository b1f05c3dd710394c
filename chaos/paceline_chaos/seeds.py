"""Pure: one seed of a bed, run to its end: what came of it, and how to see it again."""

import math
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paceline_chaos.history.model import Event, FaultEvent, History, Operation, Phase
from paceline_chaos.verdict import Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """What both beds return; small, so that it can cross between processes."""

    bed: str
    """ "core", "world", "raft", "determinism", "all_ack" or "moments"."""
    seed: int
    virtual_us: int
    violations: tuple[Violation, ...] = ()
    counters: Mapping[str, int]
    """Coverage: what the run has been through."""
    operations: int
    """Entries of clients in its history."""
    faults: int

    @property
    def is_good(self) -> bool:
        return not self.violations


class Size(NamedTuple):
    """How much a history has been through."""

    operations: int
    """Entries of clients."""
    faults: int
    """That began. A process that ended by itself is what came of one."""
    virtual_us: int
    """When its last phase began."""


def size_of(history: History) -> Size:
    """Of all beds, so that their numbers say the same."""
    operations = faults = virtual_us = 0
    entries: list[Event] = list(history.entries)
    for entry in entries:
        if isinstance(entry, Operation):
            operations += 1
        elif isinstance(entry, FaultEvent):
            faults += entry.is_begin and entry.kind != "exit"
        elif isinstance(entry, Phase):
            virtual_us = max(virtual_us, entry.at_us)
    return Size(operations, faults, virtual_us)


RERUNS = "reruns"
"""Counter: seeds that were run twice, for the determinism of worlds."""
RERUNS_SAME = "reruns_same"
"""Counter: those with equal trace hashes."""


def said_of_reruns(counters: Mapping[str, int]) -> str:
    """The sentence about determinism."""
    return f"Trace hashes equal in {counters[RERUNS_SAME]} of {counters[RERUNS]} re-runs"


SEED_MAX = (1 << 63) - 1


def one_seed(text: str) -> int:
    """For argparse: one seed."""
    return _number(text, what="a seed", least=0)


def how_many(text: str) -> int:
    """For argparse: how many."""
    return _number(text, what="a number", least=1)


def some_minutes(text: str) -> float:
    """For argparse: a time in which something can be done."""
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes < math.inf:
        raise ArgumentTypeError(f"minutes are a number above 0, not {text!r}")
    return minutes


def seeds_between(text: str) -> range:
    """For argparse: "first-last", both of them included, or one seed."""
    first_text, dash, last_text = text.partition("-")
    if not first_text.strip():
        raise ArgumentTypeError(f"{text!r} is not first-last, as in 0-59; seeds are from 0 on")
    first = _number(first_text, what="the first seed", least=0)
    last = _number(last_text, what="the last seed", least=0) if dash else first
    if last < first:
        raise ArgumentTypeError(f"{text!r} ends before it begins: say {last}-{first}")
    return range(first, last + 1)


def _number(text: str, *, what: str, least: int) -> int:
    is_number = (
        text.strip().removeprefix("-").isascii() and text.strip().removeprefix("-").isdigit()
    )
    if not is_number or not least <= int(text) <= SEED_MAX:
        raise ArgumentTypeError(f"{what} is a whole number from {least} on, not {text!r}")
    return int(text)


def replay_command(bed: str, seed: int, *, mutant: str | None = None) -> str:
    """The one command that runs a seed again."""
    of_mutant = "" if mutant is None else f" --mutant {mutant}"
    if bed == "core":
        return f".venv/bin/python -m paceline_chaos.protocol_sim --seed {seed}{of_mutant}"
    if bed == "raft":
        return f".venv/bin/python -m paceline_chaos.raft --seeds {seed} --shrink{of_mutant}"
    if bed == "determinism":
        return f".venv/bin/python -m paceline_chaos.cluster_sim --determinism 1 --seed {seed}"
    if bed in ("all_ack", "moments"):
        module = f"paceline_chaos.cluster_sim.{'scripts' if bed == 'moments' else bed}"
        return f".venv/bin/python -m {module} --first {seed} --seeds 1{of_mutant}"
    return f".venv/bin/paceline chaos replay --bed {bed} --seed {seed}{of_mutant}"
