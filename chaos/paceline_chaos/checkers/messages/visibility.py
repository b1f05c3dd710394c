"""Pure: what readers were shown, and when: S10, S19, S20 and INV-8.

Message reads may come from any replica and may be old; they are held to H(q) only. Ends are
promises (R3, R4) where the answer does not say `maybe_stale`; the end that a pull states besides
its messages is only the word of the node that answered.
"""

from collections import defaultdict
from operator import attrgetter

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.model import Deliver, Outcome, Pull, QueryRange, Queue, Seen, Send


def what_was_read_stays(evidence: Evidence) -> Findings:
    """S10: for all reads (q, o, m) by anybody: H(q)(o) = m, unless o was deleted since. So no read
    goes beyond confirm, and confirm covers nothing that can be lost. O(n)."""
    found = Findings("S10")
    for pull in evidence.pulls:
        _stays(evidence, found, pull, pull.messages)
    for deliver in evidence.delivers:
        _stays(evidence, found, deliver, (deliver.message,))
    return found


def _stays(
    evidence: Evidence, found: Findings, entry: Pull | Deliver, messages: tuple[Seen, ...]
) -> None:
    queue = entry.queue
    if not messages or not evidence.has_truth(queue) or evidence.is_lossy(queue.group):
        return
    log = evidence.logs.get(queue)
    found.judged += len(messages)
    for message in messages:
        stored = None if log is None else log.value_at(message.offset)
        if stored != message.value and message.offset >= evidence.start_of(queue):
            instead = "nothing is there" if stored is None else f"{stored} is there"
            found.violate(
                f"{message.value} was read in {queue.topic}/{queue.group}/{queue.queue} at "
                f"{message.offset}; in the end {instead}",
                entry,
                evidence.truth[queue.group],
            )


def ends_know_what_was_acknowledged(evidence: Evidence) -> Findings:
    """S19: for each range query with end e that is not `maybe_stale`, and each acknowledged a < it:
    e > o(a). With S2, S6 and S7 this is the linearizability of an append-only list whose appends
    return their places. O(n log n)."""
    found = Findings("S19")
    queries: defaultdict[Queue, list[QueryRange]] = defaultdict(list)
    for query in evidence.range_queries:
        found.counters["stale_ends"] += query.outcome is Outcome.OK and query.maybe_stale
        if query.outcome is Outcome.OK and query.end is not None and not query.maybe_stale:
            queries[query.queue].append(query)
    for queue, asked in queries.items():
        if evidence.is_lossy(queue.group):
            continue
        answered = evidence.acks_by_queue.get(queue, [])
        highest: Send | None = None
        done = 0
        for query in sorted(asked, key=attrgetter("asked_us")):
            while done < len(answered) and answered[done].answered_us < query.asked_us:
                highest = _higher(highest, answered[done])
                done += 1
            found.judged += 1
            assert query.end is not None
            if highest is not None and query.end <= (highest.offset or 0):
                found.violate(
                    f"{highest.value} was acknowledged at {highest.offset} before the end was "
                    f"asked for, and the end was {query.end}",
                    highest,
                    query,
                )
    return found


def master_shows_its_own_acknowledgements(evidence: Evidence) -> Findings:
    """S20: a in A was acknowledged by the master (n, i) of its epoch, a < p, p a pull answered by n
    in the same incarnation i that states an end: end(p) > o(a). That n was still i is known from
    its first probe after p. O(n log n)."""
    found = Findings("S20")
    by_queue: defaultdict[Queue, list[Pull]] = defaultdict(list)
    for pull in evidence.pulls:
        if pull.outcome is Outcome.OK and pull.node is not None and pull.end is not None:
            by_queue[pull.queue].append(pull)
    for queue, pulls in by_queue.items():
        if evidence.is_lossy(queue.group):
            continue
        highest: dict[tuple[str, int], Send] = {}
        answered = evidence.acks_by_queue.get(queue, [])
        done = 0
        for pull in sorted(pulls, key=attrgetter("asked_us")):
            while done < len(answered) and answered[done].answered_us < pull.asked_us:
                send = answered[done]
                done += 1
                claim = evidence.master_of(queue.group, send.epoch)
                if claim is not None and not send.is_duplicate:
                    key = claim[:2]
                    highest[key] = _higher(highest.get(key), send)
            _shows(evidence, found, pull, highest)
    return found


def _shows(
    evidence: Evidence, found: Findings, pull: Pull, highest: dict[tuple[str, int], Send]
) -> None:
    line = evidence.lines.get(pull.node or "")
    probe = None if line is None else line.first_after(pull.answered_us)
    if probe is None:
        return
    send = highest.get((probe.node, probe.incarnation))
    if send is None or evidence.was_replaced(probe.node, 0, probe.at_us):
        return
    found.judged += 1
    assert pull.end is not None
    if pull.end <= (send.offset or 0):
        found.violate(
            f"{pull.node} had acknowledged {send.value} at {send.offset}, and then showed "
            f"{pull.end} as the end",
            send,
            pull,
            probe,
        )


def nothing_above_confirm_is_served(evidence: Evidence) -> Findings:
    """INV-8: a pull answered by node n, whose last probe before the question and first one after
    the answer, as master or replica, are of one incarnation of one store: every message of it ends,
    in H, at or below the confirm of that later probe; for a node's confirm only rises within an
    incarnation (S11). While damage is repaired, a fenced node shows what is whole before it.
    O(n log n)."""
    found = Findings("INV-8")
    for pull in evidence.pulls:
        line = evidence.lines.get(pull.node or "")
        log = evidence.logs.get(pull.queue)
        if line is None or log is None or not pull.messages or pull.outcome is not Outcome.OK:
            continue
        before, after = line.last_until(pull.asked_us), line.first_serving_after(pull.answered_us)
        if before is None or after is None or before.incarnation != after.incarnation:
            continue
        position = log.end_at(pull.messages[-1].offset)
        if position is None or evidence.is_lossy(pull.queue.group):
            continue
        found.judged += 1
        if position > after.confirm and evidence.is_one_store(before, after):
            found.violate(
                f"{pull.node} served a message that ends at {position}, and had confirmed "
                f"{after.confirm} after that",
                pull,
                after,
            )
    return found


def _higher(before: Send | None, send: Send) -> Send:
    if before is None or (send.offset or 0) > (before.offset or 0):
        return send
    return before
