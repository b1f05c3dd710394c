"""Who begins a group, and who only listens to it (R18)."""

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Director, Steps
from paceline_chaos.cluster_sim.scripts.cluster.leading import order
from paceline_chaos.history.model import FaultEvent

_AWAY_MS = 4_500
_WATCHED_MS = 2_500
"""Several times what it takes to register, to grow or to elect somebody."""
_STORES_COUNT = 3


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
        *fell_silent(result, since="whole"),
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
    folders = {name: node.disk for name, node in stage.controllers.items()}
    _lose_controllers(d)
    yield lambda: stage.leader() is not None
    yield lambda: _waits(d) or _begun(d)
    if _waits(d):
        d.saw("refusals")
    watched = d.pass_ms(_WATCHED_MS)

    def is_kept_out() -> bool:
        if _begun(d):
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
    _have_controllers(d)
    d.expect(d.status(d.master)["confirm"] >= confirm, "something confirmed is gone")
    d.mark("whole")
    yield d.pass_ms(500)


def recovered(d: Director) -> Steps:
    """The same, and nobody has the folders: the operator names the store whose log it is. All three
    are there, so nothing may be lost by it."""
    stage = d.stage
    yield d.is_whole
    yield d.pass_ms(1_500)
    confirm = d.status(d.master)["confirm"]
    d.expect(confirm > 0, "there is nothing to lose")
    _lose_controllers(d)
    yield lambda: stage.leader() is not None and _waits(d)
    d.expect(not _begun(d), "stores founded it again (R18)")
    machine = stage.machine()
    assert machine is not None
    best = max(machine.presented.values(), key=lambda store: (store.last_epoch, store.end))
    _recover(d, best.store_id)
    yield d.is_whole
    _have_controllers(d)
    d.expect(d.status(d.master)["confirm"] >= confirm, "something confirmed is gone (R18)")
    d.mark("whole")
    yield d.pass_ms(1_500)


def _lose_controllers(d: Director) -> None:
    """All nodes die at once, and the controllers come back with empty disks."""
    for node in d.stage.nodes.values():
        node.hold()
        node.kill()
    for node in d.stage.nodes.values():
        if node.name in d.stage.controllers:
            node.empty_disk()
            _tell_lost(d, node.name, is_begin=True)
        else:
            node.excuse("controllers_lost")  # it may end because it is refused
        node.release()
    d.mark("forgotten")


def _have_controllers(d: Director) -> None:
    """They have their memory back, or another one that will do."""
    for name in d.stage.controllers:
        _tell_lost(d, name, is_begin=False)


def _tell_lost(d: Director, name: str, *, is_begin: bool) -> None:
    d.stage.recorder.add(FaultEvent, kind="disk_lost", target=name, is_begin=is_begin, detail="")


def _waiting_count(d: Director) -> int:
    machine = d.stage.machine()
    return 0 if machine is None else len(machine.presented)


def _waits(d: Director) -> bool:
    return _waiting_count(d) >= _STORES_COUNT


def _begun(d: Director) -> bool:
    """Whether the controllers have put any group on record."""
    machine = d.stage.machine()
    return machine is not None and bool(machine.groups)


def _recover(d: Director, store_id: str) -> None:
    """The operator orders it, and accepts no loss."""
    around = d.stage.around("client-1", incarnation=200 + d.notes.steps_count)

    async def ask() -> None:
        cluster = around.cluster()
        try:
            async with AdminClient(cluster, timeout_ms=5_000) as admin:
                await admin.broker_groups.recover(GROUP, store=store_id)
        except PacelineError as error:
            d.saw(f"order ended with {error.code}")
        else:
            d.saw("a recovery")
        finally:
            await cluster.close()

    d.stage.simulation.machine("client-1").start(ask, name="recover")


def was_kept(result: Result) -> list[str]:
    return [
        *unseen(result, refusals=1),
        *fell_silent(result, since="whole"),
        *unequal_logs(result),
    ]


def was_recovered(result: Result) -> list[str]:
    return [
        *unseen(result, a_recovery=1),
        *fell_silent(result, since="whole"),
        *unequal_logs(result),
    ]
