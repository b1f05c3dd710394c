"""The Disk of a node under test: the real one, which fails, fills up, slows down or dies on demand.

What it does wrong stands in the control page (control.py), looked at with every call. With a shadow
it also keeps note of what is dirty, and copies it to the durable image when a sync has succeeded
(shadow.py). The copy is made before the sync is reported, so nothing is acknowledged that the image
lacks; a kill in between leaves a sync that happened in part, as disks do.

Threads: everything here runs on the event loop's thread; the real disk's threads do the real work.
"""

import errno
import os
import select
import signal
from collections.abc import Awaitable, Sequence

from paceline.errors import StorageError
from paceline.platform.disk_real import RealDisk, RealFile
from paceline.platform.ports import Buffer, File, Space
from paceline.platform.runtime import pause
from paceline_chaos.processes.node.control import Control
from paceline_chaos.processes.node.shadow import Shadow

_STALL_STEP_MS = 20
"""How soon a stalled sync notices that the stall is over."""
_EVERYTHING = 1 << 62

Range = tuple[int, int]


class Dirt:
    """What was written to a file and not synced. One for each file, shared by its handles."""

    def __init__(self, file: int, ranges: list[Range]) -> None:
        self.file = file
        self.ranges = ranges
        self.low_size = _EVERYTHING
        """The smallest size since the last sync."""

    def touch(self, start: int, end: int) -> None:
        if self.ranges and self.ranges[-1][1] == start:  # logs are appended to
            self.ranges[-1] = (self.ranges[-1][0], end)
        else:
            self.ranges.append((start, end))

    def take(self) -> "Dirt":
        """What a sync that begins now makes durable."""
        taken = Dirt(self.file, self.ranges)
        taken.low_size = self.low_size
        self.ranges, self.low_size = [], _EVERYTHING
        return taken

    def give_back(self, taken: "Dirt") -> None:
        """The sync had no result."""
        self.ranges = taken.ranges + self.ranges
        self.low_size = min(self.low_size, taken.low_size)


class FaultyFile:
    """A file of this disk; closed when the last sync is done."""

    def __init__(self, inner: RealFile, dirt: Dirt | None) -> None:
        self.inner = inner
        self.dirt = dirt
        self._syncs_count = 0
        self._is_open = True

    @property
    def path(self) -> str:
        return self.inner.path

    def close(self) -> None:
        self._is_open = False
        if self._syncs_count == 0:
            self.inner.close()

    def sync_begun(self) -> None:
        if not self._is_open:
            raise StorageError(f"{self.path} is closed", path=self.path)
        self._syncs_count += 1

    def sync_ended(self) -> None:
        self._syncs_count -= 1
        if not self._is_open and self._syncs_count == 0:
            self.inner.close()


class FaultyDisk:
    """See the module."""

    def __init__(self, inner: RealDisk, control: Control, shadow: Shadow | None) -> None:
        self._inner = inner
        self._control = control
        self._shadow = shadow
        self._dirt: dict[int, Dirt] = {}

    def make_folder(self, path: str) -> None:
        self._inner.make_folder(path)

    def lock_folder(self, path: str) -> FaultyFile:
        return FaultyFile(self._inner.lock_folder(path), None)  # its content means nothing

    def list(self, path: str) -> list[str]:
        return self._inner.list(path)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        is_new = create and not self._inner.exists(path)
        if is_new:
            self._change("create", path, grows=True)
        return self._opened(self._inner.open(path, create=create), is_new=is_new)

    def _opened(self, inner: RealFile, *, is_new: bool) -> FaultyFile:
        shadow = self._shadow
        if shadow is None:
            return FaultyFile(inner, None)
        file = shadow.file_of(inner.path)
        if is_new or file is None:
            number = shadow.created if is_new else shadow.adopted
            file = number(inner.path, inner.descriptor)
            self._dirt[file] = Dirt(file, [])
        elif file not in self._dirt:
            # An earlier process wrote it, and did not say what it had synced: all of it may be
            # dirty, but what a failed sync of that process has dropped.
            size = os.fstat(inner.descriptor).st_size
            self._dirt[file] = Dirt(file, _without((0, size), shadow.lost_ranges(file)))
        return FaultyFile(inner, self._dirt[file])

    def size(self, file: File) -> int:
        return self._inner.size(_own(file).inner)

    def writev(self, file: File, buffers: Sequence[Buffer], at: int) -> int:
        own = _own(file)
        size_bytes = sum(map(len, buffers))
        self._change("write", own.path)
        if self._control.get("is_full") and at + size_bytes > self.size(file):
            raise _failure("write", own.path, errno.ENOSPC)
        if self._control.take("write_failures"):
            raise _failure("write", own.path, errno.EIO)
        if own.dirt is not None:
            # From the old end on: writing behind it fills the gap with zeros.
            own.dirt.touch(min(at, self.size(file)), at + size_bytes)
        return self._inner.writev(own.inner, buffers, at)

    def pread(self, file: File, size: int, at: int) -> bytes:
        return self._inner.pread(_own(file).inner, size, at)

    def data_extents(self, file: File, at: int) -> Sequence[Range]:
        return self._inner.data_extents(_own(file).inner, at)

    def map(self, file: File, size: int) -> memoryview:
        return self._inner.map(_own(file).inner, size)

    def is_resident(self, view: memoryview) -> bool:
        return self._inner.is_resident(view)

    def warm(self, view: memoryview) -> Awaitable[None]:
        return self._inner.warm(view)

    def release(self, view: memoryview) -> None:
        self._inner.release(view)

    def preallocate(self, file: File, size: int) -> None:
        own = _own(file)
        self._change("preallocation", own.path, grows=size > self.size(file))
        self._inner.preallocate(own.inner, size)

    def truncate(self, file: File, size: int) -> None:
        own = _own(file)
        self._change("truncate", own.path, grows=size > self.size(file))
        if own.dirt is not None:
            own.dirt.low_size = min(own.dirt.low_size, size)
        self._inner.truncate(own.inner, size)

    def sync(self, file: File) -> Awaitable[None]:
        own = _own(file)
        own.sync_begun()
        return self._sync(own, None if own.dirt is None else own.dirt.take())

    async def _sync(self, own: FaultyFile, taken: Dirt | None) -> None:
        try:
            self._change("fdatasync", own.path)
            if self._fails(own, taken):
                taken = None
                raise _failure("fdatasync", own.path, errno.EIO)
            await self._inner.sync(own.inner)
            await self._stall()
            self._settle(own, taken)
            taken = None
        finally:
            if taken is not None and own.dirt is not None:
                own.dirt.give_back(taken)
            own.sync_ended()

    def sync_now(self, file: File) -> None:
        own = _own(file)
        taken = None if own.dirt is None else own.dirt.take()
        self._change("fsync", own.path)
        if self._fails(own, taken):
            raise _failure("fsync", own.path, errno.EIO)
        self._inner.sync_now(own.inner)
        self._stall_now()
        self._settle(own, taken)

    def forget_clean(self, file: File) -> None:
        own = _own(file)
        if self._shadow is not None and own.dirt is not None:
            self._shadow.forget_clean(own.dirt.file, own.inner.descriptor)
        self._inner.forget_clean(own.inner)

    def sync_folder(self, path: str) -> None:
        self._change("fsync", path)
        if self._control.take("sync_failures"):
            raise _failure("fsync", path, errno.EIO)
        self._inner.sync_folder(path)
        self._stall_now()
        if self._shadow is not None:
            self._shadow.folder_synced(path)

    async def sync_folder_later(self, path: str) -> None:
        self._change("fsync", path)
        if self._control.take("sync_failures"):
            raise _failure("fsync", path, errno.EIO)
        await self._inner.sync_folder_later(path)
        await self._stall()
        if self._shadow is not None:
            self._shadow.folder_synced(path)

    async def create_ahead(self, path: str, size: int) -> FaultyFile:
        self._change("preallocation", path, grows=True)
        is_new = not self._inner.exists(path)
        file = self._opened(await self._inner.create_ahead(path, size), is_new=is_new)
        await self._stall()
        self._settle(file, None if file.dirt is None else file.dirt.take())
        return file

    def rename(self, source: str, target: str) -> None:
        self._change("rename", source)
        if self._shadow is not None and self._shadow.file_of(source) is None:
            self.open(source).close()  # from here on it is known
        self._inner.rename(source, target)
        if self._shadow is not None:
            self._shadow.renamed(source, target)

    def unlink(self, path: str) -> None:
        self._change("unlink", path)
        self._inner.unlink(path)
        if self._shadow is not None:
            self._shadow.unlinked(path)

    async def unlink_later(self, path: str) -> None:
        self.unlink(path)

    def space(self, path: str) -> Space:
        found = self._inner.space(path)
        return found._replace(free_bytes=0) if self._control.get("is_full") else found

    # -- faults -----------------------------------------------------------------------------------

    def _change(self, operation: str, path: str, *, grows: bool = False) -> None:
        """Every operation that changes something: the fuse, and a full disk."""
        if self._control.get("fuse") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self._control.take("fuse")
        if grows and self._control.get("is_full"):
            raise _failure(operation, path, errno.ENOSPC)

    def _fails(self, own: FaultyFile, taken: Dirt | None) -> bool:
        """A sync that fails drops the pages: Linux calls them clean afterwards (R22)."""
        if not self._control.take("sync_failures"):
            return False
        if taken is not None and self._shadow is not None:
            self._shadow.dropped(taken.file, taken.ranges)
        return True

    async def _stall(self) -> None:
        waited_ms = 0
        while waited_ms < self._control.get("sync_delay_ms"):
            step_ms = min(_STALL_STEP_MS, self._control.get("sync_delay_ms") - waited_ms)
            await pause(step_ms)
            waited_ms += step_ms

    def _stall_now(self) -> None:
        waited_ms = 0
        while waited_ms < self._control.get("sync_delay_ms"):
            select.select([], [], [], _STALL_STEP_MS / 1000)  # it blocks, as a real one would
            waited_ms += _STALL_STEP_MS

    def _settle(self, own: FaultyFile, taken: Dirt | None) -> None:
        if taken is None or self._shadow is None:
            return
        size = os.fstat(own.inner.descriptor).st_size
        self._shadow.settle(
            taken.file,
            own.inner.descriptor,
            taken.ranges,
            low_size=min(taken.low_size, size),
            size=size,
        )


def _own(file: File) -> FaultyFile:
    assert isinstance(file, FaultyFile), file
    return file


def _failure(operation: str, path: str, number: int) -> StorageError:
    return StorageError(
        f"{operation} of {path} failed: {os.strerror(number)}", path=path, errno=number
    )


def _without(whole: Range, holes: Sequence[Range]) -> list[Range]:
    """The parts of a range that are in none of the holes."""
    found, at = [], whole[0]
    for start, end in sorted(holes):
        if start > at:
            found.append((at, min(start, whole[1])))
        at = max(at, end)
    if at < whole[1]:
        found.append((at, whole[1]))
    return [(start, end) for start, end in found if start < end]
