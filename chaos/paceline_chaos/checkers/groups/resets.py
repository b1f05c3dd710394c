"""Pure: what a reset of a consumer group is worth: the third part of S22 (R33)."""

from collections import defaultdict
from operator import attrgetter
from typing import TypeAlias

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.evidence.progress import Progress
from paceline_chaos.history.model import Commit, Deliver, Outcome, QueryOffset, Queue

Lane: TypeAlias = tuple[str, Queue]
"""A consumer group on a queue."""


def resets_hold(evidence: Evidence, found: Findings, resets: dict[Lane, list[Commit]]) -> None:
    """After a reset to x was answered, and until another one is asked for, the group stands beyond
    some offset of x or above only if a delivery of it has begun since the reset was asked for, and
    ended well (or failed so often that it was given up, or was sent back). What was processed
    before does not count: a commit of that time does not undo the reset. Not where the outcome of
    a reset is unknown, or two were under way at one time. O(n * resets)."""
    delivers: defaultdict[Lane, list[Deliver]] = defaultdict(list)
    for deliver in evidence.delivers:
        lane = (deliver.consumer_group, deliver.queue)
        if lane in resets and not deliver.is_broadcast:
            delivers[lane].append(deliver)
    queries: defaultdict[Lane, list[QueryOffset]] = defaultdict(list)
    for query in evidence.offset_queries:
        if query.outcome is Outcome.OK and query.offset is not None:
            queries[query.consumer_group, query.queue].append(query)
    for lane, mine in delivers.items():
        if evidence.is_lossy(lane[1].group):
            continue
        if any(reset.outcome is not Outcome.OK for reset in resets[lane]):
            found.counters["resets_not_judged"] += len(resets[lane])
            continue
        ordered = sorted(resets[lane], key=attrgetter("asked_us"))
        for index, reset in enumerate(ordered):
            later_us = [other.asked_us for other in ordered[index + 1 :]]
            overlaps = any(other.answered_us >= reset.asked_us for other in ordered[:index])
            if overlaps or (later_us and later_us[0] <= reset.answered_us):
                continue
            asked = [
                query
                for query in queries[lane]
                if query.asked_us > reset.answered_us
                and (not later_us or query.answered_us < later_us[0])
            ]
            since = [deliver for deliver in mine if deliver.asked_us > reset.asked_us]
            start = max(reset.offset, evidence.start_of(reset.queue))
            progress = Progress(evidence, start, since, sent_back=evidence.sent_back(*lane))
            _judge_reset(found, reset, asked, progress)


def _judge_reset(
    found: Findings, reset: Commit, queries: list[QueryOffset], progress: Progress
) -> None:
    """Walk in time, with what was processed since the reset."""
    for query in sorted(queries, key=attrgetter("answered_us")):
        frontier = progress.at(query.answered_us)
        found.judged += 1
        assert query.offset is not None
        if query.offset > frontier:
            where = f"{query.queue.topic}/{query.queue.group}/{query.queue.queue}"
            found.violate(
                f"group {query.consumer_group} was reset to {reset.offset} in {where}, and stood "
                f"at {query.offset} before {frontier} was processed again",
                reset,
                query,
            )
