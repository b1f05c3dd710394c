"""Shell: the brokers' sessions of this controller, as far as sending goes.

A view is made when it is sent, for the version that the broker was sent last; everything else keeps
its order. A broker that does not take its messages is disconnected, never waited for.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from aiohttp import web

from paceline.platform.runtime import spawn
from paceline.types import GroupName
from paceline.wire.seal import Seal
from paceline.wire.session import Hello, Leadership, ReportWanted, encode
from paceline_controller.election.contacts import ConnectionId

log = logging.getLogger("paceline.controller")

ViewMessage: TypeAlias = Callable[[int | None], tuple[str, int]]
"""The present view for who was sent that of this version, or none; and the version that it is."""
OUTBOX_MESSAGES_MAX = 256
SEND_TIMEOUT_S = 5.0
SESSION_IDS_MAX = 4
"""A broker takes a new session after an interrupted command; older ones it never uses again."""
COMMANDS_MAX = 16
"""Commands of one session under way; brokers have one."""


class BrokerSession:
    """One welcomed connection."""

    def __init__(
        self,
        connection: ConnectionId,
        hello: Hello,
        *,
        socket: web.WebSocketResponse,
        transport: asyncio.BaseTransport,
        seal: Seal | None,
        view_message: ViewMessage,
        takes_changes: bool,
    ) -> None:
        """`seal`: of what it is sent; None: inside TLS."""
        self.connection = connection
        self.hello = hello
        self._socket = socket
        self._seal = seal
        self._transport = transport
        self.commands: set[asyncio.Task[None]] = set()
        self.session_ids: deque[str] = deque(maxlen=SESSION_IDS_MAX)
        """Sessions it used last: kept from expiring while it is connected."""
        self.time_told_ms: int | None = None
        """Running time when it was last told our wall clock."""
        self._security = ""
        self._view_message, self._takes_changes = view_message, takes_changes
        self._is_view_due = False
        self._view_version: int | None = None
        """Of the view that it was sent last."""
        self._outbox: deque[str] = deque()
        self._wake = asyncio.Event()
        self._writer = spawn(self._write(), name=f"session_write:{hello.group}/{hello.store_id}")

    def send(self, text: str) -> None:
        """Queue a message."""
        if len(self._outbox) >= OUTBOX_MESSAGES_MAX:
            log.warning("session_clogged", extra={"store": self.hello.store_id})
            self.abort()
            return
        self._outbox.append(text)
        self._wake.set()

    def send_view(self) -> None:
        """The broker is to have the present view."""
        self._is_view_due = True
        self._wake.set()

    def send_security(self, text: str) -> None:
        """Queue users and rights in place of those that still wait."""
        self._security = text
        self._wake.set()

    def abort(self) -> None:
        """Drop the connection now; its reader sees the end."""
        self._writer.cancel()
        self._transport.close()

    def close(self) -> None:
        """Called by its reader, which is at the end."""
        self._writer.cancel()
        for command in self.commands:
            command.cancel()

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                # Rights first: who has a view serves clients. Then the view: an answer may only be
                # understood with the state it led to.
                security, self._security = self._security, ""
                if security:
                    await self._send_now(security)
                if self._is_view_due:
                    await self._send_now(self._view_text())
                while self._outbox:
                    await self._send_now(self._outbox.popleft())
        except (ConnectionError, TimeoutError, RuntimeError) as error:
            log.info("session_write", extra={"store": self.hello.store_id, "why": repr(error)})
            self.abort()

    def _view_text(self) -> str:
        self._is_view_due = False
        since = self._view_version if self._takes_changes else None
        text, self._view_version = self._view_message(since)
        return text

    async def _send_now(self, text: str) -> None:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            if self._seal is None:
                await self._socket.send_str(text)
            else:
                await self._socket.send_bytes(self._seal.message(text.encode()))


class Hub:
    """All sessions. Owned by the event loop."""

    def __init__(self, view_message: ViewMessage) -> None:
        self._view_message = view_message
        self.sessions: dict[ConnectionId, BrokerSession] = {}
        self._next_connection = 1

    def admit(
        self,
        hello: Hello,
        *,
        socket: web.WebSocketResponse,
        transport: asyncio.BaseTransport,
        seal: Seal | None,
        takes_changes: bool,
    ) -> BrokerSession:
        """Two of the same store may live side by side for a moment: the old one dies by itself."""
        session = BrokerSession(
            self._next_connection,
            hello,
            socket=socket,
            transport=transport,
            seal=seal,
            view_message=self._view_message,
            takes_changes=takes_changes,
        )
        self.sessions[session.connection] = session
        self._next_connection += 1
        return session

    def leave(self, session: BrokerSession) -> None:
        self.sessions.pop(session.connection, None)

    def push_view(self) -> None:
        for session in self.sessions.values():
            session.send_view()

    def push_security(self, text: str) -> None:
        for session in self.sessions.values():
            session.send_security(text)

    def push_leadership(self, leadership: Leadership) -> None:
        text = encode(leadership)
        for session in list(self.sessions.values()):
            session.send(text)

    def ask_reports(self, group: GroupName) -> None:
        """Every broker of the group sends a heartbeat now."""
        text = encode(ReportWanted())
        for session in list(self.sessions.values()):
            if session.hello.group == group:
                session.send(text)

    def session_of(self, group: GroupName, store_id: str) -> BrokerSession | None:
        """The newest session of that store."""
        found = [
            session
            for session in self.sessions.values()
            if (session.hello.group, session.hello.store_id) == (group, store_id)
        ]
        return max(found, key=lambda session: session.connection, default=None)

    def session_ids(self) -> tuple[str, ...]:
        """Sessions of brokers that are connected here."""
        found = {name for session in self.sessions.values() for name in session.session_ids}
        return tuple(sorted(found))

    def abort_all(self) -> None:
        for session in list(self.sessions.values()):
            session.abort()
