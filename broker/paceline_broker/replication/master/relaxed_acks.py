"""Pure: R37, RocketMQ's weaker acknowledgement: up to where n members hold the log.

With `all_ack_in_sync_state_set = false` an answer may leave before confirm, as soon as n members of
the committed set, the master included, hold the record by the position that counts (INV-3: flushed
with fsync durability). n is `in_sync_replicas`; with `enable_auto_in_sync_replicas` it follows the
members that keep up now, `max(min(in_sync_replicas, members), min_in_sync_replicas)`, so that a
dead member holds no answer up. What such an answer tells of is lost if the next master is a member
that did not count. Confirm, readers, elections and duplicates (R30) know nothing of it.
"""

from collections.abc import Iterable

from paceline.types import PhysicalOffset
from paceline.wire.cluster import GroupSettings


def answers_early(settings: GroupSettings) -> bool:
    """Whether the group has asked for it; no default does."""
    return not settings.all_ack_in_sync_state_set


def needed(settings: GroupSettings, *, acknowledging: int) -> int:
    """How many members must hold a record; `acknowledging` of the set keep up now."""
    if not settings.enable_auto_in_sync_replicas:
        return settings.in_sync_replicas
    return max(min(settings.in_sync_replicas, acknowledging), settings.min_in_sync_replicas)


class EarlyAnswers:
    """How far answers may leave in one mastership; it only rises. Owner: `MasterReplication`."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._held = PhysicalOffset(0)

    @classmethod
    def of(cls, settings: GroupSettings) -> "EarlyAnswers | None":
        """None where answers wait for confirm."""
        return cls(settings) if answers_early(settings) else None

    def held(
        self, *, own: PhysicalOffset, others: Iterable[PhysicalOffset], acknowledging: int
    ) -> PhysicalOffset | None:
        """The position that n members hold, if it has risen.

        `own` is the master's position, `others` those of the other members of the committed set
        with a live connection (R10): each member counts once, learners and newcomers never.
        """
        count = needed(self._settings, acknowledging=acknowledging) - 1
        behind = sorted(others, reverse=True)
        if count > len(behind):
            return None
        position = min(own, behind[count - 1]) if count else own
        if position <= self._held:
            return None
        self._held = position
        return position
