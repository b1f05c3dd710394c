"""The files of the commit log: finding, creating, mapping and cutting segments.

Owns the list of open segments, in order, the last one being written. Knows sizes and names, not
batches. A segment's unused tail is zeros, always: cutting rewrites what it cuts, so the next batch
never lands on old bytes. Nothing here decides where to cut.
"""

from bisect import bisect_right
from dataclasses import dataclass

from paceline.errors import CorruptLogError
from paceline.platform.ports import Disk, File
from paceline.types import PhysicalOffset
from paceline_broker.log.layout import (
    ASIDE_SUFFIX,
    SPARE_NAME,
    aside_name,
    segment_firsts,
    segment_name,
)

_CHUNK_BYTES = 1 << 20  # scanning and zeroing step: large enough to be bound by memory speed
_ZEROS = bytes(_CHUNK_BYTES)
SHOWN_BYTES_MAX = 8 << 20
"""Pages of views count as this process's memory once they were read. After so many bytes they are
given back to the page cache: a log that is read through would make the process as large."""
_FAULT_BYTES = 64 * 1024
"""What the kernel maps around a byte that is read."""


@dataclass(slots=True, eq=False)
class Segment:
    """One file; `capacity` is its size, `view` its mapping once somebody has read from it."""

    first: PhysicalOffset
    capacity: int
    file: File
    path: str
    view: memoryview | None = None


class Segments:
    """All segments of one log, at least one. Owned by `CommitLog`."""

    def __init__(self, disk: Disk, folder: str, *, segment_size_bytes: int) -> None:
        self.disk = disk
        self.folder = folder
        self.segment_size_bytes = segment_size_bytes
        self._segments: list[Segment] = []
        self._firsts: list[PhysicalOffset] = []
        self._spare: File | None = None
        self._shown: dict[Segment, None] = {}
        self._shown_bytes = 0
        self.has_new_names = False  # the folder must be synced before new bytes count (R25)

    def open_all(self) -> None:
        """Open what the folder holds; stale spares go."""
        names = self.disk.list(self.folder)
        if SPARE_NAME in names:
            self.disk.unlink(f"{self.folder}/{SPARE_NAME}")
        for first in segment_firsts(names):
            path = f"{self.folder}/{segment_name(first)}"
            file = self.disk.open(path)
            self._add(Segment(first, self.disk.size(file), file, path))

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def count(self) -> int:
        return len(self._segments)

    @property
    def firsts(self) -> tuple[PhysicalOffset, ...]:
        return tuple(self._firsts)

    @property
    def wants_spare(self) -> bool:
        """Whether the next roll would have to create its file itself."""
        return self._spare is None

    @property
    def spare_path(self) -> str:
        return f"{self.folder}/{SPARE_NAME}"

    def give_spare(self, file: File) -> None:
        """Hand over a file of `segment_size_bytes` zeros at `spare_path`, fsynced."""
        assert self._spare is None, self.folder
        self._spare = file

    def roll(self, first: PhysicalOffset, *, size_min: int) -> Segment:
        """Begin the segment at `first`, large enough for a batch of `size_min` bytes.

        The file and its name are not durable yet: the next flush sees to it.
        """
        assert not self._segments or first > self.active.first, first  # an empty one never seals
        path = f"{self.folder}/{segment_name(first)}"
        size = max(self.segment_size_bytes, size_min)
        if self._spare is not None and size == self.segment_size_bytes:
            file, self._spare = self._spare, None
            self.disk.rename(self.spare_path, path)
        else:
            file = self.disk.open(path, create=True)
            self.disk.preallocate(file, size)
        self.has_new_names = True
        segment = Segment(first, size, file, path)
        self._add(segment)
        return segment

    def fill_up_active(self, *, size_min: int = 0) -> None:
        """Give the last segment its full size, or more for one large batch.

        A crash may have come before the size was durable.
        """
        active, size = self.active, max(self.segment_size_bytes, size_min)
        if active.capacity < size:
            self.disk.preallocate(active.file, size)
            active.capacity = size
            active.view = None  # it ends at the old size

    def locate(self, position: PhysicalOffset) -> Segment:
        """The segment that holds the byte at `position` (the last one for anything above it)."""
        index = bisect_right(self._firsts, position)
        if index == 0:
            raise CorruptLogError(f"no segment holds {position}", offset=position)
        return self._segments[index - 1]

    def limit_of(self, segment: Segment) -> PhysicalOffset:
        """Where `segment` ends at the latest: the next one's first offset, or its capacity."""
        index = bisect_right(self._firsts, segment.first)
        if index < len(self._firsts):
            return self._firsts[index]
        return PhysicalOffset(segment.first + segment.capacity)

    def first_hole(self, mark: PhysicalOffset) -> PhysicalOffset | None:
        """The first file too short to hold its bytes below `mark`, by its first offset, which is a
        batch boundary; None if all are long enough.
        """
        for segment in self.between(PhysicalOffset(0), mark):
            end = PhysicalOffset(segment.first + segment.capacity)
            if end < min(self.limit_of(segment), mark) or (segment is self.active and end < mark):
                return segment.first
        return None

    def between(self, start: PhysicalOffset, end: PhysicalOffset) -> list[Segment]:
        """The segments that hold bytes of [start, end)."""
        low = max(0, bisect_right(self._firsts, start) - 1)
        return [segment for segment in self._segments[low:] if segment.first < end]

    def view(self, start: PhysicalOffset, end: PhysicalOffset) -> memoryview:
        """A mapped view of [start, end), cut at its segment's end. Touches no page."""
        segment = self.locate(start)
        stop = min(end, self.limit_of(segment))
        if stop <= start:
            return memoryview(b"")
        if segment.view is None:
            segment.view = self.disk.map(segment.file, segment.capacity)
        self._shown_bytes += stop - start + _FAULT_BYTES
        if self._shown_bytes > SHOWN_BYTES_MAX:
            self._release_shown()
        self._shown[segment] = None
        return segment.view[start - segment.first : stop - segment.first]

    def _release_shown(self) -> None:
        shown, self._shown, self._shown_bytes = self._shown, {}, 0
        for segment in shown:
            if segment.view is not None:
                self.disk.release(segment.view)

    def pread(self, start: PhysicalOffset, end: PhysicalOffset) -> bytes:
        """A copy of [start, end), cut at its segment's end."""
        segment = self.locate(start)
        stop = min(end, self.limit_of(segment))
        return self.disk.pread(segment.file, stop - start, start - segment.first)

    def used_after(self, end: PhysicalOffset) -> int:
        """Bytes from `end` to the last non-zero one behind it, over all segments; 0 if none."""
        total = 0
        for segment in self.between(end, PhysicalOffset(2**63)):
            begin = max(0, end - segment.first)
            total += max(0, self._last_used(segment, begin) - begin)
        return total

    def cut_to(self, end: PhysicalOffset) -> None:
        """Durably drop everything at and after `end` (R25); repeatable after any crash.

        From the highest segment down, each unlink durable before the next, so that what is left
        is always a prefix; then the boundary segment's rest is rewritten as zeros and fsynced.
        It is not truncated: readers may hold views of it.
        """
        while self.count and self.active.first >= end:
            if self.count == 1 and self.active.first == end:
                break
            segment = self._segments.pop()
            self._firsts.pop()
            self.disk.unlink(segment.path)
            self.disk.sync_folder(self.folder)
            segment.file.close()
        if self.count == 0:
            self.roll(end, size_min=0)
            self.disk.sync_folder(self.folder)
        boundary = self.active
        begin = max(0, end - boundary.first)
        stop = self._last_used(boundary, begin)
        for at in range(begin, stop, _CHUNK_BYTES):
            self.disk.writev(boundary.file, [_ZEROS[: min(_CHUNK_BYTES, stop - at)]], at)
        self.disk.sync_now(boundary.file)

    @property
    def size_bytes(self) -> int:
        return sum(segment.capacity for segment in self._segments)

    def forget_below(self, start: PhysicalOffset) -> list[str]:
        """Give up the segments wholly below `start`, never the last one; their paths, rising.

        The files are still there; views of them that readers hold stay valid.
        """
        paths = []
        while self.count > 1 and self._firsts[1] <= start:
            segment = self._segments.pop(0)
            del self._firsts[0]
            segment.file.close()
            paths.append(segment.path)
        return paths

    def drop_aside(self) -> None:
        """Durably drop what an earlier `begin_anew_at` set aside: one copy is kept."""
        names = [name for name in self.disk.list(self.folder) if name.endswith(ASIDE_SUFFIX)]
        for name in names:
            self.disk.unlink(f"{self.folder}/{name}")
        if names:
            self.disk.sync_folder(self.folder)

    def begin_anew_at(self, first: PhysicalOffset, *, sets_aside: bool = False) -> None:
        """Durably drop everything and begin with an empty segment at `first`; repeatable.

        `sets_aside`: the segments are renamed in their folder instead (R5).
        """
        while self.count:
            segment = self._segments.pop()
            self._firsts.pop()
            aside = f"{self.folder}/{aside_name(segment_name(segment.first))}"
            if sets_aside and not self.disk.exists(aside):
                self.disk.rename(segment.path, aside)
            else:  # beside a kept one of its name: the new, empty one of before a crash
                self.disk.unlink(segment.path)
            segment.file.close()
        self.disk.sync_folder(self.folder)  # `first` may be the name of one that was here
        self.roll(first, size_min=0)
        self.disk.sync_now(self.active.file)
        self.disk.sync_folder(self.folder)
        self.has_new_names = False

    def sync_from(self, start: PhysicalOffset) -> None:
        """Make all bytes and names from `start` on durable; blocking."""
        for segment in self.between(start, PhysicalOffset(2**63)):
            self.disk.sync_now(segment.file)
        self.disk.sync_folder(self.folder)
        self.has_new_names = False

    def reread_from(self, start: PhysicalOffset) -> None:
        """Make reads at and after `start` show the disk, not a cache that outlived an fsync error.

        What only the page cache holds (after kill -9) is written out first.
        """
        for segment in self.between(start, PhysicalOffset(2**63)):
            assert segment.view is None, segment.path
            self.disk.sync_now(segment.file)
            self.disk.forget_clean(segment.file)

    def close(self) -> None:
        for segment in self._segments:
            segment.file.close()
        if self._spare is not None:
            self._spare.close()

    def _add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._firsts.append(segment.first)

    def _last_used(self, segment: Segment, begin: int) -> int:
        """Index after the last non-zero byte at or after `begin`; `begin` if all are zeros."""
        last = begin
        for start, end in self.disk.data_extents(segment.file, begin):
            for at in range(start, end, _CHUNK_BYTES):
                chunk = self.disk.pread(segment.file, min(_CHUNK_BYTES, end - at), at)
                if chunk != _ZEROS[: len(chunk)]:
                    last = at + len(chunk.rstrip(b"\0"))
        return last
