"""The cluster watch: the newest `ClusterView`, pushed by long polls, and who wants to know.

Two watchers poll two different nodes at a time, so a node that hangs (paused, partitioned) does
not delay the news of a failover. Which answers count is `paceline.wire.views.receiving`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import (
    BadRequestError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    PacelineError,
    PeerError,
    UnauthenticatedError,
)
from paceline.net.backoff import Backoff
from paceline.net.http import HttpClient
from paceline.platform.ports import Random
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.queues import broker_addresses
from paceline.wire.cluster import ClusterView
from paceline.wire.views.receiving import Ask, ReceivedView
from paceline.wire.views.scope import Scope

log = logging.getLogger("paceline.client")

_WATCHERS = 2
_POLL_WAIT_MS = 10_000
_POLL_SLACK_MS = 2_000
_FIRST_TIMEOUT_MS = 2_000
_DOUBT_MS = 1_000
"""A poll under way for longer is given up as soon as somebody doubts the view."""
_REFUSED_MS = 500
_BROKER_POLL_MS = 500
"""Only while no controller answers; then nobody can be elected, so news are rare."""

OnView = Callable[[ClusterView], None]


class ClusterWatch:
    """Keeps `view` current from `start` to `close`. Listeners are called on the event loop."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        http: HttpClient,
        random: Random,
        *,
        to_own: Callable[[ClusterView], ClusterView] = lambda view: view,
    ) -> None:
        """`to_own`: a view by the names of the client."""
        assert bootstrap
        self._received = ReceivedView(to_own)
        self._bootstrap = tuple(bootstrap)
        self._http = http
        self._random = random
        self._listeners: dict[object, OnView] = {}
        self._changed: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._last_error: PacelineError | None = None
        self._refusal: PacelineError | None = None
        """No node lets this client in, so no view will come."""
        self._refused_since: float | None = None
        self._first = int(random.uniform(0, 1 << 16))
        """Clients that know the same nodes begin with others of them."""
        self._polled: dict[int, str] = {}  # watcher -> the node it asks
        self._polls: dict[int, _Poll] = {}
        """Watcher -> its poll under way."""

    @property
    def view(self) -> ClusterView | None:
        """The newest view; None before the first answer."""
        return self._received.view

    @property
    def is_complete(self) -> bool:
        """The view shows all that `see` named last."""
        return self._received.is_complete

    def see(self, scope: Scope | None) -> None:
        """Ask for these topics and consumer groups, or for all. What was named before stays."""
        self._received.want(scope)
        if self.view is not None and not self.is_complete:
            self._end_polls(lambda poll: poll.ask.is_news)

    @property
    def last_error(self) -> PacelineError | None:
        """Why the last poll failed; None after a good one."""
        return self._last_error

    def start(self) -> None:
        """Begin to poll. Idempotent."""
        if not self._tasks:
            self._tasks = [
                spawn(self._watch(number), name=f"watch-{number}") for number in range(_WATCHERS)
            ]

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        await cancel_and_wait(*tasks)

    def listen(self, listener: OnView) -> Callable[[], None]:
        """Call `listener` with every new view; the returned function ends that."""
        token = object()
        self._listeners[token] = listener

        def end() -> None:
            self._listeners.pop(token, None)

        return end

    def doubt(self) -> None:
        """A master of the view is silent, or is none any more.

        A node that lost its power says nothing and closes nothing: who asks it waits out the whole
        long poll. So polls that are not young are given up, and other nodes asked.
        """
        young = asyncio.get_running_loop().time() - _DOUBT_MS / 1000
        self._end_polls(lambda poll: poll.since <= young)

    def _end_polls(self, are_ended: "Callable[[_Poll], bool]") -> None:
        now = asyncio.get_running_loop().time()
        for poll in self._polls.values():
            if are_ended(poll) and not poll.limit.expired():
                poll.limit.reschedule(now)

    async def wait_for(
        self, condition: Callable[[ClusterView], bool], *, timeout_ms: int
    ) -> ClusterView:
        """The first complete view that meets the condition. DeadlineError says what the last poll
        said; UnauthenticatedError: no node lets this client in."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    view = self.view
                    if view is None and self._refusal is not None:
                        raise self._refusal
                    if view is not None and self.is_complete and condition(view):
                        return view
                    if self._changed is None:
                        self._changed = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._changed)
        except TimeoutError:
            if self.view is None:
                asked = ", ".join(self._bootstrap)
                why = "" if self._last_error is None else f" ({self._last_error.message})"
                raise PeerError(f"no node of the cluster answered at {asked}{why}") from None
            raise DeadlineError(
                f"the cluster did not become as asked within {timeout_ms} ms"
            ) from None

    def apply(self, view: ClusterView) -> bool:
        """Take a whole view from anywhere; False if it is not newer, or of another cluster (R38).

        Another cluster counts as newer if its operator has recovered ours there (R18).
        """
        return self._take(view, self._received.wanted)

    # -- inside -----------------------------------------------------------------------------------

    def _take(self, view: ClusterView, scope: Scope | None) -> bool:
        if self._received.is_foreign(view):
            expected = "" if self.view is None else self.view.cluster_id
            log.warning(
                "foreign_view_refused", extra={"cluster_id": view.cluster_id, "expected": expected}
            )
        if not self._received.take(view, scope):
            return False
        self._wake()
        for listener in tuple(self._listeners.values()):
            listener(view)
        return True

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    def _refused(self, error: PacelineError) -> None:
        """A node does not let this client in. One that was asked a moment after a key was made may
        not know it yet."""
        now = asyncio.get_running_loop().time()
        since = self._refused_since = self._refused_since or now
        if now - since >= _REFUSED_MS / 1000:
            self._refusal = error
            self._wake()

    async def _watch(self, number: int) -> None:
        """One watcher: stays with a node that answers, else goes on to the next in turn."""
        backoff = Backoff(self._random, first_ms=20, max_ms=500)
        address: str | None = None
        failures = 0
        while True:
            addresses = self._addresses()
            if failures or address not in addresses:
                address = self._next(addresses, after=address, start=number)
            elif number and not self._is_controller(address):
                # Brokers repeat what controllers tell them, and may be cut off from them.
                address = self._next(addresses, after=None, start=number)
            self._polled[number] = address
            try:
                await self._poll_until_doubt(number, address)
            except PacelineError as error:
                self._last_error = error
                if isinstance(error, UnauthenticatedError | ConfigError):
                    self._refused(error)
                failures += 1
                log.debug("watch_failed", extra={"address": address, "error": error.message})
                if failures >= len(addresses):
                    await pause(backoff.next_ms())
            else:
                self._last_error = self._refusal = self._refused_since = None
                failures = 0
                backoff.reset()

    def _next(self, addresses: list[str], *, after: str | None, start: int) -> str:
        """The next node in turn that the other watcher does not poll, if there is one."""
        first = addresses.index(after) + 1 if after in addresses else start
        turns = [addresses[(first + step) % len(addresses)] for step in range(len(addresses))]
        busy = set(self._polled.values()) - {after}
        return next((address for address in turns if address not in busy), turns[0])

    def _is_controller(self, address: str) -> bool:
        return self.view is None or address in self.view.controllers

    def _addresses(self) -> list[str]:
        """Controllers first, once known; then what we were given; then any broker."""
        view = self.view
        if view is None:
            return self._rotated(self._bootstrap)
        found = [*self._rotated(view.controllers), *self._bootstrap, *broker_addresses(view)]
        return list(dict.fromkeys(found))

    def _rotated(self, addresses: Sequence[str]) -> list[str]:
        first = self._first % max(1, len(addresses))
        return [*addresses[first:], *addresses[:first]]

    async def _poll_until_doubt(self, number: int, address: str) -> None:
        ask = self._received.ask()
        try:
            async with asyncio.timeout(None) as limit:
                since = asyncio.get_running_loop().time()
                self._polls[number] = _Poll(ask=ask, since=since, limit=limit)
                await self._poll(address, ask)
        except TimeoutError:
            if ask.is_news and not self.is_complete:
                return
            raise DeadlineError(f"{address} had no news, and the view is in doubt") from None
        finally:
            self._polls.pop(number, None)

    async def _poll(self, address: str, ask: Ask) -> None:
        document = await self._answer(address, ask)
        if not document:
            return
        try:
            view = self._received.read(document, ask)
        except BadRequestError as error:
            raise PeerError(f"{address} answered {error.message}") from error
        is_newer = view is not None and self._take(view, ask.scope)
        if not is_newer and ask.is_news and document["version"] <= (ask.since or 0):
            # An answer at once without news (a node that does not wait) must not make us spin.
            await pause(self._random.uniform(5, 20))

    async def _answer(self, address: str, ask: Ask) -> dict[str, Any]:
        params = {} if ask.scope is None else {**ask.scope.parameters(), "wait_ms": "0"}
        timeout_ms = _FIRST_TIMEOUT_MS
        if ask.since is not None:
            params |= {"from": str(ask.since), "wait_ms": str(_POLL_WAIT_MS)}
            timeout_ms = _POLL_WAIT_MS + _POLL_SLACK_MS
        if ask.takes_changes and self._is_controller(address):
            params["changes"] = "true"
        try:
            if params:
                return await self._http.get(
                    address, "/v1/watch", params=params, timeout_ms=timeout_ms
                )
        except (NotFoundError, BadRequestError):
            # A broker of a version that tells all of the view it was told, without a wait.
            if ask.is_news:
                await pause(self._random.uniform(0.5, 1) * _BROKER_POLL_MS)
        return await self._http.get(address, "/v1/routes", timeout_ms=_FIRST_TIMEOUT_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Poll:
    ask: Ask
    since: float
    """On the loop's clock."""
    limit: asyncio.Timeout
    """How to end it."""
