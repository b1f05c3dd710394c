"""Pure: what an acting master took, once there is a master again: S34."""

from typing import TypeAlias

from paceline_chaos.checkers.evidence.allowances import REPLACED
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.evidence.recorded import RETIRED
from paceline_chaos.history.model import Commit, Outcome, QueryOffset, Queue

_Lane: TypeAlias = tuple[str, Queue]


def provisional_offsets_are_handed_over(evidence: Evidence) -> Findings:
    """S34 (R36): for each acknowledged commit of x that an acting master took: every query of that
    group and queue that is asked after the drain began, and is not `maybe_stale`, answers at least
    x. Left out: queues on which the group was reset, as an acting master may not know of a reset,
    and what it takes is of the generation before then; lossy groups; commits of which the
    controllers' rulings do not say who took them, and those of nodes that stay broken or got
    another disk since. (That no query goes back behind what a master has shown is S22's.)
    O(commits + queries + rulings)."""
    found = Findings("S34")
    drain = evidence.phase("drain")
    if drain is None:
        return found
    highest: dict[_Lane, Commit] = {}
    for commit in evidence.commits:
        lane = (commit.consumer_group, commit.queue)
        if commit.is_provisional and commit.outcome is Outcome.OK and _is_kept(evidence, commit):
            known = highest.get(lane)
            if known is None or commit.offset > known.offset:
                highest[lane] = commit
    reset: set[_Lane] = {
        (commit.consumer_group, commit.queue)
        for commit in evidence.commits
        if commit.is_reset and commit.outcome is not Outcome.FAIL
    }
    for query in evidence.offset_queries:
        taken = highest.get((query.consumer_group, query.queue))
        if taken is None or query.asked_us < drain.at_us or not _is_answer(query):
            continue
        if (query.consumer_group, query.queue) in reset:
            continue
        if evidence.is_lossy(query.queue.group):
            continue
        found.judged += 1
        if (query.offset or 0) < taken.offset:
            found.violate(
                f"group {query.consumer_group} had committed {taken.offset} in "
                f"{query.queue.topic}/{query.queue.group}/{query.queue.queue} at an acting master, "
                f"and stands at {query.offset} with a master",
                taken,
                query,
            )
    return found


def _is_answer(query: QueryOffset) -> bool:
    return query.outcome is Outcome.OK and not query.maybe_stale


def _is_kept(evidence: Evidence, commit: Commit) -> bool:
    """Whether the one that took it is known, and has its disk still."""
    node = _taker(evidence, commit)
    return (
        node is not None
        and node not in evidence.broken
        and not any(
            fault.kind in REPLACED | {RETIRED}
            and node in fault.target.split(",")
            and fault.at_us >= commit.asked_us
            for fault in evidence.faults
        )
    )


def _taker(evidence: Evidence, commit: Commit) -> str | None:
    """Who acted as master then: who was appointed before the answer. None if those were two."""
    group = commit.queue.group
    names = {
        evidence.replica_nodes.get((group, ruling.members["acting"]))
        for ruling in evidence.rulings_of(group, "acting_master_appointed")
        if ruling.at_us <= commit.answered_us
    }
    # Who was appointed before may go on until it has heard of its successor.
    return names.pop() if len(names) == 1 else None
