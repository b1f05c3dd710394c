"""Masterships that end while something waits (R1), or while their master hears of nothing (R2)."""

from dataclasses import replace

from paceline_chaos.cluster_sim.all_ack.questions import (
    acknowledged,
    fell_silent,
    unequal_logs,
    unseen,
)
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Director, Steps
from paceline_chaos.cluster_sim.scripts.cluster.leading import cut_from_brokers, order
from paceline_chaos.cluster_sim.topology import FAST

UNHURRIED = replace(FAST, slave_timeout_ms=3_000)
"""What waits does so for longer than an election takes where disks are slow."""
_ALONE_MS = 1_500
_GATHERED_MS = 100
"""By then each client has something that waits."""
_UNHEARD_MS = 4_000
_FAR_MS = 4_000
_LINK_MS = 500
"""One way; longer than a client waits before it asks again."""
_UNDER_WAY_MS = 50
"""What a replica sent before it took the new epoch has arrived by then."""
_WATCHED_MS = 1_500


def ended_waiting(d: Director) -> Steps:
    """What waits at a master is on no other disk when another one is elected; and of its clients
    one has not heard of that: who has heard believes no answer of the old epoch."""
    yield d.is_whole
    yield d.pass_ms(300)
    old, successor = d.master, d.replicas[0]
    mastership = d.mastership_of(old)
    assert mastership is not None
    cut_from_brokers(d, old, for_ms=_ALONE_MS)

    def waits_alone() -> bool:
        ends = [d.status(replica)["end"] for replica in d.replicas]
        return mastership.term.waiting_count > 0 and max(ends) < mastership.end

    yield waits_alone
    d.begin("cut", "controllers", other="client-2", for_ms=_ALONE_MS)
    yield d.pass_ms(_GATHERED_MS)
    order(d, successor)
    yield lambda: d.mastership_of(old) is not mastership or not mastership.term.waiting_count
    d.expect(d.mastership_of(old) is not mastership, "what waited ran out before the end came")
    d.saw("ended while something waited")
    yield lambda: d.is_whole() and d.master is successor
    d.mark("whole")
    yield d.pass_ms(500)


def was_unknown(result: Result) -> list[str]:
    """That nobody was told of success is S1."""
    return [
        *unseen(result, ended_while_something_waited=1, order_carried_out=1),
        *fell_silent(result, since="whole"),
        *unequal_logs(result),
    ]


def ended_again(d: Director) -> Steps:
    """Each confirm takes a second: clients end their transactions again before that."""
    yield d.is_whole
    yield d.pass_ms(300)
    for replica in d.replicas:
        d.begin("slow_link", replica.name, other=d.master.name, for_ms=_FAR_MS, delay_ms=_LINK_MS)
    d.saw("far members")
    yield d.pass_ms(_FAR_MS)
    yield d.is_whole
    d.mark("whole")
    yield d.pass_ms(500)


def were_ended_once(result: Result) -> list[str]:
    """That nothing is stored twice is S5, that nothing is both is S24."""
    return [
        *unseen(result, far_members=1),
        *fell_silent(result, since="whole"),
        *unequal_logs(result),
    ]


def replaced_unheard(d: Director) -> Steps:
    """No controller reaches the master and a client of it; the replicas hear both sides."""
    yield d.is_whole
    yield d.pass_ms(300)
    old = d.master
    mastership = d.mastership_of(old)
    assert mastership is not None
    for target in (old.name, "client-1"):
        d.begin("cut", "controllers", other=target, for_ms=_UNHEARD_MS)
        d.begin("cut", "controllers", other=target, for_ms=_UNHEARD_MS, inbound=1)
    yield lambda: d.stage.master(GROUP) is not old
    yield d.pass_ms(_UNDER_WAY_MS)
    d.expect(d.mastership_of(old) is mastership, "a replica has come back to it (R2)")
    connections = mastership.status()["connections"]
    d.expect(connections == 0, f"{connections} replicas are still connected to it (R2)")
    confirm = mastership.confirm
    d.saw("replaced unheard")
    d.mark("replaced")
    yield d.pass_ms(_WATCHED_MS)
    d.expect(mastership.confirm == confirm, "it has confirmed since its successor began (R2)")
    d.expect(d.is_open() and d.master is not old, "its successor did not open (R2)")
    d.mark("healed")
    yield d.is_whole
    d.mark("whole")
    yield d.pass_ms(500)


def was_fenced(result: Result) -> list[str]:
    went_on = acknowledged(result, since="replaced", until="healed")
    return [
        *unseen(result, replaced_unheard=1),
        *([] if went_on else ["nothing was acknowledged by the successor"]),
        *fell_silent(result, since="whole"),
        *unequal_logs(result),
    ]
