"""The Disk of this machine: os calls, one thread for syncs, one for warming and making files ahead.

Threads start with the first use, so a process may still fork before that. The sync thread is fed by
a SimpleQueue and answers with call_soon_threadsafe: per fdatasync 100 us less CPU than an executor
(datapath.md section 3). Every OSError leaves as StorageError with path and errno.
"""

import asyncio
import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias

from crc32c import crc32c

from paceline.errors import StorageError
from paceline.platform.ports import Buffer, File, Space

_IOV_MAX = os.sysconf("SC_IOV_MAX")
_MADV_POPULATE_READ = 22  # Linux 5.14: read in and map, without touching page by page
_MODE = 0o640

_Job: TypeAlias = "tuple[Callable[[], object], asyncio.AbstractEventLoop, Callable[..., None]]"


class RealFile:
    """A file descriptor. Closing waits for a sync in progress: its number must not be reused."""

    __slots__ = ("_is_open", "_syncs_count", "descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self._is_open = True
        self._syncs_count = 0

    def close(self) -> None:
        """Close now, or when the last sync is done. Closing twice is harmless."""
        if self._is_open:
            self._is_open = False
            if self._syncs_count == 0:
                os.close(self.descriptor)

    def sync_begun(self) -> None:
        """For the disk: on the loop's thread."""
        if not self._is_open:
            raise StorageError(f"{self.path} is closed", path=self.path)
        self._syncs_count += 1

    def sync_ended(self) -> None:
        """For the disk: on the loop's thread."""
        self._syncs_count -= 1
        if not self._is_open and self._syncs_count == 0:
            os.close(self.descriptor)


class RealDisk:
    """See the module. Owned by one process; awaitables belong to the running loop."""

    def __init__(self) -> None:
        self._syncer = _Worker("paceline-sync")
        self._helper = _Worker("paceline-disk")

    def close(self) -> None:
        """End the threads after the work they have; nothing may be asked of them any more."""
        self._syncer.stop()
        self._helper.stop()

    def make_folder(self, path: str) -> None:
        missing = []
        folder = os.path.abspath(path)
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            with _storage_errors("mkdir", folder):
                os.makedirs(folder, exist_ok=True)
            self.sync_folder(os.path.dirname(folder))

    def lock_folder(self, path: str) -> RealFile:
        file = self.open(f"{path}/LOCK", create=True)
        try:
            fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise StorageError(f"{path} is in use by another process", path=path) from None
            raise _storage_error("flock", path, error) from error
        return file

    def list(self, path: str) -> list[str]:
        with _storage_errors("listing", path):
            return sorted(entry.name for entry in os.scandir(path) if entry.is_file())

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDWR
        with _storage_errors("open", path):
            return RealFile(path, os.open(path, flags, _MODE))

    def size(self, file: File) -> int:
        with _storage_errors("fstat", file.path):
            return os.fstat(_own(file).descriptor).st_size

    def writev(self, file: File, buffers: Sequence[Buffer], at: int) -> int:
        if len(buffers) <= _IOV_MAX:
            return self._write_all(file, buffers, at)
        total = 0
        for index in range(0, len(buffers), _IOV_MAX):
            part = buffers[index : index + _IOV_MAX]
            total += self._write_all(file, part, at + total)
        return total

    def _write_all(self, file: File, buffers: Sequence[Buffer], at: int) -> int:
        descriptor = _own(file).descriptor
        wanted = sum(map(len, buffers))
        written = 0
        while True:
            with _storage_errors("write", file.path):
                count = os.pwritev(descriptor, buffers, at + written)
            written += count
            if written == wanted:
                return wanted
            if count == 0:
                raise StorageError(
                    f"write of {file.path} stopped at {written} of {wanted} bytes", path=file.path
                )
            buffers = _skip(buffers, count)

    def pread(self, file: File, size: int, at: int) -> bytes:
        with _storage_errors("read", file.path):
            content = os.pread(_own(file).descriptor, size, at)
            while 0 < len(content) < size:  # a signal, or a read over 2 GiB
                more = os.pread(_own(file).descriptor, size - len(content), at + len(content))
                if not more:
                    break
                content += more
            return content

    def data_extents(self, file: File, at: int) -> Sequence[tuple[int, int]]:
        # All seeks before any read: pages cached by reading ahead would count as written.
        descriptor, size = _own(file).descriptor, self.size(file)
        extents: list[tuple[int, int]] = []
        while at < size:
            try:
                start = os.lseek(descriptor, at, os.SEEK_DATA)
                at = os.lseek(descriptor, start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    break
                raise _storage_error("seek", file.path, error) from error
            extents.append((start, at))
        return extents

    def map(self, file: File, size: int) -> memoryview:
        if size == 0:  # mmap refuses it; a power loss may leave a file without its size
            return memoryview(b"")
        with _storage_errors("mmap", file.path):
            return memoryview(mmap.mmap(_own(file).descriptor, size, access=mmap.ACCESS_READ))

    def is_resident(self, view: memoryview) -> bool:
        address, size = _page_range(view)
        pages = bytearray(-(-size // mmap.PAGESIZE))
        vector = (ctypes.c_char * len(pages)).from_buffer(pages)
        if _libc.mincore(address, size, vector) != 0:
            raise StorageError(f"mincore failed: {os.strerror(ctypes.get_errno())}")
        return pages.count(1) == len(pages)

    def warm(self, view: memoryview) -> "asyncio.Future[None]":
        return self._helper.ask(lambda: _populate(view))

    def release(self, view: memoryview) -> None:
        mapped = view.obj
        if isinstance(mapped, mmap.mmap):
            mapped.madvise(mmap.MADV_DONTNEED)

    def preallocate(self, file: File, size: int) -> None:
        with _storage_errors("preallocation", file.path):
            os.posix_fallocate(_own(file).descriptor, 0, size)

    def truncate(self, file: File, size: int) -> None:
        with _storage_errors("truncate", file.path):
            os.ftruncate(_own(file).descriptor, size)

    def sync(self, file: File) -> "asyncio.Future[None]":
        own = _own(file)
        own.sync_begun()
        return self._syncer.ask(lambda: _datasync(own), own.sync_ended)

    def sync_now(self, file: File) -> None:
        with _storage_errors("fsync", file.path):
            os.fsync(_own(file).descriptor)

    def forget_clean(self, file: File) -> None:
        with _storage_errors("fadvise", file.path):
            os.posix_fadvise(_own(file).descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync_folder(self, path: str) -> None:
        with _storage_errors("fsync", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def sync_folder_later(self, path: str) -> "asyncio.Future[None]":
        return self._syncer.ask(lambda: self.sync_folder(path))

    def create_ahead(self, path: str, size: int) -> "asyncio.Future[RealFile]":
        return self._helper.ask(lambda: self._create(path, size))

    def _create(self, path: str, size: int) -> RealFile:
        file = self.open(path, create=True)
        try:
            self.preallocate(file, size)
            self.sync_now(file)
        except StorageError:
            file.close()
            raise
        return file

    def rename(self, source: str, target: str) -> None:
        with _storage_errors("rename", source):
            os.rename(source, target)

    def unlink(self, path: str) -> None:
        with _storage_errors("unlink", path):
            os.unlink(path)

    def unlink_later(self, path: str) -> "asyncio.Future[None]":
        return self._helper.ask(lambda: self.unlink(path))

    def space(self, path: str) -> Space:
        with _storage_errors("statvfs", path):
            found = os.statvfs(path)
        # As df counts: blocks kept back for root are neither used nor free.
        used, free = found.f_blocks - found.f_bfree, found.f_bavail
        return Space((used + free) * found.f_frsize, free * found.f_frsize)


class _Worker:
    """One daemon thread that runs jobs in order and reports to the loop that asked."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(
        self, work: Callable[[], Any], ended: Callable[[], None] | None = None
    ) -> "asyncio.Future[Any]":
        """Run `work` on the thread; `ended` runs on the loop, even if the future is cancelled."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def finish(result: object, error: BaseException | None) -> None:
            if ended is not None:
                ended()
            if future.cancelled():
                if isinstance(result, RealFile):
                    result.close()
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._jobs.put((work, loop, finish))
        return future

    def stop(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, loop, finish = job
            result: object = None
            failure: BaseException | None = None
            try:
                result = work()
            except Exception as error:  # the top frame of the thread: the waiter gets it
                failure = error
            try:
                loop.call_soon_threadsafe(finish, result, failure)
            except RuntimeError:
                continue  # the loop was closed meanwhile: nobody waits any more


def _own(file: File) -> RealFile:
    assert isinstance(file, RealFile), file
    return file


class _storage_errors:  # noqa: N801 - reads as a verb; a class is 3x cheaper than a generator
    """Context in which an OSError becomes a StorageError naming the operation and the path."""

    __slots__ = ("_operation", "_path")

    def __init__(self, operation: str, path: str) -> None:
        self._operation = operation
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise _storage_error(self._operation, self._path, error) from error


def _storage_error(operation: str, path: str, error: OSError) -> StorageError:
    return StorageError(
        f"{operation} of {path} failed: {os.strerror(error.errno or 0)}",
        path=path,
        errno=error.errno,
    )


def _datasync(file: RealFile) -> None:
    with _storage_errors("fdatasync", file.path):
        os.fdatasync(file.descriptor)


def _skip(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    """What is left of `buffers` after `count` bytes."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [memoryview(buffer)[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []


class _PyBuffer(ctypes.Structure):
    """Py_buffer of the C API; `obj` as a plain pointer, so ctypes does not count references."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_libc = ctypes.CDLL(None, use_errno=True)  # its calls release the GIL
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None


def _page_range(view: memoryview) -> tuple[int, int]:
    """(address, size) of the pages under a mapped view; the view stays valid by the caller's hold.

    ctypes.from_buffer refuses read-only memory, so the address comes from the C API.
    """
    buffer = _PyBuffer()
    _get_buffer(view, ctypes.byref(buffer), 0)
    address, size = int(buffer.buf), int(buffer.len)
    _release_buffer(ctypes.byref(buffer))
    start = address & ~(mmap.PAGESIZE - 1)
    return start, address + size - start


def _populate(view: memoryview) -> None:
    """Read a mapped view in; runs on the helper thread and never holds the GIL while it waits."""
    address, size = _page_range(view)
    if _libc.madvise(address, size, _MADV_POPULATE_READ) == 0:
        return
    fault = ctypes.get_errno()
    if fault != errno.EINVAL:  # EINVAL: a kernel before 5.14
        raise StorageError(f"reading a mapped view failed: {os.strerror(fault)}")
    crc32c(view, 0, 1)  # 1 = release the GIL whatever the size; reads every byte
