"""Whom a door refuses before anybody knows who it is, in the audit: refused proofs of nodes
(replication, repairs, escapes, Raft links, sessions), and clients at a gateway's doors.

Whoever dials such a port may do so as often as he likes. So the first refusal of a source at a door
is told at once, and those of its kind that follow in the next PERIOD_S as one record, which counts
them.
"""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from paceline.errors import PacelineError
from paceline.security.access import Access
from paceline.security.audit import Caller, Decided, Kind
from paceline.wire.rights import Decision
from paceline.wire.users import ANONYMOUS

PERIOD_S = 60.0
SOURCES_MAX = 256
"""Sources, doors and kinds whose refusals are counted; those of others are told one by one, as fast
as refusals of strangers are told at all (`RECORDS_PER_S`)."""

OnRefused: TypeAlias = Callable[[str, str, PacelineError], None]
"""`RefusedPeers.refused`, for whoever has a door: door, source, why."""


class RefusedPeers:
    """Of one node, on its event loop. `close` it."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._periods: dict[tuple[str, str, str], _Period] = {}
        """By door, source and code of the error."""

    def refused(self, door: str, source: str, error: PacelineError, request_id: str = "") -> None:
        """Somebody at `source` (an address; empty: nobody knows it) has not shown at `door` that he
        is a node of this cluster, or a client that may come. Not told while rights are off."""
        if not self._access.is_on:
            return
        period = self._periods.get((door, source, error.code))
        if period is not None:
            period.count, period.error = period.count + 1, error
            return
        self._tell(door, source, error, request_id=request_id)
        if len(self._periods) < SOURCES_MAX:
            self._begin(door, source, error)

    def close(self) -> None:
        """Tell what was counted."""
        for (door, source, _), period in self._periods.items():
            period.timer.cancel()
            if period.count:
                self._tell(door, source, period.error, times=period.count)
        self._periods.clear()

    def _begin(self, door: str, source: str, error: PacelineError) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(PERIOD_S, self._ended, door, source, error.code)
        self._periods[door, source, error.code] = _Period(error, timer)

    def _ended(self, door: str, source: str, code: str) -> None:
        period = self._periods.pop((door, source, code))
        if period.count:
            self._tell(door, source, period.error, times=period.count)
            self._begin(door, source, period.error)

    def _tell(
        self, door: str, source: str, error: PacelineError, *, times: int = 1, request_id: str = ""
    ) -> None:
        self._access.audit.tell(
            Kind.STRANGERS,
            Caller(ANONYMOUS, "", source, door, request_id),
            door,
            Decided(Decision.DENY, error.message),
            error.code,
            times=times,
        )


class _Period:
    """Of one source at one door, and one kind."""

    __slots__ = ("count", "error", "timer")

    def __init__(self, error: PacelineError, timer: asyncio.TimerHandle) -> None:
        self.count = 0
        """Refusals that are not told yet."""
        self.error = error
        """Of the last one."""
        self.timer = timer
