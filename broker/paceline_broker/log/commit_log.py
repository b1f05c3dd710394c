"""The commit log of one broker: positions, appends, group commit, reads, truncation.

One log holds all topics, interleaved; it is the only thing that is replicated. It is synchronous
and owned by the task that owns the role: nothing here waits, except the rare durable steps
(`open`, `truncate_to`, `save_checkpoint`, `close`), which block. Positions, in bytes of the log:

    start <= confirm <= written <= end        flushed <= written               (INV-2)

`append` moves `end` and buffers; `write_pending`, once per loop turn, writes what was buffered with
one gathered write per segment; `begin_flush` and `finish_flush` bracket an fdatasync that somebody
else runs (flusher.py, or a test). After a failed write or sync the log is *poisoned*: it never
accepts or acknowledges anything again (R22). Readers see [start, confirm) only (INV-8); mapped
views never reach above confirm, so truncation never pulls bytes from under a reader (R25).

The start moves by whole segments, never by part of one (R26). The caller names a bound below which
nothing is needed any more: a confirmed retention record says so, and the durable projection
checkpoints lie above it (R14). First the new start is durable in the checkpoint, then the files are
unlinked from the lowest up; recovery unlinks what a crash left (recovery.py). The active segment
stays.
"""

from collections.abc import Awaitable, Iterator
from dataclasses import replace

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.ports import Buffer, Disk, File
from paceline.records.header import HEADER_BYTES, BatchHeader, Kind, parse_header
from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.log.checkpoint import Checkpoint
from paceline_broker.log.epochs import EpochTable
from paceline_broker.log.reading import check_boundary, read_batches, walk_headers
from paceline_broker.log.recovery import (
    Damage,
    RecoveryReport,
    recover,
    save_checkpoint,
)
from paceline_broker.log.repair import RangeRepairer, RepairPlan, damage_at
from paceline_broker.log.segment import Segment, Segments
from paceline_broker.log.tickets import FlushTicket, SpareWanted, Written
from paceline_broker.log.walk import STAMP, check_batch_at

_EPOCH_START = int(Kind.EPOCH_START)  # plain ints and a bound method: once per batch
_unpack_stamp = STAMP.unpack_from


class CommitLog:
    """See the module. Owned by the role's task; not safe from other threads."""

    def __init__(self, disk: Disk, folder: str, *, segment_size_bytes: int) -> None:
        """Not for callers: use `CommitLog.open`."""
        self._disk = disk
        self._folder = self.folder = folder
        self._segment_size_bytes = segment_size_bytes
        self._drop_bound = PhysicalOffset(0)
        self.has_room = True
        """False: the disk is so full that only what frees it is taken (R26); says the cleaner."""
        self._generation = 0  # of the log's content: truncation makes outstanding tickets void
        self._openings_count = 1
        self._recover()

    def _recover(self) -> None:
        self._segments = Segments(
            self._disk, self._folder, segment_size_bytes=self._segment_size_bytes
        )
        recovery = recover(self._disk, self._folder, self._segments)
        report = recovery.report
        self.report = report
        self._checkpoint = recovery.checkpoint
        self._epochs = recovery.epochs
        self._epoch = int(recovery.epochs.last_epoch)
        self._last_store_unix_ms = recovery.last_store_unix_ms
        self._end = self._written = self._flushed = int(report.end)
        self._confirm: int = min(report.confirm_mark, report.end)
        self._start = report.start
        self._pending: list[Buffer] = []  # of the active segment, from _pending_start on
        self._pending_start = self._end
        self._sealed: list[tuple[Segment, Written]] = []  # pending of segments rolled this turn
        self._unsynced: list[Segment] = []
        self._ticket: FlushTicket | None = None
        self._limit = 0
        self._damage: Damage | None = report.damage
        self._resume_from = self._checkpoint.flushed
        self._failure: StorageError | None = None
        if self._damage is None:
            self._limit = self._active_limit()
        else:
            self._failure = self._damage.error()

    @classmethod
    def open(
        cls, disk: Disk, folder: str, *, segment_size_bytes: int
    ) -> "tuple[CommitLog, RecoveryReport]":
        """Open or create the log in `folder`, verifying and repairing its end (recovery.py).

        Blocking. With `report.damage` the log is read-only: every append and truncation above the
        damage raises CorruptLogError, and the role must refuse to lead (R23, R24).
        """
        assert segment_size_bytes % 8 == 0, segment_size_bytes
        disk.make_folder(folder)
        log = cls(disk, folder, segment_size_bytes=segment_size_bytes)
        return log, log.report

    # -- positions and health ---------------------------------------------------------------------

    @property
    def end(self) -> PhysicalOffset:
        """Everything below is appended here; the next batch begins here."""
        return PhysicalOffset(self._end)

    @property
    def written(self) -> PhysicalOffset:
        """Everything below is in the files, so "appended" for memory durability (R13)."""
        return PhysicalOffset(self._written)

    @property
    def flushed(self) -> PhysicalOffset:
        """Everything below is on this disk, files and names."""
        return PhysicalOffset(self._flushed)

    @property
    def confirm(self) -> PhysicalOffset:
        """Everything below may be shown to anybody; after a restart a lower bound (R3)."""
        return PhysicalOffset(self._confirm)

    @property
    def epochs(self) -> EpochTable:
        """Up to `end`."""
        return self._epochs

    @property
    def last_epoch(self) -> MasterEpoch:
        return MasterEpoch(self._epoch)

    @property
    def last_store_unix_ms(self) -> int:
        """Store time of the newest batch: the next one's is at least that."""
        return self._last_store_unix_ms

    @property
    def failure(self) -> StorageError | None:
        """Why the log accepts nothing any more; None = it is healthy."""
        return self._failure

    @property
    def segments_count(self) -> int:
        return self._segments.count

    @property
    def checkpointed(self) -> Checkpoint:
        """The newest durable checkpoint."""
        return self._checkpoint

    @property
    def generation(self) -> int:
        """Changes with every truncation: what was derived from the log before it is void."""
        return self._generation

    @property
    def damage(self) -> Damage | None:
        """What was durable and is not what was written; the replica must not lead (R24)."""
        return self._damage

    @property
    def is_whole(self) -> bool:
        """Neither failed nor damaged."""
        return self._failure is None and self._damage is None

    # -- appending --------------------------------------------------------------------------------

    def append(self, batch_header: bytes, payload: Buffer) -> PhysicalOffset:
        """Append one stamped batch as the master of its epoch; return the new `end`.

        Buffered until `write_pending`, so `payload` must not change before that. A new epoch
        begins with an epoch-start record, and only with one. Wrong stamps are bugs of the caller
        (AssertionError); raises StorageError if the log is poisoned or a new segment cannot be
        made (disk full), and is poisoned then.
        """
        if self._failure is not None:
            raise self._failure
        size, position, store_ms, epoch, kind = _unpack_stamp(batch_header)
        end = self._end
        assert position == end, (position, end)  # INV-3: no gap, no overlap
        assert len(batch_header) == HEADER_BYTES, len(batch_header)
        assert HEADER_BYTES + len(payload) == size, (len(payload), size)
        assert store_ms >= self._last_store_unix_ms, (store_ms, self._last_store_unix_ms)
        if epoch != self._epoch or kind == _EPOCH_START or epoch == 0:
            self._begin_epoch(epoch, kind, end)
        if end + size > self._limit:
            self._roll(size)
        self._pending.append(batch_header)
        self._pending.append(payload)
        self._last_store_unix_ms = store_ms
        self._end = end + size
        return PhysicalOffset(self._end)

    def append_raw(self, position: PhysicalOffset, data: Buffer) -> PhysicalOffset:
        """Append whole batches as a master sent them; return the new `end`.

        `position` must equal `end`. CRCs, offsets and epochs of all batches are checked before
        anything is appended: on CorruptLogError nothing was. `data` must not change before
        `write_pending`.
        """
        if self._failure is not None:
            raise self._failure
        if position != self._end:
            raise CorruptLogError(f"bytes for {position} at end {self._end}", offset=self._end)
        view = memoryview(data)
        stop, at, epoch = len(view), 0, self._epoch
        headers: list[BatchHeader] = []
        while at < stop:
            header = check_batch_at(view, at, stop, position=position + at, epoch=epoch)
            epoch = header.master_epoch
            headers.append(header)
            at += header.size_bytes
        self._take(headers, view)
        return PhysicalOffset(self._end)

    def _take(self, headers: list[BatchHeader], view: memoryview) -> None:
        """Buffer verified batches, as few slices as segments allow."""
        begin = at = 0
        for header in headers:
            if header.master_epoch != self._epoch:
                self._begin_epoch(header.master_epoch, header.kind, self._end)
            if self._end + header.size_bytes > self._limit:
                if at > begin:
                    self._pending.append(view[begin:at])
                begin = at
                self._roll(header.size_bytes)
            at += header.size_bytes
            self._end += header.size_bytes
            self._last_store_unix_ms = max(self._last_store_unix_ms, header.store_unix_ms)
        if at > begin:
            self._pending.append(view[begin:at])

    def write_pending(self) -> list[Written]:
        """Write what was appended since the last call: one gathered write per segment.

        Returns what was written, for pushing to replicas. On StorageError the log is poisoned.
        """
        if self._failure is not None:
            raise self._failure
        runs = self._sealed
        if self._pending:
            written = Written(PhysicalOffset(self._pending_start), self._pending)
            runs.append((self._segments.active, written))
        if not runs:
            return []
        self._sealed, self._pending, self._pending_start = [], [], self._end
        try:
            for segment, (position, buffers) in runs:
                self._disk.writev(segment.file, buffers, position - segment.first)
                if segment not in self._unsynced:
                    self._unsynced.append(segment)
        except StorageError as error:
            raise self._poison(error) from error
        self._written = self._end
        assert self._flushed <= self._written <= self._end  # INV-2
        return [written for _, written in runs]

    def _begin_epoch(self, epoch: int, kind: int, start: int) -> None:
        assert kind == _EPOCH_START, f"epoch {epoch} at {start} without an epoch-start record"
        assert epoch > self._epoch, (epoch, self._epoch)  # INV-4
        self._epochs = self._epochs.with_entry(MasterEpoch(epoch), PhysicalOffset(start))
        self._epoch = epoch

    def _roll(self, size: int) -> None:
        """Seal the active segment and begin the next one at `end`."""
        if self._pending:
            written = Written(PhysicalOffset(self._pending_start), self._pending)
            self._sealed.append((self._segments.active, written))
            self._pending = []
        try:
            if self._segments.active.first < self._end:
                self._segments.roll(PhysicalOffset(self._end), size_min=size)
            else:  # it is empty and too small for this one batch
                self._segments.fill_up_active(size_min=size)
        except StorageError as error:
            raise self._poison(error) from error
        self._pending_start = self._end
        self._limit = self._active_limit()

    def _active_limit(self) -> int:
        active = self._segments.active
        return active.first + active.capacity

    # -- flushing ---------------------------------------------------------------------------------

    def begin_flush(self) -> FlushTicket | None:
        """What to sync now; None if nothing is new or a flush is outstanding (never two)."""
        if self._failure is not None:
            if self._damage is not None:
                return None  # opened damaged: there is nothing to flush before it is mended
            raise self._failure
        if self._ticket is not None or self._flushed == self._written:
            return None
        files = tuple(segment.file for segment in self._unsynced)
        folder = self._folder if self._segments.has_new_names else None
        self._unsynced = []
        self._segments.has_new_names = False
        self._ticket = FlushTicket(
            position=self.written, files=files, folder=folder, generation=self._generation
        )
        return self._ticket

    def finish_flush(self, ticket: FlushTicket) -> PhysicalOffset:
        """The ticket's syncs all succeeded; return the new `flushed`.

        A ticket from before a truncation is ignored: that made its own syncs.
        """
        if self._failure is not None:
            raise self._failure
        if ticket.generation == self._generation:
            assert self._ticket is ticket, ticket
            self._ticket = None
            assert self._flushed <= ticket.position <= self._written  # INV-2
            self._flushed = ticket.position
        return self.flushed

    def fail_flush(self, error: StorageError) -> None:
        """A sync failed: the page cache cannot be trusted any more (R22)."""
        self._poison(error)

    def flush_now(self) -> PhysicalOffset:
        """Write and sync everything on the caller's thread; return `flushed`.

        Also finishes a flush whose runner was cancelled.
        """
        self.write_pending()
        while (ticket := self._ticket or self.begin_flush()) is not None:
            try:
                ticket.run_now(self._disk)
            except StorageError as error:
                raise self._poison(error) from error
            self.finish_flush(ticket)
        return self.flushed

    def _poison(self, error: StorageError) -> StorageError:
        if self._failure is None:
            self._failure = StorageError(f"the log failed and accepts nothing: {error.message}")
        return self._failure

    @property
    def spare_wanted(self) -> SpareWanted | None:
        """The file to make ahead for the next segment; None = not now.

        Wanted once the active segment is half full, so an idle broker reserves no second one.
        """
        is_half_full = 2 * (self._limit - self._end) < self._segments.segment_size_bytes
        if not is_half_full or self._failure is not None or not self._segments.wants_spare:
            return None
        return SpareWanted(
            self._segments.spare_path, self._segments.segment_size_bytes, self._openings_count
        )

    def give_spare(self, wanted: SpareWanted, file: File) -> None:
        """Hand over what `spare_wanted` asked for, zeros and fsynced.

        Only to the log that asked: `reopen` may have unlinked the file since, under its maker.
        """
        if wanted.opening == self._openings_count:
            self._segments.give_spare(file)
        else:
            file.close()

    # -- confirm and checkpoint -------------------------------------------------------------------

    def set_confirm(self, position: PhysicalOffset) -> None:
        """Raise confirm; a lower position changes nothing (INV-2: it never decreases)."""
        assert position <= self._written, (position, self._written)  # INV-2
        self._confirm = max(self._confirm, position)

    def make_checkpoint(self) -> Checkpoint:
        """The present durable lower bounds, for whoever writes them lazily."""
        before, damage = self._checkpoint, self._damage
        flushed, start = self.flushed, self.drop_wanted or self.start
        verify_from = before.flushed if flushed > before.flushed else before.verify_from
        if damage is not None:
            verify_from = min(before.verify_from, damage.position)  # the next start finds it again
        return Checkpoint(
            flushed=flushed,
            confirm=min(self.confirm, flushed),  # R13
            verify_from=max(verify_from, start),
            start=start,
            base=before.base,
            epochs=self._epochs.cut_to(flushed),
            segments=tuple(first for first in self._segments.firsts if start <= first < flushed),
            last_store_unix_ms=self._last_store_unix_ms,
            is_suspect=before.is_suspect,
        )

    def checkpoint_saved(self, checkpoint: Checkpoint) -> None:
        """The checkpoint made last is durable."""
        self._checkpoint = checkpoint

    def save_checkpoint(self) -> None:
        """Write the checkpoint now; blocking."""
        if self._failure is not None:
            raise self._failure
        self._save(self.make_checkpoint())

    def clear_suspicion(self) -> None:
        """The role has settled what recovery found (R23): it left the set and has re-joined."""
        self._save(replace(self._checkpoint, is_suspect=False))

    def _save(self, checkpoint: Checkpoint) -> None:
        try:
            save_checkpoint(self._disk, self._folder, checkpoint)
        except StorageError as error:
            raise self._poison(error) from error
        self._checkpoint = checkpoint

    # -- reading ----------------------------------------------------------------------------------

    def read(self, start: PhysicalOffset, max_bytes: int) -> memoryview:
        """A mapped view of [start, start + max_bytes), cut at confirm and at the segment's end.

        No copy, nothing is walked or touched: the caller names batch boundaries (from a consume
        queue) or cuts with `walk.whole_batches`. Empty when nothing is confirmed at `start`.
        """
        assert start >= self._start, (start, self._start)
        return self._segments.view(start, min(PhysicalOffset(start + max_bytes), self.confirm))

    def read_raw(
        self, start: PhysicalOffset, max_bytes: int, end: PhysicalOffset | None = None
    ) -> memoryview:
        """Whole batches from `start`, at most `max_bytes` but at least one; for replication.

        Below `end` (default and at most `written`), inside one segment. Mapped when they lie below
        confirm, copied above (R25). Empty at `end`. A batch larger than `max_bytes` comes alone.
        """
        assert start >= self._start, (start, self._start)
        stop = self.written if end is None else min(end, self.written)
        return read_batches(self._segments, start, max_bytes, stop=stop, confirm=self.confirm)

    def batches(
        self, start: PhysicalOffset, end: PhysicalOffset | None = None
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """(header, bytes of the batch) of every batch in [start, end), for folding (INV-9).

        `start` is a batch boundary; `end` defaults to `written`. Raises CorruptLogError where a
        header is bad. The bytes stay valid after the next step.
        """
        stop = self.written if end is None else end
        return walk_headers(self._segments, start, stop=stop, confirm=self.confirm)

    def is_cold(self, view: memoryview) -> bool:
        """Whether touching a view from `read` would wait for the disk (and stop the loop)."""
        return len(view) > 0 and not self._disk.is_resident(view)

    def warm(self, view: memoryview) -> Awaitable[None]:
        """Bring a view from `read` into memory off the event loop."""
        return self._disk.warm(view)

    # -- damage -----------------------------------------------------------------------------------

    def note_damage(self, position: PhysicalOffset, reason: str) -> Damage:
        """No whole batch stands at `position` any more: remember it durably, serve none of it.

        Blocking. The log goes on otherwise: a master hands over first.
        """
        found = damage_at(self._segments, position, mark=self.flushed, reason=reason)
        if self._damage is None:
            self._resume_from = self._checkpoint.verify_from
        self._damage = found if self._damage is None else self._damage.joined(found)
        self._save(self.make_checkpoint())
        return self._damage

    def begin_repair(self, aside: str) -> RangeRepairer:
        """Work on the damaged files; until `reopen` nothing is appended here."""
        assert self._damage is not None
        is_open = self._failure is None
        firsts = self._segments.firsts if is_open else self._checkpoint.segments
        plan = RepairPlan(
            damage=self._damage,
            checkpoint=self._checkpoint,
            firsts=tuple(first for first in firsts if first < self._checkpoint.flushed),
            epochs=self._epochs.cut_to(self._damage.position),
            resume_from=self._resume_from,
            segment_size_bytes=self._segment_size_bytes,
        )
        return RangeRepairer(self._disk, self._folder, aside, plan)

    def reopen(self) -> RecoveryReport:
        """Close the files and recover again, after a repair; confirm does not fall by it."""
        confirm = self._confirm
        self._generation += 1
        self._openings_count += 1
        self._segments.close()
        self._recover()
        self._confirm = max(self._confirm, min(confirm, self._end))
        return self.report

    # -- truncating and closing -------------------------------------------------------------------

    def truncate_to(self, offset: PhysicalOffset, *, allow_below_confirm: bool = False) -> int:
        """Drop every batch at or after `offset`; return the bytes dropped. Durable on return.

        `offset` is a batch boundary in [start, end] (CorruptLogError else). Below confirm only with
        `allow_below_confirm`: towards an unclean epoch, or to give up damaged or divergent data
        (R16, R24); confirm falls with it then. Blocking; called by the replica's task before it
        joins an epoch. Pending appends must have been written. After a crash at any point the log
        is as before or as after. Source: SAFETY.md R25.
        """
        if self._failure is not None and self._damage is None:
            raise self._failure
        assert self._written == self._end, "write_pending before truncating"
        if offset < self._confirm and not allow_below_confirm:
            raise CorruptLogError(
                f"truncation to {offset} below confirm {self._confirm} (R16)", offset=offset
            )
        self._check_boundary(offset)
        dropped = self._end - offset
        if dropped == 0 and self._damage is None:
            return 0
        self._generation += 1
        try:
            self._cut(offset)
        except StorageError as error:
            raise self._poison(error) from error
        return dropped

    def _cut(self, offset: PhysicalOffset) -> None:
        before = self._checkpoint
        flushed = min(before.flushed, offset)
        lowered = replace(
            before,
            start=min(before.start, offset),
            base=before.base if before.base <= offset else PhysicalOffset(0),
            flushed=flushed,
            confirm=min(before.confirm, offset),
            verify_from=min(before.verify_from, offset),
            epochs=before.epochs.cut_to(flushed),
            segments=tuple(first for first in before.segments if first < flushed),
        )
        # The mark first: it must never lie above the log's end (R23), and the intent makes
        # recovery finish what a crash interrupts.
        self._save(replace(lowered, truncate_to=offset))
        self._segments.cut_to(offset)
        self._segments.fill_up_active()
        self._segments.sync_from(flushed)
        self._epochs = self._epochs.cut_to(offset)
        self._epoch = int(self._epochs.last_epoch)
        self._end = self._written = self._flushed = self._pending_start = int(offset)
        self._confirm = min(self._confirm, offset)
        self._start = self._drop_bound = min(self._start, offset)
        self._unsynced, self._ticket = [], None
        self._limit = self._active_limit()
        self._damage = self._failure = None
        self._checkpoint = lowered
        self._save(self.make_checkpoint())

    def _check_boundary(self, offset: PhysicalOffset) -> None:
        """CorruptLogError unless a batch begins, or the log ends, at `offset`."""
        if offset == 0:
            return  # giving up everything needs no batch to be intact
        if not self._start <= offset <= self._end:
            raise CorruptLogError(
                f"{offset} is outside the log [{self._start}, {self._end}]", offset=offset
            )
        known = [self.start, self.confirm, self.flushed, self.end, *self._segments.firsts]
        known += [entry.start for entry in self._epochs.entries]
        check_boundary(self._segments, offset, known=known, confirm=self.confirm)

    def close(self, *, clean: bool = True) -> None:
        """Close the files; `clean` flushes everything and saves the checkpoint first."""
        if clean and self._failure is None:
            self.flush_now()
            self.save_checkpoint()
        self._segments.close()
        if self._failure is None:
            self._failure = StorageError("the log is closed")

    # -- where it begins --------------------------------------------------------------------------

    @property
    def start(self) -> PhysicalOffset:
        """First offset of the first segment: nothing below is here."""
        return self._start

    @property
    def base(self) -> PhysicalOffset:
        """Position of the projection checkpoint that was installed with the start; 0: none (R14).

        While `end` is below it, the state is ahead of the log: this replica cannot lead yet.
        """
        return self._checkpoint.base

    @property
    def size_bytes(self) -> int:
        """What the log takes on the disk, the preallocated rest of the active segment included."""
        return self._segments.size_bytes

    def segment_bounds(self) -> list[tuple[PhysicalOffset, PhysicalOffset]]:
        """(first, end) of the segments that are sealed, the oldest first."""
        firsts = self._segments.firsts
        return list(zip(firsts, firsts[1:], strict=False))

    def store_time_at(self, position: PhysicalOffset) -> int:
        """Store time of the batch at `position`, a boundary; none before it has a later one."""
        if position >= self._written:
            return self._last_store_unix_ms
        found = self._segments.pread(position, PhysicalOffset(position + HEADER_BYTES))
        return parse_header(found).store_unix_ms

    def let_go_below(self, bound: PhysicalOffset) -> None:
        """Segments wholly below `bound` may go; the flusher carries it out (`drop_wanted`)."""
        flushed = min(self._confirm, self._flushed)
        assert bound <= flushed, (bound, flushed)  # R26: never beyond what is confirmed and durable
        self._drop_bound = max(self._drop_bound, bound)

    @property
    def drop_wanted(self) -> PhysicalOffset | None:
        """Where the log will begin once the segments let go are dropped; None: none are."""
        below = [end for _, end in self.segment_bounds() if end <= self._drop_bound]
        return below[-1] if below and self.is_whole else None

    def drop(self, start: PhysicalOffset) -> list[str]:
        """The checkpoint that names `start` is durable: forget the segments; paths to unlink."""
        assert self._checkpoint.start == start, (self._checkpoint.start, start)
        paths = self._segments.forget_below(start)
        self._start = start
        return paths

    def begin_anew_at(
        self,
        start: PhysicalOffset,
        *,
        epochs: EpochTable,
        base: PhysicalOffset,
        sets_aside: bool = False,
    ) -> None:
        """Give up every byte and begin, empty, at `start`; durable on return. Blocking.

        `sets_aside`: the files stay, under other names, in place of those kept before (R5).

        `epochs`: the table of the whole log, as the master has it; `base`: position of the
        projection checkpoint, which is durable already. After a crash the log is as before or as
        after: the checkpoint's replacement is the moment. Pending appends must have been written.
        """
        if self._failure is not None and self._damage is None:
            raise self._failure
        assert self._written == self._end, "write_pending before beginning anew"
        assert start <= base, (start, base)  # R14
        self._generation += 1
        has_bytes = self._start < self._end or self._damage is not None
        sets_aside = sets_aside and has_bytes  # an empty log replaces no kept one
        if sets_aside:
            self._drop_aside()
        emptied = Checkpoint(
            flushed=start,
            confirm=start,
            verify_from=start,
            start=start,
            base=base,
            epochs=epochs.cut_to(start),
            is_suspect=self._checkpoint.is_suspect,
            is_beginning_anew=True,
            sets_aside=sets_aside,
        )
        self._save(emptied)
        try:
            self._segments.begin_anew_at(start, sets_aside=sets_aside)
        except StorageError as error:
            raise self._poison(error) from error
        self._epochs = emptied.epochs
        self._epoch = int(MasterEpoch(self._epochs.last_epoch))
        self._start = start
        self._end = self._written = self._flushed = self._confirm = self._pending_start = int(start)
        self._unsynced, self._sealed, self._ticket = [], [], None
        self._drop_bound = start
        self._limit = self._active_limit()
        self._damage = self._failure = None
        self._checkpoint = emptied
        self._save(self.make_checkpoint())

    def _drop_aside(self) -> None:
        try:
            self._segments.drop_aside()
        except StorageError as error:
            raise self._poison(error) from error
