"""What others may ask of the log: its positions, its health. `CommitLog` owns and changes it."""

from paceline.errors import StorageError
from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.log.checkpoint import Checkpoint
from paceline_broker.log.epochs import EpochTable
from paceline_broker.log.recovery import Damage
from paceline_broker.log.segment import Segments


class LogState:
    """The readable side of a commit log; see commit_log.py for what the positions mean."""

    folder: str
    _end: int
    _written: int
    _flushed: int
    _confirm: int
    _epoch: int
    _epochs: EpochTable
    _last_store_unix_ms: int
    _segments: Segments
    _checkpoint: Checkpoint
    _generation: int
    _failure: StorageError | None
    _damage: Damage | None

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
