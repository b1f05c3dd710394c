"""Pure: what a run of the Raft bed has been through; a counter that stays zero is a blind spot."""

from collections.abc import Mapping

COUNTERS: Mapping[str, str] = {
    "runs_of_3": "runs with three nodes",
    "runs_of_5": "runs with five nodes",
    "commands_acknowledged": "appends acknowledged",
    "unknown": "appends given up with their outcome unknown",
    "repeated": "attempts that repeated a sequence (R38)",
    "answered_twice": "repetitions answered by what an earlier attempt did (R38)",
    "late": "appends refused after their deadline (R38)",
    "reads": "reads behind a barrier",
    "redirects": "attempts refused by a node that did not lead",
    "terms": "terms with a leader",
    "votes": "votes given to others",
    "applied": "commands applied, on any node",
    "compactions": "snapshots taken",
    "snapshots_installed": "snapshots of a leader put in",
    "snapshots_loaded": "starts from an own snapshot",
    "segments_begun": "journal segments begun, over the first of each node",
    "truncations": "tails of journals cut by a leader's entries",
    "wishes": "changes of members that a leader took in (R18)",
    "generations": "generations of the member list that were committed, over the first",
    "joined": "nodes that joined and vote in the end",
    "left": "nodes that were removed",
    "starts": "processes started",
    "deaths_by_disk": "machines that died inside an operation of their disk",
    "deaths_in_step": "processes that died inside a step",
    "ends_by_disk": "processes that ended themselves for their disk (R22)",
    "segments_flipped": "older segments of which a bit changed",
    "refusals": "starts refused for a damaged journal (R18, R23)",
    "deposed_proposals": "commands taken in by a leader that another had replaced",
    **{
        f"fault_{kind}": f"faults: {kind}"
        for kind in (
            *("kill", "power", "power_at", "die_at", "pause", "stop", "transfer", "isolate"),
            *("cut", "bridge", "reset", "slow_link", "disk_fail", "disk_full", "disk_stall"),
            *("replace", "add", "remove"),
            *("disk_flip", "disk_lost", "clock_rate", "clock_step", "all"),
        )
    },
}
"""Counter -> what it counts."""
