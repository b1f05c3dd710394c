"""Pure: what a run has been through, counted; a counter that stays zero means a bed that is blind.

Names are fixed, so that sums over many seeds show zeros too.
"""

from collections.abc import Iterable, Mapping

COUNTERS: Mapping[str, str] = {
    "sends_acknowledged": "messages answered OK",
    "sends_failed": "messages reported as not stored",
    "sends_unknown": "messages reported as stored or not",
    "batches_deduplicated": "batches that were retried and had been stored (R30, R31)",
    "attempts_unknown": "attempts of batches without an answer",
    "producer_epochs_raised": "producers that went on under a new epoch (R32)",
    "sends_refused_set": "attempts refused for too few in-sync replicas (R8)",
    "sends_refused_overload": "attempts refused with 429 (R27)",
    "fetches_master": "fetches answered by an open master",
    "fetches_replica": "fetches answered by a replica",
    "fetches_waiting": "fetches told that something is not available yet (R3)",
    "commits": "offsets committed",
    "commits_refused": "commits refused: fenced, moved back, out of range (R33)",
    "resets": "offsets reset",
    "locks_granted": "queue locks granted or renewed",
    "locks_refused": "queue locks held by another, or fenced",
    "queries": "offsets and ends answered after a read round (R4)",
    "epochs": "masterships begun",
    "epochs_opened": "masterships whose start record was confirmed",
    "elections_first": "elections: the group's first",
    "elections_no_master": "elections: the master restarted",
    "elections_dead": "elections: the master's port refused",
    "elections_silent": "elections: nothing heard of the master",
    "elections_unhealthy": "elections: the master's disk failed, or it has fenced itself",
    "elections_mistaken": "elections: the leader was wrong about a master",
    "elections_transfer": "elections: asked for",
    "elections_refused": "elections that no longer fitted when they were applied (R15)",
    "shrinks": "set changes to fewer members",
    "grows": "set changes to more members",
    "removals": "members removed at registration (R9, R13, R16, R23)",
    "set_changes_refused": "proposed sets that were refused",
    "set_changes_repeated": "proposals sent again, their outcome unknown (R7)",
    "fences": "masterships ended by themselves",
    "zombie_masters": "masters that were at work after another was elected",
    "zombie_requests": "client requests that reached such a master",
    "truncations": "logs cut at a handshake",
    "torn_tails": "logs cut at recovery",
    "suspects": "stores that registered as suspect (R23)",
    "checkpoints": "projection checkpoints written",
    "checkpoint_restores": "processes that began from a projection checkpoint (INV-9)",
    "kills": "processes killed",
    "pauses": "processes stopped and resumed",
    "power_losses": "machines that lost power",
    "crash_points": "machines that lost power inside a disk operation",
    "crashes_aimed": "cuts, new beginnings and recoveries in which the power was to fail",
    "disk_failures": "processes whose disk failed a call (R22)",
    "disks_lost": "disks replaced by empty ones",
    "stale_copies": "disks replaced by older copies of themselves (R9, R16)",
    "partitions": "partitions",
    "one_way_cuts": "brokers that did not hear the controllers",
    "frames_corrupted": "replication frames in which a byte changed on the way (R24)",
    "tails_flipped": "stores of which a bit in the last durable batch changed (R23)",
    "resets_network": "connections reset",
    "clock_steps": "wall clocks stepped",
    "commands_repeated": "commands that were applied before (R38)",
    "commands_late": "commands to the controllers that came late or twice",
    "given_up": "runs that ended with a decision for the operator",
    "given_up_lost": "of those: every member has lost records, or is gone (R9, R16)",
    "given_up_suspect": "of those: a suspect waits for a member that is gone (R23)",
    "unconfirmed_answers": "messages answered before confirm (R37)",
    "learners_whole": "learners that had everything in the end (R18)",
    "transfers_ordered": "orders to hand over",
    "transfers_granted": "masters that drained, asked, and were replaced (R20)",
    "transfers_refused": "masters that went on: they could not drain, or nobody could follow",
    "retentions": "decisions of masters to give up segments (R26)",
    "log_starts_moved": "times that a broker let given up segments go",
    "logs_cut_short": "logs that began above 0 in the end",
    "installs": "replicas that began anew with their master's checkpoint (R14)",
    "runs_memory": "runs with memory durability",
    "runs_min_one": "runs in which one member may confirm",
    "runs_min_all": "runs in which nobody may leave the set",
    "runs_early": "runs in which a fixed count of members lets answers leave early (R37)",
    "runs_early_auto": "runs in which that count follows who keeps up (R37)",
    **{
        f"{name}_of_{size}": f"{meaning}, groups of {size}"
        for size in (2, 3, 4, 5)
        for name, meaning in (
            ("runs", "runs"),
            ("acknowledged", "messages answered OK"),
            ("epochs", "masterships whose start record was confirmed"),
            ("set_changes", "shrinks and grows"),
            ("truncations", "logs cut at a handshake"),
        )
    },
}
"""Counter -> what it counts."""


class Coverage:
    """Counters of one run, or the sum of many."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(COUNTERS, 0)

    def saw(self, name: str, count: int = 1) -> None:
        """One more; KeyError for a name that is not in COUNTERS."""
        self.counts[name] += count

    def add(self, counts: Mapping[str, int]) -> None:
        """Sum up another run; names that another version counted are kept too."""
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


def zeros(
    counts: Mapping[str, int], *, of: Mapping[str, str] = COUNTERS, but: Iterable[str] = ()
) -> list[str]:
    """Names that were never seen."""
    spared = set(but)
    return [name for name in of if not counts.get(name) and name not in spared]
