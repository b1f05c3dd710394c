"""Rules of delayed messages, taken out (R28, R29, R34); worlds notice by S25 and S5."""

from collections.abc import Iterable

from paceline_broker.projections.timers import Timers
from paceline_broker.service.fire_clock import FireClock
from paceline_chaos.mutants.mutant import Mutant, Patch

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


DELAYS: tuple[Mutant, ...] = (
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
