"""Pure: what made a world worth something, counted: where nothing goes wrong nothing is proved.

`COVERAGE` names what must happen somewhere in a batch of worlds; none may be zero over 60 of them,
nor may a property never have been judged. `MEANS` is what an average world must have seen.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from paceline_chaos.checkers import ALL
from paceline_chaos.faults.plan import PLANNED_IN_WORLDS
from paceline_chaos.history.decided import decided
from paceline_chaos.history.model import Commit, Decision, Entry, FaultEvent, Operation, Send

COVERAGE: Mapping[str, str] = {
    "operations": "operations of clients",
    "faults": "faults that hit somebody",
    "elections": "masters elected, the first of a group not counted",
    "elections_by_death": "... as the master was dead or vacant",
    "elections_by_request": "... as it stepped down, was unhealthy, or did not get on",
    "elections_unclean": "... by order, with the loss of records (R21)",
    "shrinks": "members that left a sync state set",
    "grows": "members that came back",
    "truncations": "logs cut at the divergence point",
    "segments_begun": "files of logs after the first, counted in the end",
    "retentions": "decisions of masters to give up segments (R26)",
    "torn_tails": "logs with a torn or unwhole end after a power loss",
    "retries_deduplicated": "sends that a retry found stored",
    "zombie_masters": "masters that did not know yet that another epoch had begun",
    "controller_terms": "leaderships of controllers after the first",
    "power_losses": "power cuts, those inside disk operations too",
    "disk_faults": "faults of disks",
    "network_faults": "faults of the network",
    "clock_faults": "faults of clocks",
    "learners": "learners that had what was confirmed in the end (R18)",
    "acting_masters": "replicas outside of the set that were appointed as acting master (R36)",
    "provisional_commits": "offsets that an acting master took",
    "repairs": "logs that were damaged and mended by another member (R24)",
    "brokers_replaced": "replicas whose place another machine took, and that were forgotten",
    "controllers_replaced": "controllers whose place another took under a new id (R18)",
    "masters_ordered": "masters that an operator of the plan had take over, gracefully",
    "leaders_ordered": "controllers that an operator had lead",
    **{f"hit_{kind}": f"faults of the kind {kind} that hit somebody" for kind in PLANNED_IN_WORLDS},
    "exits": "processes that ended by themselves or were killed as unhealthy",
}
MEANS: Mapping[str, int] = {"operations": 1_000, "faults": 5, "elections": 1}
WORLDS_FOR_COVERAGE = 60
"""From so many on a batch has to have seen everything."""
JUDGED_BY_MOMENTS = frozenset({"S38"})
"""No random world has its switch on: the script of its moment judges it."""
_JUDGED = "judged_"
_EXCUSED = "excused_"
_BY_DEATH = ("dead", "vacant", "gone", "silent", "lost")


def coverage(
    entries: Iterable[Entry], *, logged: Mapping[str, int], hits: Mapping[str, int]
) -> Counter[str]:
    """`logged`: events that nodes logged; `hits`: faults that hit somebody, by kind."""
    counts: Counter[str] = Counter(dict.fromkeys(COVERAGE, 0))
    counts["faults"] = sum(hits.values())
    counts["truncations"] = logged.get("log_truncated", 0)
    counts["retentions"] = logged.get("retention_decided", 0)
    counts["torn_tails"] = logged.get("log_tail_cut", 0)
    counts["controller_terms"] = max(0, logged.get("leading", 0) - 1)
    counts["repairs"] = logged.get("log_repaired", 0)
    counts["power_losses"] = hits.get("power", 0) + hits.get("power_at", 0)
    for kind, count in hits.items():
        counts[f"hit_{kind}"] += count
        counts["disk_faults"] += count * kind.startswith("disk_")
        counts["clock_faults"] += count * kind.startswith("clock_")
        counts["network_faults"] += count * (kind in _NETWORK)
    entries = list(entries)
    for entry in entries:
        match entry:
            case Operation():
                counts["operations"] += 1
                if isinstance(entry, Send) and entry.is_duplicate:
                    counts["retries_deduplicated"] += 1
                if isinstance(entry, Commit) and entry.is_provisional:
                    counts["provisional_commits"] += 1
            case FaultEvent(kind="exit"):
                counts["exits"] += 1
    counts["acting_masters"] = len(
        {
            (entry.members.get("group"), entry.members.get("master_epoch"))
            for entry in entries
            if isinstance(entry, Decision) and entry.kind == "acting_master_appointed"
        }
    )
    rulings = decided(entries)
    counts["shrinks"], counts["grows"] = rulings.shrinks, rulings.grows
    counts["elections"] = rulings.elections
    for reason, count in rulings.by_reason.items():
        by_death = any(word in reason for word in _BY_DEATH)
        counts["elections_by_death" if by_death else "elections_by_request"] += count
    counts["elections_unclean"] = rulings.by_reason.get("unclean", 0)
    return counts


_NETWORK = frozenset({"cut", "isolate", "split", "bridge", "flap", "reset", "slow_link"})


def judged_counts(counters: Mapping[str, int]) -> dict[str, int]:
    """How much there was to judge and what was excused, by the counters of a verdict."""
    judged = {f"{_JUDGED}{name}": counters.get(f"judged.{name}", 0) for name in ALL}
    excused = {
        f"{_EXCUSED}{name.partition('.')[2]}": count
        for name, count in counters.items()
        if name.startswith("excused.")
    }
    return judged | excused


def said_of_judged(sums: Mapping[str, int]) -> str:
    """One line: how much there was to judge, and how often an excuse was taken."""
    counts = (f"{name}={sums.get(f'{_JUDGED}{name}', 0)}" for name in ALL)
    excused = (
        f"{name.removeprefix(_EXCUSED)}={count}"
        for name, count in sorted(sums.items())
        if name.startswith(_EXCUSED)
    )
    return f"judged: {' '.join(counts)}; excused: {' '.join(excused) or 'nothing'}"


def lacks(sums: Mapping[str, int], *, worlds: int) -> list[str]:
    """What a batch of worlds has not shown, as sentences; too few worlds owe nothing."""
    if worlds < WORLDS_FOR_COVERAGE:
        return []
    found = [
        f"{sums.get(name, 0) / worlds:.1f} {COVERAGE[name]} in a world, fewer than {least}"
        for name, least in MEANS.items()
        if sums.get(name, 0) < least * worlds
    ]
    found += [f"never seen: {what}" for name, what in COVERAGE.items() if not sums.get(name)]
    owed = [name for name in ALL if name not in JUDGED_BY_MOMENTS]
    found += [f"never judged: {name}" for name in owed if not sums.get(f"{_JUDGED}{name}")]
    return found
