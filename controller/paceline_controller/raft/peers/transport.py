"""Links between controllers: asyncio streams, mutual proof, one connection per pair.

The controller with the lower id dials; the other one only when it has waited long. A connection
carries nothing before both sides have proved that they hold the cluster secret (`hello.py`); then
every frame has a seal over its number, so foreign, repeated or altered frames close the
connection without an effect (bad inputs 49-55). By TLS, which is that of the node's other ports,
the certificates of both sides must name the controllers they speak for, besides. The newest
authenticated connection of a peer replaces the older one, whose late frames are dropped, so a link
is FIFO. A link that is silent for `silence_ms` and a ping more is dropped; idle ones carry pings.

Owner: the event loop of one `RaftQuorum`. Callbacks are synchronous.
"""

import asyncio
import logging
import ssl
from typing import Protocol

import orjson

from paceline.errors import (
    ConfigError,
    PacelineError,
    PeerError,
    StorageError,
    UnauthenticatedError,
)
from paceline.platform.ports import Random
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.platform.secret import ClusterSecrets
from paceline.platform.telemetry import strangers
from paceline.security.certificates import check_controller, handshake_sentence
from paceline.security.listening import Listening, listen
from paceline.security.node_tls import Dial, NodeTls
from paceline.server.byte_budget import source_of
from paceline.server.connections import Connections, ConnectionState
from paceline.types import ControllerId
from paceline.wire.messages import Nonce
from paceline.wire.seal import RECORD_HEAD_BYTES, TAG_BYTES, Seals, record_size
from paceline_controller.raft.identity import Identity
from paceline_controller.raft.peers.directory import Directory
from paceline_controller.raft.peers.frames import (
    PING,
    Message,
    encode_message,
    parse_message,
)
from paceline_controller.raft.peers.hello import (
    PROTOCOL,
    PURPOSE,
    Hello,
    check_hello,
    check_proof,
    make_proof,
    parse_document,
    parse_hello,
)
from paceline_controller.raft.settings import FRAME_BYTES_MAX, HANDSHAKE_BYTES_MAX, RaftSettings

log = logging.getLogger("paceline.raft")

_INCOMING = "incoming"
_UNPROVEN_MAX = 32
"""Connections that have not proved themselves yet; beyond it a new one takes another's place."""

_WRITE_BUFFER_MAX = 512 * 1024 * 1024
"""A peer that does not read is dropped beyond this; above SNAPSHOT_BYTES_MAX."""

_LENGTH_BYTES = 4
_TLS_BEGINS = b"\x16\x03"
"""As a length it is too large, whatever follows; as is the next."""
_HTTP_BEGINS = b"HTTP"
"""So a port refuses that takes TLS only."""
_REFUSAL_LENGTH_MAX = 500
"""At most 4 bytes of JSON each: far below HANDSHAKE_BYTES_MAX. As much as the peer would show."""


class LinkEvents(Protocol):
    """What the owner of the links is told."""

    def link_up(self, peer: ControllerId) -> None: ...

    def link_down(self, peer: ControllerId) -> None: ...

    def message_received(self, peer: ControllerId, message: Message) -> None: ...

    def members_heard(self) -> None:
        """The directory may know a newer generation: a proven peer told it."""
        ...

    def peer_refused(self, source: str, error: PacelineError) -> None:
        """Who came from there (empty: nobody knows) or was dialled there has not proven that it is
        the controller that it is to be."""
        ...

    def failed(self, error: Exception) -> None:
        """Our own disk or a broken invariant: the node must stop."""
        ...


class _Link:
    """One authenticated connection."""

    def __init__(
        self,
        peer: ControllerId,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        seals: Seals,
    ) -> None:
        self.peer = peer
        self.reader = reader
        self.writer = writer
        self.seals = seals
        self.silent_rounds = 0
        """Of pings, since the last frame came."""
        self.has_spoken = False
        """Since the last ping, or the time for one."""

    def write(self, payload: bytes) -> None:
        assert len(payload) <= FRAME_BYTES_MAX, len(payload)
        if self.writer.transport.get_write_buffer_size() > _WRITE_BUFFER_MAX:
            log.warning("raft_link_stuffed", extra={"peer": self.peer})
            self.writer.transport.abort()
        elif not self.writer.transport.is_closing():
            self.writer.write(self.seals.outgoing.record((payload,)))
            self.has_spoken = True


class Links:
    """All connections of one controller to its peers."""

    def __init__(
        self,
        events: LinkEvents,
        *,
        controller_id: ControllerId,
        cluster: str,
        listen: tuple[str, int],
        directory: Directory,
        members: str,
        secrets: ClusterSecrets,
        identity: Identity,
        random: Random,
        settings: RaftSettings,
        source_host: str | None,
        tls: NodeTls | None = None,
    ) -> None:
        self._events = events
        self._controller_id = controller_id
        self._cluster = cluster
        self._listen = listen
        self._directory = directory
        self._members = members
        self._dialers: dict[ControllerId, asyncio.Task[None]] = {}
        self._secrets = secrets
        self._identity = identity
        self._random = random
        self._settings = settings
        self._tls = tls
        self._dialing = Dial(tls, source_host=source_host or "")
        self._links: dict[ControllerId, _Link] = {}
        self._listening: Listening | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers = Connections(_UNPROVEN_MAX)
        self._last_refusal: dict[str, str] = {}

    @property
    def port(self) -> int:
        """The port listened on (of interest when it was configured as 0)."""
        assert self._listening is not None
        return self._listening.port

    async def start(self) -> None:
        """Listen and begin to dial. ConfigError if the address cannot be listened on."""
        host, port = self._listen
        loop = asyncio.get_running_loop()

        def incoming() -> asyncio.Protocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._accepted, loop)

        try:
            self._listening = await listen(
                incoming,
                host,
                port,
                tls=self._tls,
                is_for_nodes=True,
                on_refused=self._events.peer_refused,
            )
        except OSError as error:
            raise ConfigError(f"raft cannot listen on {host}:{port}: {error.strerror}") from error
        self.follow_directory()
        self._keep(spawn(self._ping_forever(), name="raft-ping"))

    def follow_directory(self) -> None:
        """Dial whom the directory knows, and nobody else."""
        if self._listening is None:
            return
        known = self._directory.addresses()
        for peer in sorted(known.keys() - self._dialers.keys()):
            task = self._dialers[peer] = spawn(self._dial_forever(peer), name=f"raft-dial-{peer}")
            self._keep(task)
        for peer in sorted(self._dialers.keys() - known.keys()):
            self._dialers.pop(peer).cancel()
        for peer in sorted(self._links.keys() - known.keys()):
            self.drop(peer)

    def drop(self, peer: ControllerId) -> None:
        """Close the link to a peer, if there is one; it may come back."""
        link = self._links.get(peer)
        if link is not None:
            link.writer.transport.abort()

    def is_linked(self, peer: ControllerId) -> bool:
        return peer in self._links

    async def stop(self) -> None:
        """Close everything; no callback comes after it."""
        if self._listening is not None:
            self._listening.close()
        await cancel_and_wait(*self._tasks)
        for link in self._links.values():
            link.writer.transport.abort()
        self._links.clear()

    def abort(self) -> None:
        """Cut every connection now (a node that must not say another word)."""
        if self._listening is not None:
            self._listening.close()
        for task in self._tasks:
            task.cancel()
        for link in self._links.values():
            link.writer.transport.abort()

    def send(self, peer: ControllerId, message: Message) -> None:
        """Hand a message to the peer's link; lost if there is none."""
        link = self._links.get(peer)
        if link is not None:
            link.write(encode_message(message))

    # -- connections -------------------------------------------------------------------------------

    async def _dial_forever(self, peer: ControllerId) -> None:
        settings = self._settings
        while True:
            if self._controller_id > peer:
                await pause(settings.dial_back_ms)
                if peer in self._links:
                    continue
            try:
                await self._dial(peer)
            except (OSError, EOFError, TimeoutError, PacelineError) as error:
                self._note_failure(peer, error)
            await pause(self._random.uniform(settings.redial_min_ms, settings.redial_max_ms))

    async def _dial(self, peer: ControllerId) -> None:
        host, port = self._directory.addresses()[peer]
        options = self._dialing.options(host)
        async with asyncio.timeout(self._settings.dial_timeout_ms / 1000):
            reader, writer = await asyncio.open_connection(host, port, **options)
        try:
            async with asyncio.timeout(self._settings.handshake_timeout_ms / 1000):
                link = await self._greet(peer, reader, writer)
            await self._run(link)
        except UnauthenticatedError as error:
            self._events.peer_refused(host, error)
            raise
        finally:
            writer.transport.abort()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._keep(spawn(self._answer(reader, writer), name="raft-incoming"))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            link = await self._prove_incoming(reader, writer)
            if link is not None:
                await self._run(link)
        except (OSError, EOFError, TimeoutError, PacelineError) as error:
            self._note_failure(_INCOMING, error)
        finally:
            writer.transport.abort()

    async def _prove_incoming(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Link | None:
        end = writer.get_extra_info("peername")
        source = "" if end is None else source_of(end[0])
        place, displaced = self._strangers.open(source)
        if displaced is not None:
            displaced.close()
        if place is None:
            return None
        place.close = writer.transport.abort
        try:
            async with asyncio.timeout(self._settings.handshake_timeout_ms / 1000):
                theirs = parse_hello(await _read_document(reader))
                place.is_now(ConnectionState.IDLE)  # the silent go first
                return await self._answer_greeting(theirs, reader, writer)
        except PacelineError as error:
            if not isinstance(error, StorageError):  # of our own disk
                self._events.peer_refused(source, error)
            # Tell a misconfigured peer why; says nothing that the peer did not know. Cut, because
            # the sentence repeats what the peer said, and escaped that may be longer than allowed.
            reason = error.message[:_REFUSAL_LENGTH_MAX]
            _write_document(writer, orjson.dumps({"refused": reason}))
            await asyncio.wait_for(writer.drain(), self._settings.ping_ms / 1000)
            raise
        finally:
            place.ended()

    async def _greet(
        self, peer: ControllerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Link:
        check_controller(writer, peer)
        ours = self._hello(peer)
        _write_document(writer, ours.encode())
        theirs = parse_hello(await _read_document(reader))
        check_hello(theirs, ours=ours, expected_sender=peer)
        proof = await _read_document(reader)
        secret = check_proof(
            proof, self._secrets.all, role="listener", prover=theirs, verifier=ours
        )
        _write_document(writer, make_proof(secret, role="dialer", own=ours, peer=theirs))
        self._hear(theirs)
        self._meet(peer, theirs)
        parse_document(await _read_document(reader))  # raises if the listener refused us
        return self._link(peer, reader, writer, secret, dialer=ours, listener=theirs)

    async def _answer_greeting(
        self, theirs: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Link:
        peer = ControllerId(theirs.sender)
        ours = self._hello(peer)
        check_hello(theirs, ours=ours)
        check_controller(writer, peer)
        is_stranger = self._directory.is_configured and not self._directory.knows(peer)
        if (is_stranger and theirs.generation.generation == 0) or peer == self._controller_id:
            raise PeerError(f"controller {peer!r} does not dial {self._controller_id!r}")
        secret = self._secrets.current  # of this connection, whichever is the first later
        _write_document(writer, ours.encode())
        _write_document(writer, make_proof(secret, role="listener", own=ours, peer=theirs))
        proof = await _read_document(reader)
        check_proof(proof, [secret], role="dialer", prover=theirs, verifier=ours)
        self._hear(theirs)
        self._meet(peer, theirs)
        _write_document(writer, orjson.dumps({"accepted": True}))
        return self._link(peer, reader, writer, secret, dialer=theirs, listener=ours)

    def _hello(self, peer: ControllerId) -> Hello:
        return Hello(
            protocol=PROTOCOL,
            cluster=self._cluster,
            sender=self._controller_id,
            receiver=peer,
            members=self._members,
            nonce=Nonce.fresh(self._random),
            store=self._identity.store,
            is_founded=self._identity.may_vote,
            remembered_store=self._identity.remembered_store(peer),
            known=self._directory.newest.to_json(),
        )

    def _hear(self, theirs: Hello) -> None:
        """The peer is proven: what it knows of the members is known here too."""
        generation = theirs.generation
        self._directory.hear(ControllerId(theirs.sender), generation)
        self._identity.met_generation(generation.generation)
        self._events.members_heard()

    def _meet(self, peer: ControllerId, theirs: Hello) -> None:
        if not self._directory.knows(peer):
            raise PeerError(
                f"controller {peer!r} is no member of generation"
                f" {self._directory.newest.generation}: paceline controller members add"
            )
        self._identity.learn(peer, self._directory.store_of(peer))
        self._identity.meet(
            peer,
            store=theirs.store,
            is_founded=theirs.is_founded,
            remembered_store=theirs.remembered_store,
        )

    def _link(
        self,
        peer: ControllerId,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        secret: bytes,
        *,
        dialer: Hello,
        listener: Hello,
    ) -> _Link:
        seals = Seals(
            secret,
            purpose=PURPOSE,
            is_dialer=dialer.sender == self._controller_id,
            dialer_nonce=dialer.nonce,
            listener_nonce=listener.nonce,
        )
        return _Link(peer, reader, writer, seals=seals)

    # -- traffic -----------------------------------------------------------------------------------

    async def _run(self, link: _Link) -> None:
        """Carry frames until the link breaks or a newer one replaces it."""
        older = self._links.get(link.peer)
        self._links[link.peer] = link
        if older is not None:
            older.writer.transport.abort()
        log.info("raft_link_up", extra={"peer": link.peer})
        self._last_refusal.pop(link.peer, None)
        try:
            self._events.link_up(link.peer)
            await self._read_frames(link)
        finally:
            if self._links.get(link.peer) is link:
                del self._links[link.peer]
                log.info("raft_link_down", extra={"peer": link.peer})
                self._events.link_down(link.peer)

    async def _read_frames(self, link: _Link) -> None:
        while True:
            head = await link.reader.readexactly(RECORD_HEAD_BYTES)
            end = record_size(head, size_bytes_max=FRAME_BYTES_MAX)
            payload = await link.reader.readexactly(end - RECORD_HEAD_BYTES)
            link.silent_rounds = 0
            if self._links.get(link.peer) is not link:
                return  # replaced: late frames of the old connection do not count
            link.seals.incoming.check(head[-TAG_BYTES:], payload)
            message = parse_message(payload)
            if message is not None:
                self._events.message_received(link.peer, message)

    async def _ping_forever(self) -> None:
        """And drop who is silent. Rounds are counted, not time: a loop that stood read nothing."""
        settings = self._settings
        while True:
            await pause(settings.ping_ms)
            for link in list(self._links.values()):
                if link.silent_rounds * settings.ping_ms > settings.silence_ms:
                    link.writer.transport.abort()
                    continue
                link.silent_rounds += 1
                if not link.has_spoken:
                    link.write(PING)
                link.has_spoken = False

    # -- inside ------------------------------------------------------------------------------------

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _note_failure(self, peer: str, error: Exception) -> None:
        """Log a changed reason once; a peer that is down is dialled many times."""
        if isinstance(error, StorageError):
            self._events.failed(error)
            return
        if isinstance(error, ssl.SSLError):
            error = PeerError(handshake_sentence(error))
        reason = str(error)[:_REFUSAL_LENGTH_MAX] or type(error).__name__
        if self._last_refusal.get(peer) == reason:
            return
        self._last_refusal[peer] = reason
        is_odd = isinstance(error, PacelineError | UnauthenticatedError)
        level = logging.WARNING if is_odd else logging.DEBUG
        lines = strangers if peer == _INCOMING else log
        lines.log(level, "raft_link_failed", extra={"peer": peer, "reason": reason})


def _write_document(writer: asyncio.StreamWriter, document: bytes) -> None:
    assert len(document) <= HANDSHAKE_BYTES_MAX
    writer.write(len(document).to_bytes(_LENGTH_BYTES, "little") + document)


async def _read_document(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(_LENGTH_BYTES)
    if head[:2] == _TLS_BEGINS:
        raise PeerError("the peer speaks TLS, this controller does not: see tls_mode of both")
    if head == _HTTP_BEGINS:
        raise PeerError("the peer takes TLS only, this controller dials without: see tls_mode")
    length = int.from_bytes(head, "little")
    if not 0 < length <= HANDSHAKE_BYTES_MAX:
        raise PeerError(f"handshake of {length} bytes")
    return await reader.readexactly(length)
