"""Pure: whether this broker's wall clock may decide what is old (R29).

Every controller tells its wall clock over the session. The present is trusted while more than half
of all controllers have told, lately, a time within `clock_skew_ms_max` of ours; it is known to be
wrong while more than half have told another. Between the two, nothing is known: controllers are
away, or disagree.
"""

from dataclasses import dataclass
from enum import Enum

FRESH_MS_MAX = 10_000
"""Controllers tell their clock each second; after this long without a word it is not known."""


class ClockTrust(Enum):
    """What the controllers say of the own wall clock."""

    AGREES = "agrees"
    UNKNOWN = "unknown"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class _Told:
    unix_ms: int
    at_ms: int
    """Own running time when it was told."""


class ClockSkew:
    """What the controllers have told. Owned by the broker's event loop."""

    def __init__(self, *, controllers_count: int, skew_ms_max: int) -> None:
        self._majority = controllers_count // 2 + 1
        self._skew_ms_max = skew_ms_max
        self._told: dict[str, _Told] = {}

    def told(self, controller: str, *, unix_ms: int, now_ms: int) -> None:
        """`controller` says that it is `unix_ms`; it was so a moment ago."""
        self._told[controller] = _Told(unix_ms, now_ms)

    def told_unix_ms(self, *, now_ms: int) -> int | None:
        """What it is by the controllers now, the middle one of those heard lately; None: fewer than
        a majority were."""
        fresh = sorted(
            told.unix_ms + now_ms - told.at_ms
            for told in self._told.values()
            if now_ms - told.at_ms <= FRESH_MS_MAX
        )
        return fresh[len(fresh) // 2] if len(fresh) >= self._majority else None

    def trust(self, *, own_unix_ms: int, now_ms: int) -> ClockTrust:
        """At running time `now_ms`, when the own wall clock shows `own_unix_ms`.

        A jump of the own clock shows at once: what was told goes on by running time.
        """
        agreeing = differing = 0
        for told in self._told.values():
            age_ms = now_ms - told.at_ms
            if age_ms > FRESH_MS_MAX:
                continue
            if abs(own_unix_ms - (told.unix_ms + age_ms)) <= self._skew_ms_max:
                agreeing += 1
            else:
                differing += 1
        if agreeing >= self._majority:
            return ClockTrust.AGREES
        return ClockTrust.DIFFERS if differing >= self._majority else ClockTrust.UNKNOWN
