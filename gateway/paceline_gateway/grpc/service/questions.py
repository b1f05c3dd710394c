"""Questions to clients: PrintThreadStackTrace and GetConsumerRunningInfo.

Whoever asks needs Get on the cluster, to see who is connected, and Sub or Get on the group, which
the nodes judge. A client is asked here only if it is one that the brokers list: they took its word
on who it is by its own rights. It is asked over its own stream or connection, and only what comes
back there is an answer.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from paceline.errors import NotFoundError
from paceline_gateway.connected_clients import ConnectedClient, ConnectedClients, broker_id
from paceline_gateway.grpc.codec.running_info import known_info, read_running_info
from paceline_gateway.grpc.codec.statuses import OK, Refused
from paceline_gateway.grpc.codec.values import group_of
from paceline_gateway.grpc.service.call import Answer, Call
from paceline_gateway.grpc.service.routes import is_ordered
from paceline_gateway.grpc.service.telemetry import TelemetryCalls
from paceline_gateway.grpc.stubs import admin_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code
from paceline_gateway.shares import Shares

QUESTIONS_MAX = 64
"""Under way at a time. Each waits for a client for 10 s at most."""
STACKS_LENGTH_MAX = 1_000_000
"""Characters: clients of gRPC take 4 MiB by default."""


class _Found(NamedTuple):
    """A client that is connected."""

    row: Mapping[str, Any]
    """As brokers list it."""
    here: ConnectedClient | None
    """At this gateway."""


class QuestionCalls:
    """Owned by one gateway's gRPC door."""

    def __init__(self, clients: ConnectedClients, telemetry: TelemetryCalls) -> None:
        self._clients, self._telemetry = clients, telemetry
        self._shares = Shares(QUESTIONS_MAX, "questions to clients")

    def handlers(self) -> dict[str, Answer]:
        return {
            "PrintThreadStackTrace": self.stacks,
            "GetConsumerRunningInfo": self.running_info,
        }

    async def stacks(
        self, request: wire.PrintThreadStackTraceRequest, call: Call
    ) -> wire.PrintThreadStackTraceResponse:
        """Where the threads of a client are: it is asked."""
        group = group_of(request.group, call.namespace).full
        with self._question(call):
            found = await self._find(call, group, request.client_id)
            client = found.here
            if client is not None and client.door == "grpc":
                told = await self._telemetry.stacks(client)
            elif client is not None and client.running_info is not None:
                told = read_running_info(await client.running_info(has_stacks=True)).stacks
            else:
                _refuse(found.row, client)
        return wire.PrintThreadStackTraceResponse(
            status=OK, thread_stack_trace=told[:STACKS_LENGTH_MAX]
        )

    async def running_info(
        self, request: wire.GetConsumerRunningInfoRequest, call: Call
    ) -> wire.GetConsumerRunningInfoResponse:
        """What a consumer does: one by remoting is asked; of others it is told what is known of
        them, as their protocols have no such question."""
        group = group_of(request.group, call.namespace).full
        with self._question(call):
            found = await self._find(call, group, request.client_id, kind="consumer")
            client, row = found.here, found.row
            if client is not None and client.running_info is not None:
                info = read_running_info(await client.running_info(has_stacks=False)).info
            elif row.get("door") == "remoting":
                _refuse(row, None)
            else:
                info = known_info(row, is_ordered=is_ordered(await call.cluster(), group))
        return wire.GetConsumerRunningInfoResponse(status=OK, consumer_running_info=info)

    @contextmanager
    def _question(self, call: Call) -> Iterator[None]:
        """OverloadedError: too many are under way."""
        ended = self._shares.take(call.owner)
        try:
            yield
        finally:
            ended()

    async def _find(self, call: Call, group: str, client_id: str, **of: Any) -> _Found:
        """NotFoundError, NotAuthorizedError."""
        cluster = await call.cluster()
        await cluster.admin.consumer_groups.members_of(
            group
        )  # who may not see the group is refused
        listed = await cluster.admin.clients.all(group=group, **of)
        wanted = broker_id(client_id)
        rows = [row for row in listed.clients if row["client_id"] == wanted]
        if not rows:
            raise NotFoundError(f"no client {client_id[:255]} of group {group} is connected")
        full = cluster.cluster.namespace.full_group(group)
        for row in rows:
            here = self._clients.find(wanted, row["kind"], full, user=row["user"])
            if here is not None:
                return _Found(row, here)
        return _Found(rows[0], None)


def _refuse(row: Mapping[str, Any], here: ConnectedClient | None) -> NoReturn:
    """A client that cannot be asked: what it is, or where."""
    door, address = row.get("door"), row["address"] or "an unknown address"
    client = f"client {row['client_id']} of group {row['group']}, at {address}"
    if door is None:
        brokers = ", ".join(row["brokers"])
        why = f"is paceline's own, connected to {brokers}: it cannot be asked that"
        raise Refused(Code.UNSUPPORTED, f"{client}, {why}")
    if here is not None:
        raise Refused(Code.UNSUPPORTED, f"{client}, produces by {door}: it cannot be asked that")
    why = f"is connected by {door} to another gateway, which has to be asked"
    raise Refused(Code.NOT_FOUND, f"{client}, {why}")
