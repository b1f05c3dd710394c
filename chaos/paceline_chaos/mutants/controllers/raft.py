"""Rules of the controllers' replicated log, taken out: for the Raft bed (INV-10, R22, R38).

Some are the library's own, which it keeps inside of long functions: those change its source, in the
private copy that each node loads.
"""

import importlib.util
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import SimpleNamespace
from typing import Any, NoReturn

from paceline.errors import StorageError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.ports import File
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment
from paceline_controller.raft import library
from paceline_controller.raft.core import RaftCore
from paceline_controller.raft.elections import ElectionRules
from paceline_controller.raft.host import RaftQuorum
from paceline_controller.raft.log.entries import Entry
from paceline_controller.raft.log.journal import Journal, SyncTicket
from paceline_controller.raft.log.snapshot import Snapshot, SnapshotStore, encode_snapshot
from paceline_controller.raft.overrides import SafeNode
from paceline_controller.raft.peers.frames import Message, is_sendable
from paceline_controller.state import Machine

_LOST = frozenset({"RAFT-lost", "RAFT-same", "RAFT-order"})
"""Something acknowledged is gone or elsewhere, or two lists are."""
_STOPS = frozenset({"CODE"})
"""Invariants of the product that see the damage first, and stop the node."""


class _ChangedSource(SourceFileLoader):
    """Loads a module from its file, in which each first text is replaced by the second."""

    changes: tuple[tuple[str, str], ...] = ()

    def get_data(self, path: str) -> bytes:
        source = super().get_data(path).decode()
        for before, after in self.changes:
            assert source.count(before) == 1, f"the library has no single {before!r}"
            source = source.replace(before, after)
        return source.encode()

    def path_stats(self, path: str) -> NoReturn:
        raise OSError  # else compiled code of the unchanged source would be taken


def _library_with(*changes: tuple[str, str]) -> Patch:
    """Each node loads a private copy of the library; from now on with these changes."""

    def find_spec(name: str) -> ModuleSpec:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        loader = _ChangedSource(name, spec.origin)
        loader.changes = changes
        changed = importlib.util.spec_from_file_location(name, spec.origin, loader=loader)
        assert changed is not None
        return changed

    util = SimpleNamespace(find_spec=find_spec, module_from_spec=importlib.util.module_from_spec)
    return library, "importlib", SimpleNamespace(util=util)


def _speaks_before_the_disk() -> list[Patch]:
    """Messages leave before what they promise is durable."""

    def hold(node: RaftCore, peer: Any, message: Message) -> bool:
        if not is_sendable(message):
            return False
        message.setdefault("transfer", False)
        message.setdefault("term", node.term)
        node._shell.send(peer, message)
        node._want_sync()
        return True

    return [(RaftCore, "hold", hold)]


def _vote_in_memory() -> list[Patch]:
    """Term and vote are never written."""

    def set_term(journal: Journal, term: int, voted_for: str | None) -> None:
        journal._term, journal._voted_for = term, voted_for

    return [(Journal, "setCurrentTerm", set_term)]


def _sync_counts_all() -> list[Patch]:
    """A sync that ends counts for what was appended while it ran."""
    finish = Journal.finish_sync

    def finish_all(journal: Journal, ticket: SyncTicket) -> None:
        finish(journal, ticket)
        journal.durable = journal.appended
        journal._durable_index = journal.last_index

    return [(Journal, "finish_sync", finish_all)]


def _entries_acknowledged_ahead() -> list[Patch]:
    """A follower's answer goes ahead of the sync of the entries that it acknowledges."""
    return [(Journal, "durable_index", property(lambda journal: journal.last_index))]


def _term_told_ahead() -> list[Patch]:
    """Answers and heartbeats of a term go ahead of the sync of the term."""
    return [(Journal, "is_term_durable", property(lambda journal: True))]


def _failed_sync_counts() -> list[Patch]:
    """After a failed sync the node goes on, and believes the next one (R22)."""

    async def sync(disk: MemoryDisk, file: File) -> None:
        try:
            await sync_once(disk, file)
        except StorageError:
            await sync_once(disk, file)

    sync_once = MemoryDisk.sync
    return [(MemoryDisk, "sync", sync)]


def _old_terms_by_count() -> list[Patch]:
    """A leader commits entries of earlier terms as soon as a majority has them."""
    change = ("if commitTerm != self.__raftCurrentTerm:", "if False:")
    return [_library_with(change)]


def _any_log_is_voted_for() -> list[Patch]:
    """Candidates are asked neither for their last term nor for their length."""

    def answer(rules: ElectionRules, node: Any, message: Message) -> None:
        newest = {"last_log_term": 1 << 60, "last_log_index": 1 << 60}
        answer_pre_vote(rules, node, message | newest)

    answer_pre_vote = ElectionRules._answer_pre_vote
    change = ("lastLogTerm = message['last_log_term']", "lastLogTerm = 1 << 60")
    return [
        _library_with(change),
        (ElectionRules, "_answer_pre_vote", answer),
    ]


def _votes_for_all() -> list[Patch]:
    """A node that has voted votes again, for who asks next."""

    def set_term(journal: Journal, term: int, voted_for: str | None) -> None:
        if (term, voted_for) != (journal._term, journal._voted_for):
            journal._voted_for = None
            set_current_term(journal, term, voted_for)

    set_current_term = Journal.setCurrentTerm
    change = ("if self.__votedForNodeId is not None:", "if False:")
    return [
        _library_with(change),
        (Journal, "setCurrentTerm", set_term),
    ]


def _late_append_cuts() -> list[Patch]:
    """An append cuts whatever follows it, committed or not, and nothing stops the node."""

    def delete(node: SafeNode, index: int) -> None:
        log = node._SyncObj__raftLog
        log.deleteEntriesFrom(index - log.first_index)

    return [
        (SafeNode, "_without_known_entries", lambda node, message: message),
        (SafeNode, "_SyncObj__deleteEntriesFrom", delete),
    ]


def _part_commits() -> list[Patch]:
    """A part of a snapshot commits the follower's own tail (F1)."""
    return [(SafeNode, "_without_commit", lambda node, message: message)]


def _snapshot_without_term() -> list[Patch]:
    """An entry at the right index is taken for the right entry."""

    def holds(node: SafeNode, entry: Entry) -> bool:
        return node._SyncObj__raftLog.entry(entry[1]) is not None

    return [(SafeNode, "_holds", holds)]


def _start_drops_journal() -> list[Patch]:
    """A start from a snapshot throws away what the journal holds behind it (F2)."""
    load_snapshot = SafeNode.load_snapshot

    def load(node: SafeNode) -> None:
        def holds_nothing(entry: Entry) -> bool:
            return False

        node._holds = holds_nothing  # type: ignore[method-assign]
        load_snapshot(node)
        del node._holds

    return [(SafeNode, "load_snapshot", load)]


def _snapshot_not_synced() -> list[Patch]:
    """The journal is cut for a snapshot that is not on the disk yet."""

    async def save(store: SnapshotStore, snapshot: Snapshot) -> bool:
        content, disk, temporary = encode_snapshot(snapshot), store._disk, f"{store._path}.new"
        if disk.exists(temporary):
            disk.unlink(temporary)
        file = disk.open(temporary, create=True)
        disk.writev(file, [content], 0)
        file.close()
        disk.rename(temporary, store._path)
        store._saved(content)
        return True

    return [(SnapshotStore, "save_later", save)]


def _truncation_not_written() -> list[Patch]:
    """The journal forgets entries in memory only."""

    def delete(journal: Journal, at: int) -> None:
        del journal._entries[at:]

    return [(Journal, "deleteEntriesFrom", delete)]


def _old_segment_not_synced() -> list[Patch]:
    """A full segment is followed by another before what was written to it is on the disk."""
    write_pending = Journal._write_pending

    def write_and_roll(journal: Journal) -> None:
        write_pending(journal)
        if journal._segment.size_bytes >= journal._segment_bytes:
            journal._durable_bytes = journal._segment.size_bytes
            for step in journal._roll():
                if step is None:
                    journal._disk.sync_folder(journal._folder)
                else:
                    journal._disk.sync_now(step)

    return [(Journal, "_write_pending", write_and_roll)]


def _steps_not_waited_for() -> list[Patch]:
    """A new segment is written to before it, and its name, are on the disk (R25)."""
    roll = Journal._roll

    def roll_at_once(journal: Journal) -> Iterator[File | None]:
        for _ in roll(journal):
            pass
        return iter(())

    return [(Journal, "_roll", roll_at_once)]


def _whole_log_acknowledged() -> list[Patch]:
    """After a snapshot all of the own log is acknowledged, matched or not."""

    def note_installed(node: SafeNode, clear: bool) -> None:  # noqa: FBT001
        load_dump(node, clear)
        node._installed_index = node._SyncObj__raftLog.last_index

    load_dump = SafeNode._SyncObj__loadDumpFile
    return [(SafeNode, "_SyncObj__loadDumpFile", note_installed)]


def _no_barrier() -> list[Patch]:
    """Reads at whoever believes to lead."""

    async def read_barrier(host: RaftQuorum, *, timeout_ms: int) -> None:
        host._ensure_leading()

    return [(RaftQuorum, "read_barrier", read_barrier)]


def _sequence_applied_again() -> list[Patch]:
    """A repeated sequence is applied like a new one (R38)."""
    admit = Machine._admit

    def admit_again(machine: Machine, envelope: Any, command: Any) -> Any:
        session, _ = admit(machine, envelope, command)
        return session, None

    return [(Machine, "_admit", admit_again)]


def _mutant(rule: str, meaning: str, patches: Callable[[], list[Patch]], *caught: str) -> Mutant:
    return Mutant(
        rule=rule, meaning=meaning, caught_by=frozenset(caught), patches=patches, bed="raft"
    )


RAFT = (
    _mutant(
        "INV-10-early",
        "messages leave before the disk",
        _speaks_before_the_disk,
        *_LOST,
        "RAFT-vote",
        "RAFT-term",
    ),
    _mutant(
        "INV-10-roll",
        "a new segment does not wait for the sync of the one before",
        _old_segment_not_synced,
        "R23",
        *_LOST,
        *_STOPS,
    ),
    _mutant(
        "INV-10-name",
        "a new segment is written to before its name is on the disk",
        _steps_not_waited_for,
        "R23",
        *_LOST,
        *_STOPS,
    ),
    _mutant("INV-10-vote", "votes are in memory only", _vote_in_memory, "RAFT-vote", "RAFT-term"),
    _mutant(
        "INV-10-mark",
        "a sync counts for what came after it",
        _sync_counts_all,
        *_LOST,
        "RAFT-vote",
        "RAFT-term",
    ),
    _mutant(
        "INV-10-ahead",
        "entries are acknowledged ahead of their sync",
        _entries_acknowledged_ahead,
        *_LOST,
        *_STOPS,
    ),
    _mutant(
        "INV-10-told", "a term is told ahead of its sync", _term_told_ahead, "RAFT-term", *_STOPS
    ),
    Mutant(
        rule="R22-raft",
        meaning="a failed sync is tried again",
        patches=_failed_sync_counts,
        **of_moment("second-try"),
    ),
    _mutant(
        "INV-10-count", "old terms commit by count", _old_terms_by_count, "RAFT-commit", *_LOST
    ),
    _mutant("INV-10-length", "any log is voted for", _any_log_is_voted_for, *_LOST, *_STOPS),
    _mutant(
        "INV-10-votes", "votes are given to all who ask", _votes_for_all, "RAFT-vote", "RAFT-leader"
    ),
    _mutant(
        "INV-10-late", "late appends cut committed entries", _late_append_cuts, *_LOST, *_STOPS
    ),
    _mutant("INV-10-part", "a part of a snapshot commits", _part_commits, *_LOST, *_STOPS),
    _mutant(
        "INV-10-snapshot",
        "a snapshot is matched without its term",
        _snapshot_without_term,
        "RAFT-live",
        *_LOST,
        *_STOPS,
    ),
    _mutant(
        "INV-10-start",
        "a snapshot drops the journal behind it",
        _start_drops_journal,
        *_LOST,
        *_STOPS,
    ),
    _mutant(
        "INV-10-cut",
        "the journal is cut before the snapshot is durable",
        _snapshot_not_synced,
        "R23",
        *_LOST,
    ),
    _mutant("INV-10-forget", "truncations are not written", _truncation_not_written, "R23", *_LOST),
    _mutant(
        "INV-10-match",
        "a snapshot acknowledges the whole log",
        _whole_log_acknowledged,
        *_LOST,
        *_STOPS,
    ),
    _mutant("INV-10-read", "reads without a barrier", _no_barrier, "RAFT-order"),
    _mutant(
        "R38-twice",
        "a sequence is applied again",
        _sequence_applied_again,
        "RAFT-twice",
        "RAFT-order",
    ),
)
"""Judged by the seeds of the Raft bed, like the product."""
