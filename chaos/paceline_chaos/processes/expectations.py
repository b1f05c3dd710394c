"""Pure: what a scenario expects besides a history without violations."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from paceline_chaos.history.decided import decided
from paceline_chaos.history.model import History, Outcome, Phase, Send
from paceline_chaos.processes.scenario import Expectation
from paceline_chaos.verdict import Verdict, Violation

PROPERTY = "EXPECT"
_SECOND_US = 1_000_000


def longest_gap_ms(history: History) -> tuple[int, tuple[int, ...]]:
    """The longest time without any acknowledgement under load, and the entries around it.

    After the healing only up to the last one: senders end when everything works again.
    """
    times = [
        (entry.answered_us, entry.number)
        for entry in history.entries
        if isinstance(entry, Send) and entry.outcome is Outcome.OK
    ]
    bounds = [
        (entry.at_us, entry.number)
        for entry in history.entries
        if isinstance(entry, Phase) and entry.name in ("load", "heal")
    ]
    moments = sorted(times + bounds)
    gaps = [(later[0] - earlier[0], (earlier[1], later[1])) for earlier, later in pairwise(moments)]
    if not gaps:
        return 0, ()
    gap_us, proof = max(gaps)
    return gap_us // 1000, proof


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


def elections(history: History) -> int:
    """Masters elected after the first one of each group, besides those that new settings of a group
    ask for: the harness itself makes them."""
    found = decided(history.entries)
    return found.elections - found.by_reason["settings"]


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
    gap_ms, proof = longest_gap_ms(history)
    if expect.gap_ms_max is not None and gap_ms > expect.gap_ms_max:
        found.append(
            _unmet(f"nothing was acknowledged for {gap_ms} ms, over {expect.gap_ms_max}", proof)
        )
    if gap_ms < expect.gap_ms_min:
        found.append(
            _unmet(
                f"acknowledged within {gap_ms} ms, where {expect.gap_ms_min} ms must pass", proof
            )
        )
    share = availability(history)
    if share < expect.availability_min:
        found.append(
            _unmet(f"available in {share:.0%} of the seconds, below {expect.availability_min:.0%}")
        )
    count = elections(history)
    if count < expect.elections_min:
        found.append(_unmet(f"{count} elections, expected at least {expect.elections_min}"))
    if expect.elections_max is not None and count > expect.elections_max:
        found.append(_unmet(f"{count} elections, expected at most {expect.elections_max}"))
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


def weighed(expect: Expectation, verdict: Verdict) -> tuple[Verdict, tuple[Violation, ...]]:
    """The verdict without what the scenario's settings give up, and what that was."""
    given_up = tuple(one for one in verdict.violations if one.property in expect.may_break)
    kept = tuple(one for one in verdict.violations if one.property not in expect.may_break)
    return Verdict(violations=kept, counters=verdict.counters), given_up
