"""Which handler carries out which request; whom it is done for; what becomes of errors.

It knows no sockets: whatever reads and writes commands calls `received`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

from paceline.errors import PacelineError
from paceline.platform.runtime import spawn
from paceline.security.identity import Principal
from paceline_gateway.clusters import UserClusters
from paceline_gateway.remoting import (
    admin,
    groups,
    locks,
    offsets,
    popping,
    pulling,
    queries,
    sending,
    transactions,
)
from paceline_gateway.remoting.clients import Clients
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.naming import Addresses, Naming
from paceline_gateway.remoting.peers import Call, Peer
from paceline_gateway.remoting.replies import Replies
from paceline_gateway.remoting.users import RemotingUser

log = logging.getLogger("paceline.gateway")

Handler = Callable[[Call], Awaitable[Command]]


class Authenticator(Protocol):
    """Who asks."""

    def remoting(
        self,
        ext_fields: Mapping[str, str],
        body: bytes,
        source: str,
        *,
        version: int,
        is_encrypted: bool,
        certified: Collection[str],
    ) -> Principal:
        """UnauthenticatedError, NotYetAvailableError."""
        ...


SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)


class Dispatcher:
    """Owned by the door."""

    def __init__(
        self, users: UserClusters, authenticator: Authenticator, addresses: Addresses
    ) -> None:
        self.clients = Clients()
        self._clusters = users
        self._authenticator = authenticator
        self._users: dict[Principal, RemotingUser] = {}
        self._starting: dict[Principal, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        naming = Naming(addresses)
        replies = Replies(self.clients)
        self._at_name_server: dict[int, Handler] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: naming.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: naming.brokers,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: naming.topics,
            **admin.AT_NAME_SERVER,
        }
        self._at_broker: dict[int, Handler] = {
            **_BROKER,
            RequestCode.SEND_REPLY_MESSAGE: replies.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: replies.reply,
            **admin.at_broker(self.clients),
        }

    async def close(self) -> None:
        """Of all users."""
        for task in list(self._starting.values()):
            task.cancel()
        while self._users:
            _, user = self._users.popitem()
            await user.close()
        await asyncio.gather(*self._closing)

    def received(self, peer: Peer, request: Command) -> "asyncio.Task[None] | None":
        """Carry out a request; a task, if it takes one. Sends take none."""
        if request.is_answer:
            peer.answered(request)
            return None
        peer.language, peer.version = request.language, request.version
        peer.serialization = request.serialization
        try:
            principal = self._authenticator.remoting(
                request.fields,
                bytes(request.body),
                peer.source,
                version=request.version,
                is_encrypted=peer.is_encrypted,
                certified=peer.certified,
            )
        except PacelineError as error:
            peer.fail(request, error)
            return None
        user = self._users.get(principal)
        if user is not None and user is peer.user and request.code in SENDS:
            if peer.place.group is None:
                peer.answer(request, _unsupported(peer, request))
            else:
                sending.send(Call(peer, user, request))
            return None
        return spawn(self._carry_out(peer, principal, request), name="remoting-request")

    async def _carry_out(self, peer: Peer, principal: Principal, request: Command) -> None:
        try:
            user = await self._user(principal)
            peer.user = user
            call = Call(peer, user, request)
            if peer.place.group is not None and request.code in SENDS:
                sending.send(call)
                return
            handlers = self._at_name_server if peer.place.group is None else self._at_broker
            handler = handlers.get(request.code) or self._at_name_server.get(request.code)
            if handler is None:
                answer = _unsupported(peer, request)
            else:
                answer = await handler(call)
        except PacelineError as error:
            log.debug("request_failed", extra={"code": request.code, "error": error.message})
            peer.fail(request, error)
        else:
            peer.answer(request, answer)

    async def _user(self, principal: Principal) -> RemotingUser:
        found = self._users.get(principal)
        if found is not None:
            return found
        starting = self._starting.get(principal)
        if starting is None:
            starting = self._starting[principal] = spawn(
                self._start(principal), name="remoting-user"
            )
            starting.add_done_callback(lambda _: self._starting.pop(principal, None))
        await asyncio.shield(starting)
        return self._users[principal]

    async def _start(self, principal: Principal) -> None:
        cluster = await self._clusters.of(principal)
        user = RemotingUser(cluster)
        await user.halves.start()
        self._users[principal] = user

    def gone(self, peer: Peer) -> None:
        """Its connection has ended."""
        peer.gone()
        self.clients.peers.discard(peer)
        if peer.user is not None and peer.client_id:
            peer.user.groups.left(peer)
        user = peer.user
        if user is not None and not any(each.user is user for each in self.clients.peers):
            for principal in [key for key, each in self._users.items() if each is user]:
                del self._users[principal]
                task = spawn(user.close(), name="close-remoting-user")
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)


def _unsupported(peer: Peer, request: Command) -> Command:
    where = "a name server" if peer.place.group is None else "a broker"
    return request.answer(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark=f"this gateway has no request of code {request.code} as {where}; see"
        " docs/MIGRATION.md for what there is",
    )


_BROKER: Mapping[int, Handler] = {
    RequestCode.PULL_MESSAGE: pulling.pull,
    RequestCode.LITE_PULL_MESSAGE: pulling.pull,
    RequestCode.QUERY_MESSAGE: queries.query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: queries.view_message,
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset,
    RequestCode.GET_MAX_OFFSET: offsets.max_offset,
    RequestCode.GET_MIN_OFFSET: offsets.min_offset,
    RequestCode.HEART_BEAT: groups.heartbeat,
    RequestCode.UNREGISTER_CLIENT: groups.unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: groups.consumer_ids,
    RequestCode.CHECK_CLIENT_CONFIG: groups.check_client_config,
    RequestCode.CONSUMER_SEND_MSG_BACK: queries.send_back,
    RequestCode.END_TRANSACTION: transactions.end_transaction,
    RequestCode.LOCK_BATCH_MQ: locks.lock,
    RequestCode.UNLOCK_BATCH_MQ: locks.unlock,
    RequestCode.RECALL_MESSAGE: queries.recall,
    RequestCode.POP_MESSAGE: popping.pop,
    RequestCode.ACK_MESSAGE: popping.ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: popping.change_invisible,
}
