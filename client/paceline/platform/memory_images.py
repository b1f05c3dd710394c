"""Files and folders of the disk in memory: what a process sees of them, and what a disk keeps.

A file's pages and a folder's names each have a volatile and a durable image; `settle` brings the
second up to the first, and `survivor` says what a machine finds that lost power in between.
"""

import mmap

from paceline.platform.ports import Random

PAGE_BYTES = 4096
SECTOR_BYTES = 512
TORN_SHARE = 0.2  # of the pages not wholly written: the share found best in simulation.md section 4
_LAZY_BYTES = 1 << 20  # from here on anonymous memory is cheaper than a zeroed bytearray

_Content = bytearray | mmap.mmap


class Inode:
    """Bytes of one file, volatile and durable."""

    __slots__ = ("content", "dirty", "durable", "durable_size", "lost", "mapped", "size")

    def __init__(self) -> None:
        self.content: _Content = bytearray()
        self.size = 0
        self.mapped = 0  # largest size ever mapped: a real process would die of SIGBUS below it
        self.dirty: set[int] = set()
        self.lost: set[int] = set()  # written, clean, and not on the disk: an fsync had failed
        self.durable: dict[int, bytes] = {}
        self.durable_size = 0

    def reserve(self, size: int) -> None:
        """Grow the buffer behind the file; the file's size stays."""
        if size <= len(self.content):
            return
        grown = _zeros(size)  # views mapped before do not see later writes: map again after growing
        grown[: self.size] = self.content[: self.size]
        self.content = grown

    def page(self, index: int) -> bytes:
        start = index * PAGE_BYTES
        return bytes(self.content[start : min(start + PAGE_BYTES, self.size)])

    @property
    def is_clean(self) -> bool:
        """Whether a sync has nothing to write: such a one returns at once."""
        return not self.dirty and self.size == self.durable_size

    def touch(self, start: int, end: int) -> None:
        if end > start:
            self.dirty.update(range(start // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1))

    def snapshot(self) -> tuple[int, dict[int, bytes]]:
        """What an fdatasync started now makes durable."""
        return self.size, {index: self.page(index) for index in self.dirty}

    def settle(self, snapshot: tuple[int, dict[int, bytes]]) -> None:
        """Make a snapshot durable; pages changed since then stay dirty."""
        self.durable_size, pages = snapshot
        for index, page in pages.items():
            self.settle_page(index, page)
            if page == self.page(index):
                self.dirty.discard(index)

    def settle_page(self, index: int, page: bytes) -> None:
        if page.strip(b"\0"):
            self.durable[index] = page
        else:
            self.durable.pop(index, None)  # absent = zeros

    def survivor(self, random: Random, survival: float) -> "Inode":
        """A new inode as it is found after power loss."""
        after = Inode()
        after.durable = dict(self.durable)
        keeps_size = self.size == self.durable_size or happens(random, survival)
        after.durable_size = self.size if keeps_size else self.durable_size
        for index in sorted(self.dirty):
            if happens(random, survival):
                after.settle_page(index, self.page(index))
            elif 0 < survival < 1 and happens(random, TORN_SHARE):
                after.settle_page(index, self._torn_page(index, random))
        after.load_durable()
        return after

    def _torn_page(self, index: int, random: Random) -> bytes:
        old = self.durable.get(index, b"").ljust(PAGE_BYTES, b"\0")
        new = self.page(index).ljust(PAGE_BYTES, b"\0")
        return torn(new, old, random)

    def load_durable(self) -> None:
        """Forget the volatile image."""
        self.size = self.durable_size
        self.content = _zeros(self.size)
        self.mapped = 0
        self.dirty.clear()
        for index, page in list(self.durable.items()):
            start = index * PAGE_BYTES
            if start >= self.size:
                del self.durable[index]
                continue
            kept = page[: self.size - start]
            self.content[start : start + len(kept)] = kept

    def forget_clean(self) -> None:
        """Show what the disk holds where a failed sync left clean pages that are not on it."""
        for index in self.lost - self.dirty:
            start, end = index * PAGE_BYTES, min((index + 1) * PAGE_BYTES, self.size)
            page = self.durable.get(index, b"").ljust(PAGE_BYTES, b"\0")
            self.content[start:end] = page[: max(0, end - start)]
        self.lost.clear()

    def copy(self) -> "Inode":
        """A process died, the page cache did not."""
        after = Inode()
        after.size = self.size
        after.content = _zeros(len(self.content))
        after.content[: self.size] = self.content[: self.size]
        after.dirty = set(self.dirty)
        after.lost = set(self.lost)
        after.durable = dict(self.durable)
        after.durable_size = self.durable_size
        return after


class Folder:
    """Names of one folder, volatile and durable, and the changes between them in order."""

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        self.pending: list[tuple[str, str | None, Inode | None]] = []  # (name, old name, inode)

    def change(self, name: str, inode: Inode | None, old_name: str | None = None) -> None:
        self.pending.append((name, old_name, inode))
        _apply(self.names, name, old_name, inode)

    def lose(self, name: str) -> None:
        """A file vanishes without anybody's doing, with what was pending of its name."""
        assert name in self.names, name
        self.names.pop(name)
        self.durable.pop(name, None)
        self.pending = [change for change in self.pending if change[0] != name]

    def settle(self, count: int | None = None) -> None:
        for name, old_name, inode in self.pending[:count]:
            _apply(self.durable, name, old_name, inode)
        self.pending.clear()


def _apply(names: dict[str, Inode], name: str, old_name: str | None, inode: Inode | None) -> None:
    if old_name is not None:
        names.pop(old_name, None)
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


def _zeros(size: int) -> _Content:
    return bytearray(size) if size < _LAZY_BYTES else mmap.mmap(-1, size)


def torn(new: bytes, old: bytes, random: Random) -> bytes:
    """What is on the disk of a page that was being written over: each sector is new or old."""
    sectors = [
        (new if happens(random, 0.5) else old)[at : at + SECTOR_BYTES]
        for at in range(0, len(new), SECTOR_BYTES)
    ]
    return b"".join(sectors)


def happens(random: Random, probability: float) -> bool:
    """One draw."""
    return random.uniform(0.0, 1.0) < probability


def prefix_length(count: int, random: Random, survival: float) -> int:
    """How many of `count` changes, in their order, survive a power loss."""
    if survival in (0, 1):
        return count if survival else 0
    return min(count, int(random.uniform(0.0, count + 1)))
