"""Pure: who may lead and who may count: S13, S14, S15, S30, R1 and R8.

Rulings are taken in order of index. Where a set epoch is missing in between (a history of which no
controller was seen from the beginning), the step over the gap is not judged.
"""

from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.evidence.parts import SERVING, Ruling
from paceline_chaos.history.model import FaultEvent, Probe, Send

_EMPTIED = frozenset({"disk_lost", "disk_wiped"})
"""Faults after which a node holds nothing."""


def one_master_for_each_epoch(evidence: Evidence) -> Findings:
    """S13 (INV-4): for each (group, epoch) one node n at most was elected, said that it is master,
    or acknowledged; and an acknowledgement that was no duplicate names the epoch in which its
    record stands in H. O(n)."""
    found = Findings("S13")
    for (group, epoch), claims in evidence.masters.items():
        nodes = {claim.node: claim for claim in claims}
        found.judged += 1
        if len(nodes) > 1:
            found.violate(
                f"epoch {epoch} of {group} has the masters {' and '.join(nodes)}",
                *(claim.number for claim in nodes.values()),
            )
    for send in evidence.acks:
        if send.queue is None or send.epoch is None:
            continue
        claim = evidence.master_of(send.queue.group, send.epoch)
        if send.node is not None and claim is not None and send.node != claim.node:
            found.violate(
                f"{send.node} acknowledged {send.value} in epoch {send.epoch}, whose master is "
                f"{claim.node}",
                send,
                claim.number,
            )
        _names_its_epoch(evidence, found, send)
    return found


def _names_its_epoch(evidence: Evidence, found: Findings, send: Send) -> None:
    assert send.queue is not None
    assert send.offset is not None
    log = evidence.logs.get(send.queue)
    if log is None or log.value_at(send.offset) != send.value or send.epoch is None:
        return
    found.judged += 1
    stored = log.epochs[send.offset - log.start]
    if stored != send.epoch and evidence.allowances.was_given_up(send):
        return  # the copy that was elected uncleanly may have it of an older master, by its place
    if stored > send.epoch or (stored < send.epoch and not send.is_duplicate):
        found.violate(
            f"{send.value} was acknowledged in epoch {send.epoch} and stands in epoch {stored}",
            send,
            evidence.truth[send.queue.group],
        )


def mastership_ends_with_its_process(evidence: Evidence) -> Findings:
    """R1: for each (group, epoch, node) one incarnation at most was elected or said that it is
    master. O(n)."""
    found = Findings("R1")
    for (group, epoch), claims in evidence.masters.items():
        by_node = defaultdict(list)
        for claim in claims:
            by_node[claim.node].append(claim)
        found.judged += len(by_node)
        for node, mine in by_node.items():
            if len(mine) > 1:
                found.violate(
                    f"{node} led epoch {epoch} of {group} in incarnations "
                    f"{' and '.join(str(claim.incarnation) for claim in mine)}",
                    *(claim.number for claim in mine),
                )
    return found


def epochs_never_fall(evidence: Evidence) -> Findings:
    """S14 (INV-4): (a) the epoch of a node's probes never decreases, over restarts too, unless its
    disk was lost or replaced by an old copy; (b) in no log does the epoch fall; (c) for
    acknowledgements a < b of one group: epoch(a) <= epoch(b). O(n log n)."""
    found = Findings("S14")
    _node_epochs(evidence, found)
    for dump in evidence.dumps:
        for before, batch in zip(dump.batches, dump.batches[1:], strict=False):
            found.judged += 1
            if batch.epoch < before.epoch:
                found.violate(
                    f"in the log of {dump.node} epoch {batch.epoch} at {batch.position} follows "
                    f"epoch {before.epoch}",
                    dump,
                )
    _acknowledged_epochs(evidence, found)
    return found


def _node_epochs(evidence: Evidence, found: Findings) -> None:
    for node, line in evidence.lines.items():
        served = [probe for probe in line.probes if probe.role in SERVING]
        for before, probe in zip(served, served[1:], strict=False):
            found.judged += 1
            if probe.epoch < before.epoch and evidence.is_one_store(before, probe):
                found.violate(
                    f"{node} fell from epoch {before.epoch} to {probe.epoch}", before, probe
                )


def _acknowledged_epochs(evidence: Evidence, found: Findings) -> None:
    groups: defaultdict[str, list[Send]] = defaultdict(list)
    for send in evidence.acks:
        if send.queue is not None and send.epoch is not None:
            groups[send.queue.group].append(send)
    for sends in groups.values():
        answered = sorted(sends, key=attrgetter("answered_us"))
        newest: Send | None = None
        done = 0
        for send in sorted(sends, key=attrgetter("asked_us")):
            while answered[done].answered_us < send.asked_us:
                if newest is None or _epoch(answered[done]) > _epoch(newest):
                    newest = answered[done]
                done += 1
            if newest is None:
                continue
            found.judged += 1
            if _epoch(send) < _epoch(newest):
                found.violate(
                    f"{send.value} was sent after epoch {newest.epoch} had acknowledged, and was "
                    f"acknowledged in epoch {send.epoch}",
                    newest,
                    send,
                )


def masters_come_from_the_set(evidence: Evidence) -> Findings:
    """S15 (INV-5): for each clean election with the set S in force before it: S is empty (the
    first), or the master is in S and the new set is a subset of S; master epochs rise by one from
    election to election. Before an unclean one an operator has ordered it; they are counted. An
    acting master is not in S (R36). O(rulings)."""
    found = Findings("S15")
    for group in evidence.groups:
        previous: Ruling | None = None
        for before, ruling, is_gapless in _steps(evidence, group):
            if ruling.kind == "acting_master_appointed":
                _is_no_member(found, before, ruling)
            if ruling.kind != "master_elected":
                continue
            if previous is not None:
                _epoch_rises(found, previous, ruling)
            previous = ruling
            if ruling.members.get("is_unclean"):
                found.counters["unclean_elections"] += 1
                _is_by_order(evidence, found, ruling)
            elif before is not None and is_gapless:
                _is_from(found, before, ruling)
    return found


def _is_no_member(found: Findings, before: Ruling | None, ruling: Ruling) -> None:
    """Only while no member can lead, so it is none (R36)."""
    found.counters["acting_masters"] += 1
    members = (before or ruling).sync_state_set or frozenset()
    found.judged += 1
    if ruling.members["acting"] in members:
        found.violate(
            f"replica {ruling.members['acting']} of {ruling.group} acts as master and is a member",
            ruling.number,
        )


def _is_by_order(evidence: Evidence, found: Findings, ruling: Ruling) -> None:
    found.judged += 1
    if not evidence.allowances.is_ordered(ruling):
        found.violate(
            f"replica {ruling.members['master']} of {ruling.group} was elected uncleanly, and "
            f"nobody had ordered that",
            ruling.number,
        )


def _epoch_rises(found: Findings, previous: Ruling, ruling: Ruling) -> None:
    found.judged += 1
    old, new = previous.members["master_epoch"], ruling.members["master_epoch"]
    if new <= old:
        found.violate(
            f"after epoch {old} of {ruling.group} came epoch {new}", previous.number, ruling.number
        )


def _is_from(found: Findings, before: Ruling, ruling: Ruling) -> None:
    members, chosen = before.sync_state_set or frozenset(), ruling.sync_state_set or frozenset()
    found.judged += 1
    master = ruling.members["master"]
    if master not in members:
        found.violate(
            f"replica {master} of {ruling.group} was elected; the set was {sorted(members)}",
            before.number,
            ruling.number,
        )
    elif not chosen <= members:
        found.violate(
            f"an election in {ruling.group} made {sorted(chosen)} of the set {sorted(members)}",
            before.number,
            ruling.number,
        )


def sets_keep_the_minimum(evidence: Evidence) -> Findings:
    """R8: no set change and no election makes a set smaller than `min_in_sync_replicas`, unless it
    was so before (a member whose store is gone is removed in any case, R9; a group that an operator
    recovers begins with one, R18). Judged while the world's minimum holds: no ruling changed the
    settings. O(rulings)."""
    found = Findings("R8")
    for group in evidence.groups:
        minimum = evidence.minimum(group)
        if any(True for _ in evidence.rulings_of(group, "settings_set")):
            continue
        for before, ruling, is_gapless in _steps(evidence, group):
            if before is None or not is_gapless or ruling.kind in _NO_SET_CHANGES:
                continue
            if ruling.members.get("is_unclean"):
                continue
            old = before.sync_state_set or frozenset()
            new = ruling.sync_state_set or frozenset()
            found.judged += 1
            if len(new) < min(minimum, len(old)):
                found.violate(
                    f"the set of {group} went from {sorted(old)} to {sorted(new)}, the minimum is "
                    f"{minimum}",
                    before.number,
                    ruling.number,
                )
    return found


def only_caught_up_replicas_count(evidence: Evidence) -> Findings:
    """S30: (a) incarnations of a replica id rise with each registration (R9): two processes are
    never both accepted; (b) whoever joins a set has, at its first probe after that in the
    registered incarnation, a position not below what open masters had confirmed before (R10);
    (c) a replica whose disk was lost is in no set from its next registration until it joins
    again, unless it is the last member. O(rulings log probes)."""
    found = Findings("S30")
    for group in evidence.groups:
        registered: dict[int, Ruling] = {}
        for ruling in evidence.rulings_of(group, "replica_registered"):
            replica = ruling.members["replica"]
            before = registered.get(replica)
            registered[replica] = ruling
            if before is None:
                continue
            found.judged += 1
            old, new = before.members["incarnation"], ruling.members["incarnation"]
            if new <= old:
                found.violate(
                    f"replica {replica} of {group} registered incarnation {new} after {old}",
                    before.number,
                    ruling.number,
                )
        _joiners_have_caught_up(evidence, found, group)
        for fault in evidence.faults:
            if fault.kind in _EMPTIED and fault.is_begin:
                _lost_disks_do_not_count(evidence, found, group, fault)
    return found


def _joiners_have_caught_up(evidence: Evidence, found: Findings, group: str) -> None:
    if evidence.is_lossy(group):
        return
    confirms = [
        probe
        for probe in evidence.probes_in_time
        if probe.group == group and probe.role == "master" and probe.is_open
    ]
    for before, ruling, _ in _steps(evidence, group):
        if before is None or ruling.kind != "set_changed":
            continue
        joined = (ruling.sync_state_set or frozenset()) - (before.sync_state_set or frozenset())
        lead = max(
            (probe for probe in confirms if probe.last_us < ruling.at_us),
            key=attrgetter("confirm"),
            default=None,
        )
        for replica in sorted(joined):
            probe = _first_probe(evidence, group, replica, ruling)
            if probe is None or lead is None:
                continue
            found.judged += 1
            if evidence.position(probe) < lead.confirm:
                found.violate(
                    f"replica {replica} of {group} joined the set at "
                    f"{evidence.position(probe)}, confirmed was {lead.confirm}",
                    lead,
                    ruling.number,
                    probe,
                )


def _first_probe(evidence: Evidence, group: str, replica: int, ruling: Ruling) -> Probe | None:
    incarnation = None
    for registration in evidence.rulings_of(group, "replica_registered"):
        if registration.place < ruling.place and registration.members["replica"] == replica:
            incarnation = registration.members["incarnation"]
    line = evidence.lines.get(evidence.replica_nodes.get((group, replica), ""))
    probe = None if line is None else line.first_after(ruling.at_us)
    if probe is None or (probe.replica, probe.incarnation) != (replica, incarnation):
        return None  # another replica has its node by now: it lost its disk
    return probe if evidence.is_intact(probe) else None


def _lost_disks_do_not_count(
    evidence: Evidence, found: Findings, group: str, fault: FaultEvent
) -> None:
    line = evidence.lines.get(fault.target)
    last = None if line is None else line.last_until(fault.at_us)
    if last is None or last.group != group or last.replica is None:
        return
    rulings = list(evidence.rulings_of(group))
    registration = next(
        (
            ruling
            for ruling in rulings
            if ruling.kind == "replica_registered"
            and ruling.at_us > fault.at_us
            and ruling.members["replica"] == last.replica
        ),
        None,
    )
    if registration is None:
        return
    in_force = [
        ruling
        for ruling in rulings
        if ruling.sync_state_set is not None and ruling.place <= registration.place
    ]
    members = in_force[-1].sync_state_set if in_force else frozenset()
    found.judged += 1
    if members and last.replica in members and len(members) > 1:
        found.violate(
            f"replica {last.replica} of {group} registered with an empty disk and stayed in the "
            f"set {sorted(members)}",
            fault,
            registration.number,
            in_force[-1].number,
        )


def _steps(evidence: Evidence, group: str) -> Iterator[tuple[Ruling | None, Ruling, bool]]:
    """Each ruling that names a set, the one before it, and whether none is missing between them."""
    before: Ruling | None = None
    for ruling in evidence.rulings_of(group):
        if ruling.sync_state_set is None:
            continue
        old = None if before is None else before.members.get("set_epoch")
        new = ruling.members.get("set_epoch")
        is_gapless = old is None or new is None or new == old + 1
        yield before, ruling, is_gapless
        before = ruling


_NO_SET_CHANGES = frozenset({"member_removed", "group_recovered"})


def _epoch(send: Send) -> int:
    assert send.epoch is not None
    return send.epoch
