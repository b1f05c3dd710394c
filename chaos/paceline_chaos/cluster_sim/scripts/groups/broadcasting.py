"""Clients of a group that broadcasts receive everything, whichever master they are at (R28, R29).

Where each of them stands is in the log, so the next master goes on there; their receipts are judged
as those of groups of their own (S23).
"""

from collections import defaultdict

from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.jobs.popping import BROADCASTING_GROUP, BroadcastPopper
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.history.model import Outcome, Pop, Queue

_DONE = 20
"""Messages that a client is done with, for it to be at work."""


def broadcasting(d: Director) -> Steps:
    """Wait until two clients are at work, kill the master, wait until both go on at the next."""
    yield d.is_whole
    d.stage.begin_tool(lambda around: BroadcastPopper(around).run())
    yield lambda: len(_done(d)) == 2 and min(_done(d).values()) >= _DONE
    old, done = d.master, _done(d)
    d.kill(old, for_ms=1_000)
    yield lambda: d.is_open() and d.master is not old
    yield lambda: all(_done(d).get(client, 0) >= done[client] + _DONE for client in done)
    d.saw("goes on")
    yield d.is_whole
    d.mark("after")


def _done(d: Director) -> dict[str, int]:
    """By cursor, how far the master knows its client to have come."""
    if not d.is_open():
        return {}
    offsets = d.projections(d.master).offsets
    return {
        name: sum(committed.offset for committed in offsets.of_group(name).values())
        for name in offsets.groups()
        if name.startswith(f"{BROADCASTING_GROUP}@")
    }


def all_received_all(result: Result) -> list[str]:
    return [
        *unseen(result, goes_on=1),
        *_left_out(result),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]


def _left_out(result: Result) -> list[str]:
    """Messages between the first and the last of a queue that a client was not given."""
    pops = (entry for entry in result.history.entries if isinstance(entry, Pop))
    given: defaultdict[tuple[str, Queue], set[int]] = defaultdict(set)
    for pop in pops:
        is_theirs = pop.consumer_group.startswith(f"{BROADCASTING_GROUP}@")
        if is_theirs and pop.outcome is Outcome.OK:
            given[pop.consumer_group, pop.queue].add(pop.message.offset)
    clients = {client for client, _ in given}
    complaints = [] if len(clients) == 2 else [f"{len(clients)} clients received, not 2"]
    for (client, queue), offsets in given.items():
        missing = set(range(min(offsets), max(offsets))) - offsets
        if missing:
            complaints.append(f"{client} was not given {sorted(missing)[:5]} of {queue}")
    return complaints
