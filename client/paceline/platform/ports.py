"""The seams between paceline and the machine: Clock, Random and Disk.

Everything that decides anything gets these as arguments, so that a whole cluster also runs on a
virtual clock, a seeded generator and a simulated disk. Network and timers need no port: they come
from the event loop (`runtime` holds the few helpers). Real twins are in `runtime` and `disk_real`,
in-memory twins in `disk_memory` and `runtime`.
"""

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class Clock(Protocol):
    """Two clocks: one for durations, one for people. Only the first may order anything."""

    def monotonic_ms(self) -> int:
        """Milliseconds of running time from an arbitrary start; never goes back."""
        ...

    def unix_ms(self) -> int:
        """Wall clock in milliseconds since 1970; may jump either way."""
        ...


class Random(Protocol):
    """Source of ids, nonces and jitter."""

    def token(self, size_bytes: int) -> bytes:
        """`size_bytes` unpredictable bytes (seeded in a simulation)."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high)."""
        ...


class File(Protocol):
    """An open file of a `Disk`; an opaque handle to everybody else."""

    @property
    def path(self) -> str: ...

    def close(self) -> None: ...


class Space(NamedTuple):
    """Of the file system that holds a folder."""

    total_bytes: int
    free_bytes: int
    """What this process may still take."""

    @property
    def used_ratio(self) -> int:
        """Percent in use, rounded down, as RocketMQ's watermarks count."""
        used_bytes = self.total_bytes - self.free_bytes
        return 100 * used_bytes // self.total_bytes if self.total_bytes else 100


class Disk(Protocol):
    """Every call the product makes to a file system. Paths are strings, "/" separates.

    All calls raise `StorageError` (never OSError). After a failed `writev` or `sync` the caller
    must stop acknowledging for good (R22). Calls are synchronous and fast (page cache), but those
    that return an awaitable leave the event loop; `sync_now` and `sync_folder` block.
    """

    def make_folder(self, path: str) -> None:
        """Create the folder and its parents, durably (parents synced); no error if it exists."""
        ...

    def lock_folder(self, path: str) -> File:
        """Take the folder for this process (flock on `path/LOCK`); StorageError if it is taken."""
        ...

    def list(self, path: str) -> list[str]:
        """Sorted names of the files directly in a folder."""
        ...

    def exists(self, path: str) -> bool: ...

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; `create` makes it if absent (durable after sync_folder)."""
        ...

    def size(self, file: File) -> int: ...

    def writev(self, file: File, buffers: Sequence[Buffer], at: int) -> int:
        """Write all buffers one after another from byte `at`; returns bytes written (all of them).

        Any count of buffers (split at IOV_MAX inside).
        A short write that cannot be completed raises.
        """
        ...

    def pread(self, file: File, size: int, at: int) -> bytes:
        """Up to `size` bytes from `at`; fewer only at the end of the file."""
        ...

    def data_extents(self, file: File, at: int) -> Sequence[tuple[int, int]]:
        """Ranges (start, end) at or after `at` that may hold a non-zero byte, rising.

        Leaves out what was preallocated and never written, without reading it.
        """
        ...

    def map(self, file: File, size: int) -> memoryview:
        """A read-only view of the first `size` bytes, coherent with later writev.

        Never truncate the file below it.
        """
        ...

    def is_resident(self, view: memoryview) -> bool:
        """Whether touching this (slice of a) mapped view would not wait for the disk."""
        ...

    def warm(self, view: memoryview) -> Awaitable[None]:
        """Bring a mapped view into memory without blocking the event loop."""
        ...

    def release(self, view: memoryview) -> None:
        """Count what was read of a whole mapped view no more as memory of this process.

        The page cache keeps it, and the view stays good: reading it again costs a page fault.
        """
        ...

    def preallocate(self, file: File, size: int) -> None:
        """Reserve space, extending the file to `size` with zeros; a full disk raises here."""
        ...

    def truncate(self, file: File, size: int) -> None: ...

    def sync(self, file: File) -> Awaitable[None]:
        """fdatasync off the event loop, by one dedicated thread; never two at once on one file."""
        ...

    def sync_now(self, file: File) -> None:
        """fsync, blocking. For rare steps: recovery, truncation, epoch and identity files."""
        ...

    def forget_clean(self, file: File) -> None:
        """Drop cached pages that are not dirty, so that reads show what the disk holds (R22).

        After a failed fsync the kernel keeps the lost pages and calls them clean.
        """
        ...

    def sync_folder(self, path: str) -> None:
        """fsync of a directory: makes creates, renames and unlinks in it durable."""
        ...

    def sync_folder_later(self, path: str) -> Awaitable[None]:
        """`sync_folder` off the event loop, by the thread of `sync`."""
        ...

    def create_ahead(self, path: str, size: int) -> Awaitable[File]:
        """Create a file of `size` zeros and fsync it off the event loop; its name: sync_folder."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def unlink_later(self, path: str) -> Awaitable[None]:
        """`unlink` off the event loop: a file system frees a large file in many steps."""
        ...

    def space(self, path: str) -> Space:
        """How full the file system is that holds the folder `path`."""
        ...


def write_durably(disk: Disk, path: str, content: bytes) -> None:
    """Replace the file at `path`: a crash leaves the old content or the new, never a mix.

    Temporary file, fsync, rename, fsync of the folder. Blocking; for small files.
    """
    file = open_anew(disk, temporary_name(path))
    try:
        disk.writev(file, [content], 0)
        disk.sync_now(file)
    finally:
        file.close()
    disk.rename(temporary_name(path), path)
    disk.sync_folder(path.rpartition("/")[0])


def read_whole(disk: Disk, path: str) -> bytes:
    """The content of the file at `path`, which must exist. StorageError."""
    file = disk.open(path)
    try:
        return disk.pread(file, disk.size(file), 0)
    finally:
        file.close()


def open_anew(disk: Disk, path: str) -> File:
    """An empty file at `path`; one that is there goes."""
    if disk.exists(path):
        disk.unlink(path)
    return disk.open(path, create=True)


def temporary_name(path: str) -> str:
    """Where the file at `path` is written before it gets its name."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.new"
