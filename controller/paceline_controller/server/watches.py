"""Shell: who waits for a newer view, and when each hears of it.

News of broker groups and of rights are told at once: a failover waits for nobody. News of topics
and consumer groups are told at once as well while they are rare. If they come one after the other,
each answer costs its 0.25 ms for every client again, so they are told together.
"""

import asyncio
from collections.abc import Callable

from paceline.platform.ports import Clock
from paceline_controller.sessions.view_messages import ViewMessages

EACH_MS = 0.5
"""Of the time between two rounds of answers, for each who waits: half of it is left for others."""
INTERVAL_MS_MAX = 500


class Watches:
    """Of one controller."""

    def __init__(self, views: ViewMessages, version: Callable[[], int], *, clock: Clock) -> None:
        """`version`: of what is applied; -1: nothing to show yet."""
        self._views, self._version, self._clock = views, version, clock
        self._waiting: set[asyncio.Future[None]] = set()
        self._told = -1
        self._told_ms = 0
        self._round: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def version(self) -> int:
        """Whoever has an older view is to be answered now."""
        return self._told

    def published(self) -> None:
        """The version moved."""
        changes = None if self._told < 0 else self._views.changes(self._told)
        is_urgent = changes is None or bool(changes.groups) or changes.are_rights
        wait_ms = min(INTERVAL_MS_MAX, EACH_MS * len(self._waiting))
        left_ms = self._told_ms + wait_ms - self._clock.monotonic_ms()
        if is_urgent or left_ms <= 0:
            self._tell()
        elif self._round is None:
            self._round = asyncio.get_running_loop().call_later(left_ms / 1000, self._tell)

    def _tell(self) -> None:
        if self._round is not None:
            self._round.cancel()
            self._round = None
        self._told, self._told_ms = self._version(), self._clock.monotonic_ms()
        self.wake()

    def wake(self) -> None:
        """Whoever waits looks again."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self, at_most_ms: int) -> None:
        """Until there may be news, or the time has passed."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(news)
        try:
            await asyncio.wait([news], timeout=at_most_ms / 1000)
        finally:
            self._waiting.discard(news)
