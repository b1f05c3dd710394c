"""The port between the controller and its replicated log.

`RaftQuorum` (`paceline_controller.raft.host`) implements it on PySyncObj, `MemoryQuorum`
(`paceline_controller.quorum_memory`) is the single-node twin for tests. Nothing outside `raft/`
knows PySyncObj. Everything runs on one event loop; callbacks are called on it, synchronously, in
apply order, and must not raise or block.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from paceline.errors import PacelineError
from paceline.types import ControllerId

# Commands, results and events are JSON objects: they go through the journal as canonical JSON.
Command: TypeAlias = dict[str, Any]
Result: TypeAlias = dict[str, Any]
Event: TypeAlias = dict[str, Any]

AppliedCallback: TypeAlias = Callable[[Command, Result, list[Event], int], None]
"""(command, result, events, index), after the machine of this node has applied the command."""

RestoredCallback: TypeAlias = Callable[[int], None]
"""(index), after the machine of this node was replaced by a snapshot, at start or by catch-up."""

LeadershipCallback: TypeAlias = Callable[[bool, int], None]
"""(is_leader, term). True only once the log of this node is applied up to its own term, so that
reading the machine right then shows every earlier committed command."""


MembersCallback: TypeAlias = Callable[[], None]
RefusedCallback: TypeAlias = Callable[[str, PacelineError], None]
"""An address (empty: nobody knows it), and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatus:
    """What this node knows of the quorum; hints, except `applied_index`."""

    is_leader: bool
    leader: ControllerId | None
    term: int
    commit_index: int
    applied_index: int
    log_length: int
    """Entries in the journal since the last snapshot."""
    members: "QuorumMembers | None" = None
    sync_count: int = 0
    sync_p50_ms: int = 0
    sync_p99_ms: int = 0
    sync_max_ms: int = 0
    """Of the journal's last fsyncs."""
    snapshot_age_ms: int | None = None
    """Since the last snapshot of this process; None: it has made or taken none."""
    is_handing_over: bool = False
    leader_silent_ms: int | None = None
    """Since the leader was heard; 0 on the leader, None: none was heard since the start."""
    heartbeat_gap_ms: int = 0
    """The longest between two signs of life of the leader, on the leader of a follower, lately."""
    election_timeout_ms: int = 0
    """The shortest silence after which a leader is missed now; it follows `heartbeat_gap_ms`."""
    waiting_count: int = 0
    """Proposals of this node that are not applied yet."""
    has_caught_up: bool = False
    """It has applied all that was committed when it first heard of a leader since its start, and an
    entry of that leader's term. Before that, what it recovered from its disk may be far behind what
    it once knew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumMember:
    """One controller of the member list. What only the leader knows is None elsewhere."""

    controller_id: ControllerId
    raft: str
    client: str
    is_voter: bool
    is_linked: bool
    lag_entries: int | None = None
    silent_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumMembers:
    """The generation of the member list in force on this node."""

    generation: int
    committed_generation: int
    members: tuple[QuorumMember, ...]
    leaving: ControllerId | None = None
    waits_for: str = ""
    """What a change that has begun waits for, as the leader sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersWish:
    """What an operator wants of the member list: add, remove, or replace one by another."""

    add: ControllerId | None = None
    raft: str = ""
    client: str = ""
    remove: ControllerId | None = None
    generation: int | None = None
    """Of the list that it is judged on; another one in force refuses it, unless that one has come
    to what is wished. So it may be asked for again. None: of whatever list there is."""


class StateMachine(Protocol):
    """What the quorum replicates. Total and deterministic (INV-10)."""

    def apply(self, command: Command, *, index: int) -> tuple[Result, list[Event]]:
        """Never raises: an invalid or late command is a result with "ok": false."""
        ...

    def snapshot(self) -> bytes:
        """Canonical JSON of the whole state, with a format version."""
        ...

    def restore(self, snapshot: bytes) -> None:
        """Replace the state. Raises CorruptLogError on bytes that are no snapshot of ours."""
        ...

    def digest(self) -> str:
        """SHA-256 (hex) of `snapshot()`: equal on all nodes at equal applied index."""
        ...

    def digest_of_part(self, number: int) -> str:
        """As `digest`, of a part of the state: of all parts with numbers that follow each other."""
        ...


class Quorum(Protocol):
    """One node of the replicated log."""

    async def start(self) -> None:
        """Recover, apply the durable log as far as known committed, begin to take part.

        Raises StorageError (damaged journal, folder of another node) before anything was sent.
        """
        ...

    async def stop(self) -> None:
        """Hand leadership over if possible, stop taking part, close files. Idempotent.

        Proposals still waiting end with OutcomeUnknownError.
        """
        ...

    async def propose(self, command: Command, *, timeout_ms: int) -> Result:
        """Replicate one command; the result of its apply on this node.

        Raises NotLeaderError (details: `leader`, a ControllerId or None) when certainly nothing was
        appended, OutcomeUnknownError when the command may or may not still be applied. The
        (session, sequence) inside the command makes a repetition safe.
        """
        ...

    async def read_barrier(self, *, timeout_ms: int) -> None:
        """Return once this node has applied everything committed before the call.

        Coalesced: callers that arrive while a barrier is in flight share the next one. Raises
        NotLeaderError, or DeadlineError when no majority answered in time.
        """
        ...

    async def transfer(self, to: ControllerId | None, *, timeout_ms: int) -> ControllerId:
        """Let another controller lead (None: the most advanced); who leads now.

        Raises NotLeaderError, CommandRefusedError (not possible, nothing changed), or
        OutcomeUnknownError (asked for, and not seen in time).
        """
        ...

    async def change_members(self, wish: MembersWish, *, timeout_ms: int) -> int:
        """Begin a change of the member list; the committed generation that records it.

        The rest (catching up, becoming a voter, leaving) goes on by itself, whoever leads. Raises
        NotLeaderError, CommandRefusedError, OutcomeUnknownError.
        """
        ...

    def status(self) -> QuorumStatus: ...

    def on_members(self, callback: MembersCallback) -> None:
        """Register before `start`. Called when another generation is committed."""
        ...

    def on_refused(self, callback: RefusedCallback) -> None:
        """Register before `start`. Called when a peer has not shown that it is a controller of this
        cluster."""
        ...

    def on_applied(self, callback: AppliedCallback) -> None:
        """Register before `start`."""
        ...

    def on_restored(self, callback: RestoredCallback) -> None:
        """Register before `start`."""
        ...

    def on_leadership(self, callback: LeadershipCallback) -> None:
        """Register before `start`. Called on every change, and on a new term won by this node."""
        ...
