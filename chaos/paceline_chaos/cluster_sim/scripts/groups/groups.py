"""Consumer groups of every kind, whose masters and members die (R33, R34).

Members poll, are moved back while they work, keep their offsets in files of their own, and get dead
letters again. Judged by S21, S22, S29 and S35.
"""

from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen, unserved
from paceline_chaos.cluster_sim.jobs.moving import BROADCAST_GROUP, MOVED_GROUP
from paceline_chaos.cluster_sim.jobs.polling import LITE_GROUP
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.history.model import Commit, Outcome, Resend

BROADCASTER = "client-3"
_ROUNDS = 3
_BETWEEN_MS = 2_500


def groups(d: Director) -> Steps:
    """A member is killed, then a master, again and again."""
    yield d.is_whole
    for _ in range(_ROUNDS):
        yield d.pass_ms(_BETWEEN_MS)
        d.begin("kill", BROADCASTER, for_ms=300)
        yield d.pass_ms(_BETWEEN_MS)
        yield from d.fail_over(for_ms=800)
        d.saw("failovers")
    d.mark("after")
    yield d.pass_ms(_BETWEEN_MS)


def have_gone_on(result: Result) -> list[str]:
    """Each sort of group did what it is there for, also after the last failover."""
    entries = result.history.entries
    moved = {
        entry.consumer_group
        for entry in entries
        if isinstance(entry, Commit) and entry.is_reset and entry.outcome is Outcome.OK
    }
    resent = [
        entry for entry in entries if isinstance(entry, Resend) and entry.outcome is Outcome.OK
    ]
    return [
        *unseen(result, failovers=_ROUNDS),
        *unserved(result, {LITE_GROUP, MOVED_GROUP, BROADCAST_GROUP}, since="after"),
        *[f"group {name} was never moved" for name in sorted({LITE_GROUP, MOVED_GROUP} - moved)],
        *([] if resent else ["no dead letter was resent"]),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]
