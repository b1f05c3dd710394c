"""Members of ordered consumption: one stands still past its lease, and goes on; careless ones use
tokens that are not theirs any more (R33, INV-11)."""

from paceline.errors import LockFencedError
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent
from paceline_chaos.cluster_sim.jobs.inorder import GROUP, Taker
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.history.model import Commit, Deliver, Unlock

FROZEN = "client-2"
CONTENDED_MS = 4_500
FROZEN_MS = 13_000
"""A silent member is dropped after 10 s; then others get its queues once its leases are over."""


LATE_MS = 700
"""Less than a member waits for an answer, half of its lease."""
ON_ITS_WAY_MS = 50
ALONE_MS = 4_000


def frozen(d: Director) -> Steps:
    """Its connections stay open, and what is sent to it waits in its sockets."""
    yield d.is_whole
    yield d.pass_ms(2_500)
    d.mark("frozen")
    d.begin("pause", FROZEN, for_ms=FROZEN_MS)
    yield d.pass_ms(FROZEN_MS)
    d.mark("back")
    yield d.pass_ms(2_500)


def late_answer(d: Director) -> Steps:
    """Its locks are renewed, but it hears of that late, and then nothing more; another client takes
    them once their leases are over."""
    yield d.is_whole
    yield d.pass_ms(2_500)
    before = _lease_ends(d)
    yield lambda: any(end > before.get(key, end) for key, end in _lease_ends(d).items())
    d.begin("pause", FROZEN, for_ms=LATE_MS)
    yield d.pass_ms(ON_ITS_WAY_MS)
    d.begin("isolate", FROZEN, for_ms=ALONE_MS)
    d.stage.begin_tool(lambda around: Taker(around).run())
    yield d.pass_ms(LATE_MS - ON_ITS_WAY_MS)
    d.mark("heard")
    yield d.pass_ms(ALONE_MS)
    d.mark("after")
    yield d.pass_ms(2_000)


def _lease_ends(d: Director) -> dict[int, int]:
    """Of the locks of the member that will stand still: queue key -> log time, by the master."""
    return {
        key: expires_unix_ms
        for group, key, client_id, _, expires_unix_ms, _ in d.projections(d.master).locks.to_json()
        if group == GROUP and client_id.startswith(f"{FROZEN}/")
    }


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


def relied_on_its_question(result: Result) -> list[str]:
    """That nothing was begun under an old token is S26."""
    assert result.notes is not None
    marks = result.notes.marks
    began = [
        entry for entry in _delivered(result) if marks["heard"] < entry.asked_us < marks["after"]
    ]
    late = {entry.queue for entry in began if entry.client == FROZEN}
    others = {entry.queue for entry in began if entry.client != FROZEN}
    return [
        *([] if late else ["the member began nothing after it had heard"]),
        *([] if late & others else ["nobody took over what it had held"]),
        *fell_silent(result, since="after"),
    ]


def was_fenced(result: Result) -> list[str]:
    """That nothing was begun under an old token is S26."""
    assert result.notes is not None
    marks = result.notes.marks
    of_group = _delivered(result)
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


def _delivered(result: Result) -> list[Deliver]:
    """What the group was handed, in order."""
    return [
        entry
        for entry in result.history.entries
        if isinstance(entry, Deliver) and entry.consumer_group == GROUP
    ]
