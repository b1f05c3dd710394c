"""The scrubber: reads everything again, slowly, to find what the disk changed (R23, R24).

One pass goes over the confirmed and flushed log, batch by batch (both CRCs, offset, epoch), sees
that every segment's file still has its name, and looks at the small files beside the log: those
are written anew from memory, or dropped where a newer one makes them needless. It reads at most
`scrub_bytes_per_s`, in slices that keep callbacks of the loop short, cold pages off the loop; a
pass begins each `scrub_interval_hours`. Readers that met something strange ask it to look at once.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.ports import Clock
from paceline.platform.runtime import pause
from paceline.types import PhysicalOffset
from paceline_broker.log.layout import segment_name
from paceline_broker.log.walk import check_batch_at
from paceline_broker.storage.store import Store

log = logging.getLogger("paceline.scrub")

SLICE_BYTES = 64 * 1024
"""Some 170 us of CPU with batches of 1 KiB."""
HOUR_MS = 3_600_000
PAUSE_MS_MIN = 2


@dataclass(slots=True)
class ScrubCounts:
    """Since this process started; for status and metrics."""

    passes: int = 0
    bytes: int = 0
    side_files: int = 0
    """Small files that were damaged and replaced."""
    position: int = 0
    """Where the present pass is."""


class Scrubber:
    """See the module. `run` ends only by cancellation; owner: the role."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        folder: str,
        interval_hours: float,
        bytes_per_s: int,
        on_damage: Callable[[PhysicalOffset, str], None],
    ) -> None:
        """`interval_hours` 0: only what is asked for is looked at."""
        self._store = store
        self._clock = clock
        self._folder = folder
        self._interval_ms = round(interval_hours * HOUR_MS)
        self._bytes_per_s = bytes_per_s
        self._on_damage = on_damage
        self._asked: set[PhysicalOffset] = set()
        self._wakeup = asyncio.Event()
        self.counts = ScrubCounts()

    def look_at(self, position: PhysicalOffset) -> None:
        """Verify the segment that holds `position` now, at full speed."""
        self._asked.add(position)
        self._wakeup.set()

    async def run(self) -> None:
        while True:
            began_ms = self._clock.monotonic_ms()
            if self._interval_ms:
                await self._pass()
            await self._rest(began_ms)

    async def _rest(self, began_ms: int) -> None:
        """Until the next pass is due; what is asked for meanwhile is done at once."""
        while True:
            await self._answer()
            left_ms = began_ms + self._interval_ms - self._clock.monotonic_ms()
            if self._interval_ms and left_ms <= 0:
                return
            try:
                async with asyncio.timeout(left_ms / 1000 if self._interval_ms else None):
                    await self._wakeup.wait()
            except TimeoutError:
                return

    async def _answer(self) -> None:
        self._wakeup.clear()
        while self._asked:
            position = self._asked.pop()
            for first, end in self._segments():
                if first <= position < end:
                    await self._scrub(first, end, is_paced=False)

    def _segments(self) -> list[tuple[PhysicalOffset, PhysicalOffset]]:
        """(first, end) of the segments, as far as they are confirmed and on the disk."""
        commit_log = self._store.log
        if commit_log.failure is not None:
            return []  # opened damaged, or poisoned: its start verifies it, or the repair
        stop = min(commit_log.confirm, commit_log.flushed)
        bounds = commit_log.segment_bounds()
        last = bounds[-1][1] if bounds else commit_log.start
        bounds.append((last, commit_log.end))
        return [(first, min(end, stop)) for first, end in bounds if first < stop]

    async def _pass(self) -> None:
        self._scrub_side_files()
        names = set(self._store.disk.list(self._folder))
        for first, end in self._segments():
            commit_log = self._store.log
            if segment_name(first) not in names and first >= commit_log.start:
                self._found(first, f"the file of the segment at {first} is gone")
            elif not await self._scrub(first, end, is_paced=True):
                break
            await self._answer()
        else:
            self.counts.passes += 1
        self.counts.position = 0

    async def _scrub(self, first: PhysicalOffset, end: PhysicalOffset, *, is_paced: bool) -> bool:
        """Verify [first, end); False if it cannot go on: damage was found, or the log changed."""
        commit_log = self._store.log
        generation, position = commit_log.generation, first
        epoch = int(commit_log.epochs.epoch_at(PhysicalOffset(first - 1))) if first else 0
        while position < end:
            if commit_log.generation != generation:
                return False
            if position < commit_log.start:
                return True  # retention took the whole segment (R26): the next one goes on
            at = 0
            try:
                piece = commit_log.read_raw(position, SLICE_BYTES, end)
                if commit_log.is_cold(piece):
                    await commit_log.warm(piece)
                while at < len(piece):
                    header = check_batch_at(
                        piece, at, len(piece), position=position + at, epoch=epoch
                    )
                    epoch = header.master_epoch
                    at += header.size_bytes
            except CorruptLogError as error:
                if commit_log.generation == generation:
                    self._found(PhysicalOffset(position + at), error.message)
                return False
            except StorageError as error:
                log.error("scrub_failed", extra={"position": position, "fault": error.message})
                return False
            position = PhysicalOffset(position + len(piece))
            self.counts.bytes += len(piece)
            self.counts.position = position
            wait_ms = 1000 * len(piece) / self._bytes_per_s if is_paced else 0
            await pause(max(wait_ms, PAUSE_MS_MIN) if is_paced else 0)
        return True

    def _found(self, position: PhysicalOffset, reason: str) -> None:
        damage = self._store.log.damage
        if damage is not None and damage.covers(position, position + 1):
            return  # known, and under repair
        log.error("damage_found", extra={"position": int(position), "fault": reason})
        self._on_damage(position, reason)

    def _scrub_side_files(self) -> None:
        """What lies beside the segments is also in memory: a bad file is written anew."""
        try:
            replaced = self._store.replace_bad_side_files()
        except StorageError as error:
            log.error("scrub_failed", extra={"fault": error.message})
            return
        for path in replaced:
            log.error("side_file_replaced", extra={"path": path})
        self.counts.side_files += len(replaced)
