"""Pure: what the nodes were, as bands in time: roles, epochs, sync state sets, faults.

Probes are samples, so a band ends where the next sample says something else, and shortly after the
last one where a node stopped answering. Decisions are entered once for each controller that applied
them; the earliest counts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from paceline_chaos.history.model import Decision, FaultEvent, History, Phase, Probe, Send
from paceline_chaos.report.rates import Span, natural

SILENCE_MS_MIN, SILENCE_MS_MAX = 300.0, 1500.0
"""After three times its usual pause between two probes, within these bounds, nobody knows what a
node is: its band ends."""
POINTS_MAX = 500
"""Of one line of a plot."""
BLOWS = frozenset({"reset", "disk_flip", "disk_missing", "clock_step"})
"""Faults that have no end: without one in the history they are moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Something that held from `start` to `end`, ms."""

    start: float
    end: float
    label: str
    role: str = ""
    epoch: int = 0
    is_open: bool = True
    incarnation: int = 0
    members: tuple[int, ...] = ()
    """Of a sync state set: replica ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at a moment, ms."""

    at: float
    label: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpan:
    """A fault from its begin to its end; `has_end` False: it lasted to the end of the run."""

    start: float
    end: float
    kind: str
    target: str
    detail: str
    has_end: bool = True

    @property
    def is_blow(self) -> bool:
        """It had no duration."""
        return self.end - self.start < 1


@dataclass(slots=True)
class Lane:
    """One node."""

    node: str
    group: str
    """ "" for a controller."""
    replica: int | None = None
    bands: list[Band] = field(default_factory=list)
    member: list[tuple[float, float]] = field(default_factory=list)
    """When the controllers had it in the sync state set."""
    ticks: list[float] = field(default_factory=list)
    """When a controller applied something."""
    confirm: list[tuple[float, float]] = field(default_factory=list)
    """(ms, bytes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """One master epoch of a group."""

    at: float
    group: str
    epoch: int
    master: str
    members: str
    reason: str
    open_after_ms: float | None = None
    """Until a probe saw it open."""
    ack_after_ms: float | None = None
    """Until a client got the epoch's first acknowledgement."""


@dataclass(slots=True)
class Story:
    """Everything about nodes that the report draws."""

    lanes: list[Lane]
    sets: dict[str, list[Band]]
    elections: list[Election]
    faults: list[FaultSpan]
    phases: list[Mark]

    def groups(self) -> list[str]:
        """Broker groups, in natural order."""
        names = {lane.group for lane in self.lanes if lane.group} | set(self.sets)
        return sorted(names, key=natural)


def story_of(history: History, span: Span) -> Story:
    """One pass for each kind of entry."""
    probes: dict[str, list[Probe]] = defaultdict(list)
    decisions: list[Decision] = []
    faults: list[FaultEvent] = []
    phases: list[Mark] = []
    for entry in history.entries:
        if isinstance(entry, Probe):
            probes[entry.node].append(entry)
        elif isinstance(entry, Decision):
            decisions.append(entry)
        elif isinstance(entry, FaultEvent):
            faults.append(entry)
        elif isinstance(entry, Phase):
            detail = "stay broken: " + ", ".join(entry.broken) if entry.broken else ""
            phases.append(Mark(at=span.ms(entry.at_us), label=entry.name, detail=detail))
    lanes = _lanes(probes, decisions, span)
    names = {(lane.group, lane.replica): lane.node for lane in lanes if lane.replica is not None}
    first = _first_applied(decisions)
    sets = _sets(first, names, span)
    _note_members(lanes, sets)
    return Story(
        lanes=lanes,
        sets=sets,
        elections=_elections(first, names, history, span),
        faults=fault_spans(faults, span),
        phases=phases,
    )


def _lanes(probes: dict[str, list[Probe]], decisions: Iterable[Decision], span: Span) -> list[Lane]:
    lanes: dict[str, Lane] = {}
    for node, samples in probes.items():
        samples.sort(key=lambda probe: probe.at_us)
        last = samples[-1]
        lane = Lane(node=node, group=last.group, replica=last.replica)
        lane.bands = bands_of(samples, span)
        lane.confirm = _thinned(
            [(span.ms(p.at_us), float(p.confirm)) for p in samples if _knows(p)]
        )
        lanes[node] = lane
    for decision in decisions:
        lane = lanes.setdefault(decision.node, Lane(node=decision.node, group=""))
        lane.ticks.append(span.ms(decision.at_us))
    return sorted(lanes.values(), key=lambda lane: (natural(lane.group), natural(lane.node)))


def _knows(probe: Probe) -> bool:
    """A node that has just started says 0 until its master tells it: that is no confirm."""
    return probe.confirm > 0 or probe.end == 0


def bands_of(samples: Sequence[Probe], span: Span) -> list[Band]:
    """Equal neighbours become one band."""
    bands: list[Band] = []
    silence_ms = _silence_ms(samples)
    for index, probe in enumerate(samples):
        start = span.ms(probe.at_us)
        following = span.ms(samples[index + 1].at_us) if index + 1 < len(samples) else None
        if following is None or following - start > silence_ms:
            following = min(start + silence_ms / 3, span.length_ms)
        band = Band(
            start=start,
            end=following,
            label=str(probe.epoch),
            role=probe.role,
            epoch=probe.epoch,
            is_open=probe.is_open,
            incarnation=probe.incarnation,
        )
        if bands and bands[-1].end >= start and _is_same(bands[-1], band):
            bands[-1] = replace(bands[-1], end=band.end)
        else:
            bands.append(band)
    return bands


def _silence_ms(samples: Sequence[Probe]) -> float:
    pauses = sorted((later.at_us - one.at_us) / 1000 for one, later in pairwise(samples))
    usual = pauses[len(pauses) // 2] if pauses else 0.0
    return min(max(3 * usual, SILENCE_MS_MIN), SILENCE_MS_MAX)


def _is_same(one: Band, other: Band) -> bool:
    return (one.role, one.epoch, one.is_open, one.incarnation) == (
        other.role,
        other.epoch,
        other.is_open,
        other.incarnation,
    )


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    step = max(1, -(-len(points) // POINTS_MAX))
    kept = points[::step]
    if points and kept[-1] != points[-1]:
        kept.append(points[-1])
    return kept


def _first_applied(decisions: Iterable[Decision]) -> list[Decision]:
    """Each decision once, when the first controller applied it, in the order of the log."""
    first: dict[tuple[int, str], Decision] = {}
    for decision in decisions:
        key = (decision.index, decision.kind)
        known = first.get(key)
        if known is None or decision.at_us < known.at_us:
            first[key] = decision
    return sorted(first.values(), key=lambda decision: (decision.index, decision.at_us))


def _sets(
    decisions: Iterable[Decision], names: Mapping[tuple[str, int], str], span: Span
) -> dict[str, list[Band]]:
    """Group -> its sync state sets, one after the other."""
    sets: dict[str, list[Band]] = defaultdict(list)
    for decision in decisions:
        group, found = decision.members.get("group"), decision.members.get("sync_state_set")
        if not isinstance(group, str) or not isinstance(found, list | tuple):
            continue
        at = span.ms(decision.at_us)
        members = tuple(sorted(_number(member) for member in found))
        if sets[group]:
            sets[group][-1] = replace(sets[group][-1], end=at)
        sets[group].append(
            Band(
                start=at,
                end=span.length_ms,
                label=_set_label(group, members, names),
                epoch=_number(decision.members.get("set_epoch")),
                members=members,
            )
        )
    return dict(sets)


def _set_label(group: str, members: tuple[int, ...], names: Mapping[tuple[str, int], str]) -> str:
    """Members by the short names of their nodes: "b1 b3"."""
    shown = sorted(
        (short_name(names.get((group, member), str(member)), group) for member in members),
        key=natural,
    )
    return " ".join(shown) or "nobody"


def short_name(node: str, group: str) -> str:
    """A node's name inside its group."""
    return node.removeprefix(f"{group}-")


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _note_members(lanes: Iterable[Lane], sets: dict[str, list[Band]]) -> None:
    for lane in lanes:
        for band in sets.get(lane.group, ()):
            if lane.replica not in band.members:
                continue
            if lane.member and lane.member[-1][1] == band.start:
                lane.member[-1] = (lane.member[-1][0], band.end)
            else:
                lane.member.append((band.start, band.end))


def _elections(
    decisions: Iterable[Decision],
    names: Mapping[tuple[str, int], str],
    history: History,
    span: Span,
) -> list[Election]:
    opened, acknowledged = _firsts(history, span)
    elections = []
    for decision in decisions:
        if decision.kind != "master_elected":
            continue
        members = decision.members
        group, epoch = str(members.get("group", "")), _number(members.get("master_epoch"))
        at = span.ms(decision.at_us)
        master = members.get("master")
        open_at, ack_at = opened.get((group, epoch)), acknowledged.get((group, epoch))
        elections.append(
            Election(
                at=at,
                group=group,
                epoch=epoch,
                master=names.get((group, _number(master)), str(master)),
                members=_set_label(
                    group,
                    tuple(_number(one) for one in members.get("sync_state_set") or ()),
                    names,
                ),
                reason=str(members.get("reason", "")),
                open_after_ms=None if open_at is None else max(0.0, open_at - at),
                ack_after_ms=None if ack_at is None else max(0.0, ack_at - at),
            )
        )
    return sorted(elections, key=lambda election: election.at)


Firsts = dict[tuple[str, int], float]


def _firsts(history: History, span: Span) -> tuple[Firsts, Firsts]:
    """(group, epoch) -> when it was first seen open, and when it first acknowledged."""
    opened: Firsts = {}
    acknowledged: Firsts = {}
    for entry in history.entries:
        if isinstance(entry, Probe):
            if entry.role == "master" and entry.is_open:
                _keep_least(opened, (entry.group, entry.epoch), span.ms(entry.at_us))
        elif isinstance(entry, Send) and entry.queue is not None and entry.epoch is not None:
            key = (entry.queue.group, entry.epoch)
            _keep_least(acknowledged, key, span.ms(entry.answered_us))
    return opened, acknowledged


def _keep_least(firsts: Firsts, key: tuple[str, int], at: float) -> None:
    firsts[key] = min(at, firsts.get(key, at))


def fault_spans(events: Iterable[FaultEvent], span: Span) -> list[FaultSpan]:
    """Begins and ends of the same kind and target, matched in order."""
    spans: list[FaultSpan] = []
    waiting: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.at_us, event.number)):
        at = span.ms(event.at_us)
        key = (event.kind, event.target)
        if event.is_begin:
            waiting[key].append(len(spans))
            end = at if event.kind in BLOWS else span.length_ms
            spans.append(_span(event, start=at, end=end, has_end=False))
        elif waiting[key]:
            index = waiting[key].pop(0)
            begun = spans[index]
            spans[index] = FaultSpan(
                start=begun.start,
                end=at,
                kind=begun.kind,
                target=begun.target,
                detail=begun.detail or event.detail,
            )
        else:
            spans.append(_span(event, start=at, end=at, has_end=True))
    return spans


def _span(event: FaultEvent, *, start: float, end: float, has_end: bool) -> FaultSpan:
    return FaultSpan(
        start=start,
        end=end,
        kind=event.kind,
        target=event.target,
        detail=event.detail,
        has_end=has_end,
    )
