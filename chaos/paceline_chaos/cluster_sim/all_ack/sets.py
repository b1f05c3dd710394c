"""The set shrinks and grows while somebody dies, or does not hear of it."""

from paceline_chaos.cluster_sim.all_ack.questions import (
    asked_and_acked,
    uncounted,
    unequal_logs,
    unseen,
)
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Script, Steps
from paceline_chaos.cluster_sim.topology import FAST

LAG_MS = FAST.replica_lag_ms_max


def shrink_unheard(*, is_killed: bool) -> Script:
    """The controllers commit a smaller set; the master does not hear of it (R7)."""

    def script(d: Director) -> Steps:
        yield d.is_whole
        yield d.pass_ms(300)
        master, lagging = d.master, d.replicas[0]
        d.begin("pause", lagging.name, for_ms=LAG_MS + 1_200)
        yield lambda: lagging.name not in d.committed() and lagging.name in d.known(master)
        # Heartbeats arrive; the answer and the news, both on their way, do not.
        d.begin("cut", "controllers", other=master.name, for_ms=400)
        d.mark("committed")
        confirm = d.status(master)["confirm"]
        yield d.pass_ms(150)
        d.expect(lagging.name in d.known(master), "the master heard of it")
        d.expect(d.unconfirmed_bytes(master) > 0, "nothing waits")
        d.expect(d.status(master)["confirm"] == confirm, "confirmed with one of both sets")
        d.mark("after")
        d.saw("stood still")
        if is_killed:
            d.kill(master, for_ms=700)
            yield lambda: d.is_open() and d.master is not master
        yield d.is_whole

    return script


def shrunk_unheard(result: Result) -> list[str]:
    acks = asked_and_acked(result, since="committed", until="after")
    return [
        *unseen(result, stood_still=1),
        *uncounted(result, shrinks=1, grows=1),
        *([f"{acks[0].value} was acknowledged meanwhile"] if acks else []),
        *unequal_logs(result),
    ]


def grow_as_master_dies(d: Director) -> Steps:
    """The controllers commit a larger set; the master dies before it hears of it."""
    yield from _one_grow(d)
    yield from _one_grow(d)
    yield d.is_whole


def _one_grow(d: Director) -> Steps:
    yield d.is_whole
    yield d.pass_ms(300)
    master, back = d.master, d.replicas[0]
    d.begin("pause", back.name, for_ms=LAG_MS + 400)
    yield lambda: back.name not in d.committed()
    yield lambda: back.name not in d.known(master)
    yield lambda: back.name in d.committed() and back.name not in d.known(master)
    d.kill(master, for_ms=800)
    d.saw("died in a grow")
    yield lambda: d.is_open() and d.master is not master
    yield d.pass_ms(300)


def grew_as_master_died(result: Result) -> list[str]:
    return [
        *unseen(result, died_in_a_grow=2),
        *uncounted(result, shrinks=2, grows=2, elections=2),
        *unequal_logs(result),
    ]
