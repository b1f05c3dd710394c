"""`min_in_sync_replicas`: on how many disks an acknowledgement rests."""

from paceline_chaos.cluster_sim.all_ack.asking import ask_once
from paceline_chaos.cluster_sim.all_ack.questions import (
    IN_FLIGHT_US,
    acknowledged,
    asked_and_acked,
    fell_silent,
    unequal_logs,
    unseen,
)
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.cluster_sim.topology import FAST

LAG_MS = FAST.replica_lag_ms_max


def min_two(d: Director) -> Steps:
    """Two of three members are dead: nothing is appended, and said so; then it goes on."""
    yield d.is_whole
    yield d.pass_ms(300)
    master, dead = d.master, d.replicas
    d.kill(*dead, for_ms=2_200)
    mastership = d.mastership_of(master)
    assert mastership is not None
    yield lambda: not mastership.term.can_accept()
    d.mark("alone")
    end = mastership.end
    for number in range(3):
        ask_once(d, number)
    yield d.pass_ms(1_200)
    d.expect(d.mastership_of(master) is mastership, "another mastership began")
    d.expect(mastership.end == end, "something was appended by one of three")
    d.expect(len(d.committed()) >= 2, "the set fell below min (R8)")
    d.saw("nothing appended")
    d.mark("still alone")
    yield d.is_whole
    d.mark("whole")


def min_two_refuses(result: Result) -> list[str]:
    acks = acknowledged(result, since="alone", until="still alone", late_us=IN_FLIGHT_US)
    return [
        *unseen(result, nothing_appended=1),
        *unseen(result, definitely_refused=1),
        *([f"{acks[0].value} was acknowledged by one of three"] if acks else []),
        *fell_silent(result, since="whole"),
    ]


def min_one(d: Director) -> Steps:
    """The master goes on alone; when it dies, nobody else may lead."""
    yield d.is_whole
    yield d.pass_ms(300)
    master, others = d.master, d.replicas
    d.kill(*others, for_ms=1_500)
    yield lambda: d.committed() == d.known(master) == {master.name}
    d.mark("alone")
    yield d.pass_ms(500)
    d.mark("killed")
    d.kill(master, for_ms=3_000)
    yield lambda: all(node.broker is not None for node in others)
    yield d.pass_ms(900)
    d.expect(not master.is_running, "the master is back already")
    d.expect(d.stage.master("g1") is None, "somebody leads without what was acknowledged")
    d.saw("nobody leads")
    yield d.is_whole


def min_one_goes_on(result: Result) -> list[str]:
    return [
        *unseen(result, nobody_leads=1),
        *([] if asked_and_acked(result, since="alone", until="killed") else ["no send alone"]),
        *unequal_logs(result),
    ]


def min_three(d: Director) -> Steps:
    yield d.is_whole
    yield d.pass_ms(300)
    d.kill(d.replicas[0], for_ms=1_800)
    d.mark("two")
    yield d.pass_ms(1_500)
    d.mark("still two")
    d.expect(len(d.committed()) == 3, "the set fell below min (R8)")
    yield d.is_whole


def min_three_waits(result: Result) -> list[str]:
    acks = acknowledged(result, since="two", until="still two", late_us=IN_FLIGHT_US)
    return [
        *([f"{acks[0].value} was acknowledged by two of three"] if acks else []),
        *fell_silent(result, since="still two"),
    ]
