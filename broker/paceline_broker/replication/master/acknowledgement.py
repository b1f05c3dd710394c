"""Pure: who waits for confirm (RocketMQ's GroupTransfer), without polling or head-of-line blocking.

Waiters stand in append order, which is the order of the end positions they wait for, so one sweep
from the front completes exactly those that confirm has passed. Deadlines stand in a wheel of coarse
slots; a waiter that timed out stays in the row, marked done, until confirm passes it. The cost of
every call is proportional to the waiters it completes. Owner: the shell of the master's term.
"""

from collections import deque
from typing import Generic, TypeVar

from paceline.types import PhysicalOffset

WHEEL_SLOT_MS = 32
"""A deadline is found at most this much late; timeouts are seconds (slave_timeout_ms = 3000)."""

Token = TypeVar("Token")


class _Waiter(Generic[Token]):
    __slots__ = ("position", "token")

    def __init__(self, position: PhysicalOffset, token: Token) -> None:
        self.position = position
        self.token: Token | None = token
        """None once answered, so that the wheel keeps nothing alive."""


class AcknowledgementTracker(Generic[Token]):
    """Waiters of one mastership; every token is given back exactly once."""

    def __init__(self, *, confirm: PhysicalOffset) -> None:
        self._confirm = confirm
        self._row: deque[_Waiter[Token]] = deque()
        self._wheel: dict[int, list[_Waiter[Token]]] = {}
        self._expired_slot = -1
        self._waiting = 0

    @property
    def confirm(self) -> PhysicalOffset:
        """Up to where waiters have been completed."""
        return self._confirm

    @property
    def waiting_count(self) -> int:
        return self._waiting

    def add(self, position: PhysicalOffset, token: Token, *, deadline_ms: int) -> None:
        """Wait until confirm reaches `position` or the monotonic clock passes `deadline_ms`.

        `position` lies above confirm. One below the last waiter's (the answer to a duplicate, R30)
        waits with that waiter: an answer leaves when confirm passes the position at which it was
        decided (R28), and the row stays sorted. `token` is not None.
        """
        assert position > self._confirm, (position, self._confirm)
        if self._row and self._row[-1].position > position:
            position = self._row[-1].position
        waiter = _Waiter(position, token)
        self._row.append(waiter)
        # One slot later than the deadline's own: never early. A slot already swept is the next one.
        slot = max(deadline_ms // WHEEL_SLOT_MS + 1, self._expired_slot + 1)
        self._wheel.setdefault(slot, []).append(waiter)
        self._waiting += 1

    def advance(self, confirm: PhysicalOffset) -> list[Token]:
        """Confirm has moved: the tokens it has passed, in append order."""
        assert confirm >= self._confirm, (confirm, self._confirm)
        self._confirm = confirm
        row = self._row
        completed: list[Token] = []
        while row and row[0].position <= confirm:
            waiter = row.popleft()
            if waiter.token is not None:
                completed.append(waiter.token)
                waiter.token = None
        self._waiting -= len(completed)
        return completed

    def expire(self, now_ms: int) -> list[tuple[PhysicalOffset, Token]]:
        """Positions and tokens whose deadline has passed: their outcome stays unknown."""
        slot_now = now_ms // WHEEL_SLOT_MS
        if not self._wheel or slot_now <= self._expired_slot:
            return []
        expired: list[tuple[PhysicalOffset, Token]] = []
        # After a long stall there are fewer slots than ticks to look at.
        for slot in sorted(slot for slot in self._wheel if slot <= slot_now):
            for waiter in self._wheel.pop(slot):
                if waiter.token is not None:
                    expired.append((waiter.position, waiter.token))
                    waiter.token = None
        self._expired_slot = slot_now
        self._waiting -= len(expired)
        self._drop_answered_tail()
        return expired

    def fail_all(self) -> list[Token]:
        """Every token still waiting, in append order; for fencing and the end of a term."""
        failed = [waiter.token for waiter in self._row if waiter.token is not None]
        for waiter in self._row:
            waiter.token = None
        self._row.clear()
        self._wheel.clear()
        self._waiting = 0
        return failed

    def _drop_answered_tail(self) -> None:
        """While confirm stands still, timed-out waiters must not pile up."""
        if self._waiting == 0:
            self._row.clear()
