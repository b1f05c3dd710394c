"""The disks of both replicas fill up (R26): sends are refused, and each refusal says why."""

from collections.abc import Callable

from paceline.errors import DiskFullError, PacelineError
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Condition, Director, Steps

FULL_MS = 2_000
WATCHED_MS = 800


def replicas_full(d: Director) -> Steps:
    """The master has room, and cannot do without one of them."""
    yield d.is_whole
    yield d.pass_ms(300)
    master = d.mastership_of(d.master)
    assert master is not None
    for replica in d.replicas:
        d.begin("disk_full", replica.name, for_ms=FULL_MS)
    yield lambda: not master.term.can_accept()
    yield _watched(d, master.ensure_can_append, d.pass_ms(WATCHED_MS))
    d.saw("refusals")
    yield d.is_whole
    d.mark("after")
    yield d.pass_ms(500)


def _watched(d: Director, ensure_can_append: Callable[[], None], until: Condition) -> Condition:
    """`until`; and whatever is refused before is refused for the full disks."""
    wrong = "a send was refused for another reason than full disks (R26)"

    def look() -> bool:
        try:
            ensure_can_append()
        except DiskFullError:
            d.notes.seen["looks"] += 1
        except PacelineError:
            d.expect(wrong in d.notes.wrong, wrong)
        return until()

    return look


def said_so(result: Result) -> list[str]:
    return [
        *unseen(result, refusals=1, looks=100),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]
