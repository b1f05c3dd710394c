"""Pure: does the disk under the log keep up? (DESIGN 6, R22)

What counts is syncs that end, not bytes: many small ones may end between two looks that show the
same position, and a position may move by a truncation. Bytes only stretch the patience: a sync of
a hundred megabytes is work, not a stall.

Whether a stall is this disk's fault only others can tell: where the disks of all members are slow,
another master would stall as well. So the watch also says how long syncs take here, and the
controllers compare (`paceline_controller.election.liveness`).
"""

from typing import NamedTuple

PATIENT_BYTES_PER_MS = 64 * 1024
"""A disk that writes less than this is as good as stalled."""
PATIENCE_MS_MAX = 1000
"""Whatever waits: with it a stalled master is replaced well within three seconds."""
GAP_MS_MAX = 200
"""A gap of our own loop beyond this restarts the disk's clock (as in liveness and R12)."""
MEMORY_MS = 5000
"""A disk that was slow within this counts as slow: its syncs need not be slow each time."""


SLOW_SYNC_MS = 150
"""A disk with longer syncs is waited for off the event loop: four of them, as for a new epoch, are
still shorter than any timeout."""


class DiskState(NamedTuple):
    """One look at the disk."""

    syncs_finished: int
    waiting_bytes: int
    """Written and not yet synced."""


class DiskPace(NamedTuple):
    """What the watch has found, for the controllers."""

    is_stalled: bool = False
    sync_ms: int = 0
    """The longest that bytes have waited for a sync to end, in the last 5 to 10 s."""

    @property
    def is_slow(self) -> bool:
        return self.sync_ms > SLOW_SYNC_MS


class DiskWatch:
    """Feed it a look every `tick_ms`."""

    def __init__(self, *, stall_ms: int, tick_ms: int, now_ms: int) -> None:
        self._stall_ms = stall_ms
        self._tick_ms = tick_ms
        self._syncs_finished = 0
        self._moved_ms = self._looked_ms = self._turned_ms = now_ms
        self._longest_ms = self._longest_before_ms = 0

    def look(self, state: DiskState, now_ms: int) -> DiskPace:
        """It is stalled once bytes have waited for so long without a finished sync."""
        was_away = now_ms - self._looked_ms > self._tick_ms + GAP_MS_MAX  # it was not the disk
        self._looked_ms = now_ms
        if was_away or state.waiting_bytes == 0 or state.syncs_finished != self._syncs_finished:
            self._moved_ms = now_ms
        self._syncs_finished = state.syncs_finished
        if now_ms - self._turned_ms >= MEMORY_MS:
            self._longest_ms, self._longest_before_ms = 0, self._longest_ms
            self._turned_ms = now_ms
        self._longest_ms = max(self._longest_ms, now_ms - self._moved_ms)
        patience_ms = min(state.waiting_bytes // PATIENT_BYTES_PER_MS, PATIENCE_MS_MAX)
        return DiskPace(
            is_stalled=now_ms - self._moved_ms > self._stall_ms + patience_ms,
            sync_ms=max(self._longest_ms, self._longest_before_ms),
        )
