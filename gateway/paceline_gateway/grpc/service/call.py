"""Who calls, and what of the call's headers counts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from paceline.errors import BadNameError
from paceline.security.identity import Principal
from paceline.wire.names import check_namespace
from paceline_gateway.clusters import UserCluster, UserClusters
from paceline_gateway.connected_clients import ClientKey
from paceline_gateway.grpc.codec.statuses import Refused
from paceline_gateway.grpc.stubs.resources_pb2 import Code, Endpoints
from paceline_gateway.shares import Owner, owner_of

CLIENT_ID_LENGTH_MAX = 255
_TEXT_LENGTH_MAX = 64


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client."""

    principal: Principal
    client_id: str
    """Empty: it did not say."""
    namespace: str
    """Of names that have none of their own."""
    language: str
    version: str
    deadline_ms: int | None
    """So long the client waits for the answer; None: for ever."""
    endpoints: Endpoints
    """This server's, where the client does not say how it names it."""
    clusters: UserClusters

    async def cluster(self) -> UserCluster:
        """The cluster as its user sees it. PeerError: no node answers."""
        return await self.clusters.of(self.principal)

    @property
    def owner(self) -> Owner:
        """Whose share it counts for."""
        return owner_of(self.principal.user, self.principal.source)

    @property
    def key(self) -> ClientKey:
        """Refused: it has not said who it is."""
        if not self.client_id:
            raise Refused(Code.CLIENT_ID_REQUIRED, "the header x-mq-client-id is missing")
        return ClientKey(self.principal.user, self.client_id)


Answer: TypeAlias = Callable[[Any, Call], Awaitable[Any]]
AnswerStream: TypeAlias = Callable[[Any, Call], AsyncIterator[Any]]


def call_of(
    headers: Mapping[str, str],
    principal: Principal,
    clusters: UserClusters,
    *,
    deadline_ms: int | None,
    endpoints: Endpoints,
) -> Call:
    """The call with these headers; Refused."""
    client_id = headers.get("x-mq-client-id", "")
    if len(client_id) > CLIENT_ID_LENGTH_MAX:
        raise Refused(
            Code.CLIENT_ID_REQUIRED, f"a client id has at most {CLIENT_ID_LENGTH_MAX} characters"
        )
    namespace = headers.get("x-mq-namespace", "")
    if namespace:
        try:
            check_namespace(namespace)
        except BadNameError as error:
            raise Refused(Code.BAD_REQUEST, error.message) from error
    return Call(
        principal,
        client_id,
        namespace,
        headers.get("x-mq-language", "")[:_TEXT_LENGTH_MAX],
        headers.get("x-mq-client-version", "")[:_TEXT_LENGTH_MAX],
        deadline_ms,
        endpoints,
        clusters,
    )
