"""Groups with filters, by tag and by SQL92, whose member and master die (S39)."""

from paceline_chaos.history.model import Deliver
from paceline_chaos.world.all_ack.questions import acknowledged, unequal_logs, unseen
from paceline_chaos.world.jobs.filtering import PULL_GROUP, SQL_GROUP, TAGS_GROUP
from paceline_chaos.world.run import Result
from paceline_chaos.world.script import Director, Steps

MEMBER = "client-3"
_BETWEEN_MS = 1_200


def filters(d: Director) -> Steps:
    """A member is killed, then the master."""
    yield d.is_whole
    yield d.pass_ms(_BETWEEN_MS)
    d.begin("kill", MEMBER, for_ms=300)
    yield d.pass_ms(_BETWEEN_MS)
    d.kill(d.master, for_ms=800)
    yield lambda: not d.is_whole()
    yield d.is_whole
    d.saw("failovers")
    d.mark("after")
    yield d.pass_ms(_BETWEEN_MS)


def were_given(result: Result) -> list[str]:
    """Each group was given something, also after the failover."""
    assert result.notes is not None
    after_us = result.notes.marks["after"]
    served = {
        entry.consumer_group
        for entry in result.history.entries
        if isinstance(entry, Deliver) and entry.asked_us > after_us
    }
    groups = {TAGS_GROUP, SQL_GROUP, f"{PULL_GROUP}client-2", f"{PULL_GROUP}{MEMBER}"}
    return [
        *unseen(result, failovers=1),
        *[f"group {name} got nothing after the failover" for name in sorted(groups - served)],
        *([] if acknowledged(result, since="after") else ["nothing was acknowledged afterwards"]),
        *unequal_logs(result),
    ]
