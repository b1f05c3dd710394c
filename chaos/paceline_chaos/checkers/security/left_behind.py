"""Pure: what is left behind by who lost his rights holds nobody up: L13.

A lock that cannot be renewed ends with its lease, and whoever may go on is granted it then. A half
that nobody ended is asked about as soon as a producer of its group is at work that may be asked.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from paceline.errors import LockHeldError
from paceline.wire.names import TRANS_CHECK_MAX_TIME_TOPIC
from paceline_chaos.checkers.evidence.bounds import SECOND_US
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.evidence.recorded import NEVER_US
from paceline_chaos.checkers.evidence.withheld import Span, withheld_spans
from paceline_chaos.checkers.liveness import calm
from paceline_chaos.checkers.security.policies import on_group
from paceline_chaos.checkers.security.rights import REFUSALS, Versions
from paceline_chaos.history.model import BeginTransaction, Lock, Outcome, Queue

_SLACK_US = SECOND_US
"""For clocks that run unequally, and a lock that is granted behind others."""
_ASKED_US = 4 * SECOND_US
"""A half is asked about so soon, in worlds: a question that goes astray is put again after 2 s."""
_WORK_GAP_US = 2 * SECOND_US
"""A producer that begins transactions so close to each other is at work all the time."""


def what_is_left_behind_holds_nobody_up(evidence: Evidence) -> Findings:
    """L13: in a stretch without faults: (1) who is told that another member holds a queue's lock is
    told so because one had asked for it or renewed it, and was not refused, at most its lease and a
    second before; not where the group of brokers has begun an epoch meanwhile, which renews leases
    once (R33), or withholds locks (R36), or a broker's clock was changed. (2) A half that was
    stored before, that nobody has ended or given up, was asked about once a producer of its group
    was at work for `_ASKED_US`, which might be asked by all versions that nodes went by then.
    Not in lossy groups. O(n log n + halves * producers)."""
    found = Findings("L13")
    stretches = list(calm(evidence))
    if evidence.clocks_right_until_us("broker") >= NEVER_US:
        _locks_end(evidence, found, stretches)
    _halves_are_asked_about(evidence, found, stretches)
    return found


def _is_within(stretches: Iterable[Span], from_us: int, until_us: int) -> bool:
    return any(start_us <= from_us and until_us <= end_us for start_us, end_us in stretches)


# -- locks -----------------------------------------------------------------------------------------


def _locks_end(evidence: Evidence, found: Findings, stretches: list[Span]) -> None:
    lanes: defaultdict[tuple[str, Queue], list[Lock]] = defaultdict(list)
    for lock in evidence.locks:
        lanes[lock.consumer_group, lock.queue].append(lock)
    restless = {
        group: [
            *((ruling.at_us, ruling.at_us) for ruling in evidence.rulings_of(group)),
            *withheld_spans(evidence, group),
        ]
        for group in evidence.groups
    }
    for (consumer_group, queue), locks in lanes.items():
        if evidence.is_lossy(queue.group):
            continue
        lease_us = 1000 * max(lock.lease_ms for lock in locks) + _SLACK_US
        asked = [lock for lock in locks if lock.outcome is not Outcome.FAIL]
        for lock in locks:
            if lock.error != LockHeldError.code:
                continue
            from_us, until_us = lock.asked_us - lease_us, lock.answered_us
            if not _is_within(stretches, from_us, until_us):
                continue
            if any(a <= until_us and b >= from_us for a, b in restless.get(queue.group, ())):
                continue
            found.judged += 1
            found.counters["left_behind.locks"] += 1
            if not any(_may_hold(one, lock) for one in asked):
                found.violate(
                    f"{lock.member} was told that somebody holds the lock of {consumer_group} on"
                    f" {queue.topic}/{queue.group}/{queue.queue}, and nobody had asked for it"
                    " within a lease",
                    lock,
                )


def _may_hold(one: Lock, refused: Lock) -> bool:
    until_us = one.answered_us + 1000 * one.lease_ms + _SLACK_US
    is_other = one.member != refused.member
    return is_other and one.asked_us <= refused.answered_us and until_us >= refused.asked_us


# -- halves ----------------------------------------------------------------------------------------


def _halves_are_asked_about(evidence: Evidence, found: Findings, stretches: list[Span]) -> None:
    if not any(begin.producer_group for begin in evidence.begins):
        return
    versions = Versions(evidence)
    over: set[str | None] = {end.value for end in evidence.ends if end.error not in REFUSALS}
    over.update(*(log.values for queue, log in evidence.logs.items() if _is_given_up(queue)))
    checked: defaultdict[str, list[int]] = defaultdict(list)
    for check in evidence.checks:
        checked[check.value].append(check.asked_us)

    def goes_on(before: BeginTransaction, begin: BeginTransaction) -> bool:
        from_us, until_us = before.asked_us, begin.answered_us
        if begin.asked_us - before.answered_us > _WORK_GAP_US:
            return False
        if not _is_within(stretches, from_us, until_us):
            return False
        needs = (on_group(begin.producer_group, "Pub", "Sub"),)
        answers = versions.answers(begin, needs, from_us=from_us, until_us=until_us)
        return not versions.nodes or answers == {True}

    for works in _works(evidence, goes_on):
        first, last = works[0], works[-1]
        for half in evidence.begins:
            if half.value in over or not _is_like(half, first):
                continue
            due_us = half.answered_us + SECOND_US
            if max(due_us, first.answered_us) + _ASKED_US > last.asked_us:
                continue
            found.judged += 1
            found.counters["left_behind.halves"] += 1
            if not bisect_left(sorted(checked[half.value]), last.answered_us):
                found.violate(
                    f"nobody was asked what became of {half.value}, while {last.client} of its"
                    f" group of producers {half.producer_group} was at work",
                    half,
                    first,
                    last,
                )


def _is_given_up(queue: Queue) -> bool:
    return queue.topic == TRANS_CHECK_MAX_TIME_TOPIC


def _is_like(half: BeginTransaction, other: BeginTransaction) -> bool:
    is_stored = half.outcome is Outcome.OK
    return is_stored and (half.producer_group, half.group) == (other.producer_group, other.group)


def _works(
    evidence: Evidence, goes_on: Callable[[BeginTransaction, BeginTransaction], bool]
) -> Iterator[list[BeginTransaction]]:
    """Of each producer (by its client, access key and group) what it has begun in one broker group,
    as long as one `goes_on` from the other."""
    lines: defaultdict[tuple[str | None, ...], list[BeginTransaction]] = defaultdict(list)
    for begin in evidence.begins:
        if begin.producer_group and begin.outcome is Outcome.OK:
            whose = (begin.client, begin.access_key, begin.producer_group, begin.group)
            lines[whose].append(begin)
    for line in lines.values():
        line.sort(key=lambda begin: begin.asked_us)
        works = line[:1]
        for before, begin in pairwise(line):
            if not goes_on(before, begin):
                yield works
                works = []
            works.append(begin)
        yield works
