"""The notes on disk: chunks at the end of one file, emptied when a master has heard all (R36).

A note that is lost costs a message that comes twice, so what is damaged is cut off and not guessed.
docs/format/acting-escaped.md has the content.
"""

import asyncio
import logging
import struct
from collections.abc import Iterator, Sequence

from crc32c import crc32c

from paceline.ports import Disk
from paceline_broker.escape.notes import Note, Notes

log = logging.getLogger("paceline.acting")

FILE = "acting-escaped.bin"
MAGIC = 0x31455350  # "PSE1"
_HEAD = struct.Struct("<III")  # magic, count of notes, CRC of them
_NOTE = struct.Struct("<" + Notes.TYPES)


class NotesFile:
    """Owner of the file and of the notes in it; used on the event loop only."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        """Reads the file."""
        self._disk = disk
        self._folder = data_dir
        self._path = f"{data_dir}/{FILE}"
        self.notes = Notes()
        self._size = 0
        self._unsaved: list[bytes] = []
        self._writing = asyncio.Lock()
        self._load()

    def add(self, notes: Sequence[Note]) -> None:
        """Note what another group has confirmed; `save` makes it durable."""
        self.notes.add(notes)
        rows = b"".join(_NOTE.pack(*note) for note in notes)
        self._unsaved.append(_HEAD.pack(MAGIC, len(notes), crc32c(rows)) + rows)

    async def save(self) -> None:
        """Return when all that was added is on disk, or told. Raises StorageError."""
        async with self._writing:  # whoever waited finds its own written too
            if not self._unsaved:
                return
            chunks, self._unsaved = self._unsaved, []
            try:
                await self._write(chunks, at=self._size)
            except BaseException:
                self._unsaved = chunks + self._unsaved
                raise
            self._size += sum(map(len, chunks))

    async def settle(self, count: int) -> None:
        """A master has decided the oldest `count` notes. Raises StorageError."""
        self.notes.settle(count)
        async with self._writing:
            if len(self.notes) or not self._size:
                return
            self._unsaved.clear()
            await self._write([], at=0)
            self._size = 0

    async def _write(self, chunks: Sequence[bytes], *, at: int) -> None:
        is_new = not self._disk.exists(self._path)
        file = self._disk.open(self._path, create=True)
        try:
            self._disk.truncate(file, at)
            if chunks:
                self._disk.writev(file, chunks, at)
            await self._disk.sync(file)
        finally:
            file.close()
        if is_new:
            await self._disk.sync_folder_later(self._folder)

    def _load(self) -> None:
        if not self._disk.exists(self._path):
            return
        file = self._disk.open(self._path)
        try:
            content = self._disk.pread(file, self._disk.size(file), 0)
        finally:
            file.close()
        for notes, end in _chunks(content):
            self.notes.add(notes)
            self._size = end
        if self._size < len(content):
            log.warning(
                "escape_notes_cut", extra={"bytes": len(content) - self._size, "kept": self._size}
            )


def _chunks(content: bytes) -> Iterator[tuple[list[Note], int]]:
    """Whole chunks and where each ends."""
    at = 0
    while at + _HEAD.size <= len(content):
        magic, count, crc = _HEAD.unpack_from(content, at)
        end = at + _HEAD.size + count * _NOTE.size
        rows = content[at + _HEAD.size : end]
        if magic != MAGIC or len(rows) != count * _NOTE.size or crc32c(rows) != crc:
            return
        yield [Note(*row) for row in _NOTE.iter_unpack(rows)], end
        at = end
