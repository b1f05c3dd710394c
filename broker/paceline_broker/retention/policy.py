"""Pure: what a master gives up of its log: by age, by size, and when the disk fills up (R26, R29).

The master decides and writes the result as a record; nobody else's clock or disk has a say. The
watermarks are RocketMQ's: above `clean_forcibly_ratio` the oldest segment goes whatever its age,
above `warning_ratio` pins no longer hold it. What it never passes: the newest durable checkpoint of
the projections (R14), a pin that stands, and whatever a later kind still needs (`Needs`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from paceline.types import PhysicalOffset
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.projections.pins import Pin


class Needs(Protocol):
    """A kind whose pending data lies in old parts of the log: timers, half messages (R14, R26).

    It writes that data anew at the log's end when asked, so that the old part may go.
    """

    def oldest(self) -> PhysicalOffset | None:
        """Position of the oldest batch that is still needed; None: nothing is."""
        ...

    def append_again(self, below: PhysicalOffset) -> None:
        """Write what is pending below `below` again, as records at the log's end; or some of it.

        `oldest` has moved once that is appended. Called on an open master that may append.
        """
        ...


class Aged(NamedTuple):
    """A sealed segment: its end, and the store time that none of its batches is above."""

    end: PhysicalOffset
    newest_unix_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """RocketMQ's names stand in the broker's settings; ratios are percent of the disk in use."""

    reserved_ms: int
    size_bytes_max: int
    """0: no limit."""
    clean_forcibly_ratio: int
    warning_ratio: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything a decision looks at."""

    segments: Sequence[Aged]
    """Sealed ones, the oldest first, that reach above `log_start`."""
    log_start: PhysicalOffset
    """As decided last."""
    end: PhysicalOffset
    ceiling: PhysicalOffset
    """The newest durable checkpoint (R14), or confirm where that is lower."""
    pins: Mapping[str, Pin]
    needed_from: PhysicalOffset | None
    """The least of all `Needs.oldest`."""
    used_ratio: int
    """Percent; 0 while the disk has enough room whatever its ratio."""
    now_unix_ms: int
    trust: ClockTrust


class Decision(NamedTuple):
    """What the retention record says; nothing, if both are empty."""

    log_start: PhysicalOffset | None
    dropped_pins: tuple[str, ...]
    append_again_below: PhysicalOffset | None = None
    """Pending data holds back what would go: it is to be written again first."""


NOTHING = Decision(None, ())


def decide(situation: Situation, settings: RetentionSettings) -> Decision:
    """What to give up now. A clock that is known to be wrong gives up nothing at all (R29)."""
    if situation.trust is ClockTrust.DIFFERS:
        return NOTHING
    is_expiry_known = situation.trust is ClockTrust.AGREES
    is_warning = situation.used_ratio >= settings.warning_ratio
    dropped = [
        owner
        for owner, pin in situation.pins.items()
        if is_warning or (is_expiry_known and pin.expires_unix_ms <= situation.now_unix_ms)
    ]
    wanted = _wanted(situation, settings, is_expiry_known=is_expiry_known)
    held = [pin.position for owner, pin in situation.pins.items() if owner not in dropped]
    allowed = _down_to_segment(situation, min([wanted, situation.ceiling, *held]))
    needed = situation.needed_from
    again = None
    if needed is not None and needed < allowed:
        again, allowed = allowed, _down_to_segment(situation, needed)
    log_start = allowed if allowed > situation.log_start else None
    return Decision(log_start, tuple(sorted(dropped)), again)


def _wanted(
    situation: Situation, settings: RetentionSettings, *, is_expiry_known: bool
) -> PhysicalOffset:
    """Up to where age, size and the disk would have it go; an end of a segment, or the start."""
    wanted = situation.log_start
    excess = 0
    if settings.size_bytes_max:
        excess = situation.end - situation.log_start - settings.size_bytes_max
    expired_before = situation.now_unix_ms - settings.reserved_ms
    is_forced = situation.used_ratio >= settings.clean_forcibly_ratio
    for segment in situation.segments:
        is_old = is_expiry_known and segment.newest_unix_ms < expired_before
        is_over = wanted - situation.log_start < excess
        if not (is_old or is_over or is_forced):
            break
        is_forced = False  # one at a time: the disk is looked at again
        wanted = segment.end
    return wanted


def _down_to_segment(situation: Situation, position: PhysicalOffset) -> PhysicalOffset:
    ends = [segment.end for segment in situation.segments if segment.end <= position]
    return ends[-1] if ends else situation.log_start
