"""Which handler carries out which request; whom it is done for; what becomes of errors.

It knows no sockets: whatever reads and writes commands calls `received`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from paceline.errors import PacelineError
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.security.identity import Principal
from paceline_gateway.clusters import UserClusters
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.identity import Authenticator
from paceline_gateway.remoting import (
    admin,
    assignments,
    connections,
    groups,
    locks,
    nodes,
    offsets,
    popping,
    pulling,
    queries,
    replies,
    retries,
    sending,
    transactions,
)
from paceline_gateway.remoting.call import Call
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.controllers import Controllers
from paceline_gateway.remoting.naming import Addresses, Naming
from paceline_gateway.remoting.rights import Rights
from paceline_gateway.remoting.state.clients import Clients
from paceline_gateway.remoting.state.peers import Peer
from paceline_gateway.remoting.state.users import RemotingUser
from paceline_gateway.shares import POLLS_MAX, Shares

log = logging.getLogger("paceline.gateway")

Handler = Callable[[Call], Awaitable[Command]]


SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)


class _Starting:
    """A user that is made ready for the requests that wait for it."""

    __slots__ = ("refusal", "task", "user", "waiters")

    def __init__(self) -> None:
        self.refusal: PacelineError | None = None
        self.task: asyncio.Task[None] | None = None
        self.user: RemotingUser | None = None
        self.waiters = 0


class Dispatcher:
    """Owned by the door."""

    def __init__(
        self,
        users: UserClusters,
        authenticator: Authenticator,
        addresses: Addresses,
        connected: ConnectedClients,
    ) -> None:
        self.clients = Clients()
        self._clusters = users
        self._connected = connected
        self._authenticator = authenticator
        self._polls = Shares(POLLS_MAX, "requests that wait for messages")
        self._users: dict[Principal, RemotingUser] = {}
        self._starting: dict[Principal, _Starting] = {}
        self._closing: set[asyncio.Task[None]] = set()
        naming = Naming(addresses)
        self._at_name_server: dict[int, Handler] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: naming.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: naming.brokers,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: naming.topics,
            **admin.AT_NAME_SERVER,
            **nodes.AT_NAME_SERVER,
            **Controllers(addresses).handlers(),
        }
        self._at_broker: dict[int, Handler] = {
            **_BROKER,
            **admin.AT_BROKER,
            **connections.AT_BROKER,
            **nodes.AT_BROKER,
            **Rights(authenticator).handlers(),
        }

    @property
    def users_count(self) -> int:
        """Users that something is kept of, or made ready for."""
        return len({*self._users, *self._starting})

    async def close(self) -> None:
        """Of all users."""
        await cancel_and_wait(*(each.task for each in self._starting.values()))
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
        if user is not None and user is self.clients.user_of(peer) and request.code in SENDS:
            if peer.place.group is None:
                peer.answer(request, _unsupported(peer, request))
            else:
                sending.send(Call(peer, user, request))
            return None
        return spawn(self._carry_out(peer, principal, request), name="remoting-request")

    async def _carry_out(self, peer: Peer, principal: Principal, request: Command) -> None:
        try:
            user = await self._user(principal)
            self._ask_as(peer, user)
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

    def _ask_as(self, peer: Peer, user: RemotingUser) -> None:
        before = self.clients.user_of(peer)
        self.clients.ask_as(peer, user)
        if before is not None:
            self._release(before)

    async def _user(self, principal: Principal) -> RemotingUser:
        """Whoever gets it asks as it at once, or it is released."""
        found = self._users.get(principal)
        if found is not None:
            return found
        starting = self._starting.get(principal)
        if starting is None:
            starting = self._starting[principal] = _Starting()
            starting.task = spawn(self._start(principal, starting), name="remoting-user")
        assert starting.task is not None
        starting.waiters += 1
        try:
            await asyncio.shield(starting.task)
            if starting.refusal is not None:
                raise starting.refusal
            assert starting.user is not None
            return starting.user
        finally:
            starting.waiters -= 1
            if not starting.waiters:
                self._started(principal, starting)

    async def _start(self, principal: Principal, starting: _Starting) -> None:
        try:
            starting.user = self._users[principal] = await self._started_user(principal)
        except PacelineError as error:
            starting.refusal = error

    async def _started_user(self, principal: Principal) -> RemotingUser:
        user = RemotingUser(await self._clusters.of(principal), self._connected, self._polls)
        try:
            await user.halves.start()
        except BaseException:
            await user.close()
            raise
        return user

    def _started(self, principal: Principal, starting: _Starting) -> None:
        """Nobody waits for it any more: it is there, has failed, or is not wanted any more."""
        if self._starting.get(principal) is starting:
            del self._starting[principal]
        if starting.task is not None:
            starting.task.cancel()
        if starting.user is not None:
            asyncio.get_running_loop().call_soon(self._release, starting.user)

    def gone(self, peer: Peer) -> None:
        """Its connection has ended."""
        peer.gone()
        user = self.clients.user_of(peer)
        self.clients.gone(peer)
        if user is not None:
            self._release(user)

    def _release(self, user: RemotingUser) -> None:
        """Close it, if no connection asks for it any more."""
        principals = [key for key, each in self._users.items() if each is user]
        is_wanted = any(each.user is user for each in self._starting.values())
        if is_wanted or self.clients.is_used(user) or not principals:
            return
        for principal in principals:
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
    RequestCode.CONSUMER_SEND_MSG_BACK: retries.send_back,
    RequestCode.END_TRANSACTION: transactions.end_transaction,
    RequestCode.LOCK_BATCH_MQ: locks.lock,
    RequestCode.UNLOCK_BATCH_MQ: locks.unlock,
    RequestCode.SEND_REPLY_MESSAGE: replies.reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: replies.reply,
    RequestCode.QUERY_ASSIGNMENT: assignments.query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: assignments.set_mode,
    RequestCode.RECALL_MESSAGE: queries.recall,
    RequestCode.POP_MESSAGE: popping.pop,
    RequestCode.ACK_MESSAGE: popping.ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: popping.change_invisible,
}
