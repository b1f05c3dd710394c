"""`python -m tests.interop.empty_server`: a gRPC server that takes messages and forgets them.

What a client reaches here is the most that it reaches anywhere on this machine.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from paceline_gateway.grpc.codec.settings import answer_to
from paceline_gateway.grpc.codec.statuses import OK
from paceline_gateway.grpc.service.service import METHODS
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import (
    Broker,
    MessageQueue,
    MessageType,
    Permission,
)

QUEUES = 4


class EmptyServer:
    """The calls of a producer; others are unknown."""

    def __init__(self) -> None:
        self._taken = 0

    async def query_route(self, request: Any, context: Any) -> Any:
        queues = [
            MessageQueue(
                topic=request.topic,
                id=number,
                permission=Permission.READ_WRITE,
                broker=Broker(name="empty", id=0, endpoints=request.endpoints),
                accept_message_types=[MessageType.NORMAL],
            )
            for number in range(QUEUES)
        ]
        return wire.QueryRouteResponse(status=OK, message_queues=queues)

    async def send(self, request: Any, context: Any) -> Any:
        entries = []
        for message in request.messages:
            self._taken += 1
            entries.append(
                wire.SendResultEntry(
                    status=OK,
                    message_id=message.system_properties.message_id,
                    offset=self._taken,
                )
            )
        return wire.SendMessageResponse(status=OK, entries=entries)

    async def heartbeat(self, request: Any, context: Any) -> Any:
        return wire.HeartbeatResponse(status=OK)

    async def terminated(self, request: Any, context: Any) -> Any:
        return wire.NotifyClientTerminationResponse(status=OK)

    async def telemetry(self, commands: Any, context: Any) -> AsyncIterator[Any]:
        async for command in commands:
            if command.HasField("settings"):
                settings = answer_to(command.settings)
                yield wire.TelemetryCommand(status=OK, settings=settings)

    def handlers(self) -> grpc.GenericRpcHandler:
        unary = {
            "QueryRoute": self.query_route,
            "SendMessage": self.send,
            "Heartbeat": self.heartbeat,
            "NotifyClientTermination": self.terminated,
        }
        found = {
            name: grpc.unary_unary_rpc_method_handler(call, **_codecs(name))
            for name, call in unary.items()
        }
        found["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self.telemetry, **_codecs("Telemetry")
        )
        service = METHODS["SendMessage"].containing_service.full_name
        return grpc.method_handlers_generic_handler(service, found)


def _codecs(name: str) -> dict[str, Any]:
    method = METHODS[name]
    return {
        "request_deserializer": GetMessageClass(method.input_type).FromString,
        "response_serializer": GetMessageClass(method.output_type).SerializeToString,
    }


async def _serve() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((EmptyServer().handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
