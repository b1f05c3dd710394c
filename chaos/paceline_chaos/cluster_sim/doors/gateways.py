"""Gateways that clients of RocketMQ go to: processes without disks, any number, which die.

A gateway has the product's own service of its protocol (`grpc.gateway`, `remoting.gateway`). What
clients say is handed over as bytes, without the sockets of the protocol; its connections to nodes
are real, and end all at once when it dies.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from paceline.errors import DeadlineError, OutcomeUnknownError, PeerError
from paceline.net.cluster import BrokerConnection, Cluster
from paceline.net.connect import ConnectSettings
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.security.identity import Principal
from paceline.types import GroupName
from paceline.wire.cluster import ClusterView
from paceline_chaos.cluster_sim.doors.who import Who
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_gateway.clusters import UserClusters
from paceline_gateway.connected_clients import ConnectedClients

T = TypeVar("T")

GATEWAYS = 2
_LIVES_MS = (1_500.0, 6_000.0)
"""So long nobody ends one of the gateways."""
_STOP_SHARE = 0.3
_STOP_MS = 4_000


class _Lines(Cluster):
    """A cluster whose connections can be cut."""

    def __init__(self, around: Around, settings: ConnectSettings) -> None:
        super().__init__(
            settings,
            clock=around.clock,
            random=around.random,
            source_host=around.source_host,
        )
        self._connections: list[BrokerConnection] = []
        self._is_cut = False

    async def connect(self, address: str, group: GroupName) -> BrokerConnection:
        """As `Cluster.connect`. PeerError, once they are cut."""
        connection = None if self._is_cut else await super().connect(address, group)
        if connection is not None and self._is_cut:
            connection.close()
        if connection is None or self._is_cut:
            raise PeerError(f"the process that would connect to {address} has died")
        self._connections = [each for each in self._connections if each.is_open]
        self._connections.append(connection)
        return connection

    def cut(self) -> None:
        """All of them, and make no more."""
        self._is_cut = True
        for connection in self._connections:
            connection.close()


class Gateway(ABC):
    """One life of one gateway."""

    def __init__(self, around: Around, number: int) -> None:
        """`number`: no other one of this client has it."""
        self.number = number
        self.is_gone = False
        """It takes no more calls."""
        self.who = Who(around)
        self.clusters = UserClusters(self._connect, clock=around.clock)
        self.clients = ConnectedClients(around.clock)
        self._around = around
        self._lines: list[_Lines] = []
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._always = [
            spawn(work, name=f"gateway-{number}") for work in (self.clients.run(), self.who.run())
        ]

    @property
    def view(self) -> ClusterView | None:
        """As one of its users sees the cluster; None: nobody yet."""
        return next((line.view for line in self._lines if line.view is not None), None)

    def _connect(self, principal: Principal) -> Cluster:
        around = self._around
        shown = self.who.shown(principal)
        settings = ConnectSettings(
            around.bootstrap, shown, around.tls, namespace=principal.namespace
        )
        self._lines.append(_Lines(around, settings))
        return self._lines[-1]

    async def carry_out(self, work: Callable[[], Awaitable[T]], deadline_ms: int) -> T:
        """The result. DeadlineError: none in time, and it is given up; OutcomeUnknownError: the
        gateway is gone, or dies meanwhile."""
        results: list[T] = []

        async def run() -> None:
            results.append(await work())

        if self.is_gone:
            raise OutcomeUnknownError("the gateway is gone")
        task = self.begin(run(), "gateway-call")
        try:
            await asyncio.wait({task}, timeout=deadline_ms / 1000)
        finally:
            task.cancel()
        if results:
            return results[0]
        if self.is_gone:
            raise OutcomeUnknownError("the gateway has died")
        raise DeadlineError(f"no answer in {deadline_ms} ms")

    def begin(self, work: Any, name: str) -> "asyncio.Task[None]":
        """Work that ends with the gateway."""
        return self.hold(spawn(work, name=name))

    def hold(self, task: "asyncio.Task[None]") -> "asyncio.Task[None]":
        """As `begin`, of what has begun."""
        self._under_way[task] = None
        task.add_done_callback(lambda done: self._under_way.pop(done, None))
        return task

    # -- the end -----------------------------------------------------------------------------------

    async def die(self) -> None:
        """At once: nobody is told anything. What it was at ends without connections."""
        self.is_gone = True
        for line in self._lines:
            line.cut()
        self._hang_up()
        await cancel_and_wait(*self._always, *self._under_way)
        for line in self._lines:
            await line.close()
        spawn(self._end(), name=f"gateway-{self.number}-ends")

    async def stop(self) -> None:
        """As for a restart: streams end, calls under way are answered, then it closes; after
        `_STOP_MS` it dies all the same."""
        try:
            async with asyncio.timeout(_STOP_MS / 1000):
                await self._leave()
                self.is_gone = True
                if self._under_way:
                    await asyncio.wait(dict(self._under_way))
                await cancel_and_wait(*self._always)
                await self._close()
        except TimeoutError:
            await self.die()

    async def _end(self) -> None:
        await self._close()
        for line in self._lines:
            await line.close()  # what ended may have asked something over HTTP once more

    async def _close(self) -> None:
        await self._close_service()
        await self.clusters.close()

    @abstractmethod
    def _hang_up(self) -> None:
        """Connections of clients are gone."""

    @abstractmethod
    async def _leave(self) -> None:
        """Take no more; what waits for clients ends."""

    @abstractmethod
    async def _close_service(self) -> None: ...


GatewayT = TypeVar("GatewayT", bound=Gateway)


class Gateways(Generic[GatewayT]):
    """Those that one client program may go to. `run` has some die, and starts others for them."""

    def __init__(self, around: Around, kind: Callable[[Around, int], GatewayT]) -> None:
        self._around = around
        self._kind = kind
        self._number = 0
        self._up = [self._start() for _ in range(GATEWAYS)]
        self._ending: GatewayT | None = None

    def _start(self) -> GatewayT:
        self._number += 1
        return self._kind(self._around.apart(f"gateway-{self._number}"), self._number)

    def other_than(self, gateway: GatewayT | None) -> GatewayT:
        """One that takes calls, another one if there is."""
        up = [each for each in self._up if not each.is_gone]
        return next((each for each in up if each is not gateway), self._up[0])

    async def run(self) -> None:
        """Until cancelled."""
        around = self._around
        while True:
            await pause(around.random.uniform(*_LIVES_MS))
            place = around.whole(0, GATEWAYS - 1)
            self._ending, self._up[place] = self._up[place], self._start()
            is_stop = around.happens(_STOP_SHARE)
            await (self._ending.stop() if is_stop else self._ending.die())
            self._ending = None

    async def close(self) -> None:
        """Stop all; `run` was cancelled."""
        if self._ending is not None:
            await self._ending.die()
        await asyncio.gather(*(gateway.stop() for gateway in self._up))
