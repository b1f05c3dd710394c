"""News of the group that are older than what its master knows (R38)."""

from paceline_chaos.world.all_ack.questions import fell_silent, unseen
from paceline_chaos.world.nodes import ControllerServer
from paceline_chaos.world.run import Result
from paceline_chaos.world.script import GROUP, Director, Steps

_DEAD_MS = 1_500
_LATE_MS = 4_000
_WATCHED_MS = 800


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
