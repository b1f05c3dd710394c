"""Pure: what a scenario expects besides a history without violations."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from paceline_chaos.checkers import ALL, judge
from paceline_chaos.checkers.evidence.bounds import Bounds
from paceline_chaos.history.decided import decided
from paceline_chaos.history.model import (
    Commit,
    History,
    Lock,
    Outcome,
    Phase,
    QueryOffset,
    QueryRange,
    Send,
    Stall,
)
from paceline_chaos.tables import build
from paceline_chaos.verdict import Verdict, Violation

PROPERTY = "EXPECT"
EXPECT = "expect"
"""Where the world of a history has the bounds of its scenario."""
BOUNDS, PROPERTIES = "bounds", "properties"
"""Where it has those that its bed was judged by, if they are not the checkers' own."""
_SECOND_US = 1_000_000
_PROOF_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a run must show besides a history without violations."""

    gap_ms_max: int | None = None
    """The longest time, under load, in which nobody in the cluster got an acknowledgement."""
    gap_ms_min: int = 0
    """Where a setting gives up availability: nothing may be acknowledged for so long."""
    availability_min: float = 0.0
    """Of the load's seconds, the share in which somebody got an acknowledgement."""
    failed_sends_max: int | None = None
    """Sends that may end with an error or without a known outcome."""
    failed_calls_max: int | None = None
    """So too of what consumers ask the library for: offsets, commits, ranges, messages."""
    leaderless_ms_max: int | None = None
    """From the death of the leading controller until the next one leads."""
    acknowledged_min: int = 200
    elections_min: int = 0
    elections_max: int | None = None
    settle_ms_max: int = 20_000
    """From the last healing until every group has a master and all its replicas in sync."""
    counters_min: Mapping[str, int] = field(default_factory=dict)
    """What must have happened so often, by the checkers' counters: "lost.unconfirmed" = 1."""
    may_break: tuple[str, ...] = ()
    """Properties that the settings of this scenario give up; told, and no failure."""
    refusals_max: int = 0
    """Nodes that may refuse to start because of damage; they are then started empty."""


def parse_expectation(table: object) -> Expectation:
    """What a scenario expects, from a table. ConfigError with one sentence."""
    return build(Expectation, table, "expect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time in which nobody got an acknowledgement of one group."""

    whole_ms: int
    stalled_ms: int
    """So much of it the harness, and with it every client, stood still: no fault of the cluster."""
    start_us: int
    proof: tuple[int, ...]
    """The entries around it."""

    @property
    def own_ms(self) -> int:
        """What the cluster has to answer for."""
        return self.whole_ms - self.stalled_ms


def longest_gap(history: History) -> Gap:
    """The longest one under load for which the cluster has to answer, of any group.

    After the healing only up to the last acknowledgement: senders end when everything works again.
    """
    answers: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    bounds, stalls = list[tuple[int, int]](), list[Stall]()
    for entry in history.entries:
        if isinstance(entry, Send) and entry.outcome is Outcome.OK:
            answers[entry.queue.group if entry.queue else ""].append(
                (entry.answered_us, entry.number)
            )
        elif isinstance(entry, Phase) and entry.name in ("load", "heal"):
            bounds.append((entry.at_us, entry.number))
        elif isinstance(entry, Stall):
            stalls.append(entry)
    longest = Gap(whole_ms=0, stalled_ms=0, start_us=0, proof=())
    for moments in answers.values() or [[]]:
        for before, after in pairwise(sorted(moments + bounds)):
            whole_us = after[0] - before[0]
            if whole_us // 1000 <= longest.own_ms:
                continue  # most are: stalls are looked up for the few that are not
            stalled_us = sum(_shared_us(one, before[0], after[0]) for one in stalls)
            found = Gap(
                whole_ms=whole_us // 1000,
                stalled_ms=stalled_us // 1000,
                start_us=before[0],
                proof=(before[1], after[1]),
            )
            longest = max(longest, found, key=lambda gap: gap.own_ms)
    return longest


def _shared_us(stall: Stall, start_us: int, end_us: int) -> int:
    return max(0, min(stall.at_us + stall.for_us, end_us) - max(stall.at_us, start_us))


def availability(history: History) -> float:
    """The share of the load's whole seconds in which something was acknowledged."""
    phases = {entry.name: entry.at_us for entry in history.entries if isinstance(entry, Phase)}
    began_us = phases.get("load", 0)
    seconds = (phases.get("heal", began_us) - began_us) // _SECOND_US
    if not seconds:
        return 1.0
    served = {
        (entry.answered_us - began_us) // _SECOND_US
        for entry in history.entries
        if isinstance(entry, Send) and entry.outcome is Outcome.OK
    }
    return len(served & set(range(seconds))) / seconds


def unmet(expect: Expectation, history: History) -> list[Violation]:
    """What the history lacks."""
    found = []
    acknowledged = sum(
        isinstance(entry, Send) and entry.outcome is Outcome.OK for entry in history.entries
    )
    if acknowledged < expect.acknowledged_min:
        found.append(
            _unmet(
                f"{acknowledged} messages were acknowledged, fewer than {expect.acknowledged_min}"
            )
        )
    gap = longest_gap(history)
    if expect.gap_ms_max is not None and gap.own_ms > expect.gap_ms_max:
        stalled = f" (besides {gap.stalled_ms} ms of the harness)" if gap.stalled_ms else ""
        found.append(
            _unmet(
                f"nothing was acknowledged for {gap.own_ms} ms{stalled}, over {expect.gap_ms_max}",
                gap.proof,
            )
        )
    if gap.whole_ms < expect.gap_ms_min:
        found.append(
            _unmet(
                f"acknowledged within {gap.whole_ms} ms, where {expect.gap_ms_min} ms must pass",
                gap.proof,
            )
        )
    found += _failures(expect, history)
    share = availability(history)
    if share < expect.availability_min:
        found.append(
            _unmet(f"available in {share:.0%} of the seconds, below {expect.availability_min:.0%}")
        )
    count = decided(history.entries).elections
    if count < expect.elections_min:
        found.append(_unmet(f"{count} elections, expected at least {expect.elections_min}"))
    if expect.elections_max is not None and count > expect.elections_max:
        found.append(_unmet(f"{count} elections, expected at most {expect.elections_max}"))
    return found


def _failures(expect: Expectation, history: History) -> list[Violation]:
    """What reached the applications as an error or an unknown outcome, if that has a bound."""
    found = []
    for what, kinds, most in (
        ("sends", (Send,), expect.failed_sends_max),
        ("calls of consumers", (Commit, QueryOffset, QueryRange, Lock), expect.failed_calls_max),
    ):
        if most is None:
            continue
        failed = [
            entry
            for entry in history.entries
            if isinstance(entry, kinds) and entry.outcome is not Outcome.OK
        ]
        if len(failed) > most:
            codes = ", ".join(sorted({entry.error or entry.outcome.value for entry in failed}))
            proof = [entry.number for entry in failed[:_PROOF_MAX]]
            sentence = f"{len(failed)} {what} failed, at most {most} may ({codes})"
            found.append(_unmet(sentence, proof))
    return found


def uncounted(expect: Expectation, counters: Mapping[str, int]) -> list[Violation]:
    """What has not happened so often that the run would prove something."""
    return [
        _unmet(f"{name} is {counters.get(name, 0)}, expected at least {least}")
        for name, least in expect.counters_min.items()
        if counters.get(name, 0) < least
    ]


def _unmet(sentence: str, proof: Sequence[int] = ()) -> Violation:
    return Violation(property=PROPERTY, sentence=sentence, proof=tuple(proof))


def judged(
    history: History, observed: Sequence[Violation] = ()
) -> tuple[Verdict, tuple[Violation, ...]]:
    """The verdict on a run with the bounds of its scenario, which its history names; and what it
    broke that its settings give up. `observed`: what the harness saw and the history does not tell.
    ConfigError if the bounds cannot be read; a history without any is judged by the checkers alone.
    """
    world = history.world
    verdict = judge(
        history,
        bounds=Bounds(**world[BOUNDS]) if BOUNDS in world else None,
        properties=world.get(PROPERTIES, ALL.keys()),
    )
    table = history.world.get(EXPECT)
    if table is None:
        violations = (*verdict.violations, *observed)
        return Verdict(violations=violations, counters=verdict.counters), ()
    expect = parse_expectation(table)
    given_up = tuple(one for one in verdict.violations if one.property in expect.may_break)
    kept = tuple(one for one in verdict.violations if one.property not in expect.may_break)
    unmets = (*unmet(expect, history), *uncounted(expect, verdict.counters))
    violations = (*kept, *observed, *unmets)
    return Verdict(violations=violations, counters=verdict.counters), given_up


def as_table(expect: Expectation) -> dict[str, Any]:
    """For the world of a history, so that whoever judges it again has the same bounds."""
    table = {name: value for name, value in asdict(expect).items() if value is not None}
    return {**table, "may_break": list(expect.may_break)}
