"""Pure: consumer groups: S21, S22, S27, S35, L9 and L10.

S21 and S27 need deliveries: of groups that pull by themselves nobody sees what was processed.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.evidence.progress import Progress
from paceline_chaos.checkers.groups.resets import resets_hold
from paceline_chaos.checkers.liveness import calm, end_of_work
from paceline_chaos.history.model import (
    Commit,
    Deliver,
    Outcome,
    QueryOffset,
    Queue,
    Seen,
)

_Lane: TypeAlias = tuple[str, Queue]


class _Word(NamedTuple):
    """A group's committed offset was `offset`, as was known at `at_us`."""

    at_us: int
    offset: int
    entry: Commit | QueryOffset


def nothing_is_committed_unprocessed(evidence: Evidence) -> Findings:
    """S21: for a group g and queue q with deliveries: whenever a commit of x was asked for (and did
    not fail), or a query answered x, each offset of [start, x) had been processed by some member of
    g before: a delivery ended well, or as often without success as a consumer gives up after, or
    once without success and a retry or dead letter was made of the message (S29).
    start is that of H(q); 0 unless the world consumes from "last", then the first offset delivered.
    A reset to x makes [start, x) as good as processed. O(n log n)."""
    found = Findings("S21")
    delivers: defaultdict[_Lane, list[Deliver]] = defaultdict(list)
    for deliver in evidence.delivers:
        if not deliver.is_broadcast and not deliver.wanted:
            delivers[deliver.consumer_group, deliver.queue].append(deliver)
    words, resets = words_of(evidence)
    for lane, mine in delivers.items():
        start = evidence.start_of(lane[1])
        if evidence.world.get("consume_from", "first") != "first":
            start = max(start, min(deliver.message.offset for deliver in mine))
        if not evidence.is_lossy(lane[1].group):
            progress = Progress(evidence, start, mine, sent_back=evidence.sent_back(*lane))
            judge_lane(found, progress, words[lane], resets[lane])
    return found


def words_of(
    evidence: Evidence,
) -> tuple[defaultdict[_Lane, list[_Word]], defaultdict[_Lane, list[Commit]]]:
    """Where groups said, or were said, to stand; and their resets. Those that did not fail."""
    words: defaultdict[_Lane, list[_Word]] = defaultdict(list)
    resets: defaultdict[_Lane, list[Commit]] = defaultdict(list)
    for commit in evidence.commits:
        lane = (commit.consumer_group, commit.queue)
        if commit.is_reset and commit.outcome is not Outcome.FAIL:
            resets[lane].append(commit)
        elif commit.outcome is not Outcome.FAIL:
            words[lane].append(_Word(commit.asked_us, commit.offset, commit))
    for query in evidence.offset_queries:
        if query.outcome is Outcome.OK and query.offset is not None:
            lane = (query.consumer_group, query.queue)
            words[lane].append(_Word(query.answered_us, query.offset, query))
    return words, resets


def judge_lane(
    found: Findings, progress: Progress, words: list[_Word], resets: list[Commit]
) -> None:
    """Walk in time; whoever resets the group to an offset takes all before it for processed."""
    coming = deque(sorted(resets, key=attrgetter("asked_us")))
    for word in sorted(words, key=lambda one: (one.at_us, one.entry.number)):
        while coming and coming[0].asked_us <= word.at_us:
            progress.pass_over(coming.popleft().offset)
        frontier = progress.at(word.at_us)
        found.judged += 1
        if word.offset > frontier:
            _passed_over(found, word, frontier, progress.delivers)


def _passed_over(found: Findings, word: _Word, frontier: int, delivers: Iterable[Deliver]) -> None:
    if found.is_full:
        found.violate("")
        return
    tries = [deliver for deliver in delivers if deliver.message.offset == frontier]
    how = "was never handed out" if not tries else "had not been processed"
    queue = word.entry.queue
    found.violate(
        f"group {word.entry.consumer_group} committed {word.offset} in "
        f"{queue.topic}/{queue.group}/{queue.queue}; {frontier} {how} by then",
        word.entry,
        *tries[:1],
    )


def commits_catch_up(evidence: Evidence) -> Findings:
    """L9: in a stretch without faults, a group whose members are the library's (it commits for
    them) is told that it stands at least where all had been processed `commit_us` before. A query
    of the drain is held against the end of work. Not where the group was reset or consumes under
    locks, nor in lossy groups. O(n log n)."""
    found = Findings("L9")
    by_hand = {(commit.consumer_group, commit.queue) for commit in evidence.commits}
    delivers: defaultdict[_Lane, list[Deliver]] = defaultdict(list)
    for deliver in evidence.delivers:
        lane = (deliver.consumer_group, deliver.queue)
        is_committed = not deliver.is_broadcast and not deliver.wanted and deliver.token is None
        is_committed = is_committed and deliver.access_key is None
        if is_committed and lane not in by_hand and not evidence.is_lossy(deliver.queue.group):
            delivers[lane].append(deliver)
    queries: defaultdict[_Lane, list[QueryOffset]] = defaultdict(list)
    for query in evidence.offset_queries:
        if query.outcome is Outcome.OK and not query.maybe_stale:
            queries[query.consumer_group, query.queue].append(query)
    stretches, end_us = list(calm(evidence)), end_of_work(evidence)
    for lane, mine in delivers.items():
        asked = sorted(queries[lane], key=attrgetter("asked_us", "number"))
        # Of what was deleted before it was read nothing is known, and nothing above it is judged.
        start = min(deliver.message.offset for deliver in mine)
        progress = Progress(evidence, start, mine, sent_back=evidence.sent_back(*lane))
        for query in asked:
            until_us = min(query.asked_us, end_us)
            at_us = until_us - evidence.bounds.commit_us
            if any(from_us <= at_us and until_us <= to_us for from_us, to_us in stretches):
                found.judged += 1
                _behind(found, query, progress.at(at_us))
    return found


def _behind(found: Findings, query: QueryOffset, frontier: int) -> None:
    if (query.offset or 0) < frontier:
        queue = query.queue
        found.violate(
            f"group {query.consumer_group} stood at {query.offset} in "
            f"{queue.topic}/{queue.group}/{queue.queue} long after all below {frontier} had been "
            "processed",
            query,
        )


def queues_are_started_once(evidence: Evidence) -> Findings:
    """L10: in a stretch without faults nobody is handed again what it has processed, but once by
    chance (a change of members), and once for each reset of the group that may have taken effect in
    it: asked for by its end, and answered at most `commit_us` before its beginning. Whoever starts
    a queue again and again loses nothing, and never gets on. Not for groups that commit or lock by
    themselves, or whose members have access keys and may lose their rights. O(n log n)."""
    found = Findings("L10")
    by_hand = {(one.consumer_group, one.queue) for one in evidence.commits if not one.is_reset}
    locking = {lock.consumer_group for lock in evidence.locks}
    _, resets = words_of(evidence)
    delivers: defaultdict[_Lane, list[Deliver]] = defaultdict(list)
    for deliver in evidence.delivers:
        lane = (deliver.consumer_group, deliver.queue)
        is_committed = not deliver.is_broadcast and deliver.outcome is Outcome.OK
        is_committed = is_committed and deliver.access_key is None
        if is_committed and lane not in by_hand and lane[0] not in locking:
            delivers[lane].append(deliver)
    stretches = list(calm(evidence))
    for lane, mine in delivers.items():
        if evidence.is_lossy(lane[1].group):
            continue
        for from_us, to_us in stretches:
            resets_count = sum(
                one.asked_us <= to_us and one.answered_us >= from_us - evidence.bounds.commit_us
                for one in resets.get(lane, [])
            )
            inside = [one for one in mine if from_us <= one.asked_us and one.answered_us <= to_us]
            found.judged += len(inside)
            _handed_again(found, inside, limit=2 + resets_count)
    return found


def _handed_again(found: Findings, delivers: Iterable[Deliver], *, limit: int) -> None:
    times: defaultdict[tuple[str, int], list[Deliver]] = defaultdict(list)
    for deliver in delivers:
        times[deliver.member, deliver.message.offset].append(deliver)
    for (member, offset), mine in times.items():
        if len(mine) > limit:
            queue = mine[0].queue
            found.violate(
                f"{member} of group {mine[0].consumer_group} was handed {offset} of "
                f"{queue.topic}/{queue.group}/{queue.queue} {len(mine)} times, though processed",
                *mine[: limit + 1],
            )


def committed_offsets_never_fall(evidence: Evidence) -> Findings:
    """S22: (a) for an acknowledged commit of x < query (not `maybe_stale`) with answer y: y >= x;
    (b) for queries p < q: answer(q) >= answer(p); unless a reset may have taken effect in between:
    it was asked before q was answered, and was not answered before the commit (or p) was asked.
    (c) what a reset has moved back is processed again (`resets_hold`).
    What an acting master took is no promise before the next one has it (R36), and left out.
    "Never committed" is -1. O(n log n) without resets, O(n * resets) with."""
    found = Findings("S22")
    lanes: defaultdict[_Lane, list[Commit | QueryOffset]] = defaultdict(list)
    resets: defaultdict[_Lane, list[Commit]] = defaultdict(list)
    for commit in evidence.commits:
        lane = (commit.consumer_group, commit.queue)
        if commit.is_reset and commit.outcome is not Outcome.FAIL:
            resets[lane].append(commit)
        elif commit.outcome is Outcome.OK and commit.is_provisional:
            found.counters["provisional_commits"] += 1
        elif commit.outcome is Outcome.OK:
            lanes[lane].append(commit)
    for query in evidence.offset_queries:
        if query.outcome is Outcome.OK and not query.maybe_stale:
            lanes[query.consumer_group, query.queue].append(query)
    for lane, operations in lanes.items():
        if not evidence.is_lossy(lane[1].group):
            _never_fall(found, operations, resets.get(lane, []))
    resets_hold(evidence, found, resets)
    return found


def _never_fall(
    found: Findings, operations: list[Commit | QueryOffset], resets: list[Commit]
) -> None:
    answered = sorted(operations, key=attrgetter("answered_us"))
    queries = [one for one in operations if isinstance(one, QueryOffset)]
    highest: Commit | QueryOffset | None = None
    earlier: list[Commit | QueryOffset] = []
    done = 0
    for query in sorted(queries, key=attrgetter("asked_us")):
        while answered[done].answered_us < query.asked_us:
            if resets:
                earlier.append(answered[done])
            if highest is None or _offset(answered[done]) >= _offset(highest):
                highest = answered[done]
            done += 1
        if highest is None:
            continue
        found.judged += 1
        if _offset(query) >= _offset(highest):
            continue
        binding = [one for one in earlier if _is_binding(one, query, resets)]
        witness = max(binding, key=_offset, default=None) if resets else highest
        if witness is not None and _offset(query) < _offset(witness):
            found.violate(
                f"group {query.consumer_group} stood at {_offset(witness)} in "
                f"{query.queue.topic}/{query.queue.group}/{query.queue.queue}, and then at "
                f"{query.offset}",
                witness,
                query,
            )


def _is_binding(before: Commit | QueryOffset, query: QueryOffset, resets: Iterable[Commit]) -> bool:
    return not any(
        reset.asked_us <= query.answered_us
        and (reset.outcome is Outcome.UNKNOWN or reset.answered_us >= before.asked_us)
        for reset in resets
    )


def _offset(operation: Commit | QueryOffset) -> int:
    return -1 if operation.offset is None else operation.offset


def ordered_consumption_keeps_order(evidence: Evidence) -> Findings:
    """S27: deliveries of one (group, queue) under one fencing token: the next begins after the one
    before it has ended, and is of the next offset that is not deleted, or of the same or an earlier
    one again (after a failure, or from the committed offset). Under all tokens together no offset
    is begun before the one below it was handed out, from the first one on. O(n log n)."""
    found = Findings("S27")
    lanes: defaultdict[_Lane, list[Deliver]] = defaultdict(list)
    for deliver in evidence.delivers:
        if deliver.token is not None:
            lanes[deliver.consumer_group, deliver.queue].append(deliver)
    for lane, delivers in lanes.items():
        if evidence.is_lossy(lane[1].group):
            continue
        delivers.sort(key=attrgetter("asked_us", "number"))
        reached = evidence.start_of(lane[1])
        if evidence.world.get("consume_from", "first") != "first":
            reached = max(reached, delivers[0].message.offset)
        start = evidence.start_of(lane[1])
        last: dict[int, Deliver] = {}
        for deliver in delivers:
            assert deliver.token is not None
            found.judged += 1
            _follows(found, last.get(deliver.token), deliver, start)
            last[deliver.token] = deliver
            if deliver.message.offset > reached:
                found.violate(
                    f"{deliver.member} began {_what(deliver.message)} before {reached} was handed "
                    f"out to anybody",
                    deliver,
                )
            reached = max(reached, deliver.message.offset + 1)
    return found


def broadcasting_skips_nothing(evidence: Evidence) -> Findings:
    """S35: deliveries to one (group, member, queue) of a broadcasting group, over all lives of the
    member: in order of asked, the first is of the queue's start, and none is more than one beyond
    the highest before it, but where what lies between was deleted. O(n log n)."""
    found = Findings("S35")
    lanes: defaultdict[tuple[str, str, Queue], list[Deliver]] = defaultdict(list)
    for deliver in evidence.delivers:
        if deliver.is_broadcast:
            lanes[deliver.consumer_group, deliver.member, deliver.queue].append(deliver)
    for (_, member, queue), delivers in lanes.items():
        if evidence.is_lossy(queue.group):
            continue
        reached = start = evidence.start_of(queue)
        if evidence.world.get("consume_from", "first") != "first":
            reached = max(start, min(deliver.message.offset for deliver in delivers))
        before: Deliver | None = None
        for deliver in sorted(delivers, key=attrgetter("asked_us", "number")):
            found.judged += 1
            if deliver.message.offset > reached:
                found.violate(
                    f"{member} was given {_what(deliver.message)} and never {reached}",
                    *([] if before is None else [before]),
                    deliver,
                )
            if deliver.message.offset >= reached:
                reached, before = deliver.message.offset + 1, deliver
    return found


def _follows(found: Findings, before: Deliver | None, deliver: Deliver, start: int) -> None:
    if before is None:
        return
    if deliver.asked_us < before.answered_us:
        found.violate(
            f"{deliver.member} began {_what(deliver.message)} before {_what(before.message)} had "
            f"ended, under one lock",
            before,
            deliver,
        )
    elif deliver.message.offset > max(start, before.message.offset + 1):
        found.violate(
            f"{deliver.member} went from {_what(before.message)} to {_what(deliver.message)} "
            f"under one lock",
            before,
            deliver,
        )


def _what(message: Seen) -> str:
    return f"{message.value} (offset {message.offset})"
