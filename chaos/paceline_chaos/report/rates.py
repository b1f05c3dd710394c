"""Pure: what clients saw, in equal steps of time: acknowledgements, failures, latencies, gaps.

A step is 100 ms unless the run is so long that a plot could not show it; it is then the least
round multiple that can. A history of a million operations becomes some hundred steps here, and
nothing behind this module sees the operations themselves.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from paceline_chaos.checkers.expectations import longest_gap
from paceline_chaos.history.model import (
    Deliver,
    Entry,
    History,
    Operation,
    Outcome,
    Pull,
    Send,
)

STEP_MS = 100
STEPS_MAX = 1200
"""About one for each pixel of the plot."""
ROUND = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From the first to the last moment of a history, in its clock."""

    start_us: int
    end_us: int

    @property
    def length_ms(self) -> float:
        """Never 0, so that it may be divided by."""
        return max(1.0, (self.end_us - self.start_us) / 1000)

    def ms(self, at_us: int) -> float:
        """Milliseconds since the start."""
        return (at_us - self.start_us) / 1000


@dataclass(slots=True)
class Rates:
    """Counts and latencies for each step; all lists are of equal length."""

    step_ms: int
    acknowledged: list[int]
    failed: list[int]
    unknown: list[int]
    reads: list[int]
    """Messages that pulls and listeners were given."""
    p50_ms: list[float | None]
    """Of the sends acknowledged in this step; None without any."""
    p99_ms: list[float | None]
    max_ms: list[float | None]
    gap: tuple[float, float] | None = None
    """`longest_gap`, if there is one: (from, length), ms."""


@dataclass(slots=True)
class ClientSends:
    """The sends of one client."""

    client: str
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    gap_ms: float | None = None
    """Longest time between two acknowledgements; None with fewer than two."""
    gap_at_ms: float = 0.0
    """When it began."""
    _latencies_ms: list[float] = field(default_factory=list)
    _answered_us: list[int] = field(default_factory=list)


def span_of(entries: Iterable[Entry]) -> Span:
    """The time that a history covers; of an empty one a millisecond at 0."""
    first: int | None = None
    last = 0
    for begin, end in _times(entries):
        first = begin if first is None else min(first, begin)
        last = max(last, end)
    return Span(start_us=first or 0, end_us=max(last, (first or 0) + 1000))


def _times(entries: Iterable[Entry]) -> Iterator[tuple[int, int]]:
    for entry in entries:
        if isinstance(entry, Operation):
            yield entry.asked_us, entry.answered_us
        else:
            at_us = getattr(entry, "at_us", None)  # dumps have no time
            if at_us is not None:
                yield at_us, at_us


def step_of(span: Span) -> int:
    """Milliseconds of one step."""
    for factor in ROUND:
        if span.length_ms / (STEP_MS * factor) <= STEPS_MAX:
            return STEP_MS * factor
    return STEP_MS * ROUND[-1]


def rates_of(history: History, span: Span) -> Rates:
    """One pass over the operations."""
    step_ms = step_of(span)
    count = int(span.length_ms // step_ms) + 1
    acknowledged, failed, unknown, reads = ([0] * count for _ in range(4))
    latencies: dict[int, list[float]] = defaultdict(list)
    counts = {Outcome.OK: acknowledged, Outcome.FAIL: failed, Outcome.UNKNOWN: unknown}
    for entry in history.entries:
        if isinstance(entry, Send):
            step = int(span.ms(entry.answered_us) // step_ms)
            counts[entry.outcome][step] += 1
            if entry.outcome is Outcome.OK:
                latencies[step].append((entry.answered_us - entry.asked_us) / 1000)
        elif isinstance(entry, Pull | Deliver) and entry.outcome is Outcome.OK:
            step = int(span.ms(entry.answered_us) // step_ms)
            reads[step] += len(entry.messages) if isinstance(entry, Pull) else 1
    ordered = [sorted(latencies[step]) for step in range(count)]
    gap = longest_gap(history)
    return Rates(
        step_ms=step_ms,
        acknowledged=acknowledged,
        failed=failed,
        unknown=unknown,
        reads=reads,
        p50_ms=[percentile(values, 0.5) for values in ordered],
        p99_ms=[percentile(values, 0.99) for values in ordered],
        max_ms=[percentile(values, 1.0) for values in ordered],
        gap=(span.ms(gap.start_us), gap.own_ms) if gap.own_ms else None,
    )


def _longest_gap(answers_us: list[int], span: Span) -> tuple[float, float] | None:
    answers_us.sort()
    gaps = [(later - earlier, earlier) for earlier, later in pairwise(answers_us)]
    if not gaps:
        return None
    length_us, begin_us = max(gaps)
    return span.ms(begin_us), length_us / 1000


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Nearest rank of an ordered list; None of an empty one."""
    if not ordered:
        return None
    rank = max(1, -(-len(ordered) * share // 1))
    return ordered[int(rank) - 1]


def client_sends(history: History, span: Span) -> list[ClientSends]:
    """One row for each client that sent, by name."""
    rows: dict[str, ClientSends] = {}
    for entry in history.entries:
        if not isinstance(entry, Send):
            continue
        row = rows.setdefault(entry.client, ClientSends(entry.client))
        if entry.outcome is Outcome.OK:
            row.acknowledged += 1
            row._latencies_ms.append((entry.answered_us - entry.asked_us) / 1000)
            row._answered_us.append(entry.answered_us)
        elif entry.outcome is Outcome.FAIL:
            row.failed += 1
        else:
            row.unknown += 1
    for row in rows.values():
        latencies = sorted(row._latencies_ms)
        row.p50_ms, row.p99_ms = percentile(latencies, 0.5), percentile(latencies, 0.99)
        gap = _longest_gap(row._answered_us, span)
        if gap is not None:
            row.gap_at_ms, row.gap_ms = gap
    return [rows[name] for name in sorted(rows, key=natural)]


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that puts client-2 before client-10."""
    parts: list[tuple[int, int, str]] = []
    digits = ""
    for letter in [*name, ""]:
        if letter.isdigit() and letter.isascii():
            digits += letter
            continue
        if digits:
            parts.append((0, int(digits), ""))
            digits = ""
        parts.append((1, 0, letter))
    return tuple(parts)


def outcome_counts(history: History) -> dict[str, Counter[str]]:
    """Kind of operation -> outcome, or code of the error -> how many."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in history.entries:
        if isinstance(entry, Operation):
            counter = counts[type(entry).__name__]
            counter[entry.outcome.value] += 1
            if entry.error is not None:
                counter[entry.error] += 1
    return dict(counts)
