"""Which group a seed runs: size, minimum, durability, and how early it answers.

Every shape is one that an operator may configure. Three replicas with a majority as minimum, and
answers at confirm, is what most groups are, so most seeds are that; every other one has its share,
since rules meet differently there: two replicas with minimum two stop at every death, minimum one
leaves the master alone, five of five confirm with nobody to spare.
"""

from collections.abc import Mapping
from typing import Any

from paceline.wire.cluster import GroupSettings
from paceline_chaos.history.model import ALL_ACK, AUTO_IN_SYNC, IN_SYNC
from paceline_chaos.protocol_sim.dice import Dice

SIZES = (3, 3, 3, 3, 3, 2, 2, 4, 4, 5)
"""Three most often. Large groups cost more and move less in the same time."""
MEMORY_SHARE = 0.33
MAJORITY_SHARE = 0.5
"""The others have any minimum, the majority too."""
EARLY_SHARE = 0.15
"""Groups that answer before confirm (R37)."""
EARLY_AUTO_SHARE = 0.4
LEARNER_SHARE = 0.15
RETENTION_SHARE = 0.6
RETAINED_SEGMENT_BYTES_MAX = 16384
"""Logs of a run have some of these."""


def draw_settings(dice: Dice) -> GroupSettings:
    """The settings of one run's group."""
    total = dice.one_of(SIZES)
    minimum = total // 2 + 1
    if not dice.happens(MAJORITY_SHARE):
        minimum = 1 + dice.below(total)
    return GroupSettings(
        total_replicas=total,
        min_in_sync_replicas=minimum,
        durability="memory" if dice.happens(MEMORY_SHARE) else "fsync",
        all_ack_in_sync_state_set=not dice.happens(EARLY_SHARE),
        in_sync_replicas=1 + dice.below(total),
        enable_auto_in_sync_replicas=dice.happens(EARLY_AUTO_SHARE),
    )


def draw_learners(seed: int) -> int:
    """How many more nodes there are that are never members (R18); apart from all other draws."""
    return int(Dice(f"core bed learners {seed}").happens(LEARNER_SHARE))


def draw_log_bytes(seed: int, segment_bytes: int) -> int:
    """From what size on a master gives up segments, 0 for never (R26); as above."""
    dice = Dice(f"core bed retention {seed}")
    if segment_bytes > RETAINED_SEGMENT_BYTES_MAX or not dice.happens(RETENTION_SHARE):
        return 0
    return segment_bytes * dice.one_of([2, 3, 5])


def losses_max(settings: GroupSettings) -> int:
    """How many copies may be lost without the loss of anything acknowledged.

    R8: whatever is confirmed is on so many members, and none of them is left out before another has
    joined; so all but one of those may lose their copy, and with one none.
    """
    return copies_min(settings) - 1


def told_to_checkers(settings: GroupSettings) -> dict[str, Any]:
    """What of the group's settings its history says of the world."""
    return {
        "durability": settings.durability,
        "min_in_sync_replicas": settings.min_in_sync_replicas,
        ALL_ACK: settings.all_ack_in_sync_state_set,
        IN_SYNC: settings.in_sync_replicas,
        AUTO_IN_SYNC: settings.enable_auto_in_sync_replicas,
    }


def copies_min(settings: GroupSettings) -> int:
    """Whatever is confirmed is on this many members (R8, R37); said here anew, for the judge."""
    count = settings.min_in_sync_replicas
    if not settings.all_ack_in_sync_state_set and not settings.enable_auto_in_sync_replicas:
        count = max(count, settings.in_sync_replicas)
    return count


def counters_of(settings: GroupSettings, counts: Mapping[str, int]) -> dict[str, int]:
    """What one run adds to the counters of its shape."""
    size = f"of_{settings.total_replicas}"
    found = {
        f"runs_{size}": 1,
        f"acknowledged_{size}": counts["sends_acknowledged"],
        f"epochs_{size}": counts["epochs_opened"],
        f"set_changes_{size}": counts["shrinks"] + counts["grows"],
        f"truncations_{size}": counts["truncations"],
    }
    if settings.min_in_sync_replicas == 1:
        found["runs_min_one"] = 1
    if settings.min_in_sync_replicas == settings.total_replicas:
        found["runs_min_all"] = 1
    if settings.durability == "memory":
        found["runs_memory"] = 1
    if not settings.all_ack_in_sync_state_set:
        is_auto = settings.enable_auto_in_sync_replicas
        found["runs_early_auto" if is_auto else "runs_early"] = 1
    return found
