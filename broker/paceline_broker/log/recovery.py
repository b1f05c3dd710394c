"""Recovery of the log when it is opened: verify its end, cut a torn write, report damage.

The checkpoint names a position below which everything was durable (`flushed`). The walk begins a
margin before it and checks every batch (walk.py). Where it stops decides (R23):

- below the mark: *damage*. Bytes that were durable are not what was written. Nothing is touched,
  the log opens read-only up to there, and the role refuses to lead until a peer's bytes have mended
  it (repair.py, R24);
- at or above the mark: a *tear*, as a crash leaves it. Everything behind it is cut. If any byte
  cut is not zero the replica is *suspect*, because a flipped bit in the last batch looks the same;
  that is remembered in the checkpoint until the role has settled it.

Without a readable checkpoint the mark is the start of the last segment, and the replica is suspect.
"""

import logging
from dataclasses import dataclass, replace

from paceline.errors import CorruptLogError
from paceline.platform.ports import Disk, read_whole, write_durably
from paceline.types import PhysicalOffset
from paceline_broker.log.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from paceline_broker.log.epochs import EpochTable
from paceline_broker.log.layout import CHECKPOINT_NAME
from paceline_broker.log.segment import Segments
from paceline_broker.log.walk import Walk, walk_batches

log = logging.getLogger("paceline.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Durable bytes that are lost or changed: [position, mark) cannot be trusted (R23, R24)."""

    position: PhysicalOffset  # end of the intact prefix
    mark: PhysicalOffset  # everything below it was durable
    reason: str

    def error(self) -> CorruptLogError:
        """For whoever would use the log as if it were whole."""
        return CorruptLogError(
            f"the log is damaged at {self.position}, below {self.mark}: {self.reason}",
            offset=self.position,
        )

    def covers(self, start: PhysicalOffset, end: int) -> bool:
        """Whether a byte of [start, end) cannot be trusted."""
        return start < self.mark and end > self.position

    def joined(self, other: "Damage") -> "Damage":
        """Both, and what lies between them."""
        return Damage(
            position=min(self.position, other.position),
            mark=max(self.mark, other.mark),
            reason=f"{self.reason}; {other.reason}"[:1000],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What opening the log found and did."""

    start: PhysicalOffset
    end: PhysicalOffset
    flushed_mark: PhysicalOffset  # from the checkpoint
    confirm_mark: PhysicalOffset  # from the checkpoint: this replica's own confirm (R16)
    verified_from: PhysicalOffset
    batches_count: int  # verified
    cut_bytes: int  # up to the last non-zero byte behind the end; 0 = a clean end
    is_suspect: bool  # now, or since an earlier start and not settled yet
    damage: Damage | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The state to go on from."""

    report: RecoveryReport
    checkpoint: Checkpoint
    epochs: EpochTable
    last_store_unix_ms: int


def recover(disk: Disk, folder: str, segments: Segments) -> Recovery:
    """Open and repair the segments in `folder`; on return a log without damage is all durable.

    Blocking; only at start. Never raises for what it finds in the files, only StorageError.
    """
    segments.open_all()
    checkpoint, is_suspect = _load_checkpoint(disk, folder, segments)
    checkpoint = replace(checkpoint, is_suspect=is_suspect)
    if checkpoint.is_beginning_anew:  # a crash came between its begin and its end (R14)
        segments.begin_anew_at(checkpoint.start, sets_aside=checkpoint.sets_aside)
        checkpoint = replace(checkpoint, is_beginning_anew=False, sets_aside=False)
        save_checkpoint(disk, folder, checkpoint)
    if leftovers := segments.forget_below(checkpoint.start):  # a crash came before they were gone
        for path in leftovers:
            disk.unlink(path)
        disk.sync_folder(folder)
    if checkpoint.truncate_to is not None:  # a crash came between its begin and its end
        segments.cut_to(checkpoint.truncate_to)
        checkpoint = replace(checkpoint, truncate_to=None)
        save_checkpoint(disk, folder, checkpoint)
    checkpoint = _begin_if_empty(segments, checkpoint)
    start = min((*segments.firsts, *checkpoint.segments), default=PhysicalOffset(0))
    walk = _missing(segments, checkpoint) or _torn_at_start(segments, checkpoint)
    if walk is None:
        segments.reread_from(checkpoint.verify_from)
        segments.fill_up_active()
        walk = _walk(segments, checkpoint)
    start = min(start, walk.end)
    damage, cut_bytes, mark = None, 0, checkpoint.flushed
    if walk.end < mark or (start > 0 and not checkpoint.epochs.entries):
        # Of a log that begins above 0 the epochs before stand in the checkpoint and nowhere else.
        damage = Damage(position=walk.end, mark=mark, reason=walk.fault or "the log ends here")
    else:
        cut_bytes = segments.used_after(walk.end)
        checkpoint = _settle(disk, folder, segments, checkpoint, walk, cut_bytes)
    report = RecoveryReport(
        start=start,
        end=walk.end,
        flushed_mark=mark,
        confirm_mark=checkpoint.confirm,
        verified_from=checkpoint.verify_from,
        batches_count=walk.batches_count,
        cut_bytes=cut_bytes,
        is_suspect=checkpoint.is_suspect,
        damage=damage,
    )
    return Recovery(
        report=report,
        checkpoint=checkpoint,
        epochs=walk.epochs,
        last_store_unix_ms=max(walk.last_store_unix_ms, checkpoint.last_store_unix_ms),
    )


def save_checkpoint(disk: Disk, folder: str, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint durably; blocking."""
    write_durably(disk, f"{folder}/{CHECKPOINT_NAME}", encode_checkpoint(checkpoint))


def is_checkpoint_intact(disk: Disk, folder: str) -> bool:
    """Whether the checkpoint is there and can be read."""
    path = f"{folder}/{CHECKPOINT_NAME}"
    if not disk.exists(path):
        return False
    try:
        decode_checkpoint(read_whole(disk, path))
    except CorruptLogError:
        return False
    return True


def _load_checkpoint(disk: Disk, folder: str, segments: Segments) -> tuple[Checkpoint, bool]:
    """The checkpoint, or what must be assumed without one; and whether the replica is suspect."""
    path = f"{folder}/{CHECKPOINT_NAME}"
    was_written = disk.exists(path)
    if was_written:
        try:
            checkpoint = decode_checkpoint(read_whole(disk, path))
            return checkpoint, checkpoint.is_suspect
        except CorruptLogError as error:
            log.error("log_checkpoint_unreadable", extra={"path": path, "fault": error.message})
    firsts = segments.firsts or (PhysicalOffset(0),)
    # A log gets its checkpoint before its first byte: without one, what was durable is unknown.
    checkpoint = Checkpoint(
        flushed=firsts[-1], confirm=firsts[0], verify_from=firsts[0], segments=firsts[:-1]
    )
    return checkpoint, was_written or segments.used_after(firsts[0]) > 0


def _missing(segments: Segments, checkpoint: Checkpoint) -> Walk | None:
    """A walk that ends at the first file below the mark that is gone, foreign or too short."""
    mark = checkpoint.flushed
    present = {first for first in segments.firsts if first < mark}
    listed = set(checkpoint.segments)
    wrong = present ^ listed
    hole = min(wrong) if wrong else segments.first_hole(mark)
    if hole is None:
        return None
    # A foreign file may begin anywhere: what is listed before it begins at a batch.
    end = min(max((first for first in listed if first <= hole), default=hole), mark)
    fault = f"the segment files do not hold all of the log from {end} on"
    return Walk(end, checkpoint.epochs.cut_to(end), 0, 0, fault)


def _begin_if_empty(segments: Segments, checkpoint: Checkpoint) -> Checkpoint:
    """Make an empty segment if there is none and none is missed; the checkpoint to go on with.

    The log is new, or its only file was lost before anything in it was noted as durable. Above 0
    such a replica is suspect, as it may have acknowledged more (R23); an empty log at 0 says by
    itself that it has nothing.
    """
    if segments.count or checkpoint.segments or checkpoint.flushed > checkpoint.start:
        return checkpoint
    segments.roll(checkpoint.start, size_min=0)
    return replace(checkpoint, is_suspect=checkpoint.is_suspect or checkpoint.start > 0)


def _torn_at_start(segments: Segments, checkpoint: Checkpoint) -> Walk | None:
    """A walk that ends where it begins: the first file is gone before anything was noted as
    durable, so this is a tear, and what follows is cut (R23)."""
    position = checkpoint.start
    if checkpoint.flushed > position or segments.firsts[0] <= position:
        return None
    return Walk(position, checkpoint.epochs.cut_to(position), 0, 0, None)


def _walk(segments: Segments, checkpoint: Checkpoint) -> Walk:
    """Verify from the checkpoint's margin to the first bad batch or the end, over all segments."""
    position = checkpoint.verify_from
    epochs = checkpoint.epochs.cut_to(position)
    last_ms, batches_count = 0, 0
    while True:
        segment = segments.locate(position)
        limit = segments.limit_of(segment)
        view = segments.view(position, limit)
        walk = walk_batches(view, position=position, stop=len(view), epochs=epochs)
        position, epochs = walk.end, walk.epochs
        last_ms = max(last_ms, walk.last_store_unix_ms)
        batches_count += walk.batches_count
        is_last = segment is segments.active
        if is_last or position < limit:
            fault = walk.fault
            if fault is None and not is_last:
                fault = f"{limit - position} bytes are missing before the next segment"
            return Walk(position, epochs, last_ms, batches_count, fault)


def _settle(
    disk: Disk,
    folder: str,
    segments: Segments,
    checkpoint: Checkpoint,
    walk: Walk,
    cut_bytes: int,
) -> Checkpoint:
    """Cut what follows the walk's end, make the rest durable, and note that it is."""
    checkpoint = replace(checkpoint, is_suspect=checkpoint.is_suspect or cut_bytes > 0)
    if cut_bytes or segments.active.first > walk.end:
        # Suspicion first: a crash in the middle of the cut must not wash it off (R23).
        save_checkpoint(disk, folder, replace(checkpoint, truncate_to=walk.end))
        segments.cut_to(walk.end)
        segments.fill_up_active()
    segments.sync_from(checkpoint.flushed)
    settled = replace(
        checkpoint,
        flushed=walk.end,
        epochs=walk.epochs,
        segments=tuple(first for first in segments.firsts if first < walk.end),
        last_store_unix_ms=max(walk.last_store_unix_ms, checkpoint.last_store_unix_ms),
    )
    save_checkpoint(disk, folder, settled)
    return settled
