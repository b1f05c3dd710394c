"""What is given up with the switch off, and what is not (R37)."""

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
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.cluster_sim.topology import FAST

LAG_MS = FAST.replica_lag_ms_max


WEAK = {"all_ack_in_sync_state_set": False, "in_sync_replicas": 1}
WEAK_TWO = {"all_ack_in_sync_state_set": False, "in_sync_replicas": 2}
WEAK_AUTO = {
    "all_ack_in_sync_state_set": False,
    "in_sync_replicas": 3,
    "enable_auto_in_sync_replicas": True,
}


def master_alone_dies(d: Director) -> Steps:
    """The replicas hear nothing from their master for a moment; then it dies."""
    yield from _one_tail(d)
    yield from _one_tail(d)
    yield d.is_whole


def _one_tail(d: Director) -> Steps:
    yield d.is_whole
    yield d.pass_ms(300)
    old = d.master
    for node in d.replicas:
        d.begin("cut", old.name, other=node.name, for_ms=700)
    d.mark("cut")
    yield lambda: d.unconfirmed_bytes(old) > 0
    yield d.pass_ms(200)
    d.saw("died with a tail")
    d.mark("killed")
    d.kill(old, for_ms=800)
    yield lambda: d.is_open() and d.master is not old
    yield d.pass_ms(300)


def weak_loses(result: Result) -> list[str]:
    return [
        *unseen(result, died_with_a_tail=2),
        *uncounted(result, acknowledged__unconfirmed=1, lost__unconfirmed=1, log__log_truncated=1),
        *uncounted(result, messages_read=1),
        *unequal_logs(result),
    ]


def strong_does_not(result: Result) -> list[str]:
    acks = acknowledged(result, since="cut", until="killed", late_us=IN_FLIGHT_US)
    return [
        *unseen(result, died_with_a_tail=2),
        *unconfirmed(result),
        *([f"{acks[0].value} was acknowledged by the master alone"] if acks else []),
        *unequal_logs(result),
    ]


def two_of_three_die(d: Director) -> Steps:
    """One replica hears nothing; the master and the other one, who do, die together."""
    yield d.is_whole
    yield d.pass_ms(800)
    old, (deaf, fast) = d.master, d.replicas
    d.begin("cut", old.name, other=deaf.name, for_ms=500)
    yield lambda: is_waiting(d, old, fast)
    yield d.pass_ms(200)
    d.expect(deaf.name in d.committed(), "the set has shrunk already")
    # They are back before the one that is left is given up for not opening its epoch (R6).
    d.kill(old, fast, for_ms=900)
    d.saw("two died")
    yield lambda: d.stage.master("g1") is deaf
    d.saw("the deaf one leads")
    yield d.is_whole


def weak_two_loses(result: Result) -> list[str]:
    return [
        *unseen(result, two_died=1, the_deaf_one_leads=1),
        *uncounted(result, acknowledged__unconfirmed=1, lost__unconfirmed=1),
        *uncounted(result, messages_read=1, log__log_truncated=1),
        *unequal_logs(result),
    ]


def auto_follows(d: Director) -> Steps:
    """A replica sleeps, and no controller can take it out of the set."""
    yield d.is_whole
    yield d.pass_ms(300)
    master, asleep = d.master, d.replicas[0]
    for name in ("c1", "c2"):
        d.begin("kill", name, for_ms=LAG_MS + 1_500)
    d.begin("pause", asleep.name, for_ms=LAG_MS + 1_200)
    d.mark("asleep")
    yield d.pass_ms(LAG_MS + 300)
    d.mark("behind")
    confirm = d.status(master)["confirm"]
    yield d.pass_ms(500)
    d.expect(len(d.known(master)) == 3, "the set has shrunk")
    d.expect(d.status(master)["confirm"] == confirm, "confirmed without a member")
    d.saw("answered without confirm")
    d.mark("after")
    yield d.is_whole


def auto_followed(result: Result) -> list[str]:
    waited = asked_and_acked(result, since="asleep", until="behind")
    acks = asked_and_acked(result, since="behind", until="after")
    assert result.notes is not None
    early = [s for s in waited if s.answered_us < result.notes.marks["behind"] - 400_000]
    return [
        *unseen(result, answered_without_confirm=1),
        *([] if acks else ["nothing was answered with the members that keep up"]),
        *([f"{send.value} confirmed" for send in acks if send.is_confirmed][:1]),
        *([f"{early[0].value} did not wait for three"] if early else []),
        *unequal_logs(result),
    ]
