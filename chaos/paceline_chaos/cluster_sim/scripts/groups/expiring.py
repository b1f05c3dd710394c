"""Receivers forget messages, and their master dies: the next one gives them anew in time (R29).

An invisible time that is over is no record: a master finds it by log time when somebody asks, also
one that has never heard of the receiver. What is not found blocks its group for ever.

Meanwhile another group commits past what its members were given: no master may give them what lies
below (S23).
"""

from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.jobs.popping import INVISIBLE_MS, POP_GROUP, CommittingPopper
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps

_SURELY_FORGOTTEN_MS = 5_000
"""Who has not acknowledged a message for that long has forgotten it."""
_FORGOTTEN = 3


def expiring(d: Director) -> Steps:
    """Wait for messages that were forgotten, kill the master, wait until they were given anew."""
    yield d.is_whole
    d.stage.begin_tool(lambda around: CommittingPopper(around).run())
    yield lambda: len(_forgotten(d)) >= _FORGOTTEN
    old, forgotten = d.master, _forgotten(d)
    d.kill(old, for_ms=1_000)
    yield lambda: d.is_open() and d.master is not old
    yield lambda: d.is_open() and not forgotten & _out(d)
    d.saw("returns")
    yield d.is_whole
    d.mark("after")


def _out(d: Director, *, until_unix_ms: int | None = None) -> set[tuple[int, int, int]]:
    """(queue, offset, record of the grant) of what the master knows to be out, if need be of that
    alone whose time is over before `until_unix_ms`."""
    queues = d.projections(d.master).receipts.of_group(POP_GROUP)
    return {
        (key, offset, grant.position)
        for key, queue in queues.items()
        for offset, grant in queue.in_flight.items()
        if until_unix_ms is None or grant.until_unix_ms < until_unix_ms
    }


def _forgotten(d: Director) -> set[tuple[int, int, int]]:
    if not d.is_open():
        return set()
    log_time_ms = d.projections(d.master).log_time_ms
    return _out(d, until_unix_ms=log_time_ms + INVISIBLE_MS - _SURELY_FORGOTTEN_MS)


def were_given_anew(result: Result) -> list[str]:
    return [
        *unseen(result, returns=1),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]
