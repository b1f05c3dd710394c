"""The listener of replication: proves who connects, then hands the connection to the mastership.

It stands for the whole life of the process; while this broker is not master every replica is
refused. Before the proof a peer may send one message of at most 4 KiB and has five seconds for the
whole handshake. Whoever has proven nothing has one of `STRANGERS_MAX` places, and gives it to the
next one when they are taken (paceline/server/connections.py): strangers keep no replica out. Of the
proven at most `CONNECTIONS_MAX` stand at once. docs/protocol/replication.md has the steps.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import cast

from paceline.errors import PeerError, UnauthenticatedError
from paceline.platform.ports import Buffer, Random
from paceline.platform.runtime import pause, spawn
from paceline.platform.secret import ClusterSecrets
from paceline.platform.telemetry import strangers
from paceline.security.audit_peers import OnRefused
from paceline.security.certificates import check_broker, is_tls
from paceline.security.listening import Listening, listen
from paceline.security.node_tls import NodeTls
from paceline.server.byte_budget import source_of
from paceline.server.connections import Connection, Connections, ConnectionState
from paceline.types import GroupName
from paceline.wire.calls.request import tag_of
from paceline.wire.messages import NO_PROOF, Nonce
from paceline.wire.seal import Seals, check_sealing
from paceline_broker.replication.frames import ACKNOWLEDGEMENT_BYTES, parse_acknowledgement
from paceline_broker.replication.handshake import (
    Challenge,
    ConnectionId,
    ProvenIntroduction,
    Welcome,
)
from paceline_broker.replication.install import INSTALL_S_MAX, send_checkpoint
from paceline_broker.replication.master.ports import PeerLink, PeerSession
from paceline_broker.replication.master.term import MasterTerm
from paceline_broker.replication.messages import (
    HELLO_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PREFIX_BYTES,
    Hello,
    PeerChallenge,
    Refused,
    parse_message,
    take_message,
)

log = logging.getLogger("paceline.replication")

HANDSHAKE_S_MAX = 5.0
"""Also bounds the durable truncation of the replica before its first acknowledgement."""
IDLE_S_MAX = 10.0
"""A repair or an escape that asks for nothing for so long is closed; the peer comes again."""
CONNECTIONS_MAX = 64
"""A group has a handful of replicas; the rest are repairs, escapes and reconnects."""
STRANGERS_MAX = 64
"""A handshake takes some ms; a flood of 10,000 connections a second leaves it 3 ms at least."""
RECORD_BYTES_MAX = 20 * 1024 * 1024
"""Of a proven peer: an escape's message with its batches (service/escape/wire.py) still fits."""
JOIN_BYTES_MAX = 64 * 1024
"""Up to here small buffers are joined into one write; above, they go without a copy."""


class ReplicationServer:
    """One listening socket. Owner: the role's task."""

    def __init__(self, *, group: GroupName, secrets: ClusterSecrets, random: Random) -> None:
        self._group = group
        self._secrets = secrets
        self._random = random
        self._term: MasterTerm | None = None
        self._listening: Listening | None = None
        self._links: dict[_Link, None] = {}  # in the order they came
        self.strangers = Connections(STRANGERS_MAX)
        self.proven_count = 0
        self._numbers = count(1)
        self._openers: dict[str, Callable[[PeerLink, bytes, Nonce], PeerSession]] = {}
        self._doors: dict[str, str] = {}
        self.on_refused: OnRefused = lambda door, source, error: None
        """Told of whoever has not proven the secret."""

    def serve(
        self, hello: type[Hello], opener: Callable[[PeerLink, bytes, Nonce], PeerSession]
    ) -> None:
        """Give connections whose first message is a `hello` to `opener(link, secret, nonce)`.

        These are served whoever is master; all other connections are of replicas.
        """
        self._openers[tag_of(hello)] = opener
        self._doors[tag_of(hello)] = hello.PURPOSE

    async def start(self, host: str, port: int, *, tls: NodeTls | None = None) -> int:
        """Listen; returns the port (chosen by the system if 0). By TLS both sides show a
        certificate."""
        self._listening = await listen(
            lambda: _Link(self),
            host,
            port,
            tls=tls,
            is_for_nodes=True,
            on_refused=lambda source, error: self.on_refused("replication", source, error),
        )
        return self._listening.port

    def begin_term(self, term: MasterTerm) -> None:
        """From now on replicas are led by `term`; connections of an older one are closed (R2)."""
        self.end_term("a new epoch begins")
        self._term = term

    def end_term(self, reason: str) -> None:
        """Not master any more: close everything (R2)."""
        if self._term is not None:
            self._term.end(reason)
            self._term = None
        for link in list(self._links):
            link.close()

    async def stop(self) -> None:
        self.end_term("the broker stops")
        if self._listening is not None:
            self._listening.close()

    # -- for its connections

    @property
    def term(self) -> MasterTerm | None:
        return None if self._term is None or self._term.has_ended else self._term

    @property
    def secret(self) -> bytes:
        """Of a connection that comes now."""
        return self._secrets.current

    def opened(self, link: "_Link", address: str) -> tuple[ConnectionId, Connection] | None:
        """Number and place of a new connection; None if there is no place."""
        place, displaced = self.strangers.open(address)
        if displaced is not None:
            strangers.warning("replication_stranger_displaced", extra={"by": address})
            displaced.close()
        if place is None:
            return None
        self._links[link] = None
        return ConnectionId(next(self._numbers)), place

    def session_of(
        self, body: bytes, link: "_Link", secret: bytes
    ) -> tuple[str, PeerSession] | None:
        """The door and the session that the first message of a connection opens; None: it is a
        replica's."""
        for kind, opener in self._openers.items():
            if b'"%b"' % kind.encode() in body:
                return self._doors[kind], opener(link, secret, self.nonce())
        return None

    def has_proven_room(self) -> bool:
        """Whether one more may stand that has proven the secret."""
        if self.proven_count < CONNECTIONS_MAX:
            return True
        log.warning("replication_connections_full", extra={"limit": CONNECTIONS_MAX})
        return False

    def closed(self, link: "_Link") -> None:
        self._links.pop(link, None)

    def nonce(self) -> Nonce:
        return Nonce.fresh(self._random)

    def refusal_of(self, hello: Hello) -> Refused | None:
        """Why a replica may not go on, as far as its hello tells."""
        term = self.term
        if hello.group != self._group:
            return Refused(code="OTHER_GROUP", detail=f"this is broker group {self._group}")
        if term is None:
            return Refused(code="NOT_MASTER", detail="this broker is not master of its group")
        if hello.cluster_id != term.cluster_id:
            return Refused(code="OTHER_CLUSTER", detail="this broker is of another cluster")
        return None


class _Link(asyncio.Protocol):
    """One connection: hello, introduction, then acknowledgements of 40 bytes."""

    def __init__(self, server: ReplicationServer) -> None:
        self._server = server
        self._secret = server.secret
        self.connection = ConnectionId(0)
        self._source = ""
        self._door = Hello.PURPOSE
        self._place: Connection | None = None
        """Among strangers; None once the peer is proven."""
        self._is_proven = False
        self._transport: asyncio.WriteTransport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._received = bytearray()
        self._seals: Seals | None = None
        """From the challenge on, unless inside TLS."""
        self._records = bytearray()
        """What has come since then and is not checked yet."""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._sending: asyncio.Task[None] | None = None
        self._hello: Hello | None = None
        self._nonce: Nonce | None = None
        self._term: MasterTerm | None = None
        """Set once the peer is proven; everything it says goes there."""
        self._session: PeerSession | None = None
        """Set if the peer is no replica that follows."""

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.WriteTransport", transport)  # uvloop has classes of its own
        self._transport = transport
        end = transport.get_extra_info("peername")
        self._source = "" if end is None else source_of(end[0])
        opened = None if end is None else self._server.opened(self, self._source)
        if opened is None:
            self._abort()
            return
        self.connection, self._place = opened
        self._place.close = self._abort
        self._set_deadline(HANDSHAKE_S_MAX)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _proven(self) -> None:
        """The peer holds the secret: it needs no place among strangers. Raises PeerError."""
        if self._is_proven:
            return
        if not self._server.has_proven_room():
            raise PeerError(f"{CONNECTIONS_MAX} peers are connected")
        self._is_proven = True
        self._server.proven_count += 1
        if self._place is not None:
            self._place.ended()

    def _set_deadline(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(seconds, self._handshake_too_slow)

    def data_received(self, data: bytes) -> None:
        try:
            self._arrived(data)
            if self._term is None and self._session is None:
                self._read_handshake()
            if self._session is not None:
                self._read_session(self._session)
            if self._term is not None:
                self._read_acknowledgements(self._term)
        except (PeerError, UnauthenticatedError) as error:
            (log if self._is_proven else strangers).warning(
                "replica_refused", extra={"fault": error.message}
            )
            if not self._is_proven:
                self._server.on_refused(self._door, self._source, error)
            self.refuse(Refused(code=error.code, detail=error.message))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._may_write.set()
        if self._sending is not None:
            self._sending.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
        self._server.closed(self)
        if self._place is not None:
            self._place.ended()
        if self._is_proven:
            self._is_proven = False
            self._server.proven_count -= 1
        if self._session is not None:
            self._session.closed()
        if self._term is not None:
            self._term.lost(self.connection)

    # -- ReplicaLink

    def write(self, buffers: list[Buffer]) -> None:
        if self._transport is None:
            return  # its end is on the way to the term
        if self._seals is not None:
            self._transport.write(self._seals.outgoing.record(buffers))
        elif len(buffers) == 1:
            self._transport.write(buffers[0])
        elif sum(map(len, buffers)) <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)

    def challenge(self, hello: Hello, challenge: PeerChallenge) -> None:
        assert self._transport is not None
        check_sealing(is_sealed=hello.is_sealed, is_tls=is_tls(self._transport))
        check_broker(self._transport, group=hello.group, replica_id=hello.replica_id)
        if self._received:
            raise PeerError("the peer did not wait for the challenge")
        self.write([challenge.proven(self._secret, hello).encode()])
        self._seals = hello.seals(self._secret, peer_nonce=challenge.nonce, is_dialer=False)

    def send_welcome(self, welcome: Welcome, checkpoint: bytes | None) -> None:
        self.write([welcome.encode()])
        if checkpoint is not None:
            self._set_deadline(INSTALL_S_MAX)
            self._sending = spawn(send_checkpoint(self, checkpoint), name="send-checkpoint")

    async def drained(self) -> bool:
        """See `PieceWriter`."""
        await pause(0)  # other work between two pieces
        await self._may_write.wait()
        return self._transport is not None

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def refuse(self, refused: Refused) -> None:
        self.write([refused.encode()])
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- reading

    def _arrived(self, data: bytes) -> None:
        if self._seals is None:
            self._received += data
            return
        self._records += data
        limit = RECORD_BYTES_MAX if self._is_proven else PREFIX_BYTES + MESSAGE_BYTES_MAX
        incoming = self._seals.incoming
        while (content := incoming.take_record(self._records, size_bytes_max=limit)) is not None:
            self._received += content

    def _read_handshake(self) -> None:
        limit = HELLO_BYTES_MAX if self._hello is None else MESSAGE_BYTES_MAX
        body = take_message(self._received, size_bytes_max=limit)
        if body is None:
            return
        if self._place is not None:
            self._place.is_now(ConnectionState.IDLE)  # it has said something: the silent go first
        if self._hello is not None:
            self._on_introduction(self._hello, body)
            return
        opened = self._server.session_of(body, self, self._secret)
        if opened is None:
            self._on_hello(parse_message(body, Hello))
        else:
            self._door, self._session = opened
            self._session.begin(body)

    def _read_session(self, session: PeerSession) -> None:
        session.read(self._received)
        if session.is_proven:
            self._proven()
            self._set_deadline(IDLE_S_MAX)

    def _on_hello(self, hello: Hello) -> None:
        refused = self._server.refusal_of(hello)
        term = self._server.term
        if refused is not None or term is None:
            self.refuse(refused or Refused(code="NOT_MASTER", detail="mastership has ended"))
            return
        self._hello, self._nonce = hello, self._server.nonce()
        challenge = Challenge(
            replica_id=term.replica_id,
            incarnation=term.incarnation,
            epoch=term.epoch,
            nonce=self._nonce,
            proof=NO_PROOF,
        )
        self.challenge(hello, challenge)

    def _on_introduction(self, hello: Hello, body: bytes) -> None:
        assert self._nonce is not None
        introduction = parse_message(body, ProvenIntroduction)
        if not hello.is_proven(introduction.proof, self._secret, peer_nonce=self._nonce):
            raise UnauthenticatedError("the replica does not hold this cluster's secret")
        if (introduction.replica_id, introduction.incarnation) != (
            hello.replica_id,
            hello.incarnation,
        ):
            raise PeerError("the replica introduced itself as another than it proved")
        self._proven()
        term = self._server.term
        if term is None:
            self.refuse(Refused(code="NOT_MASTER", detail="mastership has ended"))
            return
        self._term = term
        term.introduce(self, introduction)

    def _read_acknowledgements(self, term: MasterTerm) -> None:
        received = self._received
        whole = len(received) - len(received) % ACKNOWLEDGEMENT_BYTES
        if whole == 0:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        # Positions only grow: the last one says it all. One damaged before it closes just as well.
        last = parse_acknowledgement(received, whole - ACKNOWLEDGEMENT_BYTES)
        del received[:whole]
        term.acknowledged(self.connection, last)

    def _handshake_too_slow(self) -> None:
        self.refuse(Refused(code="DEADLINE", detail="the handshake took too long"))
