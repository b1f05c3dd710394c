"""One Raft node without a network, a task or a timer: storage, the library, and our overrides.

The shell (`host.py`) or a test's simulation calls it from one thread of control: `receive`,
`connected`, `disconnected`, `append`, `tick`; and it calls out: `send` for a message that may leave
now, `wants_sync` when something waits for the journal, `apply` and `restore` for the machine. A
message leaves only when every change made before it is durable (F3): messages wait in order behind
the journal's sync, so the event loop never blocks on the disk, and from outside a slow disk looks
like a slow network. The leader's own copy counts only then too: no follower can have acknowledged
an entry whose append has not left, and a node alone ticks only when its journal is durable.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.errors import CorruptLogError
from paceline.ports import Clock, Disk, Random
from paceline.types import ControllerId
from paceline_controller.raft.elections import VoteGate
from paceline_controller.raft.entries import COMMAND_ENTRY
from paceline_controller.raft.frames import Message, is_sendable
from paceline_controller.raft.journal import Journal, SyncTicket
from paceline_controller.raft.library import (
    PeerNode,
    RaftInvariantError,
    library_settings,
    load_library,
)
from paceline_controller.raft.overrides import make_node_class
from paceline_controller.raft.settings import RaftSettings
from paceline_controller.raft.snapshot import Snapshot, SnapshotStore

_CANDIDATE = 1  # the library's _RAFT_STATE.CANDIDATE


class Shell(Protocol):
    """What the core calls, synchronously; nothing here may call back into the core."""

    def send(self, peer: ControllerId, message: Message) -> None:
        """Hand a message to the link; it may be lost, never reordered."""
        ...

    def wants_sync(self) -> None:
        """Something waits for `journal.begin_sync`, the disk, and `synced`."""
        ...

    def apply(self, payload: bytes, index: int) -> None:
        """A committed command, in order. An exception stops the node."""
        ...

    def take_snapshot(self) -> bytes: ...

    def restore(self, machine: bytes, index: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """What a change of leadership is judged by."""

    is_leader: bool
    """Elected, and everything of earlier terms is applied here."""
    term: int


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
        self._held: deque[tuple[int, ControllerId, Message]] = deque()
        self._campaign_term = 0
        self._campaigns = 0
        self._peers = {peer: PeerNode(peer) for peer in peers}
        self.journal = Journal(
            disk, folder, controller_id=controller_id, segment_bytes=settings.segment_bytes
        )
        self._snapshots = SnapshotStore(
            disk, f"{folder}/snapshot", chunk_bytes=settings.snapshot_chunk_bytes
        )
        library = load_library(
            clock=clock, random=random, journal=self.journal, snapshots=self._snapshots
        )
        self._now: Callable[[], float] = library.monotonicTime

        def configure(node: Any) -> None:
            node.prepare(
                settings=settings,
                snapshots=self._snapshots,
                apply=shell.apply,
                take_snapshot=shell.take_snapshot,
                install_snapshot=self._install_snapshot,
            )
            node.prepare_elections(gate=gate, now=self._now, uniform=random.uniform, send=self.hold)

        self._node: Any = make_node_class(library)(  # Any: the library is untyped
            configure,
            PeerNode(controller_id),
            list(self._peers.values()),
            conf=library_settings(library, settings),
            nodeClass=PeerNode,
            transport=_Outbound(self),
        )
        if not self._peers:
            self._node._SyncObj__raftElectionDeadline = 0.0  # nobody to wait for
        try:
            self._node.load_snapshot()
        except RaftInvariantError as error:
            raise CorruptLogError(str(error)) from error

    # -- called by the shell -----------------------------------------------------------------------

    def apply_committed(self) -> None:
        """At start: apply what the journal knows to be committed, before taking part."""
        self._node._SyncObj__applyLogEntries()

    def receive(self, peer: ControllerId, message: Message) -> None:
        """A checked message of a connected peer; `tick` afterwards."""
        self._node._SyncObj__onMessageReceived(self._peers[peer], message)

    def connected(self, peer: ControllerId) -> None:
        """A link stands, perhaps in place of an older one."""
        self._snapshots.cancelTransmisstion(self._peers[peer])
        self._node._SyncObj__onNodeConnected(self._peers[peer])
        self._node.peer_found()

    def disconnected(self, peer: ControllerId) -> None:
        self._node._SyncObj__onNodeDisconnected(self._peers[peer])
        self._node.leader_lost(self._peers[peer])

    def append(self, payload: bytes) -> int:
        """Append one command to the log of this leader; its index. `is_leading` must hold."""
        assert self.is_leading
        entry = COMMAND_ENTRY + payload
        self._node._applyCommand(entry, None)
        # At once and not in the next tick: in between, leadership could change and the library
        # would forward the command to the new leader, where its outcome cannot be followed.
        self._node._checkCommandsToApply()
        last = self.journal[-1]
        assert last[0] is entry, "the leader appends at once"
        self._want_sync()
        return last[1]

    def tick(self) -> None:
        """Elect, commit, apply, send. After messages, after `append`, and at `next_tick_s`."""
        if not self._peers and not self.journal.is_durable:
            self._want_sync()  # alone, the own copy is the majority: it must be on disk first
            return
        self._node.doTick(0.0)
        self._pace_candidate()
        self._let_go()  # a compaction made everything durable by itself
        if not self._peers:
            self._want_sync()

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
        self._let_go()
        self._want_sync()

    def transfer_leadership(self) -> None:
        """Ask the most advanced follower to take over; nothing if none has everything."""
        self._node.transferLeadership()

    def compact(self) -> None:
        """Snapshot and cut the journal now."""
        self._node.compact()

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
    def term(self) -> int:
        return int(self._node.raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        return int(self._node.raftCommitIndex)

    @property
    def applied_index(self) -> int:
        return int(self._node.raftLastApplied)

    # -- called by the library's side --------------------------------------------------------------

    def hold(self, peer: ControllerId, message: Message) -> bool:
        """Send a message once all changes up to now are durable; False if it cannot be sent."""
        if not is_sendable(message):
            return False
        match message["type"]:
            case "next_node_idx":
                message["term"] = self.term
            case "request_vote":
                message["transfer"] = self._node.is_transfer(message["term"])
        self._held.append((self.journal.appended, peer, message))
        self._let_go()
        self._want_sync()
        return True

    def _let_go(self) -> None:
        """Send what waited for changes that are durable by now, in order."""
        while self._held and self._held[0][0] <= self.journal.durable:
            _, peer, message = self._held.popleft()
            self._shell.send(peer, message)

    def _want_sync(self) -> None:
        if not self.journal.is_durable:
            self._shell.wants_sync()

    def _install_snapshot(self, snapshot: Snapshot) -> None:
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
