"""A queue of a static topic is sealed, told of only once that is confirmed, and takes nothing more.

The master that seals reaches no replica just then: in the first move it comes back to them, in the
second one it dies with a seal that nobody else has (R28). Senders go on all the time, so some of
theirs come to the sealed queue before their view says so.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from paceline.types import GroupName, TopicName
from paceline.wire.static_topics import LogicalQueue, Segment
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.projections.seals import Seal
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unseen
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.inorder import InOrder
from paceline_chaos.cluster_sim.jobs.sending import Sender
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Director, Steps

MOVED = TopicName("moved")
OTHER = "g2"
GROUPS = {GROUP: ("b1", "b2", "b3"), OTHER: ("b4", "b5", "b6")}
READERS = "moved-readers"
THINK_MS = 10.0
ALONE_MS = 400
"""Less than `replica_lag_ms_max`: nobody leaves the set for it."""
LOOKED_MS = 200
_MESSAGES = 20


def sealed(d: Director) -> Steps:
    """There, back, and there again while the master that is to seal dies."""
    yield d.is_whole
    d.stage.begin_tool(_serve)
    yield lambda: _count(d) >= _MESSAGES
    yield from _seal_alone(d, ALONE_MS)
    yield lambda: _last(d).group == OTHER
    _check(d)
    d.saw("moves")

    d.stage.begin_tool(_to(GROUP))
    yield lambda: _last(d).group == GROUP
    yield d.is_whole
    yield lambda: _count(d) >= _MESSAGES
    yield from _seal_alone(d, 3 * ALONE_MS)
    d.kill(d.master, for_ms=1_000)
    yield lambda: _last(d).group == OTHER
    d.saw("moves")
    yield d.is_whole
    _check(d)
    d.mark("after")
    yield d.pass_ms(500)


def _seal_alone(d: Director, cut_ms: int) -> Steps:
    """The master seals while it reaches no replica, and tells nobody of it for as long."""
    for replica in d.replicas:
        d.begin("cut", d.master.name, other=replica.name, for_ms=cut_ms)
    d.stage.begin_tool(_to(OTHER))
    yield lambda: _seal(d) is not None
    yield d.pass_ms(LOOKED_MS)
    seal, mastership = _seal(d), d.mastership_of(d.master)
    if seal is not None and mastership is not None and mastership.confirm < seal.position:
        d.saw("seals that are not confirmed")
        told = "the controllers were told of a seal that nobody has confirmed (R28)"
        d.expect(_last(d).is_open and _last(d).group == GROUP, told)


def _check(d: Director) -> None:
    """Every segment is as long as its queue, at every broker of the group that is up to date."""
    topic_id, logical = _topic(d)
    for segment, after in zip(logical.segments, logical.segments[1:], strict=False):
        d.expect(segment.end == after.start, f"segments do not fit together: {logical}")
    for segment in logical.segments:
        if segment.group != GROUP or segment.sealed_end is None:
            continue
        end = d.projections(d.master).queue_end(queue_key(topic_id, segment.queue_id))
        longer = f"a queue sealed at {segment.sealed_end} has {end} messages (R28)"
        d.expect(end == segment.sealed_end, longer)


def _topic(d: Director) -> tuple[int, LogicalQueue]:
    topic = d.topic(MOVED)
    assert topic is not None
    return int(topic.topic_id), topic.logical_queues[0]


def _last(d: Director) -> Segment:
    return _topic(d)[1].last


def _count(d: Director) -> int:
    """Messages in the last segment, as the master of the script's group has them."""
    if d.topic(MOVED) is None or not d.is_open():
        return 0
    topic_id, logical = _topic(d)
    if logical.last.group != GROUP:
        return 0
    return d.projections(d.master).queue_end(queue_key(topic_id, logical.last.queue_id))


def _seal(d: Director) -> Seal | None:
    """Of the last segment, at the master of its group, confirmed or not."""
    if d.stage.master(GROUP) is None:
        return None
    topic_id, logical = _topic(d)
    return d.projections(d.master).seals.by_key.get(queue_key(topic_id, logical.last.queue_id))


async def _serve(around: Around) -> None:
    """Make the topic; then send to it and read it without an end."""
    await around.as_admin(
        lambda admin: admin.topics.create(MOVED, logical_queues=1, groups=[GROUP])
    )
    around = replace(around, topic=MOVED, think_ms=THINK_MS)
    async with asyncio.TaskGroup() as group:
        reader = InOrder(around, group=READERS, label="moved")
        group.create_task(reader.run(), name="moved-reader")
        group.create_task(Sender(around, label="moved-").run(), name="moved-sender")


def _to(group: str) -> Callable[[Around], Coroutine[Any, Any, None]]:
    async def move(around: Around) -> None:
        await around.as_admin(lambda admin: admin.topics.remap_queue(MOVED, 0, GroupName(group)))

    return move


def was_sealed(result: Result) -> list[str]:
    return [
        *unseen(result, seals_that_are_not_confirmed=2, moves=2),
        *fell_silent(result, since="after"),
    ]
