"""Pure: what deletion may do: S28."""

from collections import defaultdict
from itertools import chain
from operator import attrgetter

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.model import Outcome, Probe, Pull, QueryRange, Queue, ReplicaDump


def starts_only_rise(evidence: Evidence) -> Findings:
    """S28: for range queries a < b of one queue that are not `maybe_stale`: start(a) <= start(b)
    and start <= end; no pull holds a message below the start that it states itself. No log, in a
    probe or in the end, begins above what a confirmed retention record gives up (R26), unless a
    fault has taken its first file. That what was read is never a wrong message is S2 and S10.
    O(n log n)."""
    found = Findings("S28")
    queries: defaultdict[Queue, list[QueryRange]] = defaultdict(list)
    for query in evidence.range_queries:
        if query.outcome is Outcome.OK and query.start is not None and not query.maybe_stale:
            queries[query.queue].append(query)
    for queue, asked in queries.items():
        if not evidence.is_lossy(queue.group):
            _rise(found, asked)
    for pull in evidence.pulls:
        _is_in_range(found, pull)
    for log in chain[Probe | ReplicaDump](evidence.probes, evidence.all_dumps):
        found.judged += 1
        limit = evidence.allowances.deleted_below(log.group)
        if log.start > limit and not _is_damaged(evidence, log):
            found.violate(
                f"the log of {log.node} begins at {log.start}, and nothing from {limit} on may be "
                f"deleted",
                log,
            )
    return found


def _is_damaged(evidence: Evidence, log: Probe | ReplicaDump) -> bool:
    """Whether a fault has taken the file that it began with."""
    return isinstance(log, ReplicaDump) and evidence.allowances.explains_damage(log)


def _rise(found: Findings, queries: list[QueryRange]) -> None:
    answered = sorted(queries, key=attrgetter("answered_us"))
    highest: QueryRange | None = None
    done = 0
    for query in sorted(queries, key=attrgetter("asked_us")):
        while answered[done].answered_us < query.asked_us:
            if highest is None or _start(answered[done]) > _start(highest):
                highest = answered[done]
            done += 1
        found.judged += 1
        if query.end is not None and _start(query) > query.end:
            found.violate(f"the range [{query.start}, {query.end}) was answered", query)
        if highest is not None and _start(query) < _start(highest):
            found.violate(
                f"the start was {highest.start} and fell to {query.start}", highest, query
            )


def _is_in_range(found: Findings, pull: Pull) -> None:
    if pull.outcome is Outcome.OK and pull.start is not None and pull.messages:
        found.judged += 1
        first = min(message.offset for message in pull.messages)
        if first < pull.start:
            found.violate(f"a pull gave offset {first} and the start {pull.start}", pull)


def _start(query: QueryRange) -> int:
    assert query.start is not None
    return query.start
