"""Who begins a group, and who only listens to it (R18)."""

from paceline_chaos.world.all_ack.questions import acknowledged, unequal_logs, unseen
from paceline_chaos.world.moments.leading import order
from paceline_chaos.world.run import Result
from paceline_chaos.world.script import GROUP, Director, Steps

_AWAY_MS = 4_500
_WATCHED_MS = 2_500
"""Several times what it takes to register, to grow or to elect somebody."""


def learning(d: Director) -> Steps:
    """It has everything, the members die, and the operator orders it to lead."""
    learner = d.stage.brokers[d.stage.topology.learners[0]]
    members = [node for node in d.stage.group(GROUP) if node is not learner]
    yield d.is_whole
    d.expect(learner.name not in d.committed(), "a learner was a member from the first (R18)")
    end = d.status(d.master)["end"]
    yield lambda: d.status(learner)["confirm"] > end
    d.saw("a learner that follows")
    yield d.pass_ms(1_000)
    d.expect(learner.name not in d.committed(), "a learner grew into the set (R18)")
    d.kill(*members, for_ms=_AWAY_MS)
    d.mark("dead")
    yield d.pass_ms(1_500)
    order(d, learner, is_unclean=True)
    yield d.pass_ms(_WATCHED_MS)
    d.expect(d.stage.master(GROUP) is None, "somebody leads, and only a learner is there (R18)")
    d.expect(d.status(learner)["role"] == "replica", "a learner is more than a replica (R18)")
    yield d.is_whole
    d.mark("whole")
    yield d.pass_ms(500)


def only_learnt(result: Result) -> list[str]:
    return [
        *unseen(result, a_learner_that_follows=1),
        *([] if acknowledged(result, since="whole") else ["nothing was acknowledged afterwards"]),
        *unequal_logs(result),
    ]


def forgotten(d: Director) -> Steps:
    """The controllers' folders are lost, and the brokers' stores are there: they wait for a
    person. Who puts the folders back has everything as it was."""
    stage = d.stage
    yield d.is_whole
    yield d.pass_ms(1_500)
    confirm = d.status(d.master)["confirm"]
    d.expect(confirm > 0, "there is nothing to lose")
    for node in stage.nodes.values():
        node.hold()
        node.kill()
    folders = {name: node.disk for name, node in stage.controllers.items()}
    for node in stage.nodes.values():
        if node.name in folders:
            node.empty_disk()
        else:
            node.excuse("controllers_lost")  # it may end because it is refused
        node.release()
    d.mark("forgotten")
    yield lambda: stage.leader() is not None
    exits = sum(len(node.exits) for node in stage.brokers.values())
    yield lambda: sum(len(node.exits) for node in stage.brokers.values()) >= exits + 3
    d.saw("refusals")
    watched = d.pass_ms(_WATCHED_MS)

    def is_kept_out() -> bool:
        machine = stage.machine()
        groups = [] if machine is None else list(machine.groups)
        if groups:
            d.saw("a group from stores with records")
        if stage.master(GROUP) is not None:
            d.saw("a master without a group")
        return watched()

    yield is_kept_out
    d.expect(not d.notes.seen["a group from stores with records"], "stores founded it again (R18)")
    d.expect(not d.notes.seen["a master without a group"], "somebody leads a forgotten group")
    for name, folder in folders.items():
        node = stage.controllers[name]
        node.hold()
        node.kill()
        node.disk, node.has_lost_disk = folder, False
        node.release()
    yield d.is_whole
    d.expect(d.status(d.master)["confirm"] >= confirm, "something confirmed is gone")
    d.mark("whole")
    yield d.pass_ms(500)


def was_kept(result: Result) -> list[str]:
    return [
        *unseen(result, refusals=1),
        *([] if acknowledged(result, since="whole") else ["nothing was acknowledged afterwards"]),
        *unequal_logs(result),
    ]
