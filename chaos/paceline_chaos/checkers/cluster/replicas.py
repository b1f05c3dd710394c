"""Pure: what replicas hold, by their logs in the end and their own word on the way: S11, S12, S16,
S17, INV-2, INV-12 and R23.

A probe is one moment of one node, so between two probes nothing is known; each rule below is one
that must hold at the moment of a probe whatever came before, given what was answered before it. The
position of a probe is `flushed` with fsync durability, `end` with memory durability. Probes of
nodes whose disk has lost something by a fault (`Allowances.may_lack`) are not held to what it once
had. A damaged log is no excuse by itself: R23 asks for the fault.
Confirmed positions are those of H: an acknowledged record that is not in H is S1's.
"""

from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.model import Probe, ReplicaDump, Send, StoredBatch

_Lead = tuple[int, int]
"""A position that is promised, and the number of the entry that promised it."""


def positions_are_in_order(evidence: Evidence) -> Findings:
    """INV-2: in each probe and dump: start <= end, flushed <= end, confirm <= end; with fsync
    durability also confirm <= flushed. Dumps are made after a power cut: a disk that remembers a
    confirm which its log does not reach has lost something, by a fault or by the product.
    O(probes)."""
    found = Findings("INV-2")
    for probe in evidence.probes:
        found.judged += 1
        confirm_limit = probe.flushed if evidence.is_fsync else probe.end
        if not (probe.start <= probe.end and probe.flushed <= probe.end):
            found.violate(
                f"{probe.node}: start {probe.start}, flushed {probe.flushed}, end {probe.end}",
                probe,
            )
        elif probe.confirm > confirm_limit:
            found.violate(f"{probe.node} confirms {probe.confirm} and has {confirm_limit}", probe)
    for dump in evidence.dumps:
        found.judged += 1
        if dump.confirm > dump.end and not evidence.allowances.lacks_in_the_end(dump.node):
            found.violate(
                f"{dump.node} remembers confirm {dump.confirm}, its log ends at {dump.end}", dump
            )
    return found


def damage_has_a_cause(evidence: Evidence) -> Findings:
    """R23: each log in the end is whole up to zeros, unless a fault has flipped a bit of its disk,
    or its process went down, never served again, and everything that it had confirmed is whole: a
    torn end, which the next start would cut. O(dumps * faults)."""
    found = Findings("R23")
    for dump in evidence.dumps:
        found.judged += 1
        if dump.damage is None or evidence.allowances.explains_damage(dump):
            continue
        if not evidence.allowances.is_tear(dump):
            found.violate(
                f"the log of {dump.node} has damage that no fault made: {dump.damage}", dump
            )
    return found


def confirm_never_falls(evidence: Evidence) -> Findings:
    """S11: confirm never decreases (a) within one (node, incarnation), (b) among probes of open
    masters p before p', unless p' is of a lower epoch; and (c) no position of a member lies below
    what an open master had confirmed before. A member: in every set in force from then until now.
    O(probes log probes)."""
    found = Findings("S11")
    own: dict[tuple[str, int], Probe] = {}
    shown: defaultdict[str, dict[int, Probe]] = defaultdict(dict)
    for probe in evidence.probes_in_time:
        if probe.role not in ("master", "replica") or evidence.is_lossy(probe.group):
            continue
        found.judged += 1
        before = own.get((probe.node, probe.incarnation))
        has_fallen = before is not None and before.confirm > probe.confirm
        if before is not None and has_fallen and evidence.is_one_store(before, probe):
            _fell(found, before, probe)
        own[probe.node, probe.incarnation] = probe
        if probe.role == "master" and probe.is_open:
            epochs = shown[probe.group]
            for epoch, other in epochs.items():
                is_before = epoch < probe.epoch and other.last_us <= probe.at_us
                if is_before and other.confirm > probe.confirm:
                    _fell(found, other, probe)
            if probe.epoch not in epochs or epochs[probe.epoch].confirm <= probe.confirm:
                epochs[probe.epoch] = probe
    _members_have_what_is_confirmed(evidence, found)
    return found


def _fell(found: Findings, before: Probe, probe: Probe) -> None:
    found.violate(
        f"confirm was {before.confirm} at {before.node} in epoch {before.epoch}, then "
        f"{probe.confirm} at {probe.node} in epoch {probe.epoch}",
        before,
        probe,
    )


def _members_have_what_is_confirmed(evidence: Evidence, found: Findings) -> None:
    for group in evidence.groups:
        leads = sorted(
            (probe.last_us, (probe.confirm, probe.number))
            for probe in evidence.probes
            if probe.group == group and probe.role == "master" and probe.is_open
        )
        for probe, (confirm, number), ruling in _members_behind(evidence, group, leads):
            found.violate(
                f"{probe.node}, a member, was at {evidence.position(probe)} when {confirm} had "
                f"been confirmed",
                probe,
                number,
                ruling,
            )


def acknowledged_is_durable(evidence: Evidence) -> Findings:
    """S16 (INV-1): let a be acknowledged, e(a) where its record ends in H. (a) At every later probe
    of the master (n, i) of its epoch: confirm >= e(a). (b) At every later probe of a member:
    position >= e(a); for whoever was in the set had it, and who joined later was not below confirm
    then (R10). S17 takes those cases of (b) in which the member was removed afterwards. (c) In the
    end, after the last power cut: the log of each member of the last set reaches e(a), for every a,
    unless a fault has damaged its disk and it has not joined anew. O((n + probes) log n)."""
    found = Findings("S16")
    for group in evidence.groups:
        acks = evidence.placed_acks(group)
        _masters_confirm(evidence, found, group, acks)
        leads = [(send.answered_us, (end, send.number)) for send, end in acks]
        found.judged += len(leads)
        for probe, (end, number), ruling in _members_behind(evidence, group, leads):
            if not _is_removed_later(evidence, probe):
                found.violate(_behind(evidence, probe, end), probe, number, ruling)
        _last_members_hold_it(evidence, found, group, acks)
    return found


def _last_members_hold_it(
    evidence: Evidence, found: Findings, group: str, acks: list[tuple[Send, int]]
) -> None:
    timeline = evidence.timeline(group)
    if not acks or not timeline.sets:
        return
    end, number = max((end, send.number) for send, end in acks)
    for dump in evidence.dumps_of.get(group, ()):
        if evidence.replica_of(dump) not in timeline.sets[-1]:
            continue
        found.judged += 1
        if dump.end < end and not evidence.allowances.lacks_in_the_end(dump.node):
            found.violate(
                f"{dump.node}, a member in the end, holds a log up to {dump.end}; the record up "
                f"to {end} had been acknowledged",
                dump,
                number,
                timeline.numbers[-1],
            )


def shrinks_are_committed_before_use(evidence: Evidence) -> Findings:
    """S17 (INV-6): as S16 (b), for members that the controllers removed only after the probe: the
    acknowledgement relied on the smaller set before it was committed. O((n + probes) log n)."""
    found = Findings("S17")
    for group in evidence.groups:
        timeline = evidence.timeline(group)
        found.judged += sum(
            1
            for before, after in zip(timeline.sets, timeline.sets[1:], strict=False)
            if before - after
        )
        leads = [
            (send.answered_us, (end, send.number)) for send, end in evidence.placed_acks(group)
        ]
        for probe, (end, number), ruling in _members_behind(evidence, group, leads):
            if _is_removed_later(evidence, probe):
                found.violate(
                    _behind(evidence, probe, end) + ", and was removed only later",
                    probe,
                    number,
                    ruling,
                )
    return found


def _behind(evidence: Evidence, probe: Probe, end: int) -> str:
    return (
        f"{probe.node}, a member, was at {evidence.position(probe)} when the record up to {end} "
        f"had been acknowledged"
    )


def _is_removed_later(evidence: Evidence, probe: Probe) -> bool:
    timeline = evidence.timeline(probe.group)
    return any(
        at_us > probe.at_us and probe.replica not in members
        for at_us, members in zip(timeline.ats, timeline.sets, strict=True)
    )


def _masters_confirm(
    evidence: Evidence, found: Findings, group: str, acks: list[tuple[Send, int]]
) -> None:
    highest: dict[tuple[str, int], _Lead] = {}
    done = 0
    for probe in evidence.probes_in_time:
        if probe.group != group or probe.role not in ("master", "replica"):
            continue
        while done < len(acks) and acks[done][0].answered_us < probe.at_us:
            send, end = acks[done]
            done += 1
            claim = evidence.master_of(group, send.epoch)
            if claim is not None:
                key = (claim.node, claim.incarnation)
                highest[key] = max(highest.get(key, (0, 0)), (end, send.number))
        lead = highest.get((probe.node, probe.incarnation))
        if lead is None or probe.confirm >= lead[0]:
            continue
        if not evidence.was_replaced(probe.node, 0, probe.at_us):
            found.violate(
                f"{probe.node} had acknowledged the record up to {lead[0]}, and its confirm was "
                f"{probe.confirm} after that",
                probe,
                lead[1],
            )


def _members_behind(
    evidence: Evidence, group: str, leads: list[tuple[int, _Lead]]
) -> Iterator[tuple[Probe, _Lead, int]]:
    """Probes of members below a position promised before; `leads` = (when, lead) in time order."""
    timeline = evidence.timeline(group)
    if not timeline.sets or not leads or evidence.is_lossy(group):
        return
    highest, since, done = (0, 0), 0, 0
    for probe in evidence.probes_in_time:
        if probe.group != group:
            continue
        while done < len(leads) and leads[done][0] < probe.at_us:
            at_us, lead = leads[done]
            done += 1
            if lead > highest:
                highest, since = lead, at_us
        if evidence.position(probe) >= highest[0] or not evidence.is_intact(probe):
            continue
        until_us = probe.at_us + evidence.slack_us
        members = timeline.members_throughout(since, until_us)
        if probe.replica in members:
            yield probe, highest, _number_at(timeline.ats, timeline.numbers, probe.at_us)


def _number_at(ats: list[int], numbers: list[int], at_us: int) -> int:
    return max(
        (number for at, number in zip(ats, numbers, strict=True) if at <= at_us),
        default=numbers[0],
    )


def logs_agree_below_confirm(evidence: Evidence) -> Findings:
    """S12 (INV-3): for any two replicas of a group the batches below min(confirm, confirm'), from
    the later start on, are equal in position, size, epoch, kind and crc of all bytes. Compared with
    the log that confirms most, which gives all pairs; a log that lacks something by a fault as far
    as it goes. O(batches)."""
    found = Findings("S12")
    for group, dumps in evidence.dumps_of.items():
        if evidence.is_lossy(group):
            continue
        # A damaged log may confirm more than it still has: the truth then says what there was.
        reference = max(dumps, key=lambda dump: (dump.damage is None, dump.confirm))
        for dump in dumps:
            if dump is not reference:
                _compare(evidence, found, reference, dump)
    return found


def _compare(
    evidence: Evidence, found: Findings, reference: ReplicaDump, dump: ReplicaDump
) -> None:
    limit = min(reference.confirm, dump.confirm)
    start = max(reference.start, dump.start)
    mine, theirs = _confirmed(dump, start, limit), _confirmed(reference, start, limit)
    found.judged += len(theirs)
    for one, other in zip(mine, theirs, strict=False):
        if _identity(one) != _identity(other):
            found.violate(
                f"below confirm {limit} the logs of {dump.node} and {reference.node} differ: "
                f"{_shown(one)}, {_shown(other)}",
                dump,
                reference,
            )
            return
    longer = mine if len(mine) > len(theirs) else theirs
    missing = reference if longer is mine else dump
    if len(mine) != len(theirs) and not evidence.allowances.lacks_in_the_end(missing.node):
        found.violate(
            f"the log of {missing.node} lacks {_shown(longer[min(len(mine), len(theirs))])}, "
            f"which lies below confirm {limit}",
            dump,
            reference,
        )


def _confirmed(dump: ReplicaDump, start: int, limit: int) -> list[StoredBatch]:
    return [
        batch
        for batch in dump.batches
        if batch.position >= start and batch.position + batch.size <= limit
    ]


def _identity(batch: StoredBatch) -> tuple[int, int, int, str, int]:
    return batch.position, batch.size, batch.epoch, batch.kind, batch.crc


def _shown(batch: StoredBatch) -> str:
    return (
        f"the batch at {batch.position} of {batch.size} bytes, epoch {batch.epoch}, "
        f"crc {batch.crc:08x}"
    )


def later_masters_have_it(evidence: Evidence) -> Findings:
    """INV-12: for each probe of a master of epoch f and each acknowledgement of an epoch e < f: the
    probe's end >= where that record ends in H. (That the last master has all of them is S1.)
    O(n + probes log probes)."""
    found = Findings("INV-12")
    for group in evidence.groups:
        leads: dict[int, _Lead] = {}
        for send, end in evidence.placed_acks(group):
            if send.epoch is not None and not send.is_duplicate:
                leads[send.epoch] = max(leads.get(send.epoch, (0, 0)), (end, send.number))
        masters = [p for p in evidence.probes if p.group == group and p.role == "master"]
        done: list[tuple[int, _Lead]] = sorted(leads.items())
        highest, index = (0, 0), 0
        for probe in sorted(masters, key=attrgetter("epoch")):
            while index < len(done) and done[index][0] < probe.epoch:
                highest = max(highest, done[index][1])
                index += 1
            found.judged += bool(highest[0])
            if probe.end < highest[0]:
                found.violate(
                    f"{probe.node} led epoch {probe.epoch} with a log up to {probe.end}, and the "
                    f"record up to {highest[0]} had been acknowledged in an epoch before",
                    probe,
                    highest[1],
                )
    return found
