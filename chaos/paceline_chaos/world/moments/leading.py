"""Masters that get nowhere (R6), and one that begins with less than was confirmed (R21)."""

from paceline.admin import AdminClient
from paceline.errors import PacelineError
from paceline_chaos.history.model import OrderElection
from paceline_chaos.world.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.world.nodes import BrokerNode
from paceline_chaos.world.run import Result
from paceline_chaos.world.script import GROUP, Director, Steps
from paceline_chaos.world.topology import FAST

_CUT_MS = 60_000
"""Longer than the load: whoever is to be helped is helped by another master, not by healing."""
_LOST_BYTES = 2_000
"""Confirmed, and not on the replica that an unclean election takes."""
_HELPED_MS = FAST.election_open_timeout_ms + 2 * FAST.replica_lag_ms_max + 1_000
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
                await admin.elect(GROUP, preferred=replica, unclean=is_unclean)
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
