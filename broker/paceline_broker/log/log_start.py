"""The part of a commit log that moves its start: whole segments go, never part of one (R26).

The caller names a bound below which nothing is needed any more: a confirmed retention record says
so, and the durable projection checkpoints lie above it (R14). First the new start is durable in the
log's checkpoint, then the files are unlinked from the lowest up; recovery unlinks what a crash left
(recovery.py). The active segment stays. `begin_anew_at` is the other move: a replica below its
master's start gives up what it has and begins where the master's log does (R14).
"""

from paceline.errors import StorageError
from paceline.platform.ports import Disk
from paceline.records.header import HEADER_BYTES, parse_header
from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.log.checkpoint import Checkpoint
from paceline_broker.log.epochs import EpochTable
from paceline_broker.log.segment import Segment
from paceline_broker.log.state import LogState
from paceline_broker.log.tickets import FlushTicket, Written


class LogStart(LogState):
    """Base of `CommitLog`, which sets every field."""

    _disk: Disk
    _folder: str
    _start: PhysicalOffset
    _pending_start: int
    _limit: int
    _unsynced: list[Segment]
    _sealed: list[tuple[Segment, Written]]
    _ticket: FlushTicket | None
    _drop_bound = PhysicalOffset(0)
    has_room = True
    """False: the disk is so full that only what frees it is taken (R26). The cleaner says so."""

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

    # -- of CommitLog

    def make_checkpoint(self) -> Checkpoint:
        raise NotImplementedError

    def _save(self, checkpoint: Checkpoint) -> None:
        raise NotImplementedError

    def _poison(self, error: StorageError) -> StorageError:
        raise NotImplementedError

    def _active_limit(self) -> int:
        raise NotImplementedError
