"""Pure: static topics: logical queues that move from broker group to broker group: S37.

The place of a message in its logical queue is (number of the segment, offset in its queue).
"""

from collections import defaultdict
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.model import Deliver, LogicalQueueDump, Outcome, Queue, Send

_Place: TypeAlias = tuple[int, int]


class _Placed(NamedTuple):
    place: _Place
    send: Send


def logical_queues_are_one_queue(evidence: Evidence) -> Findings:
    """S37: for each logical queue, with segments s(0) .. s(n) as the controllers have them in the
    end: s(i+1) begins where s(i) ends; H(s(i)) ends where it was sealed, nothing is behind it; for
    acknowledged sends a, b: a before b, or a asked before b in one session with one key, means
    place(a) < place(b); a key never changes its logical queue; and in ordered consumption nothing
    of s(i+1) is begun before each message of s(i) that is not deleted was processed. Not judged
    where an operator has ordered an election that loses records. O(n log n)."""
    found = Findings("S37")
    numbers: dict[Queue, tuple[LogicalQueueDump, int]] = {}
    for dump in evidence.logical_queues:
        if not any(evidence.is_lossy(queue.group) for queue in dump.queues):
            _segments_fit(evidence, found, dump)
            numbers.update({queue: (dump, number) for number, queue in enumerate(dump.queues)})
    _sends_keep_order(evidence, found, numbers)
    _segments_are_consumed_in_order(evidence, found, numbers)
    return found


def _segments_fit(evidence: Evidence, found: Findings, dump: LogicalQueueDump) -> None:
    for number, end in enumerate(dump.ends):
        queue, log = dump.queues[number], evidence.logs.get(dump.queues[number])
        found.judged += 1
        if dump.starts[number + 1] != dump.starts[number] + end:
            found.violate(
                f"segment {number} of logical queue {dump.logical_queue} ends at"
                f" {dump.starts[number] + end}, the next begins at {dump.starts[number + 1]}",
                dump,
            )
        if log is not None and log.end != end:
            found.violate(
                f"{queue.group}/{queue.queue} was sealed at {end} and ends at {log.end}", dump
            )


def _sends_keep_order(
    evidence: Evidence,
    found: Findings,
    numbers: dict[Queue, tuple[LogicalQueueDump, int]],
) -> None:
    lanes: defaultdict[int, list[_Placed]] = defaultdict(list)
    sessions: defaultdict[tuple[str, str], list[_Placed]] = defaultdict(list)
    homes: dict[str, tuple[Send, int]] = {}
    for send in evidence.acks:
        if send.queue not in numbers or send.offset is None or send.offset < 0:
            continue
        dump, number = numbers[send.queue]
        placed = _Placed((number, send.offset), send)
        lanes[dump.number].append(placed)
        if send.key is None:
            continue
        sessions[send.session, send.key].append(placed)
        first, home = homes.setdefault(send.key, (send, dump.number))
        found.judged += 1
        if home != dump.number:
            found.violate(f"key {send.key} is in two logical queues", first, send)
    for lane in lanes.values():
        _real_time_order(found, lane)
    for lane in sessions.values():
        lane.sort(key=lambda placed: placed.send.asked_us)
        for before, after in zip(lane, lane[1:], strict=False):
            if before.send.asked_us != after.send.asked_us:
                found.judged += 1
                _in_order(found, before, after)


def _real_time_order(found: Findings, lane: list[_Placed]) -> None:
    answered = sorted(lane, key=lambda placed: placed.send.answered_us)
    highest: _Placed | None = None
    done = 0
    for placed in sorted(lane, key=lambda placed: placed.send.asked_us):
        while answered[done].send.answered_us < placed.send.asked_us:
            if highest is None or answered[done].place > highest.place:
                highest = answered[done]
            done += 1
        if highest is not None:
            found.judged += 1
            _in_order(found, highest, placed)


def _in_order(found: Findings, before: _Placed, after: _Placed) -> None:
    if before.place >= after.place:
        found.violate(
            f"{before.send.value} came before {after.send.value}, and their places in the logical"
            f" queue are {before.place} and {after.place}",
            before.send,
            after.send,
        )


def _segments_are_consumed_in_order(
    evidence: Evidence,
    found: Findings,
    numbers: dict[Queue, tuple[LogicalQueueDump, int]],
) -> None:
    begun: dict[tuple[str, Queue], Deliver] = {}
    done: dict[tuple[str, Queue, int], int] = {}
    for deliver in sorted(evidence.delivers, key=attrgetter("asked_us")):
        if deliver.queue not in numbers or deliver.token is None:
            continue
        lane = (deliver.consumer_group, deliver.queue)
        begun.setdefault(lane, deliver)
        if deliver.outcome is Outcome.OK:
            at = (*lane, deliver.message.offset)
            done[at] = min(done.get(at, deliver.answered_us), deliver.answered_us)
    for (group, queue), first in begun.items():
        dump, number = numbers[queue]
        for before, end in zip(dump.queues[:number], dump.ends, strict=False):
            found.judged += 1
            for offset in range(evidence.start_of(before), end):
                at_us = done.get((group, before, offset))
                if at_us is None or at_us > first.asked_us:
                    found.violate(
                        f"{group} began with {queue.group}/{queue.queue} before message {offset} of"
                        f" {before.group}/{before.queue}, the segment before, was processed",
                        first,
                        dump,
                    )
                    break
