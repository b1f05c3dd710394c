"""How long a world may take, from its own timers: the bounds of its liveness checks.

What has to happen after the last fault, one after another: a connect that a cut has swallowed is
repeated (the system does it after 1, 3 and 7 s; connects of ours end after 3 s at most), the
controllers elect a leader, it finds the master silent, another one opens its epoch. Replicas come
back into the set after that, at most one refusal of theirs later. Who breaks for ever may do so at
the heal itself, and may have been elected before that is known.
"""

from paceline_chaos.checkers.evidence.bounds import Bounds
from paceline_chaos.cluster_sim.jobs.sending import OUTCOME_MS_MAX
from paceline_chaos.cluster_sim.topology import Topology

_CONNECT_MS = 3_000
"""Until a connection that was cut while it was made is tried anew, and stands."""
_LEADER_MS = 1_000
"""An election of Raft, and its first entry."""
_NEWS_MS = 500
"""Until clients have heard of a new master and an answer is back."""
_REJOIN_MS = 3_000
"""Catching up, and the back-off after a failed attempt to join (R12)."""
_GAP_MS = 1_500
"""L2: the promise of a failover."""
_CLOSE_MS = 1_000
_WORD_MS = 9_000
"""L5: so long after the controllers' word an acting master may still grant a lease (R36)."""
_PACE_SHARE = 100
"""Clocks differ by one part in so many, and by `_MARGIN_MS`."""
_MARGIN_MS = 1_000
_REPAIR_MS = 3_000
"""L8: a log is mended so long after the verification that finds the damage."""


def bounds_of(topology: Topology, *, has_gray: bool) -> Bounds:
    """`has_gray`: somebody stays broken whose port still answers, so that a set may shrink in the
    middle of calm."""
    timers = topology.timers
    master_ms = _CONNECT_MS + _LEADER_MS + timers.heartbeat_timeout_ms
    leases_ms = _WORD_MS + topology.lock_lease_ms
    return Bounds(
        first_ack_us=1000 * (master_ms + _NEWS_MS),
        master_us=1000 * master_ms,
        full_set_us=1000 * (master_ms + timers.replica_lag_ms_max + _REJOIN_MS),
        failover_us=1000 * (timers.heartbeat_timeout_ms + timers.election_open_timeout_ms),
        settle_us=1000 * (master_ms + timers.replica_lag_ms_max),
        calm_gap_us=1000 * (_GAP_MS + (timers.replica_lag_ms_max if has_gray else 0)),
        withheld_us=1000 * (leases_ms + leases_ms // _PACE_SHARE + _MARGIN_MS),
        repair_us=1000 * (master_ms + 2 * topology.scrub_ms + _REPAIR_MS),
        patience_us=1000 * (OUTCOME_MS_MAX + _CLOSE_MS),
    )
