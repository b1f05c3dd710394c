"""The connection to the present master of one broker group, kept up through failovers.

A task of its own connects, and connects again: at once when the view names another master, with
back-off (that any new view ends early) while the named one does not answer.
"""

import asyncio
import logging
from collections.abc import Callable

from paceline.errors import DeadlineError, PacelineError
from paceline.net.backoff import Backoff
from paceline.net.cluster import BrokerConnection, Cluster, Wakeup
from paceline.net.introduction import Introducer, Who
from paceline.net.refusals import Refusals
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.queues import master_address, reading_address
from paceline.types import GroupName
from paceline.wire.cluster import ClusterView

log = logging.getLogger("paceline.client")

_BACKOFF_FIRST_MS = 20
_BACKOFF_MAX_MS = 500


class MasterLink:
    """Owner of one group's connection. `on_up` and `on_down` are called on the event loop.

    `epoch_seen` is the highest master epoch that a view or an answer of the group has shown; an
    answer of an older epoch is worth nothing (DESIGN 5).
    """

    def __init__(
        self,
        cluster: Cluster,
        group: GroupName,
        *,
        on_up: Callable[[], None] = lambda: None,
        on_down: Callable[[], None] = lambda: None,
        is_for_reading: bool = False,
        who: Who | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        """`is_for_reading`: an acting master will do while the group has no other (R36).

        `who`: what each broker that we connect to is told of us. `refusals`: the owner's.
        """
        self.group = group
        self._address = reading_address if is_for_reading else master_address
        self.epoch_seen = 0
        self.connection: BrokerConnection | None = None
        self.has_failed = False
        """Since the last `on_up`, the connection was lost or an attempt to make one failed."""
        self.refusals = refusals or Refusals(cluster.clock)
        self.why_refused: PacelineError | None = None
        """The reason, if that is how the last attempt to connect ended."""
        self._cluster = cluster
        self.on_up = on_up
        self._on_down = on_down
        self._wakeup = Wakeup()
        self._waiters: set[asyncio.Future[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._end_listening: Callable[[], None] = lambda: None
        self._introducer = None if who is None else Introducer(who)

    def start(self) -> None:
        """Begin to connect. Idempotent."""
        if self._task is None:
            self._end_listening = self._cluster.watch.listen(self._on_view)
            if self._cluster.view is not None:
                self._on_view(self._cluster.view)
            self._task = spawn(self._run(), name=f"master-link-{self.group}")

    async def close(self) -> None:
        """Close the connection and stop."""
        self._end_listening()
        task, self._task = self._task, None
        await cancel_and_wait(task)
        self._drop()
        if self._introducer is not None:
            await self._introducer.close()

    def introduce_again(self) -> None:
        """What `who` says has changed, perhaps."""
        if self._introducer is not None:
            self._introducer.changed()

    def doubt(self) -> None:
        """The broker says that it leads no more: whoever leads, the view has yet to say it."""
        self._cluster.watch.doubt()

    def suspect(self) -> None:
        """Give up the present connection: its broker is silent or no longer master."""
        self._cluster.watch.doubt()
        self._drop()

    def saw_epoch(self, epoch: int) -> bool:
        """Note an answer's epoch; False if the group is known to be past it."""
        if epoch < self.epoch_seen:
            return False
        self.epoch_seen = epoch
        return True

    async def wait_up(self, *, timeout_ms: float) -> BrokerConnection:
        """The open connection to the master. DeadlineError when there is none in time, or why it
        lets nobody in: UnauthenticatedError, ConfigError."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.connection is None:
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.add(waiter)
                    try:
                        await waiter
                    finally:
                        self._waiters.discard(waiter)
                return self.connection
        except TimeoutError:
            if self.why_refused is not None:
                raise self.why_refused from None
            raise DeadlineError(
                f"no master of broker group {self.group} was reachable within {timeout_ms:.0f} ms"
            ) from None

    # -- inside -----------------------------------------------------------------------------------

    def _on_view(self, view: ClusterView) -> None:
        group = view.groups.get(self.group)
        if group is None:
            return
        self.epoch_seen = max(self.epoch_seen, group.master_epoch)
        connection = self.connection
        if connection is not None and connection.address != self._address(view, self.group):
            self._drop()
        self._wakeup.set()

    async def _run(self) -> None:
        backoff = Backoff(self._cluster.random, first_ms=_BACKOFF_FIRST_MS, max_ms=_BACKOFF_MAX_MS)
        while True:
            if self.connection is not None:
                await self._wakeup.wait()
                continue
            view = self._cluster.view
            address = None if view is None else self._address(view, self.group)
            if address is None:
                await self._wakeup.wait()
                continue
            try:
                connection = await self._connect(address)
            except PacelineError as error:
                log.debug("connect_failed", extra={"address": address, "error": error.message})
                self.why_refused = error if self.refusals.heard(error) else None
                self.has_failed = True
                self._cluster.watch.doubt()
                await self._wakeup.wait(backoff.next_ms())
                continue
            if connection is not None:
                backoff.reset()
                self._up(connection)

    async def _connect(self, address: str) -> BrokerConnection | None:
        """Connect, unless a view names another master meanwhile (then None)."""
        outcome: list[BrokerConnection | PacelineError] = []

        async def attempt() -> None:
            try:
                outcome.append(await self._cluster.connect(address, self.group))
            except PacelineError as error:
                outcome.append(error)
            finally:
                self._wakeup.set()

        task = spawn(attempt(), name=f"connect-{address}")
        is_taken = False
        try:
            while not task.done():
                await self._wakeup.wait()
                view = self._cluster.view
                if view is not None and self._address(view, self.group) != address:
                    return None
            is_taken = True
        finally:
            task.cancel()
            if outcome and not is_taken and not isinstance(outcome[0], PacelineError):
                outcome[0].close()  # also when this link is closed at this moment
        if not outcome:
            return None
        if isinstance(outcome[0], PacelineError):
            raise outcome[0]
        return outcome[0]

    def _up(self, connection: BrokerConnection) -> None:
        self.connection = connection
        self.has_failed = False
        self.why_refused = None
        connection.on_closed = lambda: self._on_closed(connection)
        if not connection.is_open:
            self._on_closed(connection)
            return
        log.debug("master_connected", extra={"group": self.group, "address": connection.address})
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._introducer is not None:
            self._introducer.connected(connection)
        self.on_up()

    def _on_closed(self, connection: BrokerConnection) -> None:
        if self.connection is connection:
            self._drop()

    def _drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is None:
            return
        self.has_failed = True
        connection.on_closed = None
        connection.close()
        if self._introducer is not None:
            self._introducer.disconnected()
        self._on_down()
        self._wakeup.set()
