"""Pure: who did what, by which version of users and rights: S31, S42 to S44, L12.

Which version a node decided by when it was asked is known from `SecurityApplied`: the last one
before the question, and each that came until the answer. Where several nodes may have decided, any
version of any of them counts. So nothing is judged while news are under way.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.evidence.recorded import NEVER_US, role_of
from paceline_chaos.checkers.security.policies import (
    OPEN,
    SHARED_TOPICS,
    Need,
    can_be_governed,
    may_all,
    on_group,
    on_topic,
)
from paceline_chaos.history.model import (
    Ack,
    BeginTransaction,
    CheckTransaction,
    Commit,
    CreateTopic,
    Deliver,
    DescribeTopic,
    EndTransaction,
    Lock,
    Operation,
    Outcome,
    Pop,
    Pull,
    QueryOffset,
    QueryRange,
    Recall,
    Resend,
    Send,
    Unlock,
)
from paceline_chaos.history.secured import (
    MODE,
    REVOKE,
    ChangeRights,
    ListNames,
    SecurityApplied,
)

_HARMLESS = frozenset({"kill", "stop", "roll", "renew"})
"""Faults that leave no node at work without news."""
REFUSALS = frozenset({"NOT_AUTHORIZED", "UNAUTHENTICATED"})
_SEES_TOPIC, _SEES_GROUP = ("Pub", "Sub", "Get"), ("Sub", "Get")


def needs_of(entry: Operation) -> tuple[Need, ...]:
    """What somebody needs to do it; nothing where that hangs on more than the entry says."""
    match entry:
        case Send() | BeginTransaction() | Recall():
            return (on_topic(entry.topic, "Pub"),)
        case Pull():
            return (on_topic(entry.queue.topic, "Sub"),)
        case Commit(is_reset=False) | Lock() | Pop():
            return (
                on_group(entry.consumer_group, "Sub"),
                on_topic(entry.queue.topic, "Sub"),
            )
        case Ack() | Unlock():
            return (on_group(entry.consumer_group, "Sub"),)
        case QueryOffset():
            return (
                on_group(entry.consumer_group, "Sub", "Get"),
                on_topic(entry.queue.topic, "Sub", "Get"),
            )
        case QueryRange():
            return (on_topic(entry.queue.topic, "Pub", "Sub", "Get"),)
        case CreateTopic():
            return (on_topic(entry.topic, "Create"),)
        case DescribeTopic():
            return (on_topic(entry.topic, "Pub", "Sub", "Get"),)
        case Resend():
            return (on_group(entry.consumer_group, "Update"),)
    return ()


class Versions:
    """Which versions nodes decided by, and when."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._lines: defaultdict[str, list[SecurityApplied]] = defaultdict(list)
        for entry in evidence.entries:
            if isinstance(entry, SecurityApplied):
                self._lines[entry.node].append(entry)
        self._times = {node: [one.at_us for one in line] for node, line in self._lines.items()}
        self._groups = {node: group for (group, _), node in evidence.replica_nodes.items()}
        self._known: dict[tuple[object, ...], bool] = {}
        self._begun = {begin.value: begin for begin in evidence.begins}

    @property
    def nodes(self) -> list[str]:
        return list(self._lines)

    def judged(self) -> Iterator[Operation]:
        """Operations of which it is known who asked, and what that needs."""
        for entry in self._evidence.entries if self._lines else ():
            if isinstance(entry, Operation) and entry.access_key is not None:
                yield entry

    def needs_of(self, entry: Operation) -> tuple[Need, ...]:
        """As the function; of the end of a transaction, by what was begun."""
        if isinstance(entry, EndTransaction):
            begin = self._begun.get(entry.value)
            return () if begin is None else (on_topic(begin.topic, "Pub"),)
        return needs_of(entry)

    def nodes_for(self, entry: Operation) -> list[str]:
        """Who may have decided."""
        if entry.node is not None and role_of(entry.node) == "broker":
            return [entry.node]
        queue = getattr(entry, "queue", None)
        if isinstance(entry, Send) and queue is not None:
            master = self._evidence.master_of(queue.group, entry.epoch)
            if master is not None:
                return [master.node]
        group = None if queue is None else queue.group
        if isinstance(entry, EndTransaction | CheckTransaction) and entry.value in self._begun:
            group = self._begun[entry.value].group
        if group is None:
            return self.nodes
        return [node for node in self.nodes if self._may_be_of(node, group)]

    def _may_be_of(self, node: str, group: str) -> bool:
        return role_of(node) == "broker" and self._groups.get(node, group) == group

    def of(self, node: str, *, from_us: int, until_us: int) -> list[Mapping[str, Any]]:
        """What a node went by in that time."""
        times, line = self._times.get(node, []), self._lines.get(node, [])
        first, last = bisect_right(times, from_us), bisect_right(times, until_us)
        before = line[first - 1].security if first else OPEN
        return [before, *(one.security for one in line[first:last])]

    def answers(
        self, entry: Operation, needs: tuple[Need, ...], *, from_us: int, until_us: int
    ) -> set[bool]:
        """What all versions say that may have decided."""
        found = set()
        for node in self.nodes_for(entry):
            for security in self.of(node, from_us=from_us, until_us=until_us):
                found.add(self._may(security, entry, needs))
        return found

    def _may(self, security: Mapping[str, Any], entry: Operation, needs: tuple[Need, ...]) -> bool:
        asked = (id(security), entry.access_key, entry.source, needs)
        if asked not in self._known:
            self._known[asked] = may_all(
                security, access_key=entry.access_key or "", source=entry.source, needs=needs
            )
        return self._known[asked]


def nobody_does_what_he_may_not(evidence: Evidence) -> Findings:
    """S31: an operation that succeeded was allowed by a version of users and rights that the node
    may have gone by between question and answer; what somebody has sent who was not allowed to by
    any version since is in no log, and a transaction that nobody might commit who asked for that
    shows in none. A consumer of the library is given a message, and a producer asked about a half,
    only if that was allowed by some version since it was sent: neither is known to have been asked
    for at a certain moment. So who is disabled, or shows a key that was revoked, does nothing at a
    node to which that news came before he asked. Where nobody knows which version a node had (real
    processes): nothing that was asked with a key `rights_us` after the answer to its revocation
    succeeds, if rights were on all the time. O(n * versions)."""
    found = Findings("S31")
    _judge_revocations(evidence, found)
    versions = Versions(evidence)
    unasked: dict[str, Operation] = {}
    commits: dict[str, Operation | None] = {}
    for entry in versions.judged():
        needs = versions.needs_of(entry)
        if not needs:
            continue
        is_ok = entry.outcome is Outcome.OK
        until_us = entry.answered_us if is_ok else NEVER_US
        is_allowed = True in versions.answers(
            entry, needs, from_us=entry.asked_us, until_us=until_us
        )
        if isinstance(entry, EndTransaction) and entry.is_commit:
            commits[entry.value] = None if is_allowed else commits.get(entry.value, entry)
        if is_allowed:
            found.judged += is_ok
            continue
        found.judged += 1
        if is_ok:
            found.violate(
                f"{_who(entry)} did what no version allowed since it asked: {_told(needs)}", entry
            )
        elif isinstance(entry, Send | BeginTransaction):
            unasked[entry.value] = entry
    _nothing_of_it_is_stored(evidence, found, unasked)
    refused = {value: end for value, end in commits.items() if end is not None}
    _nothing_of_it_is_stored(evidence, found, refused, is_seen=True)
    _what_was_given_was_allowed(evidence, found, versions)
    return found


def _nothing_of_it_is_stored(
    evidence: Evidence, found: Findings, asked: Mapping[str, Operation], *, is_seen: bool = False
) -> None:
    """`is_seen`: only what stands in a queue counts, no half."""
    for dump in evidence.all_dumps if asked else ():
        for batch in dump.batches:
            if is_seen and (batch.queue is None or batch.queue.topic in SHARED_TOPICS):
                continue
            for value, _ in batch.messages:
                if value in asked:
                    entry = asked[value]
                    found.violate(
                        f"{value} of {_who(entry)}, who might not send it, is in {dump.node}'s log",
                        entry,
                        dump,
                    )


def _what_was_given_was_allowed(evidence: Evidence, found: Findings, versions: Versions) -> None:
    if not versions.nodes:
        return
    begun = {begin.value: begin for begin in evidence.begins}
    sent_us = {sent.value: sent.asked_us for sent in evidence.sends}
    sent_us |= {value: begin.asked_us for value, begin in begun.items()}
    for entry in versions.judged():
        match entry:
            case Deliver():
                value = entry.message.value
                needs: tuple[Need, ...] = (
                    on_group(entry.consumer_group, "Sub"),
                    on_topic(entry.queue.topic, "Sub"),
                )
            case CheckTransaction() if entry.value in begun and begun[entry.value].producer_group:
                value = entry.value
                needs = (on_group(begun[value].producer_group, "Pub", "Sub"),)
            case _:
                continue
        found.judged += 1
        times = {"from_us": sent_us.get(value, 0), "until_us": entry.asked_us}
        if True not in versions.answers(entry, needs, **times):
            found.violate(f"{_who(entry)} was given {value}: {_told(needs)}", entry)


def _judge_revocations(evidence: Evidence, found: Findings) -> None:
    """By what operators were answered. A node that hears nothing of controllers may not know."""
    if any(isinstance(entry, SecurityApplied) for entry in evidence.entries):
        return
    if any(fault.kind not in _HARMLESS for fault in evidence.faults):
        return
    changes = [entry for entry in evidence.entries if isinstance(entry, ChangeRights)]
    modes = [entry for entry in changes if entry.what == MODE]
    revoked = {
        entry.name: entry
        for entry in changes
        if entry.what == REVOKE and entry.outcome is Outcome.OK
    }
    for entry in evidence.entries if revoked else ():
        if not isinstance(entry, Operation) or not needs_of(entry):
            continue
        change = revoked.get(entry.access_key or "")
        if change is None or entry.asked_us < change.answered_us + evidence.bounds.rights_us:
            continue
        if not _are_on(modes, from_us=change.answered_us, until_us=entry.answered_us):
            continue
        found.judged += 1
        if entry.outcome is Outcome.OK:
            found.violate(f"{_who(entry)} went on after that key was revoked", entry, change)


def _are_on(modes: Iterable[ChangeRights], *, from_us: int, until_us: int) -> bool:
    """Whether rights were switched on before, and by nobody to anything else until then."""
    told = [mode for mode in modes if mode.asked_us <= until_us]
    before = [mode for mode in told if mode.answered_us <= from_us]
    is_on = bool(before) and before[-1].name == "on" and before[-1].outcome is Outcome.OK
    return is_on and all(mode.name == "on" for mode in told[told.index(before[-1]) :])


def nobody_sees_what_is_not_his(evidence: Evidence) -> Findings:
    """S42: each name of a topic or consumer group that somebody was shown, he might use or look at,
    by a version that the node may have gone by. That he is given no message of others is S31.
    O(n * versions)."""
    found = Findings("S42")
    versions = Versions(evidence)
    for entry in versions.judged():
        if not isinstance(entry, ListNames) or entry.outcome is not Outcome.OK:
            continue
        shown = [
            *(on_topic(name, *_SEES_TOPIC) for name in entry.topics),
            *(on_group(name, *_SEES_GROUP) for name in entry.consumer_groups),
        ]
        for need in shown:
            found.judged += 1
            times = {"from_us": entry.asked_us, "until_us": entry.answered_us}
            if True not in versions.answers(entry, (need,), **times):
                found.violate(f"{_who(entry)} was shown {need.kind} {need.name}", entry)
    return found


def nobody_is_refused_who_may(evidence: Evidence) -> Findings:
    """S43: who is told that he may not do something was not allowed to by some version that a node
    may have gone by. O(n * versions)."""
    found = Findings("S43")
    versions = Versions(evidence)
    for entry in versions.judged():
        needs = versions.needs_of(entry)
        if not needs:
            continue
        times = {"from_us": entry.asked_us, "until_us": entry.answered_us}
        if versions.answers(entry, needs, **times) != {True}:
            continue
        found.judged += 1
        if entry.error in REFUSALS:
            found.violate(
                f"{_who(entry)} was refused with {entry.error} what all versions allow:"
                f" {_told(needs)}",
                entry,
            )
    return found


def nobody_locks_all_out(evidence: Evidence) -> Findings:
    """S44: in each version with rights on, somebody can give rights: a super user that is enabled
    and has an access key. O(versions)."""
    found = Findings("S44")
    for entry in evidence.entries:
        if isinstance(entry, SecurityApplied):
            found.judged += 1
            if not can_be_governed(entry.security):
                found.violate(f"by version {entry.version} nobody can give rights any more", entry)
    return found


def rights_arrive(evidence: Evidence) -> Findings:
    """L12: once all is whole, each node goes by a version, or a later one, `rights_us` after a
    controller has decided it; not those that stay broken, or whose place another has taken.
    O(versions * nodes)."""
    found = Findings("L12")
    healed, end = evidence.phase("heal"), evidence.phase("end")
    if healed is None or end is None:
        return found
    whole_us = healed.at_us + evidence.bounds.full_set_us
    decided: dict[int, SecurityApplied] = {}
    lines: defaultdict[str, list[SecurityApplied]] = defaultdict(list)
    for entry in evidence.entries:
        if isinstance(entry, SecurityApplied):
            lines[entry.node].append(entry)
            if role_of(entry.node) == "controller":
                decided.setdefault(entry.version, entry)
    for version, entry in decided.items():
        until_us = max(whole_us, entry.at_us) + evidence.bounds.rights_us
        if until_us > end.at_us:
            continue  # nobody has seen it end
        for node in sorted(lines.keys() - evidence.broken - evidence.retired):
            found.judged += 1
            own = [one for one in lines[node] if one.at_us <= until_us][-1:]
            if not own or own[0].version < version:
                found.violate(
                    f"{node} does not go by version {version} of users and rights"
                    f" {(until_us - entry.at_us) / 1e6:g} s after it was decided",
                    entry,
                    *own,
                )
    return found


def _who(entry: Operation) -> str:
    return f"{entry.client} with {entry.access_key or 'no access key'} from {entry.source}"


def _told(needs: Iterable[Need]) -> str:
    return ", ".join(f"{'/'.join(need.actions)} on {need.kind}:{need.name}" for need in needs)
