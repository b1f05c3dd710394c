"""Clients of a group that broadcasts receive everything, whichever master they are at (R28, R29).

Where each of them stands is in the log, so the next master goes on there; their receipts are judged
as those of groups of their own (S23). A second group does so in order.
"""

from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.jobs.popping import (
    BROADCASTING_GROUP,
    ORDERED_BROADCASTING_GROUP,
    BroadcastPopper,
)
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.history.model import Ack, Outcome, Pop, Queue, Send

_DONE = {BROADCASTING_GROUP: 20, ORDERED_BROADCASTING_GROUP: 3}
"""Messages that a client of the group is done with, for it to be at work."""
_CLIENTS = 4


def broadcasting(d: Director) -> Steps:
    """Wait until two clients of each group are at work, kill the master, wait until all go on at
    the next."""
    yield d.is_whole
    d.stage.begin_tool(lambda around: BroadcastPopper(around, is_ordered=False).run())
    d.stage.begin_tool(lambda around: BroadcastPopper(around, is_ordered=True).run())
    yield lambda: len(_done(d)) == _CLIENTS and _have_done_more(d, {})
    old, done = d.master, _done(d)
    d.kill(old, for_ms=1_000)
    yield lambda: d.is_open() and d.master is not old
    yield lambda: _have_done_more(d, done)
    d.saw("goes on")
    yield d.is_whole
    d.mark("after")


def _have_done_more(d: Director, than: dict[str, int]) -> bool:
    now = _done(d)
    return all(
        now.get(client, 0) >= than.get(client, 0) + _DONE[client.partition("@")[0]]
        for client in than or now
    )


def _done(d: Director) -> dict[str, int]:
    """By cursor, how far the master knows its client to have come."""
    if not d.is_open():
        return {}
    offsets = d.projections(d.master).offsets
    return {
        name: sum(committed.offset for committed in offsets.of_group(name).values())
        for name in offsets.groups()
        if "@" in name
    }


def all_received_all(result: Result) -> list[str]:
    clients = _clients(result)
    is_each = [] if len(clients) == _CLIENTS else [f"{len(clients)} clients received"]
    return [
        *unseen(result, goes_on=1),
        *is_each,
        *(complaint for client in clients for complaint in _left_out(result, client)),
        *(complaint for client in clients for complaint in _out_of_order(result, client)),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]


class _Client(NamedTuple):
    """What one client received, in the order of asking, by queue."""

    cursor: str
    received: dict[Queue, list[Pop]]


def _clients(result: Result) -> list[_Client]:
    found: defaultdict[str, defaultdict[Queue, list[Pop]]] = defaultdict(lambda: defaultdict(list))
    pops = (entry for entry in result.history.entries if isinstance(entry, Pop))
    for pop in sorted(pops, key=attrgetter("asked_us")):
        if "@" in pop.consumer_group and pop.outcome is Outcome.OK:
            found[pop.consumer_group][pop.queue].append(pop)
    return [_Client(cursor, dict(received)) for cursor, received in sorted(found.items())]


def _left_out(result: Result, client: _Client) -> Iterator[str]:
    """Messages below its last one of a queue that it was not given: above its first one, or sent
    after it had received anything from that broker group. It may be behind, as what it forgets
    comes late, so the end of a queue says nothing."""
    received = client.received
    first_us: dict[str, int] = {}
    for queue, pops in received.items():
        answered_us = pops[0].answered_us
        first_us[queue.group] = min(first_us.get(queue.group, answered_us), answered_us)
    for queue, pops in received.items():
        given = {pop.message.offset for pop in pops}
        begin = min(given)
        sends = (entry for entry in result.history.entries if isinstance(entry, Send))
        for send in sends:
            is_later = send.queue == queue and send.asked_us > first_us[queue.group]
            if is_later and send.offset is not None and send.offset >= 0:
                begin = min(begin, send.offset)
        missing = sorted(set(range(begin, max(given))) - given)
        if missing:
            yield f"{client.cursor} was not given {missing[:5]} of {queue}"


def _out_of_order(result: Result, client: _Client) -> Iterator[str]:
    """Messages of an ordered group that came before it was asked to end those below them."""
    if not client.cursor.startswith(f"{ORDERED_BROADCASTING_GROUP}@"):
        return
    ended_us: dict[tuple[Queue, int], int] = {}
    for ack in (entry for entry in result.history.entries if isinstance(entry, Ack)):
        if ack.consumer_group == client.cursor and not ack.is_back:
            at = (ack.queue, ack.offset)
            ended_us[at] = min(ended_us.get(at, ack.asked_us), ack.asked_us)
    for queue, pops in client.received.items():
        together = {(pop.asked_us, pop.message.offset) for pop in pops}
        offsets = sorted({pop.message.offset for pop in pops})
        for pop in pops:
            for below in offsets[: offsets.index(pop.message.offset)]:
                is_ended = ended_us.get((queue, below), pop.answered_us) < pop.answered_us
                if not is_ended and (pop.asked_us, below) not in together:
                    offset = pop.message.offset
                    yield f"{client.cursor} was given {offset} of {queue} before {below} was done"
