"""A controller that lost its disk has forgotten what it promised, and must not vote (R18)."""

import contextlib

from paceline.errors import PacelineError
from paceline.types import TopicName
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unseen
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.nodes import ControllerServer
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.history.model import FaultEvent

PROMISED = TopicName("promised")
"""Of nobody's load: the entry that two of three controllers have."""
ISOLATED_MS = 8_000
"""A client may ask who is cut off first, and waits 3 s for it."""
WATCHED_MS = 3_000
"""Several times what an election takes."""


def amnesia(d: Director) -> Steps:
    """One controller lacks an entry; of the two that have it one is down, the other forgets it."""
    stage = d.stage
    yield d.is_whole
    leader = stage.leader()
    assert leader is not None
    late, lost = (node for _, node in sorted(stage.controllers.items()) if node is not leader)
    d.begin("isolate", late.name, for_ms=ISOLATED_MS)
    over = d.pass_ms(ISOLATED_MS + WATCHED_MS)
    stage.begin_tool(_make)
    yield lambda: _has(leader) and _has(lost)
    d.expect(not _has(late), f"{late.name} heard of it though it was cut off")
    for node in (leader, lost):
        node.hold()
        node.kill()
    folder = lost.disk
    lost.empty_disk()
    lost.excuse("disk_lost")
    _tell_lost(d, lost, is_begin=True)
    lost.release()
    d.saw("a lost disk")

    def nobody_leads() -> bool:
        if stage.leader() is not None:
            d.saw("a leader without a promise")
        return over()

    yield nobody_leads
    d.expect(not d.notes.seen["a leader without a promise"], "a lost disk was voted with (R18)")
    lost.hold()
    lost.kill()
    lost.disk, lost.has_lost_disk = folder, False
    for node in (leader, lost):
        node.release()
    yield lambda: stage.leader() is not None and all(map(_has, stage.controllers.values()))
    _tell_lost(d, lost, is_begin=False)
    yield d.is_whole
    d.mark("after")
    yield d.pass_ms(500)


async def _make(around: Around) -> None:
    """Its answer may be lost with the controllers: whether they have the topic, they show."""
    with contextlib.suppress(PacelineError):
        await around.as_admin(lambda admin: admin.topics.create(PROMISED, queues=1))


def _has(node: ControllerServer) -> bool:
    return node.controller is not None and PROMISED in node.controller.machine.topics


def _tell_lost(d: Director, node: ControllerServer, *, is_begin: bool) -> None:
    recorder = d.stage.recorder
    recorder.add(FaultEvent, kind="disk_lost", target=node.name, is_begin=is_begin, detail="")


def was_remembered(result: Result) -> list[str]:
    return [
        *unseen(result, a_lost_disk=1),
        *fell_silent(result, since="after"),
    ]
