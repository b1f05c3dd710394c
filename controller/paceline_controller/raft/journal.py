"""The Raft journal: entries, term and vote of one controller, in one append-only file.

Replaces the library's journal, which never calls fsync, has no checksum and cannot start after a
torn write. Rules:

- Every change is a record with a CRC, appended; also truncation, term, vote and commit index.
  Nothing is overwritten, so a kill at any byte leaves a prefix of what was done.
- Records are buffered until `begin_sync` writes them; `durable` says how far they are on disk.
  Nothing that promises a record may leave the node before (`outbox.py`).
- Each record carries the file size known durable when it was written. A bad record below such a
  mark is damage and the node refuses to start; above all marks it is a torn tail and is cut (R23).
- The file is replaced as a whole (temporary file, fsync, rename, folder fsync) when its front is
  cut after a snapshot.

Format: docs/protocol/raft.md. Owner: the event loop of one `RaftCore`.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import overload

import orjson
from crc32c import crc32c

from paceline.errors import CorruptLogError
from paceline.ports import Disk, File, write_durably
from paceline_controller.raft.entries import Entry

FORMAT_VERSION = 1
_MAGIC = b"PLJ1"
_HEAD = struct.Struct("<4sIIIQQ")  # magic, crc, payload length, kind, sequence, durable mark
_CRC_FROM = 8  # the CRC covers everything after itself
_ALIGNMENT = 8
_ENTRY = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")


class _Kind(IntEnum):
    HEADER = 0
    ENTRY = 1
    STATE = 2
    TRUNCATE = 3
    COMMIT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTicket:
    """What `finish_sync` needs: the file that was written and how far."""

    file: File
    mark: int
    size_bytes: int
    generation: int


@dataclass(slots=True)
class _Recovered:
    entries: list[Entry]
    term: int = 0
    voted_for: str | None = None
    commit_index: int = 1
    sequence: int = 0
    end: int = 0


def _encode_record(kind: _Kind, payload: bytes, *, sequence: int, durable: int) -> bytes:
    head = _HEAD.pack(_MAGIC, 0, len(payload), kind, sequence, durable)
    crc = crc32c(payload, crc32c(head[_CRC_FROM:]))
    record = head[:4] + crc.to_bytes(4, "little") + head[_CRC_FROM:] + payload
    return record + bytes(-len(record) % _ALIGNMENT)


class Journal:
    """The library's journal interface (its camel-case names) and the durable side of it."""

    def __init__(self, disk: Disk, path: str, *, controller_id: str) -> None:
        """Open the journal at `path`; CorruptLogError if it is damaged or of another controller."""
        self._disk = disk
        self._path = path
        self._controller_id = controller_id
        self._file = disk.open(path)
        self._retired: list[File] = []  # replaced while a sync of them was outstanding
        self._is_syncing = False
        recovered = self._recover()
        self._entries = recovered.entries
        self._term = recovered.term
        self._voted_for = recovered.voted_for
        self._commit_index = self._written_commit_index = recovered.commit_index
        self._sequence = recovered.sequence
        self._size_bytes = self._durable_bytes = recovered.end
        self._pending: list[bytes] = []
        self._generation = 0
        self.appended = 0  # count of promised changes so far in this process
        self.durable = 0  # count of those that are on disk

    @staticmethod
    def create(disk: Disk, path: str, *, controller_id: str) -> None:
        """Make an empty journal, durable on return."""
        write_durably(disk, path, _encode_file((), controller_id=controller_id))

    @property
    def is_durable(self) -> bool:
        """Whether every change so far is on disk."""
        return self.durable == self.appended

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
        self._promise(_Kind.ENTRY, _ENTRY.pack(idx, term) + command)

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 - the library's names
        """Forget the entries from that position in the list on; one record, so kill-safe."""
        index = self._entries[entryFrom][1]
        del self._entries[entryFrom:]
        self._promise(_Kind.TRUNCATE, _NUMBER.pack(index))

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
        self._promise(_Kind.STATE, _NUMBER.pack(term) + (votedForNodeId or "").encode())

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        return self._voted_for

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Note the commit index; promises nothing, so nobody waits for it."""
        if self._commit_index != self._written_commit_index:
            self._written_commit_index = self._commit_index
            self._append_record(_Kind.COMMIT, _NUMBER.pack(self._commit_index))

    def _destroy(self) -> None:
        raise AssertionError("the core closes the journal")

    # -- durability --------------------------------------------------------------------------------

    def begin_sync(self) -> SyncTicket | None:
        """Write what is buffered; None if nothing waits. At most one ticket is outstanding."""
        if self._is_syncing or self.is_durable:
            return None
        self._write_pending()
        self._is_syncing = True
        return SyncTicket(
            file=self._file,
            mark=self.appended,
            size_bytes=self._size_bytes,
            generation=self._generation,
        )

    def finish_sync(self, ticket: SyncTicket) -> None:
        """The ticket's file was synced."""
        assert self._is_syncing
        self._is_syncing = False
        self.durable = max(self.durable, ticket.mark)
        if ticket.generation == self._generation:
            self._durable_bytes = max(self._durable_bytes, ticket.size_bytes)
        self._close_retired()

    def sync_now(self) -> None:
        """Make everything durable, blocking."""
        self._write_pending()
        self._disk.sync_now(self._file)
        self.durable = self.appended
        self._durable_bytes = self._size_bytes

    def cut_before(self, index: int) -> None:
        """Drop the entries below `index`; durable on return. The caller has a durable snapshot."""
        at = index - self.first_index
        assert 0 <= at < len(self._entries), (index, self.first_index, self.last_index)
        self._replace(self._entries[at:])

    def start_from(self, entries: Iterable[Entry], *, commit_index: int) -> None:
        """Hold exactly these entries (of an installed snapshot); durable on return."""
        kept = list(entries)
        assert kept, "a journal that starts from a snapshot holds its last two entries"
        assert commit_index >= self._commit_index, (commit_index, self._commit_index)
        self._commit_index = commit_index
        self._replace(kept)

    def close(self) -> None:
        """Let go of the file, as it is; no sync is outstanding."""
        self._file.close()
        self._close_retired()

    # -- inside ------------------------------------------------------------------------------------

    def _promise(self, kind: _Kind, payload: bytes) -> None:
        self._append_record(kind, payload)
        self.appended += 1

    def _append_record(self, kind: _Kind, payload: bytes) -> None:
        record = _encode_record(kind, payload, sequence=self._sequence, durable=self._durable_bytes)
        self._sequence += 1
        self._pending.append(record)

    def _write_pending(self) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        self._size_bytes += self._disk.writev(self._file, pending, self._size_bytes)

    def _replace(self, entries: list[Entry]) -> None:
        content = _encode_file(
            entries,
            controller_id=self._controller_id,
            term=self._term,
            voted_for=self._voted_for,
            commit_index=min(self._commit_index, entries[-1][1]),
        )
        write_durably(self._disk, self._path, content)
        self._retired.append(self._file)
        if not self._is_syncing:
            self._close_retired()
        self._file = self._disk.open(self._path)
        self._entries = entries
        self._pending = []
        self._written_commit_index = self._commit_index
        self._size_bytes = self._durable_bytes = len(content)
        self._sequence = len(entries) + 3
        self._generation += 1
        self.durable = self.appended

    def _close_retired(self) -> None:
        for file in self._retired:
            file.close()
        self._retired = []

    def _recover(self) -> _Recovered:
        # What a killed process left in the page cache is written out; what a failed sync left there
        # counts as written for the kernel and is not: only the disk is asked (R22).
        self._disk.sync_now(self._file)
        self._disk.forget_clean(self._file)
        content = self._disk.pread(self._file, self._disk.size(self._file), 0)
        recovered = _Recovered(entries=[])
        durable_mark = 0
        while recovered.end < len(content):
            record = _parse_record(content, recovered.end)
            if record is None:
                break
            kind, payload, sequence, mark, end = record
            if sequence != recovered.sequence:
                raise self._corrupt(recovered.end, f"record {sequence} after {recovered.sequence}")
            durable_mark = max(durable_mark, mark)
            if recovered.sequence == 0:
                durable_mark = max(durable_mark, self._check_header(kind, payload))
            else:
                self._fold(recovered, kind, payload)
            recovered.sequence += 1
            recovered.end = end
        self._cut_tail(content, recovered.end, durable_mark)
        if recovered.sequence == 0:
            raise self._corrupt(0, "no header")
        if recovered.entries:
            recovered.commit_index = min(recovered.commit_index, recovered.entries[-1][1])
        return recovered

    def _cut_tail(self, content: bytes, end: int, durable_mark: int) -> None:
        """Cut a torn tail, or refuse: whatever was once reported durable must still be whole."""
        durable_mark = max(durable_mark, _highest_mark_after(content, end))
        if end < durable_mark:
            raise self._corrupt(end, f"bad record below the durable mark {durable_mark}")
        if end < len(content):
            self._disk.truncate(self._file, end)
            self._disk.sync_now(self._file)
        self._disk.sync_folder(self._path.rpartition("/")[0])

    def _check_header(self, kind: int, payload: bytes) -> int:
        if kind != _Kind.HEADER:
            raise self._corrupt(0, "the first record is no header")
        header = orjson.loads(payload)
        if header["format"] != FORMAT_VERSION:
            raise self._corrupt(0, f"journal format {header['format']} is unknown")
        if header["controller"] != self._controller_id:
            raise self._corrupt(
                0, f"journal of controller {header['controller']!r}, not {self._controller_id!r}"
            )
        content_bytes = header["content_bytes"]
        assert isinstance(content_bytes, int)
        return content_bytes

    def _fold(self, recovered: _Recovered, kind: int, payload: bytes) -> None:
        entries = recovered.entries
        match kind:
            case _Kind.ENTRY:
                index, term = _ENTRY.unpack_from(payload)
                if entries and index != entries[-1][1] + 1:
                    raise self._corrupt(recovered.end, f"entry {index} after {entries[-1][1]}")
                entries.append((payload[_ENTRY.size :], index, term))
            case _Kind.STATE:
                (recovered.term,) = _NUMBER.unpack_from(payload)
                recovered.voted_for = payload[_NUMBER.size :].decode() or None
            case _Kind.TRUNCATE:
                (index,) = _NUMBER.unpack(payload)
                if not entries or not entries[0][1] < index <= entries[-1][1]:
                    raise self._corrupt(recovered.end, f"truncation at {index}")
                del entries[index - entries[0][1] :]
            case _Kind.COMMIT:
                (recovered.commit_index,) = _NUMBER.unpack(payload)
            case _:
                raise self._corrupt(recovered.end, f"record kind {kind} is unknown")

    def _corrupt(self, at: int, why: str) -> CorruptLogError:
        return CorruptLogError(
            f"raft journal {self._path} is damaged at byte {at}: {why}", path=self._path, offset=at
        )


def _encode_file(
    entries: Iterable[Entry],
    *,
    controller_id: str,
    term: int = 0,
    voted_for: str | None = None,
    commit_index: int = 1,
) -> bytes:
    state = (_Kind.STATE, _NUMBER.pack(term) + (voted_for or "").encode())
    commit = (_Kind.COMMIT, _NUMBER.pack(commit_index))
    body = [(_Kind.ENTRY, _ENTRY.pack(index, at) + command) for command, index, at in entries]
    records = [
        _encode_record(kind, payload, sequence=number, durable=0)
        for number, (kind, payload) in enumerate([state, *body, commit], start=1)
    ]
    size_bytes = sum(map(len, records))
    return _encode_header(controller_id, size_bytes) + b"".join(records)


def _encode_header(controller_id: str, body_bytes: int) -> bytes:
    """The first record names the size of the whole file, itself included, as durable mark."""
    header_bytes = 0
    while True:  # the number of digits is part of the size; settles in two or three rounds
        document = {
            "content_bytes": header_bytes + body_bytes,
            "controller": controller_id,
            "format": FORMAT_VERSION,
        }
        record = _encode_record(_Kind.HEADER, orjson.dumps(document), sequence=0, durable=0)
        if len(record) == header_bytes:
            return record
        header_bytes = len(record)


def _parse_record(content: bytes, at: int) -> tuple[int, bytes, int, int, int] | None:
    """(kind, payload, sequence, durable mark, end of the record), None if it is not whole."""
    if len(content) - at < _HEAD.size:
        return None
    magic, crc, length, kind, sequence, durable = _HEAD.unpack_from(content, at)
    payload_at = at + _HEAD.size
    end = payload_at + length
    end += -end % _ALIGNMENT
    if magic != _MAGIC or end > len(content):
        return None
    payload = content[payload_at : payload_at + length]
    head = memoryview(content)[at + _CRC_FROM : payload_at]
    if crc32c(payload, crc32c(head)) != crc:
        return None
    return kind, payload, sequence, durable, end


def _highest_mark_after(content: bytes, start: int) -> int:
    """The highest durable mark of any whole record after a bad one."""
    highest = 0
    at = content.find(_MAGIC, start)
    while at >= 0:
        if at % _ALIGNMENT == 0:
            record = _parse_record(content, at)
            if record is not None:
                highest = max(highest, record[3])
        at = content.find(_MAGIC, at + 1)
    return highest
