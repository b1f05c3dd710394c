"""In-memory twin of the replicated log, for tests and simulations: one process, no failure modes of
its own.

`MemoryLog` is the log that its `MemoryQuorum` nodes share. A command is applied by all attached
nodes in the call that proposes it; a detached node keeps its old state until it is attached again.
"""

import orjson

from paceline.errors import CommandRefusedError, DeadlineError, NotLeaderError, OutcomeUnknownError
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


class MemoryLog:
    """The commands so far and who leads."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.term = 0
        self.leader: ControllerId | None = None
        self.nodes: dict[ControllerId, MemoryQuorum] = {}

    def elect(self, leader: ControllerId | None) -> None:
        """Make a node leader in a new term (None: nobody leads)."""
        previous, self.leader = self.leader, leader
        self.term += 1
        for controller_id in (previous, leader):
            node = self.nodes.get(controller_id) if controller_id is not None else None
            if node is not None and node.is_running:
                node.catch_up()
                node.announce()

    def append(self, command: Command) -> None:
        self.entries.append(orjson.dumps(command))
        for node in self.nodes.values():
            if node.is_running and node.is_attached:
                node.catch_up()


class MemoryQuorum:
    """One node. Implements the `Quorum` of `quorum.py`."""

    def __init__(
        self,
        machine: StateMachine,
        *,
        controller_id: ControllerId,
        log: MemoryLog | None = None,
    ) -> None:
        """Without `log` the node is alone and leads from `start` on."""
        self.machine = machine
        self.controller_id = controller_id
        self.is_running = False
        self.is_attached = True
        """False: cut off; it neither applies nor proposes."""
        self.loses_answers = False
        """True: proposals are applied, but their callers learn nothing."""
        self._is_alone = log is None
        self._log = MemoryLog() if log is None else log
        self._log.nodes[controller_id] = self
        self._applied = 0
        self._on_applied: list[AppliedCallback] = []
        self._on_restored: list[RestoredCallback] = []
        self._on_leadership: list[LeadershipCallback] = []
        self._last_result: Result = {}

    async def start(self) -> None:
        self.is_running = True
        self.catch_up()
        if self._is_alone:
            self._log.elect(self.controller_id)

    async def stop(self) -> None:
        self.is_running = False
        if self._log.leader == self.controller_id:
            self._log.elect(None)

    async def propose(self, command: Command, *, timeout_ms: int) -> Result:
        self._require_leader()
        if not self.is_attached:
            raise OutcomeUnknownError(f"no majority within {timeout_ms} ms")
        self._log.append(command)
        result = self._last_result
        if self.loses_answers:
            raise OutcomeUnknownError("the answer was lost")
        return result

    async def read_barrier(self, *, timeout_ms: int) -> None:
        self._require_leader()
        if not self.is_attached:
            raise DeadlineError(f"no majority within {timeout_ms} ms")

    def status(self) -> QuorumStatus:
        return QuorumStatus(
            is_leader=self._is_leader(),
            leader=self._log.leader,
            term=self._log.term,
            commit_index=len(self._log.entries),
            applied_index=self._applied,
            log_length=len(self._log.entries),
            has_caught_up=self.is_running,
        )

    async def transfer(self, to: ControllerId | None, *, timeout_ms: int) -> ControllerId:
        self._require_leader()
        if to is None or to == self.controller_id:
            raise CommandRefusedError("nobody else is there", reason="TRANSFER_REFUSED")
        self._log.elect(to)
        return to

    async def change_members(self, wish: MembersWish, *, timeout_ms: int) -> int:
        self._require_leader()
        raise CommandRefusedError("the members of this quorum are fixed", reason="MEMBERS_REFUSED")

    def on_members(self, callback: MembersCallback) -> None:
        """Its members never change."""

    def on_refused(self, callback: RefusedCallback) -> None:
        """It has no links."""

    def on_applied(self, callback: AppliedCallback) -> None:
        self._on_applied.append(callback)

    def on_restored(self, callback: RestoredCallback) -> None:
        self._on_restored.append(callback)

    def on_leadership(self, callback: LeadershipCallback) -> None:
        self._on_leadership.append(callback)

    # -- called by the log ----------------------------------------------------------------------

    def catch_up(self) -> None:
        """Apply what others have appended."""
        while self._applied < len(self._log.entries):
            command = orjson.loads(self._log.entries[self._applied])
            self._applied += 1
            result, events = self.machine.apply(command, index=self._applied)
            self._last_result = result
            for callback in self._on_applied:
                callback(command, result, events, self._applied)

    def announce(self) -> None:
        for callback in self._on_leadership:
            callback(self._is_leader(), self._log.term)

    def restore(self, snapshot: bytes) -> None:
        """Replace the machine's state, as a catch-up by snapshot would."""
        self.machine.restore(snapshot)
        for callback in self._on_restored:
            callback(self._applied)

    def _is_leader(self) -> bool:
        return self.is_running and self._log.leader == self.controller_id

    def _require_leader(self) -> None:
        if not self._is_leader():
            leader = self._log.leader
            raise NotLeaderError(f"{self.controller_id} does not lead", leader=leader)
