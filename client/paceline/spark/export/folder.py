"""The folder of an export: every step that others can see is one rename, after an fsync.

Local and mounted file systems: where several machines write, the folder must be the same on all.
"""

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.errors import BadRequestError, ConflictError, CorruptLogError, StorageError
from paceline.spark.export.protocol import ExportedFile, Intent, Manifest, check_chain, seal, unseal

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class ExportFolder:
    """One export's folder, locked while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.staging = path / "_staging"
        self._state = path / "_paceline"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and take it. ConflictError: another export works here."""
        with storage_errors(self.path):
            for folder in (self.path, self.data, self._state):
                folder.mkdir(parents=True, exist_ok=True)
            known = {self.data.name, self.staging.name, self._state.name}
            strangers = [entry.name for entry in self.path.iterdir() if entry.name not in known]
        if strangers:
            raise BadRequestError(
                f"{self.path} is not the folder of an export: it has {sorted(strangers)[0]!r}; name"
                " an empty one",
                field="to",
            )
        with open(self._state / "LOCK", "w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConflictError(f"another export is at work in {self.path}") from None
            yield

    # -- what is remembered -----------------------------------------------------------------------

    def manifests(self) -> list[Manifest]:
        """All batches, oldest first, checked. CorruptLogError names the file that is wrong."""
        found = []
        for path in sorted(self._state.glob("manifest-*.json")):
            found.append(self._read(path, Manifest.from_json))
        # A compaction that was cut short leaves manifests of batches that are merged by now.
        found = [
            one
            for index, one in enumerate(found)
            if not any(later.first_number <= one.number for later in found[index + 1 :])
        ]
        check_chain(found)
        return found

    def add_manifest(self, manifest: Manifest) -> None:
        """The batch counts from here on."""
        path = self._state / f"manifest-{manifest.number:08d}.json"
        self._write(path, seal(manifest.to_json()))

    def drop_manifests(self, *, first: int, below: int) -> None:
        """Those that a merged one covers."""
        with storage_errors(self._state):
            for number in range(first, below):
                (self._state / f"manifest-{number:08d}.json").unlink(missing_ok=True)
            _sync_folder(self._state)

    def intent(self) -> Intent | None:
        """The batch that was begun and not finished."""
        path = self._state / "intent.json"
        return self._read(path, Intent.from_json) if path.exists() else None

    def begin(self, intent: Intent) -> None:
        self._write(self._state / "intent.json", seal(intent.to_json()))

    def end_intent(self) -> None:
        self._remove(self._state / "intent.json")

    def compaction(self) -> dict[str, Any] | None:
        """`{"first", "last"}` of a compaction that was begun and not finished."""
        path = self._state / "compact.json"
        if not path.exists():
            return None
        found: dict[str, Any] = unseal(path.read_bytes(), path=str(path))
        return found

    def begin_compaction(self, first: int, last: int) -> None:
        self._write(self._state / "compact.json", seal({"first": first, "last": last}))

    def end_compaction(self) -> None:
        self._remove(self._state / "compact.json")

    # -- batches ----------------------------------------------------------------------------------

    def batch(self, number: int) -> Path:
        """Where readers find a batch."""
        return self.data / f"batch={number:08d}"

    def staged(self, number: int) -> Path:
        """Where a batch is written."""
        return self.staging / f"batch={number:08d}"

    def clear_staging(self) -> None:
        """Nothing there is finished."""
        with storage_errors(self.staging):
            shutil.rmtree(self.staging, ignore_errors=True)
            self.staging.mkdir(exist_ok=True)

    def drop_staging(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)

    def publish(self, number: int) -> None:
        """Show a staged batch: durable first, then one rename."""
        staged = self.staged(number)
        with storage_errors(staged):
            sync_tree(staged)
            staged.rename(self.batch(number))
            _sync_folder(self.data)
            _sync_folder(self.staging)

    def exchange_data(self, other: Path) -> None:
        """Put `other` in the place of the data, at once; the data are at `other` then."""
        with storage_errors(other):
            sync_tree(other)
            exchange(other, self.data)
            _sync_folder(self.path)

    # -- inside -----------------------------------------------------------------------------------

    def _read(self, path: Path, read: Any) -> Any:
        with storage_errors(path):
            raw = path.read_bytes()
        try:
            return read(unseal(raw, path=str(path)))
        except BadRequestError as error:
            raise CorruptLogError(f"{path} is broken: {error.message}", path=str(path)) from error

    def _write(self, path: Path, content: bytes) -> None:
        temporary = path.with_name(f".{path.name}.new")
        with storage_errors(path):
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_folder(path.parent)

    def _remove(self, path: Path) -> None:
        with storage_errors(path):
            path.unlink(missing_ok=True)
            _sync_folder(path.parent)


def files_below(folder: Path) -> tuple[ExportedFile, ...]:
    """The files of a batch that readers read, by path."""
    return tuple(
        ExportedFile(path=str(path.relative_to(folder)), size_bytes=path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(("_", "."))
    )


def sync_tree(folder: Path) -> None:
    """fsync of every file and folder below `folder`, itself included."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        elif path.is_dir():
            _sync_folder(path)
    _sync_folder(folder)


def exchange(one: Path, other: Path) -> None:
    """Let two folders change places in one step (Linux). StorageError where that cannot be had."""
    library = ctypes.CDLL(None, use_errno=True)
    rename = getattr(library, "renameat2", None)
    if rename is None:
        raise StorageError("this system cannot exchange two folders in one step (renameat2)")
    done = rename(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE)
    if done != 0:
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.ENOSYS):
            raise StorageError(
                f"the file system of {other} cannot exchange two folders in one step: compact a"
                " copy on a local disk"
            )
        raise OSError(number, os.strerror(number), str(other))


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """OSErrors as StorageError with a sentence: whose fault, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(path) from error
        raise StorageError(f"{error.filename or path}: {error.strerror}", path=str(path)) from error


def disk_full(path: Path) -> StorageError:
    return StorageError(
        f"the disk of {path} is full: make room and run the same command again; what was not"
        " finished is not visible, and is written again",
        path=str(path),
    )
