"""Shell: who waits for a newer view, and when each hears of it.

News of broker groups and of rights are told at once: a failover waits for nobody. News of topics
and consumer groups are told at once as well while they are rare. If they come one after the other,
each answer costs its 0.25 ms for every client again, so they are told together. A client that
named what it uses does not hear of anything else.
"""

import asyncio
from collections.abc import Callable, Iterator

from paceline.platform.ports import Clock
from paceline.wire.views.scope import Scope
from paceline_controller.sessions.view_messages import ViewMessages
from paceline_controller.state.changes import Changed

EACH_MS = 0.5
"""Of the time between two rounds of answers, for each who is answered: half of it is left for
others."""
INTERVAL_MS_MAX = 500

_News = asyncio.Future[None]


class Watches:
    """Of one controller."""

    def __init__(self, views: ViewMessages, version: Callable[[], int], *, clock: Clock) -> None:
        """`version`: of what is applied; -1: nothing to show yet."""
        self._views, self._version, self._clock = views, version, clock
        self._waiting: set[_News] = set()
        self._of_all: set[_News] = set()
        self._by_name: dict[str, set[_News]] = {}
        """Who waits for news of a topic or consumer group; the few that share a name look twice."""
        self._told = -1
        self._told_ms = 0
        self._round: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def version(self) -> int:
        """Whoever has an older view of everything is to be answered now."""
        return self._told

    def has_news(self, version: int, scope: Scope | None) -> bool:
        """Whether who has the view of that version, in that scope, is to be answered now."""
        if version >= self._told:
            return False
        return scope is None or self._views.concerns(version, scope)

    def published(self) -> None:
        """The version moved."""
        changed = self._untold()
        if changed is None or changed.concerns_all:
            self._tell(changed)
            return
        concerned = sum(map(len, self._concerned(changed)))
        wait_ms = min(INTERVAL_MS_MAX, EACH_MS * concerned)
        left_ms = self._told_ms + wait_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            self._tell(changed)
        elif self._round is None:
            self._round = asyncio.get_running_loop().call_later(
                left_ms / 1000, lambda: self._tell(self._untold())
            )

    def _untold(self) -> Changed | None:
        """What changed since clients were told; None: not all is known."""
        return None if self._told < 0 else self._views.changed(self._told)

    def _tell(self, changed: Changed | None) -> None:
        if self._round is not None:
            self._round.cancel()
            self._round = None
        self._told, self._told_ms = self._version(), self._clock.monotonic_ms()
        if changed is None or changed.concerns_all:
            self.wake()
        else:
            for waiting in self._concerned(changed):
                _wake(waiting)

    def _concerned(self, changed: Changed) -> Iterator[set[_News]]:
        yield self._of_all
        for name in (*changed.topics, *changed.consumer_groups):
            if name in self._by_name:
                yield self._by_name[name]

    def wake(self) -> None:
        """Whoever waits looks again."""
        _wake(self._waiting)

    async def wait(self, at_most_ms: int, scope: Scope | None = None) -> None:
        """Until there may be news in that scope, or the time has passed."""
        news: _News = asyncio.get_running_loop().create_future()
        names = () if scope is None else (*scope.topics, *scope.consumer_groups)
        self._waiting.add(news)
        if scope is None:
            self._of_all.add(news)
        for name in names:
            self._by_name.setdefault(name, set()).add(news)
        try:
            await asyncio.wait([news], timeout=at_most_ms / 1000)
        finally:
            self._waiting.discard(news)
            self._of_all.discard(news)
            for name in names:
                self._forget(name, news)

    def _forget(self, name: str, news: _News) -> None:
        waiting = self._by_name.get(name)
        if waiting is not None:
            waiting.discard(news)
            if not waiting:
                del self._by_name[name]


def _wake(waiting: set[_News]) -> None:
    for news in waiting:
        if not news.done():
            news.set_result(None)
