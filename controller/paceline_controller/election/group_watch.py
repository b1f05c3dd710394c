"""Pure: what the leader remembers of one group, and how long a master may fail it (R6)."""

from dataclasses import dataclass

from paceline.types import MasterEpoch, ReplicaId
from paceline_controller.election.liveness_events import LivenessSettings

TAKE_MS_MAX = 1000
"""A master that we hear, but that has not taken up its epoch after this, does not hear us."""
TAKE_SYNCS, OPEN_SYNCS = 8, 14
"""So many syncs may come one after another before a master has taken up its epoch: those of two
small files, and of their folder for each, every one behind another of the same disk; and before it
has opened it: those of what it begins its log with, and of the controllers' command as well."""
SYNC_MS_MAX = 2_000
"""A sync that takes longer is waited for no longer than this."""
FAILURES = ("not_taken", "not_open", "no_progress", "cut_off")
"""How a master that lives and is well does not do its work."""


@dataclass(slots=True, kw_only=True)
class GroupWatch:
    """Between two looks of the leader."""

    master_epoch: MasterEpoch
    epoch_ms: int
    """When this epoch was first seen."""
    confirm: int = -1
    progress_ms: int = 0
    """When confirm last moved, or nothing waited."""
    works: bool = False
    """As looked at last, its master is well and does its work."""
    calm_until_ms: int = 0
    """All is well, and so long nothing becomes due by the clock alone."""
    is_electing: bool = False
    retry_ms: int = 0
    blamed_epoch: MasterEpoch | None = None
    """The master of this epoch has been blamed that it does not work."""

    preferred: ReplicaId | None = None
    """A member that is preferred to the master, without a break since `preferred_ms`."""
    preferred_ms: int = 0

    def prefers(self, member: ReplicaId | None, now_ms: int, *, settle_ms: int) -> bool:
        """Whether that member, who is preferred now, has been so for long enough (hysteresis)."""
        if member != self.preferred:
            self.preferred, self.preferred_ms = member, now_ms
        if member is None or now_ms < self.preferred_ms + settle_ms:
            return False
        self.preferred_ms = now_ms  # should this attempt fail, the next one waits as long
        return True

    def due_ms(
        self,
        reason: str,
        settings: LivenessSettings,
        *,
        floor_ms: int,
        factor: int,
        sync_ms: int,
    ) -> int:
        """When a master that fails in this way has had its time, `factor` times over; `sync_ms`:
        so long syncs of the members take."""
        since_ms = max(self.epoch_ms, floor_ms)
        sync_ms = min(sync_ms, SYNC_MS_MAX)
        match reason:
            case "not_taken":
                return since_ms + (TAKE_MS_MAX + TAKE_SYNCS * sync_ms) * factor
            case "not_open":
                open_ms = settings.election_open_timeout_ms + OPEN_SYNCS * sync_ms
                return since_ms + open_ms * factor
            case "cut_off":
                return self.progress_ms + settings.heartbeat_timeout_ms * factor
            case _:
                return self.progress_ms + settings.progress_timeout_ms * factor
