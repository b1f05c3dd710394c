"""The in-memory twin of the Disk port: it forgets what a real disk forgets when the power fails.

Every file has a volatile image (what the process sees) and a durable one (what survives). `sync`
copies the dirty 4 KiB pages of a file, `sync_folder` the names of a folder. `crash` throws the rest
away: each dirty page survives by chance, is lost, or is torn at 512-byte sectors; creates, renames
and unlinks survive as a prefix of the order in which they were made. `fuse` stops the machine after
a number of operations, `fail_next` makes one call fail, `flip_bit`, `wipe` and `lose` damage what
is stored.

Everything runs on the caller's thread; `sync` and `warm` suspend only if a delay was asked for.
"""

from collections.abc import Callable, Sequence

from paceline.errors import StorageError
from paceline.platform.memory_images import PAGE_BYTES, Folder, Inode, prefix_length
from paceline.platform.ports import Buffer, File, Random, Space
from paceline.platform.runtime import pause

_BOUNDLESS_BYTES = 1 << 50
"""What a disk without a capacity says it has."""


class PowerLost(BaseException):  # noqa: N818 - an event, not an error: nobody may catch it as one
    """The fuse has blown: the machine does nothing more until `crash` has been called."""


class MemoryFile:
    """An open file; stale after a crash."""

    __slots__ = ("_disk", "generation", "inode", "is_open", "path")

    def __init__(self, disk: "MemoryDisk", path: str, inode: Inode, generation: int) -> None:
        self._disk = disk
        self.path = path
        self.inode = inode
        self.generation = generation
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
        self._disk.release_lock(self)


class MemoryDisk:
    """A Disk in memory, with the faults of a real one on demand."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.fuse: int | None = None  # operations left until PowerLost; None = never
        self.observer: Callable[[str, str], None] | None = None  # called before each change
        self.sync_delay_ms = 0.0
        self.warm_delay_ms = 0.0
        self.on_blocked: Callable[[float], None] | None = None
        """Told how long a call that blocks would have stood on the disk, in milliseconds."""
        self.operations_count = 0
        self.syncs_count = 0
        self.on_failed: Callable[[str], None] | None = None
        """Told of each call that fails because `fail_next` said so."""
        self._folders: dict[str, Folder] = {}
        self._locks: dict[str, MemoryFile] = {}
        self._failures: dict[str, int] = {}
        self._cold: set[int] = set()
        self._generation = 0
        self._is_off = False

    # -- the port ---------------------------------------------------------------------------------

    def make_folder(self, path: str) -> None:
        self._check_power()
        self._folders.setdefault(path, Folder())

    def lock_folder(self, path: str) -> MemoryFile:
        if path in self._locks:
            raise StorageError(f"{path} is in use by another process", path=path)
        file = self.open(f"{path}/LOCK", create=True)
        self._locks[path] = file
        return file

    def release_lock(self, file: MemoryFile) -> None:
        """Called by a file that is closed."""
        folder = file.path.rpartition("/")[0]
        if self._locks.get(folder) is file:
            del self._locks[folder]

    def list(self, path: str) -> list[str]:
        self._check_power()
        return sorted(self._folder(path).names)

    def exists(self, path: str) -> bool:
        self._check_power()
        folder, _, name = path.rpartition("/")
        return folder in self._folders and name in self._folders[folder].names

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        self._check_power()
        folder_path, _, name = path.rpartition("/")
        folder = self._folder(folder_path)
        inode = folder.names.get(name)
        if inode is None:
            if not create:
                raise StorageError(f"no such file: {path}", path=path)
            self._operate("create", path)
            inode = Inode()
            folder.change(name, inode)
        return MemoryFile(self, path, inode, self._generation)

    def size(self, file: File) -> int:
        return self._inode(file).size

    def writev(self, file: File, buffers: Sequence[Buffer], at: int) -> int:
        inode = self._inode(file)
        content = b"".join(buffers)
        end = at + len(content)
        self._operate("writev", file.path, grows=max(0, end - inode.size))
        inode.reserve(end)
        inode.content[at:end] = content
        inode.touch(min(at, inode.size), end)
        inode.size = max(inode.size, end)
        return len(content)

    def pread(self, file: File, size: int, at: int) -> bytes:
        inode = self._inode(file)
        return bytes(inode.content[at : min(at + size, inode.size)])

    def data_extents(self, file: File, at: int) -> Sequence[tuple[int, int]]:
        size = self.size(file)
        return [(at, size)] if at < size else []

    def map(self, file: File, size: int) -> memoryview:
        inode = self._inode(file)
        assert size <= inode.size, (size, inode.size)
        inode.mapped = max(inode.mapped, size)
        return memoryview(inode.content)[:size].toreadonly()

    def is_resident(self, view: memoryview) -> bool:
        return id(view.obj) not in self._cold

    async def warm(self, view: memoryview) -> None:
        await pause(self.warm_delay_ms)
        self._cold.discard(id(view.obj))

    def release(self, view: memoryview) -> None:
        """Nothing is mapped here."""

    def preallocate(self, file: File, size: int) -> None:
        inode = self._inode(file)
        self._operate("preallocate", file.path, grows=max(0, size - inode.size))
        inode.reserve(size)
        inode.size = max(inode.size, size)

    def truncate(self, file: File, size: int) -> None:
        inode = self._inode(file)
        self._operate("truncate", file.path, grows=max(0, size - inode.size))
        assert size >= inode.mapped, f"{file.path} truncated to {size} under a mapped view"
        inode.reserve(size)
        old_size = inode.size
        if size < old_size:
            inode.content[size:old_size] = bytes(old_size - size)
            inode.touch(size, old_size)
        inode.size = size

    async def sync(self, file: File) -> None:
        inode = self._begin_sync("sync", file)
        snapshot = inode.snapshot()
        if self.sync_delay_ms and not inode.is_clean:
            await pause(self.sync_delay_ms)
        self._inode(file).settle(snapshot)

    def sync_now(self, file: File) -> None:
        inode = self._begin_sync("sync_now", file)
        self._stand(0.0 if inode.is_clean else self.sync_delay_ms)
        inode.settle(inode.snapshot())

    def forget_clean(self, file: File) -> None:
        self._inode(file).forget_clean()

    def sync_folder(self, path: str) -> None:
        self._operate("sync_folder", path)
        self._stand(self.sync_delay_ms)
        self._folder(path).settle()

    async def sync_folder_later(self, path: str) -> None:
        if self.sync_delay_ms:
            await pause(self.sync_delay_ms)
        self._operate("sync_folder", path)
        self._folder(path).settle()

    async def create_ahead(self, path: str, size: int) -> MemoryFile:
        file = self.open(path, create=True)
        self.preallocate(file, size)
        await self.sync(file)
        return file

    def rename(self, source: str, target: str) -> None:
        folder_path, _, old_name = source.rpartition("/")
        target_folder, _, name = target.rpartition("/")
        assert folder_path == target_folder, "a rename between folders is not atomic everywhere"
        folder = self._folder(folder_path)
        if old_name not in folder.names:
            raise StorageError(f"no such file: {source}", path=source)
        self._operate("rename", source)
        folder.change(name, folder.names[old_name], old_name)

    def unlink(self, path: str) -> None:
        folder_path, _, name = path.rpartition("/")
        folder = self._folder(folder_path)
        if name not in folder.names:
            raise StorageError(f"no such file: {path}", path=path)
        self._operate("unlink", path)
        folder.change(name, None)

    async def unlink_later(self, path: str) -> None:
        self.unlink(path)

    def space(self, path: str) -> Space:
        used = sum(i.size for f in self._folders.values() for i in f.names.values())
        total = self.capacity_bytes
        if total is None:
            return Space(_BOUNDLESS_BYTES, _BOUNDLESS_BYTES - used)
        return Space(max(total, used), max(0, total - used))

    # -- faults -----------------------------------------------------------------------------------

    @property
    def is_failing(self) -> bool:
        """Whether a call that `fail_next` meant is still to come."""
        return any(self._failures.values())

    def forget_failures(self) -> None:
        """No call fails any more that `fail_next` and the fuse would have had fail."""
        self.fuse = None
        self._failures.clear()

    def crash(self, random: Random, *, keep_page_cache: bool, survival: float = 0.5) -> None:
        """The machine restarts: open files are stale, locks free, the fuse is reset.

        `keep_page_cache`: only the process died (kill -9), nothing written is lost. Else each
        unsynced page or name survives with probability `survival` (0 = none does, 1 = all do).
        """
        image = self.crash_image(random, keep_page_cache=keep_page_cache, survival=survival)
        self._folders = image._folders
        self._locks.clear()
        self._cold.clear()
        self._failures.clear()
        self._generation += 1
        self.fuse = None
        self._is_off = False

    def crash_image(
        self, random: Random, *, keep_page_cache: bool, survival: float = 0.5
    ) -> "MemoryDisk":
        """The disk another machine would find if the power failed now; this one goes on."""
        image = MemoryDisk(capacity_bytes=self.capacity_bytes)
        copies: dict[int, Inode] = {}

        def after(inode: Inode) -> Inode:
            if id(inode) not in copies:
                found = inode.copy() if keep_page_cache else inode.survivor(random, survival)
                copies[id(inode)] = found
            return copies[id(inode)]

        for path, folder in sorted(self._folders.items()):
            new = image._folders[path] = Folder()
            if keep_page_cache:
                new.names = {name: after(inode) for name, inode in folder.names.items()}
                new.durable = {name: after(inode) for name, inode in folder.durable.items()}
                new.pending = [
                    (name, old, None if inode is None else after(inode))
                    for name, old, inode in folder.pending
                ]
                continue
            kept = Folder()
            kept.durable, kept.pending = dict(folder.durable), list(folder.pending)
            kept.settle(prefix_length(len(folder.pending), random, survival))
            new.durable = {name: after(inode) for name, inode in kept.durable.items()}
            new.names = dict(new.durable)
        return image

    def fail_next(self, operation: str, *, count: int = 1) -> None:
        """Let the next `count` calls of `operation` raise StorageError.

        Names: create writev preallocate truncate sync sync_now sync_folder rename unlink. A failed
        sync drops the dirty pages, as Linux does: a later sync that succeeds proves nothing (R22).
        """
        self._failures[operation] = count

    def flip_bit(self, path: str, byte: int, bit: int = 0) -> None:
        """Damage one stored bit, in the page cache and on the disk."""
        folder, _, name = path.rpartition("/")
        inode = self._folder(folder).names[name]
        inode.content[byte] ^= 1 << bit
        index = byte // PAGE_BYTES
        if index not in inode.dirty:
            inode.durable[index] = inode.page(index)

    def wipe(self, path: str, start: int, end: int) -> None:
        """Damage a stretch of a file: zeros, in the page cache and on the disk."""
        folder, _, name = path.rpartition("/")
        inode = self._folder(folder).names[name]
        inode.content[start:end] = bytes(end - start)
        for index in range(start // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1):
            if index not in inode.dirty:
                inode.durable[index] = inode.page(index)

    def lose(self, path: str) -> None:
        """The file is gone, from the folder and from the disk; who has it open goes on with it."""
        folder_path, _, name = path.rpartition("/")
        self._folder(folder_path).lose(name)

    def evict(self) -> None:
        """Make every mapped view cold until it is warmed."""
        for folder in self._folders.values():
            self._cold.update(id(inode.content) for inode in folder.names.values())

    # -- inside -----------------------------------------------------------------------------------

    def _folder(self, path: str) -> Folder:
        try:
            return self._folders[path]
        except KeyError:
            raise StorageError(f"no such folder: {path}", path=path) from None

    def _inode(self, file: File) -> Inode:
        self._check_power()
        assert isinstance(file, MemoryFile), file
        if not file.is_open or file.generation != self._generation:
            raise StorageError(f"{file.path} is closed", path=file.path)
        return file.inode

    def _begin_sync(self, operation: str, file: File) -> Inode:
        inode = self._inode(file)
        self.syncs_count += 1
        try:
            self._operate(operation, file.path)
        except StorageError:
            inode.lost |= inode.dirty
            inode.dirty.clear()
            raise
        return inode

    def _stand(self, milliseconds: float) -> None:
        if self.on_blocked is not None and milliseconds:
            self.on_blocked(milliseconds)

    def _check_power(self) -> None:
        if self._is_off:
            raise PowerLost

    def _operate(self, operation: str, path: str, *, grows: int = 0) -> None:
        """Count one change, blow the fuse, raise what was asked for."""
        self._check_power()
        if self.observer is not None:
            self.observer(operation, path)
        if self.fuse is not None:
            if self.fuse == 0:
                self._is_off = True
                raise PowerLost
            self.fuse -= 1
        self.operations_count += 1
        if self._failures.get(operation, 0) > 0:
            self._failures[operation] -= 1
            if self.on_failed is not None:
                self.on_failed(operation)
            raise StorageError(f"{operation} of {path} failed: input/output error", path=path)
        if grows > 0 and self.space(path).free_bytes < grows:
            raise StorageError(f"{operation} of {path} failed: no space left", path=path)
