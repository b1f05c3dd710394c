"""Pure: topics that lose queues while they are used: S36."""

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.model import Outcome


def nothing_is_stored_where_nobody_reads(evidence: Evidence) -> Findings:
    """S36: for each acknowledged change that leaves n queues of a group to readers, until the next
    change of that topic is asked for: no send that was asked for after the answer is acknowledged
    in a queue from n on. The answer says that the group's master had stopped to take messages
    there, and every later master has a newer view. O(changes * acknowledgements)."""
    found = Findings("S36")
    changes = sorted(evidence.alters, key=lambda change: change.asked_us)
    for number, change in enumerate(changes):
        following = changes[number + 1 : number + 2]
        end_us = following[0].asked_us if following else None
        if change.outcome is not Outcome.OK or change.read_queues is None:
            continue
        for group, count in change.read_queues.items():
            found.judged += 1
            for send in evidence.acks:
                queue = send.queue
                assert queue is not None
                is_beyond = queue.topic == change.topic and queue.group == group
                is_within = send.asked_us > change.answered_us and (
                    end_us is None or send.answered_us < end_us
                )
                if is_beyond and queue.queue >= count and is_within:
                    found.violate(
                        f"{send.value} was acknowledged in queue {queue.queue} of {group}, of"
                        f" which readers see {count}",
                        change,
                        send,
                    )
    return found
