"""The Raft journal: entries, term and vote of one controller, in append-only segments.

Replaces the library's journal, which never calls fsync, has no checksum and cannot start after a
torn write. Rules:

- Every change is a record with a CRC, appended; also truncation, term, vote and commit index.
  Nothing is overwritten, so a kill at any byte leaves a prefix of what was done.
- Records are buffered until `begin_sync` writes them; `durable` says how far they are on disk.
  Nothing that promises a record may leave the node before (`core.py`).
- Each record carries the file size known durable when it was written. A bad record below such a
  mark is damage and the node refuses to start; above all marks it is a torn tail and is cut (R23).
- A full segment is durable to its last byte before the next is made, and sealed before anything is
  written there: a torn record can only be in the newest (`journal_recovery.py`). Each step has a
  ticket of its own, so the event loop waits for none; what is appended meanwhile stays in memory.
- Compaction unlinks whole segments from the front, after a snapshot, and writes nothing anew. Only
  a snapshot that a leader sent replaces everything, by a new segment that says it is the base.

Format: docs/protocol/raft.md. Owner: the event loop of one `RaftCore`.
"""

from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import overload

from paceline.platform.ports import Disk, File, temporary_name, write_durably
from paceline_controller.raft.log.entries import Entry
from paceline_controller.raft.log.journal_format import (
    NUMBER,
    ONE_FILE_NAME,
    Position,
    RecordKind,
    SegmentHeader,
    crc_of,
    encode_record,
    encode_segment,
    entry_payload,
    segment_name,
)
from paceline_controller.raft.log.journal_recovery import (
    Segment,
    recover,
    segment_numbers,
    write_seal,
)
from paceline_controller.raft.settings import SEGMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTicket:
    """What `finish_sync` needs: the file that was written and how far."""

    file: File | None
    """None: the folder, in which a segment has got its name."""
    mark: int
    size_bytes: int
    generation: int


class Journal:
    """The library's journal interface (its camel-case names) and the durable side of it."""

    def __init__(
        self, disk: Disk, folder: str, *, controller_id: str, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Open the journal in `folder`; CorruptLogError if it is damaged or of another controller.

        `segment_bytes`: a segment that has become so large is followed by another.
        """
        self._disk = disk
        self._folder = folder
        self._controller_id = controller_id
        self._segment_bytes = segment_bytes
        self._retired: list[File] = []  # replaced while a sync of them was outstanding
        self._is_syncing = False
        self._rolling: Iterator[File | None] | None = None  # the steps left to the next segment
        recovered = recover(disk, folder, controller_id=controller_id)
        self._entries = recovered.entries
        self._written = recovered.position
        self._segments = recovered.segments
        self._term = recovered.position.term
        self._voted_for = recovered.position.voted_for or None
        last_index = max(1, recovered.position.last_index)
        self._commit_index = min(recovered.position.commit_index, last_index)
        self._noted_commit_index = self._commit_index
        self._durable_bytes = self._segment.size_bytes
        self._pending: list[tuple[RecordKind, bytes]] = []
        self._generation = 0
        self.appended = 0  # count of promised changes so far in this process
        self.durable = 0  # count of those that are on disk
        self._term_mark = 0  # of the newest change of term or vote
        self._durable_index = self._syncing_index = self.last_index

    @staticmethod
    def create(disk: Disk, folder: str, *, controller_id: str) -> None:
        """Make an empty journal, durable on return."""
        header = SegmentHeader(
            controller=controller_id,
            number=1,
            is_base=True,
            previous_bytes=0,
            previous_crc=0,
            position=Position(),
        )
        write_durably(disk, f"{folder}/{segment_name(1)}", b"".join(encode_segment(header)))

    @staticmethod
    def exists(disk: Disk, folder: str) -> bool:
        """Whether there is any part of a journal, also one of before there were segments."""
        return bool(segment_numbers(disk, folder)) or disk.exists(f"{folder}/{ONE_FILE_NAME}")

    @property
    def segments_count(self) -> int:
        return len(self._segments)

    @property
    def is_durable(self) -> bool:
        """Whether every change so far is on disk."""
        return self.durable == self.appended

    @property
    def is_term_durable(self) -> bool:
        """Whether the term and the vote in it are on disk."""
        return self._term_mark <= self.durable

    @property
    def durable_index(self) -> int:
        """All entries up to this one are on disk; later ones may be."""
        return self._durable_index

    @property
    def first_index(self) -> int:
        """Index of the oldest entry held; 1 before anything was appended."""
        return self._entries[0][1] if self._entries else 1

    @property
    def last_index(self) -> int:
        return self._entries[-1][1] if self._entries else 0

    def entry(self, index: int) -> Entry | None:
        """The entry with that index, None if it is not held."""
        at = index - self.first_index
        return self._entries[at] if 0 <= at < len(self._entries) else None

    # -- the library's interface -------------------------------------------------------------------

    def add(self, command: bytes, idx: int, term: int) -> None:
        expected = self.last_index + 1
        assert not self._entries or idx == expected, (idx, expected)
        assert not self._entries or term >= self._entries[-1][2], (term, self._entries[-1])
        self._entries.append((command, idx, term))
        self._promise(RecordKind.ENTRY, entry_payload(self._entries[-1]))

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 - the library's names
        """Forget the entries from that position in the list on; one record, so kill-safe."""
        index = self._entries[entryFrom][1]
        del self._entries[entryFrom:]
        self._durable_index = min(self._durable_index, index - 1)
        self._syncing_index = min(self._syncing_index, index - 1)
        self._promise(RecordKind.TRUNCATE, NUMBER.pack(index))

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        raise AssertionError("compaction goes through cut_before")

    def clear(self) -> None:
        raise AssertionError("a journal is only replaced as a whole")

    @overload
    def __getitem__(self, item: int) -> Entry: ...

    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...

    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Remembered lazily: a lower bound after a restart is enough, an upper one is not."""
        assert raftCommitIndex >= self._commit_index, (raftCommitIndex, self._commit_index)
        assert raftCommitIndex <= self.last_index, (raftCommitIndex, self.last_index)
        self._commit_index = raftCommitIndex

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return self._commit_index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        assert term >= self._term, (term, self._term)
        if (term, votedForNodeId) == (self._term, self._voted_for):
            return
        assert term > self._term or self._voted_for is None, "one vote per term"
        self._term, self._voted_for = term, votedForNodeId
        self._promise(RecordKind.STATE, NUMBER.pack(term) + (votedForNodeId or "").encode())
        self._term_mark = self.appended

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        return self._voted_for

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Note the commit index; promises nothing, so nobody waits for it."""
        if self._commit_index != self._noted_commit_index:
            self._noted_commit_index = self._commit_index
            self._pending.append((RecordKind.COMMIT, NUMBER.pack(self._commit_index)))

    def _destroy(self) -> None:
        raise AssertionError("the core closes the journal")

    # -- durability --------------------------------------------------------------------------------

    def begin_sync(self) -> SyncTicket | None:
        """Write what is buffered; None if nothing waits. At most one ticket is outstanding.

        If the newest segment is full, the next is made first: a ticket for each step of that, by
        which nothing becomes durable that was not.
        """
        if self._is_syncing or self.is_durable:
            return None
        if self._rolling is None and self._segment.size_bytes >= self._segment_bytes:
            self._rolling = self._roll()
        if self._rolling is not None:
            for step in self._rolling:
                return self._ticket(step, mark=self.durable)
            self._rolling = None
        self._write_pending()
        self._syncing_index = self.last_index
        return self._ticket(self._segment.file, mark=self.appended)

    def _ticket(self, file: File | None, *, mark: int) -> SyncTicket:
        self._is_syncing = True
        return SyncTicket(
            file=file,
            mark=mark,
            size_bytes=self._segment.size_bytes,
            generation=self._generation,
        )

    def sync(self, ticket: SyncTicket) -> Awaitable[None]:
        """What the ticket asks for, off the event loop."""
        if ticket.file is None:
            return self._disk.sync_folder_later(self._folder)
        return self._disk.sync(ticket.file)

    def finish_sync(self, ticket: SyncTicket) -> None:
        """The ticket's file was synced."""
        assert self._is_syncing
        self._is_syncing = False
        self.durable = max(self.durable, ticket.mark)
        self._durable_index = max(self._durable_index, self._syncing_index)
        if ticket.generation == self._generation:
            self._durable_bytes = max(self._durable_bytes, ticket.size_bytes)
        self._close_retired()

    def sync_now(self) -> None:
        """Make everything durable, blocking; nothing if a sync has not ended well (R22)."""
        if self._is_syncing:
            return
        while (ticket := self.begin_sync()) is not None:
            self.sync_ticket_now(ticket)
            self.finish_sync(ticket)
        self._write_pending()
        self._disk.sync_now(self._segment.file)
        self._durable_bytes = self._segment.size_bytes

    def sync_ticket_now(self, ticket: SyncTicket) -> None:
        """`sync`, blocking."""
        if ticket.file is None:
            self._disk.sync_folder(self._folder)
        else:
            self._disk.sync_now(ticket.file)

    def cut_before(self, index: int) -> None:
        """Forget the entries below `index`, and the segments that hold nothing else.

        The caller has a durable snapshot. Nothing here need be durable: segments that come back
        after a power loss are a part of the same journal.
        """
        at = index - self.first_index
        assert 0 <= at < len(self._entries), (index, self.first_index, self.last_index)
        del self._entries[:at]
        while len(self._segments) > 1 and self._segments[0].end_index <= index:
            segment = self._segments.pop(0)
            segment.file.close()
            self._disk.unlink(segment.file.path)

    def start_from(self, entries: Iterable[Entry], *, commit_index: int) -> None:
        """Hold exactly these entries (of an installed snapshot); durable on return."""
        kept = list(entries)
        assert kept, "a journal that starts from a snapshot holds its last two entries"
        assert commit_index >= self._commit_index, (commit_index, self._commit_index)
        self._commit_index = commit_index
        self._replace(kept)

    def close(self) -> None:
        """Let go of the files, as they are; no sync is outstanding."""
        for segment in self._segments:
            segment.file.close()
        self._close_retired()

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _segment(self) -> Segment:
        """The newest: the one that is appended to."""
        return self._segments[-1]

    def _promise(self, kind: RecordKind, payload: bytes) -> None:
        self._pending.append((kind, payload))
        self.appended += 1

    def _write_pending(self) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        segment, records = self._segment, []
        for kind, payload in pending:
            record = encode_record(
                kind, payload, sequence=segment.records, durable=self._durable_bytes
            )
            records.append(record)
            segment.records += 1
            self._note_written(kind, payload)
        at = segment.size_bytes
        segment.size_bytes += self._disk.writev(segment.file, records, at)
        segment.last_crc = crc_of(records[-1])

    def _note_written(self, kind: RecordKind, payload: bytes) -> None:
        self._written = self._written.after(kind, payload)
        if kind == RecordKind.TRUNCATE:
            cut_at = self._written.last_index + 1
            for segment in self._segments:
                segment.end_index = min(segment.end_index, cut_at)

    def _roll(self) -> Iterator[File | None]:
        """Begin another segment. What is yielded (None: the folder) is synced before the next step.

        Nothing is written to either segment meanwhile. `_replace` may end it at any step: its base
        takes the same number, and so the place of what was made here.
        """
        before = self._segment
        assert self._durable_bytes == before.size_bytes, "all that was written is on the disk"
        header = SegmentHeader(
            controller=self._controller_id,
            number=before.number + 1,
            is_base=False,
            previous_bytes=before.size_bytes,
            previous_crc=before.last_crc,
            position=self._written,
        )
        path = f"{self._folder}/{segment_name(header.number)}"
        records = encode_segment(header)
        temporary = self._disk.open(temporary_name(path), create=True)
        self._retired.append(temporary)  # closed when its sync is over, whatever happens meanwhile
        self._disk.writev(temporary, records, 0)
        yield temporary
        self._disk.rename(temporary.path, path)
        yield None
        write_seal(self._disk, before)
        yield before.file
        before.end_index = self._written.last_index + 1
        self._add_segment(header, records)

    def _begin_segment(self, header: SegmentHeader, entries: list[Entry]) -> None:
        records = encode_segment(header, entries)
        path = f"{self._folder}/{segment_name(header.number)}"
        write_durably(self._disk, path, b"".join(records))
        self._add_segment(header, records)

    def _add_segment(self, header: SegmentHeader, records: list[bytes]) -> None:
        """The file of that segment has its name and these records, durably: append to it."""
        size_bytes = sum(map(len, records))
        segment = Segment(
            number=header.number,
            file=self._disk.open(f"{self._folder}/{segment_name(header.number)}"),
            size_bytes=size_bytes,
            records=len(records),
            last_crc=crc_of(records[-1]),
        )
        self._segments.append(segment)
        self._durable_bytes = size_bytes
        self._generation += 1

    def _replace(self, entries: list[Entry]) -> None:
        """A segment that is the base of the journal from now on, in place of all others."""
        commit_index = min(self._commit_index, entries[-1][1])
        position = Position(
            last_index=entries[0][1] - 1,
            term=self._term,
            voted_for=self._voted_for or "",
            commit_index=commit_index,
        )
        header = SegmentHeader(
            controller=self._controller_id,
            number=self._segment.number + 1,
            is_base=True,
            previous_bytes=0,
            previous_crc=0,
            position=position,
        )
        self._rolling = None
        older = list(self._segments)
        self._begin_segment(header, entries)
        self._segments = self._segments[-1:]
        self._retired += [segment.file for segment in older]
        for segment in older:
            self._disk.unlink(segment.file.path)
        if not self._is_syncing:
            self._close_retired()
        self._entries = entries
        self._pending = []
        self._written = replace(position, last_index=entries[-1][1])
        self._noted_commit_index = self._commit_index
        self.durable = self.appended
        self._durable_index = self._syncing_index = self.last_index

    def _close_retired(self) -> None:
        for file in self._retired:
            file.close()
        self._retired = []
