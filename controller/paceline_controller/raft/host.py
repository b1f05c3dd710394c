"""`RaftQuorum`: one node of the controllers' replicated log, on the event loop.

The facade of this package: it implements the `Quorum` port. It ticks the core after every message
and proposal (coalesced) and by a timer, runs the journal's sync, carries messages over `Links`, and
answers proposals. An answer never comes from a callback of the library: a proposal carries an id of
its own, and its result is what this node's machine returned when it applied the entry with that id.
Any exception on the way of the log stops the node for good: a restart from the journal is safe, a
guess is not.

Owner: one event loop. Every method is to be called on it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from paceline.errors import (
    BadRequestError,
    DeadlineError,
    NotLeaderError,
    OutcomeUnknownError,
    OverloadedError,
    ShuttingDownError,
    StorageError,
    TooLargeError,
)
from paceline.ports import Clock, Disk, File, Random
from paceline.runtime import pause, spawn
from paceline.types import ControllerId
from paceline_controller.quorum import (
    AppliedCallback,
    Command,
    LeadershipCallback,
    QuorumStatus,
    RestoredCallback,
    Result,
    StateMachine,
)
from paceline_controller.raft.core import Leadership, RaftCore
from paceline_controller.raft.frames import Message
from paceline_controller.raft.identity import Identity
from paceline_controller.raft.journal import Journal
from paceline_controller.raft.settings import COMMAND_BYTES_MAX, PROPOSALS_MAX, RaftSettings
from paceline_controller.raft.transport import Links

log = logging.getLogger("paceline.raft")

_TRANSFER_WAIT_MS = 1_000
_TRANSFER_POLL_MS = 20
_TOKEN_BYTES = 8


class RaftQuorum:
    """Implements `paceline_controller.quorum.Quorum` on PySyncObj."""

    def __init__(
        self,
        machine: StateMachine,
        *,
        controller_id: ControllerId,
        listen: tuple[str, int],
        peers: Mapping[ControllerId, tuple[str, int]],
        data_folder: str,
        disk: Disk,
        clock: Clock,
        random: Random,
        cluster_secret: bytes,
        source_host: str | None = None,
        cluster_name: str = "paceline",
        settings: RaftSettings | None = None,
        on_fatal: Callable[[Exception], None] | None = None,
    ) -> None:
        """`peers` are the other controllers (this one in it is ignored); numeric addresses.

        `on_fatal` is called once when the node has stopped itself; the process should end then.
        Without it the loop's exception handler is told.
        """
        self._machine = machine
        self._controller_id = controller_id
        self._listen = listen
        self._peers = {peer: at for peer, at in peers.items() if peer != controller_id}
        self._folder = f"{data_folder}/raft"
        self._disk = disk
        self._clock = clock
        self._random = random
        self._secret = cluster_secret
        self._source_host = source_host
        self._cluster_name = cluster_name
        self._settings = settings or RaftSettings()
        self._on_fatal = on_fatal
        self._applied_callbacks: list[AppliedCallback] = []
        self._restored_callbacks: list[RestoredCallback] = []
        self._leadership_callbacks: list[LeadershipCallback] = []
        self._waiting: dict[str, asyncio.Future[Result]] = {}
        self._barrier: _Barrier | None = None
        self._next_barrier: _Barrier | None = None
        self._token = random.token(_TOKEN_BYTES).hex()
        self._proposals = 0
        self._leadership = Leadership(is_leader=False, term=0)
        self._core: RaftCore | None = None
        self._links: Links | None = None
        self._lock: File | None = None
        self._sync_task: asyncio.Task[None] | None = None
        self._sync_wanted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_kicked = False
        self._is_stopping = False
        self._is_stopped = False
        self.sync_ms_max = 0  # longest fsync of the journal so far

    # -- the Quorum port ---------------------------------------------------------------------------

    async def start(self) -> None:
        """See `Quorum.start`."""
        assert self._core is None, "started once"
        self._disk.make_folder(self._folder)
        self._lock = self._disk.lock_folder(self._folder)
        try:
            await self._start()
        except BaseException:
            self._release()
            raise

    async def _start(self) -> None:
        identity = self._open_identity()
        core = self._core = RaftCore(
            self,
            controller_id=self._controller_id,
            peers=list(self._peers),
            folder=self._folder,
            disk=self._disk,
            clock=self._clock,
            random=self._random,
            gate=identity,
            settings=self._settings,
        )
        core.apply_committed()
        self._links = Links(
            self,
            controller_id=self._controller_id,
            cluster=self._cluster_name,
            listen=self._listen,
            peers=self._peers,
            secret=self._secret,
            identity=identity,
            random=self._random,
            settings=self._settings,
            source_host=self._source_host,
        )
        await self._links.start()
        self._sync_task = spawn(self._sync_forever(), name="raft-journal-sync")
        self._kick()

    async def stop(self) -> None:
        """See `Quorum.stop`."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._core is not None and not self._is_stopped:
            await self._hand_over()
        has_failed = self._is_stopped
        self._shut()
        if self._links is not None:
            await self._links.stop()
        if self._sync_task is not None:
            self._sync_wanted.set()
            await asyncio.wait([self._sync_task])  # a sync under way is waited for: it has the file
        if self._core is not None and not has_failed:
            self._core.journal.sync_now()
        self._release()

    def _release(self) -> None:
        """Close what is open on the disk."""
        if self._core is not None:
            self._core.journal.close()
        if self._lock is not None:
            self._lock.close()
        self._core = self._lock = None

    async def propose(self, command: Command, *, timeout_ms: int) -> Result:
        """See `Quorum.propose`. Also TooLargeError, BadRequestError, OverloadedError: not sent."""
        proposal, payload = self._envelope(command)
        self._ensure_leading()
        if len(self._waiting) >= PROPOSALS_MAX:
            raise OverloadedError(f"{PROPOSALS_MAX} proposals wait already", retry_after_ms=100)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[proposal] = future
        try:
            self._append(payload)
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise OutcomeUnknownError(f"command not committed within {timeout_ms} ms") from None
        finally:
            self._waiting.pop(proposal, None)

    async def read_barrier(self, *, timeout_ms: int) -> None:
        """See `Quorum.read_barrier`."""
        self._ensure_leading()
        if self._barrier is None:
            barrier = self._barrier = _Barrier()
            self._propose_barrier(barrier)
        else:
            # What is in flight may have been committed before this call, so it does not count.
            barrier = self._next_barrier = self._next_barrier or _Barrier()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.shield(barrier.done)
        except TimeoutError:
            raise DeadlineError(f"no majority answered within {timeout_ms} ms") from None

    def status(self) -> QuorumStatus:
        """See `Quorum.status`."""
        core = self._core
        if core is None:
            return QuorumStatus(
                is_leader=False, leader=None, term=0, commit_index=0, applied_index=0, log_length=0
            )
        return QuorumStatus(
            is_leader=self._leadership.is_leader,
            leader=core.leader,
            term=core.term,
            commit_index=core.commit_index,
            applied_index=core.applied_index,
            log_length=len(core.journal),
        )

    def on_applied(self, callback: AppliedCallback) -> None:
        """See `Quorum.on_applied`."""
        self._applied_callbacks.append(callback)

    def on_restored(self, callback: RestoredCallback) -> None:
        """See `Quorum.on_restored`."""
        self._restored_callbacks.append(callback)

    def on_leadership(self, callback: LeadershipCallback) -> None:
        """See `Quorum.on_leadership`."""
        self._leadership_callbacks.append(callback)

    @property
    def port(self) -> int:
        """The port listened on, once started."""
        assert self._links is not None
        return self._links.port

    # -- called by the core ------------------------------------------------------------------------

    def send(self, peer: ControllerId, message: Message) -> None:
        if self._links is not None:
            self._links.send(peer, message)

    def wants_sync(self) -> None:
        self._sync_wanted.set()

    def apply(self, payload: bytes, index: int) -> None:
        """A committed entry. Callbacks first, then the answer: whoever waits sees all effects."""
        envelope = orjson.loads(payload)
        command = envelope["command"]
        if command is None:
            self._barrier_applied(envelope["proposal"])
            return
        result, events = self._machine.apply(command, index=index)
        for callback in self._applied_callbacks:
            callback(command, result, events, index)
        future = self._waiting.pop(envelope["proposal"], None)
        if future is not None and not future.done():
            future.set_result(result)

    def take_snapshot(self) -> bytes:
        return self._machine.snapshot()

    def restore(self, machine: bytes, index: int) -> None:
        self._machine.restore(machine)
        for callback in self._restored_callbacks:
            callback(index)

    # -- called by the links -----------------------------------------------------------------------

    def link_up(self, peer: ControllerId) -> None:
        self._guarded(lambda core: core.connected(peer))

    def link_down(self, peer: ControllerId) -> None:
        self._guarded(lambda core: core.disconnected(peer))

    def message_received(self, peer: ControllerId, message: Message) -> None:
        self._guarded(lambda core: core.receive(peer, message))

    def failed(self, error: Exception) -> None:
        """Stop for good: not another tick, vote or answer of this node."""
        if self._is_stopped:
            return
        log.critical("raft_failed", extra={"node": self._controller_id}, exc_info=error)
        self._shut()
        if self._links is not None:
            self._links.abort()
        if self._on_fatal is not None:
            self._on_fatal(error)
        else:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "the raft node stopped itself", "exception": error}
            )

    # -- ticks -------------------------------------------------------------------------------------

    def _guarded(self, step: Callable[[RaftCore], Any]) -> None:
        """One step of the core, then a tick soon. An exception ends the node."""
        if self._is_stopped or self._core is None:
            return
        try:
            step(self._core)
        except Exception as error:  # any failure on the way of the log is fatal
            self.failed(error)
            return
        self._kick()

    def _kick(self) -> None:
        if not self._is_kicked:
            self._is_kicked = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._is_kicked = False
        if self._is_stopped or self._core is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._core.tick()
            self._tell_leadership()
        except Exception as error:  # as above
            self.failed(error)
            return
        self._timer = asyncio.get_running_loop().call_later(self._core.next_tick_s(), self._tick)

    async def _sync_forever(self) -> None:
        assert self._core is not None
        journal = self._core.journal
        try:
            while not self._is_stopped:
                await self._sync_wanted.wait()
                self._sync_wanted.clear()
                ticket = None if self._is_stopped else journal.begin_sync()
                if ticket is None:
                    continue
                started_ms = self._clock.monotonic_ms()
                await self._disk.sync(ticket.file)
                self._note_sync(self._clock.monotonic_ms() - started_ms)
                self._core.synced(ticket)
                self._kick()
        except Exception as error:  # R22: after a failed write or fsync nothing counts any more
            self.failed(error)

    def _note_sync(self, elapsed_ms: int) -> None:
        self.sync_ms_max = max(self.sync_ms_max, elapsed_ms)
        if elapsed_ms > self._settings.slow_sync_ms:
            log.warning("raft_sync_slow", extra={"elapsed_ms": elapsed_ms})

    def _tell_leadership(self) -> None:
        assert self._core is not None
        before, now = self._leadership, self._core.leadership
        if not self._core.is_leading or before.term != now.term:
            self._fail_waiting(OutcomeUnknownError("leadership was lost", leader=self._core.leader))
        if before == now or not (before.is_leader or now.is_leader):
            self._leadership = now
            return
        self._leadership = now
        log.info("raft_leadership", extra={"is_leader": now.is_leader, "term": now.term})
        for callback in self._leadership_callbacks:
            callback(now.is_leader, now.term)

    # -- proposals ---------------------------------------------------------------------------------

    def _envelope(self, command: Command | None) -> tuple[str, bytes]:
        self._proposals += 1
        proposal = f"{self._controller_id}-{self._token}-{self._proposals}"
        try:
            payload = orjson.dumps(
                {"command": command, "proposal": proposal}, option=orjson.OPT_SORT_KEYS
            )
        except orjson.JSONEncodeError as error:
            raise BadRequestError(f"the command is no JSON: {error}") from error
        if len(payload) >= COMMAND_BYTES_MAX:
            raise TooLargeError(f"command of {len(payload)} bytes", limit=COMMAND_BYTES_MAX)
        return proposal, payload

    def _ensure_leading(self) -> None:
        if self._core is None or self._is_stopping or self._is_stopped:
            raise ShuttingDownError("this controller is not running")
        if not self._core.is_leading:
            raise NotLeaderError("this controller does not lead", leader=self._core.leader)

    def _append(self, payload: bytes) -> None:
        self._guarded(lambda core: core.append(payload))

    def _propose_barrier(self, barrier: "_Barrier") -> None:
        barrier.proposal, payload = self._envelope(None)
        self._append(payload)

    def _barrier_applied(self, proposal: str) -> None:
        barrier = self._barrier
        if barrier is None or barrier.proposal != proposal:
            return
        self._barrier, self._next_barrier = self._next_barrier, None
        barrier.done.set_result(None)
        if self._barrier is not None:
            # Not from inside the apply loop of the library.
            asyncio.get_running_loop().call_soon(self._start_barrier, self._barrier)

    def _start_barrier(self, barrier: "_Barrier") -> None:
        if self._barrier is barrier and self._core is not None and self._core.is_leading:
            self._propose_barrier(barrier)

    def _fail_waiting(self, error: OutcomeUnknownError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
        barriers = (self._barrier, self._next_barrier)
        self._barrier = self._next_barrier = None
        for barrier in barriers:
            if barrier is not None:
                barrier.fail(NotLeaderError(error.message, **error.details))

    # -- start and stop ----------------------------------------------------------------------------

    def _open_identity(self) -> Identity:
        identity = Identity.open(
            self._disk,
            f"{self._folder}/identity",
            controller_id=self._controller_id,
            cluster=self._cluster_name,
            peers=self._peers,
            random=self._random,
        )
        has_journal = Journal.exists(self._disk, self._folder)
        if identity.has_journal and not has_journal:
            raise StorageError(
                f"the journal in {self._folder} is missing: this controller has lost what it"
                " promised and must be replaced under a new id"
            )
        if not has_journal:
            Journal.create(self._disk, self._folder, controller_id=self._controller_id)
        identity.journal_created()
        return identity

    async def _hand_over(self) -> None:
        """Let another controller lead before this one goes; gives up after a second."""
        assert self._core is not None
        deadline_ms = self._clock.monotonic_ms() + _TRANSFER_WAIT_MS
        while self._core.has_links and self._core.is_leading and not self._is_stopped:
            if self._clock.monotonic_ms() >= deadline_ms:
                break
            self._guarded(lambda core: core.transfer_leadership())
            await pause(_TRANSFER_POLL_MS)

    def _shut(self) -> None:
        """No tick, message or answer after this."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._fail_waiting(OutcomeUnknownError("this controller stops"))
        if self._leadership.is_leader:
            self._leadership = Leadership(is_leader=False, term=self._leadership.term)
            for callback in self._leadership_callbacks:
                callback(False, self._leadership.term)


class _Barrier:
    """Readers that share one no-op."""

    def __init__(self) -> None:
        self.proposal = ""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # read: nobody may be waiting any more
