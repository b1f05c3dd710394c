"""Repairs a damaged range of the log, file by file, with verified bytes of a peer (R24).

The stretch [position, mark) was durable once and is not what was written. The mender walks over it:
a batch that is intact here stays, any other is replaced by the same bytes of the log's history as a
peer has them, checked by both CRCs, physical offset and epoch before a byte is written. Bytes that
are replaced are kept aside first. The files are worked on beside the log object, which serves
nothing of the stretch meanwhile and is opened anew afterwards (`CommitLog.reopen`).

A crash at any point is harmless: the log's checkpoint says `verify_from <= position` until all is
mended, so the next start finds what is still bad. Synchronous, bounded steps. Owner:
integrity/repair.py.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import NamedTuple

from paceline.errors import CorruptLogError
from paceline.platform.ports import Buffer, Disk, File
from paceline.records.header import HEADER_BYTES, MAGIC, peek_size
from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.log.checkpoint import Checkpoint
from paceline_broker.log.epochs import EpochTable
from paceline_broker.log.layout import segment_firsts, segment_name
from paceline_broker.log.recovery import Damage, save_checkpoint
from paceline_broker.log.segment import Segments
from paceline_broker.log.walk import check_alone_at, check_batch_at

ASIDE_BYTES_MAX = 64 * 1024 * 1024
"""Old bytes that are kept for whoever wants to know what the disk did; the oldest go first."""
_STEP_BYTES = 256 * 1024
_MAGIC_BYTES = MAGIC.to_bytes(4, "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What the log knows of itself when the repair begins."""

    damage: Damage
    checkpoint: Checkpoint
    """The newest durable one."""
    firsts: tuple[PhysicalOffset, ...]
    """First offsets of the segments that belong below the mark, whether their files are there."""
    epochs: EpochTable
    """Of the intact log below the damage."""
    resume_from: PhysicalOffset
    """`verify_from` once all is mended: all below it was verified before, or is by the repair."""
    segment_size_bytes: int


def damage_at(
    segments: Segments, position: PhysicalOffset, *, mark: PhysicalOffset, reason: str
) -> Damage:
    """How far damage that begins at batch boundary `position` goes: to the next intact batch.

    Only within its segment, and at most to `mark`; the repair looks further by itself.
    """
    segment = segments.locate(position)
    stop = min(segments.limit_of(segment), mark)
    buffer = segments.pread(position, stop)
    at = buffer.find(_MAGIC_BYTES, 8)
    while at >= 0:
        if at % 8 == 0 and _is_intact(buffer, at, position + at):
            stop = PhysicalOffset(position + at)
            break
        at = buffer.find(_MAGIC_BYTES, at + 1)
    return Damage(position=position, mark=stop, reason=reason)


def _is_intact(buffer: bytes, at: int, position: int) -> bool:
    try:
        check_alone_at(buffer, at, len(buffer), position=position)
    except CorruptLogError:
        return False
    return True


def first_bad(view: memoryview, position: PhysicalOffset) -> PhysicalOffset | None:
    """Where the first batch stands that is not what was written; None: all of `view` is right."""
    at = 0
    while at < len(view):
        try:
            header = check_alone_at(view, at, len(view), position=position + at)
        except CorruptLogError:
            return PhysicalOffset(position + at)
        at += header.size_bytes
    return None


def is_batch(piece: Buffer, position: PhysicalOffset) -> bool:
    """Whether a whole batch stands at the front of `piece`, by its own word: CRCs and offset."""
    try:
        check_alone_at(piece, 0, len(piece), position=position)
    except CorruptLogError:
        return False
    return True


class Aside(NamedTuple):
    """What is kept of replaced bytes."""

    files_count: int
    size_bytes: int


def kept_aside(disk: Disk, folder: str) -> Aside:
    """What repairs have put into `folder` so far, made if it is not there. Blocking, short."""
    disk.make_folder(folder)
    sizes = _sizes_aside(disk, folder)
    return Aside(len(sizes), sum(size for _, size in sizes))


def _sizes_aside(disk: Disk, folder: str) -> list[tuple[str, int]]:
    """Of each kept file, oldest first."""
    sizes = []
    for name in sorted(name for name in disk.list(folder) if name.endswith(".bytes")):
        file = disk.open(f"{folder}/{name}")
        sizes.append((name, disk.size(file)))
        file.close()
    return sizes


class RangeRepairer:
    """The repair of one stretch. `scan` until it stands at a bad batch, `fill`, and so on."""

    def __init__(self, disk: Disk, folder: str, aside: str, plan: RepairPlan) -> None:
        """Makes missing files (as zeros, which are damage too) and renames foreign ones."""
        self._disk = disk
        self._folder = folder
        self._aside = aside
        self._plan = plan
        self._files: dict[PhysicalOffset, File] = {}
        self._mended: list[tuple[PhysicalOffset, PhysicalOffset]] = []
        self.position = plan.damage.position
        self.mark = plan.damage.mark
        self._epoch = plan.epochs.last_epoch
        disk.make_folder(aside)
        self._put_files_right()

    @property
    def is_done(self) -> bool:
        return self.position >= self.mark

    @property
    def mended_bytes(self) -> int:
        return sum(end - start for start, end in self._mended)

    def files(self) -> list[File]:
        """Those of the stretch, to be synced before `finish`.

        Also what was intact already: an attempt that was given up may have written it, and gone.
        """
        begin = self._first_of(self._plan.damage.position)
        return [self._files[first] for first in self._plan.firsts if begin <= first < self.mark]

    def scan(self, epochs: EpochTable) -> bool:
        """Step over intact batches, some 256 KiB of them; True if it stands at a bad one.

        Intact is what also has its place in the peer's history: `epochs` is its table.
        """
        stop = min(self._limit(), self.mark)
        buffer = memoryview(self._read(self.position, min(stop, self.position + _STEP_BYTES)))
        size = _first_size(buffer)
        if size > len(buffer) and self.position + size <= stop:
            buffer = memoryview(self._read(self.position, self.position + size))
        at = 0
        while at < len(buffer):
            position = self.position + at
            try:
                header = check_batch_at(
                    buffer, at, len(buffer), position=position, epoch=self._epoch
                )
            except CorruptLogError:
                break
            if header.master_epoch != epochs.epoch_at(PhysicalOffset(position)):
                break
            self._epoch = MasterEpoch(header.master_epoch)
            at += header.size_bytes
        self.position = PhysicalOffset(self.position + at)
        return at == 0 and not self.is_done

    def fill(self, data: bytes, epochs: EpochTable) -> None:
        """Replace what stands at `position` by whole batches of a peer.

        Raises CorruptLogError before anything is written if they are not the right ones there.
        """
        view = memoryview(data)
        runs = self._checked_runs(view, epochs)
        for start, end in runs:
            first = self._first_of(start)
            file = self._open(first)
            part = view[start - self.position : end - self.position]
            if self._disk.pread(file, len(part), start - first) != part:
                self._keep_aside(file, start, end, first)
                self._disk.writev(file, [part], start - first)
                self._mended.append((start, end))
        self.position = PhysicalOffset(self.position + len(view))
        if self.position > self.mark:
            # What was taken for the next intact batch lay inside of one: look on behind it.
            self.mark = max(self.mark, self._plan.checkpoint.flushed)

    def _checked_runs(
        self, view: memoryview, epochs: EpochTable
    ) -> list[tuple[PhysicalOffset, PhysicalOffset]]:
        """The stretches of `view`, one for each segment it belongs to; all of it checked (R24)."""
        at, epoch = 0, int(self._epoch)
        runs: list[tuple[PhysicalOffset, PhysicalOffset]] = []
        while at < len(view):
            position = PhysicalOffset(self.position + at)
            header = check_batch_at(view, at, len(view), position=position, epoch=epoch)
            if header.master_epoch != epochs.epoch_at(position):
                raise CorruptLogError(
                    f"a batch of epoch {header.master_epoch} for {position}", offset=position
                )
            end = PhysicalOffset(position + header.size_bytes)
            if end > self._limit_of(self._first_of(position)):
                raise CorruptLogError(f"a batch for {position} spans two segments", offset=position)
            if runs and self._first_of(runs[-1][0]) == self._first_of(position):
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((position, end))
            epoch = header.master_epoch
            at += header.size_bytes
        if at == 0:
            raise CorruptLogError(f"no batch for {self.position}", offset=self.position)
        self._epoch = MasterEpoch(epoch)
        return runs

    def cut(self) -> None:
        """Give up everything from `position` on: the master will send it again (R24).

        Durably begun: `CommitLog.reopen` finishes it, or the next start. What is cut had been
        acknowledged, perhaps: the replica is suspect until it has grown again (R23).
        """
        self._sync()
        cut_to, before = self.position, self._plan.checkpoint
        if cut_to < before.confirm:
            raise CorruptLogError(f"a cut to {cut_to}, below confirm {before.confirm} (R16)")
        flushed = min(before.flushed, cut_to)
        lowered = replace(
            before,
            flushed=flushed,
            verify_from=min(self._plan.resume_from, flushed),
            epochs=before.epochs.cut_to(flushed),
            segments=tuple(first for first in before.segments if first < flushed),
            is_suspect=True,
            truncate_to=cut_to,
        )
        save_checkpoint(self._disk, self._folder, lowered)

    def finish(self) -> None:
        """All of the stretch is intact: sync it, read it again from the disk, and say so."""
        assert self.is_done
        self._sync()
        self._verify_again()
        before = self._plan.checkpoint
        resume_from = min(max(self._plan.resume_from, before.verify_from), before.flushed)
        save_checkpoint(self._disk, self._folder, replace(before, verify_from=resume_from))

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _sync(self) -> None:
        for file in self.files():
            self._disk.sync_now(file)
        self._disk.sync_folder(self._folder)

    def _verify_again(self) -> None:
        """What was written is what the disk holds (R24)."""
        for first in {self._first_of(start) for start, _ in self._mended}:
            self._disk.forget_clean(self._files[first])
        for start, end in self._mended:
            bad = first_bad(memoryview(self._read(start, end)), start)
            if bad is not None:
                raise CorruptLogError(f"{bad} was written and reads otherwise", offset=bad)

    # -- files ------------------------------------------------------------------------------------

    def _put_files_right(self) -> None:
        disk, plan = self._disk, self._plan
        wanted = set(plan.firsts)
        present = set(segment_firsts(disk.list(self._folder)))
        for first in sorted(present - wanted):
            if first < self.mark:  # nobody wrote such a file; what it holds is not the log (R23)
                name = segment_name(first)
                disk.rename(f"{self._folder}/{name}", f"{self._folder}/{name}.foreign")
        for first in plan.firsts:
            path = f"{self._folder}/{segment_name(first)}"
            file = disk.open(path, create=first not in present)
            needed = max(plan.segment_size_bytes, min(self._limit_of(first), self.mark) - first)
            if disk.size(file) < needed:
                disk.preallocate(file, needed)
                disk.sync_now(file)
            self._files[first] = file
        disk.sync_folder(self._folder)

    def _open(self, first: PhysicalOffset) -> File:
        return self._files[first]

    def _first_of(self, position: PhysicalOffset) -> PhysicalOffset:
        index = bisect_right(self._plan.firsts, position)
        if index == 0:
            raise CorruptLogError(f"no segment holds {position}", offset=position)
        return self._plan.firsts[index - 1]

    def _limit_of(self, first: PhysicalOffset) -> PhysicalOffset:
        index = bisect_right(self._plan.firsts, first)
        if index < len(self._plan.firsts):
            return self._plan.firsts[index]
        return PhysicalOffset(2**63)

    def _limit(self) -> PhysicalOffset:
        """Where the segment at `position` ends at the latest."""
        return self._limit_of(self._first_of(self.position))

    def _read(self, start: PhysicalOffset, end: int) -> bytes:
        first = self._first_of(start)
        return self._disk.pread(self._open(first), max(0, end - start), start - first)

    def _keep_aside(
        self, file: File, start: PhysicalOffset, end: PhysicalOffset, first: PhysicalOffset
    ) -> None:
        disk = self._disk
        number = 1 + max([0, *(int(name[:10]) for name, _ in _sizes_aside(disk, self._aside))])
        kept = disk.open(f"{self._aside}/{number:010d}-{start:020d}.bytes", create=True)
        try:
            old = disk.pread(file, min(end - start, ASIDE_BYTES_MAX), start - first)
            disk.writev(kept, [old], 0)
            disk.sync_now(kept)
        finally:
            kept.close()
        disk.sync_folder(self._aside)
        self._bound_aside()

    def _bound_aside(self) -> None:
        sizes = _sizes_aside(self._disk, self._aside)
        total = sum(size for _, size in sizes)
        for name, size in sizes[:-1]:
            if total <= ASIDE_BYTES_MAX:
                break
            self._disk.unlink(f"{self._aside}/{name}")
            total -= size


def _first_size(buffer: memoryview) -> int:
    """What the first header claims to need; 0 if there is none."""
    try:
        return peek_size(buffer) if len(buffer) >= HEADER_BYTES else 0
    except CorruptLogError:
        return 0
