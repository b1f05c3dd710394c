"""Shell: receives brokers' sessions (WebSocket at /v1/session).

Mutual proof of the cluster secret first; then requests go to the state machine through the leader,
heartbeats to the supervisor. A broker speaks only for its own group, and as the replica whose store
it is. Messages: `paceline.wire.session`.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import WSMessage, WSMsgType, web

from paceline.errors import (
    BadRequestError,
    ForbiddenError,
    NotLeaderError,
    OverloadedError,
    PacelineError,
    ShuttingDownError,
    UnauthenticatedError,
    to_problem,
)
from paceline.http_api.rights import ASKER
from paceline.platform.ports import Clock, Random
from paceline.platform.runtime import spawn
from paceline.platform.secret import ClusterSecrets
from paceline.platform.telemetry import strangers
from paceline.security.certificates import check_broker, is_tls
from paceline.server.http_guard import is_proven, is_stranger
from paceline.types import ControllerId, ReplicaId
from paceline.wire import session as wire
from paceline.wire.cluster import GroupSettings
from paceline.wire.messages import Nonce
from paceline.wire.seal import Seal, Seals, check_sealing
from paceline_controller.leader.proposer import Proposer
from paceline_controller.leader.supervisor import Supervisor
from paceline_controller.quorum import Quorum
from paceline_controller.server.http_errors import query_flag
from paceline_controller.sessions.hub import COMMANDS_MAX, BrokerSession, Hub
from paceline_controller.state import Machine
from paceline_controller.state.commands import Registration

log = logging.getLogger("paceline.controller")

HELLO_TIMEOUT_S = 5.0
SESSIONS_MAX = 1024
TIME_INTERVAL_MS = 600
"""Within the time after which a broker that hears nothing asks whether somebody is there."""
SILENCES_MAX = 4
"""Heartbeat timeouts without a word after which a connection is closed."""


class SessionServer:
    """One per controller; `serve` is the aiohttp handler."""

    def __init__(
        self,
        machine: Machine,
        *,
        quorum: Quorum,
        proposer: Proposer,
        supervisor: Supervisor,
        hub: Hub,
        random: Random,
        secrets: ClusterSecrets,
        controller_id: ControllerId,
        defaults: GroupSettings,
        heartbeat_timeout_ms: int,
        leader_address: Callable[[], str | None],
        security_text: Callable[[], str],
        clock: Clock,
        on_refused: Callable[[str, str, PacelineError, str], None],
    ) -> None:
        """`on_refused`: `RefusedPeers.refused`."""
        self._machine = machine
        self._quorum = quorum
        self._proposer = proposer
        self._supervisor = supervisor
        self._hub = hub
        self._random = random
        self._secrets = secrets
        self._controller_id = controller_id
        self._defaults = defaults
        self._timeout_ms = heartbeat_timeout_ms
        self._leader_address = leader_address
        self._security_text = security_text
        self._clock = clock
        self._on_refused = on_refused
        self.is_closing = False

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        if self.is_closing:
            raise ShuttingDownError("this controller is stopping")
        if len(self._hub.sessions) >= SESSIONS_MAX:
            raise OverloadedError(f"{SESSIONS_MAX} sessions are open", retry_after_ms=1000)
        if not all(value.isascii() for value in request.headers.values()):
            raise BadRequestError("headers of a session are ASCII")  # aiohttp fails on others
        takes_changes = query_flag(request, "changes")
        socket = web.WebSocketResponse(max_msg_size=wire.FROM_BROKER_BYTES_MAX, compress=False)
        await socket.prepare(request)
        transport = request.transport
        if transport is None:
            return socket
        is_stranger(request)
        welcomed = await self._shake_hands(request, socket, transport)
        if welcomed is None:
            return socket
        hello, seals = welcomed
        outgoing, incoming = (None, None) if seals is None else (seals.outgoing, seals.incoming)
        session = self._hub.admit(
            hello,
            socket=socket,
            transport=transport,
            seal=outgoing,
            takes_changes=takes_changes,
        )
        log.info("session_opened", extra=_who(session))
        try:
            # In one turn with the admission: no view and no change of leader is missed.
            session.send(wire.encode(self._leadership()))
            session.send_security(self._security_text())
            if self._machine.cluster_id:
                session.send_view()
            await self._read(session, socket, incoming)
        finally:
            self._hub.leave(session)
            session.close()
            self._supervisor.session_closed(session.connection)
            log.info("session_closed", extra=_who(session))
        return socket

    # -- handshake ----------------------------------------------------------------------------

    async def _shake_hands(
        self,
        request: web.Request,
        socket: web.WebSocketResponse,
        transport: asyncio.BaseTransport,
    ) -> tuple[wire.Hello, Seals | None] | None:
        """The broker's hello, welcomed, and how the session goes on; None if it was refused or
        left."""
        challenge = wire.Challenge(
            controller_id=self._controller_id, nonce=Nonce.fresh(self._random)
        )
        await socket.send_str(wire.encode(challenge))
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                message = await socket.receive()
            hello = self._read_hello(message)
            if hello is None:
                return None
            check_sealing(is_sealed=hello.is_sealed, is_tls=is_tls(transport))
            check_broker(transport, group=hello.group, replica_id=hello.replica_id)
            secret = wire.check_hello(hello, challenge, self._secrets.all)
            self._check_cluster(hello)
        except PacelineError as error:
            strangers.warning("session_refused", extra={"code": error.code, "why": error.message})
            principal = request[ASKER].principal
            self._on_refused("session", principal.source, error, principal.request_id)
            await socket.send_str(
                wire.encode(wire.Refused(code=error.code, detail=error.message[:4096]))
            )
            await socket.close()
            return None
        except TimeoutError:
            await socket.close()
            return None
        welcome = wire.Welcome(
            cluster_id=self._machine.cluster_id or None,
            controller_id=self._controller_id,
            is_leader=self._supervisor.is_leading,
            leader_address=self._leader_address(),
            session_timeout_ms=self._timeout_ms,
            proof=wire.welcome_proof(challenge, hello, secret),
        )
        seals = hello.seals(secret, challenge, is_dialer=False)
        if seals is None:
            await socket.send_str(wire.encode(welcome))
        else:
            await socket.send_bytes(seals.outgoing.message(wire.encode(welcome).encode()))
        is_proven(request)
        return hello, seals

    def _read_hello(self, message: WSMessage) -> wire.Hello | None:
        """None: the broker has left."""
        if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
            return None
        if message.type is not WSMsgType.TEXT:
            raise BadRequestError("a session begins with a hello, as text")
        hello = wire.parse_from_broker(message.data)
        if not isinstance(hello, wire.Hello):
            raise UnauthenticatedError("a session begins with a hello")
        return hello

    def _check_cluster(self, hello: wire.Hello) -> None:
        known = self._machine.cluster_id
        is_foreign = hello.cluster_id is not None and known and hello.cluster_id != known
        # It is no replica of any group here, so it may say nothing but what it holds (R18).
        if is_foreign and not self._machine.may_present(hello.cluster_id or ""):
            raise ForbiddenError(
                f"the store belongs to cluster {hello.cluster_id}, this is {known}"
            )

    def _leadership(self) -> wire.Leadership:
        return wire.Leadership(
            is_leader=self._supervisor.is_leading, leader_address=self._leader_address()
        )

    # -- messages -----------------------------------------------------------------------------

    async def _read(
        self, session: BrokerSession, socket: web.WebSocketResponse, seal: Seal | None
    ) -> None:
        kind = WSMsgType.TEXT if seal is None else WSMsgType.BINARY
        silence_s = SILENCES_MAX * self._timeout_ms / 1000
        while True:
            try:
                async with asyncio.timeout(silence_s):
                    message = await socket.receive()
            except TimeoutError:
                log.warning("session_silent", extra=_who(session))
                session.abort()
                return
            if message.type is not kind:
                return  # closed, broken, or nothing a broker says
            try:
                said = message.data if seal is None else seal.open_message(message.data)
                self._on_message(session, wire.parse_from_broker(said))
            except PacelineError as error:
                log.warning("session_refused", extra={**_who(session), "why": error.message})
                session.send(wire.encode(wire.Refused(code=error.code, detail=error.message)))
                await socket.close()
                return

    def _on_message(self, session: BrokerSession, message: wire.FromBroker) -> None:
        match message:
            case wire.Heartbeat():
                self._tell_time(session)
                if self._is_replica(session, message.replica_id):
                    self._supervisor.key_uses.heard(message.key_uses)
                    self._supervisor.heard(session.connection, session.hello.group, message)
            case wire.Request():
                command = wire.read_command(message.command)
                if len(session.commands) >= COMMANDS_MAX:
                    busy = OverloadedError("too many commands under way", retry_after_ms=100)
                    session.send(_answer(message.id, busy))
                    return
                if message.session not in session.session_ids:
                    session.session_ids.append(message.session)
                task = spawn(
                    self._answer(session, message, command), name=f"command:{message.session}"
                )
                session.commands.add(task)
                task.add_done_callback(session.commands.discard)
            case wire.HandOverRefused():
                group = self._machine.groups.get(session.hello.group)
                master = None if group is None else group.master
                if master is not None and self._is_replica(session, master):
                    self._supervisor.transfers.refused(session.hello.group, message)
            case wire.Hello():
                raise BadRequestError("this session has said hello already")

    def _tell_time(self, session: BrokerSession) -> None:
        """What is old, a master decides by its clock only while most controllers agree (R29)."""
        now_ms = self._clock.monotonic_ms()
        if session.time_told_ms is None or now_ms - session.time_told_ms >= TIME_INTERVAL_MS:
            session.time_told_ms = now_ms
            session.send(wire.encode(wire.Time(unix_ms=self._clock.unix_ms())))

    async def _answer(
        self, session: BrokerSession, request: wire.Request, command: wire.BrokerCommand
    ) -> None:
        try:
            result = await self._execute(session, request, command)
        except NotLeaderError:
            leader = self._leader_address()
            session.send(
                _answer(request.id, NotLeaderError("this controller does not lead", leader=leader))
            )
        except PacelineError as error:
            session.send(_answer(request.id, error))
        else:
            session.send(wire.encode(wire.Answer(id=request.id, result=result)))

    async def _execute(
        self, session: BrokerSession, request: wire.Request, command: wire.BrokerCommand
    ) -> dict[str, Any]:
        if not self._supervisor.is_leading:
            raise NotLeaderError("this controller does not lead")
        match command:
            case wire.OpenSession():
                return await self._proposer.relay(request.session, request.sequence, command)
            case wire.RegisterReplica():
                hello = session.hello
                if (command.group, command.store_id) != (hello.group, hello.store_id):
                    raise ForbiddenError("a broker registers only itself")
                registration = Registration.of(
                    command, defaults=self._defaults, cluster_id=hello.cluster_id
                )
                return await self._proposer.relay(request.session, request.sequence, registration)
            case wire.PresentStore() | wire.PresentTopics():
                hello = session.hello
                is_own = (command.group, command.store_id) == (hello.group, hello.store_id)
                if isinstance(command, wire.PresentStore):
                    is_own = is_own and command.cluster_id == hello.cluster_id
                if not is_own:
                    raise ForbiddenError("a broker presents only its own store")
                return await self._proposer.relay(request.session, request.sequence, command)
            case wire.EnsureTopic() | wire.EnsureConsumerGroup():
                if not self._is_known(session):
                    raise ForbiddenError("only a registered replica asks for clients")
                return await self._proposer.relay(request.session, request.sequence, command)
        speaker = (
            command.replica_id if isinstance(command, wire.OpenActingLocks) else command.master
        )
        if command.group != session.hello.group or not self._is_replica(session, speaker):
            raise ForbiddenError("a broker speaks only for itself")
        if isinstance(command, wire.StepDown):
            return await self._supervisor.step_down(command)
        return await self._proposer.relay(request.session, request.sequence, command)

    def _is_known(self, session: BrokerSession) -> bool:
        group = self._machine.groups.get(session.hello.group)
        stores = () if group is None else group.replicas.values()
        return any(replica.store_id == session.hello.store_id for replica in stores)

    def _is_replica(self, session: BrokerSession, replica_id: ReplicaId) -> bool:
        """Whether the session's store is that replica's, as far as this controller has applied."""
        group = self._machine.groups.get(session.hello.group)
        replica = None if group is None else group.replicas.get(replica_id)
        return replica is not None and replica.store_id == session.hello.store_id


def _answer(request_id: int, error: PacelineError) -> str:
    return wire.encode(wire.Answer(id=request_id, problem=to_problem(error)))


def _who(session: BrokerSession) -> dict[str, object]:
    return {"group": session.hello.group, "store": session.hello.store_id}
