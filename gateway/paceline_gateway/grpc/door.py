"""The gRPC door of a gateway process, wired."""

import asyncio
from typing import Protocol

from paceline.platform.address import Address
from paceline.platform.ports import Clock
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.security.node_tls import NodeTls
from paceline_gateway.clusters import UserClusters
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.grpc.server import GrpcServer
from paceline_gateway.grpc.service.call import Authenticator
from paceline_gateway.grpc.service.service import GrpcService


class Settings(Protocol):
    """Of the gateway, as far as this door goes by them."""

    @property
    def grpc_listen(self) -> Address | None: ...
    @property
    def connections_max(self) -> int: ...


class Context(Protocol):
    """What the doors of one gateway share."""

    @property
    def config(self) -> Settings: ...
    @property
    def clusters(self) -> UserClusters: ...
    @property
    def authenticator(self) -> Authenticator: ...
    @property
    def tls(self) -> NodeTls | None: ...
    @property
    def clock(self) -> Clock: ...


class GrpcDoor:
    """`start` and `close`."""

    def __init__(self, context: Context) -> None:
        """Of a gateway whose settings have `grpc_listen`."""
        address = context.config.grpc_listen
        assert address is not None
        self._address = address
        self._clients = ConnectedClients(context.clock)
        self._server = GrpcServer(
            GrpcService(self._clients),
            clusters=context.clusters,
            authenticator=context.authenticator,
            tls=context.tls,
            connections_max=context.config.connections_max,
        )
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. OSError: the port is in use."""
        await self._server.start(self._address.host, self._address.port)
        self._sweeping = spawn(self._clients.run(), name="connected-clients")

    async def close(self) -> None:
        """Take no more, let calls under way end, disconnect all. Idempotent."""
        await self._server.close()
        await cancel_and_wait(self._sweeping)


def open_door(context: Context) -> GrpcDoor:
    """The door that the settings name."""
    return GrpcDoor(context)
