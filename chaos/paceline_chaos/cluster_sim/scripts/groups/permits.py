"""Permissions go and come back, and senders choose queues, while a master dies (R32, S1, S4)."""

from paceline_chaos.cluster_sim.all_ack.questions import acknowledged, unseen
from paceline_chaos.cluster_sim.jobs.permitting import PERMIT_TOPIC
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.history.model import Outcome, Send

_ROUNDS = 2
_BETWEEN_MS = 2_000


def permits(d: Director) -> Steps:
    """The master of one group dies, twice."""
    yield d.is_whole
    for _ in range(_ROUNDS):
        yield d.pass_ms(_BETWEEN_MS)
        yield from d.fail_over(for_ms=800)
        d.saw("failovers")
    d.mark("after")
    yield d.pass_ms(_BETWEEN_MS)


def went_on(result: Result) -> list[str]:
    """Sends were refused for want of a permission, and go on in every group and in the topic."""
    after = acknowledged(result, since="after")
    groups = {send.queue.group for send in after if send.queue is not None}
    refused = [
        entry
        for entry in result.history.entries
        if isinstance(entry, Send) and entry.topic == PERMIT_TOPIC and entry.outcome is Outcome.FAIL
    ]
    chosen = [
        entry
        for entry in result.history.entries
        if isinstance(entry, Send) and entry.wanted is not None
    ]
    return [
        *unseen(result, failovers=_ROUNDS),
        *([] if refused else ["no send was refused"]),
        *([] if chosen else ["nobody chose a queue"]),
        *[f"nothing goes on in {group}" for group in set(result.topology.groups) - groups],
        *([] if any(send.topic == PERMIT_TOPIC for send in after) else ["the topic stands still"]),
    ]
