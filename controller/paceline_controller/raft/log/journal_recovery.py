"""What a journal's files come to when a controller starts: all that was promised, or a refusal.

Only the newest segment may end in a torn record; every older one was on the disk, to its last byte,
before the next was made. So a bad record there, a segment that is missing, one that does not follow
its predecessor, and a newest one that says that another follows, are damage: a node that went on
could break a promise (R18, R23), and refuses instead.
"""

from dataclasses import dataclass, field, replace

import orjson

from paceline.errors import CorruptLogError
from paceline.platform.ports import Disk, File, write_durably
from paceline_controller.raft.log.entries import Entry
from paceline_controller.raft.log.journal_format import (
    ENTRY_HEAD,
    HEAD,
    ONE_FILE_NAME,
    ONE_FILE_VERSION,
    Position,
    Record,
    RecordKind,
    SegmentHeader,
    encode_record,
    encode_segment,
    highest_mark_after,
    parse_header,
    parse_record,
    segment_name,
    segment_number,
)

_TEMPORARY = (".journal-", ".journal.")
"""Begins names that `write_durably` left when it was interrupted."""


@dataclass(slots=True)
class Segment:
    """One file of the journal, and what is known of its end."""

    number: int
    file: File
    size_bytes: int = 0
    records: int = 0
    last_crc: int = 0
    end_index: int = 0
    """No entry of the log from here on is in this segment or an older one; of the newest: unknown.
    """
    is_sealed: bool = False


@dataclass(slots=True)
class Recovered:
    """The journal as its files have it."""

    entries: list[Entry] = field(default_factory=list)
    position: Position = field(default_factory=Position)
    segments: list[Segment] = field(default_factory=list)
    """By number; the last is the one to append to."""


def segment_numbers(disk: Disk, folder: str) -> list[int]:
    numbers = (segment_number(name) for name in disk.list(folder))
    return sorted(number for number in numbers if number is not None)


def recover(disk: Disk, folder: str, *, controller_id: str) -> Recovered:
    """Read all segments, cut a torn tail. CorruptLogError if anything promised may be missing."""
    for name in disk.list(folder):
        if name.startswith(_TEMPORARY):
            disk.unlink(f"{folder}/{name}")
    if disk.exists(f"{folder}/{ONE_FILE_NAME}"):
        _take_over_one_file(disk, folder, controller_id=controller_id)
    return _Reader(disk, folder, controller_id).read()


class _Reader:
    def __init__(self, disk: Disk, folder: str, controller_id: str) -> None:
        self._disk = disk
        self._folder = folder
        self._controller_id = controller_id
        self._path = folder
        self._found = Recovered()

    def read(self) -> Recovered:
        numbers = segment_numbers(self._disk, self._folder)
        if not numbers:
            raise self._corrupt(0, "it has no segment")
        contents, headers = self._chain(numbers)
        found = self._found
        for number in numbers:
            if (
                number < found.segments[0].number
            ):  # what a kill between a new base and its clean-up has left
                self._disk.unlink(f"{self._folder}/{segment_name(number)}")
        found.position = headers[0].position
        for at, segment in enumerate(found.segments):
            self._path = segment.file.path
            if at:
                self._check_follows(found.segments[at - 1], headers[at])
            self._read_records(segment, contents[at], headers[at])
            if at < len(found.segments) - 1:
                is_begun = len(contents[at + 1]) > headers[at + 1].content_bytes
                self._check_end(segment, contents[at], headers[at + 1], is_begun=is_begun)
        self._disk.sync_folder(self._folder)
        return found

    def _chain(self, numbers: list[int]) -> tuple[list[bytes], list[SegmentHeader]]:
        """Open the segments from the newest base on, without a gap: contents and headers."""
        segments = self._found.segments
        contents: list[bytes] = []
        headers: list[SegmentHeader] = []
        for number in reversed(numbers):
            self._path = f"{self._folder}/{segment_name(number)}"
            if segments and number != segments[0].number - 1:
                self._path = f"{self._folder}/{segment_name(segments[0].number - 1)}"
                raise self._corrupt(0, f"the segment is missing, {segment_name(number)} is there")
            file = self._disk.open(self._path)
            content = self._content(file)
            header = self._header(content, number)
            contents.insert(0, content)
            headers.insert(0, header)
            segments.insert(0, Segment(number=number, file=file))
            if header.is_base:
                break
        return contents, headers

    def _content(self, file: File) -> bytes:
        # What a killed process left in the page cache is written out; what a failed sync left there
        # counts as written for the kernel and is not: only the disk is asked (R22).
        self._disk.sync_now(file)
        self._disk.forget_clean(file)
        return self._disk.pread(file, self._disk.size(file), 0)

    def _header(self, content: bytes, number: int) -> SegmentHeader:
        record = parse_record(content, 0)
        if record is None or record.kind != RecordKind.HEADER or record.sequence != 0:
            raise self._corrupt(0, "it has no whole header")
        try:
            header = parse_header(record.payload)
        except ValueError as error:
            raise self._corrupt(0, str(error)) from error
        if header.controller != self._controller_id:
            raise self._corrupt(
                0, f"journal of controller {header.controller!r}, not {self._controller_id!r}"
            )
        if header.number != number:
            raise self._corrupt(0, f"the file of segment {number} is segment {header.number}")
        return header

    def _check_follows(self, before: Segment, header: SegmentHeader) -> None:
        """Whether this segment was made behind the one before it, as that is now."""
        follows = (header.previous_bytes, header.previous_crc, header.position)
        if follows != (before.size_bytes, before.last_crc, self._found.position):
            raise self._corrupt(
                0,
                f"it does not follow {segment_name(before.number)} as that is: one of the two"
                " is from another time",
            )

    def _read_records(self, segment: Segment, content: bytes, header: SegmentHeader) -> None:
        """Fold all whole records; of the newest segment, cut what is behind them."""
        durable = header.content_bytes
        at = 0
        while not segment.is_sealed and (record := parse_record(content, at)) is not None:
            if record.sequence != segment.records:
                raise self._corrupt(at, f"record {record.sequence} after {segment.records}")
            durable = max(durable, record.mark)
            if record.kind == RecordKind.SEAL:
                segment.is_sealed = True
            else:
                self._fold(record, at)
                segment.last_crc, segment.size_bytes = record.crc, record.end
            segment.records += 1
            at = record.end
        segment.end_index = self._found.position.last_index + 1
        if segment is not self._found.segments[-1]:
            return
        if segment.is_sealed:
            raise self._corrupt(
                at, f"the next segment, {segment_name(segment.number + 1)}, is gone"
            )
        self._cut_tail(segment, content, max(durable, highest_mark_after(content, at)))

    def _check_end(
        self, segment: Segment, content: bytes, following: SegmentHeader, *, is_begun: bool
    ) -> None:
        """A segment that another follows: whole and sealed.

        But for the seal, if the process was killed between making the next and sealing this one.
        """
        end = len(content)
        if segment.is_sealed and end == segment.size_bytes + HEAD.size:
            return
        if segment.is_sealed or is_begun or segment.size_bytes != following.previous_bytes:
            raise self._corrupt(segment.size_bytes, "it ends here, and another segment follows")
        self._cut_tail(segment, content, segment.size_bytes)
        write_seal(self._disk, segment)
        self._disk.sync_now(segment.file)

    def _cut_tail(self, segment: Segment, content: bytes, durable: int) -> None:
        """Cut a torn tail, or refuse: whatever was once reported durable must still be whole."""
        end = segment.size_bytes
        if end < durable:
            raise self._corrupt(end, f"bad record below the durable mark {durable}")
        if end < len(content):
            self._disk.truncate(segment.file, end)
            self._disk.sync_now(segment.file)

    def _fold(self, record: Record, at: int) -> None:
        found, payload = self._found, record.payload
        entries, last = found.entries, found.position.last_index
        match record.kind:
            case RecordKind.HEADER if at == 0:
                return
            case RecordKind.ENTRY:
                index, term = ENTRY_HEAD.unpack_from(payload)
                if index != last + 1:
                    raise self._corrupt(at, f"entry {index} after {last}")
                entries.append((payload[ENTRY_HEAD.size :], index, term))
            case RecordKind.TRUNCATE:
                index = Position().after(record.kind, payload).last_index + 1
                if not 1 < index <= last:
                    raise self._corrupt(at, f"truncation at {index} of {last} entries")
                del entries[max(0, index - last - 1 + len(entries)) :]
                for segment in found.segments:
                    segment.end_index = min(segment.end_index, index)
            case RecordKind.STATE | RecordKind.COMMIT:
                pass
            case _:
                raise self._corrupt(at, f"record kind {record.kind} is unknown")
        found.position = found.position.after(record.kind, payload)

    def _corrupt(self, at: int, why: str) -> CorruptLogError:
        return _corrupt(self._path, at, why)


def write_seal(disk: Disk, segment: Segment) -> None:
    """Say at its end that another segment follows; the caller syncs the file."""
    assert not segment.is_sealed
    record = encode_record(
        RecordKind.SEAL, b"", sequence=segment.records, durable=segment.size_bytes
    )
    disk.writev(segment.file, [record], segment.size_bytes)
    segment.is_sealed = True


def _corrupt(path: str, at: int, why: str) -> CorruptLogError:
    return CorruptLogError(
        f"raft journal {path} is damaged at byte {at}: {why}", path=path, offset=at
    )


# -- the one file of format 1 ----------------------------------------------------------------------


def _take_over_one_file(disk: Disk, folder: str, *, controller_id: str) -> None:
    """Make the one file of format 1 the first segment. A kill at any point repeats it."""
    path = f"{folder}/{ONE_FILE_NAME}"
    file = disk.open(path)
    try:
        disk.sync_now(file)
        disk.forget_clean(file)
        content = disk.pread(file, disk.size(file), 0)
    finally:
        file.close()
    entries, position = _read_one_file(path, content, controller_id)
    first = entries[0][1] if entries else 1
    header = SegmentHeader(
        controller=controller_id,
        number=1,
        is_base=True,
        previous_bytes=0,
        previous_crc=0,
        position=replace(position, last_index=first - 1),
    )
    write_durably(disk, f"{folder}/{segment_name(1)}", b"".join(encode_segment(header, entries)))
    disk.unlink(path)
    disk.sync_folder(folder)


def _read_one_file(path: str, content: bytes, controller_id: str) -> tuple[list[Entry], Position]:
    entries: list[Entry] = []
    position, durable, at, sequence = Position(), 0, 0, 0
    while (record := parse_record(content, at)) is not None:
        if record.sequence != sequence:
            raise _corrupt(path, at, f"record {record.sequence} after {sequence}")
        durable = max(durable, record.mark)
        if sequence == 0:
            header = orjson.loads(record.payload)
            owner = (header["format"], header["controller"])
            if owner != (ONE_FILE_VERSION, controller_id):
                raise _corrupt(path, 0, f"format {owner[0]} of controller {owner[1]!r}")
            durable = max(durable, header["content_bytes"])
        elif record.kind == RecordKind.ENTRY:
            index, term = ENTRY_HEAD.unpack_from(record.payload)
            if entries and index != entries[-1][1] + 1:
                raise _corrupt(path, at, f"entry {index} after {entries[-1][1]}")
            entries.append((record.payload[ENTRY_HEAD.size :], index, term))
        position = position.after(record.kind, record.payload)
        if record.kind == RecordKind.TRUNCATE:
            del entries[position.last_index + 1 - entries[0][1] :]
        sequence, at = sequence + 1, record.end
    durable = max(durable, highest_mark_after(content, at))
    if at < durable or not sequence:
        raise _corrupt(path, at, f"bad record below the durable mark {max(durable, HEAD.size)}")
    return entries, position
