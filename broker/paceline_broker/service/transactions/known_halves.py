"""Pure: what a mastership knows of open halves beyond the log: whom to ask about them, and when.

Rebuilt by each mastership from the log. Halves that are due while no producer of their group waits
are parked; so many come back as are asked at a time, and some are looked at now and then, as they
end or grow old while they stand there.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field

from paceline_broker.projections.transactions import Half


@dataclass(slots=True)
class KnownHalves:
    """Halves are named by their source (`pack_source`)."""

    epoch: int
    looked_above: int = -1
    """Batches up to this position have been looked at."""
    unread: deque[int] = field(default_factory=deque)
    """Positions of those among them that could not be read: they are tried again."""
    groups: dict[int, str] = field(default_factory=dict)
    """Producer group of each open half."""
    due: list[tuple[int, int]] = field(default_factory=list)
    """A heap of (unix ms, half)."""
    parked: dict[str, deque[int]] = field(default_factory=dict)
    """Due halves of groups of which no producer waits, or not enough."""
    left: dict[str, list[Half]] = field(default_factory=dict)
    """Asked about by the record, and not by an answer yet, as it was full; by producer group."""

    def is_due(self, source: int, unix_ms: int) -> None:
        """The half is looked at from that time on."""
        heapq.heappush(self.due, (unix_ms, source))

    def take_due(self, now_ms: int) -> int | None:
        """The next half to look at."""
        if not self.due or self.due[0][0] > now_ms:
            return None
        return heapq.heappop(self.due)[1]

    def park(self, source: int) -> None:
        """Nobody can be asked about it now."""
        self.parked.setdefault(self.groups[source], deque()).append(source)

    def unpark(self, group: str, count: int) -> None:
        """So many of a group's are due: there is somebody to ask."""
        standing = self.parked.get(group)
        while standing and count:
            self.is_due(standing.popleft(), 0)
            count -= 1
        if not standing:
            self.parked.pop(group, None)

    def unpark_some(self, count: int) -> None:
        """So many of all that are parked, others the next time: each has its turn."""
        for group in list(self.parked):
            standing = self.parked.pop(group)
            while standing and count:
                self.is_due(standing.popleft(), 0)
                count -= 1
            if standing:
                self.parked[group] = standing  # behind the other groups
            if not count:
                return
