"""Gateways that clients of RocketMQ go to: processes without disks, any number, which die.

A gateway has the product's own service of its protocol. Calls are handed over as bytes, without the
sockets of the protocol; its connections to nodes are real, and end all at once when it dies.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from paceline.errors import DeadlineError, OutcomeUnknownError, PeerError
from paceline.net.cluster import BrokerConnection, Cluster
from paceline.net.connect import ConnectSettings
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.security.identity import Principal
from paceline.types import GroupName
from paceline.wire.users import ANONYMOUS
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_gateway.clusters import UserClusters
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.grpc.service.call import Call, call_of
from paceline_gateway.grpc.service.service import SERVICE, GrpcService
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Address, AddressScheme, Endpoints

T = TypeVar("T")

GATEWAYS = 2
_LIVES_MS = (1_500.0, 6_000.0)
"""So long nobody ends one of the gateways."""
_STOP_SHARE = 0.3
_STOP_MS = 4_000
_ENDPOINTS = Endpoints(scheme=AddressScheme.IPv4, addresses=[Address(host="127.0.0.1", port=8081)])


class _Lines(Cluster):
    """A cluster whose connections can be cut."""

    def __init__(self, around: Around) -> None:
        super().__init__(
            ConnectSettings(around.bootstrap, around.credentials, around.tls),
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


class Gateway:
    """One life of one gateway."""

    def __init__(self, around: Around, number: int) -> None:
        """`number`: no other one of this client has it."""
        self.number = number
        self.is_gone = False
        """It takes no more calls."""
        self._around = around
        self._lines: list[_Lines] = []
        self._clusters = UserClusters(self._connect, clock=around.clock)
        clients = ConnectedClients(around.clock)
        self._service = GrpcService(clients)
        self._principal = Principal(ANONYMOUS, around.source_host, door="grpc")
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._telling = spawn(clients.run(), name=f"gateway-{number}")

    @property
    def groups_count(self) -> int:
        """Broker groups that it knows of; 0: none yet."""
        views = [line.view for line in self._lines if line.view is not None]
        return len(views[0].groups) if views else 0

    def _connect(self, principal: Principal) -> Cluster:
        self._lines.append(_Lines(self._around))
        return self._lines[-1]

    def _call(self, headers: Mapping[str, str], deadline_ms: int | None) -> Call:
        return call_of(
            headers,
            self._principal,
            self._clusters,
            deadline_ms=deadline_ms,
            endpoints=_ENDPOINTS,
        )

    # -- calls -------------------------------------------------------------------------------------

    async def call(
        self, name: str, request: bytes, headers: Mapping[str, str], *, deadline_ms: int
    ) -> list[bytes]:
        """The answers of a call. DeadlineError: none in time, and the call is given up;
        OutcomeUnknownError: the gateway is gone, or dies meanwhile."""
        method = SERVICE.methods_by_name[name]
        asked = getattr(wire, method.input_type.name).FromString(request)
        call = self._call(headers, deadline_ms)

        async def answer() -> list[bytes]:
            if not method.server_streaming:
                return [_bytes(await self._service.answer(name, asked, call))]
            async with aclosing(self._service.answers(name, asked, call)) as answers:  # type: ignore[type-var]
                return [_bytes(each) async for each in answers]

        return await self._carry_out(answer, deadline_ms)

    async def _carry_out(self, work: Callable[[], Awaitable[T]], deadline_ms: int) -> T:
        results: list[T] = []

        async def run() -> None:
            results.append(await work())

        if self.is_gone:
            raise OutcomeUnknownError("the gateway is gone")
        task = self._begin(run(), "gateway-call")
        try:
            await asyncio.wait({task}, timeout=deadline_ms / 1000)
        finally:
            task.cancel()
        if results:
            return results[0]
        if self.is_gone:
            raise OutcomeUnknownError("the gateway has died")
        raise DeadlineError(f"no answer in {deadline_ms} ms")

    def converse(
        self,
        commands: AsyncIterator[bytes],
        headers: Mapping[str, str],
        on_command: Callable[[bytes], None],
    ) -> "asyncio.Task[None]":
        """A Telemetry stream; done when it has ended."""
        call = self._call(headers, None)

        async def decoded() -> AsyncIterator[wire.TelemetryCommand]:
            async for command in commands:
                yield wire.TelemetryCommand.FromString(command)

        async def run() -> None:
            answers = self._service.telemetry(decoded(), call)
            async with aclosing(answers) as told:  # type: ignore[type-var]
                async for command in told:
                    on_command(_bytes(command))

        return self._begin(run(), "gateway-telemetry")

    def _begin(self, work: Any, name: str) -> "asyncio.Task[None]":
        task = spawn(work, name=name)
        self._under_way[task] = None
        task.add_done_callback(lambda done: self._under_way.pop(done, None))
        return task

    # -- the end -----------------------------------------------------------------------------------

    async def die(self) -> None:
        """At once: nobody is told anything. What it was at ends without connections."""
        self.is_gone = True
        for line in self._lines:
            line.cut()
        await cancel_and_wait(self._telling, *self._under_way)
        for line in self._lines:
            await line.close()
        spawn(self._close(), name=f"gateway-{self.number}-ends")

    async def stop(self) -> None:
        """As for a restart: streams end, calls under way are answered, then it closes; after
        `_STOP_MS` it is killed."""
        try:
            async with asyncio.timeout(_STOP_MS / 1000):
                await self._service.leave()
                self.is_gone = True
                if self._under_way:
                    await asyncio.wait(dict(self._under_way))
                await cancel_and_wait(self._telling)
                await self._close()
        except TimeoutError:
            await self.die()

    async def _close(self) -> None:
        await self._service.close()
        await self._clusters.close()


class Gateways:
    """Those that one client program may go to. `run` has some die, and starts others for them."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._number = 0
        self._up = [self._start() for _ in range(GATEWAYS)]

    def _start(self) -> Gateway:
        self._number += 1
        return Gateway(self._around.apart(f"gateway-{self._number}"), self._number)

    def other_than(self, gateway: Gateway | None) -> Gateway:
        """One that takes calls, another one if there is."""
        up = [each for each in self._up if not each.is_gone]
        return next((each for each in up if each is not gateway), self._up[0])

    async def run(self) -> None:
        """Until cancelled."""
        around = self._around
        while True:
            await pause(around.random.uniform(*_LIVES_MS))
            place = around.whole(0, GATEWAYS - 1)
            ending, self._up[place] = self._up[place], self._start()
            await (ending.stop() if around.happens(_STOP_SHARE) else ending.die())

    async def close(self) -> None:
        """Stop all."""
        await asyncio.gather(*(gateway.stop() for gateway in self._up))


def _bytes(message: Any) -> bytes:
    """In one way only, whatever the order of a map's entries in memory."""
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded
