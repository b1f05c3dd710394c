"""Pure: messages that another group has refused, in order of their next attempt.

Sources alone, as there may be very many of them: as many as there are messages that wait. Who is
looked at in one turn is who is due, and no more than there is room for.
"""

from array import array
from collections import deque

SHELF_MS = 100
"""What is held within so long goes again together."""


class Held:
    """All of one appointment."""

    def __init__(self) -> None:
        self._shelves: deque[tuple[int, array[int]]] = deque()
        """(when, sources), by rising time."""

    def __len__(self) -> int:
        return sum(len(sources) for _, sources in self._shelves)

    def add(self, source: int, until_ms: int) -> None:
        """Hold one; times rise from call to call."""
        until_ms += -until_ms % SHELF_MS
        if not self._shelves or self._shelves[-1][0] < until_ms:
            self._shelves.append((until_ms, array("Q")))
        self._shelves[-1][1].append(source)

    def take(self, now_ms: int, count_max: int) -> list[int]:
        """Those whose time has come, the oldest first; they are held no more."""
        taken: list[int] = []
        while self._shelves and self._shelves[0][0] <= now_ms and len(taken) < count_max:
            sources = self._shelves[0][1]
            room = count_max - len(taken)
            taken += sources[:room]
            del sources[:room]
            if not sources:
                self._shelves.popleft()
        return taken

    def clear(self) -> None:
        self._shelves.clear()
