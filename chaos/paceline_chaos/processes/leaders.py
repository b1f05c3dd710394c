"""Pure: how long the controllers had no leader after the one they had was killed."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from paceline_chaos.history.model import Entry, FaultEvent

_DEADLY = frozenset({"kill", "power"})


class Leadership(NamedTuple):
    """A controller begins to lead: its first command in the term is applied."""

    at_us: int
    node: str
    term: int


def leaderless_ms(leaderships: Iterable[Leadership], entries: Sequence[Entry]) -> int | None:
    """The longest time from the death of a leader until the next one led; None: none died.

    Log lines carry milliseconds: what is measured is right to one of them. A leader that nobody
    followed until the end of the history counts to its last moment.
    """
    by_term = sorted(set(leaderships), key=lambda one: one.term)
    longest: int | None = None
    for entry in entries:
        if not isinstance(entry, FaultEvent) or not entry.is_begin or entry.kind not in _DEADLY:
            continue
        before = [one for one in by_term if one.at_us <= entry.at_us]
        if not before or before[-1].node != entry.target:
            continue
        end_us = next(
            (one.at_us for one in by_term if one.at_us > entry.at_us), _end_us(entries, entry)
        )
        longest = max(longest or 0, (end_us - entry.at_us) // 1000)
    return longest


def _end_us(entries: Sequence[Entry], killed: FaultEvent) -> int:
    moments = [entry.at_us for entry in entries if isinstance(entry, FaultEvent)]
    return max(moments, default=killed.at_us)
