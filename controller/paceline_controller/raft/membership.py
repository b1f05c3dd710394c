"""The members that count: generations of the member list, put into the library's node.

The library's own membership changes are off: their guard is dead code and their entries are
pickles. Here the list in force is the last one in this node's log (`members.py`); after every
change of the log the library's sets of nodes are made to say the same: its "other nodes" are the
other voters, its "read-only nodes", which it sends to and never counts, are the learners (R18).
Part of `SafeNode`.
"""

from collections.abc import Callable, Iterable
from typing import Any

from pysyncobj.node import Node

from paceline.types import ControllerId
from paceline_controller.raft.elections import ElectionRules
from paceline_controller.raft.library import PeerNode, RaftInvariantError
from paceline_controller.raft.log.entries import MEMBERS_ENTRY, Entry
from paceline_controller.raft.members import MemberLog, Members, configured, read_change


class MembershipRules(ElectionRules):
    """The membership part of the overrides."""

    _SyncObj__selfNode: Node
    _SyncObj__readonlyNodes: set[Node]
    _SyncObj__raftNextIndex: dict[Any, int]
    _SyncObj__raftMatchIndex: dict[Any, int]
    _SyncObj__newAppendEntriesTime: float

    def prepare_members(
        self,
        *,
        own: ControllerId,
        peers: Iterable[ControllerId],
        forget_peer: Callable[[Node], None],
        members_applied: Callable[[Members, str, int], None],
    ) -> None:
        """Set before the library's constructor runs."""
        self._own = own
        self._configured = configured([own, *peers])
        self.member_log = MemberLog(self._configured)
        self._in_force = self._configured
        self._forget_peer = forget_peer
        self._members_applied = members_applied

    @property
    def is_voter(self) -> bool:
        """Whether the generation in force counts this very store."""
        member = self.member_log.latest.voters.get(self._own)
        return member is not None and self.gate.is_own_store(member.store)

    def is_counted(self, node: Node) -> bool:
        return node in self._SyncObj__otherNodes

    def is_sent_to(self, node: Node) -> bool:
        return node in self._SyncObj__otherNodes or node in self._SyncObj__readonlyNodes

    # -- the log changed ---------------------------------------------------------------------------

    def recover_members(
        self, base: Members | None, entries: Iterable[Entry], *, index: int = 0
    ) -> None:
        """After `index` the list is `base` (None: as configured); then come these entries."""
        self.member_log.begin_with(base or self._configured, index)
        self.note_entries(entries)

    def note_entries(self, entries: Iterable[Entry]) -> None:
        """These entries were appended."""
        for command, index, _ in entries:
            if command[:1] == MEMBERS_ENTRY and index > self.member_log.latest_index:
                members, _proposal = read_change(command[1:])
                if not self.member_log.add(index, members):
                    raise RaftInvariantError(
                        f"entry {index}: generation {members.generation} is no step from"
                        f" {self.member_log.latest.generation}"
                    )
        self._enforce()

    def note_truncated(self, index: int) -> None:
        self.member_log.forget_from(index)
        self._enforce()

    def apply_members(self, payload: bytes, index: int) -> None:
        """A generation is committed."""
        members, proposal = read_change(payload)
        self._members_applied(members, proposal, index)

    # -- inside ------------------------------------------------------------------------------------

    def _enforce(self) -> None:
        latest = self.member_log.latest
        if latest is self._in_force:
            return
        self._in_force = latest
        member = latest.find(self._own)
        if member is not None and latest.generation > 0:
            self.gate.admitted(member.store)
        before = self._SyncObj__otherNodes | self._SyncObj__readonlyNodes
        self._SyncObj__otherNodes = {PeerNode(n) for n in latest.voters if n != self._own}
        self._SyncObj__readonlyNodes = {PeerNode(n) for n in latest.learners if n != self._own}
        now = self._SyncObj__otherNodes | self._SyncObj__readonlyNodes
        for node in sorted(before - now, key=lambda node: node.id):
            self._SyncObj__raftNextIndex.pop(node, None)
            self._SyncObj__raftMatchIndex.pop(node, None)
            self._SyncObj__lastResponseTime.pop(node, None)
            self._forget_peer(node)
        for node in now - before:
            self._SyncObj__raftNextIndex[node] = self._SyncObj__getCurrentLogIndex() + 1
            self._SyncObj__raftMatchIndex[node] = 0
            self._SyncObj__lastResponseTime[node] = self._now()
        self._SyncObj__newAppendEntriesTime = 0.0  # who is new hears of it at once
