"""Groups with filters, by tag and by SQL92, whose member and master die (S39)."""

from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen, unserved
from paceline_chaos.cluster_sim.jobs.filtering import PULL_GROUP, SQL_GROUP, TAGS_GROUP
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps

MEMBER = "client-3"
_BETWEEN_MS = 1_200


def filters(d: Director) -> Steps:
    """A member is killed, then the master."""
    yield d.is_whole
    yield d.pass_ms(_BETWEEN_MS)
    d.begin("kill", MEMBER, for_ms=300)
    yield d.pass_ms(_BETWEEN_MS)
    yield from d.fail_over(for_ms=800)
    d.saw("failovers")
    d.mark("after")
    yield d.pass_ms(_BETWEEN_MS)


def were_given(result: Result) -> list[str]:
    """Each group was given something, also after the failover."""
    groups = {TAGS_GROUP, SQL_GROUP, f"{PULL_GROUP}client-2", f"{PULL_GROUP}{MEMBER}"}
    return [
        *unseen(result, failovers=1),
        *unserved(result, groups, since="after"),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]
