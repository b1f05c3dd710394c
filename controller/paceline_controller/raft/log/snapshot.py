"""Snapshots of the replicated machine: their file, and their way to a follower far behind.

Replaces the library's serializer, which pickles, forks, and logs a failed load only to go on empty
(P12). A snapshot holds the machine's own bytes and the last two log entries below it, which the
library needs to continue the log. Every read checks the CRC; a bad file stops the node.

`SnapshotStore` is the library's serializer interface (its camel-case names) plus `save`.
Owner: the event loop of one `RaftCore`.
"""

import base64
import struct
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson
from crc32c import crc32c

from paceline.errors import CorruptLogError, PeerError
from paceline.platform.ports import Clock, Disk, read_whole, temporary_name, write_durably
from paceline_controller.raft.log.entries import Entry
from paceline_controller.raft.members import Members, read_members
from paceline_controller.raft.settings import SNAPSHOT_BYTES_MAX, SNAPSHOT_CHUNK_BYTES

FORMAT_VERSION = 2
_HEAD = struct.Struct("<4sIII")  # magic, crc of the rest, format, length of the JSON part
_MAGIC = b"PLS1"
_CRC_FROM = 8
_NOT_SERIALIZING = 0  # pysyncobj.SERIALIZER_STATE.NOT_SERIALIZING

Chunk: TypeAlias = tuple[bytes, int, int]
"""(bytes, offset, total size of the snapshot)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of the machine after `last` was applied."""

    last: Entry
    previous: Entry
    machine: bytes
    members: Members | None = None
    """The generation in force at `last`; None in a file of format 1: as configured."""

    @property
    def index(self) -> int:
        return self.last[1]

    @property
    def term(self) -> int:
        return self.last[2]


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of the file, also what is sent."""
    members = snapshot.members
    document = orjson.dumps(
        {
            "last": _entry_to_json(snapshot.last),
            "previous": _entry_to_json(snapshot.previous),
            "members": None if members is None else members.to_json(),
        }
    )
    head = _HEAD.pack(_MAGIC, 0, FORMAT_VERSION, len(document))
    rest = head[_CRC_FROM:] + document + snapshot.machine
    return _MAGIC + crc32c(rest).to_bytes(4, "little") + rest


def parse_snapshot(content: bytes) -> Snapshot:
    """Raises CorruptLogError on anything that `encode_snapshot` did not make."""
    if len(content) < _HEAD.size:
        raise CorruptLogError(f"raft snapshot of {len(content)} bytes")
    magic, crc, version, length = _HEAD.unpack_from(content)
    if magic != _MAGIC or crc32c(memoryview(content)[_CRC_FROM:]) != crc:
        raise CorruptLogError("raft snapshot fails its checksum")
    if version not in (1, FORMAT_VERSION):
        raise CorruptLogError(f"raft snapshot format {version} is unknown")
    body_at = _HEAD.size + length
    document = orjson.loads(content[_HEAD.size : body_at])
    snapshot = Snapshot(
        last=_entry_from_json(document["last"]),
        previous=_entry_from_json(document["previous"]),
        machine=content[body_at:],
        members=_members_from_json(document.get("members")),
    )
    if snapshot.previous[1] != snapshot.index - 1:
        raise CorruptLogError(
            f"raft snapshot: entry {snapshot.previous[1]} before {snapshot.index}"
        )
    return snapshot


def _members_from_json(document: object) -> Members | None:
    if document is None:
        return None
    try:
        return read_members(document)
    except PeerError as error:
        raise CorruptLogError(f"raft snapshot: {error.message}") from error


def _entry_to_json(entry: Entry) -> list[Any]:
    command, index, term = entry
    return [base64.b64encode(command).decode(), index, term]


def _entry_from_json(fields: list[Any]) -> Entry:
    command, index, term = fields
    return base64.b64decode(command), int(index), int(term)


class SnapshotStore:
    """The newest snapshot on disk, snapshots on their way out, and the one coming in."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        chunk_bytes: int = SNAPSHOT_CHUNK_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self.saved_at_ms: int | None = None
        self._path = path
        self._chunk_bytes = chunk_bytes
        self._content: bytes | None = None
        self._saves = 0  # begun so far; a newer one takes an older one's place
        self._sent_bytes: dict[Hashable, tuple[bytes, int]] = {}  # content and progress per peer
        self._incoming = bytearray()
        self.received: Snapshot | None = None

    def load(self) -> Snapshot | None:
        """The snapshot on disk, None if there is none; CorruptLogError if it is damaged."""
        if not self._disk.exists(self._path):
            return None
        content = read_whole(self._disk, self._path)
        snapshot = parse_snapshot(content)
        self._content = content
        return snapshot

    def save(self, snapshot: Snapshot) -> None:
        """Replace the file; durable on return."""
        content = encode_snapshot(snapshot)
        self._saves += 1
        write_durably(self._disk, self._path, content)
        self._saved(content)

    async def save_later(self, snapshot: Snapshot) -> bool:
        """`save` off the event loop; False if `save` was called meanwhile, which then counts."""
        content = encode_snapshot(snapshot)
        self._saves += 1
        number, temporary = self._saves, temporary_name(self._path)
        if self._disk.exists(temporary):
            self._disk.unlink(temporary)
        file = self._disk.open(temporary, create=True)
        try:
            self._disk.writev(file, [content], 0)
            await self._disk.sync(file)
        finally:
            file.close()
        if number != self._saves:
            return False  # the temporary file is the newer one's, and has its name already
        self._disk.rename(temporary, self._path)
        await self._disk.sync_folder_later(self._path.rpartition("/")[0])
        if number != self._saves:
            return False
        self._saved(content)
        return True

    def _saved(self, content: bytes) -> None:
        self._content = content
        if self._clock is not None:
            self.saved_at_ms = self._clock.monotonic_ms()

    # -- the library's interface -------------------------------------------------------------------

    def checkSerializing(self) -> tuple[int, None]:  # noqa: N802 - the library's name
        return _NOT_SERIALIZING, None

    def getTransmissionData(self, transmissionID: Hashable) -> "OutgoingChunk":  # noqa: N802, N803
        """The next chunk for that peer."""
        content, offset = self._sent_bytes.get(transmissionID, (self._content, 0))
        # The library asks only for a follower below the journal's start, and only `save` moves it.
        assert content is not None, "the journal was cut without a snapshot"
        data = content[offset : offset + self._chunk_bytes]
        if offset + len(data) == len(content):
            self._sent_bytes.pop(transmissionID, None)
        else:
            self._sent_bytes[transmissionID] = (content, offset + len(data))
        # The library reads [2] as "this was the last one"; the outbound path reads all three.
        return OutgoingChunk((data, offset, offset + len(data) == len(content)), len(content))

    def setTransmissionData(self, data: Chunk) -> bool:  # noqa: N802
        """Take a chunk; True when `received` holds a whole snapshot."""
        chunk, offset, total = data
        if offset == 0:
            self._incoming.clear()
        if offset != len(self._incoming) or total > SNAPSHOT_BYTES_MAX:
            self._incoming.clear()  # a chunk was lost with its link: the leader starts again
            return False
        self._incoming += chunk
        if len(self._incoming) < total:
            return False
        content = bytes(self._incoming)
        self._incoming.clear()
        self.received = parse_snapshot(content)
        return True

    def cancelTransmisstion(self, id: Hashable) -> None:  # noqa: A002, N802 - spelt by the library
        self._sent_bytes.pop(id, None)


class OutgoingChunk(tuple[bytes, int, bool]):
    """(bytes, offset, is last) as the library wants it, with the total beside it."""

    total_bytes: int

    def __new__(cls, parts: tuple[bytes, int, bool], total_bytes: int) -> "OutgoingChunk":
        chunk = super().__new__(cls, parts)
        chunk.total_bytes = total_bytes
        return chunk
