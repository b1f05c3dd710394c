"""Rules of delayed messages, taken out (R28, R29, R34); worlds notice by S25 and S5."""

from collections.abc import Iterable
from typing import Any

from paceline.errors import BadRequestError
from paceline.platform.ports import Buffer
from paceline.records.decode import BatchView
from paceline_broker.controllers.clock_skew import ClockSkew
from paceline_broker.projections.timers import Timers
from paceline_broker.service.delays import intake
from paceline_broker.service.delays.fire_clock import FireClock
from paceline_broker.service.produce import send
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment

_EARLY_MS = 50


def _fires_early() -> list[Patch]:
    due_until_ms = FireClock.due_until_ms

    def early(clock: FireClock) -> int | None:
        now_ms = due_until_ms(clock)
        return None if now_ms is None else now_ms + _EARLY_MS

    return [(FireClock, "due_until_ms", early)]


def _some_stay_open() -> list[Patch]:
    """Each seventh source is closed by its second delivery only."""
    close_all = Timers.close_all
    seen: set[tuple[int, int]] = set()

    def close_some(timers: Timers, sources: Iterable[int]) -> None:
        kept = []
        for source in sources:
            is_first = source % 7 == 0 and (id(timers), source) not in seen
            if is_first and timers.find(source) is not None:
                seen.add((id(timers), source))
            else:
                kept.append(source)
        close_all(timers, kept)

    return [(Timers, "close_all", close_some)]


def _recalls_forgotten() -> list[Patch]:
    """A recall is answered, and closes nothing."""

    def recall(timers: Timers, sources: Iterable[int], *, now_unix_ms: int) -> None:
        return

    return [(Timers, "recall", recall)]


def _past_is_refused() -> list[Patch]:
    take = intake.take_delayed

    def take_to_come(batch: Buffer, *of: Any, now_unix_ms: int) -> Any:
        if any(0 < due <= now_unix_ms for due in BatchView(batch).due()):
            raise BadRequestError("this time is over", field="due")
        return take(batch, *of, now_unix_ms=now_unix_ms)

    return [(send, "take_delayed", take_to_come)]


def _no_delay_is_too_long() -> list[Patch]:
    return [(intake, "SKEW_MS", 1 << 60)]


def _longest_is_too_long() -> list[Patch]:
    return [(intake, "SKEW_MS", -30_000)]


def _counts_by_any_clock() -> list[Patch]:
    """A master whose clock was wrong from its start on counts delays by it."""
    return [(ClockSkew, "told_unix_ms", lambda clocks, **of: None)]


def _fires_by_any_clock() -> list[Patch]:
    return [(FireClock, "due_until_ms", lambda clock: clock._clock.unix_ms())]


DELAYS: tuple[Mutant, ...] = (
    Mutant(
        rule="S25-past",
        meaning="a time that is over already is refused",
        caught_by=frozenset({"S25"}),
        patches=_past_is_refused,
        bed="world",
    ),
    Mutant(
        rule="S25-far",
        meaning="no delay is too long",
        caught_by=frozenset({"S25"}),
        patches=_no_delay_is_too_long,
        bed="world",
    ),
    Mutant(
        rule="S25-longest",
        meaning="the longest delay is too long by half a minute",
        caught_by=frozenset({"S25"}),
        patches=_longest_is_too_long,
        bed="world",
    ),
    Mutant(
        rule="R29-told",
        meaning="a master whose clock was wrong from its start on counts delays by it",
        patches=_counts_by_any_clock,
        **of_moment("wrong-clock"),
    ),
    Mutant(
        rule="R29-fire",
        meaning="what is due is due by the master's clock, whatever the controllers say",
        patches=_fires_by_any_clock,
        **of_moment("wrong-clock"),
    ),
    Mutant(
        rule="R29-early",
        meaning=f"delayed messages are delivered {_EARLY_MS} ms early",
        caught_by=frozenset({"S25"}),
        patches=_fires_early,
        bed="world",
    ),
    Mutant(
        rule="R34-twice",
        meaning="some messages stay pending after their delivery",
        caught_by=frozenset({"S5"}),
        patches=_some_stay_open,
        bed="world",
    ),
    Mutant(
        rule="R28-recall",
        meaning="recalled messages are delivered",
        caught_by=frozenset({"S25"}),
        patches=_recalls_forgotten,
        bed="world",
    ),
)
