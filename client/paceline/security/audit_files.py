"""The audit of a node until it has been sent on: files of JSON lines on its disk, or its memory.

A file is called by the sequence of its first record. A full one is followed by the next, and beyond
`FILES_MAX` the oldest goes, sent on or not: whoever makes records must not fill the disk. Lines are
written at once and not synced, so that no call waits for the disk: they outlive the process, and a
machine that loses power may lose the last ones, if they were not sent on.
"""

import logging
import re
from collections import deque
from typing import NamedTuple, Protocol

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.ports import Disk, File
from paceline.platform.sealed import seal, unseal
from paceline.wire.calls.audit import RECORDS_MAX, AuditRecord, json_of, read_lines

log = logging.getLogger("paceline.audit")

FILE_BYTES_MAX = 4 * 1024 * 1024
FILES_MAX = 16
KEPT_BYTES_MAX = 2 * 1024 * 1024
"""In memory, as lines: some 5,000 records, four minutes of refusals as fast as they are told."""
READ_BYTES = 128 * 1024
"""Sent at once; above the longest line."""
SENT_NAME = "sent.json"
_SENT_BYTES = 256
"""The file keeps its size, so that a write replaces it."""
_NAME = re.compile(r"([0-9]{16})\.jsonl")


class Place(NamedTuple):
    """A position in the files."""

    number: int
    """Of the file."""
    at: int


class Batch(NamedTuple):
    """Records that follow each other."""

    records: list[AuditRecord]
    end: Place


class AuditKept(Protocol):
    """Records of one process until they are sent on; used on the event loop only."""

    next_sequence: int
    lost_files: int
    """That went before all of them had been sent on."""

    def append(self, record: AuditRecord) -> None:
        """Keep the next record, whose sequence is `next_sequence`. StorageError: there is none."""

    @property
    def has_unsent(self) -> bool: ...

    @property
    def unsent_bytes(self) -> int:
        """At most so many were not sent."""
        ...

    def unsent(self) -> Batch | None:
        """Some records after the last that were sent; None: all were. StorageError."""

    def sent(self, batch: Batch) -> None:
        """All up to the end of the batch need not be sent again. StorageError: it is only known in
        memory."""

    def close(self) -> None: ...


class AuditFiles:
    """`AuditKept` on a disk. Owner of the folder."""

    def __init__(self, disk: Disk, folder: str) -> None:
        """Opens it: blocking. StorageError."""
        self._disk, self._folder = disk, folder
        disk.make_folder(folder)
        matches = map(_NAME.fullmatch, disk.list(folder))
        self._numbers = sorted(int(match.group(1)) for match in matches if match)
        self._file: File | None = None
        self._end = 0
        self.next_sequence = 1
        self.lost_files = 0
        if self._numbers:
            self._open_last()
        self._sent_file = disk.open(f"{folder}/{SENT_NAME}", create=True)
        self._sent = self._load_sent()

    def _open_last(self) -> None:
        number = self._numbers[-1]
        file = self._file = self._disk.open(self._path(number))
        at = max(0, self._disk.size(file) - READ_BYTES)
        records, taken = read_lines(self._disk.pread(file, READ_BYTES, at))
        self._end = at + taken
        self.next_sequence = max([number, *(record.sequence + 1 for record in records)])

    def append(self, record: AuditRecord) -> None:
        line = json_of(record) + b"\n"
        if self._file is None or self._end + len(line) > FILE_BYTES_MAX:
            self._begin_file()
        assert self._file is not None
        self._disk.writev(self._file, [line], self._end)
        self._end += len(line)
        self.next_sequence = record.sequence + 1

    @property
    def has_unsent(self) -> bool:
        return bool(self._numbers) and self._sent < Place(self._numbers[-1], self._end)

    @property
    def unsent_bytes(self) -> int:
        """A file that is not the last counts as full."""
        if not self.has_unsent:
            return 0
        whole = len(self._numbers) - 1 - self._numbers.index(self._sent.number)
        return max(0, whole * FILE_BYTES_MAX + self._end - self._sent.at)

    def unsent(self) -> Batch | None:
        while self.has_unsent:
            number, at = self._sent
            is_last = number == self._numbers[-1]
            size = min(READ_BYTES, self._end - at) if is_last else READ_BYTES
            content = self._read(number, at, size)
            records, taken = read_lines(content)
            if not taken and len(content) == READ_BYTES:
                taken = READ_BYTES  # no line is so long: the disk has damaged it
            if taken:
                after = Place(number, at + taken)
            elif is_last:
                after = Place(number, self._end)  # the remains of a write that failed
            else:
                after = Place(self._numbers[self._numbers.index(number) + 1], 0)
            if records:
                return Batch(records, after)
            self._sent = after
        return None

    def sent(self, batch: Batch) -> None:
        self._sent = max(self._sent, batch.end)
        document = seal({"number": self._sent.number, "at": self._sent.at})
        self._disk.writev(self._sent_file, [document.ljust(_SENT_BYTES)], 0)

    def close(self) -> None:
        for file in (self._file, self._sent_file):
            if file is not None:
                file.close()

    def _begin_file(self) -> None:
        number = self.next_sequence
        file = self._disk.open(self._path(number), create=True)
        if self._file is not None:
            self._file.close()
        self._file, self._end = file, 0
        if number not in self._numbers:
            self._numbers.append(number)
        while len(self._numbers) > FILES_MAX:
            self._drop_oldest()
        if self._sent.number not in self._numbers:
            self._sent = Place(self._numbers[0], 0)

    def _drop_oldest(self) -> None:
        self._disk.unlink(self._path(self._numbers[0]))
        gone = self._numbers.pop(0)
        if self._sent.number == gone:
            self.lost_files += 1
            log.error("audit_file_lost", extra={"sequence": gone, "next": self._numbers[0]})

    def _read(self, number: int, at: int, size: int) -> bytes:
        if number == self._numbers[-1]:
            assert self._file is not None
            return self._disk.pread(self._file, size, at)
        file = self._disk.open(self._path(number))
        try:
            return self._disk.pread(file, size, at)
        finally:
            file.close()

    def _load_sent(self) -> Place:
        """Where to go on; from the oldest record on if that is not known: what is sent twice does
        no harm."""
        first = Place(self._numbers[0] if self._numbers else 0, 0)
        content = self._disk.pread(self._sent_file, _SENT_BYTES, 0)
        if not content:
            return first
        try:
            document = unseal(content)
            place = Place(int(document["number"]), int(document["at"]))
        except (CorruptLogError, KeyError, TypeError, ValueError) as error:
            log.warning("audit_place_damaged", extra={"fault": repr(error)})
            return first
        if place.number not in self._numbers:
            return first
        if place.number == self._numbers[-1]:
            return min(place, Place(place.number, self._end))
        return place

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:016d}.jsonl"


class AuditMemory:
    """`AuditKept` of a process without a disk, a gateway's.

    What finds no room is refused: whoever makes records must not fill the memory. `Audit` counts
    it, and the next record says how much it was. A process that ends loses what is here.
    """

    lost_files = 0

    def __init__(self) -> None:
        self._kept: deque[tuple[AuditRecord, int]] = deque()
        """With the bytes of their lines."""
        self.next_sequence = 1
        self.unsent_bytes = 0

    def append(self, record: AuditRecord) -> None:
        size = len(json_of(record)) + 1
        if self.unsent_bytes + size > KEPT_BYTES_MAX:
            raise StorageError(
                f"no master takes the audit, and {len(self._kept)} records wait for one in memory:"
                " see why the cluster has none"
            )
        self._kept.append((record, size))
        self.unsent_bytes += size
        self.next_sequence = record.sequence + 1

    @property
    def has_unsent(self) -> bool:
        return bool(self._kept)

    def unsent(self) -> Batch | None:
        found: list[AuditRecord] = []
        size = 0
        for record, line_bytes in self._kept:
            size += line_bytes
            if len(found) == RECORDS_MAX or (found and size > READ_BYTES):
                break
            found.append(record)
        return Batch(found, Place(0, found[-1].sequence)) if found else None

    def sent(self, batch: Batch) -> None:
        while self._kept and self._kept[0][0].sequence <= batch.end.at:
            _, size = self._kept.popleft()
            self.unsent_bytes -= size

    def close(self) -> None:
        """Nothing."""
