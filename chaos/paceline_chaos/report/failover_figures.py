"""Pure: from a history with kills of masters to the distribution of how long clients waited.

A sample is one client at one kill: the longest time between two acknowledgements that follow each
other and touch the window from the kill until the dead node was started again. A sample during
which the harness itself stood still is discarded and counted: nobody knows whose time it was.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline_chaos.history.model import Decision, History, Outcome, Send
from paceline_chaos.report.rates import percentile

MEDIAN_MS_MAX = 300
P99_MS_MAX = 800
MAX_MS_MAX = 1500
"""The goals."""

Stall = tuple[int, int]
"""(when it began, how long), us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill -9 of a master, until its process was started again."""

    number: int
    node: str
    at_us: int
    restarted_us: int
    in_sync_us: int
    """All replicas were in the sync state set again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one client saw of one kill."""

    kill: int
    client: str
    gap_ms: float
    return_gap_ms: float
    """The longest gap while the dead one came back and caught up."""
    is_disturbed: bool
    """The harness stood still during `gap_ms`."""
    is_return_disturbed: bool
    """And during `return_gap_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Where the time of one failover went, ms after the kill; None if it was not seen."""

    kill: int
    node: str
    elected_ms: float | None
    """A controller applied the election."""
    opened_ms: float | None
    """A controller applied that the new master's epoch is open."""
    first_ms: float | None
    """Somebody got an acknowledgement of the new epoch."""
    all_ms: float | None
    """Every client had got one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution in a few numbers, ms."""

    count: int
    median: float
    p95: float
    p99: float
    max: float

    def to_json(self) -> dict[str, float]:
        """Rounded."""
        return {
            "count": self.count,
            "median_ms": round(self.median, 1),
            "p95_ms": round(self.p95, 1),
            "p99_ms": round(self.p99, 1),
            "max_ms": round(self.max, 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverFigures:
    """Everything that the report shows."""

    settings: Mapping[str, Any]
    samples: Sequence[Sample]
    stages: Sequence[Stages]
    stalls: Sequence[Stall]
    operations: Mapping[str, int]
    """Sends by outcome."""

    @property
    def kept(self) -> list[Sample]:
        return [sample for sample in self.samples if not sample.is_disturbed]

    @property
    def gaps(self) -> Spread:
        return spread([sample.gap_ms for sample in self.kept])

    @property
    def all_gaps(self) -> Spread:
        """With those that were discarded: nothing that a client waited is hidden."""
        return spread([sample.gap_ms for sample in self.samples])

    @property
    def return_gaps(self) -> Spread:
        kept = [sample for sample in self.samples if not sample.is_return_disturbed]
        return spread([sample.return_gap_ms for sample in kept])

    @property
    def is_met(self) -> bool:
        """Are the goals that must be met."""
        gaps = self.gaps
        return (
            gaps.count > 0
            and gaps.median <= MEDIAN_MS_MAX
            and gaps.p99 <= P99_MS_MAX
            and gaps.max <= MAX_MS_MAX
        )

    def stage_medians(self) -> dict[str, float | None]:
        """Median of each stage's moment after the kill."""
        names = ("elected_ms", "opened_ms", "first_ms", "all_ms")
        return {name: _median(getattr(one, name) for one in self.stages) for name in names}

    def to_json(self) -> dict[str, Any]:
        """One JSON document."""
        return {
            "settings": dict(self.settings),
            "kills": len(self.stages),
            "samples": len(self.samples),
            "discarded": len(self.samples) - len(self.kept),
            "stalls": len(self.stalls),
            "gap": self.gaps.to_json(),
            "gap_with_discarded": self.all_gaps.to_json(),
            "gap_while_it_returned": self.return_gaps.to_json(),
            "stages_median": self.stage_medians(),
            "operations": dict(self.operations),
            "goals_met": self.is_met,
        }


def spread(values: Iterable[float]) -> Spread:
    """Percentiles by nearest rank; zeros of nothing."""
    ordered = sorted(values)
    median, p95, p99, top = (percentile(ordered, share) or 0.0 for share in (0.5, 0.95, 0.99, 1.0))
    return Spread(count=len(ordered), median=median, p95=p95, p99=p99, max=top)


def _median(values: Iterable[float | None]) -> float | None:
    median = percentile(sorted(value for value in values if value is not None), 0.5)
    return None if median is None else round(median, 1)


def figures_of(
    history: History, kills: Sequence[Kill], stalls: Sequence[Stall], settings: Mapping[str, Any]
) -> FailoverFigures:
    """Judge a history by its kills."""
    answers: dict[str, list[int]] = defaultdict(list)
    epochs: list[tuple[int, str, int]] = []
    operations = {outcome.value: 0 for outcome in Outcome}
    for entry in history.entries:
        if isinstance(entry, Send):
            operations[entry.outcome.value] += 1
            if entry.outcome is Outcome.OK:
                answers[entry.client].append(entry.answered_us)
                epochs.append((entry.answered_us, entry.client, entry.epoch or 0))
    for times in answers.values():
        times.sort()
    samples = [
        _sample(kill, client, times, stalls)
        for kill in kills
        for client, times in sorted(answers.items())
    ]
    decisions = [entry for entry in history.entries if isinstance(entry, Decision)]
    epochs.sort()
    return FailoverFigures(
        settings=settings,
        samples=samples,
        stages=[_stages(kill, decisions, epochs, clients=len(answers)) for kill in kills],
        stalls=stalls,
        operations=operations,
    )


def _sample(kill: Kill, client: str, times: Sequence[int], stalls: Sequence[Stall]) -> Sample:
    gap = longest_gap(times, kill.at_us, kill.restarted_us)
    back = longest_gap(times, kill.restarted_us, kill.in_sync_us)
    return Sample(
        kill=kill.number,
        client=client,
        gap_ms=(gap[1] - gap[0]) / 1000,
        return_gap_ms=(back[1] - back[0]) / 1000,
        is_disturbed=_is_touched(gap, stalls),
        is_return_disturbed=_is_touched(back, stalls),
    )


def _is_touched(gap: tuple[int, int], stalls: Sequence[Stall]) -> bool:
    return any(at < gap[1] and at + length > gap[0] for at, length in stalls)


def longest_gap(times: Sequence[int], start_us: int, end_us: int) -> tuple[int, int]:
    """(before, after): the longest pair of neighbours that touches the window.

    Before the first and after the last acknowledgement of all the window's own edge counts, so that
    a client that never got another one has waited at least for the window.
    """
    first = max(0, bisect_left(times, start_us) - 1)
    best = (start_us, start_us)
    before = times[first] if times else start_us
    if before > start_us:
        best = (start_us, before)
    index = first
    while before < end_us:
        index += 1
        after = times[index] if index < len(times) else end_us
        if after - before > best[1] - best[0]:
            best = (before, after)
        if index >= len(times):
            break
        before = after
    return best


def _stages(
    kill: Kill,
    decisions: Sequence[Decision],
    epochs: Sequence[tuple[int, str, int]],
    *,
    clients: int,
) -> Stages:
    elected = _first_decision(decisions, "master_elected", kill)
    epoch = None if elected is None else int(elected.members.get("master_epoch", 0))
    opened = None if epoch is None else _first_decision(decisions, "epoch_opened", kill)
    first_us, all_us = _acknowledged(epochs, kill.at_us, epoch, clients=clients)
    return Stages(
        kill=kill.number,
        node=kill.node,
        elected_ms=_after(kill, None if elected is None else elected.at_us),
        opened_ms=_after(kill, None if opened is None else opened.at_us),
        first_ms=_after(kill, first_us),
        all_ms=_after(kill, all_us),
    )


def _first_decision(decisions: Sequence[Decision], kind: str, kill: Kill) -> Decision | None:
    """The earliest of a kind after the kill and before all was well again."""
    found = [
        decision
        for decision in decisions
        if decision.kind == kind and kill.at_us <= decision.at_us < kill.in_sync_us
    ]
    return min(found, key=lambda decision: decision.at_us, default=None)


def _acknowledged(
    epochs: Sequence[tuple[int, str, int]], at_us: int, epoch: int | None, *, clients: int
) -> tuple[int | None, int | None]:
    """When the first and when the last client was acknowledged in `epoch`."""
    if epoch is None:
        return None, None
    first_us: int | None = None
    served: set[str] = set()
    for answered_us, client, seen in epochs[bisect_left(epochs, (at_us,)) :]:
        if seen < epoch:
            continue
        if first_us is None:
            first_us = answered_us
        served.add(client)
        if len(served) == clients:
            return first_us, answered_us
    return first_us, None


def _after(kill: Kill, at_us: int | None) -> float | None:
    return None if at_us is None else max(0.0, (at_us - kill.at_us) / 1000)
