"""Rights change while their users work, at two addresses, and a master dies (S31, S42 to S44)."""

from collections import Counter

from paceline_chaos.cluster_sim.all_ack.questions import unseen
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.history.model import Operation, Outcome
from paceline_chaos.history.secured import ListNames, SecurityApplied

_ROUNDS = 2
_BETWEEN_MS = 4_000
_REFUSALS = ("NOT_AUTHORIZED", "UNAUTHENTICATED")


def rights(d: Director) -> Steps:
    """The master dies, twice."""
    yield d.is_whole
    for _ in range(_ROUNDS):
        yield d.pass_ms(_BETWEEN_MS)
        yield from d.fail_over(for_ms=800)
        d.saw("failovers")
    yield d.pass_ms(_BETWEEN_MS)


def were_judged(result: Result) -> list[str]:
    """Rights were on and changed often; of each kind somebody was allowed and somebody refused."""
    entries = result.history.entries
    versions = [entry for entry in entries if isinstance(entry, SecurityApplied)]
    outcomes: Counter[str] = Counter()
    for entry in entries:
        if isinstance(entry, Operation) and entry.access_key:
            kind = type(entry).__name__
            outcomes[f"{kind} allowed"] += entry.outcome is Outcome.OK
            outcomes[f"{kind} refused"] += entry.error in _REFUSALS
    wanted = [f"{kind} {what}" for kind in ("Send", "Pull") for what in ("allowed", "refused")]
    lists = [entry for entry in entries if isinstance(entry, ListNames) and entry.topics]
    return [
        *unseen(result, failovers=_ROUNDS),
        *[f"never seen: {what}" for what in wanted if not outcomes[what]],
        *([] if lists else ["nobody was shown a topic"]),
        *([] if len({one.version for one in versions}) > 12 else ["rights did not change"]),
        *([] if any(one.security["mode"] == "on" for one in versions) else ["rights were off"]),
    ]
