"""Pure: numbers against which liveness is judged; the reference's values are the defaults."""

from dataclasses import dataclass

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """All in microseconds of the history's clock unless named otherwise."""

    first_ack_us: int = 2 * SECOND_US
    """L1: from healing to the first acknowledgement."""
    master_us: int = 3 * SECOND_US
    """L1: from healing to an open master in every group."""
    full_set_us: int = 10 * SECOND_US
    """L1: from healing until all that work are in the sync state set (plus lag / throughput)."""
    failover_us: int = 3 * SECOND_US
    """L3: so much more than in L1, for what breaks for ever may break at the moment of healing."""
    drain_us: int = 30 * SECOND_US
    """L1: from the drain's beginning until everything acknowledged has been read."""
    calm_gap_us: int = 1_500_000
    """L2: acknowledgements never stop for longer while nothing is broken."""
    settle_us: int = 5 * SECOND_US
    """L2, L5: so long after a fault the cluster may still be at work on it."""
    patience_us: int = 45 * SECOND_US
    """L4: no operation waits longer for its outcome (30 s of delivery timeout, and close)."""
    progress_us: int = 5 * SECOND_US
    """L5: a consumer group with messages to consume makes progress in every such window. L11: who
    waits for a queue's range has it."""
    withheld_us: int = 70_690_000
    """L5: an epoch grants no locks for so long after an acting master that may have (R36): the
    longest lease (60 s) granted on the controllers' last word (good for 9 s), 1 % for clocks that
    run unequally, and 1 s."""
    elections_per_fault: int = 2
    """L6."""
    commit_us: int = 5 * SECOND_US
    """L9: what a group has processed for so long is committed."""
    repair_us: int = 30 * SECOND_US
    """L8: from damage, or from healing where that came later, until the log is whole again."""
    rights_us: int = 2 * SECOND_US
    """L12: a change of users and rights counts at all nodes; a second is promised, and one more for
    a session that is being made."""
    attempts_max: int = 16
    """S21: a message handed out so often may be given up (`PushSettings.attempts_max`)."""
