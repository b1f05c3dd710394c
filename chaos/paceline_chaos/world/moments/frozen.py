"""Members of ordered consumption: one stands still past its lease, and goes on; careless ones use
tokens that are not theirs any more (R33, INV-11)."""

from paceline.errors import LockFencedError
from paceline_chaos.history.model import Commit, Deliver, Unlock
from paceline_chaos.world.all_ack.questions import fell_silent
from paceline_chaos.world.jobs.inorder import GROUP
from paceline_chaos.world.run import Result
from paceline_chaos.world.script import Director, Steps

FROZEN = "client-2"
CONTENDED_MS = 4_500
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


def contended(d: Director) -> Steps:
    """Careless members want the locks of few queues, also over a failover."""
    yield d.is_whole
    yield d.pass_ms(CONTENDED_MS)
    yield from d.fail_over(for_ms=500)
    d.mark("after")
    yield d.pass_ms(CONTENDED_MS)


def tokens_were_refused(result: Result) -> list[str]:
    """Commits and unlocks under former tokens; that others had locks meanwhile is for S26."""
    entries = result.history.entries
    refused = {
        type(entry).__name__
        for entry in entries
        if isinstance(entry, Commit | Unlock) and entry.error == LockFencedError.code
    }
    return [
        *([] if {"Commit", "Unlock"} <= refused else [f"only {sorted(refused)} were refused"]),
        *fell_silent(result, since="after"),
    ]


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
