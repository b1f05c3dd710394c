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
from dataclasses import asdict
from functools import partial
from typing import Any

import orjson

from paceline.errors import (
    NotLeaderError,
    OutcomeUnknownError,
    OverloadedError,
    PacelineError,
    ShuttingDownError,
    StorageError,
)
from paceline.platform.ports import Clock, Disk, File, Random
from paceline.platform.runtime import spawn
from paceline.platform.secret import ClusterSecrets
from paceline.security.node_tls import NodeTls
from paceline.types import ControllerId
from paceline_controller.quorum import (
    AppliedCallback,
    Command,
    LeadershipCallback,
    MembersCallback,
    MembersWish,
    QuorumStatus,
    RefusedCallback,
    RestoredCallback,
    Result,
    StateMachine,
)
from paceline_controller.raft.barriers import Barriers
from paceline_controller.raft.comparison import Comparison
from paceline_controller.raft.core import Leadership, RaftCore
from paceline_controller.raft.handover import HandOver
from paceline_controller.raft.identity import Identity, open_identity
from paceline_controller.raft.log.sync_times import SyncWindow
from paceline_controller.raft.members import Members, wished_members
from paceline_controller.raft.peers.directory import Directory
from paceline_controller.raft.peers.frames import Message
from paceline_controller.raft.peers.hello import members_digest
from paceline_controller.raft.peers.transport import Links
from paceline_controller.raft.proposals import Proposals
from paceline_controller.raft.reporting import (
    UNSTARTED,
    described_members,
    quorum_members,
    quorum_status,
)
from paceline_controller.raft.settings import PROPOSALS_MAX, RaftSettings

log = logging.getLogger("paceline.raft")

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
        secrets: ClusterSecrets,
        client_addresses: Mapping[ControllerId, str] | None = None,
        source_host: str | None = None,
        cluster_name: str = "paceline",
        settings: RaftSettings | None = None,
        tls: NodeTls | None = None,
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
        self._raft_addresses = {controller_id: listen, **peers}
        self._client_addresses = dict(client_addresses or {})
        self._directory = Directory(controller_id, self._peers)
        self._folder = f"{data_folder}/raft"
        self._disk, self._clock, self._random = disk, clock, random
        self._source_host, self._tls = source_host, tls
        self._secrets, self._cluster_name = secrets, cluster_name
        self._settings = settings or RaftSettings()
        self._on_fatal = on_fatal
        self._applied_callbacks: list[AppliedCallback] = []
        self._restored_callbacks: list[RestoredCallback] = []
        self._leadership_callbacks: list[LeadershipCallback] = []
        self._members_callbacks: list[MembersCallback] = []
        self._refused_callbacks: list[RefusedCallback] = []
        self._barriers = Barriers(self._propose_barrier)
        self._hand_over = HandOver(clock)
        self._comparison = Comparison(
            controller_id, self._settings, machine.digest_of_part, self.send
        )
        self._identity: Identity | None = None
        self._proposals = Proposals(controller_id, random.token(_TOKEN_BYTES).hex())
        self._leadership = Leadership(is_leader=False, term=0)
        self._core: RaftCore | None = None
        self._links: Links | None = None
        self._lock: File | None = None
        self._sync_task: asyncio.Task[None] | None = None
        self._compact_task: asyncio.Task[None] | None = None
        self._sync_wanted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._followed: tuple[Members | None, Members | None] = (None, None)
        self._is_kicked = self._is_stopping = self._is_stopped = False
        self.syncs = SyncWindow()

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
        identity = self._identity = open_identity(
            self._disk,
            self._folder,
            controller_id=self._controller_id,
            cluster=self._cluster_name,
            peers=self._peers,
            random=self._random,
        )
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
        self._directory.follow(latest=core.members, committed=core.committed_members)
        self._links = Links(
            self,
            controller_id=self._controller_id,
            cluster=self._cluster_name,
            listen=self._listen,
            directory=self._directory,
            members=members_digest([self._controller_id, *self._peers]),
            secrets=self._secrets,
            identity=identity,
            random=self._random,
            settings=self._settings,
            source_host=self._source_host,
            tls=self._tls,
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
            await self._hand_over.before_stop(self._core)
        has_failed = self._is_stopped
        self._shut()
        if self._links is not None:
            await self._links.stop()
        if self._sync_task is not None:
            self._sync_wanted.set()
            tasks = {self._sync_task, self._compact_task or self._sync_task}
            await asyncio.wait(tasks)  # a sync under way is waited for: it has the file
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
        proposal, payload = self._proposals.envelope(command)
        self._ensure_leading()
        if len(self._proposals) >= PROPOSALS_MAX:
            raise OverloadedError(f"{PROPOSALS_MAX} proposals wait already", retry_after_ms=100)
        return await self._proposals.wait(
            proposal, lambda: self._append(payload), timeout_ms=timeout_ms
        )

    async def read_barrier(self, *, timeout_ms: int) -> None:
        """See `Quorum.read_barrier`."""
        self._ensure_leading()
        await self._barriers.wait(timeout_ms=timeout_ms)

    async def transfer(self, to: ControllerId | None, *, timeout_ms: int) -> ControllerId:
        """See `Quorum.transfer`."""
        return await self._hand_over.to(self._ensure_leading(), to, timeout_ms=timeout_ms)

    async def change_members(self, wish: MembersWish, *, timeout_ms: int) -> int:
        """See `Quorum.change_members`."""
        core = self._ensure_leading()
        described = self._described(core)
        members = wished_members(described, **asdict(wish))
        if members is described:  # an earlier try is in the log: what is left is to be committed
            await self._barriers.wait(timeout_ms=timeout_ms)
            return members.generation
        proposal = self._proposals.name()
        begin = partial(core.wish_members, members, proposal)
        result = await self._proposals.wait(proposal, begin, timeout_ms=timeout_ms)
        return int(result["generation"])

    def _described(self, core: RaftCore) -> Members:
        """The generation in force; what it does not say as configured."""
        assert self._identity is not None
        return described_members(
            core.members,
            raft=self._raft_addresses,
            client=self._client_addresses,
            store_of=self._identity.store_of,
        )

    def status(self) -> QuorumStatus:
        """See `Quorum.status`."""
        core, links = self._core, self._links
        if core is None or links is None:
            return UNSTARTED
        return quorum_status(
            core,
            is_leader=self._leadership.is_leader,
            members=quorum_members(
                core, self._controller_id, self._described(core), is_linked=links.is_linked
            ),
            syncs=self.syncs,
            now_ms=self._clock.monotonic_ms(),
            waiting_count=len(self._proposals),
            is_handing_over=self._hand_over.is_under_way,
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

    def on_members(self, callback: MembersCallback) -> None:
        """See `Quorum.on_members`."""
        self._members_callbacks.append(callback)

    def on_refused(self, callback: RefusedCallback) -> None:
        """See `Quorum.on_refused`."""
        self._refused_callbacks.append(callback)

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
            self._barriers.applied(envelope["proposal"])
            return
        result, events = self._machine.apply(command, index=index)
        for callback in self._applied_callbacks:
            callback(command, result, events, index)
        self._proposals.answer(envelope["proposal"], result)
        if self._core is not None and self._links is not None:  # not while it recovers
            self._comparison.applied(self._core, index)

    def members_applied(self, members: Members, proposal: str, index: int) -> None:
        """A generation is committed."""
        log.info("raft_members", extra={"index": index, **members.to_json()})
        self._proposals.answer(proposal, {"generation": members.generation})
        asyncio.get_running_loop().call_soon(self._tell_members)

    def _tell_members(self) -> None:
        for callback in self._members_callbacks:
            callback()

    def wants_snapshot(self) -> None:
        self._compact_task = spawn(self._compact(), name="raft-compact")

    def take_snapshot(self) -> bytes:
        return self._machine.snapshot()

    def restore(self, machine: bytes, index: int) -> None:
        self._machine.restore(machine)
        self._comparison.restored()
        for callback in self._restored_callbacks:
            callback(index)

    # -- called by the links -----------------------------------------------------------------------

    def link_up(self, peer: ControllerId) -> None:
        self._guarded(lambda core: core.connected(peer))
        self._comparison.link_up(peer)

    def link_down(self, peer: ControllerId) -> None:
        self._guarded(lambda core: core.disconnected(peer))

    def message_received(self, peer: ControllerId, message: Message) -> None:
        if message["type"] == "digest":
            self._guarded(lambda core: self._comparison.received(core, peer, message))
        else:
            self._guarded(lambda core: core.receive(peer, message))

    def peer_refused(self, source: str, error: PacelineError) -> None:
        for callback in self._refused_callbacks:
            callback(source, error)

    def members_heard(self) -> None:
        """Links, stores and addresses go by the log and by what peers proved to know."""
        core, links, identity = self._core, self._links, self._identity
        if core is None or links is None or identity is None or self._is_stopped:
            return
        self._directory.follow(latest=core.members, committed=core.committed_members)
        if self._directory.newest is self._followed[0] and core.members is self._followed[1]:
            return
        self._followed = (self._directory.newest, core.members)
        for name, member in core.members.voters.items():
            if name != self._controller_id and identity.learn(name, member.store):
                links.drop(name)  # what it was linked with is not what votes under that id
        links.follow_directory()
        if self._directory.is_removed and identity.may_vote:
            generation = self._directory.newest.generation
            self.failed(
                StorageError(
                    f"controller {self._controller_id} was removed from the quorum (generation"
                    f" {generation} of its members): its data folder is of no use any more"
                )
            )

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
            self.members_heard()
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
                await journal.sync(ticket)
                self._note_sync(self._clock.monotonic_ms() - started_ms)
                self._core.synced(ticket)
                self._kick()
        except Exception as error:  # after a failed write or fsync nothing counts any more (R22)
            self.failed(error)

    async def _compact(self) -> None:
        assert self._core is not None
        try:
            await self._core.compact()
        except Exception as error:  # as above
            self.failed(error)

    def _note_sync(self, elapsed_ms: int) -> None:
        self.syncs.note(elapsed_ms)
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

    def _ensure_leading(self) -> RaftCore:
        if self._core is None or self._is_stopping or self._is_stopped:
            raise ShuttingDownError("this controller is not running")
        if not self._core.takes_commands or self._hand_over.is_under_way:
            leader = self._core.leader
            hint = None if leader == self._controller_id else leader
            raise NotLeaderError("this controller does not lead", leader=hint)
        return self._core

    def _append(self, payload: bytes) -> None:
        self._guarded(lambda core: core.append(payload))

    def _propose_barrier(self) -> str | None:
        if self._core is None or not self._core.takes_commands:
            return None
        proposal, payload = self._proposals.envelope(None)
        self._append(payload)
        return proposal

    def _fail_waiting(self, error: OutcomeUnknownError) -> None:
        self._proposals.fail(error)
        self._barriers.fail(error)

    # -- start and stop ----------------------------------------------------------------------------

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
