"""Tickets of flushes: which bytes go to the disk together, and what is durable after it."""

from dataclasses import dataclass
from typing import NamedTuple

from paceline.platform.ports import Buffer, Disk, File
from paceline.types import PhysicalOffset


class Written(NamedTuple):
    """Bytes of one gathered write: `buffers` stand one after another from `position` on."""

    position: PhysicalOffset
    buffers: list[Buffer]


class SpareWanted(NamedTuple):
    """The file to make ahead for the next segment."""

    path: str
    size_bytes: int
    opening: int
    """Which opening of the log wants it: the next one unlinks what it finds at `path` (R25)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushTicket:
    """What must be synced before everything below `position` is durable.

    Files first, in order, then the folder if it is named: a new segment's name counts too (R25).
    """

    position: PhysicalOffset
    files: tuple[File, ...]
    folder: str | None
    generation: int

    def run_now(self, disk: Disk) -> None:
        """Sync on the caller's thread: for tests and for the steps that block anyway."""
        for file in self.files:
            disk.sync_now(file)
        if self.folder is not None:
            disk.sync_folder(self.folder)
