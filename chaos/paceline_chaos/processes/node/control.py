"""One memory page shared by the harness and a node: faults that the node does to itself.

Both map the same file, so a fault takes effect with the next disk operation or look at the clock:
no polling, no message that a stopped process cannot read. Every slot is one 8-byte integer with one
writer at a time: the harness, except where a countdown is said to be the node's.
"""

import mmap
import os
import struct
from pathlib import Path

_SLOT = struct.Struct("<q")
_SLOTS = (
    "wall_offset_ms",  # added to the wall clock
    "rate_ppm",  # both clocks run this much faster (negative: slower)
    "sync_delay_ms",  # how long every sync takes at least
    "is_full",  # no space left
    "sync_failures",  # so many syncs fail; the node counts down
    "write_failures",  # so many writes fail; the node counts down
    "fuse",  # the node counts down disk operations and dies at 1; 0 = no fuse
)
_OFFSETS = {name: index * _SLOT.size for index, name in enumerate(_SLOTS)}


class Control:
    """The page at `path`, made if it is not there; all slots are 0 then."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < mmap.PAGESIZE:
                os.ftruncate(descriptor, mmap.PAGESIZE)
            self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        finally:
            os.close(descriptor)

    def get(self, slot: str) -> int:
        value: int = _SLOT.unpack_from(self._page, _OFFSETS[slot])[0]
        return value

    def set(self, slot: str, value: int) -> None:
        _SLOT.pack_into(self._page, _OFFSETS[slot], value)

    def take(self, slot: str) -> bool:
        """Count a slot down; whether there was anything to take."""
        left = self.get(slot)
        if left <= 0:
            return False
        self.set(slot, left - 1)
        return True

    def close(self) -> None:
        self._page.close()
