"""The gRPC door of a gateway: its server at the address of the settings."""

from paceline.platform.address import Address
from paceline_gateway.doors import DoorContext
from paceline_gateway.grpc.server import GrpcServer
from paceline_gateway.grpc.service.service import GrpcService


class GrpcDoor:
    """See `paceline_gateway.doors.Door`."""

    def __init__(self, server: GrpcServer, listen: Address) -> None:
        self._server, self._listen = server, listen

    async def start(self) -> None:
        await self._server.start(*self._listen)

    async def close(self) -> None:
        await self._server.close()


def open_door(context: DoorContext) -> GrpcDoor:
    """That of a gateway with the setting `grpc_listen`."""
    listen = context.config.grpc_listen
    assert listen is not None
    server = GrpcServer(
        GrpcService(
            context.clients,
            name=context.config.node_id(),
            budget=context.budget,
            metrics=context.metrics,
        ),
        clusters=context.clusters,
        authenticator=context.authenticator,
        tls=context.tls,
        connections_max=context.config.connections_max,
        on_refused=context.on_refused,
    )
    return GrpcDoor(server, listen)
