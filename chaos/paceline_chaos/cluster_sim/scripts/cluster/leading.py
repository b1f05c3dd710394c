"""Masters that get nowhere (R6), and one that begins with less than was confirmed (R21)."""

from dataclasses import replace

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError
from paceline_chaos.cluster_sim.all_ack.asking import ask_once
from paceline_chaos.cluster_sim.all_ack.questions import (
    acknowledged,
    fell_silent,
    unequal_logs,
    unseen,
)
from paceline_chaos.cluster_sim.nodes import BrokerNode
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Director, Steps
from paceline_chaos.cluster_sim.topology import FAST
from paceline_chaos.history.model import OrderElection, ReplicaDump
from paceline_controller.election.group_watch import OPEN_SYNCS

_CUT_MS = 60_000
"""Longer than the load: whoever is to be helped is helped by another master, not by healing."""
_LOST_BYTES = 2_000
"""Confirmed, and not on the replica that an unclean election takes."""
_SLOW_SYNC_MS = 150
"""No disk of a stock topology takes longer; the slower disks are, the longer masters may take."""
_HELPED_MS = (
    FAST.election_open_timeout_ms + OPEN_SYNCS * _SLOW_SYNC_MS + 2 * FAST.replica_lag_ms_max + 1_000
)
"""A master that does not open is given up, its successor drops it from the set, and opens."""
_MOVED_ON_MS = FAST.progress_timeout_ms + FAST.election_open_timeout_ms + FAST.slave_timeout_ms


def order(d: Director, winner: BrokerNode, *, is_unclean: bool = False) -> None:
    """The operator orders an election; the director sees how the order ends."""
    machine = d.stage.simulation.machine("client-1")
    around = d.stage.around("client-1", incarnation=200 + d.notes.steps_count)
    replica = d.replica_id(winner)
    asking = around.recorder.asking(
        OrderElection, client="client-1", group=GROUP, replica=replica, is_unclean=is_unclean
    )

    async def ask() -> None:
        cluster = around.cluster()
        try:
            async with AdminClient(cluster, timeout_ms=5_000) as admin:
                await admin.broker_groups.elect(GROUP, preferred=replica, unclean=is_unclean)
        except PacelineError as error:
            asking.raised(error)
            d.saw(f"order ended with {error.code}")
        else:
            asking.ok()
            d.saw("order carried out")
        finally:
            await cluster.close()

    machine.start(ask, name="order")


def cut_from_brokers(d: Director, node: BrokerNode, *, for_ms: int = _CUT_MS) -> None:
    """No broker hears it, nor it them; controllers and clients do."""
    others = ",".join(other.name for other in d.stage.group(GROUP) if other is not node)
    d.begin("cut", node.name, other=others, for_ms=for_ms)
    d.begin("cut", node.name, other=others, for_ms=for_ms, inbound=1)


def opens_nothing(d: Director) -> Steps:
    """A member that no broker reaches any more is made master, and is told so."""
    yield d.is_whole
    yield d.pass_ms(300)
    lonely = d.replicas[0]
    cut_from_brokers(d, lonely)
    order(d, lonely)
    yield lambda: d.mastership_of(lonely) is not None
    d.mark("lonely")
    d.saw("a master that cannot open")
    mastership = d.mastership_of(lonely)
    assert mastership is not None
    yield d.pass_ms(_HELPED_MS)
    d.expect(not mastership.is_open, "it opened its epoch without anybody")
    d.expect(d.is_open() and d.master is not lonely, "nobody took its place (R6)")
    d.mark("helped")
    yield d.pass_ms(500)
    d.expect(d.is_open() and d.master is not lonely, "it is master again (R6)")


def opened_by_another(result: Result) -> list[str]:
    return [
        *unseen(result, a_master_that_cannot_open=1),
        *fell_silent(result, since="helped"),
    ]


def confirms_nothing(d: Director) -> Steps:
    """The master is cut from all brokers, and stays in touch with controllers and clients.

    What waits runs out, and then every send is refused beforehand: it is waiting work all the same.
    """
    yield d.is_whole
    yield d.pass_ms(300)
    lonely = d.master
    cut_from_brokers(d, lonely)
    d.mark("lonely")
    mastership = d.mastership_of(lonely)
    assert mastership is not None
    yield lambda: not mastership.term.can_accept()
    d.saw("a master that confirms nothing")
    yield d.pass_ms(_MOVED_ON_MS)
    d.expect(d.is_open() and d.master is not lonely, "nobody took its place (R6)")
    d.mark("helped")
    yield d.pass_ms(500)


def confirmed_by_another(result: Result) -> list[str]:
    return [
        *unseen(result, a_master_that_confirms_nothing=1),
        *fell_silent(result, since="helped"),
    ]


# -- an unclean election --------------------------------------------------------------------------


def unclean(d: Director) -> Steps:
    """Both members are gone; who had left the set before is made master by order."""
    yield d.is_whole
    behind = d.replicas[0]
    yield lambda: _holds(d, behind)
    d.begin("pause", behind.name, for_ms=2_000)
    yield lambda: behind.name not in d.committed()
    master = d.master
    end = d.status(behind)["end"]
    yield lambda: d.status(master)["confirm"] > end + _LOST_BYTES
    members = [node for node in d.stage.group(GROUP) if node is not behind]
    d.kill(*members, for_ms=4_500)
    yield lambda: behind.status() is not None
    yield d.pass_ms(1_000)
    d.expect(d.stage.master(GROUP) is None, "somebody leads without what was confirmed")
    d.expect(_holds(d, behind), "there is nothing to void")
    order(d, behind, is_unclean=True)
    yield lambda: d.mastership_of(behind) is not None
    d.saw("an unclean epoch")
    locks, producers = d.projections(behind).locks, d.projections(behind).producers
    d.expect(not locks.to_json(), "a lock outlived an unclean election (R21)")
    d.expect(not len(producers), "a producer was not fenced by an unclean election (R21)")
    yield d.is_whole
    d.mark("whole")


def _holds(d: Director, node: BrokerNode) -> bool:
    """Whether it knows of a lock and of a producer."""
    projections = d.projections(node)
    return bool(projections.locks.to_json()) and len(projections.producers) > 0


def unclean_was_told(result: Result) -> list[str]:
    return [
        *unseen(result, an_unclean_epoch=1, order_carried_out=1),
        *fell_silent(result, since="whole"),
        *unequal_logs(result),
    ]


TAILED = replace(FAST, replica_lag_ms_max=2_000)
"""So long a master that is cut off has a tail, before it could shrink the set to itself."""
_TAIL_COUNT = 60
_KEPT_BYTES = 4_000
"""Acknowledged in the later epoch: many messages, and fewer bytes than the tail."""


def latest_epoch(d: Director) -> Steps:
    """The longer log ends in an earlier epoch, and the shorter one has what was acknowledged.

    No member lives, and one of the two acts as master, when the operator asks for an unclean
    election by the group's setting.
    """
    yield d.is_whole
    yield d.pass_ms(300)
    old = d.master
    cut_from_brokers(d, old, for_ms=2_000)
    for number in range(_TAIL_COUNT):
        ask_once(d, number)
    yield d.pass_ms(600)  # their time is over: nobody sends them again to the next master
    d.kill(old, for_ms=4_500)
    yield lambda: d.is_open() and d.master is not old
    last, other = d.master, next(node for node in d.replicas if node is not old)
    d.mark("later epoch")
    begin = d.status(other)["confirm"]
    yield lambda: d.status(other)["confirm"] > begin + _KEPT_BYTES
    d.mark("kept")
    d.kill(other, for_ms=2_500)
    yield lambda: d.committed() == {last.name}
    d.expect(not old.is_running, "the old master is back already")
    d.kill(last, for_ms=11_000)
    yield lambda: all(node.broker is not None for node in (old, other))
    yield lambda: all(d.status(node)["end"] > 0 for node in (old, other))
    d.expect(d.status(old)["end"] > d.status(other)["end"], "the tail is not the longer log")
    yield lambda: any(d.status(node)["role"] == "acting_master" for node in (old, other))
    d.saw("an acting master")
    _want_unclean(d)
    yield d.is_open
    d.saw("an unclean epoch")
    d.expect(d.master is other, "the one with the later epoch does not lead")
    d.mark("led")
    yield d.is_whole
    d.mark("whole")
    yield d.pass_ms(500)


def _want_unclean(d: Director) -> None:
    """The operator puts the setting (RocketMQ's enableElectUncleanMaster)."""
    around = d.stage.around("client-1", incarnation=300)

    async def put() -> None:
        cluster = around.cluster()
        try:
            async with AdminClient(cluster, timeout_ms=5_000) as admin:
                await admin.broker_groups.set_settings(GROUP, enable_elect_unclean_master=True)
                d.saw("setting put")
        finally:
            await cluster.close()

    d.stage.simulation.machine("client-1").start(put, name="setting")


def latest_epoch_led(result: Result) -> list[str]:
    kept = acknowledged(result, since="later epoch", until="kept")
    dumps = (entry for entry in result.history.entries if isinstance(entry, ReplicaDump))
    batches = (batch for dump in dumps if not dump.is_discarded for batch in dump.batches)
    stored = {value for batch in batches for value, _ in batch.messages}
    lost = [send.value for send in kept if send.value not in stored]
    return [
        *unseen(result, an_acting_master=1, setting_put=1, an_unclean_epoch=1),
        *([] if kept else ["nothing was acknowledged in the later epoch"]),
        *([f"{len(lost)} messages that a healthy replica had are lost: {lost[0]}"] if lost else []),
        *fell_silent(result, since="led"),
        *unequal_logs(result),
    ]
