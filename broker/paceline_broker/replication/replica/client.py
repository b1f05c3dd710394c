"""The replica's connection to its master: receives into a fixed buffer, appends, acknowledges.

One `ReplicationClient` serves one (epoch, master address); the role stops it when it learns of
another epoch, so nothing of an older epoch can be appended or acknowledged (R2). It reconnects by
itself, with growing waits. Bytes go from the socket into one buffer, from there into the log's
file, and are checked on the way; they are never copied in between. All calls come on the loop.
"""

import asyncio
import logging
from typing import cast

from msgspec.structs import asdict

from paceline.errors import CorruptLogError, PeerError, StorageError, UnauthenticatedError
from paceline.platform.ports import Buffer, Clock, Random
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.platform.secret import ClusterSecrets
from paceline.security.certificates import check_broker, is_tls
from paceline.security.node_tls import Dial
from paceline.types import PhysicalOffset
from paceline.wire.messages import Nonce
from paceline.wire.seal import RECORD_HEAD_BYTES, Seals, record_size
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.replication.frames import (
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    Frame,
    encode_acknowledgement,
    parse_frame_header,
)
from paceline_broker.replication.handshake import (
    Challenge,
    Install,
    Introduction,
    ProvenIntroduction,
    Welcome,
)
from paceline_broker.replication.install import INSTALL_BYTES_MAX, Reception
from paceline_broker.replication.messages import (
    MESSAGE_BYTES_MAX,
    PREFIX_BYTES,
    Hello,
    parse_answer,
    parse_prefix,
)
from paceline_broker.replication.replica.ports import ReplicaHooks, ReplicaIdentity, ReplicaSettings
from paceline_broker.replication.replica.replica import (
    FrameReceived,
    ProjectionsReady,
    ReplicaAppended,
    ReplicaFlushed,
    ReplicaReady,
    ReplicaReplication,
    RoomChanged,
    Truncated,
    Welcomed,
)

log = logging.getLogger("paceline.replication")

RECEIVE_BYTES = 1024 * 1024
"""Holds four catch-up frames; grows for a single larger frame and stays so."""


class ReplicationClient:
    """Keeps one replica connected to the master of one epoch. Owner: the role's task."""

    def __init__(
        self,
        *,
        identity: ReplicaIdentity,
        host: str,
        port: int,
        dial: Dial,
        secrets: ClusterSecrets,
        commit_log: CommitLog,
        counts_flushed: bool,
        is_ready: bool,
        hooks: ReplicaHooks,
        clock: Clock,
        random: Random,
        settings: ReplicaSettings,
    ) -> None:
        """`counts_flushed`: fsync durability; `is_ready`: see `projections_ready`."""
        self.identity = identity
        self.secrets = secrets
        self.commit_log = commit_log
        self.counts_flushed = counts_flushed
        self.is_ready = is_ready
        self.hooks = hooks
        self.clock = clock
        self._address = (host, port)
        self._dial = dial
        self._random = random
        self._settings = settings
        self._link: _Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_stopped = False

    @property
    def has_confirm(self) -> bool:
        """Whether a frame of this master has told confirm: reads may begin (DESIGN 7)."""
        return self._link is not None and self._link.has_confirm

    @property
    def is_connected(self) -> bool:
        """Whether the handshake is over and frames flow."""
        return self._link is not None and self._link.is_joined

    def status(self) -> dict[str, object]:
        """JSON values for `/v1/status`: what RocketMQ's haClientInfo shows."""
        host, port = self._address
        link = self._link
        silent_ms = None if link is None else self.clock.monotonic_ms() - link.heard_ms
        return {
            "master": f"{host}:{port}",
            "epoch": self.identity.epoch,
            "is_connected": self.is_connected,
            "master_silent_ms": silent_ms,
            "waits": [] if self.is_connected else [f"a connection to its master at {host}:{port}"],
        }

    def start(self) -> None:
        self._task = spawn(self._run(), name=f"replicate-epoch-{self.identity.epoch}")

    async def stop(self) -> None:
        """Close the connection at once and for good; nothing is appended after the call began."""
        self._has_stopped = True
        if self._link is not None:
            self._link.abort("the replica stops")
        await cancel_and_wait(self._task)

    def flushed(self, position: PhysicalOffset) -> None:
        """The flusher's news, also while no connection stands."""
        if self._link is not None:
            self._link.flushed(position)

    def projections_ready(self, *, is_ready: bool) -> None:
        """Whether the projections reached confirm from a durable base; needed to grow (R10)."""
        self.is_ready = is_ready
        if self._link is not None:
            self._link.projections_ready(is_ready)

    def nonce(self) -> Nonce:
        return Nonce.fresh(self._random)

    def refused(self, error: UnauthenticatedError) -> None:
        """Whoever answers there is no master of this cluster."""
        self._dial.on_refused("replication", self._address[0], error)

    def halt(self) -> None:
        """Not another word: the log failed or an operator is needed (R22)."""
        self._has_stopped = True
        if self._link is not None:
            self._link.abort("the replica is halted")

    async def _run(self) -> None:
        wait_ms = self._settings.reconnect_ms_min
        while not self._has_stopped:
            if await self._connect_once():
                wait_ms = self._settings.reconnect_ms_min
            # Jitter: the replicas of a group lose the same master at the same moment.
            await pause(wait_ms * self._random.uniform(0.5, 1.0))
            wait_ms = min(wait_ms * 2, self._settings.reconnect_ms_max)

    async def _connect_once(self) -> bool:
        """One connection from beginning to end; True if its handshake succeeded."""
        loop = asyncio.get_running_loop()
        link = _Link(self)
        host, port = self._address
        try:
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                options = self._dial.options(host)
                await loop.create_connection(lambda: link, host, port, **options)
        except (OSError, TimeoutError) as error:
            log.debug("master_unreachable", extra={"host": host, "port": port, "fault": str(error)})
            return False
        self._link = link
        try:
            while not link.closed.done():
                await asyncio.wait([link.closed], timeout=self._settings.master_idle_ms_max / 2000)
                link.close_if_idle(self._settings.master_idle_ms_max)
        finally:
            link.abort("the connection is given up")
            self._link = None
        return link.is_joined


class _Link(asyncio.BufferedProtocol):
    """One connection: hello, introduction, truncation, then frames."""

    def __init__(self, client: ReplicationClient) -> None:
        self._client = client
        self._log = client.commit_log
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._size_wanted = 0
        """Of what has come in part only: the buffer has room for that."""
        self._seals: Seals | None = None
        """From the challenge on, unless inside TLS."""
        self._news = ReplicaReady()
        """What the frames of one read have brought."""
        self._has_written = False
        self._hello: Hello | None = None
        self._introduction: Introduction | None = None
        self._machine: ReplicaReplication | None = None
        self.heard_ms = client.clock.monotonic_ms()
        self.is_joined = False
        self._reception: Reception | None = None
        self._start = PhysicalOffset(0)
        self._installing: asyncio.Task[None] | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_confirm(self) -> bool:
        return self._machine is not None and self._machine.has_confirm

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        self._transport = transport
        identity = self._client.identity
        self._hello = Hello(
            cluster_id=identity.cluster_id,
            group=identity.group,
            replica_id=identity.replica_id,
            incarnation=identity.incarnation,
            nonce=self._client.nonce(),
            is_sealed=not is_tls(transport),
        )
        transport.write(self._hello.encode())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is None:
            return  # aborted: what was still in the socket is of no connection any more
        self._filled += nbytes
        self.heard_ms = self._client.clock.monotonic_ms()
        try:
            fault = self._read()
            self._tell()  # what came before a fault stands
            if fault is not None:
                self.abort(fault)
        except StorageError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._reception is not None:
            self._reception.target.discard()
        if not self.closed.done():
            self.closed.set_result(None)

    # -- for the client

    def abort(self, reason: str) -> None:
        """Close without another word; nothing received later is looked at."""
        if self._transport is None:
            return
        log.info(
            "replication_closed", extra={"epoch": self._client.identity.epoch, "reason": reason}
        )
        self._transport.abort()
        self._transport = None

    def close_if_idle(self, idle_ms_max: int) -> None:
        is_installing = self._reception is not None and self._reception.is_complete
        if self._client.clock.monotonic_ms() - self.heard_ms > idle_ms_max and not is_installing:
            self.abort("the master is silent")

    def flushed(self, position: PhysicalOffset) -> None:
        if self._machine is not None and self.is_joined and self._transport is not None:
            self._carry_out(self._machine.step(ReplicaFlushed(position)))

    def projections_ready(self, is_ready: bool) -> None:
        if self._machine is not None and self._transport is not None:
            self._carry_out(self._machine.step(ProjectionsReady(is_ready)))

    # -- reading

    def _read(self) -> str | None:
        """Take all that is whole; why the connection must close, if it must."""
        at, self._size_wanted = 0, 0
        try:
            while self._transport is not None:
                is_sealed = self._seals is not None
                start, end = self._piece(at)
                taken = self._take(start, end) if start < end else start
                if is_sealed and taken < end:
                    raise PeerError("a record ends within what it holds")
                if taken == start:
                    break
                at = taken
        except (PeerError, UnauthenticatedError, CorruptLogError) as error:
            if isinstance(error, UnauthenticatedError):
                self._client.refused(error)
            return error.message
        self._keep_from(at)
        if self._size_wanted > len(self._buffer):
            self._grow(self._size_wanted)
        return None

    def _piece(self, at: int) -> tuple[int, int]:
        """Where in the buffer the next thing is that may be looked at, half-open. Empty: nowhere.

        That is the content of a whole record, checked; without seals all that is there.
        """
        if self._seals is None:
            return at, self._filled
        if self._filled - at < RECORD_HEAD_BYTES:
            return at, at
        head = self._view[at : at + RECORD_HEAD_BYTES]
        size = record_size(head, size_bytes_max=FRAME_BYTES_MAX)
        if self._filled - at < size:
            self._size_wanted = size
            return at, at
        self._seals.incoming.open_record(self._view[at : at + size])
        return at + RECORD_HEAD_BYTES, at + size

    def _take(self, at: int, end: int) -> int:
        """Look at what is there; where that begins of which not all is there."""
        if self.is_joined and self._machine is not None:
            return self._take_frames(self._machine, at, end)
        if self._reception is not None:
            return at + self._take_checkpoint(self._reception, at, end)
        return self._take_message(at, end)

    def _write(self, content: bytes) -> None:
        if self._transport is None:
            return
        if self._seals is None:
            self._transport.write(content)
        else:
            self._transport.write(self._seals.outgoing.record([content]))

    # -- the handshake

    def _take_message(self, at: int, end: int) -> int:
        if end - at < PREFIX_BYTES:
            return at
        prefix = self._view[at : at + PREFIX_BYTES]
        size = PREFIX_BYTES + parse_prefix(prefix, size_bytes_max=MESSAGE_BYTES_MAX)
        if end - at < size:
            self._size_wanted = size
            return at
        body = bytes(self._view[at + PREFIX_BYTES : at + size])
        if self._machine is None:
            self._on_challenge(parse_answer(body, Challenge))
        else:
            self._on_welcome(self._machine, body)
        return at + size

    def _on_challenge(self, challenge: Challenge) -> None:
        assert self._hello is not None
        identity = self._client.identity
        secret = challenge.proven_by(self._client.secrets.all, self._hello)
        if secret is None:
            raise UnauthenticatedError("the master does not hold this cluster's secret")
        assert self._transport is not None
        check_broker(self._transport, group=identity.group, replica_id=challenge.replica_id)
        self._seals = self._hello.seals(secret, peer_nonce=challenge.nonce, is_dialer=True)
        introduction = Introduction(
            replica_id=identity.replica_id,
            store_id=identity.store_id,
            incarnation=identity.incarnation,
            epoch=identity.epoch,
            start=self._log.start,
            end=self._log.end,
            confirm=self._log.confirm,
            epochs=self._log.epochs,
        )
        self._machine = ReplicaReplication(
            introduction=introduction,
            flushed=self._log.flushed,
            counts_flushed=self._client.counts_flushed,
            is_ready=self._client.is_ready,
        )
        # Also to a master of an older epoch: it must learn of ours (R5).
        proof = self._hello.proof(secret, challenge)
        proven = ProvenIntroduction(**asdict(introduction), proof=proof)
        self._write(proven.encode())

    def _on_welcome(self, machine: ReplicaReplication, body: Buffer) -> None:
        welcome = parse_answer(body, Welcome)
        ready = machine.step(Welcomed(welcome))
        self._carry_out(ready)
        if ready.truncate_to is None:
            return
        if ready.installs:
            assert welcome.install is not None
            self._begin_install(welcome, welcome.install)
            return
        if ready.truncate_to < self._log.end:
            log.warning(
                "log_truncated",
                extra={"from": self._log.end, "to": ready.truncate_to, "epoch": machine.epoch},
            )
            self._client.hooks.truncating(ready.truncate_to)
            self._log.truncate_to(ready.truncate_to, allow_below_confirm=welcome.is_unclean)
        self.is_joined = True
        self._carry_out(machine.step(Truncated(self._log.end, self._log.flushed)))
        log.info("replication_joined", extra={"epoch": machine.epoch, "position": self._log.end})

    # -- installing the master's checkpoint (R14)

    def _begin_install(self, welcome: Welcome, install: Install) -> None:
        log.warning(
            "install_begun", extra={"start": welcome.truncate_to, "position": install.position}
        )
        if install.size_bytes > INSTALL_BYTES_MAX:
            raise PeerError(f"a checkpoint of {install.size_bytes} bytes")
        target = self._client.hooks.checkpoint_target(install.position)
        self._reception = Reception(install, welcome.epochs, target)
        self._start = welcome.truncate_to

    def _take_checkpoint(self, reception: Reception, at: int, end: int) -> int:
        """How much of it belonged to the checkpoint."""
        taken = reception.take(self._view[at:end])
        if reception.is_complete and self._installing is None:
            self._installing = spawn(self._install(reception), name="install-checkpoint")
        return taken

    async def _install(self, reception: Reception) -> None:
        machine = self._machine
        assert machine is not None
        try:
            await reception.target.synced()
            if self._transport is None:
                return  # nothing was changed; the next connection begins anew
            self._client.hooks.install(reception, self._start)
        except CorruptLogError as error:
            self.abort(f"the checkpoint is not intact: {error.message}")
            return
        except StorageError as error:
            self._fail(error)
            return
        self._reception = None
        self.is_joined = True
        self._carry_out(machine.step(Truncated(self._log.end, self._log.flushed)))
        log.info("replication_joined", extra={"epoch": machine.epoch, "position": self._log.end})

    # -- frames

    def _take_frames(self, machine: ReplicaReplication, at: int, end: int) -> int:
        if machine.has_room != self._log.has_room:
            self._carry_out(machine.step(RoomChanged(self._log.has_room)))
        while end - at >= FRAME_HEADER_BYTES:
            frame = parse_frame_header(self._view, at)
            if frame.size_bytes > end - at:
                self._size_wanted = frame.size_bytes
                break
            ready = self._take_frame(machine, frame, at)
            if ready.close is not None:
                raise PeerError(ready.close)
            self._has_written = self._has_written or frame.size_bytes > FRAME_HEADER_BYTES
            self._news = ReplicaReady(
                confirm=ready.confirm or self._news.confirm,
                acknowledge=ready.acknowledge or self._news.acknowledge,
            )
            at += frame.size_bytes
        return at

    def _tell(self) -> None:
        """One acknowledgement for all that came with one read: the last says everything."""
        news, self._news = self._news, ReplicaReady()
        has_written, self._has_written = self._has_written, False
        if has_written:
            self._client.hooks.wrote()
        self._carry_out(news)

    def _take_frame(self, machine: ReplicaReplication, frame: Frame, at: int) -> ReplicaReady:
        """Append one frame's batches; the answer names why it must `close`. CorruptLogError."""
        body_bytes = frame.size_bytes - FRAME_HEADER_BYTES
        ready = machine.step(
            FrameReceived(frame.epoch, frame.position, frame.confirm, frame.round, body_bytes)
        )
        if not ready.append:
            return ready
        body = self._view[at + FRAME_HEADER_BYTES : at + frame.size_bytes]
        self._log.append_raw(frame.position, body)
        self._log.write_pending()  # before the buffer is used again
        return machine.step(ReplicaAppended(self._log.end))

    def _keep_from(self, at: int) -> None:
        """Move what is not yet read to the front of the buffer."""
        rest = self._filled - at
        if at and rest:
            self._view[:rest] = bytes(self._view[at : self._filled])
        self._filled = rest

    def _grow(self, size: int) -> None:
        grown = bytearray(size)
        grown[: self._filled] = self._view[: self._filled]
        self._buffer, self._view = grown, memoryview(grown)

    # -- carrying out

    def _carry_out(self, ready: ReplicaReady) -> None:
        if ready.stop is not None:
            log.error("replication_stopped", extra={"reason": ready.stop})
            self._client.halt()
            self.abort(ready.stop)
            self._client.hooks.stopped(ready.stop)
            return
        if ready.close is not None:
            self.abort(ready.close)
            return
        if ready.acknowledge is not None:
            self._write(encode_acknowledgement(ready.acknowledge))
        if ready.confirm is not None:
            self._log.set_confirm(ready.confirm)
            self._client.hooks.confirmed(ready.confirm)

    def _fail(self, error: StorageError) -> None:
        self._client.halt()
        self.abort(error.message)
        self._client.hooks.failed(error)
