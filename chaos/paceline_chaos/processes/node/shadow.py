"""The durable image of one node's files, beside the live ones: what a power cut is sure to leave.

`<folder>/<number>` holds what was synced of a file, `<folder>/names` a journal of the names (see
names.py). Both are kept by the node while it runs and survive kill -9, since they are ordinary
files of a machine that goes on. `power.py` makes the live tree out of them after a power cut.
"""

import os
from pathlib import Path

import orjson

from paceline_chaos.processes.names import Folder, Names

_COPY_BYTES = 1 << 20


class Shadow:
    """Owned by one process at a time: the node, or the harness after its end."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.names = Names()
        self._journal_path = folder / "names"
        if self._journal_path.exists():
            for line in self._journal_path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):  # else torn by a kill: the change did not happen
                    self.names.apply(orjson.loads(line))
        self._journal = self._rewrite()

    def close(self) -> None:
        os.close(self._journal)

    # -- names ------------------------------------------------------------------------------------

    def file_of(self, path: str) -> int | None:
        """The file at a path, as the process sees it now."""
        folder, _, name = path.rpartition("/")
        known = self.names.folders.get(folder)
        return None if known is None else known.names().get(name)

    def created(self, path: str, live: int) -> int:
        """A new, empty file (an open descriptor); its number."""
        folder, _, name = path.rpartition("/")
        file = self._numbered(live)
        self._enter([folder, "create", name, file])
        return file

    def _numbered(self, live: int) -> int:
        file = self.names.next_file
        self._enter(["", "inode", file, os.fstat(live).st_ino])
        return file

    def adopted(self, path: str, live: int) -> int:
        """A file that was there before this image: durable as it is."""
        folder, _, name = path.rpartition("/")
        file = self._numbered(live)
        size = os.fstat(live).st_size
        self.settle(file, live, [(0, size)], low_size=0, size=size)
        # Below all pending changes of its folder, none of which becomes durable by this.
        self.names.folders.setdefault(folder, Folder()).durable[name] = file
        os.close(self._journal)
        self._journal = self._rewrite()
        return file

    def renamed(self, source: str, target: str) -> None:
        folder, _, name = source.rpartition("/")
        self._enter([folder, "rename", name, target.rpartition("/")[2]])

    def unlinked(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self._enter([folder, "unlink", name])

    def folder_synced(self, path: str) -> None:
        """The names in it are durable now; contents that nothing names any more go."""
        before = self.names.files()
        self._enter([path, "sync"])
        for file in before - self.names.files():
            self.names.inodes.pop(file, None)
            self.content_path(file).unlink(missing_ok=True)

    def _enter(self, entry: list[object]) -> None:
        self.names.apply(entry)
        os.write(self._journal, orjson.dumps(entry) + b"\n")

    def _rewrite(self) -> int:
        """Begin a journal that is as short as it can be; its descriptor."""
        temporary = self.folder / "names.new"
        lines = [orjson.dumps(entry) + b"\n" for entry in self.names.entries()]
        temporary.write_bytes(b"".join(lines))
        temporary.replace(self._journal_path)
        return os.open(self._journal_path, os.O_WRONLY | os.O_APPEND)

    # -- contents ---------------------------------------------------------------------------------

    def content_path(self, file: int) -> Path:
        return self.folder / str(file)

    def settle(
        self, file: int, live: int, ranges: list[tuple[int, int]], *, low_size: int, size: int
    ) -> None:
        """Ranges of the live file (an open descriptor) and its size have become durable.

        `low_size`: the smallest size since the last time; what was cut and grown again is zeros.
        """
        descriptor = os.open(self.content_path(file), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size > low_size:
                os.ftruncate(descriptor, low_size)
            os.ftruncate(descriptor, size)
            for start, end in ranges:
                copy_range(live, descriptor, start, min(end, size))
        finally:
            os.close(descriptor)

    def dropped(self, file: int, ranges: list[tuple[int, int]]) -> None:
        """A sync failed: these ranges are clean in the page cache and not on the disk."""
        for start, end in ranges:
            self._enter(["", "lost", file, start, end])

    def lost_ranges(self, file: int) -> list[tuple[int, int]]:
        return self.names.lost.get(file, [])

    def forget_clean(self, file: int, live: int) -> None:
        """Make the live file show what the disk has where a failed sync dropped pages."""
        if file not in self.names.lost:
            return
        path = self.content_path(file)
        durable = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for start, end in self.names.lost[file]:
                end = min(end, os.fstat(live).st_size)
                for at in range(start, end, _COPY_BYTES):
                    want = min(_COPY_BYTES, end - at)
                    content = os.pread(durable, want, at).ljust(want, b"\0")
                    os.pwrite(live, content, at)
        finally:
            os.close(durable)
        self._enter(["", "found", file])


def copy_range(source: int, target: int, start: int, end: int) -> None:
    """Copy bytes between two open files; holes stay holes where the file system has them."""
    at = start
    while at < end:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
            stop = min(end, os.lseek(source, at, os.SEEK_HOLE))
        except OSError:  # nothing but a hole up to the end of the file
            stop = at = end
        while at < stop:
            content = os.pread(source, min(_COPY_BYTES, stop - at), at)
            if not content:
                return
            os.pwrite(target, content, at)
            at += len(content)
