"""Pure: what made a world worth something, counted: where nothing goes wrong nothing is proved.

`COVERAGE` names what must happen somewhere in a batch of worlds; none may be zero over 60 of them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from paceline_chaos.history.model import Decision, Entry, FaultEvent, Operation, Send

COVERAGE: Mapping[str, str] = {
    "operations": "operations of clients",
    "faults": "faults that hit somebody",
    "elections": "masters elected, the first of a group not counted",
    "elections_by_death": "... as the master was dead or vacant",
    "elections_by_request": "... as it stepped down, was unhealthy, or did not get on",
    "shrinks": "members that left a sync state set",
    "grows": "members that came back",
    "truncations": "logs cut at the parting point",
    "torn_tails": "logs with a torn or unwhole end after a power loss",
    "retries_deduplicated": "sends that a retry found stored",
    "zombie_masters": "masters that did not know yet that another epoch had begun",
    "controller_terms": "leaderships of controllers after the first",
    "power_losses": "power cuts, those inside disk operations too",
    "disk_faults": "faults of disks",
    "network_faults": "faults of the network",
    "clock_faults": "faults of clocks",
    "exits": "processes that ended by themselves or were killed as unhealthy",
}
_BY_DEATH = ("dead", "vacant", "gone", "silent", "lost")


def coverage(
    entries: Iterable[Entry], *, logged: Mapping[str, int], hits: Mapping[str, int]
) -> Counter[str]:
    """`logged`: events that nodes logged; `hits`: faults that hit somebody, by kind."""
    counts: Counter[str] = Counter(dict.fromkeys(COVERAGE, 0))
    counts["faults"] = sum(hits.values())
    counts["truncations"] = logged.get("log_truncated", 0)
    counts["torn_tails"] = logged.get("log_tail_cut", 0)
    counts["controller_terms"] = max(0, logged.get("leading", 0) - 1)
    counts["power_losses"] = hits.get("power", 0) + hits.get("power_at_blown", 0)
    for kind, count in hits.items():
        counts["disk_faults"] += count * kind.startswith("disk_")
        counts["clock_faults"] += count * kind.startswith("clock_")
        counts["network_faults"] += count * (kind in _NETWORK)
    decisions: dict[int, Decision] = {}
    for entry in entries:
        match entry:
            case Operation():
                counts["operations"] += 1
                if isinstance(entry, Send) and entry.is_duplicate:
                    counts["retries_deduplicated"] += 1
            case FaultEvent(kind="exit"):
                counts["exits"] += 1
            case Decision():
                decisions.setdefault(entry.index, entry)
    _count_decisions(decisions.values(), counts)
    return counts


_NETWORK = frozenset({"cut", "isolate", "split", "bridge", "flap", "reset", "slow_link"})


def _count_decisions(decisions: Iterable[Decision], counts: Counter[str]) -> None:
    sets: dict[str, set[int]] = {}
    for decision in sorted(decisions, key=lambda one: one.index):
        group = str(decision.members.get("group"))
        members = decision.members.get("sync_state_set")
        if isinstance(members, list):
            before, after = sets.get(group, set(members)), set(members)
            counts["shrinks"] += len(before - after)
            counts["grows"] += len(after - before)
            sets[group] = after
        if decision.kind == "master_elected" and decision.members.get("reason") != "first":
            counts["elections"] += 1
            reason = str(decision.members.get("reason"))
            by_death = any(word in reason for word in _BY_DEATH)
            counts["elections_by_death" if by_death else "elections_by_request"] += 1
