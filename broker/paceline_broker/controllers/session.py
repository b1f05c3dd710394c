"""The broker's sessions with the controllers: heartbeats out, views in, commands exactly once.

One link to every controller; each hears heartbeats, only the leader gets commands. A command is
repeated under the same (session, sequence) until its outcome is definite (R7); after
UNKNOWN_SESSION or DEADLINE_PASSED the old sequence can never be applied any more (R38), so the
same compare-and-set goes out again under a fresh session. Commands leave one at a time, in the
order they were asked.

Owned by the broker's event loop; every callback is called on it and must not block.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import aiohttp

from paceline.errors import (
    DeadlineError,
    PacelineError,
    PeerError,
    UnauthenticatedError,
    from_problem,
)
from paceline.platform.ports import Random
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.platform.secret import ClusterSecrets
from paceline.security.certificates import check_controller, is_tls
from paceline.security.node_tls import Dial
from paceline.wire import session as wire
from paceline.wire.cluster import ClusterView
from paceline.wire.messages import Nonce
from paceline.wire.seal import Seals
from paceline.wire.users import Security
from paceline.wire.views.changes import ViewChanges
from paceline_broker.storage.identity import Identity

log = logging.getLogger("paceline.controller_link")

RETRY_MS_MIN, RETRY_MS_MAX = 50, 500
HANDSHAKE_TIMEOUT_MS = 2000
OUTBOX_MESSAGES_MAX = 256
SILENT_ROUND_MS = 700
"""A controller that said nothing for so long is pinged; it tells the time each second."""
SILENT_ROUNDS_MAX = 3
"""After so many a session is given up. Rounds are counted, not time: what came while this broker's
loop stood is read first, and a controller that stands for 2 s keeps its sessions."""
SESSION_ID_BYTES = 16
NEVER_APPLIED = ("UNKNOWN_SESSION", "DEADLINE_PASSED")
OnHandOver: TypeAlias = Callable[[wire.TransferOrder, Callable[[str], None]], None]
"""An order to the master, and how it answers what stands against it."""


class _Link:
    """One connection to one controller; reconnects for ever until cancelled."""

    def __init__(self, owner: "ControllerLinks", address: str) -> None:
        self._owner = owner
        self.address = address
        self.is_up = False
        self.is_leader = False
        self.claim = 0
        """Number of its last claim to lead, among those of all controllers."""
        self._outbox: asyncio.Queue[str] = asyncio.Queue(OUTBOX_MESSAGES_MAX)
        self._answers: dict[int, asyncio.Future[wire.Answer]] = {}
        self._ids = itertools.count(1)
        self._seals: Seals | None = None
        """From the hello on, unless inside TLS."""

    def tell(self, text: str) -> None:
        """Queue a heartbeat; dropped while the link is down or clogged: the next replaces it."""
        if self.is_up and not self._outbox.full():
            self._outbox.put_nowait(text)

    async def ask(self, *, session: str, sequence: int, command: wire.BrokerCommand) -> wire.Answer:
        """Send one request and wait for its answer. PeerError when the link breaks first."""
        if not self.is_up or self._outbox.full():
            raise PeerError(f"no session with controller {self.address}")
        request_id = next(self._ids)
        answer: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
        self._answers[request_id] = answer
        request = wire.Request(
            id=request_id, session=session, sequence=sequence, command=command.to_json()
        )
        self._outbox.put_nowait(wire.encode(request))
        try:
            return await answer
        finally:
            self._answers.pop(request_id, None)

    async def run(self) -> None:
        delay_ms: float = RETRY_MS_MIN
        while True:
            try:
                await self._serve_one_connection()
                delay_ms = RETRY_MS_MIN
            except (aiohttp.ClientError, OSError, TimeoutError, PacelineError) as error:
                log.info("controller_link_lost", extra={"to": self.address, "reason": str(error)})
            await pause(self._owner.random.uniform(delay_ms / 2, delay_ms))
            delay_ms = min(delay_ms * 2, RETRY_MS_MAX)

    async def _serve_one_connection(self) -> None:
        dial = self._owner.dial
        connecting = self._owner.http.ws_connect(
            **dial.http(self.address, f"{wire.PATH}?changes=true"),
            autoping=False,
            max_msg_size=wire.FROM_CONTROLLER_BYTES_MAX,
        )
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_MS / 1000):
                socket = await stack.enter_async_context(connecting)
                await self._shake_hands(socket)
            writing = spawn(self._write(socket), name=f"controller_link_write:{self.address}")
            try:
                self.is_up = True
                if self.is_leader:
                    self._owner.led_by(self)
                self._owner.link_changed()
                self._owner.beat()
                await self._read(socket)
            finally:
                self._went_down()
                await cancel_and_wait(writing)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Until the controller ends the session. PeerError if it is silent."""
        silent_rounds = 0
        while silent_rounds < SILENT_ROUNDS_MAX:
            try:
                message = await socket.receive(timeout=SILENT_ROUND_MS / 1000)
            except TimeoutError:
                silent_rounds += 1
                await socket.ping()
                continue
            silent_rounds = 0
            match message.type:
                case aiohttp.WSMsgType.CLOSE | aiohttp.WSMsgType.CLOSING | aiohttp.WSMsgType.CLOSED:
                    return
                case aiohttp.WSMsgType.PING:
                    await socket.pong(message.data)
                case aiohttp.WSMsgType.PONG:
                    continue
                case _:
                    self._on_message(self._parsed(message))
        raise PeerError(f"controller {self.address} is silent")

    def give_up(self, reason: str) -> None:
        """Whoever waits for an answer of this controller asks again."""
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(PeerError(reason))

    async def _shake_hands(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        owner = self._owner
        self._seals = None
        challenge = self._parsed(await socket.receive())
        if not isinstance(challenge, wire.Challenge):
            raise PeerError(f"controller {self.address} began with {type(challenge).__name__}")
        check_controller(socket, challenge.controller_id)
        identity, secret = owner.identity(), owner.secrets.current
        hello = wire.make_hello(
            challenge,
            secret,
            cluster_id=identity.cluster_id,
            group=identity.group,
            store_id=identity.store_id,
            replica_id=identity.replica_id,
            nonce=Nonce.fresh(owner.random),
            is_sealed=not is_tls(socket),
        )
        await socket.send_str(wire.encode(hello))
        answer = await socket.receive()
        if answer.type is not aiohttp.WSMsgType.TEXT:  # as a refusal is: nothing is proven by it
            self._seals = hello.seals(secret, challenge, is_dialer=True)
        try:
            welcome = self._parsed(answer)
        except PeerError as error:
            if answer.type is aiohttp.WSMsgType.BINARY:  # and sealed with another secret
                self._unproven(error)
            raise
        if isinstance(welcome, wire.Refused):
            owner.refused(welcome)
            raise PeerError(f"{self.address} refused the session: {welcome.detail}")
        if not isinstance(welcome, wire.Welcome):
            raise PeerError(f"controller {self.address} answered {type(welcome).__name__}")
        if hello.is_sealed and self._seals is None:
            raise PeerError(f"controller {self.address} does not authenticate what it says")
        try:
            wire.check_welcome(welcome, challenge, hello, secret)
        except UnauthenticatedError as error:
            owner.refused(wire.Refused(code=error.code, detail=error.message))
            self._unproven(error)
            raise
        if identity.cluster_id is not None and welcome.cluster_id not in (
            None,
            identity.cluster_id,
        ):
            # Until an operator has recovered its group there, it can only show its store, and
            # that it does when it starts (R18).
            log.warning(
                "controllers_of_another_cluster",
                extra={"to": self.address, "cluster_id": welcome.cluster_id},
            )
        self.is_leader = welcome.is_leader

    def _unproven(self, error: PacelineError) -> None:
        self._owner.dial.on_refused("session", self.address.rpartition(":")[0], error)

    def _parsed(self, message: aiohttp.WSMessage) -> wire.FromController:
        kind = aiohttp.WSMsgType.TEXT if self._seals is None else aiohttp.WSMsgType.BINARY
        if message.type is not kind:  # also when it closes in the handshake
            raise PeerError(f"controller {self.address} sent {message.type.name}")
        if self._seals is None:
            return wire.parse_from_controller(message.data)
        return wire.parse_from_controller(self._seals.incoming.open_message(message.data))

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            try:
                await self._send(socket, await self._outbox.get())
            except (aiohttp.ClientError, OSError) as error:
                log.info("controller_link_write", extra={"to": self.address, "reason": str(error)})
                await socket.close()
                return

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, text: str) -> None:
        if self._seals is None:
            await socket.send_str(text)
        else:
            await socket.send_bytes(self._seals.outgoing.message(text.encode()))

    def _on_message(self, message: wire.FromController) -> None:
        match message:
            case wire.View():
                self._owner.viewed(ClusterView.from_json(message.view))
            case wire.ViewChanged():
                self._owner.changed(ViewChanges.from_json(message.changes))
            case wire.SecurityView():
                self._owner.on_security(message.security)
            case wire.Answer():
                waiting = self._answers.get(message.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case wire.Leadership():
                self.is_leader = message.is_leader
                if self.is_leader:
                    self._owner.led_by(self)
                self._owner.link_changed()
                self._owner.beat()
            case wire.ReportWanted():
                self._owner.beat()
            case wire.Time(unix_ms=unix_ms):
                self._owner.on_time(self.address, unix_ms)
            case wire.TransferOrder():
                self._owner.on_hand_over(message, self.tell)
            case _:
                raise PeerError(f"controller {self.address} sent {type(message).__name__}")

    def _went_down(self) -> None:
        self.is_up = self.is_leader = False
        while not self._outbox.empty():
            self._outbox.get_nowait()
        self.give_up(f"session with {self.address} broke")
        self._owner.link_changed()


class ControllerLinks:
    """All sessions of one broker process."""

    def __init__(
        self,
        *,
        controllers: tuple[str, ...],
        secrets: ClusterSecrets,
        identity: Callable[[], Identity],
        heartbeat: Callable[[], wire.Heartbeat | None],
        on_view: Callable[[ClusterView], None],
        on_security: Callable[[Security], object],
        on_refused: Callable[[wire.Refused], None],
        on_time: Callable[[str, int], None],
        on_hand_over: OnHandOver,
        random: Random,
        heartbeat_interval_ms: int,
        request_timeout_ms: int,
        source_host: str = "",
        dial: Dial | None = None,
    ) -> None:
        self.secrets = secrets
        self.dial = dial or Dial()
        self.identity = identity
        self.random = random
        self.on_view = on_view
        self.on_security = on_security
        self.refused = on_refused
        self.on_time = on_time
        self.on_hand_over = on_hand_over
        self.http: aiohttp.ClientSession
        self._heartbeat = heartbeat
        self._interval_ms = heartbeat_interval_ms
        self._timeout_ms = request_timeout_ms
        self._source_host = source_host
        self._links = [_Link(self, address) for address in controllers]
        self._views: dict[str, ClusterView] = {}
        """The newest one of each cluster that a controller showed."""
        self._changed = asyncio.Event()
        self._claims = itertools.count(1)
        self._asking = asyncio.Lock()
        self._session = ""
        self._next_sequence = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._generation = 0

    async def start(self) -> None:
        """Begin to connect; returns at once."""
        local = (self._source_host, 0) if self._source_host else None
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(local_addr=local),
            timeout=aiohttp.ClientTimeout(sock_connect=HANDSHAKE_TIMEOUT_MS / 1000),
        )
        for link in self._links:
            self._spawn(link)
        self._tasks["heartbeats"] = spawn(self._beat_for_ever(), name="heartbeats")

    def _spawn(self, link: _Link) -> None:
        self._tasks[link.address] = spawn(link.run(), name=f"controller_link:{link.address}")

    def viewed(self, view: ClusterView) -> None:
        """A controller sent a whole view."""
        newest = self._views.get(view.cluster_id)
        if newest is None or newest.version < view.version:
            self._views[view.cluster_id] = view
        self.follow(view)
        self.on_view(view)

    def changed(self, changes: ViewChanges) -> None:
        """A controller sent what leads on from the view that it sent before. Another one's news
        may have come first. PeerError: they lead from none that is here (R38)."""
        newest = self._views.get(changes.head.cluster_id)
        if newest is not None and changes.follows(newest):
            self.viewed(changes.applied_to(newest))
        elif newest is None or not changes.is_old(newest):
            raise PeerError("changes of a view that was never sent")

    def follow(self, view: ClusterView) -> None:
        """Sessions with the controllers of the newest member list, and no others.

        Before there is one (generation 0) the configuration says who they are.
        """
        if view.controllers_generation <= self._generation or not self._tasks:
            return
        self._generation = view.controllers_generation
        wanted = set(view.controllers)
        log.info("controllers_changed", extra={"controllers": sorted(wanted)})
        for link in [link for link in self._links if link.address not in wanted]:
            self._links.remove(link)
            self._tasks.pop(link.address).cancel()
        known = {link.address for link in self._links}
        for address in view.controllers:
            if address not in known:
                link = _Link(self, address)
                self._links.append(link)
                self._spawn(link)

    async def stop(self) -> None:
        """Also when `start` was never reached: the broker's own port may be in use."""
        if self._tasks:
            await cancel_and_wait(*self._tasks.values())
            await self.http.close()

    def beat(self) -> None:
        """Send a heartbeat to all controllers now (change of role or health, or asked to)."""
        message = self._heartbeat()
        if message is None:
            return
        text = wire.encode(message)
        for link in self._links:
            link.tell(text)

    def link_changed(self) -> None:
        """A link came up, went down or learned who leads: waiting requests look again."""
        self._changed.set()

    def led_by(self, leader: _Link) -> None:
        """A controller says that it leads: nobody waits for an older leader's answers any longer.

        A command that was asked there is repeated here under the same sequence (R7).
        """
        leader.claim = next(self._claims)
        for link in self._links:
            if link is not leader:
                link.give_up(f"controller {leader.address} leads now")

    async def request(
        self, command: wire.BrokerCommand, *, deadline_ms: int | None = None
    ) -> dict[str, Any]:
        """The machine's definite result of `command` ({"ok": bool, ...}).

        Repeats until it is definite; with `deadline_ms` raises DeadlineError after that long
        (outcome unknown). Cancelling leaves the outcome unknown as well.
        """
        try:
            async with asyncio.timeout(None if deadline_ms is None else deadline_ms / 1000):
                async with self._asking:
                    return await self._until_definite(command)
        except TimeoutError as error:
            raise DeadlineError(f"no controller answered {command.kind} in time") from error

    async def _until_definite(self, command: wire.BrokerCommand) -> dict[str, Any]:
        while True:
            if not self._session:
                await self._open_session()
            session, self._session = self._session, ""
            # Until the outcome is known the session is out of use: if this wait is cancelled, the
            # next command must not be sent under the same sequence and get this one's answer.
            sequence = self._next_sequence
            result = await self._repeat(session, sequence, command)
            if result.get("reason") in NEVER_APPLIED:
                # Said without a look at the group: no answer to the command yet.
                log.warning(
                    "command_anew", extra={"kind": command.kind, "reason": result["reason"]}
                )
                await self._pause(RETRY_MS_MIN)
                continue
            self._session, self._next_sequence = session, sequence + 1
            return result

    async def _open_session(self) -> None:
        while True:
            session = self.random.token(SESSION_ID_BYTES).hex()
            result = await self._repeat(session, 0, wire.OpenSession())
            if result["ok"]:
                self._session, self._next_sequence = session, 1
                return
            # It came too late or there are too many: that passes, and the command must not be lost.
            log.warning("session_not_opened", extra={"reason": result.get("reason")})
            await self._pause(RETRY_MS_MAX)

    async def _pause(self, at_most_ms: int) -> None:
        await pause(self.random.uniform(at_most_ms / 2, at_most_ms))

    async def _repeat(
        self, session: str, sequence: int, command: wire.BrokerCommand
    ) -> dict[str, Any]:
        """Ask the leader, whoever it is, until one answers with a result."""
        attempt = claim = 0
        while True:
            self._changed.clear()
            # A deposed leader that nobody can tell so may claim to lead beside the present one.
            claiming = [link for link in self._links if link.is_up and link.is_leader]
            leaders = sorted(claiming, key=lambda link: -link.claim)
            if leaders and leaders[0].claim > claim:
                attempt, claim = 0, leaders[0].claim
            if not leaders:
                await self._wait_for_change(self._timeout_ms)
                continue
            leader = leaders[attempt % len(leaders)]
            attempt += 1
            try:
                async with asyncio.timeout(self._timeout_ms / 1000):
                    answer = await leader.ask(session=session, sequence=sequence, command=command)
            except (PeerError, TimeoutError) as error:
                log.info("command_repeated", extra={"kind": command.kind, "reason": str(error)})
                await self._wait_for_change(RETRY_MS_MIN)
                continue
            if answer.result is not None:
                return dict(answer.result)
            assert answer.problem is not None
            problem = from_problem(dict(answer.problem))
            log.info("command_repeated", extra={"kind": command.kind, "reason": problem.code})
            await self._wait_for_change(RETRY_MS_MIN)

    async def _wait_for_change(self, at_most_ms: int) -> None:
        try:
            async with asyncio.timeout(at_most_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            return  # look again: the leader may have changed without a word

    async def _beat_for_ever(self) -> None:
        while True:
            self.beat()
            await pause(self._interval_ms)
