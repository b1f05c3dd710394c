"""Rights change while their users work, and a master dies (S31, S42 to S44, L13)."""

from collections import Counter

from paceline_chaos.cluster_sim.all_ack.questions import unseen
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.history.model import (
    Ack,
    BeginTransaction,
    CheckTransaction,
    Commit,
    Deliver,
    EndTransaction,
    Lock,
    Operation,
    Outcome,
    Unlock,
)
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


def left_behind(d: Director) -> Steps:
    """The master dies, once; then there is calm, as far as the operator leaves any."""
    yield d.is_whole
    yield d.pass_ms(_BETWEEN_MS)
    yield from d.fail_over(for_ms=800)
    d.saw("failovers")
    yield d.pass_ms(_BETWEEN_MS)


def were_judged(result: Result) -> list[str]:
    """Rights were on and changed often; of each kind somebody was allowed and somebody refused."""
    entries = result.history.entries
    outcomes = _outcomes(result)
    versions = [entry for entry in entries if isinstance(entry, SecurityApplied)]
    wanted = [f"{kind} {what}" for kind in ("Send", "Pull") for what in ("allowed", "refused")]
    lists = [entry for entry in entries if isinstance(entry, ListNames) and entry.topics]
    return [
        *unseen(result, failovers=_ROUNDS),
        *[f"never seen: {what}" for what in wanted if not outcomes[what]],
        *([] if lists else ["nobody was shown a topic"]),
        *([] if len({one.version for one in versions}) > 12 else ["rights did not change"]),
        *([] if any(one.security["mode"] == "on" for one in versions) else ["rights were off"]),
    ]


def _outcomes(result: Result) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for entry in result.history.entries:
        if isinstance(entry, Operation) and entry.access_key:
            kind = type(entry).__name__
            outcomes[f"{kind} allowed"] += entry.outcome is Outcome.OK
            outcomes[f"{kind} refused"] += entry.error in _REFUSALS
    return outcomes


def were_left_behind(result: Result) -> list[str]:
    """Of each kind somebody was allowed, rights went in the middle of something, and what was left
    behind was judged."""
    outcomes = _outcomes(result)
    kinds = (BeginTransaction, EndTransaction, Ack, Lock, CheckTransaction, Deliver)
    wanted = [f"{kind.__name__} allowed" for kind in kinds]
    held = (EndTransaction, Ack, Lock, Unlock, Commit)
    is_seen = any(outcomes[f"{kind.__name__} refused"] for kind in held)
    judged = result.verdict.counters.get("judged.L13", 0)
    return [
        *unseen(result, failovers=1),
        *[f"never seen: {what}" for what in wanted if not outcomes[what]],
        *([] if is_seen else ["nobody was refused who had something under way"]),
        *([] if judged else ["L13 was not judged"]),
    ]
