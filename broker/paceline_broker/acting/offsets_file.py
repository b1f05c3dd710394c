"""The provisional offsets on disk: one small sealed file, replaced as a whole (R36).

Commits of one turn, and those that come while the disk works, share the next write; who committed
is answered when it is durable. docs/format/acting-offsets.md has the content.
"""

import asyncio
import logging
from collections.abc import Callable

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.ports import Disk, read_whole
from paceline.platform.runtime import spawn
from paceline.platform.sealed import seal, unseal
from paceline_broker.acting.offsets import ProvisionalOffsets
from paceline_broker.storage.durable_files import write_durably_later

log = logging.getLogger("paceline.acting")

FILE = "acting-offsets.json"
VERSION = 1


class OffsetsFile:
    """Owner of the file and of the state in it; used on the event loop only."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        """Reads the file. A damaged one is put aside: it was soft, and is not guessed."""
        self._disk = disk
        self._folder = data_dir
        self._path = f"{data_dir}/{FILE}"
        self.offsets = self._load()
        self._saved = self.offsets.changes
        self._waiters: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    async def save(self) -> None:
        """Return when the present state is on disk. Raises StorageError."""
        if self._saved == self.offsets.changes:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self._task is None or self._task.done():
            self._task = spawn(self._write_all(), name="acting-offsets")
        await waiter

    async def close(self) -> None:
        """Let the write that was begun end."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _write_all(self) -> None:
        while self._waiters:
            waiters, self._waiters = self._waiters, []
            outcome: Callable[[asyncio.Future[None]], None] = _done
            try:
                await self._write()
            except StorageError as error:
                log.error("acting_offsets_not_saved", extra={"fault": error.message})
                outcome = _failed(error)
            for waiter in waiters:
                if not waiter.done():
                    outcome(waiter)

    async def _write(self) -> None:
        changes = self.offsets.changes
        content = seal({"version": VERSION, "offsets": self.offsets.to_json()})
        await write_durably_later(self._disk, self._path, content)
        self._saved = changes

    def _load(self) -> ProvisionalOffsets:
        if not self._disk.exists(self._path):
            return ProvisionalOffsets()
        content = read_whole(self._disk, self._path)
        try:
            document = unseal(content)
            if document["version"] != VERSION:
                raise CorruptLogError(f"version {document['version']}, this one knows {VERSION}")
            return ProvisionalOffsets.from_json(document["offsets"])
        except (CorruptLogError, ValueError, KeyError, TypeError, IndexError) as error:
            log.error("acting_offsets_damaged", extra={"path": self._path, "fault": repr(error)})
            self._disk.rename(self._path, f"{self._path}.damaged")
            self._disk.sync_folder(self._folder)
            return ProvisionalOffsets()


def _done(waiter: "asyncio.Future[None]") -> None:
    waiter.set_result(None)


def _failed(error: StorageError) -> "Callable[[asyncio.Future[None]], None]":
    def fail(waiter: "asyncio.Future[None]") -> None:
        waiter.set_exception(error)

    return fail
