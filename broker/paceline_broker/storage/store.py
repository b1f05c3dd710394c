"""Everything one broker has on its disk, opened together: identity, log, projections, checkpoints.

Owned by the role; used on the event loop only. Folding is here because it needs the log and the
projections: a replica folds up to confirm, a master folds its whole tail before its first append
and then folds as it appends (R28).
"""

import logging
from dataclasses import dataclass
from typing import Any

from paceline.errors import CorruptLogError
from paceline.platform.ports import Disk, File
from paceline.records.decode import BatchView
from paceline.types import MasterEpoch, PhysicalOffset
from paceline.wire.cluster import GroupView
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.epochs import EpochTable
from paceline_broker.log.recovery import RecoveryReport, is_checkpoint_intact
from paceline_broker.log.repair import is_batch
from paceline_broker.projections.projections import Projections, needs_payload
from paceline_broker.storage.checkpoints import CheckpointFolder, ReceivedCheckpoint
from paceline_broker.storage.identity import StoreIdentity

log = logging.getLogger("paceline.store")

PACKED_AT_ONCE = 2000
"""Producers prepared for a checkpoint in one turn of the loop: some 3 ms."""


class StateLostError(CorruptLogError):
    """The log is whole, the state of what lies before its start is not to be had here (R14)."""


@dataclass(slots=True)
class PendingCheckpoint:
    """A snapshot taken at `position`, kept back until that is confirmed and flushed (R28)."""

    position: PhysicalOffset
    generation: int
    snapshot: list[bytes]
    """In pieces."""


class Store:
    """The open data folder of one broker. Made by `open_store`."""

    def __init__(
        self,
        *,
        disk: Disk,
        lock: File,
        identity: StoreIdentity,
        commit_log: CommitLog,
        report: RecoveryReport,
        checkpoints: CheckpointFolder,
    ) -> None:
        self.disk = disk
        self.identity = identity
        self.log = commit_log
        self.report = report
        self.projections = Projections()
        self.checkpointed = PhysicalOffset(0)
        """Position of the newest durable projection checkpoint; 0 = fold from the log's start."""
        self._kept_end = report.end
        """Up to here the log is what recovery found; all above was appended by this process."""
        self.lost_state: str | None = None
        """Why the state could not be made at the start: this store follows once it began anew."""
        self._lock = lock
        self._checkpoints = checkpoints
        self._pending: PendingCheckpoint | None = None

    @property
    def is_suspect(self) -> bool:
        """What the registration says: this store may not lead before it is whole (R23, R24)."""
        is_damaged = self.log.damage is not None or self.lost_state is not None
        return self.report.is_suspect or is_damaged

    def fold_to(self, limit: PhysicalOffset) -> None:
        """Fold every batch in [projections.position, limit). Raises CorruptLogError."""
        fold(self.log, self.projections, limit)

    def reload_projections(self, *, limit: PhysicalOffset | None = None) -> None:
        """Drop the state and fold it again, from the newest checkpoint up to confirm (R28).

        A `limit` below confirm is where the log is about to be cut, towards an unclean epoch. After
        a demotion the state may hold what was never confirmed, so it is not rolled back but made
        anew. Raises CorruptLogError if the log does not reach back to any checkpoint (R14).
        """
        self._pending = None
        # What was installed was confirmed by the master that sent it (R14), and what was written
        # here was confirmed then, however late the log's own mark is (R13).
        newest = max(self.log.end if limit is None else limit, self.log.base)
        found = self._checkpoints.newest(limit=newest, log_start=self.log.start)
        if limit is None and found is not None and found.position <= self.log.end:
            self.log.set_confirm(found.position)
        if limit is None or limit > self.log.confirm:
            limit = self.log.confirm
        if found is not None:
            self.projections = Projections.restore(found.snapshot)
            # Of an older one the record that moved the log's start may still be to be folded.
            self.projections.consume_queues.drop_below(self.log.start)
            self.checkpointed = found.position
        elif self.log.start > 0:
            raise StateLostError(
                f"the log begins at {self.log.start} and there is no intact projection checkpoint: "
                "this broker fetches everything from its master once it is no member of the set"
            )
        else:
            self.projections = Projections()
            self.checkpointed = PhysicalOffset(0)
        self.fold_to(limit)
        self.projections.retain(limit)
        log.info(
            "projections_loaded",
            extra={"checkpoint": int(self.checkpointed), "position": int(limit)},
        )

    def reopen(self) -> None:
        """After a repair of the log's files: recover again. The state is made anew by the role."""
        self._pending = None
        self.report = self.log.reopen()
        self._kept_end = self.report.end
        self._checkpoints.drop_beyond(max(self.log.end, self.log.base))  # R13, R14

    def is_intact_at(self, position: PhysicalOffset) -> bool:
        """Whether a whole batch stands at `position`, as far as itself can tell."""
        try:
            return is_batch(self.log.read_raw(position, 1), position)
        except CorruptLogError:
            return False

    def load_projections(self) -> None:
        """At the start. Raises CorruptLogError for records that this version cannot fold.

        Recovery verifies what came after the log's last checkpoint, and the fold may begin before:
        damage that only the fold comes across is noted, and the log opened again with it (R24).
        """
        try:
            self.reload_projections()
        except StateLostError as error:  # as with a damaged log: it registers, and does not lead
            log.error("state_lost", extra={"fault": error.message})
            self.lost_state = error.message
        except CorruptLogError as error:
            position = self.projections.position
            if position < self.log.start or self.is_intact_at(position):
                raise
            self.log.note_damage(position, error.message)
            self.projections = Projections()
            self.reopen()
            assert self.log.damage is not None

    def replace_bad_side_files(self) -> list[str]:
        """Small files that the disk has changed: written anew, or dropped where a next one comes.

        Their paths. Blocking; raises StorageError.
        """
        bad = self.identity.replace_bad() + self._checkpoints.drop_bad()
        if self.log.failure is None and not is_checkpoint_intact(self.disk, self.log.folder):
            self.log.save_checkpoint()
            bad.append("log/checkpoint.json")
        return bad

    def has_regained(self, epoch: MasterEpoch) -> bool:
        """Whether whatever was confirmed before `epoch` began is on this disk, whatever recovery
        had to cut (R23): the start of the epoch is, and it came after that recovery. One that was
        there before says nothing of what was confirmed, and cut, behind it in the same epoch.
        """
        start = self.log.epochs.start_of(epoch)
        return start is not None and self._kept_end <= start < self.log.flushed

    def settle_suspicion(self, group: GroupView) -> None:
        """Forget that recovery cut bytes once this log holds whatever was confirmed (R23).

        A member that was sent the start of the present epoch has all that its master had then.
        """
        if self.log.checkpointed.is_suspect:
            epoch = self.identity.epoch
            is_member = self.identity.identity.replica_id in group.sync_state_set
            if is_member and group.master_epoch == epoch and self.has_regained(epoch):
                self.log.clear_suspicion()

    def prepare_truncation(self, truncate_to: PhysicalOffset) -> bool:
        """The log is about to be cut: forget what was derived from beyond; True if that was state.

        Only towards an unclean epoch does a cut reach below what was folded (R16, R21). Checkpoints
        go first, durably: once other records stand at their positions nothing tells them apart.
        """
        self._pending = None
        self._kept_end = min(self._kept_end, truncate_to)
        self._checkpoints.drop_beyond(truncate_to)
        if self.projections.position <= truncate_to:
            return False
        self.reload_projections(limit=truncate_to)
        return True

    def prepare_checkpoint(self) -> bool:
        """Do a part of what `begin_checkpoint` does in one turn of the loop; is there more?"""
        return self.projections.producers.pack_some(PACKED_AT_ONCE)

    def begin_checkpoint(self) -> None:
        """Take a snapshot of the present state, to be written once its position is confirmed."""
        position = self.projections.position
        is_new = position > self.checkpointed
        if self._pending is None and is_new and self.log.failure is None:
            self._pending = PendingCheckpoint(
                position=position,
                generation=self.log.generation,
                snapshot=self.projections.snapshot_pieces(),
            )

    @property
    def is_checkpoint_pending(self) -> bool:
        """One waits until its position is confirmed and flushed."""
        return self._pending is not None

    async def finish_checkpoint(self) -> bool:
        """Write the pending snapshot if its position is confirmed and flushed; True if written."""
        pending = self._pending
        if pending is None:
            return False
        if pending.generation != self.log.generation:  # a truncation made it worthless
            self._pending = None
            return False
        if pending.position > min(self.log.confirm, self.log.flushed):
            return False
        self._pending = None
        is_written = await self._checkpoints.write(
            pending.position,
            pending.snapshot,
            is_current=lambda: pending.generation == self.log.generation,
        )
        if is_written:
            self.checkpointed = max(self.checkpointed, pending.position)
        return is_written

    def newest_checkpoint(self) -> tuple[PhysicalOffset, bytes] | None:
        """For a replica whose log parts from this one below its start (R14)."""
        return self._checkpoints.newest_file(limit=self.log.confirm, log_start=self.log.start)

    def begin_receiving(self, position: PhysicalOffset) -> ReceivedCheckpoint:
        return self._checkpoints.begin_receiving(position)

    def install(
        self, received: ReceivedCheckpoint, *, start: PhysicalOffset, epochs: EpochTable
    ) -> None:
        """Begin anew at the master's start, with the state of its checkpoint (R14). Blocking.

        The checkpoint is durable here before anything of the own is given up; the log's checkpoint
        is the moment: before it a crash leaves the old store, after it the new one. The state is
        then ahead of the log until that has come as far as the checkpoint (`log.base`).
        """
        self._checkpoints.adopt(received)
        own = self.log.epochs.entries
        is_foreign = bool(own) and not set(own) & set(epochs.entries)  # no epoch in common (R5)
        self.log.begin_anew_at(start, epochs=epochs, base=received.position, sets_aside=is_foreign)
        self._checkpoints.keep_only(received.position)
        self._kept_end = PhysicalOffset(0)  # all that is here now, the master has sent (R23)
        self.reload_projections()

    def set_aside(self) -> None:
        """Begin anew at 0, with nothing; log and checkpoints stay under other names (R5). Blocking.

        Checkpoints first: they are not of what will be fetched. After a crash between the two the
        log makes its state anew, or finds itself without one, and is set aside later.
        """
        end, confirm = self.log.end, self.log.confirm
        self._pending = None
        if self.log.start < end or self.log.damage is not None:
            self._checkpoints.set_aside()
        zero = PhysicalOffset(0)
        self.log.begin_anew_at(zero, epochs=EpochTable(), base=zero, sets_aside=True)
        self._kept_end = zero  # all that is here now, the master has sent (R23)
        self.lost_state = None
        self.reload_projections()
        log.error("data_set_aside", extra={"end": int(end), "confirm": int(confirm)})

    def let_segments_go(self) -> None:
        """Let the log delete what a confirmed retention record gave up, as far as it may (R26).

        The record, and the state that knows of it, are durable here by then; and the log still
        reaches back to every kept checkpoint (R14).
        """
        record_end, log_start = self.projections.retained
        durable = min(self.log.confirm, self.log.flushed, self.checkpointed)
        if log_start <= self.log.start or record_end > durable or self.log.failure is not None:
            return
        bound = min(log_start, self._checkpoints.oldest_position())
        if bound > self.log.start:
            self.log.let_go_below(bound)

    def forget_pending_checkpoint(self) -> None:
        """The mastership that took it has ended."""
        self._pending = None

    def close(self, *, clean: bool) -> None:
        """Close the log; a clean close flushes and marks the shutdown (R13)."""
        is_clean = clean and self.log.failure is None
        self.log.close(clean=is_clean)
        if is_clean:
            self.identity.mark_clean_shutdown()
        self._lock.close()

    def positions(self) -> dict[str, Any]:
        """For `/v1/status`."""
        return {
            "start": self.log.start,
            "log_start": self.projections.retained.log_start,
            "end": self.log.end,
            "flushed": self.log.flushed,
            "confirm": self.log.confirm,
            "checkpoint": self.checkpointed,
        }


def fold(commit_log: CommitLog, projections: Projections, limit: PhysicalOffset) -> None:
    """Fold what `commit_log` holds from where `projections` stand up to `limit`.

    Raises CorruptLogError: the disk may have changed a batch since it was written (R24).
    """
    if projections.position >= limit:
        return
    for header, batch in commit_log.batches(projections.position, limit):
        view = None
        if needs_payload(header):
            view = BatchView(batch)
            view.verify()
        projections.apply(header, view)
    if projections.position != limit:
        raise CorruptLogError(f"the fold stopped at {projections.position}, not {limit}")


def lock_data_folder(disk: Disk, data_dir: str) -> File:
    """Take the folder for this process; StorageError says that another has it."""
    disk.make_folder(data_dir)
    return disk.lock_folder(data_dir)


def open_store(
    disk: Disk, data_dir: str, *, lock: File, identity: StoreIdentity, segment_size_bytes: int
) -> Store:
    """Recover log and projections; blocking. Raises StorageError, CorruptLogError.

    A damaged log still opens (the report says where), and so does one whose state is lost: the
    broker then stays out of the set.
    """
    commit_log, report = CommitLog.open(
        disk, f"{data_dir}/log", segment_size_bytes=segment_size_bytes
    )
    checkpoints = CheckpointFolder(disk, f"{data_dir}/projections")
    checkpoints.drop_beyond(max(commit_log.end, commit_log.base))  # R13, R14
    checkpoints.drop_below(commit_log.base)
    store = Store(
        disk=disk,
        lock=lock,
        identity=identity,
        commit_log=commit_log,
        report=report,
        checkpoints=checkpoints,
    )
    if report.damage is None:
        store.load_projections()
    return store
