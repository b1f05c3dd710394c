"""One Raft node without a network, a task or a timer: storage, the library, and our overrides.

The shell (`host.py`) or a test's simulation calls it from one thread of control: `receive`,
`connected`, `disconnected`, `append`, `tick`; and it calls out: `send` for a message that may leave
now, `wants_sync` when something waits for the journal, `apply` and `restore` for the machine. A
message that promises something leaves only when every change made before it is durable (F3,
`outbox.py`): messages wait in order behind the journal's sync, so the event loop never blocks on
the disk, and from outside a slow disk looks like a slow network. The leader's own copy counts only
then too: it counts answers as far as that is durable, and a node alone ticks only when its journal
is durable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.errors import CommandRefusedError, CorruptLogError
from paceline.platform.ports import Clock, Disk, Random
from paceline.types import ControllerId
from paceline_controller.raft.elections import VoteGate
from paceline_controller.raft.library import (
    PeerNode,
    RaftInvariantError,
    library_settings,
    load_library,
)
from paceline_controller.raft.log.entries import COMMAND_ENTRY, MEMBERS_ENTRY
from paceline_controller.raft.log.journal import Journal, SyncTicket
from paceline_controller.raft.log.snapshot import Snapshot, SnapshotStore
from paceline_controller.raft.member_steps import (
    Progress,
    Step,
    missing_after_removal,
    next_step,
)
from paceline_controller.raft.members import Members, configured, encode_change, is_one_step
from paceline_controller.raft.outbox import Outbox
from paceline_controller.raft.overrides import make_node_class
from paceline_controller.raft.peers.frames import Message, is_sendable
from paceline_controller.raft.settings import RaftSettings

_CANDIDATE = 1  # the library's _RAFT_STATE.CANDIDATE
_SUCCESS = 0  # the library's FAIL_REASON.SUCCESS


class Shell(Protocol):
    """What the core calls, synchronously; nothing here may call back into the core."""

    def send(self, peer: ControllerId, message: Message) -> None:
        """Hand a message to the link; it may be lost, never reordered."""
        ...

    def wants_sync(self) -> None:
        """Something waits for `journal.begin_sync`, `journal.sync`, and `synced`."""
        ...

    def apply(self, payload: bytes, index: int) -> None:
        """A committed command, in order. An exception stops the node."""
        ...

    def wants_snapshot(self) -> None:
        """The log is long: `compact` soon. Not asked again before that has ended."""
        ...

    def take_snapshot(self) -> bytes: ...

    def restore(self, machine: bytes, index: int) -> None: ...

    def members_applied(self, members: Members, proposal: str, index: int) -> None:
        """A generation of the member list is committed, in order with the commands."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """What a change of leadership is judged by."""

    is_leader: bool
    """Elected, and everything of earlier terms is applied here."""
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """What a leader knows of another member."""

    matched: int
    silent_ms: int
    is_connected: bool
    is_voter: bool


class _Outbound:
    """The library's transport interface: outgoing messages only, the rest is the core's."""

    ready = True

    def __init__(self, core: "RaftCore") -> None:
        self._core = core

    def send(self, node: PeerNode, message: Message) -> bool:
        return self._core.hold(node.id, message)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("setOn"):
            raise AttributeError(name)
        return lambda *_: None  # the core calls the node directly


class RaftCore:
    """Owner of journal, snapshots and the library's node of one controller."""

    _leaves_in = -1
    """The generation in which this leader has begun to leave."""

    def __init__(
        self,
        shell: Shell,
        *,
        controller_id: ControllerId,
        peers: Sequence[ControllerId],
        folder: str,
        disk: Disk,
        clock: Clock,
        random: Random,
        gate: VoteGate,
        settings: RaftSettings,
    ) -> None:
        """Recovers from `folder`, which holds a journal. Raises StorageError if it cannot."""
        self._shell = shell
        self._settings = settings
        self._random = random
        self._campaign_term = 0
        self._campaigns = 0
        self._due_at = float("inf")
        self._controller_id = controller_id
        self._gate = gate
        self._hand_over_after = self._yields_from = self._yields_until = 0.0
        self._committed_members = configured([controller_id, *peers])
        self.journal = Journal(
            disk, folder, controller_id=controller_id, segment_bytes=settings.segment_bytes
        )
        self._snapshots = SnapshotStore(
            disk, f"{folder}/snapshot", chunk_bytes=settings.snapshot_chunk_bytes, clock=clock
        )
        self._outbox = Outbox(self.journal, shell.send)
        library = load_library(
            clock=clock, random=random, journal=self.journal, snapshots=self._snapshots
        )
        self._now: Callable[[], float] = library.monotonicTime

        self._node: Any = make_node_class(library)(  # Any: the library is untyped
            lambda node: self._prepare(node, peers),
            PeerNode(controller_id),
            [PeerNode(peer) for peer in peers],
            conf=library_settings(library, settings),
            nodeClass=PeerNode,
            transport=_Outbound(self),
        )
        try:
            self._node.load_snapshot()
        except RaftInvariantError as error:
            raise CorruptLogError(str(error)) from error
        if self._is_alone:
            self._node._SyncObj__raftElectionDeadline = 0.0  # nobody to wait for

    def _prepare(self, node: Any, peers: Sequence[ControllerId]) -> None:
        """Before the library's constructor runs."""
        node.prepare(
            settings=self._settings,
            snapshots=self._snapshots,
            apply=self._shell.apply,
            take_snapshot=self._shell.take_snapshot,
            wants_snapshot=self._shell.wants_snapshot,
            install_snapshot=self._install_snapshot,
        )
        node.prepare_elections(
            gate=self._gate, now=self._now, uniform=self._random.uniform, send=self.hold
        )
        node.prepare_members(
            own=self._controller_id,
            peers=peers,
            forget_peer=self._snapshots.cancelTransmisstion,
            members_applied=self._members_applied,
        )

    # -- called by the shell -----------------------------------------------------------------------

    def apply_committed(self) -> None:
        """At start: apply what the journal knows to be committed, before taking part."""
        self._node._SyncObj__applyLogEntries()

    def receive(self, peer: ControllerId, message: Message) -> None:
        """A checked message of a connected peer; `tick` afterwards."""
        self._node._SyncObj__onMessageReceived(PeerNode(peer), message)

    def connected(self, peer: ControllerId) -> None:
        """A link stands, perhaps in place of an older one."""
        self._snapshots.cancelTransmisstion(PeerNode(peer))
        self._node._SyncObj__onNodeConnected(PeerNode(peer))
        self._node.peer_found()

    def disconnected(self, peer: ControllerId) -> None:
        self._node._SyncObj__onNodeDisconnected(PeerNode(peer))
        self._node.leader_lost(PeerNode(peer))

    def append(self, payload: bytes) -> int:
        """Append one command to the log of this leader; its index. `is_leading` must hold."""
        return self._append(COMMAND_ENTRY + payload)

    def _append(self, entry: bytes) -> int:
        assert self.is_leading
        self._node._applyCommand(entry, None)
        # At once and not in the next tick: in between, leadership could change and the library
        # would forward the command to the new leader, where its outcome cannot be followed.
        self._node._checkCommandsToApply()
        last = self.journal[-1]
        assert last[0] is entry, "the leader appends at once"
        self._want_sync()
        self._node.note_entries([last])
        return last[1]

    def change_members(self, members: Members, proposal: str = "") -> int:
        """Append the next generation, in force here from now on; index of its entry.

        Raises CommandRefusedError unless it is the leader's to make now: what came before is
        committed, also an entry of this leader's own term (docs/adr/0011).
        """
        if not self.leadership.is_leader:
            raise CommandRefusedError("this controller does not lead yet", reason="NOT_YET")
        if self._node.member_log.latest_index > self.commit_index:
            raise CommandRefusedError("a change of members is under way", reason="NOT_YET")
        if not is_one_step(self.members, members) or self._controller_id not in members.voters:
            raise CommandRefusedError("not a change by one voter", reason="MEMBERS_REFUSED")
        return self._append(MEMBERS_ENTRY + encode_change(members, proposal))

    def tick(self) -> None:
        """Elect, commit, apply, send. After messages, after `append`, and at `next_tick_s`."""
        if self._is_alone and not self.journal.is_durable:
            self._want_sync()  # alone, the own copy is the majority: it must be on disk first
            return
        late_s = self._now() - self._due_at
        if late_s > 0:
            self._node.excuse(late_s)
        self._node.mind_vote()
        self._node.doTick(0.0)
        self._pace_candidate()
        self._go_on_with_members()
        self._outbox.let_go()  # a compaction made everything durable by itself
        if self._is_alone:
            self._want_sync()
        self._due_at = self._now() + self.next_tick_s()

    def next_tick_s(self) -> float:
        """Seconds until `tick` has something to do by itself."""
        settings = self._settings
        longest = settings.idle_tick_ms / 1000
        if self.is_leading:
            due = float(self._node._SyncObj__newAppendEntriesTime)
        elif self._node._SyncObj__raftState == _CANDIDATE:
            return settings.candidate_tick_ms / 1000
        else:
            due = float(self._node._SyncObj__raftElectionDeadline)
        return min(longest, max(due - self._now() + 0.001, settings.candidate_tick_ms / 1000))

    def synced(self, ticket: SyncTicket) -> None:
        """The disk has synced a ticket of `journal.begin_sync`: let go what waited for it."""
        self.journal.finish_sync(ticket)
        self._node.mind_vote()
        self._node.count_early()
        self._outbox.let_go()
        self._want_sync()

    def transfer_leadership(self, to: ControllerId | None = None) -> bool:
        """Ask that follower (None: the most advanced) to take over; False if it lacks something."""
        answers: list[int] = []
        self._node.transferLeadership(
            None if to is None else PeerNode(to), lambda _, reason: answers.append(reason)
        )
        return answers == [_SUCCESS]

    async def compact(self) -> None:
        """Snapshot, off the event loop, and then cut the journal. One at a time."""
        await self._node.compact()

    # -- queries -----------------------------------------------------------------------------------

    @property
    def is_leading(self) -> bool:
        """Elected; its first entry may not be committed yet."""
        return bool(self._node._isLeader())

    @property
    def has_links(self) -> bool:
        """Whether any peer is connected."""
        return bool(self._node._SyncObj__connectedNodes)

    @property
    def leadership(self) -> Leadership:
        no_op = self._node._SyncObj__noopIDx
        is_leader = self.is_leading and no_op is not None and self.applied_index >= no_op
        return Leadership(is_leader=is_leader, term=self.term)

    @property
    def leader(self) -> ControllerId | None:
        """The leader as far as known; None once its link is down."""
        node = self._node._SyncObj__raftLeader
        if node is None:
            return None
        is_reachable = self.is_leading or node in self._node._SyncObj__connectedNodes
        return ControllerId(node.id) if is_reachable else None

    @property
    def has_caught_up(self) -> bool:
        """See `QuorumStatus`.

        A leader that has just begun tells a commit index that may be too low: it knows all that was
        committed before only with an entry of its own term.
        """
        if self.leadership.is_leader or self._node.first_heard is None:
            return self.leadership.is_leader
        commit_index, term = self._node.first_heard
        applied = self._node._SyncObj__raftLog.entry(self.applied_index)
        is_there = self.applied_index >= commit_index and applied is not None
        return bool(is_there and applied[2] >= term)

    @property
    def leader_silent_ms(self) -> int | None:
        """See `QuorumStatus`."""
        if self.is_leading:
            return 0
        heard_at: float | None = self._node._leader_heard_at
        return None if heard_at is None else int((self._now() - heard_at) * 1000)

    @property
    def heartbeat_gap_ms(self) -> int:
        """See `QuorumStatus`."""
        return int(self._node.pace.gap_s(self._now()) * 1000)

    @property
    def election_timeout_ms(self) -> int:
        """See `QuorumStatus`."""
        return int(self._settings.election_min_ms * self._node.pace.stretch(self._now()))

    @property
    def term(self) -> int:
        return int(self._node.raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        return int(self._node.raftCommitIndex)

    @property
    def applied_index(self) -> int:
        return int(self._node.raftLastApplied)

    @property
    def snapshot_at_ms(self) -> int | None:
        """When this process last had a snapshot in hand, by the clock's running time."""
        return self._snapshots.saved_at_ms

    @property
    def members(self) -> Members:
        """The generation in force here: the log's last one, committed or not."""
        latest: Members = self._node.member_log.latest
        return latest

    @property
    def committed_members(self) -> Members:
        """The last generation that was applied here."""
        return self._committed_members

    def followers(self) -> dict[ControllerId, Follower]:
        """How the others stand; empty unless this node leads."""
        node = self._node
        if not self.is_leading:
            return {}
        now = self._now()
        return {
            ControllerId(other.id): Follower(
                matched=int(node._SyncObj__raftMatchIndex[other]),
                silent_ms=int((now - node._SyncObj__lastResponseTime[other]) * 1000),
                is_connected=other in node._SyncObj__connectedNodes,
                is_voter=node.is_counted(other),
            )
            for other in sorted(
                node._SyncObj__otherNodes | node._SyncObj__readonlyNodes, key=lambda one: one.id
            )
        }

    def next_members_step(self) -> Step:
        """What this leader would do about a change that has begun, and what it waits for."""
        members = self.members
        if not members.learners and members.leaving is None:
            return Step()
        changed_at = self._node.member_log.latest_index
        if not self.leadership.is_leader or changed_at > self.commit_index:
            return Step(waits_for=f"generation {members.generation} is not committed yet")
        followers = self.followers()
        fresh_ms = self._settings.election_min_ms
        progress = Progress(
            last_index=self.journal.last_index,
            changed_at=changed_at,
            matched={name: follower.matched for name, follower in followers.items()},
            fresh={
                name
                for name, one in followers.items()
                if one.is_connected and one.silent_ms < fresh_ms
            },
            stores={name: self._gate.remembered_store(name) for name in followers},
        )
        return next_step(members, self._controller_id, progress)

    def wish_members(self, members: Members, proposal: str) -> None:
        """Begin what an operator wants. Raises CommandRefusedError, also if it cannot end now."""
        self._ensure_removable(members)
        self.change_members(members, proposal)

    def _ensure_removable(self, members: Members) -> None:
        if members.leaving is None or members.learners:
            return
        fresh_ms = self._settings.election_min_ms
        fresh = {
            name
            for name, one in self.followers().items()
            if one.is_connected and one.silent_ms < fresh_ms
        }
        missing = missing_after_removal(members, members.leaving, self._controller_id, fresh)
        if missing:
            raise CommandRefusedError(missing, reason="MEMBERS_REFUSED")

    def _go_on_with_members(self) -> None:
        step = self.next_members_step()
        if step.members is not None:
            self.change_members(step.members)
        elif step.is_hand_over:
            self._yield_leadership()

    @property
    def takes_commands(self) -> bool:
        """Whether this node leads; one that leaves the quorum takes none now and then, so that
        another can lead.

        Else it is ahead again by the time that the other's request for its vote is here; where both
        votes are needed, for ever.
        """
        return self.is_leading and self._now() >= self._yields_until

    def _yield_leadership(self) -> None:
        """Hand over; in between commands are taken, for as long as they were refused."""
        now, wait = self._now(), self._settings.election_min_ms / 1000
        generation = self.members.generation
        if generation != self._leaves_in:
            self._leaves_in = generation
            self._yields_from = now + self._settings.farewell_ms / 1000
        if now >= self._yields_from:
            self._yields_until, self._yields_from = now + wait, now + 2 * wait
        if now < self._yields_until and now >= self._hand_over_after and self.transfer_leadership():
            self._hand_over_after = now + self._settings.append_ms / 1000

    @property
    def _is_alone(self) -> bool:
        return not self._node._SyncObj__otherNodes

    # -- called by the library's side --------------------------------------------------------------

    def hold(self, peer: ControllerId, message: Message) -> bool:
        """Send a message as soon as it may leave (`Outbox`); False if it cannot be sent."""
        if not is_sendable(message):
            return False
        match message["type"]:
            case "next_node_idx":
                message["term"] = self.term
            case "request_vote":
                message["transfer"] = self._node.is_transfer(message["term"])
        self._outbox.hold(peer, message)
        self._want_sync()
        return True

    def _want_sync(self) -> None:
        if not self.journal.is_durable:
            self._shell.wants_sync()

    def _members_applied(self, members: Members, proposal: str, index: int) -> None:
        self._committed_members = members
        self._shell.members_applied(members, proposal, index)

    def _install_snapshot(self, snapshot: Snapshot) -> None:
        if snapshot.members is not None:
            self._committed_members = snapshot.members
            self._shell.members_applied(snapshot.members, "", snapshot.index)
        self._shell.restore(snapshot.machine, snapshot.index)

    def _pace_candidate(self) -> None:
        """A candidate tries again soon after a split vote, then ever later (`candidacy_min_ms`)."""
        if self._node._SyncObj__raftState != _CANDIDATE:
            self._campaigns = 0
        elif self.term != self._campaign_term:
            self._campaign_term = self.term
            low = self._settings.candidacy_min_ms * 2**self._campaigns / 1000
            deadline = self._now() + self._random.uniform(low, 2 * low)
            self._node._SyncObj__raftElectionDeadline = min(
                self._node._SyncObj__raftElectionDeadline, deadline
            )
            self._campaigns += 1
