"""A member of ordered consumption stands still past its lease, and goes on (R33, INV-11)."""

from paceline_chaos.history.model import Deliver
from paceline_chaos.world.jobs.inorder import GROUP
from paceline_chaos.world.run import Result
from paceline_chaos.world.script import Director, Steps

FROZEN = "client-2"
FROZEN_MS = 13_000
"""A silent member is dropped after 10 s; then others get its queues once its leases are over."""


def frozen(d: Director) -> Steps:
    """Its connections stay open, and what is sent to it waits in its sockets."""
    yield d.is_whole
    yield d.pass_ms(2_500)
    d.mark("frozen")
    d.begin("pause", FROZEN, for_ms=FROZEN_MS)
    yield d.pass_ms(FROZEN_MS)
    d.mark("back")
    yield d.pass_ms(2_500)


def was_fenced(result: Result) -> list[str]:
    """That nothing was begun under an old token is S26."""
    assert result.notes is not None
    marks = result.notes.marks
    of_group = [
        entry
        for entry in result.history.entries
        if isinstance(entry, Deliver) and entry.consumer_group == GROUP
    ]
    before = {
        entry.queue
        for entry in of_group
        if entry.client == FROZEN and entry.asked_us < marks["frozen"]
    }
    since_us = marks["frozen"] + 1_000_000
    taken = {
        entry.queue
        for entry in of_group
        if entry.client != FROZEN and since_us < entry.asked_us < marks["back"]
    }
    again = [
        entry for entry in of_group if entry.client == FROZEN and entry.asked_us > marks["back"]
    ]
    return [
        *([] if before else ["the member held no queue before it was frozen"]),
        *([] if before <= taken else ["nobody took over what it had held"]),
        *([] if again else ["it got no queue again"]),
    ]
