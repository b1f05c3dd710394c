"""What is older than what others know: news of the group (R38), a range of a queue (R3)."""

from collections.abc import Callable

from paceline.consumer.pull import PullConsumer
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unseen
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.reading import history_queue, wait_for_range
from paceline_chaos.cluster_sim.nodes import ControllerServer
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Director, Steps
from paceline_chaos.history.model import QueryRange

_DEAD_MS = 1_500
_LATE_MS = 4_000
_WATCHED_MS = 800
_SPLIT_MS = 4_000
_FAR = 100_000
"""Offsets beyond the end: no sender gets there."""
_ASKER = "operator"


def old_news(d: Director) -> Steps:
    """A controller that is cut off from the others goes on telling of the smaller set."""
    yield d.is_whole
    yield d.pass_ms(300)
    leader = d.stage.leader()
    assert leader is not None
    late = next(node for node in d.stage.controllers.values() if node is not leader)
    back = d.replicas[0]
    d.kill(back, for_ms=_DEAD_MS)
    yield lambda: back.name not in d.known(d.master) and _count(late) == len(d.known(d.master))
    others = ",".join(node.name for node in d.stage.controllers.values() if node is not late)
    d.begin("cut", late.name, other=others, for_ms=_LATE_MS)
    d.begin("cut", late.name, other=others, for_ms=_LATE_MS, inbound=1)
    yield d.is_whole
    yield d.pass_ms(200)
    master = d.master
    d.expect(_count(late) < len(d.known(master)), "the late controller has heard of the set")
    d.begin("reset", late.name, for_ms=1)
    over = d.pass_ms(_WATCHED_MS)

    def is_over() -> bool:
        if d.known(master) < d.committed():
            d.saw("an old set in force")
        return over()

    yield is_over
    d.expect(not d.notes.seen["an old set in force"], "an older set replaced a newer one (R38)")
    d.saw("old news")
    yield d.is_whole
    d.mark("whole")
    yield d.pass_ms(500)


def _count(node: ControllerServer) -> int:
    """How many members there are, as this controller has it."""
    assert node.controller is not None
    groups = {str(key): group for key, group in node.controller.machine.groups.items()}
    return len(groups[GROUP].sync_state_set)


def were_passed_over(result: Result) -> list[str]:
    return [
        *unseen(result, old_news=1),
        *fell_silent(result, since="whole"),
    ]


def old_range(d: Director) -> Steps:
    """A master that others have replaced is asked by a consumer behind the same partition that
    reads from beyond the end of a queue."""
    yield d.is_whole
    is_due = False
    d.stage.begin_tool(lambda around: _ask_beyond(around, lambda: is_due, d.mark))
    yield lambda: "reads" in d.notes.marks
    old = d.master
    d.begin("split", f"{old.name},{_ASKER}", for_ms=_SPLIT_MS)
    yield lambda: d.is_open() and d.master is not old
    yield d.pass_ms(_WATCHED_MS)
    if d.mastership_of(old) is not None:
        d.saw("two masters")
    is_due = True
    d.mark("asked")
    yield d.is_whole
    d.mark("whole")
    yield d.pass_ms(2_000)


async def _ask_beyond(
    around: Around, is_due: Callable[[], bool], mark: Callable[[str], None]
) -> None:
    """Read all queues from their ends; when it is due, ask for one from far beyond its end."""
    async with PullConsumer(around.cluster()) as consumer:
        names = await consumer.queues(around.topic)
        await consumer.assign(dict.fromkeys(names, "last"))
        await consumer.poll()
        mark("reads")
        while not is_due():
            await consumer.poll(timeout_ms=20)
        with around.recorder.asking(
            QueryRange, client=around.client, queue=history_queue(names[0])
        ) as asking:
            await consumer.seek(names[0], consumer.position(names[0]) + _FAR)
            await wait_for_range(around, consumer, names[0], asking)


def was_not_told(result: Result) -> list[str]:
    """That it was told no old range is S19."""
    told = [
        entry
        for entry in result.history.entries
        if isinstance(entry, QueryRange) and entry.client == _ASKER and entry.end is not None
    ]
    return [
        *unseen(result, two_masters=1),
        *([] if told else ["the consumer was never told the range"]),
        *fell_silent(result, since="whole"),
    ]
