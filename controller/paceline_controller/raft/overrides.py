"""Corrections of PySyncObj, by the private names that they replace.

`make_node_class` mixes `SafeNode` into the library's SyncObj. The names with `_SyncObj__` are the
library's own private ones; they hold for version 0.3.17 only (`library.py` checks). Each fault is
described in docs/protocol/raft.md, each repair has a test that fails without it.

The library's own membership changes are off: their guard is dead code and their entries are
pickles. Here the list in force is the last one in this node's log (`members.py`); after every
change of the log the library's sets of nodes are made to say the same: its "other nodes" are the
other voters, its "read-only nodes", which it sends to and never counts, are the learners (R18).

A message arrives as the library's dictionary, already checked by `frames.py`. All of this runs on
one event loop, without a suspension inside.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pysyncobj.node import Node

from paceline.types import ControllerId
from paceline_controller.raft.elections import ElectionRules
from paceline_controller.raft.library import PeerNode, RaftInvariantError
from paceline_controller.raft.log.entries import (
    COMMAND_ENTRY,
    MEMBERS_ENTRY,
    NO_OP_ENTRY,
    Entry,
)
from paceline_controller.raft.log.snapshot import Snapshot, SnapshotStore
from paceline_controller.raft.members import MemberLog, Members, configured, read_change
from paceline_controller.raft.peers.frames import Message
from paceline_controller.raft.settings import RaftSettings


class SafeNode(ElectionRules):
    """Overrides of the library's node; mixed in before it."""

    # What the library holds, as far as it is read or written here.
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__sendAppendEntries: Callable[[], None]
    _SyncObj__selfNode: Node
    _SyncObj__readonlyNodes: set[Node]
    _SyncObj__raftNextIndex: dict[Any, int]
    _SyncObj__raftMatchIndex: dict[Any, int]
    _SyncObj__newAppendEntriesTime: float

    def prepare(
        self,
        *,
        settings: RaftSettings,
        snapshots: SnapshotStore,
        apply: Callable[[bytes, int], None],
        take_snapshot: Callable[[], bytes],
        wants_snapshot: Callable[[], None],
        install_snapshot: Callable[[Snapshot], None],
    ) -> None:
        """Set before the library's constructor runs."""
        self._settings = settings
        self._snapshots = snapshots
        self._apply = apply
        self._take_snapshot = take_snapshot
        self._wants_snapshot = wants_snapshot
        self._is_compacting = False
        self._install_snapshot = install_snapshot
        self._keeps_tail = False
        self.first_heard: tuple[int, int] | None = None
        """Commit index, as it said it, and term of the leader that this node heard first."""
        self._installed_index = 0
        self._early: dict[Node, tuple[int, int]] = {}
        """Of each follower: term and index of what it acknowledged before our own copy counted."""

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

    # -- messages ----------------------------------------------------------------------------------

    def _SyncObj__onMessageReceived(self, node: Node, message: Message) -> None:  # noqa: N802
        if self.handle_election_message(node, message):
            return
        match message["type"]:
            case "request_vote" if self.ignores_vote_request(node, message):
                return
            case "response_vote" if self.is_repeated_vote(node, message):
                return
            case "next_node_idx":
                self._take_answer(node, message)
                return
            case "append_entries":
                self._take_append(node, message)
                return
        self._library_receives(node, message)

    def _library_receives(self, node: Node, message: Message) -> None:
        super()._SyncObj__onMessageReceived(node, message)  # type: ignore[misc]

    def _take_answer(self, node: Node, message: Message) -> None:
        """An answer counts only for the leader of its term (the library's has no term).

        A leader that ended while its disk was slow has started again without what it had sent, and
        is told now that others hold it: in the same term, but it leads no more.
        """
        is_of_term = message["term"] == self._SyncObj__raftCurrentTerm
        if not is_of_term or not self._isLeader() or not self.is_sent_to(node):
            return
        if message["next_node_idx"] > self._SyncObj__raftLog.last_index + 1 and message["success"]:
            raise RaftInvariantError(f"{node.id} acknowledges entries that do not exist: {message}")
        next_index = self._SyncObj__raftNextIndex.get(node)
        # A follower whose log is longer asks to go on behind our end: the library cannot.
        message["next_node_idx"] = min(
            message["next_node_idx"], self._SyncObj__raftLog.last_index + 1
        )
        before = self._SyncObj__lastResponseTime.get(node)
        counted = self._counted(node, message)
        self._library_receives(node, counted)
        self.answer_heard(before=before)
        if counted is not message and next_index is not None:
            self._SyncObj__raftNextIndex[node] = next_index  # what it has is not sent again
        if message["reset"] and self._SyncObj__raftNextIndex.get(node) != next_index:
            self._SyncObj__newAppendEntriesTime = 0.0  # do not wait a heartbeat with going back

    def _counted(self, node: Node, message: Message) -> Message:
        """An answer counts no further than this leader's own copy is durable; the rest later."""
        durable, acknowledged = self._SyncObj__raftLog.durable_index, message["next_node_idx"] - 1
        if not message["success"] or acknowledged <= durable:
            return message
        term = self._SyncObj__raftCurrentTerm
        self._early[node] = max((term, acknowledged), self._early.get(node, (0, 0)))
        return message | {"next_node_idx": durable + 1}

    def count_early(self) -> None:
        """This node's journal was synced: answers that came before count, up to there."""
        if not self._isLeader():
            self._early.clear()
            return
        durable, matched = self._SyncObj__raftLog.durable_index, self._SyncObj__raftMatchIndex
        for node, (term, acknowledged) in self._early.items():
            if term == self._SyncObj__raftCurrentTerm and self.is_sent_to(node):
                matched[node] = max(matched[node], min(acknowledged, durable))

    def _take_append(self, node: Node, message: Message) -> None:
        if message["term"] < self._SyncObj__raftCurrentTerm:
            self.tell_newer_term(node)
            return
        if message["term"] == self._SyncObj__raftCurrentTerm and self._isLeader():
            raise RaftInvariantError(f"two leaders in term {message['term']}: also {node.id}")
        if self.first_heard is None:
            self.first_heard = message["commit_index"], message["term"]
        if "prevLogIdx" in message:
            message = self._without_known_entries(message)
        else:
            message = self._without_commit(message)
        self._library_receives(node, message)
        self._keeps_tail = False
        self.note_entries(self._taken(message.get("entries", ())))
        self.leader_heard()
        self._note_catching_up()

    def _without_known_entries(self, message: Message) -> Message:
        """Raft's rule: only a conflicting entry truncates. The library truncates all that follows.

        Entries that the log already holds are taken out of the message; if nothing is left, the
        tail behind them stays (a late or repeated append must not erase acknowledged entries).
        """
        log = self._SyncObj__raftLog
        previous, entries = message["prevLogIdx"], message["entries"]
        end = previous + len(entries)
        held = log.entry(previous)
        if held is None or held[2] != message["prevLogTerm"]:
            return message
        known = 0
        while known < len(entries) and self._holds(entries[known]):
            known += 1
        self._keeps_tail = known == len(entries)
        if known:
            previous, previous_term = entries[known - 1][1:]
            message = message | {
                "prevLogIdx": previous,
                "prevLogTerm": previous_term,
                "entries": entries[known:],
            }
        # What lies behind `end` is not covered by this message, so it may not commit it.
        return message | {"commit_index": min(message["commit_index"], end)}

    def _taken(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Those of a message that stand in the log now (not if it refused the message)."""
        return entries if entries and self._holds(entries[-1]) else ()

    def _holds(self, entry: Entry) -> bool:
        held = self._SyncObj__raftLog.entry(entry[1])
        return held is not None and held[2] == entry[2]

    def _without_commit(self, message: Message) -> Message:
        """F1: a snapshot part was matched with no entry of ours, so it commits nothing."""
        return message | {"commit_index": min(message["commit_index"], self.commit_index)}

    # -- the log -----------------------------------------------------------------------------------

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    def _SyncObj__deleteEntriesFrom(self, fromIDx: int) -> None:  # noqa: N802, N803
        if self._keeps_tail:
            return
        if fromIDx <= self._SyncObj__raftCommitIndex:
            raise RaftInvariantError(
                f"entry {fromIDx} contradicts the leader but is committed"
                f" up to {self._SyncObj__raftCommitIndex}"
            )
        log = self._SyncObj__raftLog
        log.deleteEntriesFrom(fromIDx - log.first_index)
        self.note_truncated(fromIDx)

    def _SyncObj__sendNextNodeIdx(  # noqa: N802
        self,
        node: Node,
        reset: bool = False,  # noqa: FBT001, FBT002 - the library's signature
        nextNodeIdx: int | None = None,  # noqa: N803
        success: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        if nextNodeIdx is None and success:
            # After a snapshot: the library would acknowledge our whole log, matched or not.
            nextNodeIdx = self._installed_index + 1  # noqa: N806
        elif nextNodeIdx is not None and reset:
            nextNodeIdx = self._start_of_conflict(nextNodeIdx)  # noqa: N806
        super()._SyncObj__sendNextNodeIdx(  # type: ignore[misc]
            node, reset=reset, nextNodeIdx=nextNodeIdx, success=success
        )

    def _start_of_conflict(self, index: int) -> int:
        """First index of the term that conflicts at `index`; the library goes back one by one."""
        log = self._SyncObj__raftLog
        conflicting = log.entry(index)
        lowest = max(self._SyncObj__raftCommitIndex + 1, log.first_index + 1)
        while index > lowest and conflicting is not None:
            before = log.entry(index - 1)
            if before is None or before[2] != conflicting[2]:
                break
            index -= 1
        return index

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:  # noqa: N802
        """The one replicated method: bytes in, nothing pickled, no table of methods."""
        index = self._SyncObj__raftLastApplied + 1
        if command == NO_OP_ENTRY:
            return
        if command[:1] == MEMBERS_ENTRY:
            self.apply_members(command[1:], index)
            return
        if command[:1] != COMMAND_ENTRY:
            raise RaftInvariantError(f"entry {index} is of unknown type {command[:1].hex()!r}")
        self._apply(command[1:], index)

    # -- members -----------------------------------------------------------------------------------

    def is_sent_to(self, node: Node) -> bool:
        return node in self._SyncObj__otherNodes or node in self._SyncObj__readonlyNodes

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

    # -- snapshots ---------------------------------------------------------------------------------

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        log, settings = self._SyncObj__raftLog, self._settings
        is_due = len(log) > settings.compact_after_entries + settings.retain_entries
        if is_due and not self._is_compacting:
            self._is_compacting = True
            self._wants_snapshot()

    async def compact(self) -> None:
        """Snapshot, durable, then cut the journal: a kill in between leaves both (F2)."""
        snapshot = self._next_snapshot()
        if snapshot is not None and await self._snapshots.save_later(snapshot):
            log = self._SyncObj__raftLog
            start = max(log.first_index, snapshot.previous[1] - self._settings.retain_entries)
            if start > log.first_index:
                log.cut_before(start)
        self._is_compacting = False

    def _next_snapshot(self) -> Snapshot | None:
        """What is applied now; None if the entries that it needs are not in the log."""
        log = self._SyncObj__raftLog
        last = log.entry(self._SyncObj__raftLastApplied)
        previous = log.entry(self._SyncObj__raftLastApplied - 1)
        if last is None or previous is None:
            return None
        return Snapshot(
            last=last,
            previous=previous,
            machine=self._take_snapshot(),
            members=self.member_log.at(last[1]),
        )

    def load_snapshot(self) -> None:
        """At start: put machine, journal and the library's positions in line with the snapshot.

        The journal may be longer than the snapshot (killed between snapshot and cut): it is kept.
        It may lack the snapshot's last entry (killed while installing one): then nothing in it
        behind that index can be committed, and it starts again from the snapshot.
        """
        log = self._SyncObj__raftLog
        snapshot = self._snapshots.load()
        if snapshot is None:
            if log.first_index > 1:
                raise RaftInvariantError(f"journal from {log.first_index} without a snapshot")
            self.recover_members(None, log[:])
            return
        if log.first_index > snapshot.previous[1]:
            raise RaftInvariantError(
                f"journal from {log.first_index}, but the snapshot ends at {snapshot.index}"
            )
        self._adopt(snapshot)

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: FBT001, N802, N803
        """Install the snapshot that a leader sent."""
        assert clearJournal, "there is no dump file of the library"
        snapshot, self._snapshots.received = self._snapshots.received, None
        assert snapshot is not None
        self._installed_index = snapshot.index
        if snapshot.index <= self._SyncObj__raftLastApplied:
            return  # late: this node already has all of it, and acknowledges just that
        self._snapshots.save(snapshot)
        self._adopt(snapshot)

    def _adopt(self, snapshot: Snapshot) -> None:
        log = self._SyncObj__raftLog
        commit_index = max(self._SyncObj__raftCommitIndex, snapshot.index)
        if not self._holds(snapshot.last):
            if self._SyncObj__raftCommitIndex > snapshot.index:
                raise RaftInvariantError(f"snapshot at {snapshot.index} contradicts the journal")
            log.start_from([snapshot.previous, snapshot.last], commit_index=commit_index)
        self._install_snapshot(snapshot)
        self._SyncObj__raftLastApplied = snapshot.index
        self._SyncObj__raftCommitIndex = commit_index
        log.setRaftCommitIndex(commit_index)
        behind = log[max(0, snapshot.index + 1 - log.first_index) :]
        self.recover_members(snapshot.members, behind, index=snapshot.index)

    def _note_catching_up(self) -> None:
        """A new member votes once it has applied up to an entry of its leader's own term."""
        if self.gate.may_vote or self._SyncObj__raftLastApplied < self.commit_index:
            return
        committed = self._SyncObj__raftLog.entry(self.commit_index)
        if committed is not None and committed[2] == self._SyncObj__raftCurrentTerm:
            self.gate.caught_up()


def make_node_class(library: Any) -> type[Any]:
    """SafeNode on top of one private copy of the library."""

    class Node(SafeNode, library.SyncObj):  # type: ignore[misc]
        """The library's node with our overrides."""

        def __init__(self, configure: Callable[[Any], None], *args: Any, **options: Any) -> None:
            configure(self)  # the library's constructor already calls overridden methods
            super().__init__(*args, **options)

    return Node
