"""What a node does for clients in one turn of its event loop, whoever asks (ADR 18).

A limit for each connection does not bound a turn: a thousand connections may ask at one moment, or
wait for the same message. So those of one kind share a `Turns`; what is beyond a turn's part stands
in line, and the loop comes to everything else before it goes on with that. What refused clients
still send is read more slowly yet (`Dropping`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import TypeAlias

DROP_INTERVAL_S = 0.005
DROPPED_READS = 4
"""Reads of refused requests in one interval, over all connections. A read is 256 KiB at most, so
one client alone has sent 16 MiB long before `http_guard.LINGERING_S`; reading those of 150 clients
as fast as they came took most of a core."""

_Work: TypeAlias = tuple[Callable[[], None], int]
"""What to call, and what that costs beforehand."""


class Turns:
    """A share of each turn. The unit of cost is its owner's. Owner: the event loop."""

    def __init__(self, cost_max: int) -> None:
        """`cost_max` for one turn."""
        self._cost_max = cost_max
        self._spent = 0
        self.spent_max = 0
        """The most that was spent in one turn."""
        self._is_next_due = False
        self._lines: dict[Hashable, tuple[deque[_Work], bool]] = {}
        """Asker -> its line, and whether the newest of it is next; askers in order of turns."""
        self._waiting_count = 0

    def take(self) -> bool:
        """Whether this turn has room left. One unit of it is spent then."""
        if self._spent >= self._cost_max:
            return False
        self.spend(1)
        return True

    def spend(self, cost: int) -> None:
        """So much of this turn is gone, also where it has no room: it was done already."""
        self._spent += cost
        self.spent_max = max(self.spent_max, self._spent)
        self._end_turn_later()

    def later(self, work: Callable[[], None], asker: Hashable, *, cost: int = 1) -> None:
        """Call it in a later turn that has room. `cost` 0: it takes what it needs itself.

        `asker`: the address that it is for; of several, each has its turn, so nobody waits for all
        that another one asks. Of one asker the newest and the oldest come by turns: the oldest may
        have given up, and must not starve.
        """
        line, _ = self._lines.setdefault(asker, (deque(), True))
        line.append((work, cost))
        self._waiting_count += 1
        self._end_turn_later()

    def add(self, work: Callable[[], None], asker: Hashable) -> bool:
        """Call it now if there is room for one unit, else in a later turn (False)."""
        if not self.take():
            self.later(work, asker)
            return False
        work()
        return True

    def _end_turn_later(self) -> None:
        if not self._is_next_due:
            self._is_next_due = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_next_due = False
        self._spent = 0
        for _ in range(self._waiting_count):  # what joins meanwhile is for the turn after this one
            if self._spent >= self._cost_max:
                break
            work, cost = self._first_in_line()
            self.spend(cost)
            work()

    def _first_in_line(self) -> _Work:
        asker = next(iter(self._lines))
        line, is_newest_next = self._lines.pop(asker)
        first = line.pop() if is_newest_next else line.popleft()
        if line:
            self._lines[asker] = line, not is_newest_next
        self._waiting_count -= 1
        return first


class Dropping:
    """Of one listener: the connections whose rest is read and dropped, a few in one interval.

    Each is paused while it waits, and in line again once something of it has been dropped.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Transport] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, transport: asyncio.Transport) -> None:
        """Read from it when it is its turn."""
        transport.pause_reading()
        self._waiting.append(transport)
        if self._timer is None:
            self._begin()

    def _begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(DROP_INTERVAL_S, self._read_some)

    def _read_some(self) -> None:
        self._timer = None
        left = DROPPED_READS
        while self._waiting and left:
            transport = self._waiting.popleft()
            if not transport.is_closing():
                transport.resume_reading()
                left -= 1
        if self._waiting:
            self._begin()

    def close(self) -> None:
        """Nothing more is read."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
