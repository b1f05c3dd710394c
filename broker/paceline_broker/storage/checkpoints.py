"""Projection checkpoints on disk: `projections/<20-digit position>.ckpt`.

A checkpoint is the projections' own snapshot bytes at one log position, which was confirmed and
flushed when the file was written (R13, R28), behind a small header:

    offset size field
    0      4    magic       0x50434b50 ("PKCP"), also the format version
    4      4    crc32c      of bytes 8 .. end
    8      8    position    u64 LE
    16     ..   snapshot

Two are kept, so that a damaged newest one costs a longer fold and not the state.
"""

import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.ports import Buffer, Disk, File, read_whole
from paceline.platform.runtime import pause
from paceline.types import PhysicalOffset
from paceline_broker.log.layout import ASIDE_SUFFIX, aside_name
from paceline_broker.projections.snapshots import crc_of

MAGIC = 0x50434B50
_HEAD = struct.Struct("<II")
_POSITION = struct.Struct("<Q")
KEPT_COUNT = 2
SLICE_BYTES = 128 * 1024
SLICE_PAUSE_MS = 2
"""A slice takes the loop some 1 ms; those of a large snapshot one after another took 100."""
_ZERO = PhysicalOffset(0)
SUFFIX = ".ckpt"
UNFINISHED_SUFFIX = ".new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A loaded checkpoint: the projections' state after everything below `position`."""

    position: PhysicalOffset
    snapshot: bytes


class CheckpointFolder:
    """Owner of the folder `projections/` of one store."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        disk.make_folder(folder)
        for name in disk.list(folder):
            if name.endswith(UNFINISHED_SUFFIX):  # a crash came before its rename
                disk.unlink(f"{folder}/{name}")

    def newest(
        self, *, limit: PhysicalOffset, log_start: PhysicalOffset = _ZERO
    ) -> Checkpoint | None:
        """The newest intact checkpoint at or below `limit` (the recovered end, R13), or None.

        One below `log_start` is none: what follows it in the log is gone.
        """
        for name in reversed(self._names()):
            position = int(name.removesuffix(SUFFIX))
            if not log_start <= position <= limit:
                continue
            found = self._load(f"{self._folder}/{name}", position)
            if found is not None:
                return found
        return None

    def oldest_position(self) -> PhysicalOffset:
        """Of the kept checkpoints; the log must reach back to it, in case the newer one is bad."""
        names = self._names()
        return PhysicalOffset(int(names[0].removesuffix(SUFFIX))) if names else _ZERO

    def drop_bad(self) -> list[str]:
        """Remove checkpoints that a disk has damaged; their paths. The next one replaces them."""
        bad = []
        for name in self._names():
            path = f"{self._folder}/{name}"
            if self._load(path, int(name.removesuffix(SUFFIX))) is None:
                self._disk.unlink(path)
                bad.append(path)
        if bad:
            self._disk.sync_folder(self._folder)
        return bad

    def drop_beyond(self, limit: PhysicalOffset) -> None:
        """Remove checkpoints above the log's end: they describe bytes that are gone (R13).

        Also before a truncation: at their positions other records will stand.
        """
        self._drop(lambda position: position > limit)

    def drop_below(self, base: PhysicalOffset) -> None:
        """Remove checkpoints below the one that was installed: they are of what was given up, and
        a crash came before `keep_only` (R14)."""
        self._drop(lambda position: position < base)

    def keep_only(self, position: PhysicalOffset) -> None:
        """The log begins anew: other checkpoints are of what was given up (R14)."""
        self._drop(lambda other: other != position)

    def _drop(self, is_wrong: Callable[[int], bool]) -> None:
        """Durably: one that comes back after a power loss would be believed."""
        wrong = [name for name in self._names() if is_wrong(int(name.removesuffix(SUFFIX)))]
        for name in wrong:
            self._disk.unlink(f"{self._folder}/{name}")
        if wrong:
            self._disk.sync_folder(self._folder)

    async def write(
        self,
        position: PhysicalOffset,
        snapshot: Sequence[bytes],
        *,
        is_current: Callable[[], bool],
    ) -> bool:
        """Write one checkpoint, of a snapshot in pieces, durably; its syncs leave the event loop,
        and between slices others have their turn.

        The caller guarantees that `position` is confirmed and flushed. False if `is_current` no
        longer holds after a sync. The checkpoint is removed if that is the sync of its file; if it
        is the sync of the folder, the truncation has removed it where it lies beyond the new end.
        It is also removed after a StorageError of its file.
        """
        path = f"{self._folder}/{position:020d}{SUFFIX}"
        temporary = f"{self._folder}/.{position:020d}{UNFINISHED_SUFFIX}"
        file = self._disk.open(temporary, create=True)
        try:
            await self._fill(file, [_POSITION.pack(position), *snapshot])
        except StorageError:
            self._disk.unlink(temporary)  # on a full disk it has taken the last room
            raise
        finally:
            file.close()
        if not is_current():
            self._disk.unlink(temporary)
            return False
        self._disk.rename(temporary, path)
        await self._disk.sync_folder_later(self._folder)
        if not is_current():
            return False
        for name in self._names()[:-KEPT_COUNT]:
            self._disk.unlink(f"{self._folder}/{name}")
        return True

    async def _fill(self, file: File, tail: Sequence[bytes]) -> None:
        self._disk.truncate(file, 0)
        at = 0
        for buffers in _slices([_HEAD.pack(MAGIC, crc_of(tail)), *tail]):
            if at:
                await pause(SLICE_PAUSE_MS)
            at += self._disk.writev(file, buffers, at)
        await self._disk.sync(file)

    def newest_file(
        self, *, limit: PhysicalOffset, log_start: PhysicalOffset
    ) -> tuple[PhysicalOffset, bytes] | None:
        """Position and whole content of the newest intact checkpoint, for a replica (R14)."""
        found = self.newest(limit=limit, log_start=log_start)
        if found is None:
            return None
        tail = _POSITION.pack(found.position) + found.snapshot
        return found.position, _HEAD.pack(MAGIC, crc32c(tail)) + tail

    def begin_receiving(self, position: PhysicalOffset) -> "ReceivedCheckpoint":
        """A file for a master's checkpoint, which comes in pieces; one of an older try goes."""
        path = f"{self._folder}/.{position:020d}{UNFINISHED_SUFFIX}"
        return ReceivedCheckpoint(self._disk, path, position)

    def adopt(self, received: "ReceivedCheckpoint") -> None:
        """Make what was received, synced and is intact a checkpoint; durable on return.

        CorruptLogError if it is not one of that position.
        """
        received.close()
        if self._load(received.path, received.position) is None:
            raise CorruptLogError(f"what was sent is no checkpoint of {received.position}")
        self._disk.rename(received.path, f"{self._folder}/{received.position:020d}{SUFFIX}")
        self._disk.sync_folder(self._folder)

    def set_aside(self) -> None:
        """All of them, durably, in place of those kept before: nothing here is loaded any more."""
        for name in self._disk.list(self._folder):
            if name.endswith(ASIDE_SUFFIX):
                self._disk.unlink(f"{self._folder}/{name}")
        for name in self._names():
            self._disk.rename(f"{self._folder}/{name}", f"{self._folder}/{aside_name(name)}")
        self._disk.sync_folder(self._folder)

    def _names(self) -> list[str]:
        return [name for name in self._disk.list(self._folder) if name.endswith(SUFFIX)]

    def _load(self, path: str, position: int) -> Checkpoint | None:
        content = read_whole(self._disk, path)
        start = _HEAD.size + _POSITION.size
        if len(content) < start:
            return None
        magic, crc = _HEAD.unpack_from(content)
        if magic != MAGIC or crc != crc32c(memoryview(content)[_HEAD.size :]):
            return None
        if _POSITION.unpack_from(content, _HEAD.size)[0] != position:
            return None
        return Checkpoint(position=PhysicalOffset(position), snapshot=content[start:])


class ReceivedCheckpoint:
    """The CheckpointTarget of one connection (replication/install.py)."""

    def __init__(self, disk: Disk, path: str, position: PhysicalOffset) -> None:
        self._disk = disk
        self.path = path
        self.position = position
        self._file = disk.open(path, create=True)
        self._is_open = True
        self._size = 0
        disk.truncate(self._file, 0)

    def write(self, piece: Buffer) -> None:
        self._disk.writev(self._file, [piece], self._size)
        self._size += len(piece)

    def synced(self) -> Awaitable[None]:
        return self._disk.sync(self._file)

    def sync_now(self) -> None:
        self._disk.sync_now(self._file)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._file.close()

    def discard(self) -> None:
        """The connection has gone; the file stays until the next try or start, and is not read."""
        self.close()


def _slices(pieces: Iterable[bytes]) -> Iterator[list[memoryview]]:
    """The same bytes, in lists of some `SLICE_BYTES`."""
    found: list[memoryview] = []
    size = 0
    for piece in pieces:
        view = memoryview(piece)
        for at in range(0, len(view), SLICE_BYTES):
            found.append(view[at : at + SLICE_BYTES])
            size += len(found[-1])
            if size >= SLICE_BYTES:
                yield found
                found, size = [], 0
    if found:
        yield found
