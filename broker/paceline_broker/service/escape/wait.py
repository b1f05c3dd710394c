"""Pure: how long a new master waits to hear what acting masters have sent elsewhere (R36).

An appointment takes an epoch of its own and appends nothing, so that it shows as a gap between the
epochs of the log. A master behind such a gap delivers nothing of what is due until every epoch of
the gap was told of, or the grace is over: after that what was not told comes twice, marked.
"""

from collections.abc import Callable, Iterable

from paceline.types import MasterEpoch

GRACE_MS = 1000
_EPOCHS_MAX = 64


class EscapeWait:
    """Of one broker. `now_ms` is the monotonic clock."""

    def __init__(self, epochs: Callable[[], list[dict[str, int]]], *, is_on: bool) -> None:
        """`epochs`: of the log, oldest first, the present one among them once it is open."""
        self._epochs = epochs
        self._is_on = is_on
        self._epoch = MasterEpoch(0)
        self._missing: set[int] = set()
        self._told: set[int] = set()
        self._until_ms = 0

    def rest_ms(self, epoch: MasterEpoch, *, now_ms: int) -> int:
        """How long the open master of `epoch` has to wait yet; 0: deliver."""
        if not self._is_on:
            return 0
        if epoch != self._epoch:
            self._epoch = epoch
            self._until_ms = now_ms + GRACE_MS
            self._missing = set(self._gap(epoch)) - self._told
        return max(0, self._until_ms - now_ms) if self._missing else 0

    def told(self, epochs: Iterable[int]) -> None:
        """Of these epochs all was told; epochs never come again."""
        self._told.update(epochs)
        self._missing -= self._told

    def _gap(self, epoch: MasterEpoch) -> range:
        before = max((row["epoch"] for row in self._epochs() if row["epoch"] < epoch), default=None)
        if before is None:
            return range(0)  # the first epoch of the log
        return range(max(before + 1, epoch - _EPOCHS_MAX), epoch)
