"""Pure: messages that are given by receipt: S23."""

from collections import defaultdict
from typing import TypeAlias

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.evidence.recorded import NEVER_US
from paceline_chaos.history.model import Ack, Commit, Outcome, Pop, QueryOffset, Queue

_NEVER_US = 1 << 62
SLACK_US = 50_000
"""How much too early an invisible time may end."""
_Lane: TypeAlias = tuple[str, Queue]
_Place: TypeAlias = tuple[str, Queue, int]


def receipts_exclude(evidence: Evidence) -> Findings:
    """S23 (R28, R29), for each message and group: a grant is decided between asking and answer of
    its receive. (1) Two grants lie at least the first one's invisible time apart, less 50 ms,
    unless somebody asked to give the message back before the second: violated when both receives
    lie within less than that. Not judged when clocks were made to run wrong, as the time is the
    log's. (2) A receive asked for after an acknowledgement has succeeded is not given the message.
    (3) When a query is answered that the group has come to x, then somebody had asked to
    acknowledge each message that was received and lies below x, or to commit more than it, or it is
    a dead letter: what was forgotten is not passed over. (4) A commit without receipts does not
    succeed while a message below it is invisible, and a receive asked for after it has succeeded is
    given nothing below it. (5) A group that receives in order is given a message of a queue for the
    first time only when somebody has asked to acknowledge all that it was given before below it,
    or to commit more, or it is a dead letter. Not over an unclean election. O(n log n)."""
    found = Findings("S23")
    pops: defaultdict[_Place, list[Pop]] = defaultdict(list)
    for pop in evidence.pops:
        if pop.outcome is Outcome.OK and not evidence.is_lossy(pop.queue.group):
            pops[pop.consumer_group, pop.queue, pop.message.offset].append(pop)
    acked: dict[_Place, Ack] = {}
    acks: defaultdict[_Place, list[Ack]] = defaultdict(list)
    for ack in evidence.done_receipts:
        place = (ack.consumer_group, ack.queue, ack.offset)
        acks[place].append(ack)
        if ack.outcome is Outcome.OK and not ack.is_back:
            first = acked.get(place)
            if first is None or ack.answered_us < first.answered_us:
                acked[place] = ack
    commits: defaultdict[_Lane, list[Commit]] = defaultdict(list)
    for commit in evidence.commits:
        if not commit.is_reset:
            commits[commit.consumer_group, commit.queue].append(commit)
    are_clocks_right = evidence.clocks_right_until_us("broker") == NEVER_US
    for place, given in pops.items():
        given.sort(key=lambda pop: pop.asked_us)
        found.judged += len(given)
        found.counters["popped_again"] += len(given) - 1
        _after_ack(found, given, acked.get(place))
        if are_clocks_right:
            _too_early(found, given, [ack for ack in acks[place] if ack.is_back])
        for commit in commits[place[:2]]:
            is_decided = commit.outcome is Outcome.OK and not commit.is_provisional
            if commit.offset > place[2] and is_decided:
                _past_commit(found, given, commit)
                if are_clocks_right and not _is_nobodys(evidence, place):
                    _while_invisible(found, given, acks[place], commit)
    _passed_over(evidence, found, pops, commits)
    _in_order(evidence, found, commits)
    return found


def _is_nobodys(evidence: Evidence, place: _Place) -> bool:
    """Retention has taken the message, or it is a dead letter: a commit may pass over it."""
    group, queue, offset = place
    return offset < evidence.start_of(queue) or offset in evidence.sent_back(group, queue)


def _passed_over(
    evidence: Evidence,
    found: Findings,
    pops: defaultdict[_Place, list[Pop]],
    commits: defaultdict[_Lane, list[Commit]],
) -> None:
    """(3). O(queries * receives of their queue): queries are few."""
    first_done_us = _first_done_us(evidence)
    received: defaultdict[_Lane, list[Pop]] = defaultdict(list)
    for (group, queue, _), given in pops.items():
        received[group, queue].append(given[0])
    for query in evidence.offset_queries:
        lane = (query.consumer_group, query.queue)
        if query.outcome is not Outcome.OK or query.offset is None or lane not in received:
            continue
        dead = evidence.sent_back(*lane)
        # Of any outcome: what was refused may be the repetition of one that was carried out.
        committed = max(
            (one.offset for one in commits[lane] if one.asked_us <= query.answered_us), default=0
        )
        for pop in received[lane]:
            if not committed <= pop.message.offset < query.offset or pop.message.offset in dead:
                continue
            if pop.message.offset < evidence.start_of(query.queue):
                continue
            found.judged += 1
            if first_done_us.get((*lane, pop.message.offset), _NEVER_US) > query.answered_us:
                _passed(found, pop, query)


def _first_done_us(evidence: Evidence) -> dict[_Place, int]:
    """When somebody first asked to acknowledge a message, if that did not fail."""
    first_done_us: dict[_Place, int] = {}
    for ack in evidence.done_receipts:
        if ack.outcome is not Outcome.FAIL and not ack.is_back:
            place = (ack.consumer_group, ack.queue, ack.offset)
            first_done_us[place] = min(first_done_us.get(place, ack.asked_us), ack.asked_us)
    return first_done_us


def _in_order(
    evidence: Evidence, found: Findings, commits: defaultdict[_Lane, list[Commit]]
) -> None:
    """(5). What is under way of a queue is little."""
    first_done_us = _first_done_us(evidence)
    lanes: defaultdict[_Lane, list[Pop]] = defaultdict(list)
    for pop in evidence.pops:
        if pop.is_ordered and pop.outcome is Outcome.OK and not evidence.is_lossy(pop.queue.group):
            lanes[pop.consumer_group, pop.queue].append(pop)
    for lane, given in lanes.items():
        dead, start = evidence.sent_back(*lane), evidence.start_of(lane[1])
        committed = max((one.offset for one in commits[lane]), default=0)
        out: dict[int, Pop] = {}
        for pop in sorted(given, key=lambda each: each.answered_us):
            found.judged += 1
            for offset, before in list(out.items()):
                done_us = first_done_us.get((*lane, offset), _NEVER_US)
                if done_us <= pop.answered_us or offset in dead or offset < max(start, committed):
                    del out[offset]
                elif (
                    pop.attempt == 1
                    and offset < pop.message.offset
                    and before.answered_us < pop.asked_us
                ):
                    found.violate(
                        f"{_name(pop)} was given to {pop.member} while {offset} before it was not"
                        " acknowledged, in a group that receives in order",
                        before,
                        pop,
                    )
            out.setdefault(pop.message.offset, pop)


def _passed(found: Findings, pop: Pop, query: QueryOffset) -> None:
    found.violate(
        f"group {pop.consumer_group} stands at {query.offset}, and nobody had acknowledged"
        f" {_name(pop)}",
        pop,
        query,
    )


def _after_ack(found: Findings, given: list[Pop], ack: Ack | None) -> None:
    if ack is None:
        return
    for pop in given:
        if pop.asked_us > ack.answered_us:
            found.violate(
                f"{_name(pop)} was given to {pop.member} after it was acknowledged", pop, ack
            )


def _past_commit(found: Findings, given: list[Pop], commit: Commit) -> None:
    for pop in given:
        if pop.asked_us > commit.answered_us:
            found.violate(
                f"{_name(pop)} was given to {pop.member} after its group had committed "
                f"{commit.offset}",
                pop,
                commit,
            )


def _while_invisible(found: Findings, given: list[Pop], acks: list[Ack], commit: Commit) -> None:
    if any(ack.asked_us <= commit.answered_us for ack in acks):
        return
    for pop in given:
        until_us = pop.asked_us + pop.invisible_ms * 1000 - SLACK_US
        if pop.answered_us < commit.asked_us and commit.answered_us < until_us:
            found.violate(
                f"{commit.offset} was committed while {_name(pop)} was invisible", pop, commit
            )


def _too_early(found: Findings, given: list[Pop], given_back: list[Ack]) -> None:
    for index, first in enumerate(given):
        for second in given[index + 1 :]:
            least_us = min(first.invisible_ms, second.invisible_ms) * 1000 - SLACK_US
            within_us = max(first.answered_us, second.answered_us) - first.asked_us
            if second.asked_us - first.asked_us >= least_us:
                break  # those asked still later are farther off
            if within_us >= least_us or _is_excused(first, second, given_back):
                continue
            found.violate(
                f"{_name(first)} was given to {first.member} and to {second.member} within "
                f"{within_us // 1000} ms",
                first,
                second,
            )


def _is_excused(first: Pop, second: Pop, given_back: list[Ack]) -> bool:
    return any(
        back.asked_us <= max(first.answered_us, second.answered_us)
        and back.answered_us >= first.asked_us
        for back in given_back
    )


def _name(pop: Pop) -> str:
    queue = pop.queue
    return f"message {pop.message.offset} of {queue.topic}/{queue.group}/{queue.queue}"
