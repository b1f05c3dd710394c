"""Pure: groups that want only some messages of a topic: S39."""

from collections import defaultdict

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.evidence.progress import Progress
from paceline_chaos.checkers.evidence.wanting import is_wanted
from paceline_chaos.checkers.groups.groups import judge_lane, words_of
from paceline_chaos.history.model import Deliver, Queue


def filtered_groups_get_what_they_want(evidence: Evidence) -> Findings:
    """S39, for each group with a filter, as its deliveries name it:
    (a) what it is given is wanted, by tag and properties as they were sent (`wanting.is_wanted`);
    (b) whenever it stands at x in a queue, each message of H in [start, x) that is wanted was
    processed by some member before: S21, with all that is not wanted left out. Also in queues of
    which it was never given anything. Not in lossy groups, nor where no log is whole.
    That it gets on is L5, which counts what is wanted. O(n log n)."""
    found = Findings("S39")
    wants: dict[str, str] = {}
    delivers: defaultdict[tuple[str, Queue], list[Deliver]] = defaultdict(list)
    for deliver in evidence.delivers:
        if not deliver.wanted:
            continue
        wants[deliver.consumer_group] = deliver.wanted
        delivers[deliver.consumer_group, deliver.queue].append(deliver)
        found.judged += 1
        send = evidence.sent.get(deliver.message.value)  # if nobody sent it: S3
        if send is not None and not is_wanted(send, deliver.wanted):
            found.violate(
                f"{deliver.member} was given {deliver.message.value}, which its group does not "
                f"want: {deliver.wanted}",
                send,
                deliver,
            )
    words, resets = words_of(evidence) if wants else ({}, {})
    for lane, said in words.items():
        group, queue = lane
        if group not in wants or evidence.is_lossy(queue.group) or not evidence.has_truth(queue):
            continue
        unwanted = _unwanted(evidence, queue, wants[group])
        start, mine = evidence.start_of(queue), delivers.get(lane, [])
        progress = Progress(evidence, start, mine, unwanted=unwanted)
        judge_lane(found, progress, said, resets.get(lane, []))
    return found


def _unwanted(evidence: Evidence, queue: Queue, expression: str) -> set[int]:
    """Offsets of messages that a group passes over."""
    log = evidence.logs.get(queue)
    values = [] if log is None else enumerate(log.values, start=log.start)
    sends = ((offset, evidence.sent.get(value or "")) for offset, value in values)
    return {
        offset for offset, send in sends if send is not None and not is_wanted(send, expression)
    }
