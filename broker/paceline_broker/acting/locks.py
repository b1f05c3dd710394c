"""Pure: queue locks of an acting master (R33, R36, INV-11).

Tokens are (its epoch, a counter), so they are above whatever a master granted before, and below
what the next one will. Time is the process's running time. Two things bound every lease:

- The last master's leases may still run: nothing is granted before one full lease has passed since
  the appointment.
- The next master's may begin: it withholds all locks for `leases_ms` after its epoch begins, so a
  lease must have ended by then. Therefore nothing is granted but while the controllers' word that
  no higher epoch has begun (`told_current`) is younger than PROOF_MS.
"""

from paceline.errors import NotYetAvailableError
from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.projections.locks import LockOutcome, LockRequest, Locks, Token

PROOF_MS = 9_000
PROOF_INTERVAL_MS = 3_000
"""Time between two questions: two may be lost before locks stop."""
MARGIN_MS = 1_000
"""For what passes between a question's sending and the next epoch, and clocks of other pace."""
_DRIFT_SHARE = 100
"""Clocks of two machines differ in pace by far less than one part in this."""
_WANTED_MS = 3 * PROOF_INTERVAL_MS
"""So long after the last request the controllers are still asked."""


def longest_leases_ms(lease_ms: int) -> int:
    """Above all that an acting master with such leases may have granted."""
    longest_ms = PROOF_MS + lease_ms
    return longest_ms + longest_ms // _DRIFT_SHARE + MARGIN_MS


class ActingLocks:
    """The locks of one appointment. `now_ms` is the monotonic clock."""

    def __init__(self, epoch: MasterEpoch, *, lease_ms: int, now_ms: int) -> None:
        """`lease_ms`: the longest lease there is; the appointment was adopted at `now_ms`."""
        self._locks = Locks()
        self._epoch = epoch
        self._lease_ms = lease_ms
        self._grants = 0
        self._open_ms = now_ms + lease_ms
        self._current_ms: int | None = None
        self._wanted_ms: int | None = None
        self.is_prepared = False
        """Older tokens are worth nothing from here on: the next master will fence them all, so what
        was committed under one must not name it. Set before the controllers are asked."""

    @property
    def leases_ms(self) -> int:
        """All leases granted on one word of the controllers end so long after it was asked for."""
        return longest_leases_ms(self._lease_ms)

    def is_due(self, now_ms: int) -> bool:
        """Whether one full lease has passed."""
        return now_ms >= self._open_ms

    @property
    def has_granted(self) -> bool:
        return self._grants > 0

    def should_ask(self, now_ms: int) -> bool:
        """Whether somebody wants locks, so that the controllers must be asked again."""
        if now_ms < self._open_ms or self._wanted_ms is None or not self.is_prepared:
            return False
        return now_ms < self._wanted_ms + _WANTED_MS

    def told_current(self, asked_ms: int) -> None:
        """The controllers said, to a question of `asked_ms`, that no higher epoch had begun."""
        self._current_ms = asked_ms

    def change(self, request: LockRequest, *, now_ms: int) -> list[LockOutcome]:
        """Decide and carry out. Raises NotYetAvailableError (`retry_after_ms`) if it must wait."""
        if not request.is_unlock:
            self._wanted_ms = now_ms
            self._check_open(now_ms)
        self._grants += 1
        token = Token(self._epoch, PhysicalOffset(self._grants))
        return self._locks.apply(request, new_token=token, now_unix_ms=now_ms)

    def token_of(self, group: str, key: int) -> Token | None:
        """The last token granted here and not given back."""
        return self._locks.token_of(group, key)

    def _check_open(self, now_ms: int) -> None:
        if now_ms < self._open_ms:
            left_ms = self._open_ms - now_ms
            raise NotYetAvailableError(
                f"leases of the last master may run for {left_ms} ms more; the acting master "
                "grants no lock before",
                retry_after_ms=left_ms,
            )
        if self._current_ms is None or now_ms >= self._current_ms + PROOF_MS:
            raise NotYetAvailableError(
                "the acting master asks the controllers whether it still acts, before it grants "
                "locks",
                retry_after_ms=100,
            )
