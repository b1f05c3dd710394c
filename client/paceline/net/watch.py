"""The cluster watch: the newest `ClusterView`, pushed by long polls, and who wants to know.

Two watchers poll two different nodes at a time, so a node that hangs (paused, partitioned) does
not delay the news of a failover. A view counts only if its version is larger and its cluster id
the same (R38). A controller that knows what changed since tells only that; if it does not follow
the view that is here, the whole view is asked for.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
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
from paceline.wire.views.changes import SINCE, ViewChanges

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
        read: Callable[[Mapping[str, Any]], ClusterView] = ClusterView.from_json,
    ) -> None:
        """`read` makes a view of what a node has answered; BadRequestError."""
        assert bootstrap
        self._read = read
        self._bootstrap = tuple(bootstrap)
        self._http = http
        self._random = random
        self._view: ClusterView | None = None
        self._listeners: dict[object, OnView] = {}
        self._changed: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._has_gap = False
        """The next node that is asked gives the whole view."""
        self._last_error: PacelineError | None = None
        self._refusal: PacelineError | None = None
        """No node lets this client in, so no view will come."""
        self._refused_since: float | None = None
        self._polled: dict[int, str] = {}  # watcher -> the node it asks
        self._polls: dict[int, tuple[float, asyncio.Timeout]] = {}
        """Watcher -> its poll under way: since when, and how to end it."""

    @property
    def view(self) -> ClusterView | None:
        """The newest view; None before the first answer."""
        return self._view

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
        now = asyncio.get_running_loop().time()
        for since, limit in self._polls.values():
            if now - since >= _DOUBT_MS / 1000 and not limit.expired():
                limit.reschedule(now)

    async def wait_for(
        self, condition: Callable[[ClusterView], bool], *, timeout_ms: int
    ) -> ClusterView:
        """The first view that meets the condition. DeadlineError says what the last poll said;
        UnauthenticatedError: no node lets this client in."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self._view is None or not condition(self._view):
                    if self._refusal is not None and self._view is None:
                        raise self._refusal
                    if self._changed is None:
                        self._changed = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._changed)
                return self._view
        except TimeoutError:
            if self._view is None:
                asked = ", ".join(self._bootstrap)
                why = "" if self._last_error is None else f" ({self._last_error.message})"
                raise PeerError(f"no node of the cluster answered at {asked}{why}") from None
            raise DeadlineError(
                f"the cluster did not become as asked within {timeout_ms} ms"
            ) from None

    def apply(self, view: ClusterView) -> bool:
        """Take a view from anywhere; False if it is not newer, or of another cluster (R38).

        Another cluster counts as newer if its operator has recovered ours there (R18).
        """
        present = self._view
        if present is not None and present.cluster_id not in view.replaces:
            if view.cluster_id != present.cluster_id:
                log.warning(
                    "foreign_view_refused",
                    extra={"cluster_id": view.cluster_id, "expected": present.cluster_id},
                )
                return False
            if view.version <= present.version:
                return False
        self._view = view
        self._wake()
        for listener in tuple(self._listeners.values()):
            listener(view)
        return True

    # -- inside -----------------------------------------------------------------------------------

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
        return self._view is None or address in self._view.controllers

    def _addresses(self) -> list[str]:
        """Controllers first, once known; then what we were given; then any broker."""
        view = self._view
        if view is None:
            return list(self._bootstrap)
        found = [*view.controllers, *self._bootstrap, *broker_addresses(view)]
        return list(dict.fromkeys(found))

    async def _poll_until_doubt(self, number: int, address: str) -> None:
        try:
            async with asyncio.timeout(None) as limit:
                self._polls[number] = asyncio.get_running_loop().time(), limit
                await self._poll(address)
        except TimeoutError:
            raise DeadlineError(f"{address} had no news, and the view is in doubt") from None
        finally:
            self._polls.pop(number, None)

    async def _poll(self, address: str) -> None:
        view = self._view
        if view is None:
            document = await self._http.get(address, "/v1/routes", timeout_ms=_FIRST_TIMEOUT_MS)
        else:
            document = await self._long_poll(address, view.version)
        if not document:
            return
        try:
            is_newer = self._take(document)
        except BadRequestError as error:
            raise PeerError(f"{address} answered {error.message}") from error
        if not is_newer and view is not None and document["version"] <= view.version:
            # An answer at once without news (a node that does not wait) must not make us spin.
            await pause(self._random.uniform(5, 20))

    def _take(self, document: Mapping[str, Any]) -> bool:
        """A node's answer: a view, or changes of one; whether it is news. BadRequestError."""
        if SINCE not in document:
            self._has_gap = False
            return self.apply(self._read(document))
        changes, view = ViewChanges.from_json(document), self._view
        if view is not None and changes.follows(view):
            return self.apply(changes.applied_to(view))
        is_old = view is not None and changes.is_old(view)
        self._has_gap = self._has_gap or not is_old
        return False

    async def _long_poll(self, address: str, version: int) -> dict[str, Any]:
        try:
            params = {"from": str(version), "wait_ms": str(_POLL_WAIT_MS)}
            if self._is_controller(address) and not self._has_gap:
                params["changes"] = "true"
            return await self._http.get(
                address,
                "/v1/watch",
                params=params,
                timeout_ms=_POLL_WAIT_MS + _POLL_SLACK_MS,
            )
        except NotFoundError:
            # A broker: it repeats the view it was told, without a wait.
            await pause(self._random.uniform(0.5, 1) * _BROKER_POLL_MS)
            return await self._http.get(address, "/v1/routes", timeout_ms=_FIRST_TIMEOUT_MS)
