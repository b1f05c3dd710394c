"""Pure: how long appended bytes wait for confirm. Times are the process's running milliseconds."""

from collections import deque

from paceline.types import PhysicalOffset

WAITING_COUNT_MAX = 4096


class ConfirmWaits:
    """Owner: the term. It holds one entry for each millisecond in which something was written."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[PhysicalOffset, int]] = deque()
        """(end, since when it waits) of what is not confirmed."""

    def wrote(self, end: PhysicalOffset, now_ms: int) -> None:
        """Bytes up to `end` wait for confirm from now on."""
        waiting = self._waiting
        if not waiting or (waiting[-1][1] != now_ms and len(waiting) < WAITING_COUNT_MAX):
            waiting.append((end, now_ms))

    def confirmed(self, confirm: PhysicalOffset, now_ms: int) -> list[int]:
        """How long those have waited that confirm has passed now, the oldest first."""
        waiting = self._waiting
        waits: list[int] = []
        while waiting and waiting[0][0] <= confirm:
            waits.append(now_ms - waiting.popleft()[1])
        return waits

    def longest_ms(self, now_ms: int) -> int | None:
        """How long the oldest has waited that still does; None: nothing waits."""
        return now_ms - self._waiting[0][1] if self._waiting else None
