"""Pure: does it go on? L1 to L6, against `Bounds`.

A run heals at the phase "heal" (h): from there on only the nodes that phases name as broken stay
so. What they do or lack is held against nobody, nor what a node lacks whose log a fault has
damaged, or its master's log; with broken nodes the same findings are L3's instead of L1's. A group
is judged after h if it can work: at least min of its replicas are whole, one of them is in the set
in force at h, and no ruling said that its last member is lost; and if a majority of the controllers
seen is not broken.

L2 is judged in calm stretches only: no fault begun and not ended, none ended less than `settle_us`
ago. What is promised under one fault or another is measured, not judged here. L4: a refusal or an
"unknown" comes in time for everybody; that a minority acknowledges nothing is S14, S16 and S17.
L7 needs the search by key, which is later work.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter

from paceline_chaos.checkers.evidence.allowances import DAMAGED
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.evidence.wanting import is_wanted
from paceline_chaos.checkers.evidence.withheld import Span, outside
from paceline_chaos.history.model import (
    Deliver,
    FaultEvent,
    Operation,
    Outcome,
    Phase,
    Probe,
    Pull,
    Queue,
    Seen,
    Send,
)

_ASKED_FOR = frozenset({"first", "operator", "transfer", "unclean", "settings"})
_BLOWS = DAMAGED | {"reset", "disk_fail", "clock_step", "power_at", "exit"}
"""Faults that are over at once when no end was entered."""


def healing_is_quick(evidence: Evidence) -> Findings:
    """L1: counted from h: a send is acknowledged within `first_ack_us` (if one was asked for and
    could wait so long), each group has an open master within `master_us`, its set holds all its
    working replicas within `full_set_us`, and `drain_us` after the phase "drain" everything
    acknowledged has been read. O(n log n)."""
    return _healing(evidence, Findings("L1"), is_broken=False)


def broken_minority_stops_nothing(evidence: Evidence) -> Findings:
    """L3: as L1, in runs in which nodes stay broken, with `failover_us` more for each bound: they
    may break at h."""
    return _healing(evidence, Findings("L3"), is_broken=True)


def _healing(evidence: Evidence, found: Findings, *, is_broken: bool) -> Findings:
    heal = evidence.phase("heal")
    if heal is None or bool(evidence.broken) is not is_broken:
        return found
    if _has_controllers(evidence):
        working = [group for group in evidence.groups if _can_work(evidence, group, heal)]
        extra_us = evidence.bounds.failover_us if is_broken else 0
        if working and working == evidence.groups:
            _first_acknowledgement(evidence, found, heal, extra_us)
        for group in working:
            _open_master(evidence, found, heal, group, extra_us)
            _full_set(evidence, found, heal, group, extra_us)
        if working == evidence.groups:
            _drained(evidence, found)
    return found


def _has_controllers(evidence: Evidence) -> bool:
    seen = {decision.node for decision in evidence.decisions}
    named = evidence.world.get("controllers")
    if isinstance(named, list | tuple):
        seen |= {str(name) for name in named}
    seen -= evidence.retired
    return not seen or 2 * len(seen - evidence.broken) > len(seen)


def _can_work(evidence: Evidence, group: str, heal: Phase) -> bool:
    nodes = evidence.nodes_of(group) - evidence.learners
    if len(nodes - evidence.crippled) < evidence.minimum(group):
        return False
    if any(True for _ in evidence.rulings_of(group, "last_member_lost")):
        return False
    timeline = evidence.timeline(group)
    index = bisect_right(timeline.ats, heal.at_us) - 1
    if index < 0:
        return True
    members = {evidence.replica_nodes.get((group, replica)) for replica in timeline.sets[index]}
    return bool(members - evidence.crippled)


def _first_acknowledgement(evidence: Evidence, found: Findings, heal: Phase, extra_us: int) -> None:
    # Below min a replica has to fetch the log and join before anything can be acknowledged.
    is_short = all(_is_below_min(evidence, group, heal) for group in evidence.groups)
    bounds = evidence.bounds
    limit_us = heal.at_us + (bounds.full_set_us if is_short else bounds.first_ack_us) + extra_us
    answered = [send.answered_us for send in evidence.answered if send.answered_us >= heal.at_us]
    waiting = [
        send
        for send in evidence.sends
        if send.asked_us <= heal.at_us + evidence.bounds.first_ack_us // 2
        and send.answered_us > limit_us
    ]
    if not answered and not waiting:
        return
    found.judged += 1
    first = min(answered, default=None)
    if (first is None or first > limit_us) and waiting:
        when = "none came" if first is None else f"the first came after {first - heal.at_us} us"
        found.violate(f"acknowledgements after healing: {when}", heal, *waiting[:3])


def _is_below_min(evidence: Evidence, group: str, heal: Phase) -> bool:
    """Replicas lost their disks, and none has taken their place by then (R8, R9)."""
    timeline = evidence.timeline(group)
    index = bisect_right(timeline.ats, heal.at_us) - 1
    return index >= 0 and len(timeline.sets[index]) < evidence.minimum(group)


def _open_master(
    evidence: Evidence, found: Findings, heal: Phase, group: str, extra_us: int
) -> None:
    probes = [p for p in evidence.probes if p.group == group and p.at_us >= heal.at_us]
    limit_us = heal.at_us + evidence.bounds.master_us + extra_us
    # A probe may come as late as the probe after the limit.
    after = min((p.at_us for p in probes if p.at_us >= limit_us), default=None)
    if after is None:
        return
    found.judged += 1
    opened = [p for p in probes if p.role == "master" and p.is_open]
    first = min(opened, key=attrgetter("at_us"), default=None)
    if first is None or first.at_us > after:
        when = "none" if first is None else f"one after {first.at_us - heal.at_us} us"
        found.violate(f"open masters of {group} after healing: {when}", heal, first)


def _full_set(evidence: Evidence, found: Findings, heal: Phase, group: str, extra_us: int) -> None:
    wanted = {
        replica
        for (name, replica), node in _present_replicas(evidence).items()
        if name == group and node not in evidence.crippled | evidence.learners
    }
    limit_us = heal.at_us + evidence.bounds.full_set_us + extra_us
    timeline = evidence.timeline(group)
    if not wanted or not timeline.sets or evidence.end_us < limit_us:
        return
    if _led_by_damaged(evidence, group, heal.at_us, limit_us):
        return  # whoever has to catch up from it refuses what it is sent
    found.judged += 1
    first = max(0, bisect_right(timeline.ats, heal.at_us) - 1)
    last = bisect_right(timeline.ats, limit_us)
    if not any(members >= wanted for members in timeline.sets[first:last]):
        present = sorted(timeline.sets[max(0, last - 1)])
        found.violate(
            f"the set of {group} was {present} {limit_us - heal.at_us} us after healing, "
            f"replicas {sorted(wanted)} work",
            heal,
            timeline.numbers[max(0, last - 1)],
        )


def _led_by_damaged(evidence: Evidence, group: str, start_us: int, end_us: int) -> bool:
    """Whether an open master was seen in that time whose log a fault has damaged."""
    damaged = evidence.crippled - evidence.broken - evidence.retired
    return any(
        probe.node in damaged and probe.role == "master" and probe.is_open
        for probe in evidence.probes
        if probe.group == group and start_us <= probe.at_us <= end_us
    )


def _present_replicas(evidence: Evidence) -> dict[tuple[str, int], str]:
    """The last id of each node: one whose disk was lost comes back as another replica."""
    latest: dict[str, Probe] = {}
    for probe in evidence.probes_in_time:
        if probe.replica is not None:
            latest[probe.node] = probe
    return {(p.group, p.replica): node for node, p in latest.items() if p.replica is not None}


def _drained(evidence: Evidence, found: Findings) -> None:
    drain = evidence.phase("drain")
    if drain is None or any(evidence.allowances.explains_damage(dump) for dump in evidence.dumps):
        return  # who drains every replica is refused by a damaged one
    limit_us = drain.at_us + evidence.bounds.drain_us
    reads: Iterable[Pull | Deliver] = chain(evidence.pulls, evidence.delivers)
    seen: dict[Queue, set[int]] = defaultdict(set)
    is_read_in_drain = False
    for read in reads:
        is_read_in_drain |= isinstance(read, Pull) and read.asked_us >= drain.at_us
        if read.answered_us <= limit_us or isinstance(read, Deliver):
            messages: tuple[Seen, ...] = (
                read.messages if isinstance(read, Pull) else (read.message,)
            )
            seen[read.queue].update(message.offset for message in messages)
    if not is_read_in_drain:
        return  # nobody drains: what was not read was not asked for
    for send in evidence.acks:
        assert send.queue is not None
        found.judged += 1
        is_there = (send.offset or 0) >= evidence.start_of(send.queue)
        if send.offset not in seen[send.queue] and is_there and evidence.binding(send):
            found.violate(
                f"{send.value} was not read within {evidence.bounds.drain_us} us of the drain",
                drain,
                send,
            )


# -- calm -----------------------------------------------------------------------------------------


def acknowledgements_go_on(evidence: Evidence) -> Findings:
    """L2: in a calm stretch, while a send is waiting, some acknowledgement comes in every window of
    `calm_gap_us`. Refused sends do not wait. O(n log n)."""
    found = Findings("L2")
    if evidence.broken and not _has_controllers(evidence):
        return found
    answers = sorted(send.answered_us for send in evidence.sends if send.outcome is Outcome.OK)
    if not answers:
        return found
    gap_us = evidence.bounds.calm_gap_us
    slow = [send for send in evidence.sends if send.answered_us - send.asked_us > gap_us]
    for start_us, end_us in calm(evidence):
        if end_us - start_us <= gap_us:
            continue
        found.judged += 1
        for send in slow:
            first_us = max(send.asked_us, start_us)
            last_us = min(send.answered_us, end_us)
            if last_us - first_us <= gap_us:
                continue
            inside = answers[bisect_right(answers, first_us) : bisect_left(answers, last_us)]
            marks = [first_us, *inside, last_us]
            worst = max(b - a for a, b in zip(marks, marks[1:], strict=False))
            if worst > gap_us:
                found.violate(
                    f"nothing was acknowledged for {worst} us of calm, while {send.value} waited",
                    send,
                )
                break  # one for each stretch: whoever else waited says the same
    return found


def calm(evidence: Evidence) -> Iterator[tuple[int, int]]:
    """Stretches without faults, from the first acknowledgement on, until the drain or the end."""
    end_us = end_of_work(evidence)
    now_us = min((send.answered_us for send in evidence.answered), default=end_us)
    for start_us, stop_us in sorted(_troubles(evidence)):
        if start_us > now_us:
            yield now_us, min(start_us, end_us)
        now_us = max(now_us, stop_us + evidence.bounds.settle_us)
        if now_us >= end_us:
            return
    yield now_us, end_us


def end_of_work(evidence: Evidence) -> int:
    """Clients are told to end, or nothing more is known of them."""
    ends = (evidence.phase(name) for name in ("over", "drain", "end"))
    return min((phase.at_us for phase in ends if phase is not None), default=evidence.end_us)


def _troubles(evidence: Evidence) -> Iterator[tuple[int, int]]:
    """From the beginning to the end of each fault. What is broken for ever begins at "heal", and
    then that is what the cluster has to live with."""
    for start_us, end_us, _ in _spans(evidence):
        yield start_us, end_us
    heal = evidence.phase("heal")
    if heal is not None:
        yield heal.at_us, heal.at_us


def _spans(evidence: Evidence) -> Iterator[tuple[int, int, FaultEvent]]:
    """Beginning and end of each fault; those without an end last until "heal"."""
    heal = evidence.phase("heal")
    healed_us = heal.at_us if heal is not None else evidence.end_us
    begun: dict[tuple[str, str], list[FaultEvent]] = defaultdict(list)
    for fault in sorted(evidence.faults, key=attrgetter("at_us", "number")):
        key = (fault.kind, fault.target)
        if fault.is_begin:
            begun[key].append(fault)
        elif begun[key]:
            first = begun[key].pop(0)
            yield first.at_us, fault.at_us, first
    for (kind, _), left in begun.items():
        for fault in left:
            is_blow = kind in _BLOWS
            yield fault.at_us, fault.at_us if is_blow else max(fault.at_us, healed_us), fault


def everybody_gets_an_answer(evidence: Evidence) -> Findings:
    """L4: each operation has its outcome within `patience_us`; those of clients that stay broken
    are left out, and those under way while the client itself was hit. O(n + slow * faults)."""
    found = Findings("L4")
    hurt: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for start_us, end_us, fault in _spans(evidence):
        for name in fault.target.partition(">")[0].split(","):
            hurt[name].append((start_us, end_us))
    operations: Iterable[Operation] = chain(
        evidence.sends,
        evidence.pulls,
        evidence.commits,
        evidence.offset_queries,
        evidence.range_queries,
        evidence.locks,
        evidence.unlocks,
        evidence.begins,
        evidence.ends,
        evidence.creates,
        evidence.describes,
        evidence.orders,
    )
    for operation in operations:
        found.judged += 1
        waited_us = operation.answered_us - operation.asked_us
        if waited_us <= evidence.bounds.patience_us or operation.client in evidence.broken:
            continue
        spans = hurt[operation.client]
        if not any(a <= operation.answered_us and operation.asked_us <= b for a, b in spans):
            found.violate(
                f"{operation.client} waited {waited_us} us for an answer ({operation.error})",
                operation,
            )
    return found


def ranges_are_told(evidence: Evidence) -> Findings:
    """L11: in a stretch without faults nobody waits longer than `progress_us` for a queue's range,
    asked for, or met by who reads from beyond its end. Not in lossy groups. O(n * stretches)."""
    found = Findings("L11")
    stretches = list(calm(evidence))
    for query in evidence.range_queries:
        if query.client in evidence.broken or evidence.is_lossy(query.queue.group):
            continue
        for from_us, to_us in stretches:
            waited_us = min(query.answered_us, to_us) - max(query.asked_us, from_us)
            found.judged += waited_us > 0
            if waited_us > evidence.bounds.progress_us:
                found.violate(
                    f"{query.client} waited {waited_us} us for the range of {query.queue.topic}/"
                    f"{query.queue.group}/{query.queue.queue}, and nothing was broken",
                    query,
                )
    return found


def groups_make_progress(evidence: Evidence) -> Findings:
    """L5: from `settle_us` after h until clients are told to end: a group of consumers that got
    messages gets one in every window of `progress_us`, if at the window's beginning there was an
    acknowledged message in a topic of its, which it got only after the window or never. For who
    consumes under locks no window reaches into the time in which the message's masters withhold
    them after an acting master (R36, `withheld_us`). Not of members with access keys, which may
    lose their rights. O(n log n)."""
    found = Findings("L5")
    heal, end_us = evidence.phase("heal"), end_of_work(evidence)
    if heal is None:
        return found
    groups: dict[str, list[Deliver]] = defaultdict(list)
    for deliver in evidence.delivers:
        groups[deliver.consumer_group].append(deliver)
    for name in {one.consumer_group for one in evidence.delivers if one.access_key is not None}:
        del groups[name]
    window_us = evidence.bounds.progress_us
    start_us = heal.at_us + evidence.bounds.settle_us
    if start_us + window_us > end_us:
        return found
    places = {send.queue.group for send in evidence.acks if send.queue is not None}
    for name, delivers in groups.items():
        is_locked = any(deliver.token is not None for deliver in delivers)
        spans: dict[str, list[Span]] = {place: [] for place in sorted(places)}
        if is_locked:
            withheld = evidence.allowances.withheld_locks
            spans = {place: withheld(place, start_us) for place in spans}
        found.judged += any(
            until_us - from_us >= window_us
            for place in spans
            for from_us, until_us in outside(spans[place], start_us, end_us)
        )
        began = sorted(deliver.asked_us for deliver in delivers)
        marks = [start_us, *(us for us in began if start_us < us < end_us), end_us]
        standing = _standing(evidence, delivers, marks, spans)
        if standing is not None:
            waited_us, waiting = standing
            found.violate(
                f"group {name} got nothing for {waited_us} us while {waiting.value} waited",
                heal,
                waiting,
            )
    return found


def _standing(
    evidence: Evidence, delivers: list[Deliver], marks: list[int], spans: dict[str, list[Span]]
) -> tuple[int, Send] | None:
    """The first time that a group stood still for too long, and a message that waited for it."""
    window_us = evidence.bounds.progress_us
    for before, after in zip(marks, marks[1:], strict=False):
        if after - before <= window_us:
            continue
        for place, withheld in spans.items():
            for from_us, until_us in outside(withheld, before, after):
                if until_us - from_us <= window_us:
                    continue
                waiting = _waiting(evidence, delivers, place, from_us)
                if waiting is not None:
                    return until_us - from_us, waiting
    return None


def _waiting(evidence: Evidence, delivers: list[Deliver], place: str, at_us: int) -> Send | None:
    """An acknowledged message of group `place` that was there at `at_us` and not handed out within
    the window that begins there."""
    topics = {deliver.queue.topic for deliver in delivers}
    wanted = next((deliver.wanted for deliver in delivers if deliver.wanted), "")
    handed = {
        (deliver.queue, deliver.message.offset)
        for deliver in delivers
        if deliver.asked_us < at_us + evidence.bounds.progress_us
    }
    for send in evidence.acks:
        assert send.queue is not None
        if send.queue.group != place or send.queue.topic not in topics:
            continue
        if send.answered_us <= at_us:
            offset = send.offset or 0
            is_handed = (send.queue, offset) in handed
            is_kept = offset >= evidence.start_of(send.queue)
            if not is_handed and is_kept and is_wanted(send, wanted):
                return send
    return None


def elections_are_few(evidence: Evidence) -> Findings:
    """L6: in each group, elections besides the first <= `elections_per_fault` * faults begun
    before; so none without faults. Left out are those that somebody asked for (operator, transfer,
    unclean, new settings), and those while a link flaps and until it has settled: that is many
    faults in one. O(rulings + faults log faults)."""
    found = Findings("L6")
    begun = sorted(fault.at_us for fault in evidence.faults if fault.is_begin)
    flaps = [
        (start_us, end_us + evidence.bounds.settle_us)
        for start_us, end_us, fault in _spans(evidence)
        if fault.kind == "flap"
    ]
    phases = [phase for phase in evidence.phases if phase.broken]
    breaks = [phase.at_us for phase in phases for _ in phase.broken]
    begun = sorted([*begun, *breaks])
    counts: dict[str, int] = defaultdict(int)
    for ruling in evidence.elections:
        reason = ruling.members.get("reason")
        if reason in _ASKED_FOR:
            continue
        if reason is None and ruling.members["master_epoch"] == 1:
            continue
        if any(start_us <= ruling.at_us <= end_us for start_us, end_us in flaps):
            continue
        found.judged += 1
        counts[ruling.group] += 1
        allowed = evidence.bounds.elections_per_fault * bisect_right(begun, ruling.at_us)
        if counts[ruling.group] > allowed:
            found.violate(
                f"election number {counts[ruling.group]} of {ruling.group} ({reason}) after "
                f"{allowed // evidence.bounds.elections_per_fault} faults",
                ruling.number,
            )
    return found
