"""Pure: the order of messages: S7 to S9.

x precedes y (x < y) iff x was answered before y was asked. Operations of unknown outcome precede
nothing and are not judged.
"""

from collections import defaultdict
from itertools import chain
from operator import attrgetter

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.model import Outcome, Pull, Queue, Send


def acknowledged_in_real_time_order(evidence: Evidence) -> Findings:
    """S7: for all acknowledged a < b of one queue: o(a) < o(b); where the acknowledgement names no
    queue, it is the place in H. A sweep by time of asking with the highest offset acknowledged
    before it: O(n log n)."""
    found = Findings("S7")
    queues = defaultdict(list, {queue: [*acks] for queue, acks in evidence.acks_by_queue.items()})
    for send in evidence.located_acks:
        assert send.queue is not None
        queues[send.queue].append(send)
    for queue, answered in queues.items():
        if evidence.is_lossy(queue.group):
            continue
        answered.sort(key=attrgetter("answered_us"))
        highest: Send | None = None
        done = 0
        for send in sorted(answered, key=attrgetter("asked_us")):
            while answered[done].answered_us < send.asked_us:
                if highest is None or _offset(answered[done]) > _offset(highest):
                    highest = answered[done]
                done += 1
            if highest is None:
                continue
            found.judged += 1
            if _offset(highest) >= _offset(send):
                found.violate(
                    f"{send.value} was sent after {highest.value} had been acknowledged at "
                    f"{highest.offset}, and got offset {send.offset}",
                    highest,
                    send,
                )
    return found


def sessions_keep_order(evidence: Evidence) -> Findings:
    """S8: one producer session, one key, one queue, both acknowledged, a asked before b:
    o(a) < o(b). Sends that overlap are ordered by their calls; keyless ones promise nothing. Where
    the acknowledgement names no queue the key is a message group, and has one queue as long as no
    topic changes. O(n log n)."""
    found = Findings("S8")
    _groups_have_one_queue(evidence, found)
    lanes: defaultdict[tuple[str, str, Queue], list[Send]] = defaultdict(list)
    for send in chain(evidence.acks, evidence.located_acks):
        if send.key is not None and send.session and send.queue is not None:
            if evidence.is_lossy(send.queue.group):
                continue
            lanes[send.session, send.key, send.queue].append(send)
    for lane in lanes.values():
        lane.sort(key=attrgetter("asked_us"))
        for before, send in zip(lane, lane[1:], strict=False):
            if before.asked_us == send.asked_us:
                continue  # called in one moment: nobody knows in which order
            found.judged += 1
            if _offset(before) >= _offset(send):
                found.violate(
                    f"{before.value} was sent before {send.value} with key {send.key}, and their "
                    f"offsets are {before.offset} and {send.offset}",
                    before,
                    send,
                )
    return found


def _groups_have_one_queue(evidence: Evidence, found: Findings) -> None:
    if evidence.alters:
        return
    homes: dict[tuple[str, str], Send] = {}
    for send in evidence.located_acks:
        if send.key is None:
            continue
        found.judged += 1
        home = homes.setdefault((send.topic, send.key), send)
        if home.queue != send.queue:
            found.violate(
                f"{home.value} and {send.value} are of message group {send.key}, and in the queues"
                f" {home.queue} and {send.queue}",
                home,
                send,
            )


def readers_skip_nothing(evidence: Evidence) -> Findings:
    """S9: the messages of one pull have consecutive offsets, from the one asked for on; and within
    an assignment each pull asks for what follows the last message. Only offsets that have been
    deleted may be passed over: a step up to at most the start of H(q). O(n log n)."""
    found = Findings("S9")
    lanes: defaultdict[tuple[str, Queue, str], list[Pull]] = defaultdict(list)
    for pull in evidence.pulls:
        if pull.outcome is not Outcome.OK:
            continue
        _pull_is_gapless(evidence, found, pull)
        if pull.assignment:
            lanes[pull.client, pull.queue, pull.assignment].append(pull)
    for (_, queue, _), pulls in lanes.items():
        pulls.sort(key=attrgetter("asked_us", "number"))
        start = evidence.start_of(queue)
        for before, pull in zip(pulls, pulls[1:], strict=False):
            expected = before.messages[-1].offset + 1 if before.messages else before.offset
            found.judged += 1
            if pull.offset < expected:
                found.violate(
                    f"{pull.client} went back from {expected} to {pull.offset}", before, pull
                )
            elif pull.offset > max(expected, start):
                found.violate(
                    f"{pull.client} was to go on at {expected} and asked for {pull.offset}",
                    before,
                    pull,
                )
    return found


def _pull_is_gapless(evidence: Evidence, found: Findings, pull: Pull) -> None:
    expected = pull.offset
    for message in pull.messages:
        if message.offset != expected:
            is_deleted = expected < message.offset <= evidence.start_of(pull.queue)
            if not is_deleted:
                found.violate(
                    f"a pull from {pull.offset} on gave {message.offset} instead of {expected}",
                    pull,
                )
                return
            expected = message.offset
        expected += 1
    found.judged += 1


def _offset(send: Send) -> int:
    assert send.offset is not None
    return send.offset
