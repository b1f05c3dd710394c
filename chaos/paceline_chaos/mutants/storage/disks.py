"""Rules of logs and disks, taken out (R22 to R25, INV-1)."""

from dataclasses import replace
from typing import Any

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.disk_memory import MemoryDisk
from paceline.records.header import HEADER_BYTES, BatchHeader, parse_header
from paceline.types import MasterEpoch
from paceline_broker.log import commit_log as commit_log_module
from paceline_broker.log import recovery, walk
from paceline_broker.log.checkpoint import Checkpoint
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.tickets import FlushTicket
from paceline_broker.storage.store import Store
from paceline_chaos.mutants.mutant import NOT_WHERE_IT_MUST_BE, Mutant, Patch


def _failed_fsync_forgotten() -> list[Patch]:
    """A failed fsync counts: the next one succeeds, and what the first should have kept is gone."""
    run_now = FlushTicket.run_now

    def run_anyhow(ticket: FlushTicket, disk: MemoryDisk) -> None:
        try:
            run_now(ticket, disk)
        except StorageError:
            return

    return [(FlushTicket, "run_now", run_anyhow)]


def _no_fsync() -> list[Patch]:
    """A flush syncs nothing and says that it did."""

    def run_now(ticket: FlushTicket, disk: MemoryDisk) -> None:
        return

    return [(FlushTicket, "run_now", run_now)]


def _names_not_synced() -> list[Patch]:
    """The folder of a new segment is not fsynced."""
    begin_flush = CommitLog.begin_flush

    def begin_without_folder(log: CommitLog) -> FlushTicket | None:
        ticket = begin_flush(log)
        if ticket is None:
            return None
        ticket = replace(ticket, folder=None)
        log._ticket = ticket
        return ticket

    return [(CommitLog, "begin_flush", begin_without_folder)]


def _unchecked(buffer: Any, at: int, stop: int, *, position: int, epoch: int) -> BatchHeader:
    """As `walk.check_batch_at`, but the payload may be anything."""
    if stop - at < HEADER_BYTES:
        raise CorruptLogError("no batch", offset=position)
    header = parse_header(buffer, at)
    if header.size_bytes > stop - at or header.physical_offset != position:
        raise CorruptLogError("another batch", offset=position)
    if header.master_epoch != epoch or header.kind == walk._EPOCH_START or epoch == 0:
        walk._check_epoch_start(header, epoch)
    return header


def _torn_batches_kept() -> list[Patch]:
    """Recovery looks at headers only."""
    return [(walk, "check_batch_at", _unchecked)]


def _frames_not_checked() -> list[Patch]:
    """A replica appends what it gets."""
    return [(commit_log_module, "check_batch_at", _unchecked)]


def _cut_in_memory_only() -> list[Patch]:
    """A truncation moves the marks and leaves the bytes."""

    def cut_to(segments: Any, end: Any) -> None:
        return

    from paceline_broker.log.segment import Segments

    return [(Segments, "cut_to", cut_to)]


def _nobody_is_suspect() -> list[Patch]:
    """A log that lost its last batches at recovery says nothing of it."""
    settle = recovery._settle

    def settle_quietly(
        disk: Any, folder: Any, segments: Any, checkpoint: Any, walked: Any, cut_bytes: int
    ) -> Any:
        settled = settle(disk, folder, segments, checkpoint, walked, cut_bytes)
        quiet = replace(settled, is_suspect=False)
        recovery.save_checkpoint(disk, folder, quiet)
        return quiet

    return [(recovery, "_settle", settle_quietly)]


def _settled_by_any_start() -> list[Patch]:
    """The start of the present epoch settles a suspicion, also one from before the cut."""

    def has_regained(store: Store, epoch: MasterEpoch) -> bool:
        start = store.log.epochs.start_of(epoch)
        return start is not None and start < store.log.flushed

    return [(Store, "has_regained", has_regained)]


def _cut_before_its_note() -> list[Patch]:
    """A log is cut before its checkpoint says so: a crash between leaves a mark above its end."""
    save = CommitLog._save

    def save_when_done(log: CommitLog, checkpoint: Checkpoint) -> None:
        if checkpoint.truncate_to is None:
            save(log, checkpoint)

    return [(CommitLog, "_save", save_when_done)]


LOST_BY_DISK = NOT_WHERE_IT_MUST_BE | {"INV-8", "R23"}

DISKS = (
    Mutant(
        rule="R22",
        meaning="a failed fsync is forgotten",
        caught_by=LOST_BY_DISK,
        patches=_failed_fsync_forgotten,
    ),
    Mutant(
        rule="R11-fsync", meaning="nothing is fsynced", caught_by=LOST_BY_DISK, patches=_no_fsync
    ),
    Mutant(
        rule="R25-names",
        meaning="new segments' names are not fsynced",
        caught_by=LOST_BY_DISK,
        patches=_names_not_synced,
    ),
    Mutant(
        rule="R25-torn",
        meaning="recovery does not check payloads",
        caught_by=LOST_BY_DISK | {"S3"},
        patches=_torn_batches_kept,
    ),
    Mutant(
        rule="R25-cut",
        meaning="a truncation leaves the bytes",
        caught_by=LOST_BY_DISK,
        patches=_cut_in_memory_only,
    ),
    Mutant(
        rule="R25-noted",
        meaning="a log is cut before its checkpoint says so",
        caught_by=LOST_BY_DISK | {"R8"},
        patches=_cut_before_its_note,
    ),
    Mutant(
        rule="R24-crc",
        meaning="a replica appends without checking",
        caught_by=LOST_BY_DISK | {"S3"},
        patches=_frames_not_checked,
    ),
    Mutant(
        rule="R23",
        meaning="who cut its log is not suspect",
        caught_by=LOST_BY_DISK | {"R8"},
        patches=_nobody_is_suspect,
    ),
    Mutant(
        rule="R23-settled",
        meaning="a suspect is cleared by what it had before",
        caught_by=LOST_BY_DISK | {"R8"},
        patches=_settled_by_any_start,
    ),
)
