"""Somebody dies between append and acknowledgement, or is cut off there."""

from paceline_chaos.cluster_sim.all_ack.questions import (
    IN_FLIGHT_US,
    acknowledged,
    asked_and_acked,
    is_waiting,
    unconfirmed,
    uncounted,
    unequal_logs,
    unseen,
)
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Script, Steps
from paceline_chaos.cluster_sim.topology import Client


def kill_between(victim: str) -> Script:
    def once(d: Director) -> Steps:
        yield d.is_whole
        yield d.pass_ms(300)
        master, (slow, fast) = d.master, d.replicas
        if d.chance.uniform(0, 1) < 0.5:
            slow, fast = fast, slow
        d.begin("disk_stall", slow.name, for_ms=500, delay_ms=400)
        yield lambda: is_waiting(d, master, fast)
        dead = {"master": [master], "replica": [fast], "slowest": [slow]}.get(
            victim, [master, slow, fast]
        )
        d.kill(*dead, for_ms=900)
        d.saw("killed between")
        yield lambda: not all(node.is_running for node in dead)
        yield d.pass_ms(1_000)

    def script(d: Director) -> Steps:
        yield from once(d)
        yield from once(d)
        yield d.is_whole

    return script


def killed_between(result: Result) -> list[str]:
    return [*unseen(result, killed_between=2), *unconfirmed(result), *unequal_logs(result)]


def killed_masters(result: Result) -> list[str]:
    return [*killed_between(result), *uncounted(result, elections=2)]


# -- the old master behind a partition ------------------------------------------------------------


MANY_SENDERS = (
    Client(name="client-1", jobs=("send",)),
    Client(name="client-2", jobs=("send",)),
    Client(name="client-3", jobs=("read",)),
    Client(name="client-4", jobs=("send",)),
    Client(name="client-5", jobs=("send",)),
)
BEHIND = ("client-1", "client-4", "client-5")
"""So that somebody behind the partition is just about to send."""


def old_master(d: Director) -> Steps:
    """It is cut off with some of the clients; the others have a successor."""
    yield d.is_whole
    yield d.pass_ms(300)
    old = d.master
    d.notes.nodes["old"] = old.name
    d.begin("split", ",".join((old.name, *BEHIND)), for_ms=4_000)
    d.mark("cut")
    yield lambda: all(d.status(old)["end"] > d.status(node)["end"] for node in d.replicas)
    d.saw("a tail of its own")
    confirm = d.status(old)["confirm"]
    yield lambda: d.is_open() and d.master is not old
    d.mark("successor")
    yield d.pass_ms(500)
    if d.mastership_of(old) is not None:
        d.saw("two masters")
        d.expect(d.status(old)["confirm"] == confirm, "the old master confirmed something")
        d.expect(d.unconfirmed_bytes(old) > 0, "nothing waits on the old master")
    yield d.pass_ms(400)
    d.mark("healing")
    yield d.is_whole


def old_master_is_silent(result: Result) -> list[str]:
    assert result.notes is not None
    behind = [
        send
        for client in BEHIND
        for send in acknowledged(
            result, since="cut", until="healing", late_us=IN_FLIGHT_US, client=client
        )
    ]
    before = asked_and_acked(result, since="successor", until="healing", client="client-2")
    return [
        *unseen(result, two_masters=1, a_tail_of_its_own=1),
        *uncounted(result, zombie_masters=1, log__log_truncated=1, elections=1),
        *([f"{behind[0].value} was acknowledged by the old master"] if behind else []),
        *([] if before else ["the successor acknowledged nothing"]),
        *unequal_logs(result),
    ]
