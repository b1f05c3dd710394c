"""The notes on disk: chunks at the end of one file, emptied when a master has heard all (R36).

A note that is lost costs a message that comes twice, so what is damaged is cut off and not guessed.
docs/format/acting-escaped.md has the content.
"""

import asyncio
import logging
import struct
from collections.abc import Iterator, Sequence

from crc32c import crc32c

from paceline.errors import StorageError
from paceline.platform.ports import Disk, read_whole
from paceline.platform.runtime import pause
from paceline_broker.service.escape.notes import Notes, SentNote

log = logging.getLogger("paceline.acting")

FILE = "acting-escaped.bin"
MAGIC = 0x31455350  # "PSE1"
_HEAD = struct.Struct("<III")  # magic, count of notes, CRC of them
_NOTE = struct.Struct("<" + Notes.TYPES)
_PART_NOTES = 4096
"""Packed in one turn of the loop."""
MANY_NOTES = 16_384
"""So many take some 20 ms to write anew."""
AGAIN_S = 5.0
"""Many are not written anew again before: each message that goes out would wait for that."""


class NotesFile:
    """Owner of the file and of the notes in it; used on the event loop only."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        """Reads the file."""
        self._disk = disk
        self._folder = data_dir
        self._path = f"{data_dir}/{FILE}"
        self.notes = Notes()
        self._size = 0
        self._is_suspect = False
        """A write or fsync of the file failed: what it has now nobody knows (R22)."""
        self._again_at = 0.0
        """When many notes may be written anew, in the loop's time."""
        self._unsaved: list[bytes] = []
        self._writing = asyncio.Lock()
        self._load()

    def add(self, notes: Sequence[SentNote]) -> None:
        """Note what another group has confirmed; `save` makes it durable."""
        self.notes.add(notes)
        self._unsaved.append(_chunk(notes))

    async def save(self) -> None:
        """Return when all that was added is on disk, or told. Raises StorageError."""
        async with self._writing:  # whoever waited finds its own written too
            if self._is_suspect:
                await self._replace()
                return
            if not self._unsaved:
                return
            chunks, self._unsaved = self._unsaved, []
            await self._write(chunks, at=self._size)

    async def settle(self, count: int) -> None:
        """A master has decided the oldest `count` notes. Raises StorageError."""
        self.notes.settle(count)
        async with self._writing:
            if len(self.notes) or not (self._size or self._is_suspect):
                return
            self._unsaved.clear()
            if self._is_suspect:
                await self._replace()
            else:
                await self._write([], at=0)

    async def _write(self, chunks: Sequence[bytes], *, at: int) -> None:
        """The file as it is up to `at`, and then the chunks."""
        self._is_suspect = True  # until all of it was done
        is_new = not self._disk.exists(self._path)
        await self._put(self._path, chunks, at=at)
        if is_new:
            await self._disk.sync_folder_later(self._folder)
        self._size = at + sum(map(len, chunks))
        self._is_suspect = False

    async def _replace(self) -> None:
        """All notes into a new file: a failed fsync is never repeated (R22).

        A second one would succeed without those pages that the first one has given up.
        """
        temporary = f"{self._path}.new"
        chunks: list[bytes] = []
        self._unsaved.clear()  # they are among all that there are now
        now = asyncio.get_running_loop().time()
        if len(self.notes) > MANY_NOTES and now < self._again_at:
            raise StorageError(f"{self._path} could not be written anew a moment ago")
        self._again_at = now + AGAIN_S
        if self._disk.exists(temporary):  # it has failed, too
            self._disk.unlink(temporary)
        for notes in self.notes.parts(_PART_NOTES):
            chunks.append(_chunk(notes))
            await pause(0)  # others have their turn
        try:
            await self._put(temporary, chunks, at=0)
        except StorageError:
            if self._disk.exists(temporary):
                self._disk.unlink(temporary)  # on a full disk it has taken the last room
            raise
        self._disk.rename(temporary, self._path)
        await self._disk.sync_folder_later(self._folder)
        self._size = sum(map(len, chunks))
        self._is_suspect = False
        log.info("escape_notes_written_anew", extra={"bytes": self._size})

    async def _put(self, path: str, chunks: Sequence[bytes], *, at: int) -> None:
        file = self._disk.open(path, create=True)
        try:
            self._disk.truncate(file, at)
            if chunks:
                self._disk.writev(file, chunks, at)
            await self._disk.sync(file)
        finally:
            file.close()

    def _load(self) -> None:
        if not self._disk.exists(self._path):
            return
        content = read_whole(self._disk, self._path)
        for notes, end in _chunks(content):
            self.notes.add(notes)
            self._size = end
        if self._size < len(content):
            log.warning(
                "escape_notes_cut", extra={"bytes": len(content) - self._size, "kept": self._size}
            )


def _chunk(notes: Sequence[SentNote]) -> bytes:
    rows = b"".join(_NOTE.pack(*note) for note in notes)
    return _HEAD.pack(MAGIC, len(notes), crc32c(rows)) + rows


def _chunks(content: bytes) -> Iterator[tuple[list[SentNote], int]]:
    """Whole chunks and where each ends."""
    at = 0
    while at + _HEAD.size <= len(content):
        magic, count, crc = _HEAD.unpack_from(content, at)
        end = at + _HEAD.size + count * _NOTE.size
        rows = content[at + _HEAD.size : end]
        if magic != MAGIC or len(rows) != count * _NOTE.size or crc32c(rows) != crc:
            return
        yield [SentNote(*row) for row in _NOTE.iter_unpack(rows)], end
        at = end
