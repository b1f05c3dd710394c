"""Messages with keys are looked for while the master dies twice, and once all is whole: S40, L7."""

from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.history.model import Find, Outcome

_ROUNDS = 2
_BETWEEN_MS = 1_500


def queries(d: Director) -> Steps:
    """The master dies, twice."""
    yield d.is_whole
    for _ in range(_ROUNDS):
        yield d.pass_ms(_BETWEEN_MS)
        yield from d.fail_over(for_ms=800)
        d.saw("failovers")
    d.mark("after")
    yield d.pass_ms(_BETWEEN_MS)


def were_answered(result: Result) -> list[str]:
    """In every way something was found, by key more than one answer holds."""
    finds = [
        entry
        for entry in result.history.entries
        if isinstance(entry, Find) and entry.outcome is Outcome.OK and entry.found
    ]
    most = max((len(entry.found) for entry in finds if entry.by == "key"), default=0)
    ways = {"key", "unique_key", "id", "time"} - {entry.by for entry in finds}
    return [
        *unseen(result, failovers=_ROUNDS),
        *[f"nothing was found by {by}" for by in sorted(ways)],
        *([] if most > _ANSWER_MAX else [f"by key at most {most} were found: one answer"]),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]


_ANSWER_MAX = 32
