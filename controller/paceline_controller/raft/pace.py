"""Pure: election timeouts, adapted to how long signs of life took lately.

On a busy machine heartbeats come late without anybody being dead. The longest gap between two signs
of life within `pace_window_ms` says how late: nobody is missed before three such gaps have passed.
Gaps are counted in a node's own running time, and bounded: beyond `election_stretch_max` times the
quiet timeouts it was an absence, and says nothing about pace.
"""

from collections import deque

from paceline_controller.raft.settings import RaftSettings

_GAPS = 3
"""Signs of life that must be missing; of a gap of `append_ms` it makes less than the quiet
timeout, so a quiet machine waits no longer than that."""


class Pace:
    """Of one node. Times in seconds of its running time."""

    def __init__(self, settings: RaftSettings) -> None:
        self._settings = settings
        self._gaps: deque[tuple[float, float]] = deque()
        """(when, gap) of those that none later exceeds: gaps fall."""

    def note(self, gap_s: float, now_s: float) -> None:
        """A sign of life came, so long after the one before from the same node."""
        settings = self._settings
        if gap_s * 1000 > settings.election_min_ms * settings.election_stretch_max:
            return
        while self._gaps and self._gaps[-1][1] <= gap_s:
            self._gaps.pop()
        self._gaps.append((now_s, gap_s))

    def gap_s(self, now_s: float) -> float:
        """The longest gap lately."""
        while self._gaps and self._gaps[0][0] < now_s - self._settings.pace_window_ms / 1000:
            self._gaps.popleft()
        return self._gaps[0][1] if self._gaps else 0.0

    def stretch(self, now_s: float) -> float:
        """By what the quiet timeouts are multiplied now: 1 to `election_stretch_max`."""
        wanted = _GAPS * self.gap_s(now_s) * 1000 / self._settings.election_min_ms
        return min(max(1.0, wanted), float(self._settings.election_stretch_max))
