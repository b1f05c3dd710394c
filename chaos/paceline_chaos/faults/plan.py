"""Pure: faults as data, for both beds and for real processes.

A plan is a list that can be written down, replayed and shrunk. A fault says when it begins, how
long it lasts and whom it hits. Targets are names ("g1-b2", "c1", "client-3") or roles, which are
resolved when the fault begins: "master:g1", "replica:g1", "any:g1", "leader", "follower", "all",
"brokers", "controllers".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a plan."""

    at_ms: int
    kind: str
    target: str
    for_ms: int = 0
    """How long it lasts; a killed node starts again after it. 0: a single blow."""
    other: str | None = None
    """The other side of a cut or a slow link: "g1-b2", "leader", "clients", "controllers" ..."""
    details: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the kind: `delay_ms`, `offset_ms`, `rate`, `file` ..."""


KINDS: Mapping[str, str] = {
    "kill": "the process dies (kill -9) and starts again after `for_ms`",
    "stop": "SIGTERM: a graceful stop, and a start after `for_ms`",
    "roll": "SIGTERM to one node of the target after the other, each up again after `for_ms`; the"
    " next one follows when everything is in sync",
    "pause": "the process stands still (SIGSTOP) for `for_ms`, then goes on",
    "power": "the machine loses power: what was not synced is lost or torn; boots after `for_ms`",
    "power_at": "power loss inside the disk operations that follow, after `operations` of them",
    "cut": "nothing gets from target to other (one way), what is sent waits",
    "isolate": "the target and all others hear nothing of each other",
    "split": "two halves: target side (a comma-separated list) against the rest",
    "bridge": "two halves that only the target reaches",
    "flap": "the link target-other is cut and healed every `period_ms`",
    "reset": "all connections of the target are reset",
    "thin_link": "only `rate_kbit` each way between target and other (real processes)",
    "slow_link": "delay_ms more each way between target and other",
    "disk_fail": "the next `count` syncs or writes fail (`call`: 0 sync, 1 write)",
    "disk_stall": "every sync takes `delay_ms` for `for_ms`",
    "disk_cold": "for `for_ms` what is read falls out of the page cache; reading it anew takes"
    " `delay_ms`",
    "disk_full": "no space left for `for_ms`",
    "disk_flip": "one stored bit changes (`region`: 0 anywhere, 1 below confirm); or `zeros` bytes"
    " from there on are zeros",
    "disk_lost": "the process dies and comes back with an empty disk",
    "disk_stale": "the process dies and comes back with an older copy of its disk",
    "disk_missing": "a file of the log is gone (`which`: 0 any, 1 the first, 2 the last)",
    "disk_wiped": "the process dies, and log and projections are gone; its identity is still there",
    "replace": "the target dies for ever, its disk is thrown away; after `for_ms` another machine"
    " takes its place, with an empty disk and a new id. A controller lives until the members have"
    " changed, or with `dead` 1 dies before",
    "transfer": "the operator has the target's group led by the target, gracefully",
    "lead": "the operator has the controllers led by the target",
    "clock_step": "the wall clock jumps by `offset_ms`",
    "renew": "all nodes of a secure cluster get new certificates and read them (real processes);"
    " `authority` 1: of another authority, in three steps",
    "exit": "the process ended by itself (never planned); a service manager starts it again",
    "clock_rate": "both clocks run at `rate` for `for_ms`",
}
PLANNED_IN_WORLDS = tuple(
    kind for kind in KINDS if kind not in ("roll", "thin_link", "renew", "exit")
)
"""What the plans of simulated worlds draw: all but what is for real processes, or planned by
nobody."""
