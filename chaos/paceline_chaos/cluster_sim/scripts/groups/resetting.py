"""Resets at unlucky moments (R28, R33): one that dies with its master hides no later one from a
running member, and one that comes before a member's first commit is not undone by it."""

from collections.abc import Sequence
from typing import Any

from paceline.admin.client import AdminClient
from paceline.consumer.offsets.group_offsets import GroupOffsets, OnReset
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.consumer.queues.process_queue import ProcessQueue
from paceline.errors import PacelineError
from paceline.message import ReceivedMessage
from paceline.net.group_links import GroupLinks
from paceline.queues import QueueKey
from paceline.types import GroupName
from paceline.wire.calls.offsets import Commit, CommitRow, StandingRow
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Director, Steps

QUIET = "quiet"
"""A topic that nobody sends to: a commit that moves would tell the member of the reset as well."""
READERS = "quiet-readers"
CUT_MS = 3_000
INTERVAL_MS = 3_000
"""Between two looks of the member: long, as one reset is lost and the next confirmed in it."""
LOOKS_MS = 700
"""One look falls into this time."""
STORED_MS = 300
OPENED_MS = 800
"""What it had asked the dead master is answered by the new one."""


def reset_lost(d: Director) -> Steps:
    """A member asks while a reset is appended and confirmed by nobody; the master dies with it."""
    generations: list[int] = []
    looks: list[int] = []
    yield d.is_whole
    d.stage.begin_tool(lambda around: _consume(around, generations, looks))
    yield lambda: all(bool(found) for found in _standing(d))
    d.saw("a member that stands")
    count = len(looks)
    yield lambda: len(looks) > count
    yield d.pass_ms(INTERVAL_MS - LOOKS_MS / 2)
    old = d.master
    for replica in d.replicas:
        d.begin("cut", old.name, other=replica.name, for_ms=CUT_MS)
        d.begin("cut", old.name, other=replica.name, for_ms=CUT_MS, inbound=1)
    d.stage.begin_tool(lambda around: _reset(around, QUIET, timeout_ms=500))
    yield lambda: d.projections(old).offsets.resets(READERS) != 0
    yield d.pass_ms(LOOKS_MS)
    d.kill(old, for_ms=2_000)
    yield lambda: d.stage.master(GROUP) not in (None, old) and d.is_open()
    d.expect(not d.projections(d.master).offsets.resets(READERS), "the reset was not lost")
    yield d.pass_ms(OPENED_MS)
    d.expect(max(generations) == 0, "a member obeyed a reset that was never confirmed (R28)")
    d.saw("a reset that was lost")
    d.stage.begin_tool(lambda around: _reset(around, QUIET, timeout_ms=20_000))
    yield lambda: d.is_open() and d.projections(d.master).offsets.resets(READERS) != 0
    yield d.pass_ms(INTERVAL_MS + LOOKS_MS)
    d.expect(generations[-1] == 1, "a running member was not told of a confirmed reset (R28)")
    yield d.is_whole
    d.mark("after")
    yield d.pass_ms(500)


async def _consume(around: Around, generations: list[int], looks: list[int]) -> None:
    cluster = around.cluster()
    try:
        async with AdminClient(cluster, timeout_ms=20_000) as admin:
            await admin.topics.create(QUIET, queues=1)
        consumer = PushConsumer(
            cluster,
            group=READERS,
            topics=[QUIET],
            listener=_nothing_comes,
            settings=PushSettings(start="first", commit_interval_ms=INTERVAL_MS, send_back=False),
            client_id="quiet-reader",
            disk=around.disk,
        )
        offsets = consumer._owner._offsets
        look = offsets.look_for_resets

        async def looking(queues: Sequence[ProcessQueue], on_reset: OnReset) -> None:
            looks.append(1)
            await look(queues, on_reset)

        offsets.look_for_resets = looking  # type: ignore[method-assign]
        async with consumer:
            while not around.is_over():
                generations += _generations(consumer)
                await around.think()
    finally:
        await cluster.close()


async def _nothing_comes(_: ReceivedMessage) -> None:
    """Nobody sends to the topic."""


def _generations(consumer: PushConsumer) -> list[int]:
    return [held.queue.generation for held in consumer._owner.held.values()]


async def _reset(around: Around, topic: str, *, timeout_ms: int) -> None:
    """By one record, which no query comes before: those wait for the replicas."""
    cluster = around.cluster()
    links = GroupLinks(cluster)
    row = CommitRow(topic=topic, queue=0, offset=0)
    request = Commit(group=READERS, reset=True, offsets=[row])
    try:
        cluster.start()
        await cluster.wait_topic(topic, timeout_ms=5_000)
        await links.call(GroupName(GROUP), request, timeout_ms=timeout_ms, attempt_ms=timeout_ms)
    except PacelineError:
        return  # of the one that dies nobody ever knows
    finally:
        await links.close()
        await cluster.close()


def _standing(d: Director) -> list[dict[int, Any]]:
    """What each running broker knows of the readers."""
    return [d.projections(node).offsets.of_group(READERS) for node in d.running]


def first_commit(d: Director) -> Steps:
    """A member has asked where its queue ends and not committed that, and the group is reset."""
    received: list[int] = []
    yield d.is_whole
    yield d.pass_ms(STORED_MS)
    d.stage.begin_tool(lambda around: _begin_at_end(around, received))
    yield lambda: all(bool(found) for found in _standing(d))
    yield d.pass_ms(OPENED_MS)
    yield lambda: bool(received)
    d.saw("a first commit")
    d.expect(received[0] == 0, f"a first commit undid a reset: {received[0]} came first (R33)")
    yield d.is_whole
    d.mark("after")
    yield d.pass_ms(500)


async def _begin_at_end(around: Around, received: list[int]) -> None:
    """Consume from the end on; the reset of queue 0 comes before its first commit."""
    cluster = around.cluster()

    async def listen(message: ReceivedMessage) -> None:
        if message.queue_id == 0:
            received.append(message.queue_offset)

    try:
        consumer = PushConsumer(
            cluster,
            group=READERS,
            topics=[around.topic],
            listener=listen,
            settings=PushSettings(start="last", send_back=False),
            client_id="late-reader",
            disk=around.disk,
        )
        offsets = consumer._owner._offsets
        assert isinstance(offsets, GroupOffsets)
        first_offset = offsets._first_offset

        async def reset_meanwhile(key: QueueKey, committed: StandingRow) -> int:
            offset = await first_offset(key, committed)
            if key.queue_id == 0:
                await _reset(around, around.topic, timeout_ms=20_000)
            return offset

        offsets._first_offset = reset_meanwhile  # type: ignore[method-assign]
        async with consumer:
            while not around.is_over():
                await around.think()
    finally:
        await cluster.close()


def kept_the_reset(result: Result) -> list[str]:
    return [
        *unseen(result, a_first_commit=1),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]


def was_told(result: Result) -> list[str]:
    return [
        *unseen(result, a_member_that_stands=1, a_reset_that_was_lost=1),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]
